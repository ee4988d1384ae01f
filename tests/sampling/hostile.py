"""Models that want to write what is banned, over hostile vocabularies; ways to draw from them, and the search."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import pytest

from outlines_phi import SMC, BannedPhrases, Draws, ExactPhi, LocalPhi, LookaheadPhi, SamplingSettings, Vocabulary
from outlines_phi.guides import FSMGuide, Guide, Table
from outlines_phi.guides.phrases.ban_language import free_text
from outlines_phi.lm import TableModel
from outlines_phi.phi.estimator import Phi
from tests.inner import PhraseGuide, ProductGuide, Request, Sampler, TreeStore, banned, compile_regex, sampler_for
from tests.leaks import leaks, wanting
from tests.vocabulary.test_vocabulary import sentencepiece_bpe


@dataclass(frozen=True)
class Level:
    """A way to draw, and how many draws of each prompt of a case are made in it."""

    phi: Phi
    n: int
    sampler: SMC | None = None

    def drawing(self) -> Sampler:
        return sampler_for(self.phi, TreeStore(), self.sampler)

    def draw(self, request: Request) -> list[Draws]:
        return self.drawing().sample(request)


LEVELS = {
    "mask": Level(LocalPhi(), 70),
    "lookahead": Level(LookaheadPhi(), 60),
    "short windows": Level(LookaheadPhi(window=1), 50),
    "early": Level(LookaheadPhi(release="early"), 55),
    "weighted": Level(LookaheadPhi(weights=True), 55),
    "exact": Level(ExactPhi(), 60),
    "mask smc": Level(LocalPhi(), 10, SMC(particles=4)),
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
    strength: float = 1.5

    @cached_property
    def lm(self) -> TableModel:
        return wanting(self.vocabulary, [text.encode() for text in self.wanted], strength=self.strength)

    @cached_property
    def _tables(self) -> dict[bool, Table]:
        return {}

    def table(self, phi: Phi) -> Table:
        """Return the table of the guide, which all draws of a process share: what it holds changes none of them."""
        watched = self.pattern is not None and isinstance(phi, LookaheadPhi)
        if watched not in self._tables:
            self._tables[watched] = Table(self.guide(phi))
        return self._tables[watched]

    def guide(self, phi: Phi) -> Guide:
        """Return the guide of the output type, or of free text, without the banned phrases."""
        if self.pattern is None:
            return free_text(self.vocabulary, self.ban)
        left = FSMGuide.from_automaton(compile_regex(self.pattern), self.vocabulary)
        watched = isinstance(phi, LookaheadPhi)
        return ProductGuide(left, PhraseGuide(self.vocabulary, self.ban)) if watched else banned(left, self.ban)

    @cached_property
    def ids(self) -> list[tuple[int, ...]]:
        """The prompts, spelled in short tokens."""
        return [spelled(self.vocabulary, prompt) for prompt in self.prompts]

    def request(
        self, level: Level, n: int | None = None, seed: int = 3, *, budget: int | None = None, **options: object
    ) -> Request:
        chosen = SamplingSettings(max_new_tokens=budget or self.budget, seed=seed, **options)  # type: ignore[arg-type]
        return Request(lm=self.lm, table=self.table(level.phi), prompts=self.ids, settings=chosen, n=n or level.n)

    def check(self, results: list[Draws], budget: int | None = None) -> int:
        """Check all draws; return how many there are."""
        for prompt, draws in zip(self.prompts, results, strict=True):
            for draw in draws:
                text = self.vocabulary.decode(draw.token_ids)
                assert not leaks(self.ban, text, prompt.encode())
                assert draw.text == text.decode(errors="replace") and len(draw.token_ids) <= (budget or self.budget)
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
    Case(
        "bytes",
        BYTES,
        BannedPhrases(["linarith", "\x00", "a\nb"]),
        ("linarith", "\x00", "a\nb"),
        ("x", "lin", "a"),
        strength=5.0,
    ),
    Case(
        "bytes folded",
        BYTES,
        BannedPhrases(["straße", "ok"], ignore_case=True),
        ("STRASSE", "straße", "oK"),
        ("x", "STR", "o"),
        strength=5.0,
    ),
    Case("merges", MERGES, BannedPhrases(["linarith"]), TACTIC, ("a", "lin", " linarit", "linarith")),
    Case(
        "nested",
        MERGES,
        BannedPhrases([b"lin", "linarith", "arith", "ari", "hl", "n"]),
        TACTIC,
        ("a", " li", "linar", "h"),
    ),
    Case("folded", MERGES, BannedPhrases(["LinArith", "ITH "], ignore_case=True), UPPER, ("a", "lin", "LIN")),
    Case(
        "words",
        MERGES,
        BannedPhrases(["linarith", "lin", "i"], whole_word=True),
        TACTIC,
        ("a", " li", " linarith", "hlin"),
    ),
    Case(
        "folded words",
        MERGES,
        BannedPhrases(["LIN", "hlin"], ignore_case=True, whole_word=True),
        (" LIN ", " lin ", "-hlin "),
        ("!", " LI", "h"),
    ),
    Case(
        "prompt left out", MERGES, BannedPhrases(["linarith", "ith"], across_prompt=False), TACTIC, ("a", "lin", "it")
    ),
    Case(
        "patterns",
        MERGES,
        BannedPhrases([re.compile("lin.{0,2}a(ri)?"), re.compile("(?i)h[^a-z]?L"), "th"]),
        TACTIC,
        ("a", "lin", "h"),
    ),
    Case(
        "whole patterns",
        MERGES,
        BannedPhrases([re.compile("l?i[nt]{1,2}h?")], whole_word=True),
        (" lin ", "-ith ", " lint "),
        ("a", " l", " lin", "-"),
    ),
    Case(
        "foldings",
        FOLDS,
        BannedPhrases(["straße", "ss", "k"], ignore_case=True),
        ("straße", "SS", "ſs", "K"),
        ("a", "s", "stra"),
    ),
    Case(
        "whole foldings",
        FOLDS,
        BannedPhrases(["ss", "k", "strasse"], True, True),
        (" ss ", " ß ", " K ", " straße "),
        ("a", " s", " stra"),
    ),
    Case("normal forms", FOLDS, BannedPhrases(["é", "e\u0301"]), ("é", "e\u0301"), ("a", "e", "s")),
    Case(
        "fallback",
        FALLBACK,
        BannedPhrases(["abcd", "é", "日本", " ab"]),
        ("abcd", "é", "日本", " ab"),
        ("x", "ab", "日"),
    ),
    Case("fallback words", FALLBACK, BannedPhrases(["ab", "É"], True, True), (" ab ", "é"), ("x", " a", " ab")),
    Case("type", MERGES, BannedPhrases(["linarith", "hl", "th"]), TACTIC, ("a", "lin", "t"), "[linarth]{3,12}"),
    Case(
        "type words",
        MERGES,
        BannedPhrases(["lin", "ith"], whole_word=True),
        (" lin ", "-ith ", " ith-"),
        ("a", " li", "-"),
        "(lin|arith|ith|th|-| ){2,5}",
    ),
    Case(
        "type folded",
        MERGES,
        BannedPhrases(["LIN", "rat"], ignore_case=True),
        UPPER,
        ("a", "l"),
        "(lin|LI|arith|AT|[rat]){2,4}",
    ),
)


def of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


levels = pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS.keys())
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
