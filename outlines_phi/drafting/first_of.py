"""Several drafters, one after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..guides.table import Table
from .drafter import Draft, Drafter, Drafting, DraftRun, ProposedDrafting, Proposer, Site


@final
@dataclass(frozen=True)
class FirstOf(Drafter):
    """Drafts with the first of several drafters that has something to propose, and goes on from there in the same way.

    So text that the guide forces is drafted as such, up to where a value begins, which may be one of the prompt, after which text
    is forced again. Where others of the chain are drawn, a token of a deterministic drafter has the law that is 1 on it.

    Attributes
    ----------
    drafters
        The drafters, the one to ask first leading.

    Raises
    ------
    UnsupportedError
        No drafter was given, or something else.
    """

    drafters: tuple[Drafter, ...]
    name: ClassVar[str] = "first_of"

    def __post_init__(self) -> None:
        if not isinstance(self.drafters, (tuple, list)) or not self.drafters:
            raise UnsupportedError(f"FirstOf({self.drafters!r}) was given; expected a tuple of at least one drafter.")
        for drafter in self.drafters:
            if not isinstance(drafter, Drafter):
                raise UnsupportedError(f"FirstOf was given {drafter!r}; expected drafters, such as ForcedDrafter().")
        object.__setattr__(self, "drafters", tuple(self.drafters))

    @property
    def sampled(self) -> bool:
        """See :attr:`Drafter.sampled`."""
        return any(drafter.sampled for drafter in self.drafters)

    def begin(self, run: DraftRun) -> Drafting:
        """See :meth:`Drafter.begin`."""
        return _FirstOf([Proposer(drafter, run) for drafter in self.drafters], run.table)


@dataclass(eq=False)
class _Chain:
    """A draft in the making: where it has arrived, and what it was put together from."""

    site: Site
    room: int
    rng: np.random.Generator
    parts: list[Draft] = field(default_factory=list)

    def extend(self, part: Draft, table: Table) -> None:
        self.parts.append(part)
        self.room -= len(part.tokens)
        for token in part.tokens:
            self.site = self.site.after(token, table)

    def draft(self) -> Draft:
        tokens = tuple(token for part in self.parts for token in part.tokens)
        laws = [part.log_r for part in self.parts if part.log_r is not None]
        return Draft(tokens, torch.cat([_law(part, laws[0]) for part in self.parts]) if laws else None)


@final
class _FirstOf(ProposedDrafting):
    def __init__(self, proposers: Sequence[Proposer], table: Table) -> None:
        self._proposers, self._table = proposers, table

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        chains = [_Chain(*asked) for asked in zip(sites, lengths, streams, strict=True)]
        growing = chains
        while growing:
            waiting, growing = growing, []
            for proposer in self._proposers:
                parts = proposer.propose(
                    [chain.site for chain in waiting], [chain.room for chain in waiting], [c.rng for c in waiting]
                )
                for chain, part in zip(waiting, parts, strict=True):
                    if part.tokens:
                        chain.extend(part, self._table)
                        growing.append(chain)
                waiting = [chain for chain, part in zip(waiting, parts, strict=True) if not part.tokens]
        return [chain.draft() for chain in chains]


def _law(part: Draft, other: Tensor) -> Tensor:
    """Return the laws of ``part``: for a deterministic one, like ``other``, those that are 1 on its tokens."""
    if part.log_r is not None:
        return part.log_r.to(other.device)
    log_r = torch.full_like(other[:1], -math.inf).repeat(len(part.tokens), 1)
    log_r[range(len(part.tokens)), list(part.tokens)] = 0.0
    return log_r
