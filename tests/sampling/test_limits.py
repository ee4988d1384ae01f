"""Limits of calls: seconds, Ctrl-C, and what each of them hands over."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from outlines_phi import AutoPhi, BudgetError, Effort, ExactPhi, Guarantee, LocalPhi
from outlines_phi.errors import InterruptedDraws, too_small
from outlines_phi.lm import TableModel
from tests.inner import Attempts, Evaluator, TreeStore, limited, rank, watch
from tests.languages import ALPHA, LANGUAGES, VOCABULARY, Language, ids, p_value, sample

WORDS, LOOP, NESTED, BOTTLENECK = LANGUAGES
LENGTHS = Language("lengths", "[abcx]{0,3}", 4, seed=2, scale=0.7)


pytestmark = pytest.mark.usefixtures("grown")


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second with every model call of a tree."""
    time, expand = [0.0], Evaluator.expand

    def tick(self: Evaluator, wanted: Any, *others: Any) -> None:
        pairs = list(wanted)
        time[0] += bool(pairs)
        expand(self, pairs, *others)

    monkeypatch.setattr(Evaluator, "expand", tick)
    monkeypatch.setattr(watch, "now", lambda: time[0])


def within(seconds: float, **options: Any) -> ExactPhi:
    return ExactPhi(effort=Effort(seconds=seconds), **options)


