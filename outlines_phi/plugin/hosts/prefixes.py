"""Where the sequences of a host's loop stand: a function of the ids that the host passes, never of the order of calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...guides.guide import DEAD, DONE
from ...guides.table import Table
from ...vocabulary.classes import EOS, Partition


@final
class Step(NamedTuple):
    """What is known of the law of the next token after a prefix ``y``.

    Attributes
    ----------
    log_s
        ``log S(y) = log sum_v p(v|y) h(yv)``, in nats.
    log_h
        ``[G]``: ``log h`` of each vocabulary class, ``-inf`` where it is not live.
    class_of
        ``[V]``: the class of each token.
    """

    log_s: float
    log_h: NDArray[np.float32]
    class_of: NDArray[np.int32]

    def log_w(self, token: int) -> float:
        """Return ``log p(v|y) - log q(v|y) = log S(y) - log h(yv)``, ``-inf`` where ``v`` is never drawn."""
        log_h = float(self.log_h[self.class_of[token]])
        return self.log_s - log_h if log_h > -math.inf else -math.inf


@final
class Representatives:
    """One token of each vocabulary class, to read from what is known of tokens what holds of classes."""

    def __init__(self) -> None:
        self._first: WeakKeyDictionary[Partition, NDArray[np.int64]] = WeakKeyDictionary()

    def log_h(self, partition: Partition, log_p: Tensor, scores: Tensor) -> NDArray[np.float32]:
        """Return ``[G]``: ``scores - log_p`` of each class; ``-inf`` where no member of it has any ``p``."""
        if partition not in self._first:
            first = np.zeros(partition.size, dtype=np.int64)
            first[partition.class_of[::-1]] = np.arange(len(partition.class_of))[::-1]  # the last write wins
            self._first[partition] = first
        tokens = self._first[partition]
        p_of, score_of = (x[torch.from_numpy(tokens).to(x.device)].cpu().numpy() for x in (log_p, scores))
        lost = p_of == -math.inf
        log_h = np.full(partition.size, -math.inf, dtype=np.float32)
        log_h[~lost] = (score_of - np.where(lost, 0.0, p_of))[~lost]
        if lost[EOS:].any():  # truncation may spare another member of the class
            left = torch.nonzero(log_p > -math.inf)[:, 0]
            log_h[partition.class_of[left.cpu().numpy()]] = (scores[left] - log_p[left]).cpu().numpy()
        return log_h


@final
class Prefix:
    """A sequence of generated tokens ``y``.

    Attributes
    ----------
    state, length
        The guide state after ``y``, and how many tokens it has.
    children
        The longer prefixes that were seen.
    log_w
        ``log p(y) - log q(y)``; ``nan`` where the law of a step is not known.
    step
        The law of the next token, where the host has asked for it.
    """

    __slots__ = ("children", "length", "log_w", "state", "step")

    def __init__(self, state: int, length: int, log_w: float) -> None:
        self.state, self.length, self.log_w = state, length, log_w
        self.children: dict[int, Prefix] = {}
        self.step: Step | None = None


@final
class Prefixes:
    """The prefixes of one generation, by what the host passes: prompt and generated tokens in one row of ids.

    Beams, rejected drafts and reordered batches come down to visiting other prefixes. The prompt is what the rows hold
    at the first call. A new generation is told by its rows: they do not go on where the host has asked before.

    Parameters
    ----------
    table
        What is allowed.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.forget()

    def forget(self) -> None:
        """Wait for the first call of a generation."""
        self._seen: Tensor | None = None
        self._prompt_length = 0
        self._roots: dict[tuple[int, ...], Prefix] = {}
        self.last: list[Prefix] = []
        self.in_order = True

    def visit(self, rows: Tensor) -> list[Prefix]:
        """Return the prefix of each row of ``[B, prompt + generated]`` ids.

        Rows that go on where no call has been are a new generation, as are rows that are the prompts again. Where a
        prompt is an earlier prompt with exactly what was written after it, nothing tells them apart: call
        :meth:`forget` in between.
        """
        seen, self._seen = self._seen, rows.clone()
        if seen is not None and seen.shape == rows[:, :-1].shape and torch.equal(seen, rows[:, :-1]):
            self.last = [self._next(node, token) for node, token in zip(self.last, rows[:, -1].tolist(), strict=True)]
            return self.last
        found = self._continued(rows.tolist())
        self.last = self._begin(rows) if found is None else found
        self.in_order = found is None
        return self.last

    def find(self, row: Sequence[int]) -> tuple[Prefix, list[int]] | None:
        """Return the longest visited prefix of a row of ids, and the ids after it; ``None`` for an unknown prompt."""
        node = self._roots.get(tuple(row[: self._prompt_length]))
        if node is None:
            return None
        generated = list(row[self._prompt_length :])
        while generated and generated[0] in node.children:
            node = node.children[generated.pop(0)]
        return node, generated

    def _begin(self, rows: Tensor) -> list[Prefix]:
        self._prompt_length = rows.shape[1]
        self._roots = {}
        return [
            self._roots.setdefault(tuple(row), Prefix(self._table.start_after(row), 0, 0.0)) for row in rows.tolist()
        ]

    def _continued(self, rows: list[list[int]]) -> list[Prefix] | None:
        """Return the prefixes of rows that continue this generation; ``None`` where they begin another one."""
        nodes, finished, leaps = [], 0, False
        for row in rows:
            found = self.find(row) if len(row) > self._prompt_length else None
            if found is None:
                return None
            node, rest = found
            leap = len(rest) > 1
            for token in rest:
                # A finished row is filled up with one id; anything else after an end is a new prompt.
                if leap and node.state == DONE and token != rest[-1]:
                    return None
                node = self._next(node, token)
            if leap and node.state == DEAD:
                return None
            leaps, finished = leaps or leap, finished + (node.state == DONE)
            nodes.append(node)
        return None if leaps and finished == len(rows) else nodes

    def _next(self, node: Prefix, token: int) -> Prefix:
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = Prefix(self._after(node.state, token), node.length + 1, math.nan)
        # Anew at every visit: an assistant's law, or that of a trial run, is replaced by the model's own.
        if node.state == DONE:
            child.log_w = node.log_w
        elif node.step is not None:
            child.log_w = node.log_w + node.step.log_w(token)
        return child

    def _after(self, state: int, token: int) -> int:
        if state == DONE:
            return DONE
        # A prompt may hold ids that the model reads and cannot write.
        return self._table.guide.advance(state, token) if token < len(self._table.vocabulary) else DEAD
