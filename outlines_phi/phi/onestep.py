"""Estimators that look at most one step ahead: plain masking, and the current logits for the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..guides.phrases.phrase_guide import BanningGuide
from ..guides.table import Table
from ..numerics.checks import check_shares
from ..numerics.distributions import add_rows
from ..settings import SamplingSettings
from .estimator import Need, StepPhi, floored


@final
@dataclass(frozen=True)
class LocalPhi(StepPhi):
    """``h(yv) = 1[yv can be completed]``: the distribution of plain masking, ``mu_proj``, with weights.

    Exact when at every reachable prefix all live next tokens have equal ``Phi``.
    """

    name: ClassVar[str] = "local"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """Return 0 for live classes; see :meth:`StepPhi.log_h`."""
        live = torch.from_numpy(table.live_classes(state, remaining)).to(log_p.device)
        return torch.zeros(live.shape, device=log_p.device).masked_fill(~live, -torch.inf)

    def scores(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        """Return ``log p`` of live tokens, by the cached bias row of each state; see :meth:`StepPhi.scores`."""
        pairs = zip(states, remaining, strict=True)
        bias = [table.bias(state, left, log_p.device) for state, left in pairs]
        return add_rows(log_p, bias, out=torch.empty_like(log_p))


@final
@dataclass(frozen=True)
class OneStepPhi(StepPhi):
    """``h(yv) = sum_w p(w | y) 1[w live after yv]``: the current distribution stands in for the next one, at no model call.

    Exact when the distribution does not depend on its context and validity is decided in one step. As a proposal without weights it
    is often *worse* than plain masking (14 of 21 measured languages): current logits rate only the next slot, so
    tokenizations that split a token look good. Use its weights.

    Attributes
    ----------
    floor
        ``h`` of a live token is at least this share of the largest among its siblings, so that ``h`` is positive wherever ``Phi``
        is. Where no token ends the text, no choice multiplies a weight by more than its inverse (theory.md, section 3.1).
    """

    floor: float = 1e-3
    name: ClassVar[str] = "onestep"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits"})

    def __post_init__(self) -> None:
        check_shares("OneStepPhi", floor=self.floor)

    def check(self, table: Table, settings: SamplingSettings) -> None:
        """See :meth:`StepPhi.check`: the classes of a state have to be those of the next one, too."""
        if isinstance(table.guide, BanningGuide):
            raise UnsupportedError(
                f"phi={self.name!r} was given with banned phrases, beside which each state has vocabulary classes of its own, and "
                "one step cannot be looked ahead by classes. Give phi='local', 'learned' or another proposal, or 'lookahead'."
            )

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """See :meth:`StepPhi.log_h`. One segmented sum and one small product; logits do as well as log probabilities."""
        step = table.one_step(state, remaining, log_p.device)
        p = log_p.softmax(-1)
        after = [group.partition.mass(p).double() @ group.live.T for group in step.groups]
        log_h = torch.cat(after, -1).log().index_select(-1, step.places)  # [n, T], one per target, then [n, G]
        return floored(log_h, self.floor, step.ends, step.live)