@pytest.mark.usefixtures("ticking")
class TestSeconds:
    def test_nothing_is_launched_when_they_are_over_and_what_was_is_finished(self) -> None:
        request = WORDS.request(60, seed=1)
        with pytest.raises(BudgetError, match=r"Prompt 0: its 6 s were over with \d+ of 60 exact draws") as caught:
            sample(within(6, width=4), request)
        draws = caught.value.draws[0]
        assert 0 < len(draws) < 60 and 6 < draws.counts.calls <= 6 + WORDS.budget
        (whole,) = sample(ExactPhi(width=4), request)
        assert ids(draws) == ids(whole)[: len(draws)] and draws.counts.attempts < whole.counts.attempts

    def test_a_call_that_ends_in_time_is_as_without_a_limit(self) -> None:
        request = WORDS.request(50, seed=2)
        assert sample(within(10_000), request) == sample(ExactPhi(), request)

    def test_draws_that_are_there_have_the_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also the first draws of calls that were stopped; if attempts were cut when the time is over, they would be short ones."""

        def first() -> list[tuple[int, ...]]:
            with pytest.raises(BudgetError) as caught:
                sample(within(2, width=2), LENGTHS.request(3, seed=1, rows=1000))
            return [draws[0].token_ids for draws in caught.value.draws if len(draws)]

        mu = LENGTHS.reference().mu
        assert p_value(first(), mu) > ALPHA
        advance = Attempts.advance

        def cut(self: Attempts) -> Any:
            if self._watch.over:
                self._waiting = []
            return advance(self)

        monkeypatch.setattr(Attempts, "advance", cut)
        assert p_value(first(), mu) < ALPHA

    def test_a_certificate_and_its_draws_share_them(self) -> None:
        request = LOOP.request(5, seed=1)
        with pytest.raises(BudgetError, match="Prompt 0: enumeration left .* its 1 s were over") as caught:
            sample(within(1, tolerance=1e-9), request)
        assert caught.value.draws[0].certificate.total_variation > 0
        assert len(sample(within(1000, tolerance=1e-9), request)[0]) == 5

    def test_a_search_ends_with_what_it_has(self) -> None:
        request = LOOP.request(1, seed=1)
        with pytest.raises(BudgetError, match=r"Prompt 0: its 1 s were over when \d of 9 members were found") as caught:
            rank(request, 9, TreeStore(), effort=Effort(seconds=1))
        (found,) = caught.value.partial
        (whole,) = rank(request, 9, TreeStore(), effort=Effort(seconds=1000))
        assert found.log_p_bound >= whole[0].log_p and not whole.gap

    def test_a_limit_ends_with_its_call(self) -> None:
        with limited(1000) as call:
            with pytest.raises(BudgetError):
                sample(within(1), BOTTLENECK.request(200, seed=1))
            assert not call.over
            assert len(sample(ExactPhi(), WORDS.request(50, seed=1))[0]) == 50


SAMPLERS = {
    "exact": ExactPhi(width=4),
    "certified": ExactPhi(width=4, tolerance=0.6),
    "auto": AutoPhi(width=4, share=1),
    "weighted": LocalPhi(),
}


def interrupted(
    phi: object, language: Language, n: int, call: int, store: TreeStore | None = None
) -> KeyboardInterrupt | None:
    """Return the interrupt of a call of a sampler whose model is interrupted in the middle of its ``call``-th call."""
    laws = count(1)

    def law(sequence: tuple[int, ...]) -> object:
        if next(laws) == call:
            raise KeyboardInterrupt
        return language.lm.next_logits(sequence)

    try:
        sample(phi, replace(language.request(n, 7), lm=TableModel(VOCABULARY, law)), store=store)  # type: ignore[arg-type]
    except KeyboardInterrupt as interrupt:
        return interrupt
    return None


class TestInterrupts:
    @pytest.mark.parametrize("name", ["exact", "auto"])
    def test_they_hand_over_the_exact_draws_so_far(self, name: str) -> None:
        (whole,), sizes = sample(SAMPLERS[name], WORDS.request(40, 7)), {0}
        for call in range(2, 30, 3):
            store = TreeStore()
            interrupt = interrupted(SAMPLERS[name], WORDS, 40, call, store)
            assert len(store) == 0
            if isinstance(interrupt, InterruptedDraws):
                (draws,) = interrupt.draws
                assert ids(draws) == ids(whole)[: len(draws)] and 0 < len(draws) < 40
                assert draws.guarantee is Guarantee.EXACT and not draws.failures
                low, high = draws.log_z_bounds
                assert low <= WORDS.reference().log_phi <= high
                assert str(interrupt) == f"{len(draws)} of 40 draws were made; .draws of this exception has them."
                sizes.add(len(draws))
        assert len(sizes) > 2

    def test_certified_draws_are_handed_over_with_their_certificate(self) -> None:
        found = [interrupted(SAMPLERS["certified"], NESTED, 400, call) for call in range(2, 15)]
        seen = [interrupt.draws[0] for interrupt in found if isinstance(interrupt, InterruptedDraws)]
        assert seen and {draws.guarantee for draws in seen} == {Guarantee.CERTIFIED}
        assert all(draws.certificate.total_variation > 0 for draws in seen)

    def test_those_that_are_complete_first_are_no_sample(self) -> None:
        """Weighted draws advance together: after some steps the short ones are there, and none is handed over."""
        found = [interrupted(SAMPLERS["weighted"], WORDS, 40, call) for call in range(2, 12)]
        assert set(map(type, found)) == {KeyboardInterrupt}

    @pytest.mark.parametrize("name", SAMPLERS)
    def test_the_next_call_is_as_if_nothing_had_been(self, name: str) -> None:
        phi, store, request = SAMPLERS[name], TreeStore(), WORDS.request(40, 7)
        assert interrupted(phi, WORDS, 40, 3, store) is not None
        assert sample(phi, request, store=store) == sample(phi, request)

    def test_normalizers_that_are_missing_do_not_take_the_draws_with_them(self) -> None:
        (whole,) = sample(ExactPhi(width=4), BOTTLENECK.request(1, 7))
        for call in range(whole.counts.tokens + 2, whole.counts.tokens + 6):
            interrupt = interrupted(ExactPhi(width=4, normalizers=40), BOTTLENECK, 1, call)
            assert isinstance(interrupt, InterruptedDraws)
            assert interrupt.draws[0].texts == whole.texts and interrupt.draws[0].normalizers == ()


class TestMessages:
    def test_a_budget_is_called_as_it_was_given(self) -> None:
        error = too_small(2, 5, "max_tokens")
        assert str(error).startswith("Give max_tokens=5 or more: max_tokens=2 is too small") and error.least_budget == 5
