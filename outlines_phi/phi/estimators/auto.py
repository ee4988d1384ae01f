"""Exact draws where they are cheap, and else the best weighted ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

from ...errors import UnsupportedError
from ...numerics.checks import check_counts, check_fits, is_number
from ..estimator import Need, Phi, ProposalPhi
from ..state_values import KeptValues


@final
@dataclass(frozen=True, kw_only=True)
class AutoPhi(Phi):
    """Exact draws of ``mu*`` within an effort, then weighted draws from what the tree has learned (theory.md, section 5.10).

    A draw that the effort does not reach is picked by weight from several candidates (sampling-importance-resampling), which come
    from the tree's adaptive proposal. Its guarantee says ``WEIGHTED``, its ``ess`` how many candidates it is worth, and the call
    gives one :class:`~outlines_phi.FidelityWarning`.

    Attributes
    ----------
    candidates
        Candidates of a weighted draw; a single one has twice as many.
    share
        Model calls in which a call may launch attempts at exact draws before it turns to weighted ones, as a share of those that
        its weighted draws would take alone. 0 makes every draw weighted.
    width
        Attempts in flight at once, per prompt.
    frontier
        An estimator for the prefixes that the tree has not expanded, asked when their parent is: exact where the tree knows, the
        estimator at its frontier. ``None``: the means of what the tree knows about each state of the format.
    """

    candidates: int = 16
    share: float = 1.0
    width: int = 32
    frontier: ProposalPhi | None = None
    name: ClassVar[str] = "auto"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def __post_init__(self) -> None:
        check_counts("AutoPhi", candidates=self.candidates, width=self.width)
        check_fits("candidates", self.candidates, each=4096, things="of them")
        check_fits("width", self.width, each=4096, things="of them")
        if not is_number(self.share) or not 0 <= self.share <= 1:
            raise UnsupportedError(
                f"AutoPhi(share={self.share!r}) was given; expected a number in [0, 1]. For a larger exact effort: "
                "ExactPhi(effort=Effort(...))."
            )
        if not isinstance(self.frontier, ProposalPhi | None):
            raise UnsupportedError(
                f"AutoPhi(frontier={self.frontier!r}) was given; expected an estimator that draws step by step, such as "
                "LearnedPhi() or OneStepPhi(), or None."
            )

    def keeping(self, values: KeptValues) -> AutoPhi:
        return self if self.frontier is None else replace(self, frontier=self.frontier.keeping(values))
