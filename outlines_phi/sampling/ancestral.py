"""Token by token from ``q_h``, with the weight of every draw (mathematics.md, sections 1 and 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from ..guides.guide import DONE
from ..lm.model import Evaluation, ModelCounts, TokenTrees
from ..phi.constraint import Constraint
from ..phi.estimator import StepPhi
from .draws import Draw, DrawCounts, Draws, Guarantee
from .sampler import Request, Sampler

TOGETHER = 512
"""Prefixes that grow at a time: a tree's attention costs as the square of its nodes."""


class Observer(Protocol):
    """Sees the law of every step of every trajectory; the draws are the same with or without one."""

    def step(
        self,
        draws: Sequence[tuple[int, int]],
        laws: Sequence[int],
        tokens: Sequence[int],
        log_p: Tensor,
        scores: Tensor,
    ) -> None:
        """Take note of one step of some trajectories.

        Parameters
        ----------
        draws
            Prompt and number of each trajectory.
        laws
            The row of ``log_p`` and ``scores`` that each stands on.
        tokens
            What each takes there; meaningless where its row of ``scores`` is ``-inf`` throughout, which ends the trajectory.
        log_p, scores
            ``[laws, V]``: ``log p(v|y)``, and ``log p(v|y) + log h(yv)``.
        """


