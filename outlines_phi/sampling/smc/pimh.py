"""Particle-independent Metropolis-Hastings: a chain of whole populations (Andrieu, Doucet and Holenstein 2010, section 2.4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np

from ...lm.model import ModelCounts
from ...numerics.checks import check_counts, check_kind
from ...numerics.streams import Stream
from ...numerics.weights import log_mean
from ...phi.estimator import ProposalPhi
from ..draw import Guarantee
from ..draws import DrawCounts, Draws
from ..sampler import Request, Sampler
from .population import Population
from .smc import SMC, SMCSampler


@final
@dataclass(frozen=True, kw_only=True)
class PIMH:
    """A chain over runs of sequential Monte Carlo, ``sampler=PIMH(smc=SMC(particles=50))``: draws that need no weight.

    Each step proposes a whole run and moves to it with probability ``min(1, Z_hat' / Z_hat)``; ``n`` draws are ``n`` states after
    ``burn_in`` of them. The distribution of a state converges to ``mu*``, at a rate that is not known beforehand, and states depend
    on one another: the guarantee is ``APPROXIMATE``. ``draws.counts.acceptance`` and ``draws.ess`` say how well the chain moves.

    Attributes
    ----------
    smc
        The runs.
    burn_in
        States that are left out at the beginning; each costs one run.

    Raises
    ------
    UnsupportedError
        An option of the wrong type or out of range.
    """

    smc: SMC = field(default_factory=SMC)
    burn_in: int = 10

    def __post_init__(self) -> None:
        check_kind("PIMH", "smc", self.smc, SMC, "SMC(particles=...)")
        check_counts("PIMH", least=0, burn_in=self.burn_in)


@final
@dataclass(frozen=True)
class PIMHSampler(Sampler):
    """Draws the states of one chain per prompt; all its runs are made first, together, since none depends on another.

    The chain's stationary distribution on runs is proportional to ``Z_hat`` times the distribution of a run. Under it a particle
    that is picked by weight has the distribution ``mu*``, because ``E[Z_hat f(pick)] = Phi mu*(f)``. Every state picks anew, also
    one that the chain has held, which leaves that distribution as it is. All draws of a prompt have the same weight, such that the
    mean over them and ``failures`` (states whose run died, before the first that did not) is the mean of all ``Z_hat``: unbiased
    for ``Phi``.

    Attributes
    ----------
    phi
        The estimator ``h``, which proposes.
    options
        The options.
    """

    phi: ProposalPhi
    options: PIMH = field(default_factory=PIMH)

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`; the draws are states of a chain and depend on one another."""
        runs, counts = SMCSampler(self.phi, self.options.smc).run(
            request, self.options.burn_in + request.n, independent=True
        )
        return [
            self._draws(request, row, [population for population, _ in of_prompt], counts)
            for row, of_prompt in enumerate(runs)
        ]

    def _draws(self, request: Request, row: int, runs: Sequence[Population], counts: ModelCounts) -> Draws:
        rng = request.stream(row, Stream.CHAIN)
        log_z = [run.log_z for run in runs]
        items, populations = [], []
        held, moves = 0, 0
        for number in range(len(runs)):
            if number and accepts(log_z[held], log_z[number], rng):
                held, moves = number, moves + 1
            if number >= self.options.burn_in and log_z[held] > -math.inf:
                items.append(runs[held].pick(rng))
                populations.append(runs[held])
        if items:
            log_w = log_mean(np.array(log_z)) + math.log(request.n / len(items))
            items = [replace(item, log_w=log_w, guarantee=Guarantee.APPROXIMATE) for item in items]
        return Draws(
            items=tuple(items),
            counts=DrawCounts(**vars(counts), attempts=len(runs) - 1, accepted=moves),
            budget=request.budgets[row],
            failures=request.n - len(items),
            populations=tuple(populations),
        )


def accepts(log_z: float, proposed: float, rng: np.random.Generator) -> bool:
    """Return whether a chain at a run of ``log_z`` moves to the ``proposed`` one: with probability ``min(1, Z' / Z)``."""
    chance = rng.random()
    return chance < math.exp(min(0.0, proposed - log_z)) if log_z > -math.inf else proposed > -math.inf
