"""Several drafters at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ..errors import UnsupportedError
from .drafter import Draft, Drafter, Drafting, DraftRun, ProposedDrafting, Site, check_drafters, tree
from .proposer import Proposer


@final
@dataclass(frozen=True)
class AllOf(Drafter):
    """Drafts with all of several drafters: a tree, of which a walk follows the chain that it draws by itself.

    More of it holds good than of one chain, and every token is evaluated.

    Attributes
    ----------
    drafters
        The drafters. None of them draws: in a tree, laws would have to be those that earlier rejections leave.

    Raises
    ------
    UnsupportedError
        No drafter was given, something else, or one that draws.
    """

    drafters: tuple[Drafter, ...]
    name: ClassVar[str] = "all_of"

    def __post_init__(self) -> None:
        object.__setattr__(self, "drafters", check_drafters("AllOf", self.drafters))
        for drafter in self.drafters:
            if drafter.sampled:
                raise UnsupportedError(
                    f"AllOf was given the drafter {drafter.name!r}, which draws its tokens; expected some that do not, such as "
                    "ModelDrafter(model, greedy=True)."
                )

    @property
    def width(self) -> int:
        """See :attr:`Drafter.width`: those of all of them."""
        return sum(drafter.width for drafter in self.drafters)

    def begin(self, run: DraftRun) -> Drafting:
        """See :meth:`Drafter.begin`."""
        return _AllOf([Proposer(drafter, run) for drafter in self.drafters])


@final
class _AllOf(ProposedDrafting):
    def __init__(self, proposers: Sequence[Proposer]) -> None:
        self._proposers = proposers

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        proposed = [proposer.propose(sites, lengths, streams) for proposer in self._proposers]
        return [tree(chain for draft in drafts for chain in draft.chains) for drafts in zip(*proposed, strict=True)]
