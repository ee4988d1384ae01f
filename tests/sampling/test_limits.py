"""Limits of calls: seconds, Ctrl-C, and what each of them hands over."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from outlines_phi import AutoPhi, BudgetError, Effort, ExactPhi, Guarantee, LocalPhi, LookaheadPhi, UnsupportedError
from outlines_phi.errors import InterruptedDraws, too_small
from outlines_phi.lm import TableModel
from outlines_phi_workbench.suite.reference import CertifiedWalk
from tests.inner import (
    AncestralSampler,
    Attempts,
    AutoSampler,
    Evaluator,
    ExactSampler,
    Request,
    Sampler,
    TreeStore,
    limited,
    preexpand,
    rank,
    watch,
)
from tests.languages import ALPHA, LANGUAGES, PROMPT, VOCABULARY, Language, p_value

WORDS, LOOP, NESTED, BOTTLENECK = LANGUAGES
LENGTHS = Language("lengths", "[abcx]{0,3}", 4, seed=2, scale=0.7)


@pytest.fixture(autouse=True)
def only_walks_grow_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)


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


class TestSeconds:
    @pytest.mark.parametrize("seconds", [0, -1, True, "2", float("nan"), float("inf")])
    def test_they_are_a_positive_number(self, seconds: Any) -> None:
        with pytest.raises(UnsupportedError, match=r"Effort\(seconds=.*expected a positive number, or None"):
            Effort(seconds=seconds)

    def test_a_look_ahead_has_none(self) -> None:
        with pytest.raises(UnsupportedError, match="Leave seconds out of LookaheadPhi.*would be the short ones"):
            LookaheadPhi(effort=Effort(seconds=2))

    @pytest.mark.usefixtures("ticking")
    def test_nothing_is_launched_when_they_are_over_and_what_was_is_finished(self) -> None:
        request = WORDS.request(60, seed=1)
        with pytest.raises(BudgetError, match=r"Prompt 0: its 6 s were over with \d+ of 60 exact draws") as caught:
            ExactSampler(within(6, width=4)).sample(request)
        draws = caught.value.draws[0]
        assert 0 < len(draws) < 60 and 6 < draws.counts.calls <= 6 + WORDS.budget
        whole = ExactSampler(ExactPhi(width=4)).sample(request)[0]
        assert [draw.token_ids for draw in draws] == [draw.token_ids for draw in whole[: len(draws)]]
        assert draws.counts.attempts < whole.counts.attempts

    @pytest.mark.usefixtures("ticking")
    def test_a_call_that_ends_in_time_is_as_without_a_limit(self) -> None:
        request = WORDS.request(50, seed=2)
        assert ExactSampler(within(10_000)).sample(request) == ExactSampler(ExactPhi()).sample(request)

    @pytest.mark.usefixtures("ticking")
    def test_draws_that_are_there_have_the_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also the first draws of calls that were stopped; if attempts were cut when the time is over, they would be short ones."""

        def first() -> list[tuple[int, ...]]:
            with pytest.raises(BudgetError) as caught:
                ExactSampler(within(2, width=2)).sample(LENGTHS.request(3, seed=1, rows=1000))
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

    @pytest.mark.usefixtures("ticking")
    def test_a_certificate_and_its_draws_share_them(self) -> None:
        request = LOOP.request(5, seed=1)
        with pytest.raises(
            BudgetError, match=r"Prompt 0: enumeration left log Phi .*, when its 1 s were over; what"
        ) as caught:
            ExactSampler(within(1, tolerance=1e-9)).sample(request)
        assert caught.value.draws[0].certificate.total_variation > 0
        assert len(ExactSampler(within(1000, tolerance=1e-9)).sample(request)[0]) == 5

    @pytest.mark.usefixtures("ticking")
    def test_a_search_ends_with_what_it_has(self) -> None:
        request = LOOP.request(1, seed=1)
        with pytest.raises(BudgetError, match=r"Prompt 0: its 1 s were over when \d of 9 members were found") as caught:
            rank(request, 9, TreeStore(), effort=Effort(seconds=1))
        (found,) = caught.value.partial
        (whole,) = rank(request, 9, TreeStore(), effort=Effort(seconds=1000))
        assert found.log_p_bound >= whole[0].log_p and not whole.gap

    @pytest.mark.usefixtures("ticking")
    def test_they_end_the_enumeration_of_a_certified_walk(self) -> None:
        walk = CertifiedWalk(1e-9, seconds=0.5)
        with pytest.raises(BudgetError, match=r"Enumeration did not reach .* when its 0.5 s were over"):
            AncestralSampler(walk).sample(LOOP.request(1, seed=1))

    @pytest.mark.usefixtures("ticking")
    def test_a_limit_ends_with_its_call(self) -> None:
        with limited(1000) as call:
            with pytest.raises(BudgetError):
                ExactSampler(within(1)).sample(BOTTLENECK.request(200, seed=1))
            assert not call.over
            assert len(ExactSampler(ExactPhi()).sample(WORDS.request(50, seed=1))[0]) == 50


SAMPLERS: dict[str, Callable[[TreeStore], Sampler]] = {
    "exact": lambda store: ExactSampler(ExactPhi(width=4), store),
    "certified": lambda store: ExactSampler(ExactPhi(width=4, tolerance=0.6), store),
    "auto": lambda store: AutoSampler(AutoPhi(width=4, share=1), store),
    "weighted": lambda _: AncestralSampler(LocalPhi()),
}


