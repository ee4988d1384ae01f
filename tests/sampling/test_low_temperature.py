"""Exactness where the live tokens of a step are hundreds of nats apart: low temperatures, in every precision of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi import AutoPhi, Effort, ExactPhi, LocalPhi
from outlines_phi.lm import LanguageModel, SequenceTrees, TableModel, TokenTrees
from outlines_phi.phi.tree.distribution import Distribution
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.inner import (
    AncestralSampler,
    AutoSampler,
    BoundsTree,
    Evaluator,
    ExactSampler,
    Request,
    Sampler,
    TreeStore,
    WrappedModel,
    enumerate_together,
    log_mean,
    rank,
    tree,
)
from tests.languages import ALPHA, LANGUAGES, PROMPT, VOCABULARY, Language, pooled_p_value

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
SCALE = 6.0
"""The standard deviation of logits: at a temperature of 0.02 tokens are up to 2,000 nats apart."""


RARE = 1e-3
"""The probability of members that a few hundred candidates may all have missed."""


class InPrecision(WrappedModel):
    """A model that hands its logits on in a precision that they were rounded to before."""

    def __init__(self, lm: TableModel, dtype: torch.dtype) -> None:
        super().__init__(lm)
        self.table, self.dtype = lm, dtype

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(self._logits, prompts, len(self.vocabulary), self.max_length)

    def _logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        rows = [self.table.logits(sequence) for sequence in sequences]
        return torch.from_numpy(np.array(rows).reshape(-1, len(self.vocabulary))).to(self.dtype)


class Cold:
    """A language under a random law of a precision and a temperature, with its reference in float64."""

    def __init__(self, language: Language, dtype: torch.dtype, temperature: float, seed: int) -> None:
        drawn = TableModel.random(VOCABULARY, seed=seed, scale=SCALE)

        def rounded(sequence: tuple[int, ...]) -> Any:
            return torch.from_numpy(drawn.logits(sequence)).to(dtype).double().numpy()

        self.language, self.temperature = language, temperature
        exact = TableModel(VOCABULARY, rounded)
        self.lm: LanguageModel = InPrecision(exact, dtype)
        self.settings = language.settings(temperature=temperature)
        self.reference: Reference = enumerate_language(exact, language.table, PROMPT, self.settings, language.budget)
        # Logits over the temperature, and logs of probabilities, are rounded to float32, each token by itself.
        single = 0.0 if dtype == torch.float64 else 2.0**-24
        self.rounding = 1e-11 + single * 4 * language.budget * 5 * SCALE / temperature

    def request(self, n: int, seed: int) -> Request:
        settings = self.language.settings(seed, temperature=self.temperature)
        return Request(lm=self.lm, table=self.language.table, prompts=[PROMPT], settings=settings, n=n)

    def draws(self, sampler: Sampler, n: int, seed: int = 0) -> list[tuple[int, ...]]:
        (draws,) = sampler.sample(self.request(n, seed))
        return [draw.token_ids for draw in draws]

    def enumerated(self) -> BoundsTree:
        tree = BoundsTree(self.language.table, self.language.budget)
        enumerate_together([tree], Evaluator(self.lm, self.settings, [PROMPT], [tree]), 0.0, 100_000)
        return tree


@cache
def cold(dtype: torch.dtype) -> list[Cold]:
    """Return every language at every temperature, under a law of its own each."""
    return [
        Cold(language, dtype, temperature, seed=100 * number + place)
        for number, language in enumerate(LANGUAGES)
        for place, temperature in enumerate((0.02, 0.05, 0.1, 0.3, 1.0))
    ]


in_every_precision = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bfloat16", "float64"])


def goodness(dtype: torch.dtype, sampler: Sampler, n: int = 300) -> float:
    return pooled_p_value((one.draws(sampler, n), one.reference.mu) for one in cold(dtype))


@in_every_precision
@pytest.mark.parametrize(
    "sampler",
    [ExactSampler(ExactPhi()), ExactSampler(ExactPhi(tolerance=1e-6)), AutoSampler(AutoPhi())],
    ids=["exact", "certified", "auto"],
)
def test_draws_have_the_conditioned_distribution(dtype: torch.dtype, sampler: Sampler) -> None:
    assert goodness(dtype, sampler) > ALPHA


def test_masking_is_found_out() -> None:
    """Power control: the distribution of plain masking."""
    assert goodness(torch.float32, AncestralSampler(LocalPhi())) < 1e-9


def test_a_tree_that_loses_faint_tokens_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power control: live tokens that single precision cannot hold beside the likeliest one."""

    class Flushed(Distribution):  # type: ignore[misc]
        def __init__(self, moves: Any, live: Any, top: Any) -> None:
            super().__init__(moves, np.where(live < live.max(initial=-math.inf) - 103, -np.inf, live), top)

    monkeypatch.setattr(tree, "Distribution", Flushed)
    assert sum([one.reference.log_phi - one.enumerated().log_bounds[1] > 1 for one in cold(torch.float32)]) >= 3


@in_every_precision
def test_bounds_meet_at_phi(dtype: torch.dtype) -> None:
    for one in cold(dtype):
        low, high = one.enumerated().log_bounds
        assert low == pytest.approx(high, abs=1e-11) == pytest.approx(one.reference.log_phi, abs=one.rounding)


@in_every_precision
def test_the_mode_is_the_likeliest_member(dtype: torch.dtype) -> None:
    for one in cold(dtype):
        (ranking,) = rank(one.request(1, 0), 3, TreeStore(), effort=Effort(tokens=100_000))
        log_p = one.reference.log_p
        best = sorted(log_p.values(), reverse=True)[:3]
        assert [log_p[member.token_ids] for member in ranking] == pytest.approx(best, abs=2 * one.rounding)
        assert [member.log_p for member in ranking] == pytest.approx(best, abs=one.rounding)


@in_every_precision
def test_weights_are_unbiased(dtype: torch.dtype) -> None:
    """The log of the mean weight is log Phi, at temperatures at which weights of a few hundred candidates have a mean."""
    errors = []
    for one in cold(dtype):
        if one.temperature >= 0.3:
            (draws,) = AutoSampler(AutoPhi(share=0, candidates=16)).sample(one.request(40, 3))
            w = np.exp(draws.log_w - one.reference.log_phi)
            errors.append((w.mean() - 1) / (w.std() / math.sqrt(len(w)) + RARE))
            assert log_mean(draws.log_w) == pytest.approx(one.reference.log_phi, abs=1.5)
    assert np.abs(errors).max() < 4
