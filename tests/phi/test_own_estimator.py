"""The example of an estimator of one's own: its values against naive recursion, its draws, and the names that it imports."""

import ast
import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import outlines_phi
from benchmarks.estimators import dp_frozen
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from outlines_phi import OneStepPhi
from outlines_phi.guides import Guide, Table
from outlines_phi.lm import TableModel
from tests.inner import DEAD, DONE
from tests.languages import LANGUAGES, OF_EVERY_KIND, VOCABULARY, Language
from tests.phi.walks import ManyPartitions, mean_weight, paths, states_of, true_phi

LEAST = 1e-250
"""A floor that holds nothing back."""

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


def naive(guide: Guide, p: list[float], horizon: int) -> Callable[[int, int, int], float]:
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
        if t == 0:
            return 1.0
        return sum(mass * h(target, left - 1, t - 1) for mass, target in onward(state))

    return h


def test_it_imports_public_names_alone() -> None:
    source = ast.parse(Path(dp_frozen.__file__).read_text(encoding="utf-8"))
    ours = [
        node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and "outlines_phi" in str(node.module)
    ]
    assert len(ours) == 2
    for node in ours:
        assert (node.module or "").removeprefix("outlines_phi.") in outlines_phi.__all__
        assert {alias.name for alias in node.names} <= set(importlib.import_module(str(node.module)).__all__)


@pytest.mark.parametrize(
    ("language", "horizon", "wrap"),
    [
        *product(OF_EVERY_KIND, [1, 2, 3], [lambda guide: guide]),
        *product(LANGUAGES, [12], [lambda guide: guide]),
        *product(OF_EVERY_KIND, [2], [ManyPartitions]),
    ],
    ids=lambda value: "one partition" if "lambda" in str(value) else None,
)
def test_values_are_those_of_naive_recursion(language: Language, horizon: int, wrap: Callable[[Guide], Guide]) -> None:
    guide = wrap(language.table.guide)
    table = Table(guide)
    phi = FrozenDPPhi(horizon=horizon, states=10**6, floor=LEAST)
    log_p = torch.log_softmax(torch.from_numpy(np.random.default_rng(4).normal(size=len(VOCABULARY))), -1)
    h = naive(guide, log_p.exp().tolist(), horizon)
    for state in states_of(guide, 8):
        after = [guide.advance(state, v) for v in range(len(VOCABULARY))]
        for remaining in range(guide.min_tokens(state), 9):
            log_h = phi.log_h(log_p[None], table, state, remaining)[0]
            found = table.partition(state).spread(log_h).exp().tolist()
            expected = [h(target, remaining - 1, horizon) for target in after]
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-240), (state, remaining)


@languages
def test_fewer_states_mean_a_nearer_horizon_and_never_less_than_one_step(language: Language) -> None:
    table = Table(language.table.guide)
    log_p = torch.log_softmax(torch.randn(1, len(VOCABULARY), dtype=torch.float64), -1)
    first = {language.table.start, *language.table.guide.row(language.table.start).targets.tolist()}
    whole = first >= set(states_of(language.table.guide, 8))
    near, one, five = (
        FrozenDPPhi(horizon=horizon, states=states, floor=LEAST).log_h(log_p, table, table.start, 7).tolist()
        for horizon, states in [(5, 1), (1, 10**6), (5, 10**6)]
    )
    assert near == (five if whole else one)
    (onestep,) = OneStepPhi(floor=LEAST).log_h(log_p, table, table.start, 7)
    assert one[0] == pytest.approx(onestep.tolist(), abs=1e-5)


@languages
def test_it_is_exact_where_the_law_ignores_its_context(language: Language) -> None:
    """Every draw has the weight Phi."""
    blind = replace(language)
    object.__setattr__(blind, "lm", TableModel.random(VOCABULARY, seed=3, order=0, scale=2.0))
    found = paths(blind, FrozenDPPhi(horizon=language.budget, states=10**6, floor=LEAST))
    phi = true_phi(blind)((), blind.table.start, blind.budget)
    assert phi > 0
    assert all(math.exp(path.log_w) == pytest.approx(phi, rel=1e-9) for path in found)
    masked = paths(blind, FrozenDPPhi(floor=1.0))
    assert any(abs(math.exp(path.log_w) / phi - 1) > 0.1 for path in masked)


@languages
def test_the_mean_weight_is_phi(language: Language) -> None:
    found = paths(language, FrozenDPPhi(horizon=2, states=2), top_k=5)
    assert mean_weight(found) == pytest.approx(math.exp(language.reference(top_k=5).log_phi), rel=1e-9)


def test_what_it_keeps_counts_in_the_table() -> None:
    table, phi = Table(LANGUAGES[0].table.guide), FrozenDPPhi()
    log_p = torch.zeros(1, len(VOCABULARY))
    phi.log_h(log_p, table, table.start, 7)
    before = table.bytes
    for remaining in (3, 5, 7):
        phi.log_h(log_p + remaining, table, table.start, remaining)
    assert table.bytes == before > 0