def interrupted_at(call: int, language: Language) -> TableModel:
    """A model that is interrupted in the middle of its ``call``-th call."""
    laws = [0]

    def law(sequence: tuple[int, ...]) -> object:
        laws[0] += 1
        if laws[0] == call:
            raise KeyboardInterrupt
        return language.lm.next_logits(sequence)

    return TableModel(VOCABULARY, law)  # type: ignore[arg-type]


def asked(language: Language, lm: TableModel, n: int) -> Request:
    return Request(lm=lm, table=language.table, prompts=[PROMPT], settings=language.settings(7), n=n)


class TestInterrupts:
    @pytest.mark.parametrize("name", ["exact", "auto"])
    def test_they_hand_over_the_exact_draws_so_far(self, name: str) -> None:
        whole = SAMPLERS[name](TreeStore()).sample(asked(WORDS, WORDS.lm, 40))[0]
        sizes = set()
        for call in range(2, 30, 3):
            store = TreeStore()
            try:
                SAMPLERS[name](store).sample(asked(WORDS, interrupted_at(call, WORDS), 40))
            except InterruptedDraws as interrupt:
                (draws,) = interrupt.draws
                assert [draw.token_ids for draw in draws] == [draw.token_ids for draw in whole[: len(draws)]]
                assert draws.guarantee is Guarantee.EXACT and not draws.failures and 0 < len(draws) < 40
                low, high = draws.log_z_bounds
                assert low <= WORDS.reference().log_phi <= high
                assert str(interrupt) == f"{len(draws)} of 40 draws were made; .draws of this exception has them."
                sizes.add(len(draws))
            except KeyboardInterrupt:
                sizes.add(0)
            assert len(store) == 0
        assert len(sizes) > 2

    def test_certified_draws_are_handed_over_with_their_certificate(self) -> None:
        seen = []
        for call in range(2, 15):
            try:
                SAMPLERS["certified"](TreeStore()).sample(asked(NESTED, interrupted_at(call, NESTED), 400))
            except InterruptedDraws as interrupt:
                seen.append(interrupt.draws[0])
            except KeyboardInterrupt:
                continue
        assert seen and all(
            draws.certificate.total_variation > 0 and draws.guarantee is Guarantee.CERTIFIED for draws in seen
        )

    def test_those_that_are_complete_first_are_no_sample(self) -> None:
        """Weighted draws advance together: after some steps the short ones are there, and none is handed over."""
        for call in range(2, 12):
            with pytest.raises(KeyboardInterrupt) as caught:
                SAMPLERS["weighted"](TreeStore()).sample(asked(WORDS, interrupted_at(call, WORDS), 40))
            assert not isinstance(caught.value, InterruptedDraws)

    @pytest.mark.parametrize("name", SAMPLERS)
    def test_the_next_call_is_as_if_nothing_had_been(self, name: str) -> None:
        sampler = SAMPLERS[name](TreeStore())
        with pytest.raises(KeyboardInterrupt):
            sampler.sample(asked(WORDS, interrupted_at(3, WORDS), 40))
        assert sampler.sample(asked(WORDS, WORDS.lm, 40)) == SAMPLERS[name](TreeStore()).sample(
            asked(WORDS, WORDS.lm, 40)
        )

    def test_normalizers_that_are_missing_do_not_take_the_draws_with_them(self) -> None:
        sampler = ExactSampler(ExactPhi(width=4, normalizers=40))
        whole = ExactSampler(ExactPhi(width=4)).sample(asked(BOTTLENECK, BOTTLENECK.lm, 1))[0]
        interrupts = []
        for call in range(whole.counts.tokens + 2, whole.counts.tokens + 6):
            with pytest.raises(InterruptedDraws) as caught:
                sampler.sample(asked(BOTTLENECK, interrupted_at(call, BOTTLENECK), 1))
            interrupts.append(caught.value.draws[0])
        assert all(draws.texts == whole.texts and draws.normalizers == () for draws in interrupts)


class TestMessages:
    def test_the_remedy_comes_first_in_two_sentences(self) -> None:
        with pytest.raises(BudgetError) as caught:
            ExactSampler(ExactPhi(effort=Effort(attempts=1), width=2)).sample(BOTTLENECK.request(200, seed=1))
        remedy, reached, *more = str(caught.value).split(". ")
        assert remedy.startswith("Draw with weights (phi='auto'), give a larger ExactPhi(effort=")
        assert reached.startswith("Prompt 0: the effort ran out with ") and not more
        assert reached.endswith("at most the probability that the effort runs out, in total variation.")
        assert caught.value.reason.endswith(").") and caught.value.reason[:-1] in reached

    def test_errors_are_pickled_with_what_they_carry(self) -> None:
        error = BudgetError.of("Give more", "Nothing was left", "there is this", draws=[1], log_z_bounds=(-1.0, 0.0))
        copy = pickle.loads(pickle.dumps(error))
        assert str(copy) == str(error) == "Give more. Nothing was left; there is this."
        assert vars(copy) == vars(error) and copy.reason == "Nothing was left."
        interrupt = InterruptedDraws.of([[1, 2]], 3)
        assert pickle.loads(pickle.dumps(interrupt)).draws == [[1, 2]]

    def test_a_budget_is_called_as_it_was_given(self) -> None:
        error = too_small(2, 5, "max_tokens")
        assert str(error).startswith("Give max_tokens=5 or more: max_tokens=2 is too small") and error.least_budget == 5
