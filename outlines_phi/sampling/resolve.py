"""The sampler of each estimator."""

from __future__ import annotations

from ..errors import UnsupportedError
from ..phi.estimator import Phi, ProposalPhi
from ..phi.tree.evaluator import TreeStore
from .ancestral import SMC, AncestralSampler, SMCSampler
from .lookahead import LookaheadSampler
from .phi_options import AutoPhi, ExactPhi, FieldsPhi, LookaheadPhi
from .rejection.auto_sampler import AutoSampler
from .rejection.exact_sampler import ExactSampler
from .sampler import Prefetch, Sampler


def sampler_for(phi: Phi, store: TreeStore, sampler: SMC | None = None, draft: Prefetch | None = None) -> Sampler:
    """Return the sampler of ``phi``: the one that was asked for, else rejection over kept trees or weighted ancestral draws.

    With a ``draft``, several tokens per model call; its distribution does not change.

    Raises :class:`UnsupportedError`: ``sampler`` was given beside an estimator that proposes nothing, or beside a draft that was
    asked for.
    """
    if draft is not None and sampler is not None and not draft.asked:
        draft = None
    match phi, sampler:
        case ExactPhi(), None:
            return ExactSampler(phi, store, draft)
        case AutoPhi(), None:
            return AutoSampler(phi, store, draft)
        case FieldsPhi() | LookaheadPhi(), None:
            return LookaheadSampler(phi, draft)
        case ProposalPhi(), None:
            return AncestralSampler(phi.keeping(store.values), draft=draft)
        case Phi(), SMC() if draft is not None:
            raise UnsupportedError(
                "Leave draft out, or leave sampler out: phi='exact' and phi='auto' go with drafts, and so do step estimators such "
                "as phi='local'. A draft was given with sampler=SMC(...), whose particles are compared at the same places of "
                "their texts, token by token."
            )
        case ProposalPhi(), SMC():
            return SMCSampler(phi.keeping(store.values), sampler)
        case ExactPhi() | AutoPhi() | LookaheadPhi() | FieldsPhi(), SMC():
            raise UnsupportedError(
                "Leave phi out or give phi='local' or another proposal for the particles, or leave sampler out. "
                f"sampler=SMC(...) was given with phi={phi.name!r}, which draws in a way of its own."
            )
        case _:
            raise TypeError(f"{phi!r} is not an estimator of this package, or {sampler!r} not a sampler.")
