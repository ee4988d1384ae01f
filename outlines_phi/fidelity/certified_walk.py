"""The law of certified draws as one that can be written down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from ..errors import BudgetError
from ..guides.table import Table
from ..lm.watch import limited
from ..phi.estimator import Estimate, Need, Prefixes, ProposalPhi, SampledRun
from ..phi.estimators.exact import ExactPhi
from ..phi.tree.enumerate import FINITE_PREFIXES, enumerate_together, expand_towards
from ..phi.tree.evaluator import Evaluator
from ..phi.tree.tree import BoundsTree, Node


@final
@dataclass(frozen=True)
class CertifiedWalk(ProposalPhi):
    """``h = U``, the upper bounds of an enumerated tree, 1 below it: what ``ExactPhi(tolerance=...)`` draws by, step by step.

    Attributes
    ----------
    phi
        The options of the enumeration.
    """

    phi: ExactPhi
    name: ClassVar[str] = "certified walk"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def begin(self, run: SampledRun) -> WalkEstimate:
        """Enumerate the tree of every prompt; see :meth:`ProposalPhi.begin`.

        Raises
        ------
        BudgetError
            The tolerance was not reached within the effort.
        """
        trees = [BoundsTree(run.table, budget) for budget in run.budgets]
        evaluator = Evaluator(run.lm, run.settings, run.prompts, trees)
        with limited(self.phi.effort.seconds) as watch:
            expand_towards(trees, evaluator, FINITE_PREFIXES, tolerance=self.phi.tolerance)
            reached = enumerate_together(trees, evaluator, self.phi.tolerance, self.phi.effort.tokens)
            if not all(reached):
                used = watch.end_of(f"its {self.phi.effort.tokens} model tokens were used")
                raise BudgetError.of(
                    "Give a larger tolerance or effort",
                    f"Enumeration did not reach tolerance={self.phi.tolerance} when {used}",
                )
        return WalkEstimate([tree.root for tree in trees], run.table)


@final
@dataclass(frozen=True)
class WalkEstimate(Estimate):
    """The enumerated trees of a run."""

    roots: Sequence[Node]
    table: Table

    def add_log_h(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        """See :meth:`Estimate.add_log_h`."""
        for i, (row, state, left, tokens) in enumerate(
            zip(prefixes.rows, prefixes.states, prefixes.remaining, prefixes.tokens, strict=True)
        ):
            log_p[i].add_(self.table.bias(state, left, log_p.device))
            node: Node | None = self.roots[row]
            for token in tokens:
                node = node.children.get(token) if node is not None else None
            for token, child in (node.children if node is not None else {}).items():
                log_p[i, token] += math.log(child.upper) if child.upper > 0 else -math.inf
        return log_p
