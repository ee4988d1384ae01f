"""Tokens drawn ahead of the nodes of a model call: what is read of their distributions, in one transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...guides.table import Table
from ...numerics.distributions import Rows, add_rows, draw_ahead, together
from .distribution import TokensAhead
from .tree import Node

MANY = 4096
"""Of a node with more live tokens than this some are drawn ahead, where that will do: all others are never read from the device."""

AHEAD = 16
"""Tokens drawn ahead of a node. One whose tokens are used up is evaluated a second time, and then held whole."""


def is_wide(node: Node, table: Table) -> bool:
    """Return whether tokens are to be drawn ahead of a node: a new one, no prompt, with many live tokens."""
    return node.parent is not None and not node.expanded and table.live_count(node.state, node.remaining) > MANY


def numbers(stream: np.random.Generator) -> NDArray[np.float64]:
    """Return the random numbers that the tokens drawn ahead of a node take."""
    return stream.random(AHEAD)


@final
@dataclass(frozen=True)
class WideNodes:
    """Nodes of one model call whose distributions stay on the device.

    ``nodes``: the nodes, and ``rows`` those of the logits that are theirs.
    ``uniforms``: the :func:`numbers` of each.
    ``log_p``: ``log p``, ``[n, V]``, of the logits of some of the nodes.
    """

    table: Table
    nodes: Sequence[Node]
    rows: Sequence[int]
    uniforms: Sequence[NDArray[np.float64]]
    log_p: Callable[[Sequence[Node], Tensor], Tensor]

    @cached_property
    def _ends(self) -> list[bool]:
        return [self.table.can_end(node.state, node.remaining) for node in self.nodes]

    @cached_property
    def _named(self) -> list[list[int]]:
        """The tokens of each node whose probability is asked for by name: its children, and the end."""
        eos = self.table.vocabulary.eos_ids[0]
        pairs = zip(self.nodes, self._ends, strict=True)
        return [list(dict.fromkeys([*node.children, *([eos] if end else [])])) for node, end in pairs]

    def sent(self, logits: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return what the device needs of the host: the rows, where what is asked for by name stands in them, the uniforms."""
        size, few = logits.matrix.shape[-1], together(logits.matrix)
        at = [place % few * size + token for place, named in enumerate(self._named) for token in named]
        uniforms = np.array(self.uniforms, dtype=np.float64).reshape(-1, AHEAD)
        return np.array(logits.within(self.rows), dtype=np.int64), np.array(at, dtype=np.int64), uniforms

    def draw(self, logits: Rows, rows: Tensor, at: Tensor, quantiles: Tensor) -> Tensor:
        """Return what is to be read of the nodes, on the device, given what was :meth:`sent`."""
        if not self.nodes:
            return quantiles.new_empty(0)
        few = together(logits.matrix)
        blocks = [slice(start, start + few) for start in range(0, len(self.nodes), few)]
        taken = at.split([sum(map(len, self._named[here])) for here in blocks])
        named, drawn = list[Tensor](), list[Tensor]()
        for here, where in zip(blocks, taken, strict=True):
            scores = self._masked(here, self.log_p(self.nodes[here], logits.unchecked(self.rows[here], rows[here])))
            named.append(scores.view(-1)[where].double())
            scores.view(-1)[where] = -math.inf
            drawn.append(draw_ahead(scores, quantiles[here]).view(-1))
        return torch.cat(named + drawn)

    def tokens(self, read: Sequence[float]) -> Iterator[TokensAhead]:
        """Yield the tokens drawn ahead of each node, given what was read of all of them."""
        log_named, drawn = iter(read), read[sum(map(len, self._named)) :]
        for place, (node, end, named) in enumerate(zip(self.nodes, self._ends, self._named, strict=True)):
            tokens, log_p, log_rest = _split(drawn[place * (2 * AHEAD + 1) : (place + 1) * (2 * AHEAD + 1)])
            yield TokensAhead(
                dict(zip(named, log_named, strict=False)),
                {token: x for token, x in zip(tokens, log_p, strict=True) if x > -math.inf},
                math.exp(log_rest),
                can_end=end,
                ending=self.table.guide.open and node.remaining <= 1,
            )

    def _masked(self, part: slice, log_p: Tensor) -> Tensor:
        """Return ``log_p``, ``[n, V]``, with ``-inf`` where a token is not live."""
        biases = [self.table.bias(node.state, node.remaining, log_p.device) for node in self.nodes[part]]
        return add_rows(log_p, biases, out=log_p)


def _split(row: Sequence[float]) -> tuple[list[int], Sequence[float], float]:
    return list(map(int, row[:AHEAD])), row[AHEAD:-1], row[-1]
