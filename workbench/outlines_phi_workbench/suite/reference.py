"""The exact distributions over a small language, by enumeration: what estimators and samplers are compared with."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outlines_phi import BudgetError, LocalPhi, SamplingSettings, UnsupportedError
from outlines_phi.guides import Table
from outlines_phi.guides.guide import DONE
from outlines_phi.lm import LanguageModel
from outlines_phi.lm.model import limited
from outlines_phi.phi import Estimate, Prefixes, ProposalPhi, SampledRun
from outlines_phi.phi.branches import Branches
from outlines_phi.phi.estimator import Need
from outlines_phi.phi.tree.best_first import enumerate_together, expand_usual
from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.tree import BoundsTree, Node

Ids = tuple[int, ...]

ROWS = 512  # Prefixes that are evaluated at a time: a tree's attention costs as the square of its nodes


@final
@dataclass(frozen=True)
class Reference:
    """Every member of a language within the budget, with its exact log probabilities."""

    log_p: dict[Ids, float]  # ``log p(y)`` of each member, by its token ids, in nats
    # ``log q_h(y)`` of each member, by the name of the estimator ``h``; ``-inf`` where the estimator never goes.
    log_q: dict[str, dict[Ids, float]]

    @cached_property
    def log_phi(self) -> float:
        """``log Phi(prompt) = log sum_y p(y)``."""
        values = np.array(list(self.log_p.values()))
        return float(np.logaddexp.reduce(values)) if values.size else -math.inf

    @cached_property
    def mu(self) -> dict[Ids, float]:
        """``mu*``: the model's own distribution conditioned on the language."""
        return {ids: math.exp(log_p - self.log_phi) for ids, log_p in self.log_p.items()}

    @property
    def log_mask(self) -> dict[Ids, float]:
        """``log mu_proj(y)``: the distribution of plain masking, ``h = 1``."""
        return self.log_q[LocalPhi.name]

    @cached_property
    def mask(self) -> dict[Ids, float]:
        """``mu_proj``: the distribution of plain masking (below 1 in total where truncation empties a step)."""
        return self.distribution(LocalPhi.name)

    def distribution(self, name: str) -> dict[Ids, float]:
        """Return ``q_h`` of the estimator that was enumerated as ``name``."""
        return {ids: math.exp(log_q) for ids, log_q in self.log_q[name].items()}


def count_prefixes(table: Table, budget: int, limit: int) -> int | None:
    """Return the number of live prefixes of a language, members left out; ``None`` where there are more than ``limit``."""
    total, level = 1, Counter({table.start: 1})
    for remaining in range(budget, 0, -1):
        below: Counter[int] = Counter()
        for state, count in level.items():
            targets = table.moves(state, remaining).targets
            for target, times in zip(*np.unique(targets[targets != DONE], return_counts=True), strict=True):
                below[int(target)] += count * int(times)
        total, level = total + below.total(), below
        if total > limit:
            return None
    return total


