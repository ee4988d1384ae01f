"""Nothing banned is ever drawn: many draws of models that want to write it, over hostile vocabularies, searched by plain Python."""

import math
import pickle
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_phi import (
    SMC,
    BannedPhrases,
    Draws,
    EmptyLanguageError,
    ExactPhi,
    LocalPhi,
    LookaheadPhi,
    SamplingSettings,
    Vocabulary,
)
from outlines_phi.guides import FSMGuide, Guide, Table
from tests.guides.walking import bans, vocabularies
from tests.inner import (
    Phi,
    PhraseGuide,
    ProductGuide,
    Request,
    Sampler,
    TableModel,
    TreeStore,
    banned,
    compile_regex,
    free_text,
    sampler_for,
)
from tests.languages import ids, sample, streamed
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


LEAST, SHARE = 20_000, 8
"""Draws of all cases and levels together, and the share of them in a usual run: it sees what one draw in 500 leaks (0.993)."""


@pytest.mark.parametrize("share", [SHARE, pytest.param(1, marks=pytest.mark.full)])
@levels
@cases
def test_nothing_banned_is_drawn(case: Case, level: Level, share: int) -> None:
    n = math.ceil(level.n / share)
    results = level.draw(case.request(level, n))
    assert case.check(results) == n * len(case.prompts)
    assert len({draw.text for draws in results for draw in draws}) > 2, "there is something to search"


def test_so_many_draws_are_searched() -> None:
    """The test above makes every one of these, or fails."""
    assert sum(level.n * len(case.prompts) for case in CASES for level in LEVELS.values()) >= LEAST


def unbanned(case: Case, lm: TableModel) -> list[tuple[str, bytes]]:
    """Return the free texts of a model after each prompt."""
    nothing = Table(PhraseGuide(case.vocabulary, BannedPhrases(["\U0010fffd"])))
    options = SamplingSettings(max_new_tokens=case.budget, seed=3)
    results = LEVELS["mask"].draw(Request(lm=lm, table=nothing, prompts=case.ids, settings=options, n=60))
    rows = zip(case.prompts, results, strict=True)
    return [(prompt, case.vocabulary.decode(draw.token_ids)) for prompt, draws in rows for draw in draws]


@cases
def test_the_search_finds_what_the_models_want_to_write(case: Case) -> None:
    """Control: the same models without a ban."""
    texts = unbanned(case, case.lm)
    assert sum(bool(leaks(case.ban, text, prompt.encode())) for prompt, text in texts) > len(texts) / 5


def test_the_search_finds_other_spellings_of_a_banned_token_sequence() -> None:
    """Control: a ban of the token sequences that a tokenizer would write."""
    case = of("merges")
    spellings = ([b"linarith"], [b" linarith"], [b"lin", b"arith"])
    sequences = [tuple(map(case.vocabulary.tokens.index, spelling)) for spelling in spellings]

    def law(ids: tuple[int, ...]) -> np.ndarray:
        logits = case.lm.logits(ids).copy()
        logits[[last for *first, last in sequences if ids[len(ids) - len(first) :] == tuple(first)]] = -np.inf
        return logits

    texts = unbanned(case, TableModel(case.vocabulary, law))
    assert sum(bool(leaks(case.ban, text, prompt.encode())) for prompt, text in texts) > len(texts) / 5


def halves(others: Iterable[Any], names: Iterable[str]) -> list[Any]:
    """Return every level beside half of the others, which take turns; `make test-full` has all of them."""
    return [
        pytest.param(
            other, name, id=f"{getattr(other, 'name', other)}-{name}", marks=[pytest.mark.full] if (i + j) % 2 else []
        )
        for (i, other), (j, name) in product(enumerate(others), enumerate(names))
    ]


WARPED = [{"temperature": 0.2}, {"temperature": 3.0}, {"top_k": 3}, {"top_p": 0.7}, {"repetition_penalty": 1.7}]


@pytest.mark.parametrize(("options", "name"), halves(WARPED, LEVELS))
def test_nothing_banned_is_drawn_from_a_warped_law(options: dict[str, float], name: str) -> None:
    level = LEVELS[name]
    for case in (of("nested"), of("words"), of("foldings")):
        try:
            drawn = level.draw(case.request(level, n=3, **options))
        except EmptyLanguageError:
            assert "top_k" in options or "top_p" in options
        else:
            case.check(drawn)


