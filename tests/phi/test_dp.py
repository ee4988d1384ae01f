"""Backward induction with a surrogate law, against naive recursion over tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Guide
from outlines_phi.guides.regex import compile_regex
from outlines_phi.guides.table import Table
from outlines_phi.lm.table_model import TableModel
from outlines_phi.phi import dp
from outlines_phi.phi import dp_bigram as bigram
from outlines_phi.phi import dp_frozen as frozen
from outlines_phi.phi.dp import SETTLED, Layers, explore, largest_change, log_product
from outlines_phi.phi.dp_bigram import BigramDPPhi
from outlines_phi.phi.dp_frozen import FrozenDPPhi
from outlines_phi.phi.estimator import ProposalPhi
from outlines_phi.phi.onestep import OneStepPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.sampler import Request
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language
from tests.phi.walks import ManyPartitions, law_after, mean_weight, no_floor, paths, run_of, states_of, steps, true_phi

LEAST = 1e-250
"""A floor that holds nothing back."""

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
EOS_ID = VOCABULARY.eos_ids[0]


def naive(guide: Guide, p: list[float], horizon: int | None) -> Callable[[int, int, int], float]:
    """``h_t(s)`` token by token, with ``left`` tokens to write and ``t`` steps until the horizon."""

    @cache
    def onward(state: int) -> list[tuple[float, int]]:
        return [(p[v], target) for v in range(len(p)) if (target := guide.advance(state, v)) != DEAD]

    @cache
    def h(state: int, left: int, t: int) -> float:
        if state == DONE:
            return 1.0
        if state == DEAD or guide.min_tokens(state) > left:
            return 0.0
        if horizon is not None and t == 0:
            return 1.0
        return sum(mass * h(target, left - 1, t - 1) for mass, target in onward(state))

    return h


def tokens(table: Table, state: int, log_h: torch.Tensor) -> list[float]:
    """``h`` of every token, given ``log h`` of every class."""
    return table.partition(state).spread(log_h).exp().tolist()


class TestFrozen:
    @pytest.mark.parametrize(
        ("language", "horizon", "wrap"),
        [
            *product(OF_EVERY_KIND, [1, 2, 3], [lambda guide: guide]),
            *product(LANGUAGES, [12, None], [lambda guide: guide]),
            *product(OF_EVERY_KIND, [2], [ManyPartitions]),
            *product(LANGUAGES, [None], [ManyPartitions]),
        ],
        ids=lambda value: "one partition" if "lambda" in str(value) else None,
    )
    def test_values_are_those_of_naive_recursion(
        self, language: Language, horizon: int | None, wrap: Callable[[Guide], Guide]
    ) -> None:
        guide = wrap(language.table.guide)
        table = Table(guide)
        phi = FrozenDPPhi(horizon=horizon, states=None, floor=LEAST)
        log_p = torch.log_softmax(torch.from_numpy(np.random.default_rng(4).normal(size=len(VOCABULARY))), -1)
        h = naive(guide, log_p.exp().tolist(), horizon)
        for state in states_of(guide, 8):
            after = [guide.advance(state, v) for v in range(len(VOCABULARY))]
            for remaining in range(guide.min_tokens(state), 9):
                found = tokens(table, state, phi.log_h(log_p[None], table, state, remaining)[0])
                expected = [h(target, remaining - 1, horizon or -1) for target in after]
                assert found == pytest.approx(expected, rel=1e-9, abs=1e-240), (state, remaining)

    @languages
    def test_a_horizon_of_one_step_is_onestep(self, language: Language) -> None:
        log_p = torch.log_softmax(torch.randn(len(VOCABULARY), generator=torch.Generator().manual_seed(1)), -1)
        table = language.table
        for remaining in range(table.guide.min_tokens(table.start), 9):
            (one,) = OneStepPhi().log_h(log_p[None], table, table.start, remaining)
            (found,) = FrozenDPPhi(horizon=1).log_h(log_p[None], table, table.start, remaining)
            assert found.float().tolist() == pytest.approx(one.tolist(), abs=1e-5)

    @languages
    @pytest.mark.parametrize("states", [1, 2, 4, 6])
    def test_fewer_states_mean_a_nearer_horizon(self, language: Language, states: int) -> None:
        """Never less than one step, never further than asked, and no more states than allowed beyond the first step."""
        guide, table = language.table.guide, Table(language.table.guide)
        log_p = torch.log_softmax(torch.randn(len(VOCABULARY), dtype=torch.float64), -1)
        first = set(guide.row(table.start).targets.tolist())
        reachable = explore(guide, first, depth=5, states=states)
        assert len(reachable.rows) <= max(states, len(first - {DEAD, DONE}))
        horizon = min(reachable.depth, 5)
        assert 1 <= horizon
        (found,) = FrozenDPPhi(horizon=5, states=states, floor=LEAST).log_h(log_p[None], table, table.start, 7)
        (expected,) = FrozenDPPhi(horizon=horizon, states=None, floor=LEAST).log_h(log_p[None], table, table.start, 7)
        assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-9)

    def test_all_states_of_a_grammar_that_has_no_last_one_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dp, "MOST", 100)
        language = next(each for each in OF_EVERY_KIND if each.name == "Dyck")
        request = language.request(2, 0)
        with pytest.raises(UnsupportedError, match="more than 100, perhaps without end. Give states="):
            AncestralSampler(FrozenDPPhi(horizon=None, states=None)).sample(request)
        AncestralSampler(FrozenDPPhi(horizon=3, states=None)).sample(request)

    def test_an_unbounded_budget_settles(self) -> None:
        """``sum_n m^n p(x) p(end)``, whatever the budget, in few steps."""
        table = Table(FSMGuide.from_automaton(compile_regex("[ab]*x"), VOCABULARY))
        log_p = torch.log_softmax(torch.zeros(len(VOCABULARY), dtype=torch.float64), -1)
        p = 1 / len(VOCABULARY)
        (found,) = FrozenDPPhi(horizon=None).log_h(log_p[None], table, table.start, UNREACHABLE - 1)
        loop, x = VOCABULARY.tokens.index(b"a"), VOCABULARY.tokens.index(b"x")
        log_h = table.partition(table.start).spread(found)
        assert float(log_h[loop]) == pytest.approx(math.log(p * p / (1 - 5 * p)), abs=10 * SETTLED)
        assert float(log_h[x]) == pytest.approx(math.log(p), abs=1e-12)

    @languages
    def test_it_is_exact_where_the_law_ignores_its_context(self, language: Language) -> None:
        """Every draw has the weight Phi."""
        blind = replace(language)
        object.__setattr__(blind, "lm", TableModel.random(VOCABULARY, seed=3, order=0, scale=2.0))
        found = paths(blind, FrozenDPPhi(horizon=language.budget, states=None, floor=LEAST))
        phi = true_phi(blind)((), blind.table.start, blind.budget)
        assert phi > 0
        assert all(math.exp(path.log_w) == pytest.approx(phi, rel=1e-9) for path in found)
        masked = paths(blind, FrozenDPPhi(floor=1.0))
        assert any(abs(math.exp(path.log_w) / phi - 1) > 0.1 for path in masked)

    def test_structures_are_kept_in_the_table(self) -> None:
        table, phi = Table(LANGUAGES[0].table.guide), FrozenDPPhi()
        log_p = torch.zeros(1, len(VOCABULARY))
        phi.log_h(log_p, table, table.start, 7)
        before = table.bytes
        for remaining in (3, 5, 7):
            phi.log_h(log_p + remaining, table, table.start, remaining)
        assert table.bytes == before > 0

    @pytest.mark.parametrize("option", ["horizon", "states"])
    @pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
    def test_bad_bounds(self, option: str, value: object) -> None:
        with pytest.raises(UnsupportedError, match=f"{option}={value!r} was given to FrozenDPPhi; expected a whole"):
            FrozenDPPhi(**{option: value})  # type: ignore[arg-type]

    @pytest.mark.parametrize("floor", [0, -1, 2, "low", math.nan])
    @pytest.mark.parametrize("phi", [FrozenDPPhi, BigramDPPhi])
    def test_bad_floors(self, floor: object, phi: type) -> None:
        with pytest.raises(UnsupportedError, match=f"floor={floor!r} was given to {phi.__name__}; expected a number"):
            phi(floor=floor)


def chain(language: Language) -> Language:
    """The same language under a law that looks at the last token only."""
    found = replace(language)
    object.__setattr__(found, "lm", TableModel.random(VOCABULARY, seed=language.seed, order=1, scale=1.5))
    return found


class TestBigram:
    @languages
    @pytest.mark.parametrize("wrap", [None, ManyPartitions], ids=["one partition", "two partitions"])
    def test_values_are_those_of_naive_recursion(
        self, language: Language, wrap: Callable[[Guide], Guide] | None
    ) -> None:
        """With all tokens, at every prefix, under a law that depends on everything."""
        if wrap is not None:
            wrapped = replace(language)
            object.__setattr__(wrapped, "table", Table(wrap(language.table.guide)))
            language = wrapped
        guide, settings = language.table.guide, language.settings()
        after = {u: law_after(language, settings, (u,)) for u in range(1, len(VOCABULARY))}

        @cache
        def h(state: int, u: int, left: int) -> float:
            if state == DONE:
                return 1.0
            if state == DEAD or left == 0:
                return 0.0
            return sum(after[u][v] * h(guide.advance(state, v), v, left - 1) for v in range(len(VOCABULARY)))

        run = run_of(language)
        seen = 0
        for step in steps(run, BigramDPPhi(floor=LEAST).begin(run)):
            expected = [
                h(guide.advance(step.state, v), v, step.remaining - 1) if v else float(step.log_h[v] == 0)
                for v in range(len(VOCABULARY))
            ]
            assert step.log_h.exp().tolist() == pytest.approx(expected, rel=10 * SETTLED, abs=1e-240)
            seen += 1
        assert seen > 5

    @pytest.mark.parametrize("limit", [1, 3, 5, 7])
    def test_other_tokens_have_the_law_of_their_class(self, limit: int) -> None:
        """The likeliest of each class first; the mean over the evaluated of a class, or over all, stands for the rest."""
        language = LANGUAGES[0]
        table, settings = language.table, language.settings()
        guide, class_of = table.guide, table.partition(table.start).class_of
        used = [v for v in range(1, len(VOCABULARY)) if any(guide.advance(s, v) != DEAD for s in states_of(guide, 8))]
        root = law_after(language, settings, ())
        order = sorted(used, key=lambda v: -root[v])
        leading = [v for i, v in enumerate(order) if class_of[v] not in {class_of[u] for u in order[:i]}]
        chosen = (leading + [v for v in order if v not in leading])[:limit]
        assert len(chosen) == min(limit, len(used))
        after = {u: np.array(law_after(language, settings, (u,))) for u in chosen}

        def law(u: int) -> np.ndarray:
            if u in after:
                return after[u]
            among = [v for v in chosen if class_of[v] == class_of[u]] or chosen
            return sum(root[v] * after[v] for v in among) / sum(root[v] for v in among)

        @cache
        def h(state: int, u: int, left: int) -> float:
            if state == DONE:
                return 1.0
            if state == DEAD or left == 0:
                return 0.0
            return sum(law(u)[v] * h(guide.advance(state, v), v, left - 1) for v in [0, *used])

        run = run_of(language)
        for step in steps(run, BigramDPPhi(tokens=limit, floor=LEAST).begin(run)):
            for v in used:
                if (target := guide.advance(step.state, v)) != DEAD and guide.min_tokens(target) < step.remaining:
                    assert math.exp(step.log_h[v]) == pytest.approx(h(target, v, step.remaining - 1), rel=1e-9)

    @languages
    def test_it_is_exact_where_the_law_looks_at_the_last_token_only(self, language: Language) -> None:
        """Every draw has the weight Phi, where the frozen law does not."""
        markov = chain(language)
        phi = true_phi(markov)((), markov.table.start, markov.budget)
        found = paths(markov, BigramDPPhi(floor=LEAST))
        assert all(math.exp(path.log_w) == pytest.approx(phi, rel=1e-9) for path in found)
        control = paths(markov, FrozenDPPhi(horizon=None, floor=LEAST))
        assert any(abs(math.exp(path.log_w) / phi - 1) > 0.1 for path in control)

    def test_tiny_values_keep_their_proportions(self) -> None:
        """Phi of 1e-600, which no float64 holds, is followed exactly: all in log space."""
        language = Language("long", "(a|b){40}x", 42, seed=2)
        law = TableModel.random(VOCABULARY, seed=2, order=1, scale=1.0)
        steep = np.zeros(len(VOCABULARY))
        steep[VOCABULARY.tokens.index(b"x")] = 0.0
        for token in (b"a", b"b", b"ab", b"ba", b"aa"):
            steep[VOCABULARY.tokens.index(token)] = -35.0 * len(token)
        object.__setattr__(language, "lm", TableModel(VOCABULARY, lambda ids: law.next_logits(ids) + steep))
        draws = AncestralSampler(BigramDPPhi(floor=LEAST)).sample(language.request(20, seed=1))[0]
        assert draws.log_w == pytest.approx(draws.log_w[0], abs=1e-7)
        assert draws.log_w[0] < math.log(1e-300) - 690

    @pytest.mark.parametrize("states", [1, 2, 3])
    def test_beyond_the_explored_states_it_masks(self, states: int) -> None:
        language = LANGUAGES[0]
        found = paths(language, BigramDPPhi(states=states))
        assert mean_weight(found) == pytest.approx(math.exp(language.reference().log_phi), rel=1e-9)

    def test_its_calls_are_those_of_the_run(self) -> None:
        """One batch for all prompts: each token once, below its prompt; equal prompts share theirs."""
        language = LANGUAGES[0]
        guide, members = language.table.guide, range(1, len(VOCABULARY))
        used = sum(any(guide.advance(state, v) != DEAD for state in states_of(guide, 8)) for v in members)
        prompts = [PROMPT, (3,), PROMPT]
        request = Request(lm=language.lm, table=language.table, prompts=prompts, settings=language.settings(1), n=1)
        for limit in (3, 256):
            draws = AncestralSampler(BigramDPPhi(tokens=limit)).sample(request)
            written = [draw.token_ids for each in draws for draw in each]
            walked = sum(len(ids) - 1 for ids in written)
            assert draws[0].counts.tokens == 2 * min(limit, used) + walked
            assert draws[0].counts.calls == 2 + max(map(len, written)) - 1
            assert draws[0].counts.prompt_tokens == sum(map(len, prompts))

    def test_a_budget_of_one_token_asks_for_nothing(self) -> None:
        language = Language("empty", "a?", 1, seed=3)
        draws = AncestralSampler(BigramDPPhi()).sample(language.request(3, seed=1))[0]
        assert [draw.token_ids for draw in draws] == [(EOS_ID,)] * 3
        assert draws.counts.tokens == 0

    @pytest.mark.parametrize("option", ["tokens", "states", "max_bytes"])
    @pytest.mark.parametrize("value", [0, -1, 1.5, None, True])
    def test_bad_bounds(self, option: str, value: object) -> None:
        with pytest.raises(UnsupportedError, match=f"{option}={value!r} was given to BigramDPPhi; expected a whole"):
            BigramDPPhi(**{option: value})  # type: ignore[arg-type]


class TestLayers:
    """``x_{t+1} = 0.5 x_t + 0.25`` from 0, in log space: it tends to 0.5."""

    @staticmethod
    def step(values: np.ndarray) -> np.ndarray:
        return np.log(0.5 * np.exp(values) + 0.25)

    def layers(self, budget: int, max_bytes: int = 10**6) -> Layers:
        return Layers(np.array([-np.inf, -np.inf]), self.step, budget, max_bytes)

    def test_every_budget_has_its_values(self) -> None:
        layers = self.layers(10)
        assert [math.exp(layers.at(t)[0]) for t in range(11)] == pytest.approx([0.5 - 0.5**t / 2 for t in range(11)])

    def test_it_stops_where_values_settle(self) -> None:
        layers = self.layers(10**9)
        assert layers.top < 40
        assert math.exp(layers.at(10**8)[0]) == pytest.approx(0.5, rel=4 * SETTLED)

    def test_a_silent_stretch_does_not_settle_it(self) -> None:
        """A value that moves on while the others rest: the last to be reached lies 20 steps away."""
        size = 21
        first = np.full(size, -np.inf)
        first[0] = 0.0
        layers = Layers(first, lambda values: np.append(0.0, values[:-1]), 100, 10**6)
        assert layers.top == size - 1
        assert layers.at(100).tolist() == [0.0] * size

    @pytest.mark.parametrize("kept", [2, 3, 5])
    def test_memory_is_bounded_by_sharing_larger_budgets(self, kept: int) -> None:
        layers, all_of_them = self.layers(18, max_bytes=kept * 16), self.layers(18)
        assert len(layers) <= kept + 1
        for t in range(19):
            assert any(np.array_equal(layers.at(t), all_of_them.at(u)) for u in range(t, 19))
        assert np.array_equal(layers.at(18), all_of_them.at(18))

    def test_changes_and_products_in_log_space(self) -> None:
        a, b = np.array([-np.inf, 0.0]), np.array([-np.inf, 1e-9])
        assert largest_change(a, a) == 0
        assert largest_change(a, b) == pytest.approx(1e-9)
        assert largest_change(np.array([-np.inf]), np.array([-900.0])) == math.inf
        x = np.array([[-1000.0, -1001.0], [-np.inf, -np.inf]])
        product = log_product(x, np.array([[1.0, 0.0], [1.0, 0.0]]))
        assert product[0, 0] == pytest.approx(-1000 + math.log1p(math.exp(-1)))
        assert (product[0, 1], *product[1]) == (-math.inf,) * 3


PROPOSALS: dict[str, ProposalPhi] = {
    "frozen": FrozenDPPhi(),
    "frozen, near": FrozenDPPhi(horizon=2, states=2),
    # The largest budget here: grammars have states without end.
    "frozen, whole": FrozenDPPhi(horizon=8, states=None),
    "bigram": BigramDPPhi(),
    "bigram, cut": BigramDPPhi(tokens=2, states=3, max_bytes=200),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", PROPOSALS)
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"temperature": 0.5}], ids=str)
@languages
def test_the_mean_weight_is_phi(name: str, options: dict[str, object], language: Language) -> None:
    """``sum_y q(y) w(y) = Phi`` over all paths, and each weight is ``p / q``."""
    found = paths(language, PROPOSALS[name], **options)
    assert mean_weight(found) == pytest.approx(math.exp(language.reference(**options).log_phi), rel=1e-9)
    assert all(path.log_w == pytest.approx(path.log_p - path.log_q, abs=1e-9) for path in found)


@pytest.fixture
def without_floors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(frozen, "floored", no_floor)
    monkeypatch.setattr(bigram, "floored", no_floor)
    yield


@pytest.mark.usefixtures("without_floors")
@pytest.mark.parametrize("phi", [FrozenDPPhi(), BigramDPPhi()], ids=["frozen", "bigram"])
def test_without_a_floor_mass_is_lost(phi: ProposalPhi) -> None:
    """Power control: with top_k = 5 a surrogate rules out members that the law allows."""
    language, options = LANGUAGES[0], {"top_k": 5}
    assert mean_weight(paths(language, phi, **options)) < 0.999 * math.exp(language.reference(**options).log_phi)
