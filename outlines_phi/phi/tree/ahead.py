"""Tokens drawn ahead of the nodes of a model call: what is read of their distributions, in one transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...guides.table import Table
from ...numerics.distributions import add_rows, draw_ahead, together
from ...numerics.transfers import Exchange
from .distribution import TokensAhead
from .tree import Node

MANY = 4096
"""Of a node with more live tokens than this some are drawn ahead, where that will do: all others are never read from the device."""

AHEAD = 16
"""Tokens drawn ahead of a node. One whose tokens are used up is evaluated a second time, and then held whole."""


def is_wide(node: Node, table: Table) -> bool:
    """Return True if tokens are to be drawn ahead of a node: a new one, no prompt, with many live tokens."""
    return node.parent is not None and not node.expanded and table.live_count(node.state, node.remaining) > MANY


def numbers(stream: np.random.Generator) -> NDArray[np.float64]:
    """Return the random numbers that the tokens drawn ahead of a node take."""
    return stream.random(AHEAD)


@final
class WideNodes:
    """Nodes of one model call whose distributions stay on the device.

    ``nodes``: The nodes, with the :func:`numbers` of each.
    ``rows``: The rows of the answer that are theirs.
    ``log_p``: ``log p``, ``[n, V]``, of the logits of some of the nodes.
    """

    def __init__(
        self,
        table: Table,
        nodes: Mapping[Node, NDArray[np.float64]],
        rows: Sequence[int],
        log_p: Callable[[Sequence[Node], Tensor], Tensor],
        exchange: Exchange,
    ) -> None:
        self.nodes, self._nodes = nodes, list(nodes)
        self._table, self._log_p, self._logits = table, log_p, exchange.rows(rows)
        self._ends = [table.can_end(node.state, node.remaining) for node in self._nodes]
        # The tokens of each node whose probability is asked for by name: its children, and the end.
        eos, pairs = table.vocabulary.eos_ids[0], zip(self._nodes, self._ends, strict=True)
        self._named = [list(dict.fromkeys([*node.children, *([eos] if end else [])])) for node, end in pairs]
        self._few, size = together(exchange.answer.matrix), exchange.answer.matrix.shape[-1]
        at = [place % self._few * size + token for place, named in enumerate(self._named) for token in named]
        self._sent = exchange.send(np.array(at, dtype=np.int64), np.array([*nodes.values()]).reshape(-1, AHEAD))

    def draw(self) -> Tensor:
        """Return the scores to be read of the nodes, on the device."""
        if not self.nodes:
            return self._logits().new_empty(0, dtype=torch.float64)
        at, quantiles = self._sent()
        blocks = [slice(start, start + self._few) for start in range(0, len(self._nodes), self._few)]
        taken = at.split([sum(map(len, self._named[here])) for here in blocks])
        named, drawn = list[Tensor](), list[Tensor]()
        for here, where in zip(blocks, taken, strict=True):
            scores = self._masked(here, self._log_p(self._nodes[here], self._logits(here)))
            named.append(scores.view(-1)[where].double())
            scores.view(-1)[where] = -math.inf
            drawn.append(draw_ahead(scores, quantiles[here]).view(-1))
        return torch.cat(named + drawn)

    def tokens(self, read: Sequence[float]) -> Iterator[TokensAhead]:
        """Yield the tokens drawn ahead of each node, given what was read of all of them."""
        log_named, drawn = iter(read), read[sum(map(len, self._named)) :]
        for place, (node, end, named) in enumerate(zip(self._nodes, self._ends, self._named, strict=True)):
            row = drawn[place * (2 * AHEAD + 1) : (place + 1) * (2 * AHEAD + 1)]
            yield TokensAhead(
                dict(zip(named, log_named, strict=False)),
                {int(token): x for token, x in zip(row[:AHEAD], row[AHEAD:-1], strict=True) if x > -math.inf},
                row[-1],
                can_end=end,
                ending=self._table.guide.open and node.remaining <= 1,
            )

    def _masked(self, part: slice, log_p: Tensor) -> Tensor:
        """Return ``log_p``, ``[n, V]``, with ``-inf`` where a token is not live."""
        biases = [self._table.bias(node.state, node.remaining, log_p.device) for node in self._nodes[part]]
        return add_rows(log_p, biases, out=log_p)
