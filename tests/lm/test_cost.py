"""The cost of a model's calls: measured by a clock, and what it changes."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from outlines.types import Regex

import outlines_phi
from outlines_phi import UnsupportedError
from outlines_phi.lm import CallCost, TableModel, TokenTrees, bundled, model
from tests.inner import WrappedModel
from tests.lm.gardens import VOCABULARY


class Clocked(WrappedModel):
    """A model whose calls take as long as a cost says, by a clock of its own, and sometimes longer."""

    def __init__(self, cost: CallCost) -> None:
        super().__init__(TableModel.random(VOCABULARY, seed=2, max_length=3))
        self.true, self.now, self.calls = cost, 0.0, 0

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        trees: Any = self.lm.trees(prompts)
        extend = trees.extend

        def slow(parents: Sequence[int], tokens: Sequence[int]) -> Any:
            self.calls, n = self.calls + 1, len(tokens)
            self.now += 0.2 * (1 + self.true.second * (n > 1) + self.true.later * (n - 1)) + (self.calls % 7 == 0)
            return extend(parents, tokens)

        trees.extend = slow
        return trees


@pytest.mark.parametrize("cost", [CallCost(), CallCost(0.0, 0.0), CallCost(0.7, 0.01), CallCost(0.0, 1.0)])
def test_a_cost_is_measured_by_the_clock(monkeypatch: pytest.MonkeyPatch, cost: CallCost) -> None:
    lm = Clocked(cost)
    monkeypatch.setattr(model, "perf_counter", lambda: lm.now)
    found = CallCost.measured(lm)
    assert found.second == pytest.approx(cost.second) and found.later == pytest.approx(cost.later)


def test_a_dear_token_is_not_drafted() -> None:
    """Behind a measurement drafts are as long as pays; what is drawn has the same distribution."""
    wrapped = outlines_phi.from_transformers(*bundled.load())
    prompt, drafted = "The cat sat on the mat. The cat sat on the mat. The cat", []
    for cost in (CallCost(0.0, 0.0), CallCost(), CallCost(9.0, 9.0)):
        wrapped.lm.cost = cost
        generator = outlines_phi.Generator(wrapped, Regex("[a-zA-Z. ]{40}"), phi="local", draft="prompt_lookup")
        drafted.append(generator.sample(prompt, 4, seed=3).counts.drafted)
    assert drafted[0] > drafted[1] > drafted[2] == 0


@pytest.mark.parametrize("bad", [-1, math.nan, "1", None])
def test_a_cost_is_a_number(bad: Any) -> None:
    with pytest.raises(UnsupportedError, match="CallCost"):
        CallCost(second=bad)
    with pytest.raises(UnsupportedError, match="CallCost"):
        CallCost(later=bad)