def enumerate_language(
    lm: LanguageModel,
    table: Table,
    prompt: Sequence[int],
    settings: SamplingSettings,
    budget: int,
    *,
    estimators: Mapping[str, ProposalPhi] | None = None,
    start: int | None = None,
    max_prefixes: int = 100_000,
) -> Reference:
    """Return the exact distributions over a language after ``prompt``, level by level; members have ``budget`` tokens at most.

    ``estimators`` are those whose proposals ``q_h`` are computed, by name; plain masking alone by default. ``start`` is the guide
    state of the prompt, by default that of the table. An :class:`UnsupportedError` for more than ``max_prefixes`` prefixes.
    """
    chosen = {LocalPhi.name: LocalPhi()} if estimators is None else estimators
    branches = Branches(lm, [prompt])
    run = SampledRun(
        lm=lm,
        table=table,
        settings=settings,
        prompts=[tuple(prompt)],
        budgets=[budget],
        branches=branches,
        stream=lambda row: np.random.default_rng((settings.seed or 0, row)),
    )
    estimates = [phi.begin(run) for phi in chosen.values()]
    logits = branches.plant()
    level, seen = [_Prefix((), table.start if start is None else start, 0, np.zeros(1 + len(estimates)))], 1
    members: dict[Ids, list[float]] = {}
    for remaining in range(budget, 0, -1):
        below: list[_Prefix] = []
        for part in (level[begin : begin + ROWS] for begin in range(0, len(level), ROWS)):
            nodes = [0]
            if remaining < budget:
                nodes = [branches.trees.next_node + i for i in range(len(part))]
                logits = branches.evaluate([(prefix.parent, prefix.ids[-1]) for prefix in part])
            here = Prefixes(
                rows=[0] * len(part),
                nodes=nodes,
                states=[prefix.state for prefix in part],
                remaining=[remaining] * len(part),
                tokens=[list(prefix.ids) for prefix in part],
            )
            log_p = run.log_p(logits.whole(), zip(here.rows, here.tokens, strict=True))
            steps = [log_p.double().cpu().numpy(), *(_log_q(estimate.scores(log_p, here)) for estimate in estimates)]
            for row, prefix in enumerate(part):
                moves = table.moves(prefix.state, remaining)
                logs = prefix.logs + np.stack([step[row, moves.tokens] for step in steps], axis=1)
                for i in np.flatnonzero(logs[:, 0] > -math.inf).tolist():
                    ids, target = (*prefix.ids, int(moves.tokens[i])), int(moves.leads[moves.classes[i]])
                    if target == DONE:
                        members[ids] = logs[i].tolist()
                    else:
                        below.append(_Prefix(ids, target, nodes[row], logs[i]))
            if seen + len(below) > max_prefixes:
                raise UnsupportedError(
                    f"The language has more than {max_prefixes} prefixes; give a smaller one or a larger max_prefixes."
                )
        seen, level = seen + len(below), below
    log_p_of, *log_q = ({ids: logs[i] for ids, logs in members.items()} for i in range(1 + len(estimates)))
    return Reference(log_p_of, dict(zip(chosen, log_q, strict=True)))


class _Prefix(NamedTuple):
    """A live prefix, the node of the one before it, and its ``log p`` and each ``log q_h``."""

    ids: Ids
    state: int
    parent: int
    logs: NDArray[np.float64]


def _log_q(scores: Tensor) -> NDArray[np.float64]:
    """Return ``log q(v|y)`` of ``log p + log h``, ``-inf`` throughout where the estimator allows nothing."""
    wide = scores.double()
    log_s = torch.logsumexp(wide, -1, keepdim=True)
    return (wide - log_s).masked_fill(log_s == -torch.inf, -torch.inf).cpu().numpy()


@final
@dataclass(frozen=True)
class CertifiedWalk(ProposalPhi):
    """``h = U``, the upper bounds of an enumerated tree, 1 below it: ``ExactPhi(tolerance=...)`` step by step."""

    tolerance: float
    max_tokens: int = 20_000
    seconds: float | None = None
    name: ClassVar[str] = "certified walk"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def begin(self, run: SampledRun) -> WalkEstimate:
        """Enumerate the tree of every prompt; see :meth:`ProposalPhi.begin`. A BudgetError where the tolerance is not reached."""
        trees = [BoundsTree(run.table, budget) for budget in run.budgets]
        evaluator = Evaluator(run.lm, run.settings, run.prompts, trees)
        with limited(self.seconds) as watch:
            expand_usual(trees, evaluator)
            reached = enumerate_together(trees, evaluator, self.tolerance, self.max_tokens)
            if not all(reached):
                used = watch.end_of(f"its {self.max_tokens} model tokens were used")
                raise BudgetError.of(
                    "Give a larger tolerance or effort",
                    f"Enumeration did not reach tolerance={self.tolerance} when {used}",
                )
        return WalkEstimate(LocalPhi().begin(run), [tree.root for tree in trees])


@final
@dataclass(frozen=True)
class WalkEstimate(Estimate):
    """The roots of the enumerated trees of a run, and masking in it."""

    mask: Estimate
    roots: Sequence[Node]

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        """See :meth:`Estimate.scores`."""
        scores = self.mask.scores(log_p, prefixes)
        for row, root, tokens in zip(scores, map(self.roots.__getitem__, prefixes.rows), prefixes.tokens, strict=True):
            node: Node | None = root
            for token in tokens:
                node = node.children.get(token) if node is not None else None
            for token, child in (node.children if node is not None else {}).items():
                row[token] += child.log_upper
        return scores
