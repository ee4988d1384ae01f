"""One step of look-ahead with the true next distribution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ...numerics.checks import check_counts, check_shares
from ..estimator import Estimate, Need, Prefixes, ProposalPhi, SampledRun
from .candidates import Candidates

ELEMENTS = 2**26
"""Logits of children that are asked for in one model call, at most: 256 MiB in single precision."""


class Child(NamedTuple):
    """A child that is looked at: its parent's place among the prefixes, its token, and the guide state after it."""

    place: int
    token: int
    target: int


@final
@dataclass(frozen=True)
class Lookahead1Phi(ProposalPhi):
    """``h(yv) = sum_w p(w | yv) 1[w live after yv]``: the true next distribution, for the children that carry mass.

    Exact when validity is decided in one step and all children are looked at. It helps recursive languages, and as a proposal
    without weights it hurts literals and enumerations, whose validity is decided later. One more model call per step, for
    all rows together; a child that is looked at and then chosen costs no second evaluation.

    Attributes
    ----------
    candidates
        Children looked at per prefix, at most. The others have the mean of those that lead to the same guide state, or of all.
    share
        The likeliest children are looked at until they hold this share of the mass of all live ones.
    floor
        ``h`` of a live token is at least this share of the largest among its siblings, so that it is positive wherever ``Phi`` is.
    """

    candidates: int = 8
    share: float = 0.99
    floor: float = 1e-3
    name: ClassVar[str] = "lookahead1"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def __post_init__(self) -> None:
        check_counts("Lookahead1Phi", candidates=self.candidates)
        check_shares("Lookahead1Phi", share=self.share, floor=self.floor)

    def begin(self, run: SampledRun) -> Estimate:
        """See :meth:`ProposalPhi.begin`."""
        return Lookahead1Estimate(self, run)


@final
@dataclass(frozen=True)
class Lookahead1Estimate(Estimate):
    """One step of look-ahead at work in a run: it holds nothing that the run's branches do not."""

    phi: Lookahead1Phi
    run: SampledRun

    def add_log_h(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        """See :meth:`Estimate.add_log_h`."""
        where = list(zip(log_p, prefixes.states, prefixes.remaining, strict=True))
        chosen = [
            Candidates(self.run.table, state, left, law, most=self.phi.candidates, share=self.phi.share)
            for law, state, left in where
        ]
        found = np.split(self._live_mass(prefixes, chosen), np.cumsum([len(among) for among in chosen])[:-1])
        for (scores, _, _), among, log_h in zip(where, chosen, found, strict=True):
            among.add_to(scores, log_h, self.phi.floor)
        return log_p

    def _live_mass(self, prefixes: Prefixes, chosen: list[Candidates]) -> np.ndarray:
        """Return ``log h`` of all candidates in turn: the live mass of the distribution after each."""
        children = [
            Child(place, token, target)
            for place, among in enumerate(chosen)
            for token, target in zip(among.tokens, among.targets, strict=True)
        ]
        size = max(1, ELEMENTS // len(self.run.lm.vocabulary))
        pieces = (children[i : i + size] for i in range(0, len(children), size))
        mass = [log_mass for piece in pieces for log_mass in self._of_children(prefixes, piece)]
        return torch.stack(mass).cpu().numpy() if mass else np.zeros(0)

    def _of_children(self, prefixes: Prefixes, children: list[Child]) -> list[Tensor]:
        """Return the log of the live mass after each of ``children``, asked for in one model call."""
        parents = [prefixes.nodes[child.place] for child in children]
        _, logits = self.run.branches.look(parents, [child.token for child in children])
        found = []
        for raw, (place, token, target) in zip(logits, children, strict=True):
            law = self.run.log_p(raw[None], [(prefixes.rows[place], (*prefixes.tokens[place], token))])[0]
            law.add_(self.run.table.bias(target, prefixes.remaining[place] - 1, law.device))
            found.append(torch.logsumexp(law.double(), -1))
        return found
