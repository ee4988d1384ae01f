"""Backward induction with the distribution after each single token, against naive recursion over tokens."""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from outlines_phi import BigramDPPhi, OneStepPhi
from outlines_phi.guides import Guide, Table
from outlines_phi.lm import TableModel
from outlines_phi.phi.dp_bigram import SETTLED, Layers
from tests.inner import DEAD, DONE, Request
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language, ids, sample
from tests.phi.walks import ManyPartitions, law_after, paths, run_of, states_of, steps, true_phi, with_part

LEAST = 1e-250
"""A floor that holds nothing back."""

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
EOS_ID = VOCABULARY.eos_ids[0]


class TestBigram:
    @languages
    @pytest.mark.parametrize("wrap", [lambda guide: guide, ManyPartitions], ids=["one partition", "two partitions"])
    def test_values_are_those_of_naive_recursion(self, language: Language, wrap: Callable[[Guide], Guide]) -> None:
        """With all tokens, at every prefix, under a law that depends on everything."""
        language = with_part(language, "table", Table(wrap(language.table.guide)))
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
        """Every draw has the weight Phi, where one step by the current law does not."""
        markov = with_part(language, "lm", TableModel.random(VOCABULARY, seed=language.seed, order=1, scale=1.5))
        phi = true_phi(markov)((), markov.table.start, markov.budget)
        found = paths(markov, BigramDPPhi(floor=LEAST))
        assert all(math.exp(path.log_w) == pytest.approx(phi, rel=1e-9) for path in found)
        assert any(abs(math.exp(path.log_w) / phi - 1) > 0.1 for path in paths(markov, OneStepPhi(floor=LEAST)))

    def test_tiny_values_keep_their_proportions(self) -> None:
        """Phi of 1e-600, which no float64 holds, is followed exactly: all in log space."""
        language = Language("long", "(a|b){40}x", 42, seed=2)
        law = TableModel.random(VOCABULARY, seed=2, order=1, scale=1.0)
        steep = np.array([-35.0 * len(token) * (set(token) <= set(b"ab")) for token in VOCABULARY.tokens])
        language = with_part(language, "lm", TableModel(VOCABULARY, lambda ids: law.next_logits(ids) + steep))
        (draws,) = sample(BigramDPPhi(floor=LEAST), language.request(20, seed=1))
        assert draws.log_w == pytest.approx(draws.log_w[0], abs=1e-7) and draws.log_w[0] < math.log(1e-300) - 690

    def test_its_calls_are_those_of_the_run(self) -> None:
        """One batch for all prompts: each token once, below its prompt; equal prompts share theirs."""
        language = LANGUAGES[0]
        guide, members = language.table.guide, range(1, len(VOCABULARY))
        used = sum(any(guide.advance(state, v) != DEAD for state in states_of(guide, 8)) for v in members)
        prompts = [PROMPT, (3,), PROMPT]
        request = Request(lm=language.lm, table=language.table, prompts=prompts, settings=language.settings(1), n=1)
        for limit in (3, 256):
            draws = sample(BigramDPPhi(tokens=limit), request)
            written = [draw.token_ids for each in draws for draw in each]
            assert draws[0].counts.tokens == 2 * min(limit, used) + sum(len(ids) - 1 for ids in written)
            assert draws[0].counts.calls == 2 + max(map(len, written)) - 1
            assert draws[0].counts.prompt_tokens == sum(map(len, set(prompts)))

    def test_a_budget_of_one_token_asks_for_nothing(self) -> None:
        language = Language("empty", "a?", 1, seed=3)
        (draws,) = sample(BigramDPPhi(), language.request(3, seed=1))
        assert ids(draws) == [(EOS_ID,)] * 3 and draws.counts.tokens == 0


class TestLayers:
    """``x_{t+1} = 0.5 x_t + 0.25`` from 0, in log space: it tends to 0.5."""

    @staticmethod
    def step(values: np.ndarray) -> np.ndarray:
        return np.log(0.5 * np.exp(values) + 0.25)

    def layers(self, budget: int, max_bytes: int = 10**6) -> Layers:
        return Layers(np.array([-np.inf, -np.inf]), self.step, budget, max_bytes)

    def test_it_stops_where_values_settle(self) -> None:
        layers = self.layers(10**9)
        assert layers.top < 40 and math.exp(layers.at(10**8)[0]) == pytest.approx(0.5, rel=4 * SETTLED)

    def test_a_silent_stretch_does_not_settle_it(self) -> None:
        """A value that moves on while the others rest: the last to be reached lies 20 steps away."""
        size = 21
        first = np.full(size, -np.inf)
        first[0] = 0.0
        layers = Layers(first, lambda values: np.append(0.0, values[:-1]), 100, 10**6)
        assert (layers.top, layers.at(100).tolist()) == (size - 1, [0.0] * size)

    @pytest.mark.parametrize("kept", [2, 3, 5])
    def test_memory_is_bounded_by_sharing_larger_budgets(self, kept: int) -> None:
        layers, all_of_them = self.layers(18, max_bytes=kept * 16), self.layers(18)
        assert len(layers) <= kept + 1
        for t in range(19):
            assert any(np.array_equal(layers.at(t), all_of_them.at(u)) for u in range(t, 19))
        assert np.array_equal(layers.at(18), all_of_them.at(18))
