"""Every guide obeys the laws, the laws refuse guides that do not, and texts are listed from small guides."""

import numpy as np
import pytest

from outlines_phi import Vocabulary
from outlines_phi.guides import FSMGuide
from outlines_phi.guides.guide import DONE
from outlines_phi.guides.guide_texts import list_texts
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide, assert_spells
from outlines_phi.testing.guide_conformance import reachable
from outlines_phi.vocabulary.classes import EOS, Partition
from tests.guides.walking import assert_row
from tests.languages import AND_OPEN, Language


def table(rows: list[list[int]]) -> FSMGuide:
    vocabulary = Vocabulary.from_tokens(["<eos>", "a", "b"], 0)
    partition = Partition(np.array([EOS, 2, 3], dtype=np.int32), 4)
    targets = np.array([[0] * 4, [0] * 4, *rows], dtype=np.int32)
    state, classes = np.nonzero(targets)
    offsets = np.searchsorted(state, np.arange(len(targets) + 1))
    return FSMGuide(vocabulary, partition, offsets, classes.astype(np.int32), targets[state, classes], 2)


def test_a_guide_from_a_table() -> None:
    """`a` at most once, then the end."""
    guide = table([[0, DONE, 3, 0], [0, DONE, 0, 0]])
    assert_guide(guide)
    assert_spells(guide, compile_regex("a?"))
    assert reachable(guide) == [2, 3]


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        ([[0, DONE, DONE, 0]], "something else than the end of sequence"),
        ([[0, DONE, 3, 0], [0, 0, 3, 0]], "dead end"),
        ([[0, DONE, 3, 0], [0, 0, 0, 0]], "dead end|nothing is allowed"),
        ([[2, DONE, 0, 0]], "no state allows NEVER"),
        ([[0, 2, 0, 0]], "only ends a text"),
    ],
    ids=["ends by a token", "endless loop", "stuck", "never is allowed", "end does not end"],
)
def test_the_laws_refuse_a_broken_guide(rows: list[list[int]], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        assert_guide(table(rows))


@pytest.mark.parametrize("method", ["advance", "mask", "distances_after", "live_classes"])
def test_a_state_that_contradicts_its_row_is_found(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    guide, right = table([[0, DONE, 3, 0], [0, DONE, 0, 0]]), getattr(FSMGuide, method)
    for state in reachable(guide):
        assert_row(guide, state)
    monkeypatch.setattr(
        FSMGuide,
        method,
        lambda *given: 1 - right(*given).astype(int) if method == "live_classes" else right(*given) + 1,
    )
    with pytest.raises(AssertionError):
        assert_row(guide, guide.start)


@pytest.mark.parametrize("other", ["a", "a?b?", "b?", "a*"])
def test_the_laws_refuse_another_language(other: str) -> None:
    with pytest.raises(AssertionError):
        assert_spells(table([[0, DONE, 3, 0], [0, DONE, 0, 0]]), compile_regex(other))


@pytest.mark.parametrize("language", AND_OPEN, ids=str)
@pytest.mark.parametrize("budget", [4, 6])
def test_they_are_the_texts_of_all_members(language: Language, budget: int) -> None:
    expected = {language.table.guide.text(ids) for ids in language.within(budget).reference().log_p}
    assert list_texts(language.table, language.table.start, budget, 10_000) == sorted(expected)


@pytest.mark.parametrize(("budget", "longest"), [(60, 40), (4, 6)])
def test_a_text_is_listed_once_and_a_budget_counts_its_shortest_spelling(budget: int, longest: int) -> None:
    """Of forty letters there are 165 million spellings."""
    language = Language("runs", "a{1,40}", budget, seed=0)
    assert list_texts(language.table, language.table.start, budget, 100) == [b"a" * n for n in range(1, longest + 1)]


@pytest.mark.parametrize("pattern", ["a*", "[abcx]{20}"])
def test_what_is_too_large_is_given_up(pattern: str) -> None:
    language = Language("large", pattern, 200, seed=0)
    assert list_texts(language.table, language.table.start, language.budget, 100) is None
