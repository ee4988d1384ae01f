"""Texts of small finite languages, listed from their guides."""

from __future__ import annotations

import pytest

from outlines_phi.guides.guide_texts import list_texts
from tests.languages import AND_OPEN, Language


@pytest.mark.parametrize("language", AND_OPEN, ids=str)
@pytest.mark.parametrize("budget", [4, 6])
def test_they_are_the_texts_of_all_members(language: Language, budget: int) -> None:
    expected = {language.table.guide.text(ids) for ids in language.within(budget).reference().log_p}
    assert list_texts(language.table, language.table.start, budget, 10_000) == sorted(expected)


def test_a_text_is_listed_once_whatever_its_spellings() -> None:
    language = Language("runs", "a{1,40}", 60, seed=0)
    texts = list_texts(language.table, language.table.start, language.budget, 100)  # 165 million spellings
    assert texts == [b"a" * n for n in range(1, 41)]


def test_a_budget_counts_the_shortest_spelling() -> None:
    language = Language("runs", "a{1,40}", 4, seed=0)
    assert list_texts(language.table, language.table.start, 4, 100) == [b"a" * n for n in range(1, 7)]


@pytest.mark.parametrize("pattern", ["a*", "[abcx]{20}"])
def test_what_is_too_large_is_given_up(pattern: str) -> None:
    language = Language("large", pattern, 200, seed=0)
    assert list_texts(language.table, language.table.start, language.budget, 100) is None
