"""Which sampler an estimator runs in."""

from __future__ import annotations

from ..phi.auto import AutoPhi
from ..phi.estimator import Phi, ProposalPhi
from ..phi.exact import ExactPhi
from ..phi.store import TreeStore
from .ancestral import AncestralSampler
from .auto import AutoSampler
from .exact import ExactSampler
from .sampler import Sampler


def sampler_for(phi: Phi, store: TreeStore) -> Sampler:
    """Return the sampler of ``phi``: rejection over kept trees for exact, weighted ancestral draws for a proposal."""
    match phi:
        case ExactPhi():
            return ExactSampler(phi, store)
        case AutoPhi():
            return AutoSampler(phi, store)
        case ProposalPhi():
            return AncestralSampler(phi)
        case _:
            raise TypeError(f"{phi!r} is not an estimator of this package.")
