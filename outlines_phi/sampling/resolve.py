"""Which sampler an estimator runs in."""

from __future__ import annotations

from typing import TypeAlias

from ..errors import UnsupportedError
from ..phi.auto import AutoPhi
from ..phi.estimator import Phi, ProposalPhi
from ..phi.exact import ExactPhi
from ..phi.lookahead import LookaheadPhi
from ..phi.store import TreeStore
from .ancestral import AncestralSampler
from .auto import AutoSampler
from .exact import ExactSampler
from .lookahead import LookaheadSampler
from .lookahead_smc import LookaheadSMCSampler
from .pimh import PIMH, PIMHSampler
from .sampler import Sampler
from .smc import SMC, SMCSampler

SamplerOptions: TypeAlias = SMC | PIMH
"""What ``sampler=`` may be."""


def sampler_for(phi: Phi, store: TreeStore, sampler: SamplerOptions | None = None) -> Sampler:
    """Return the sampler of ``phi``: the one that was asked for, else rejection over kept trees or weighted ancestral draws.

    Raises
    ------
    UnsupportedError
        ``sampler`` was given beside an estimator that proposes nothing.
    """
    phi = phi.keeping(store.values)
    match phi, sampler:
        case ExactPhi(), None:
            return ExactSampler(phi, store)
        case AutoPhi(), None:
            return AutoSampler(phi, store)
        case LookaheadPhi(), None:
            return LookaheadSampler(phi)
        case LookaheadPhi(), SMC():
            return LookaheadSMCSampler(phi, sampler)
        case ProposalPhi(), None:
            return AncestralSampler(phi)
        case ProposalPhi(), SMC():
            return SMCSampler(phi, sampler)
        case ProposalPhi(), PIMH():
            return PIMHSampler(phi, sampler)
        case ExactPhi() | AutoPhi() | LookaheadPhi(), SMC() | PIMH():
            raise UnsupportedError(
                f"sampler={type(sampler).__name__}(...) was given with phi={phi.name!r}, which draws in a way of its own. Leave "
                "phi out or give phi='local' or another proposal for the particles, or leave sampler out."
            )
        case _:
            raise TypeError(f"{phi!r} is not an estimator of this package, or {sampler!r} not a sampler.")
