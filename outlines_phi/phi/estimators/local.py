"""Plain masking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from ...guides.table import Table
from ..estimator import Need, StepPhi


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

    def add_log_h(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        """Add the cached bias row of each state in place; see :meth:`StepPhi.add_log_h`."""
        for row, (state, left) in enumerate(zip(states, remaining, strict=True)):
            log_p[row].add_(table.bias(state, left, log_p.device))
        return log_p
