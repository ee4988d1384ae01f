"""One step of look-ahead with the current logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from ...errors import UnsupportedError
from ...guides.phrases.phrase_guide import BanningGuide
from ...guides.table import Table
from ...numerics.checks import check_shares
from ...settings import SamplingSettings
from ..estimator import Need, StepPhi, floored


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
        after = [group.live @ group.partition.mass(p).float() for group in step.groups]
        log_h = torch.cat(after).log()[step.places]  # [T], one per target, then [G]
        return floored(log_h, self.floor, step.ends, step.live)