@dataclass(eq=False)
class Trajectory:
    """One draw in the making."""

    row: int
    number: int
    rng: np.random.Generator
    node: int
    state: int
    remaining: int
    tokens: list[int] = field(default_factory=list)
    log_p: float = 0.0
    log_q: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the end of sequence was written, or no token was allowed."""
        return self.state == DONE or self.failed

    @property
    def failed(self) -> bool:
        """Whether no allowed token had any probability, or the constraint ruled it out: a draw of weight 0."""
        return self.log_q == -math.inf


@final
@dataclass(frozen=True)
class AncestralSampler(Sampler):
    """Draws ``v ~ q_h(v|y) = p(v|y) h(yv) / S(y)`` step by step; ``log_w = sum_t [log S(y_t) - log h(y_{t+1})]``.

    ``E[w] = Phi(prompt)`` for any ``h`` that is positive where ``Phi`` is, trajectories without an allowed token counting
    with weight 0. Equal prefixes are evaluated once.

    Attributes
    ----------
    phi
        The estimator, ``h``.
    observer
        Who is told of every step; ``None`` for nobody.
    """

    phi: StepPhi
    observer: Observer | None = None

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`."""
        trees, walks = request.lm.trees(request.prompts), _launch(request)
        for _ in self._steps(request, trees, walks):
            pass
        return [
            _draws(request, [walk for walk in walks if walk.row == row], request.budgets[row], trees.counts)
            for row in range(len(request.prompts))
        ]

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that grew after every model call.

        A token is final when it is drawn: a trajectory only ever grows.
        """
        return self._steps(request, request.lm.trees(request.prompts), _launch(request))

    def _steps(
        self, request: Request, trees: TokenTrees, walks: Sequence[Trajectory]
    ) -> Iterator[Sequence[Trajectory]]:
        self._step(request, walks, trees.roots())
        yield walks
        groups = _groups(walks)
        while groups:
            group = groups.pop()
            self._step(request, group, _extend(trees, group))
            yield group
            below = _groups(group)
            groups += below
            if not below:
                trees.compact([walk.node for waiting in groups for walk in waiting])

    def _step(self, request: Request, walks: Sequence[Trajectory], evaluation: Evaluation) -> None:
        """Draw the next token of every trajectory from the law of the node it stands on."""
        heads: dict[int, Trajectory] = {}
        for walk in walks:
            heads.setdefault(walk.node, walk)
        rows = torch.tensor([node - evaluation.nodes[0] for node in heads])
        logits = evaluation.logits[rows.to(evaluation.logits.device)]
        contexts = ((*request.prompts[walk.row], *walk.tokens) for walk in heads.values())
        log_p = request.settings.log_p(logits, request.lm.vocabulary, contexts)
        states = [walk.state for walk in heads.values()]
        remaining = [walk.remaining for walk in heads.values()]
        scores = self.phi.add_log_h(log_p.clone(), request.table, states, remaining).double()
        log_s = torch.logsumexp(scores, -1, keepdim=True)
        log_q = scores - log_s  # nan where nothing is allowed; those rows are failed below
        position = {node: i for i, node in enumerate(heads)}
        laws = [position[walk.node] for walk in walks]
        tokens = _inverse_cdf(log_q, laws, [walk.rng.random() for walk in walks])
        if self.observer is not None:
            self.observer.step([(walk.row, walk.number) for walk in walks], laws, tokens.tolist(), log_p, scores)
        index = torch.tensor(laws, device=log_q.device)
        chosen = torch.stack([log_p.double()[index, tokens], log_q[index, tokens]]).cpu().tolist()
        alive = (log_s[:, 0] > -math.inf)[index].cpu().tolist()
        for walk, token, alone, log_p_v, log_q_v in zip(walks, tokens.tolist(), alive, *chosen, strict=True):
            if not alone:
                walk.log_q = -math.inf
                continue
            walk.log_p, walk.log_q = walk.log_p + log_p_v, walk.log_q + log_q_v
            walk.tokens.append(token)
            walk.state = request.table.guide.advance(walk.state, token)
            walk.remaining -= 1
            if request.constraint is not None and not _allowed(request.constraint, walk):
                walk.log_q = -math.inf


def _allowed(constraint: Constraint, walk: Trajectory) -> bool:
    finished = walk.state == DONE
    return constraint.allows(walk.tokens[:-1] if finished else walk.tokens, finished=finished)


def _launch(request: Request) -> list[Trajectory]:
    """Return the trajectories of every prompt, at the start."""
    return [
        Trajectory(row, i, request.stream(row, i), node=row, state=request.table.start, remaining=request.budgets[row])
        for row in range(len(request.prompts))
        for i in range(request.n)
    ]


def _inverse_cdf(log_q: torch.Tensor, index: Sequence[int], uniform: Sequence[float]) -> torch.Tensor:
    """Return one token per entry of ``index``, drawn in float64 from the row of ``log_q`` that it names."""
    place, width = [], [0] * len(log_q)
    for row in index:
        place.append((row, width[row]))
        width[row] += 1
    rows, columns = torch.tensor(place, device=log_q.device).T
    # One row of thresholds per law, so that no law is copied for the trajectories that share it.
    thresholds = torch.zeros(len(log_q), max(width), dtype=torch.float64, device=log_q.device)
    thresholds[rows, columns] = torch.tensor(uniform, dtype=torch.float64, device=log_q.device)
    cumulative = torch.cumsum(log_q.exp().nan_to_num(0.0), -1)
    found = torch.searchsorted(cumulative, thresholds * cumulative[:, -1:], right=True)
    last = cumulative.shape[-1] - 1 - torch.argmax((log_q > -math.inf).flip(-1).int(), -1)
    return torch.minimum(found, last[:, None])[rows, columns]


def _groups(walks: Sequence[Trajectory]) -> list[list[Trajectory]]:
    """Return the trajectories that go on, in groups of few prefixes; no prefix is in two groups, so none is evaluated twice."""
    prefixes: dict[tuple[int, int], list[Trajectory]] = {}
    for walk in walks:
        if not walk.finished:
            prefixes.setdefault((walk.node, walk.tokens[-1]), []).append(walk)
    sharing = list(prefixes.values())
    starts = range(0, len(sharing), TOGETHER)
    return [[walk for same in sharing[i : i + TOGETHER] for walk in same] for i in starts]


def _extend(trees: TokenTrees, walks: Sequence[Trajectory]) -> Evaluation:
    """Evaluate every distinct prefix that the trajectories stand on, and put them on the new nodes."""
    new: dict[tuple[int, int], int] = {}
    for walk in walks:
        key = (walk.node, walk.tokens[-1])
        walk.node = new.setdefault(key, trees.next_node + len(new))
    return trees.extend([parent for parent, _ in new], [token for _, token in new])


def _draws(request: Request, walks: Sequence[Trajectory], budget: int, counts: ModelCounts) -> Draws:
    vocabulary = request.table.vocabulary
    items = tuple(
        Draw.of(
            vocabulary,
            walk.tokens,
            log_p=walk.log_p,
            log_w=walk.log_p - walk.log_q,
            guarantee=Guarantee.WEIGHTED,
        )
        for walk in walks
        if not walk.failed
    )
    finished = DrawCounts(**vars(counts), attempts=len(walks), accepted=len(items))
    return Draws(items=items, counts=finished, budget=budget, failures=len(walks) - len(items))
