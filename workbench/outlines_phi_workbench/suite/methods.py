"""The methods of the fidelity suite: estimators, and samplers that run them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, final

from outlines_phi import (
    SMC,
    AutoPhi,
    ExactPhi,
    LearnedPhi,
    LocalPhi,
    LookaheadPhi,
    StateValues,
    UnsupportedError,
)
from outlines_phi.guides import Table
from outlines_phi.phi import Estimate, ProposalPhi, SampledRun
from outlines_phi.phi.estimator import Need, Phi
from outlines_phi.plugin.call import ESTIMATORS
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.sampler import Request

from .reference import CertifiedWalk

DRAW = "draw"  # The name of the sampler that an estimator has by itself
PRACTICE = 64  # Draws that `learned` has learned from when it is measured


@final
class PractisedPhi(ProposalPhi):
    """Values of guide states as they are after some draws of the same language, no longer changing.

    It learns from draws of its own the first time that it meets a language and a prompt.
    """

    name: ClassVar[str] = LearnedPhi.name
    needs: ClassVar[frozenset[Need]] = LearnedPhi.needs

    def __init__(self) -> None:
        self._learned: dict[tuple[Table, tuple[int, ...]], StateValues] = {}

    def begin(self, run: SampledRun) -> Estimate:
        key = run.table, run.prompts[0]
        if key not in self._learned:
            values = self._learned[key] = StateValues()
            settings = replace(run.settings, seed=0, max_new_tokens=run.budgets[0])
            request = Request(lm=run.lm, table=run.table, prompts=[run.prompts[0]], settings=settings, n=PRACTICE)
            AncestralSampler(LearnedPhi(values)).sample(request)
        return LearnedPhi(self._learned[key].copy()).begin(run)


@final
@dataclass(frozen=True)
class Method:
    """An estimator and what runs it."""

    estimator: str
    sampler: str
    phi: Phi
    options: SMC | None  # the sampler where it is not the estimator's own
    # Its distribution is computed where the language can be enumerated; ``None``: draws have to tell.
    proposal: ProposalPhi | None
    independent: bool  # whether ``n`` draws of one call are independent and distributed as a draw in a call of its own

    @property
    def name(self) -> str:
        """Estimator and sampler."""
        return self.estimator if self.sampler == DRAW else f"{self.estimator} + {self.sampler}"


CERTIFIED: dict[str, Phi] = {
    "exact-0.1": ExactPhi(tolerance=0.1),
    "exact-0.01": ExactPhi(tolerance=0.01),
    "exact-0.1-95": ExactPhi(tolerance=0.1, confidence=0.95),
}
"""Draws with a certificate: the tolerance, and the confidence in percent where it is not certain."""

AWRS = "awrs"  # Masking where the language is a predicate on texts, by adaptive weighted rejection

SAMPLERS: dict[str, tuple[SMC | None, frozenset[str] | None]] = {
    DRAW: (None, None),
    AWRS: (None, frozenset({"local"})),
    "smc-5": (SMC(particles=5), frozenset({"local", "dp-bigram"})),
    "smc-50": (SMC(particles=50), frozenset({"local", "dp-bigram"})),
    "smc-50-ess": (SMC(particles=50, resample="ess"), frozenset({"local"})),
}
"""The samplers of an estimator, by name, and the estimators it is shown with where no samplers are asked for; ``None`` for all."""


def known_estimators() -> dict[str, Phi]:
    """Return the estimators by name: each as a call has it by that name, masking first, and some with options.

    All but the look-ahead, which there is for banned phrases only.
    """
    found: dict[str, Phi] = {LocalPhi.name: LocalPhi()}
    found.update({name: phi() for name, phi in ESTIMATORS.items() if phi is not LookaheadPhi})
    found[LearnedPhi.name] = PractisedPhi()
    whole = {name: found.pop(name) for name in (ExactPhi.name, AutoPhi.name)}
    return {**found, **CERTIFIED, **whole}


def methods(estimators: Iterable[str] | None = None, samplers: Iterable[str] | None = None) -> list[Method]:
    """Return the methods to compare: every sampler with every estimator that it can run.

    By default all estimators, with the samplers that :data:`SAMPLERS` shows them with.
    """
    known = known_estimators()
    chosen, runners = chosen_of("estimator", estimators, known), chosen_of("sampler", samplers, SAMPLERS)
    shown = {name: (of or known) if samplers is None else known for name, (_, of) in SAMPLERS.items()}
    pairs = [(estimator, sampler) for sampler in runners for estimator in chosen if estimator in shown[sampler]]
    found = [(e, s) for e, s in pairs if s == DRAW or isinstance(known[e], ProposalPhi)]
    if not found:
        raise UnsupportedError(
            f"Leave --samplers out, or give {DRAW!r}. None of the samplers {', '.join(runners)} runs any of the estimators "
            f"{', '.join(chosen)}, which draw in a way of their own."
        )
    return [_method(estimator, known[estimator], sampler) for estimator, sampler in found]


def chosen_of(kind: str, patterns: Iterable[str] | None, known: Iterable[str]) -> list[str]:
    """Return the names that patterns such as ``dyck*``, or several by commas, match, in their order; by default all.

    An :class:`UnsupportedError` where a pattern matches none.
    """
    names = list(known)
    if patterns is None:
        return names
    given = [pattern.strip() for part in patterns for pattern in part.split(",") if pattern.strip()]
    unknown = [pattern for pattern in given if not fnmatch.filter(names, pattern)]
    if unknown or not given:
        said = f"There is no {kind} {', '.join(map(repr, unknown))}" if unknown else f"No {kind} was given"
        raise UnsupportedError(f"Give some of {', '.join(names)}. {said}.")
    return list(dict.fromkeys(name for pattern in given for name in fnmatch.filter(names, pattern)))


def _method(estimator: str, phi: Phi, sampler: str) -> Method:
    proposal: ProposalPhi | None = None
    match phi:
        case ExactPhi(tolerance=0):
            pass
        case ExactPhi(confidence=None):
            proposal = CertifiedWalk(phi.tolerance, phi.effort.tokens, phi.effort.seconds)
        case ProposalPhi():
            proposal = phi
    independent = isinstance(phi, ExactPhi) or proposal is not None
    return Method(estimator, sampler, phi, SAMPLERS[sampler][0], proposal if sampler == DRAW else None, independent)
