"""Nothing banned is ever drawn: many draws of models that want to write it, over hostile vocabularies, searched by plain Python."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from outlines_phi.guides.banned import BannedPhrases
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import Guide
from outlines_phi.guides.pairs import ProductGuide
from outlines_phi.guides.phrases import PhraseGuide
from outlines_phi.guides.product import banned, free_text
from outlines_phi.guides.regex import compile_regex
from outlines_phi.guides.table import Table
from outlines_phi.lm.table_model import TableModel
from outlines_phi.phi.auto import AutoPhi
from outlines_phi.phi.estimator import Phi
from outlines_phi.phi.exact import ExactPhi
from outlines_phi.phi.local import LocalPhi
from outlines_phi.phi.lookahead import LookaheadPhi
from outlines_phi.phi.store import TreeStore
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.draws import Draws
from outlines_phi.sampling.resolve import SamplerOptions, sampler_for
from outlines_phi.sampling.sampler import Request
from outlines_phi.sampling.smc import SMC
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary import Vocabulary
from tests.leaks import leaks, wanting
from tests.test_vocabulary import sentencepiece_bpe

N = 60
"""Draws of each prompt of a case at each level."""

LEAST = 20_000
"""Draws of all cases and levels together."""

LEVELS: dict[str, tuple[Phi, SamplerOptions | None]] = {
    "mask": (LocalPhi(), None),
    "mask smc": (LocalPhi(), SMC(particles=4)),
    "lookahead": (LookaheadPhi(), None),
    "short windows": (LookaheadPhi(window=1), None),
    "early": (LookaheadPhi(release="early"), None),
    "weighted": (LookaheadPhi(weights=True), None),
    "weighted smc": (LookaheadPhi(weights=True, window=2), SMC(particles=4)),
    "exact": (ExactPhi(), None),
    "auto": (AutoPhi(), None),
}

BYTES = Vocabulary.from_tokens([bytes([byte]) for byte in range(256)] + ["<eos>"], 256)
MERGES = Vocabulary.from_tokens(
    [
        "<eos>",
        "",
        *"linarth _-!",
        "lin",
        " lin",
        "arith",
        "inar",
        "ith",
        " l",
        "hl",
        "linarith",
        " linarith",
        "hlin",
        "arithl",
    ]
    + ["narithli", "lin", "arith", "LIN", "Arith", "L", "I", "N", "A", "R", "T", "H", "linarithm"],
    0,
)
"""Merges that straddle phrases or hold them whole, leading spaces, spellings twice, both cases."""

FOLDS = Vocabulary.from_tokens(
    [
        "<eos>",
        *"sStraeßſK kE",
        b"\xc3",
        b"\x9f",
        b"\xc5",
        b"\xbf",
        "tra",
        "ss",
        "SS",
        "ßs",
        "aß",
        "aſ",
        b"e\xc3",
        b"\x9fe",
        "e\u0301",
        "é",
    ],
    0,
)
"""Pieces of characters, and characters that fold to others or to several."""

FALLBACK = Vocabulary.from_tokenizer(sentencepiece_bpe())


@dataclass(frozen=True)
class Case:
    """Phrases, a model that wants to write them, and prompts that end before, inside and after one."""

    name: str
    vocabulary: Vocabulary
    ban: BannedPhrases
    wanted: tuple[str, ...]
    prompts: tuple[str, ...]
    pattern: str | None = None
    budget: int = 9

    @cached_property
    def lm(self) -> TableModel:
        return wanting(self.vocabulary, [text.encode() for text in self.wanted])

    def guide(self, phi: Phi) -> Guide:
        """What is left of the output type, or of free text."""
        if self.pattern is None:
            return free_text(self.vocabulary, self.ban)
        left = FSMGuide.from_automaton(compile_regex(self.pattern), self.vocabulary)
        watched = isinstance(phi, LookaheadPhi)
        return ProductGuide(left, PhraseGuide(self.vocabulary, self.ban)) if watched else banned(left, self.ban)

    @cached_property
    def ids(self) -> list[tuple[int, ...]]:
        """The prompts, spelled in short tokens."""
        return [spelled(self.vocabulary, prompt) for prompt in self.prompts]

    def request(self, phi: Phi, n: int = N, seed: int | None = 3, **options: object) -> Request:
        settings = SamplingSettings(max_new_tokens=self.budget, seed=seed, **options)  # type: ignore[arg-type]
        return Request(lm=self.lm, table=Table(self.guide(phi)), prompts=self.ids, settings=settings, n=n)

    def drawn(self, level: str, n: int = N, seed: int = 3, **options: object) -> list[Draws]:
        phi, sampler = LEVELS[level]
        return sampler_for(phi, TreeStore(), sampler).sample(self.request(phi, n, seed, **options))

    def check(self, results: list[Draws]) -> int:
        """Check all draws; return how many there are."""
        for prompt, draws in zip(self.prompts, results, strict=True):
            for draw in draws:
                text = self.vocabulary.decode(draw.token_ids)
                assert not leaks(self.ban, text, prompt.encode())
                assert draw.text == text.decode(errors="replace") and len(draw.token_ids) <= self.budget
                assert self.pattern is None or re.fullmatch(self.pattern, draw.text)
        return sum(map(len, results))


def spelled(vocabulary: Vocabulary, text: str) -> tuple[int, ...]:
    """Spell a text in the shortest tokens that begin what is left of it."""
    rest, ids = text.encode(), list[int]()
    while rest:
        token = min((t for t in vocabulary.tokens if t and rest.startswith(t)), key=len)
        ids.append(vocabulary.tokens.index(token))
        rest = rest[len(token) :]
    return tuple(ids)


TACTIC = ("linarith", " linarith", "l inarith")
UPPER = ("LINARITH", "linarith", "Linarith")
CASES = (
    Case("bytes", BYTES, BannedPhrases(["linarith", "\x00", "a\nb"]), ("linarith", "\x00", "a\nb"), ("x", "lin", "a")),
    Case("bytes folded", BYTES, BannedPhrases(["straße", "ok"], ignore_case=True), ("STRASSE", "straße", "oK"), ("x", "STR", "o")),
    Case("merges", MERGES, BannedPhrases(["linarith"]), TACTIC, ("a", "lin", " linarit", "linarith")),
    Case("nested", MERGES, BannedPhrases([b"lin", "linarith", "arith", "ari", "hl", "n"]), TACTIC, ("a", " li", "linar", "h")),
    Case("folded", MERGES, BannedPhrases(["LinArith", "ITH "], ignore_case=True), UPPER, ("a", "lin", "LIN")),
    Case("words", MERGES, BannedPhrases(["linarith", "lin", "i"], whole_word=True), TACTIC, ("a", " li", " linarith", "hlin")),
    Case("folded words", MERGES, BannedPhrases(["LIN", "hlin"], ignore_case=True, whole_word=True), (*UPPER, " lin "), ("!", " LI", "h")),
    Case("prompt left out", MERGES, BannedPhrases(["linarith", "ith"], across_prompt=False), TACTIC, ("a", "lin", "it")),
    Case("patterns", MERGES, BannedPhrases([re.compile("lin.{0,2}a(ri)?"), re.compile("(?i)h[^a-z]?L"), "th"]), TACTIC, ("a", "lin", "h")),
    Case("whole patterns", MERGES, BannedPhrases([re.compile("l?i[nt]{1,2}h?")], whole_word=True), TACTIC, ("a", " l", " lin", "-")),
    Case("foldings", FOLDS, BannedPhrases(["straße", "ss", "k"], ignore_case=True), ("straße", "SS", "ſs", "K"), ("a", "s", "stra")),
    Case("whole foldings", FOLDS, BannedPhrases(["ss", "k", "strasse"], True, True), (" ß", " K ", "straße"), ("a", " s", " stra")),
    Case("normal forms", FOLDS, BannedPhrases(["é", "e\u0301"]), ("é", "e\u0301"), ("a", "e", "s")),
    Case("fallback", FALLBACK, BannedPhrases(["abcd", "é", "日本", " ab"]), ("abcd", "é", "日本", " ab"), ("x", "ab", "日")),
    Case("fallback words", FALLBACK, BannedPhrases(["ab", "É"], True, True), (" ab ", "é"), ("x", " a", " ab")),
    Case("type", MERGES, BannedPhrases(["linarith", "hl", "th"]), TACTIC, ("a", "lin", "t"), "[linarth]{3,12}"),
    Case("type words", MERGES, BannedPhrases(["lin", "ith"], whole_word=True), TACTIC, ("a", " li", "-"), "(lin|arith|ith|th|-| ){2,5}"),
    Case("type folded", MERGES, BannedPhrases(["LIN", "rat"], ignore_case=True), UPPER, ("a", "l"), "(lin|LI|arith|AT|[rat]){2,4}"),
)  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_banned_is_drawn(case: Case, level: str) -> None:
    assert case.check(case.drawn(level)) == N * len(case.prompts)


def test_so_many_draws_are_searched() -> None:
    assert sum(N * len(case.prompts) for case in CASES) * len(LEVELS) >= LEAST


@pytest.mark.parametrize("case", [case for case in CASES if case.pattern is None], ids=lambda case: case.name)
def test_the_search_finds_what_the_models_want_to_write(case: Case) -> None:
    """Control: the same models without a ban."""
    free = Table(PhraseGuide(case.vocabulary, BannedPhrases(["\U0010fffd"])))
    settings = SamplingSettings(max_new_tokens=case.budget, seed=3)
    request = Request(lm=case.lm, table=free, prompts=case.ids, settings=settings, n=N)
    for prompt, draws in zip(case.prompts, AncestralSampler(LocalPhi()).sample(request), strict=True):
        texts = [case.vocabulary.decode(draw.token_ids) for draw in draws]
        assert sum(bool(leaks(case.ban, text, prompt.encode())) for text in texts) > N / 3, prompt


def test_the_search_finds_other_spellings_of_a_banned_token_sequence() -> None:
    """Control: a ban of the token sequences that a tokenizer would write."""
    case = next(case for case in CASES if case.name == "merges")
    tokens = case.vocabulary.tokens
    sequences = [
        (tokens.index(b"linarith"),),
        (tokens.index(b" linarith"),),
        (tokens.index(b"lin"), tokens.index(b"arith")),
    ]

    def law(ids: tuple[int, ...]) -> np.ndarray:
        logits = case.lm.logits(ids).copy()
        logits[[last for *first, last in sequences if ids[len(ids) - len(first) :] == tuple(first)]] = -np.inf
        return logits

    lm = TableModel(case.vocabulary, law)
    free = Table(PhraseGuide(case.vocabulary, BannedPhrases(["\U0010fffd"])))
    request = Request(lm=lm, table=free, prompts=case.ids[:1], settings=SamplingSettings(max_new_tokens=9, seed=3), n=N)
    texts = [case.vocabulary.decode(draw.token_ids) for draw in AncestralSampler(LocalPhi()).sample(request)[0]]
    assert sum(bool(leaks(case.ban, text, b"a")) for text in texts) > N / 3
