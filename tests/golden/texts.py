"""Sixty seeded calls over all doors, output types and policies; the texts that each returns are kept in ``texts.json``."""

from __future__ import annotations

import asyncio
import datetime
import enum
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Literal

import outlines
import torch
from outlines.types import CFG
from outlines.types import regex as pattern
from pydantic import BaseModel, Field
from typer.testing import CliRunner

import outlines_phi
from outlines_phi import SMC, AutoPhi, BannedPhrases, ExactPhi, LookaheadPhi, PhiLogitsProcessor, generate
from outlines_phi.cli.app import app
from outlines_phi.guides import read_grammar
from outlines_phi.lm import bundled
from outlines_phi.lm.table_model import TableModel
from outlines_phi.vocabulary.vocabulary import Vocabulary

N, ONE_BY_ONE = 10, 4
"""Texts of a row, and of one with a call for each."""

Answer = Literal["yes", "not now", "nobody", "no"]
Day = datetime.date
Code = pattern("[A-Z][a-z]{1,6}( [0-9]{1,2})?")


class Size(enum.Enum):
    small = "small"
    large = "large"
    medium = "medium"


class Character(BaseModel):
    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    alive: bool


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=99)


LARK = 'start: sum\nsum: atom ("+" atom)*\natom: NUMBER | "(" sum ")"\nNUMBER: /[0-9]{1,2}/\n%ignore " "'
GBNF = 'root ::= pair ("," pair){0,2}\npair ::= "(" word ")" | word\nword ::= [a-z]{2,5}'
GUIDANCE = '%llguidance {}\nstart: answer END\nanswer[capture]: A\nA: "yes" | "no"\nEND: /[.!]{1,3}/'
BAKERY, ARIA = "Question: is the bakery open on Sunday? Answer: ", "New character: Aria. JSON: "
OTHER = "Answer: "

FORMATS: dict[str, tuple[Any, Any, int]] = {
    "answer": (Answer, BAKERY, 12),
    "character": (Character, ARIA, 64),
    "code": (Code, "Person: ", 16),
    "day": (Day, "Order date: ", 16),
    "free": (None, BAKERY, 12),
    "gbnf": (read_grammar(GBNF, dialect="gbnf"), "Role: ", 16),
    "guidance": (CFG(GUIDANCE), BAKERY, 8),
    "json": (dict, ARIA, 24),
    "lark": (CFG(LARK), "Order size: ", 12),
    "person": (Person, "Person: Nora is a baker. JSON: ", 48),
    "size": (Size, "Order size: ", 8),
    "toy": (pattern("(ab|ba|c){1,3}x?"), "", 7),
}
"""By name: an output type, a prompt and the most tokens."""

BAN, LONG = ["it is"], ["it is closed", "not this year", "it opens on"]
POLICIES: dict[str, dict[str, Any]] = {
    **{phi: {"phi": phi} for phi in ("auto", "exact", "local", "onestep", "learned", "dp", "dp-bigram")},
    "default": {},
    "weighted": {"phi": AutoPhi(share=0, candidates=4)},
    "narrow": {"phi": ExactPhi(width=1)},
    "tolerance": {"phi": ExactPhi(tolerance=0.05)},
    "confidence": {"phi": ExactPhi(tolerance=0.2, confidence=0.9)},
    "settings": {"phi": "exact", "temperature": 1.4, "top_k": 40, "repetition_penalty": 1.2},
    "canonical": {"phi": "exact", "tokenization": "canonical"},
    "constraint": {"phi": "exact", "constraint": lambda text: "elf" not in text},
    "particles": {"phi": "local", "sampler": SMC(particles=6)},
    "resampled": {"phi": "onestep", "sampler": SMC(particles=6, resample="ess", threshold=0.9)},
    **{f"ban-{level}": {"banned_phrases": BannedPhrases(BAN, level=level)} for level in ("mask", "weighted", "exact")},
    "lookahead": {"banned_phrases": LONG, "phi": "lookahead"},
    "early": {"banned_phrases": LONG, "phi": LookaheadPhi(release="early")},
    "windows": {"banned_phrases": LONG, "phi": LookaheadPhi(window=3, weights=True)},
    "ban-words": {"banned_phrases": BannedPhrases(["No", "closed"], ignore_case=True, whole_word=True)},
    "ban-regex": {"banned_phrases": [re.compile("[nf]o[rt]? ?[a-z]")]},
    "ban-type": {"banned_phrases": ["elf", "wizard"], "phi": "exact"},
    "ban-type-mask": {"banned_phrases": ["elf", "wizard"], "phi": "local"},
    "ban-type-ahead": {"banned_phrases": ["elf", "wizard"], "phi": "lookahead"},
    "forced": {"phi": "local", "draft": "forced"},
    "lookup": {"phi": "exact", "draft": "prompt_lookup", "draft_length": 3},
    "tree": {"phi": "onestep", "draft": "tree"},
    "sibling": {"phi": "local", "draft": "a sibling"},
    "drafted-ban": {"banned_phrases": BAN, "phi": "lookahead", "draft": "a sibling"},
}
"""By name: the options of a call."""

