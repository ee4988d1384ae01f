"""Draws whose tokens an engine writes, one a step: what each of them writes next, and how it ends."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ....guides.guide import DONE
from ....guides.table import Table
from ....numerics.distributions import Distributions, add_rows
from ....phi.tree.tree import BoundsTree
from ....sampling.rejection.attempts import Attempt, descend


class WalkEnd(IntEnum):
    """What has become of a draw.

    ``MEMBER``: It is written whole.
    ``FAILED``: An attempt that the coin of thinning has ended.
    ``NOWHERE``: No token that is allowed has any probability; of an attempt: no member of the language has.
    ``EMPTY``, ``TOO_SHORT``: The language has no member after the prompt, or none within the length limit.
    ``BROKEN``: An error of the host, or of the model.
    ``ENDED``: It was over already.
    ``READY``: Nothing was asked for but whether anybody is there.
    """

    UNDER_WAY = 0
    MEMBER = 1
    FAILED = 2
    NOWHERE = 3
    EMPTY = 4
    TOO_SHORT = 5
    BROKEN = 6
    ENDED = 7
    READY = 8


class WalkAccount(NamedTuple):
    """What is known of a draw, in nats: ``log p``, and bounds of ``log Phi``; both are ``log_w`` where it has a weight."""

    log_p: float
    low: float
    high: float


class EngineWalk(ABC):
    """One draw. The engine writes its ``tokens``; where it has written all of them, :meth:`advance` says what follows."""

    tokens: Sequence[int] = ()
    outcome: WalkEnd = WalkEnd.UNDER_WAY

    @property
    @abstractmethod
    def place(self) -> Hashable | None:
        """What names the distribution that it needs to go on; ``None`` where it needs none."""

    @staticmethod
    @abstractmethod
    def advance(walks: Sequence[Any], log_p: Mapping[Hashable, Tensor]) -> None:
        """Let walks of this kind go on, in this order; ``log_p`` has ``[V]`` by :attr:`place`."""

    @property
    @abstractmethod
    def account(self) -> WalkAccount:
        """What is known of the draw so far."""


@final
class ExactWalk(EngineWalk):
    """An attempt by rejection on a tree that other attempts share: it returns a member with ``p(y) / U_launch`` (theory.md, section
    5.3), whatever the others expand meanwhile.

    It chooses as far as the tree knows, and the engine writes what was chosen before it is asked for more.
    """

    def __init__(self, tree: BoundsTree, number: int, rng: np.random.Generator) -> None:
        self.tree, self.attempt = tree, Attempt(number, tree.root, rng)

    @property
    def place(self) -> Hashable | None:
        return self.attempt.node if self.attempt.node.free is None else None

    @staticmethod
    def advance(walks: Sequence[ExactWalk], log_p: Mapping[Hashable, Tensor]) -> None:
        for walk in walks:
            tree, node = walk.tree, walk.attempt.node
            if node.free is None:
                tree.expand(node, log_p[node].cpu().numpy())
                tree.propagate([node])
            found = descend(tree, walk.attempt)
            walk.tokens = walk.attempt.node.tokens()
            if found is not None:
                possible = tree.root.log_upper > -math.inf
                walk.outcome = WalkEnd.MEMBER if found else WalkEnd.FAILED if possible else WalkEnd.NOWHERE

    @property
    def account(self) -> WalkAccount:
        """The bounds are those of the tree now."""
        return WalkAccount(self.attempt.node.log_p, *self.tree.log_bounds)


@final
class MaskedWalk(EngineWalk):
    """A draw of plain masking with its weight, ``log_w = sum_t log S(y_t)`` (theory.md, section 4.1).

    ``start``: The guide state in which the text begins, and ``budget`` the most tokens that it may have.
    """

    def __init__(self, table: Table, start: int, budget: int, rng: np.random.Generator) -> None:
        self._table, self._state, self._remaining, self._rng = table, start, budget, rng
        self.tokens: list[int] = []
        self._log_p = self._log_w = 0.0

    @property
    def place(self) -> Hashable | None:
        return self

    @staticmethod
    def advance(walks: Sequence[MaskedWalk], log_p: Mapping[Hashable, Tensor]) -> None:
        here = torch.stack([log_p[walk] for walk in walks])
        biases = [walk._table.bias(walk._state, walk._remaining, here.device) for walk in walks]
        allowed = Distributions.of(add_rows(here, biases, out=torch.empty_like(here)))
        # The numbers that a step of `Stepper` takes, so that a seed names the same text.
        quantiles = torch.tensor([walk._rng.random() for walk in walks], dtype=torch.float64, device=here.device)
        rows = torch.arange(len(walks), device=here.device)
        tokens = allowed.draw(rows, quantiles)
        drawn = torch.stack([tokens.double(), allowed.log_s, here[rows, tokens].double()], -1).tolist()
        for walk, (token, log_s, log_p_v) in zip(walks, drawn, strict=True):
            walk._take(int(token), log_s, log_p_v)

    def _take(self, token: int, log_s: float, log_p: float) -> None:
        if log_s == -np.inf:
            self.outcome = WalkEnd.NOWHERE
            return
        self._log_p, self._log_w = self._log_p + log_p, self._log_w + log_s
        self.tokens.append(token)
        self._state = self._table.advance(self._state, token, self._remaining)
        self._remaining -= 1
        if self._state == DONE:
            self.outcome = WalkEnd.MEMBER

    @property
    def account(self) -> WalkAccount:
        return WalkAccount(self._log_p, self._log_w, self._log_w)


@final
class StoppedWalk(EngineWalk):
    """A draw that is over before its first token."""

    def __init__(self, outcome: WalkEnd) -> None:
        self.outcome = outcome

    @property
    def place(self) -> Hashable | None:
        return None

    @staticmethod
    def advance(walks: Sequence[StoppedWalk], log_p: Mapping[Hashable, Tensor]) -> None:
        """Do nothing: they are over."""

    @property
    def account(self) -> WalkAccount:
        return WalkAccount(0.0, 0.0, 0.0)