@pytest.mark.parametrize(("case", "name"), halves(CASES, ["mask", "lookahead", "short windows", "early"]))
def test_what_a_stream_has_released_is_clean_and_stays(case: Case, name: str) -> None:
    def check(walk: Any) -> None:
        text, prompt = case.vocabulary.decode(walk.tokens), case.prompts[walk.row].encode()
        assert not leaks(case.ban, text, prompt, ended=walk.finished)

    level, request = LEVELS[name], case.request(LEVELS[name], n=2)
    assert streamed(level.drawing(), request, check) == ids(*level.draw(request))


def test_kept_trees_of_one_ban_are_not_those_of_another() -> None:
    """Exact draws of one model under many bans in turn, from one store."""
    store, level = TreeStore(), LEVELS["exact"]
    lm = of("merges").lm
    for seed, case in product(range(2), [case for case in CASES if case.vocabulary is MERGES]):
        case.check(sample(level.phi, replace(case.request(level, n=5, seed=seed), lm=lm), store=store))


@pytest.mark.parametrize("name", ["words", "folded words", "patterns", "whole foldings"])
def test_threads_share_a_matcher(name: str) -> None:
    """Its states come up while all of them read it."""
    case = replace(of(name), ban=pickle.loads(pickle.dumps(of(name).ban)))
    barrier = Barrier(8)

    def work(seed: int) -> int:
        level = list(LEVELS.values())[seed % 5]
        barrier.wait()
        return case.check(level.draw(case.request(level, n=5, seed=seed)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [5 * len(case.prompts)] * 8


@levels
def test_many_phrases_and_long_ones(level: Level) -> None:
    rng = np.random.default_rng(0)
    many = ["".join(rng.choice(list("linarth "), rng.integers(4, 40))) for _ in range(1000)]
    long = "linarith " * 30
    crowd = Case("crowd", MERGES, BannedPhrases([*many, "lin", long]), (*many[:20], "linarith"), ("a", "li"))
    assert crowd.check(level.draw(crowd.request(level, n=4))) == 8
    patient = Case("patient", MERGES, BannedPhrases([long]), ("linarith ",), ("a", long[:-8]), budget=60)
    assert patient.check(level.draw(patient.request(level, n=2))) == 4


@levels
def test_the_end_of_sequence_is_no_text(level: Level) -> None:
    """A phrase that begins as the name of the end of sequence is kept out of the text, and no text is kept from ending."""
    vocabulary = Vocabulary.from_tokens(["</s>", *"</s>a", "</", "s>", "</s"], 0)
    case = Case("end", vocabulary, BannedPhrases(["</s"]), ("</s>",), ("a", "<"), budget=5)
    results = level.draw(case.request(level, n=40))
    case.check(results)
    assert any(draw.token_ids[-1:] == (0,) for draws in results for draw in draws)


@given(
    bans(),
    vocabularies(),
    st.sampled_from(list(LEVELS.values())),
    st.integers(1, 8),
    st.sampled_from([0.5, 2.0, 4.0]),
    st.sampled_from([None, None, "[abs _]{1,5}", "(a|ab|s |é|_){2,4}"]),
    st.data(),
)
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nothing_banned_is_drawn_under_random_bans_over_random_vocabularies(
    ban: BannedPhrases,
    vocabulary: Vocabulary,
    level: Level,
    budget: int,
    strength: float,
    pattern: str | None,
    data: st.DataObject,
) -> None:
    texts = [phrase for phrase in ban.phrases if isinstance(phrase, str)] or ["ab", "ss"]
    wanted = (*texts, *(text.upper() for text in texts if ban.ignore_case))
    tokens = [v for v, token in enumerate(vocabulary.tokens) if token]
    prompts = data.draw(st.lists(st.lists(st.sampled_from(tokens), min_size=1, max_size=4), min_size=1, max_size=2))
    case = Case("random", vocabulary, ban, wanted, (), pattern, budget, strength)
    try:
        results = level.draw(replace(case.request(level, n=5), prompts=[tuple(ids) for ids in prompts]))
    except EmptyLanguageError:
        return  # nothing is left, or nothing that is so short
    for prompt, draws in zip(prompts, results, strict=True):
        assert all(not leaks(ban, vocabulary.decode(draw.token_ids), vocabulary.decode(prompt)) for draw in draws)