OF_CALLS = ("temperature", "top_k", "repetition_penalty")
"""The options that no generator takes, each call does."""


@cache
def sibling() -> Any:
    """The bundled model with noisy layers: a draft model."""
    hf_model, noise = bundled.load()[0], torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in hf_model.model.layers.parameters():
            weights += 0.2 * weights.std() * torch.randn(weights.shape, generator=noise)
    return hf_model


@cache
def loaded() -> tuple[Any, Any]:
    return bundled.load()


@dataclass(frozen=True)
class Row:
    """A call: a door, an output type with its prompt, and a policy."""

    door: str
    format: str
    policy: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.door}, {self.format}, {self.policy}"

    type = property(lambda row: FORMATS[row.format][0])
    prompt = property(lambda row: FORMATS[row.format][1])
    budget = property(lambda row: FORMATS[row.format][2])

    @property
    def own(self) -> dict[str, Any]:
        """The options of a generator."""
        own = {name: value for name, value in POLICIES[self.policy].items() if name not in OF_CALLS}
        return own | {"draft": sibling()} if own.get("draft") == "a sibling" else own

    @property
    def limits(self) -> dict[str, Any]:
        rest = {name: value for name, value in POLICIES[self.policy].items() if name in OF_CALLS}
        return {"max_new_tokens": self.budget, "seed": self.seed, **rest}

    @property
    def several(self) -> dict[str, Any]:
        return {"num_return_sequences": N, **self.limits}

    @property
    def model(self) -> Any:
        if self.format == "toy":
            letters = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c", "cc", "x", "aa", "(", ")", "()"], 0)
            return outlines_phi.from_language_model(TableModel.random(letters, seed=3, scale=1.5), lambda text: (1, 2))
        return outlines_phi.wrap(outlines.from_transformers(*loaded()))

    @property
    def generator(self) -> Any:
        return outlines_phi.Generator(self.model, self.type, **self.own)

    def texts(self) -> list[str]:
        """Return the texts of the call."""
        torch.manual_seed(self.seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", outlines_phi.FidelityWarning)
            return DOORS[self.door](self)


def one_by_one(write: Callable[..., Any], row: Row, **options: Any) -> list[str]:
    """Return the text of a call for each of a few seeds; streams are put together."""
    seeded = ({**row.limits, **options, "seed": row.seed + i} for i in range(ONE_BY_ONE))
    return ["".join(write(row.prompt, **limits)) for limits in seeded]


def sample_batch(row: Row) -> list[str]:
    return [text for draws in row.generator.sample_batch([row.prompt, OTHER], 2, **row.limits) for text in draws.texts]


def batch(row: Row) -> list[str]:
    options = {**row.limits, **row.own, "num_return_sequences": 2}
    return [text for texts in row.model.batch([row.prompt, OTHER], row.type, **options) for text in texts]


def asynchronous(row: Row) -> list[str]:
    generator = row.generator

    async def calls() -> list[str]:
        return await asyncio.gather(
            *(generator.agenerate(row.prompt, **row.limits | {"seed": seed}) for seed in range(N))
        )

    return asyncio.run(calls())


def installed(row: Row) -> list[str]:
    outlines_phi.install()
    try:
        return outlines.Generator(outlines.from_transformers(*loaded()), row.type, **row.own)(row.prompt, **row.several)
    finally:
        outlines_phi.uninstall()


def classic(row: Row) -> list[str]:
    make = {"character": generate.json, "code": generate.regex, "lark": generate.cfg}.get(row.format)
    generator = generate.text(row.model, **row.own) if make is None else make(row.model, row.type, **row.own)
    return [str(generator(row.prompt, row.budget, seed=row.seed + i)) for i in range(ONE_BY_ONE)]


def generated(row: Row, **options: Any) -> list[str]:
    """Return the texts of ``generate`` of transformers."""
    model, tokenizer = loaded()
    prompt = tokenizer(row.prompt, return_tensors="pt")
    ids = model.generate(**prompt, num_return_sequences=N, **options)
    return tokenizer.batch_decode(ids[:, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def custom_generate(row: Row) -> list[str]:
    own = {"custom_generate": outlines_phi.custom_generate, "output_type": row.type, "vocabulary": loaded()[1]}
    return generated(row, **own, **row.limits, **row.own)


def processor(row: Row) -> list[str]:
    made = PhiLogitsProcessor(row.model, row.type, max_new_tokens=row.budget, **row.own)
    return generated(row, logits_processor=[made], **made.host_options)


def banned_model(row: Row) -> list[str]:
    own = row.own
    return outlines_phi.ban(row.model, own.pop("banned_phrases"))(row.prompt, row.type, **row.several, **own)


def command_line(row: Row) -> list[str]:
    typed = ["--type", f"{__name__}:Answer"] if row.format == "answer" else ["--ban", *BAN]
    limits = ["--phi", row.own["phi"], "--n", N, "--seed", row.seed, "--max-new-tokens", row.budget]
    result = CliRunner().invoke(app, list(map(str, ["generate", *typed, *limits, row.prompt])))
    assert result.exit_code == 0, result.output
    return [line["text"] for line in map(json.loads, result.stdout.splitlines()) if line["record"] == "draw"]


def probabilities(row: Row) -> list[str]:
    """Return the values, the most probable first."""
    law = row.generator.probabilities(row.prompt, max_new_tokens=row.budget)
    return sorted(law, key=lambda value: -law[value].p)


DOORS: dict[str, Callable[[Row], list[str]]] = {
    "call": lambda row: row.model(row.prompt, row.type, **row.several, **row.own),
    "batch": batch,
    "stream": lambda row: one_by_one(row.model.stream, row, output_type=row.type, **row.own),
    "generator": lambda row: row.generator(row.prompt, **row.several),
    "sample": lambda row: row.generator.sample(row.prompt, N, **row.limits).texts,
    "sample_batch": sample_batch,
    "generator.stream": lambda row: one_by_one(row.generator.stream, row),
    "agenerate": asynchronous,
    "outlines.Generator": lambda row: outlines.Generator(row.model, row.type)(row.prompt, **row.several, **row.own),
    "install": installed,
    "generate": classic,
    "custom_generate": custom_generate,
    "logits-processor": processor,
    "ban": banned_model,
    "command-line": command_line,
    "probabilities": probabilities,
    "mode": lambda row: row.generator.mode(row.prompt, top=3, max_new_tokens=row.budget).texts,
}

GROUPS = (
    ("call", "character", "auto exact local dp weighted narrow settings canonical constraint"),
    ("call", "code", "onestep learned forced tree"),
    ("sample", "toy", "exact local onestep learned dp-bigram tolerance confidence particles resampled"),
    ("call", "free", "ban-mask lookahead ban-weighted ban-exact early windows ban-words ban-regex"),
    ("call", "character", "ban-type ban-type-mask ban-type-ahead"),
    ("sample", "character", "lookup sibling"),
    ("generator", "gbnf guidance json lark person size", "auto"),
    ("batch sample_batch", "code", "exact"),
    ("stream generator.stream", "code", "local"),
    ("agenerate", "answer", "default"),
    ("outlines.Generator install custom_generate", "answer", "exact"),
    ("generate", "character code lark", "local"),
    ("generate", "free", "drafted-ban"),
    ("logits-processor", "day", "onestep"),
    ("ban", "free", "lookahead"),
    ("command-line", "answer", "exact"),
    ("command-line", "free", "lookahead"),
    ("probabilities mode", "answer", "exact"),
)
"""Doors, output types and policies, each with each."""

SEEDS = {"call, free, ban-words": 2}
"""Seeds of rows whose texts floating-point noise would decide at seed 1."""

ROWS = [
    Row(door, format, policy, SEEDS.get(f"{door}, {format}, {policy}", 1))
    for doors, formats, policies in GROUPS
    for door, format, policy in product(doors.split(), formats.split(), policies.split())
]
