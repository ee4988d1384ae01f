"""Probabilities of values and their bounds, against exact enumeration."""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from outlines_phi import BudgetError, Probabilities, ValueReadError
from outlines_phi.fidelity import probabilities as module
from outlines_phi.lm import TableModel
from outlines_phi.numerics.marginals import frozen
from outlines_phi_workbench.suite.reference import count_prefixes
from tests.inner import BoundsTree, Evaluator, enumerate_together, list_texts, probabilities, total_variation, watch
from tests.languages import AND_OPEN, KEYS, LANGUAGES, ONE_OF, PROMPT, VOCABULARY, Language
from tests.refusals import refused


class Deciding(Language):
    """A law that always stays inside ``ab|ac``: what is undecided may all go to either text."""

    @cached_property
    def lm(self) -> TableModel:
        def law(sequence: tuple[int, ...]) -> np.ndarray:
            shares = {(): {1: 0.45, 3: 0.55}, (1,): {5: 0.9, 2: 0.1}}.get(sequence[2:], {0: 1.0})
            with np.errstate(divide="ignore"):
                return np.log([shares.get(token, 0.0) for token in range(len(VOCABULARY))])

        return TableModel(VOCABULARY, law)


LAWS = [
    *AND_OPEN,
    Deciding("deciding", "ab|ac", 4, seed=0),
    *(
        Language(f"{pattern} {seed}", pattern, 6, seed=seed, scale=scale)
        for pattern in ("(ab|ba|c){1,3}x?", "a*(b|cc?)", "[abcx()]{0,3}")
        for seed, scale in [(21, 0.5), (22, 2.0), (23, 4.0)]
    ),
]
STOPS = (1, 4, 12, 40, 160)

Reader = Callable[[str], Any]
READERS: dict[str, Reader | None] = {"texts": None, "lengths": len, "pairs": lambda text: [text[:1], text.count("c")]}

laws = pytest.mark.parametrize("language", [*LAWS, KEYS, ONE_OF], ids=str)
readers = pytest.mark.parametrize("reader", READERS.values(), ids=list(READERS))


def found(
    language: Language, *, reader: Reader | None = None, tokens: int = 100_000, tolerance: float = 0.0, **settings: Any
) -> Probabilities:
    """Return the probabilities of a fresh tree, at the tolerance that the tokens suffice for."""
    try:
        return of_prompts(language, [PROMPT], reader=reader, tokens=tokens, tolerance=tolerance, **settings)[0]
    except BudgetError as error:
        return error.partial[0]


def of_prompts(
    language: Language,
    prompts: list[tuple[int, ...]],
    *,
    reader: Reader | None = None,
    tokens: int = 100_000,
    tolerance: float = 0.0,
    tree: BoundsTree | None = None,
    **settings: Any,
) -> list[Probabilities]:
    """Return the probabilities after some prompts, by fresh trees, or a given one."""
    trees = [tree or BoundsTree(language.table, language.budget) for _ in prompts]
    limits = {"reader": reader, "tolerance": tolerance, "max_tokens": tokens}
    return probabilities(language.lm, language.settings(**settings), prompts, trees, **limits)  # type: ignore[arg-type]


def truth(language: Language, reader: Reader | None = None) -> dict[Hashable, float]:
    """mu* over values, by what makes them hashable."""
    law: dict[Hashable, float] = defaultdict(float)
    for ids, p in language.reference().mu.items():
        text = language.table.guide.text(ids).decode()
        law[frozen(text if reader is None else reader(text))] += p
    return law


def violations(language: Language, reader: Reader | None) -> int:
    """Return the number of wrong certified statements, over all stopping points."""
    law, wrong = truth(language, reader), 0
    tree = BoundsTree(language.table, language.budget)
    evaluator = Evaluator(language.lm, language.settings(), [PROMPT], [tree])
    texts = list_texts(language.table, language.table.start, language.budget, module.LISTED_PREFIXES)
    for tokens in range(40):
        # Prefix by prefix, then in larger steps.
        enumerate_together([tree], evaluator, 0.0, max_tokens=1, width=1 if tokens < 30 else 20)
        result = module.probabilities_of_tree(tree, texts, reader, module.ModelCounts())[0]
        listed = {frozen(value): entry for value, entry in zip(result, result.entries, strict=True)}
        wrong += sum(not entry.lo - 1e-12 <= law[key] <= entry.hi + 1e-12 for key, entry in listed.items())
        others = sum(p for key, p in law.items() if key not in listed)
        wrong += not result.other[0] - 1e-12 <= others <= result.other[1] + 1e-12
        wrong += not result.log_z_bounds[0] - 1e-9 <= language.reference().log_phi <= result.log_z_bounds[1] + 1e-9
    return wrong


