"""Rankings: the roads around the search, its errors, and what is kept."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from outlines_phi import BudgetError, Effort, EmptyLanguageError, ExactPhi, UnsupportedError
from outlines_phi.sampling import Ranking, ranking
from outlines_phi_workbench.suite.reference import count_prefixes
from tests.inner import ExactSampler, TreeStore, rank
from tests.languages import AND_OPEN, LANGUAGES, VOCABULARY, Language

EFFORT = Effort(tokens=100_000)
LARGE = Language("large", "[abcx]{3,5}", 7, seed=31, scale=2.0)


def ranked(language: Language, top: int, store: TreeStore | None = None, **options: object) -> Ranking:
    limits = {name: options.pop(name) for name in ("effort", "tolerance", "reader") if name in options}
    request = language.request(1, None, **options)  # type: ignore[arg-type]
    return rank(request, top, store or TreeStore(), **{"effort": EFFORT, **limits})[0]  # type: ignore[arg-type]


def best(language: Language, top: int) -> list[tuple[tuple[int, ...], float]]:
    return sorted(language.reference().log_p.items(), key=lambda item: (-item[1], item[0]))[:top]


@pytest.mark.parametrize("language", [*AND_OPEN, LARGE], ids=str)
@pytest.mark.parametrize("top", [1, 5])
def test_it_is_the_top_of_the_enumeration(language: Language, top: int) -> None:
    result, expected = ranked(language, top), best(language, top + 1)
    assert [member.token_ids for member in result] == [ids for ids, _ in expected[:top]]
    assert [member.log_p for member in result] == pytest.approx([log_p for _, log_p in expected[:top]])
    assert result.texts == [language.table.guide.text(ids).decode() for ids, _ in expected[:top]]
    assert (result.gap, result.certified, result.asked, result.budget) == (0.0, top, top, language.budget)
    assert expected[top][1] <= result.log_p_bound + 1e-12
    low, high = result.log_z_bounds
    assert low - 1e-9 <= language.reference().log_phi <= high + 1e-9


def test_calls_and_tokens_are_few() -> None:
    """Of languages of up to 491 prefixes, and of a large one."""
    small = [ranked(language, 3).counts for language in LANGUAGES]
    assert all(counts.calls <= 7 and counts.tokens <= 50 for counts in small)
    assert count_prefixes(LARGE.table, LARGE.budget, 512) is None
    counts = ranked(LARGE, 1).counts
    assert counts.calls <= 20 and counts.tokens < 200


def test_more_than_there_are_says_that_these_are_all() -> None:
    language = LANGUAGES[2]
    result = ranked(language, 10_000)
    assert len(result) == len(language.reference().log_p) < result.asked
    assert result.complete and result.log_p_bound == -math.inf and result.gap == 0.0
    assert "\nthese are all\nlog Phi -3.806" in str(result)
    assert not ranked(language, 2).complete and "at most, all others\n" in str(ranked(language, 2))


def test_what_draws_have_found_is_not_asked_again() -> None:
    store, request = TreeStore(), LANGUAGES[1].request(20, None)
    ExactSampler(ExactPhi(), store).sample(request)
    assert ranked(LANGUAGES[1], 3, store).counts.calls == 0
    first = ranked(LARGE, 2, store)
    again = ranked(LARGE, 2, store)
    assert again == Ranking(**{**vars(first), "counts": again.counts}) and again.counts.tokens == 0
    seeded = rank(LARGE.request(1, 7), 2, store, effort=EFFORT)[0]
    assert seeded.items == first.items and seeded.counts == first.counts


def test_rows_of_a_batch_are_those_of_the_prompt_alone() -> None:
    request = LARGE.request(1, None, rows=3)
    store = TreeStore()
    results = rank(request, 2, store, effort=EFFORT)
    assert len(store) == 1
    assert [result.items for result in results] == [ranked(LARGE, 2).items] * 3
    assert results[0].counts.calls == ranked(LARGE, 2).counts.calls


def test_an_interrupted_search_leaves_no_tree_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TreeStore()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ranking, "grow_trees", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ranked(LARGE, 1, store)
    assert len(store) == 0


def test_values_are_read_when_asked_for() -> None:
    def refuse(text: str) -> int:
        raise ValueError(text)

    result = ranked(LANGUAGES[0], 2, reader=len)
    assert result.values == [len(text) for text in result.texts]
    with pytest.raises(ValueError, match=ranked(LANGUAGES[0], 1).texts[0]):
        _ = ranked(LANGUAGES[0], 1, reader=refuse)[0].value
    assert [member.text for member in result[:1]] == result.texts[:1]


class TestErrors:
    @pytest.mark.parametrize("top", [0, -1, 1.5, "3", True, None])
    def test_top_is_a_count(self, top: object) -> None:
        with pytest.raises(UnsupportedError, match=r"top=.* expected a whole number of at least 1"):
            ranked(LANGUAGES[0], top)  # type: ignore[arg-type]

    @pytest.mark.parametrize("tolerance", [-0.1, math.nan, math.inf, "small", True])
    def test_tolerance_is_a_number(self, tolerance: object) -> None:
        with pytest.raises(UnsupportedError, match="expected a number of at least 0"):
            ranked(LANGUAGES[0], 1, tolerance=tolerance)

    def test_effort_is_an_effort(self) -> None:
        with pytest.raises(UnsupportedError, match=r"expected Effort\(tokens=..., seconds=...\)"):
            ranked(LANGUAGES[0], 1, effort=100)

    @pytest.mark.parametrize("tokens", [1, 10, 20])
    def test_too_little_effort_carries_the_best_and_the_bound(self, tokens: int) -> None:
        with pytest.raises(
            BudgetError, match=r"the search used its .* model tokens.* what is missing has at most"
        ) as caught:
            ranked(LARGE, 3, effort=Effort(tokens=tokens))
        (partial,) = caught.value.partial
        assert partial.gap > 0 and partial.certified < 3
        assert caught.value.log_z_bounds == partial.log_z_bounds
        listed = set(partial.texts)
        missing = [log_p for ids, log_p in best(LARGE, 10_000) if VOCABULARY.decode(ids).decode() not in listed]
        assert missing[0] <= partial.log_p_bound

    def test_an_empty_law_names_the_truncation(self) -> None:
        with pytest.raises(EmptyLanguageError, match="Prompt 0: .* under top_k=1"):
            ranked(LANGUAGES[2], 1, top_k=1)


SPELLED = Language("spelled", "(a|b){5}", 9, seed=53, scale=8.0)
"""Usual spellings of 46 prefixes, under a law that may give little to them."""


@pytest.mark.parametrize("tokens", [1, 2, 4, 8, 16, 24, 32, 48, 64])
def test_whatever_the_effort_nothing_false_is_proven(tokens: int) -> None:
    """Prefixes that the effort does not pay for are no part of the tree."""
    for seed in range(tokens % 7, 20, 2):
        language = replace(SPELLED, seed=seed)
        ((first, log_p),) = best(language, 1)
        store = TreeStore()
        try:
            assert ranked(language, 1, store, effort=Effort(tokens=tokens))[0].token_ids == first
        except BudgetError as error:
            (known,) = error.partial
            assert known.log_p_bound >= log_p - 1e-9 or known[0].token_ids == first
        assert ranked(language, 1, store)[0].token_ids == first, "a kept tree holds what was proven of it"


@pytest.mark.parametrize("top", [1, 10_000])
def test_a_store_without_room(top: int) -> None:
    """The store may drop laws as soon as the search is over."""
    for seed in range(12):
        language = Language("crowded", "[abc]{2,4}x{0,2}", 9, seed=seed, scale=3.0)
        for tokens in (5, 10**5):
            try:
                found = ranked(language, top, TreeStore(20_000), effort=Effort(tokens=tokens))
                assert found[0].token_ids == best(language, 1)[0][0]
            except BudgetError:
                pass
