"""Draws whose tokens an engine writes, one a step: what each of them writes next, and how it ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ..guides.guide import DONE
from ..guides.table import Table
from ..numerics.distributions import Distributions
from ..numerics.weights import log
from ..phi.tree.tree import BoundsTree
from .rejection.attempts import Attempt, descend


class Outcome(IntEnum):
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


class Account(NamedTuple):
    """What is known of a draw, in nats: ``log p``, and bounds of ``log Phi``; both are ``log_w`` where it has a weight."""

    log_p: float
    low: float
    high: float


class EngineWalk(ABC):
    """One draw. The engine writes its ``tokens``; where it has written all of them, :meth:`advance` says what follows."""

    tokens: Sequence[int] = ()
    outcome: Outcome = Outcome.UNDER_WAY

    @abstractmethod
    def advance(self, log_p: Callable[[], Tensor]) -> None:
        """Go on; ``log_p()`` is ``log p``, ``[V]``, of the token after those that there are."""

    @property
    @abstractmethod
    def account(self) -> Account:
        """What is known of the draw so far."""


@final
class ExactWalk(EngineWalk):
    """An attempt by rejection on a tree that other attempts share: it returns a member with ``p(y) / U_launch`` (theory.md, section
    5.3), whatever the others expand meanwhile.

    It chooses as far as the tree knows, and the engine writes what was chosen before it is asked for more.
    """

    def __init__(self, tree: BoundsTree, number: int, rng: np.random.Generator) -> None:
        self.tree, self.attempt = tree, Attempt(number, tree.root, rng)

    def advance(self, log_p: Callable[[], Tensor]) -> None:
        node = self.attempt.node
        if node.free is None:
            self.tree.expand(node, log_p().cpu().numpy())
            self.tree.propagate([node])
        found = descend(self.tree, self.attempt)
        self.tokens = self.attempt.node.tokens()
        if found is not None:
            possible = self.tree.root.upper > 0
            self.outcome = Outcome.MEMBER if found else Outcome.FAILED if possible else Outcome.NOWHERE

    @property
    def account(self) -> Account:
        """The bounds are those of the tree now."""
        return Account(self.attempt.node.log_p, *map(log, self.tree.bounds))


@final
class MaskedWalk(EngineWalk):
    """A draw of plain masking with its weight, ``log_w = sum_t log S(y_t)`` (theory.md, section 4.1).

    ``start``: The guide state in which the text begins, and ``budget`` the most tokens that it may have.
    """

    def __init__(self, table: Table, start: int, budget: int, rng: np.random.Generator) -> None:
        self._table, self._state, self._remaining, self._rng = table, start, budget, rng
        self.tokens: list[int] = []
        self._log_p = self._log_w = 0.0

    def advance(self, log_p: Callable[[], Tensor]) -> None:
        here = log_p()
        bias = self._table.bias(self._state, self._remaining, here.device)
        allowed = Distributions.of((here + bias)[None])
        # The numbers that a step of `Stepper` takes, so that a seed names the same text.
        quantile = torch.tensor([self._rng.random()], dtype=torch.float64, device=here.device)
        token = int(allowed.draw(torch.zeros(1, dtype=torch.long, device=here.device), quantile))
        log_s = float(allowed.log_s)
        if log_s == -np.inf:
            self.outcome = Outcome.NOWHERE
            return
        self._log_p, self._log_w = self._log_p + float(here[token]), self._log_w + log_s
        self.tokens.append(token)
        self._state = self._table.advance(self._state, token, self._remaining)
        self._remaining -= 1
        if self._state == DONE:
            self.outcome = Outcome.MEMBER

    @property
    def account(self) -> Account:
        return Account(self._log_p, self._log_w, self._log_w)


@final
class StoppedWalk(EngineWalk):
    """A draw that is over before its first token."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def advance(self, log_p: Callable[[], Tensor]) -> None:
        """Do nothing: it is over."""

    @property
    def account(self) -> Account:
        return Account(0.0, 0.0, 0.0)