@pytest.mark.in_turn
@laws
@readers
def test_the_law_of_values_is_that_of_enumeration(language: Language, reader: Reader | None) -> None:
    result, law = found(language, reader=reader), truth(language, reader)
    assert {frozen(value): entry.p for value, entry in zip(result, result.entries, strict=True)} == pytest.approx(
        law, abs=1e-12
    )
    assert all(entry.lo == pytest.approx(entry.p, abs=1e-12) == entry.hi for entry in result.entries)
    assert result.complete and result.other == (0.0, 0.0) and result.tolerance == 0.0
    # Those that no sum in 64 bits shows need not be read.
    noticed = sum(p > 1e-14 for p in language.reference().mu.values())
    assert noticed <= sum(entry.spellings for entry in result.entries) <= len(language.reference().mu)
    assert [entry.p for entry in result.entries] == sorted((entry.p for entry in result.entries), reverse=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_value_that_is_certain_has_probability_one(seed: int) -> None:
    """Its tokenizations are summed in one order and their total in another, which once gave 0.9999999999999998."""
    (only,) = found(Language(f"one text {seed}", "abacab", 7, seed=seed)).entries
    assert (only.p, only.lo, only.hi) == (1, 1, 1) and only.spellings > 2
    (length,) = found(Language(f"one length {seed}", "[abc]{3}", 4, seed=seed), reader=len).entries
    assert (length.p, length.lo, length.hi) == (1, 1, 1)


@pytest.mark.in_turn
@laws
@readers
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "unlisted"])
def test_bounds_hold_wherever_the_enumeration_stops(
    language: Language, reader: Reader | None, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not listed:
        monkeypatch.setattr(module, "LISTED_PREFIXES", 0)
    assert violations(language, reader) == 0


def spoiled_spread(*arguments: Any) -> list[tuple[float, float]]:
    """Take every text that is not known to have a value of its own."""
    tree, groups, listed, _ = arguments
    return UNDECIDED(tree, groups, listed, None)


def spoiled_only(*arguments: Any) -> list[tuple[float, float]]:
    """Take all undecided mass that may go to a value for mass that can go nowhere else."""
    return [(may, may) for may, _ in UNDECIDED(*arguments)]


def spoiled_may(*arguments: Any) -> list[tuple[float, float]]:
    """Take undecided mass for decided."""
    return [(0.0, 0.0) for _ in UNDECIDED(*arguments)]


UNDECIDED = module.undecided_masses


@pytest.mark.parametrize(
    ("wrong", "reader"),
    [(spoiled_spread, len), (spoiled_only, None), (spoiled_may, None)],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_wrong_bounds_are_caught(
    wrong: Callable[..., Any], reader: Reader | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "undecided_masses", wrong)
    if wrong is spoiled_spread:
        monkeypatch.setattr(module, "LISTED_PREFIXES", 0)
    assert any(violations(language, reader) for language in LAWS)


def test_intervals_use_what_undecided_prefixes_can_spell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never wider than the whole undecided mass allows, and narrower where texts are known or are their own values."""
    narrower, lows = 0, {}
    for language in LAWS:
        results = [result for tokens in STOPS if (result := found(language, tokens=tokens)).tolerance > 1e-9]
        widths = [(entry.hi - entry.lo) / result.tolerance for result in results for entry in result.entries]
        assert max(widths) <= 1 + 1e-9
        narrower += min(widths) < 0.9
        lows[language] = [{entry.value: entry.lo for entry in result.entries} for result in results]
    assert narrower > len(LAWS) // 2
    # Mass that can go to one text alone raises its lower bound.
    monkeypatch.setattr(module, "undecided_masses", lambda *arguments: [(may, 0.0) for may, _ in UNDECIDED(*arguments)])
    raised = 0
    for language, before in lows.items():
        results = [result for tokens in STOPS if (result := found(language, tokens=tokens)).tolerance > 1e-9]
        for low, result in zip(before, results, strict=True):
            assert all(entry.lo <= low[entry.value] for entry in result.entries)
            raised += any(entry.lo < low[entry.value] - 1e-6 for entry in result.entries)
    assert raised


def test_without_a_list_a_value_may_have_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED_PREFIXES", 0)
    result = found(LANGUAGES[1], tokens=12, reader=len)
    assert not result.complete and result.other[1] == pytest.approx(result.tolerance)
    assert all(entry.hi - entry.lo == pytest.approx(result.tolerance) for entry in result.entries)


def test_every_text_of_a_finite_type_is_listed() -> None:
    """Also those of probability 0, and those that were not reached."""
    language = LANGUAGES[0]
    law = truth(language)
    early = found(language, tokens=3)
    assert set(early) == set(law) and any(entry.spellings == 0 for entry in early.entries)
    assert all(entry.hi > 0 for entry in early.entries)
    truncated = found(language, top_k=5)
    assert set(truncated) == set(law)
    never = [entry for entry in truncated.entries if entry.hi == 0]
    assert never and all(entry.p == entry.lo == 0.0 for entry in never)


def test_nothing_reached_is_said() -> None:
    result = found(LANGUAGES[3], tokens=1)
    assert all(math.isnan(entry.p) and (entry.lo, entry.hi) == (0.0, 1.0) for entry in result.entries)


@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.01])
def test_the_tolerance_is_kept(tolerance: float) -> None:
    for language in LAWS:
        result = found(language, tolerance=tolerance)
        lower, upper = map(math.exp, result.log_z_bounds)
        assert result.tolerance == pytest.approx((upper - lower) / upper) and result.tolerance <= tolerance
        assert total_variation(result.distribution, truth(language)) <= result.tolerance + 1e-6
        assert sum(result.distribution.values()) == pytest.approx(1)
        assert all(entry.hi - entry.lo <= tolerance for entry in result.entries)


def test_a_small_finite_language_takes_few_calls() -> None:
    for language in LAWS:
        counts = found(language).counts
        assert counts.calls <= 9 and counts.tokens < (count_prefixes(language.table, language.budget, 512) or 0)


def test_prompts_share_calls_and_keep_their_laws() -> None:
    language = LANGUAGES[1]
    prompts = [PROMPT, (3, 4), (5,)]
    together = of_prompts(language, prompts)
    assert together[0].counts.calls <= 9
    for prompt, result in zip(prompts, together, strict=True):
        assert result.entries == of_prompts(language, [prompt])[0].entries


@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize(
    "spoil", [lambda tree: tree.drop_distributions(0), lambda tree: tree.evict(0)], ids=["laws", "subtrees"]
)
def test_evicted_trees_have_bounds_that_hold(spoil: Callable[[BoundsTree], None]) -> None:
    for language in LAWS:
        law, tree = truth(language), BoundsTree(language.table, language.budget)
        for tokens in (6, 30):
            with suppress(BudgetError):
                of_prompts(language, [PROMPT], tokens=tokens, tree=tree)
            spoil(tree)
            result = module.probabilities_of_tree(tree, None, None, module.ModelCounts())[0]
            assert all(entry.lo - 1e-12 <= law[entry.value] <= entry.hi + 1e-12 for entry in result.entries)


def test_too_little_effort_carries_the_bounds() -> None:
    caught = refused(
        r"short of tolerance=0.0.*\.partial has", of_prompts, LANGUAGES[1], [PROMPT], tokens=4, error=BudgetError
    )
    (partial,) = caught.value.partial
    assert caught.value.log_z_bounds == partial.log_z_bounds
    assert any(entry.hi > entry.lo for entry in partial.entries)


@dataclass
class Point:
    x: int
    y: list[int]


@laws
@pytest.mark.parametrize("spent", [0.0, 2.0], ids=["in time", "late"])
def test_reading_counts_against_the_time_of_the_call(
    language: Language, spent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value takes a second to read. What was not read is undecided; what was found late is read for a fifth of the limit."""
    clock = [0.0]
    monkeypatch.setattr(watch, "now", lambda: clock[0])

    def slow(text: str) -> int:
        clock[0] += 1.0
        return len(text)

    law = truth(language, len)
    with watch.watching(), watch.limited(2.0) as call:
        clock[0] += spent
        caught = refused(
            r"texts found were not read; the error's .partial has",
            of_prompts,
            language,
            [PROMPT] * 2,
            reader=slow,
            error=BudgetError,
        )
        assert call.seconds <= spent + 2.0
    for result in caught.value.partial:
        assert result.entries and not result.complete
        assert all(
            entry.lo <= law[entry.value] + 1e-12 and law[entry.value] <= entry.hi + 1e-12 for entry in result.entries
        )
        assert sum(p for value, p in law.items() if value not in result) <= result.other[1] + 1e-12
        assert result.log_z_bounds[0] - 1e-9 <= language.reference().log_phi <= result.log_z_bounds[1] + 1e-9


def refusing(text: str) -> str:
    if "c" in text:
        raise ValueReadError("no c", text=text)
    return text.upper()


class TestMapping:
    def test_values_are_looked_up_by_content(self) -> None:
        result = found(LANGUAGES[0], reader=lambda text: Point(len(text), [text.count("c")]))
        entry = result[Point(2, [0])]
        assert entry.value == Point(2, [0]) and float(entry) == entry.p
        assert set(entry.texts) == {"ab", "ba"} and entry.text == entry.texts[0]
        assert len(result) == len(list(result.items())) and [value for value, _ in result.items()] == list(result)
        assert Point(2, [0]) in result and Point(99, [0]) not in result and result.get(Point(99, [0])) is None
        with pytest.raises(KeyError, match="no such value"):
            result[Point(99, [0])]

    def test_a_value_that_was_not_reached_may_be_among_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "LISTED_PREFIXES", 0)
        result = found(LANGUAGES[1], tokens=4)
        with pytest.raises(KeyError, match="among the others, which together have at most"):
            result["ababx"]

    def test_what_the_type_refuses_stands_for_itself(self) -> None:
        result, law = found(LANGUAGES[0], reader=refusing), truth(LANGUAGES[0])
        without = [entry for entry in result.entries if entry.refused is not None]
        assert {entry.value for entry in without} == {text for text in law if "c" in text}
        assert result["AB"].p == pytest.approx(law["ab"]) and result["cc"].p == pytest.approx(law["cc"])
        assert str(result["cc"].refused) == "no c" and "cc (refused)" in str(result)

    def test_it_prints_as_a_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        *lines, log_phi = str(found(LANGUAGES[0])).splitlines()
        assert lines[0].split() == ["value", "p", "lo", "hi"] and len(lines) == 22 and lines[-1].startswith("... ")
        assert log_phi == f"log Phi {LANGUAGES[0].reference().log_phi:.4g}"
        monkeypatch.setattr(module, "LISTED_PREFIXES", 0)
        assert "all others" in str(found(LANGUAGES[0], tokens=30))

    def test_it_is_immutable(self) -> None:
        result = found(LANGUAGES[0])
        with pytest.raises(AttributeError):
            result.entries = ()  # type: ignore[misc]
        with pytest.raises(TypeError):
            result["ab"] = 1  # type: ignore[index]

    @pytest.mark.parametrize(
        ("left", "right", "equal"),
        [
            ({"a": [1, {"b": 2}]}, json.loads('{"a": [1, {"b": 2}]}'), True),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
            ([1, 2], (1, 2), False),
            ([True], [1], False),
            (1, 1.0, True),
            (Point(1, [2]), Point(1, [2]), True),
            (Point(1, [2]), Point(1, [3]), False),
            (Point(1, [True]), Point(1, [1]), False),
        ],
    )
    def test_equal_values_are_one(self, left: object, right: object, equal: bool) -> None:
        assert (frozen(left) == frozen(right)) is equal
