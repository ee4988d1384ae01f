"""Tokens drawn ahead of the nodes of a model call: what is read of their distributions, in one transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

    ``nodes``: the nodes, and ``rows`` those of ``logits`` that are theirs.
    ``log_p``: ``log p``, ``[n, V]``, of the logits of some of the nodes, by their places.
    """

    table: Table
    nodes: Sequence[Node]
    rows: Sequence[int]
    log_p: Callable[[Sequence[int], Tensor], Tensor]

    def draw(self, logits: Rows, uniforms: Sequence[NDArray[np.float64]]) -> list[TokensAhead]:
        """Return the tokens drawn ahead of each node, by the :func:`numbers` of each."""
        eos = self.table.vocabulary.eos_ids[0]
        ends = [self.table.can_end(node.state, node.remaining) for node in self.nodes]
        named = [
            list(dict.fromkeys([*node.children, *([eos] if end else [])]))
            for node, end in zip(self.nodes, ends, strict=True)
        ]
        n, size, few = len(self.nodes), logits.matrix.shape[-1], together(logits.matrix)
        blocks = [range(start, min(start + few, n)) for start in range(0, n, few)]
        at = [place % few * size + token for place in range(n) for token in named[place]]
        sent = torch.from_numpy(np.concatenate([*uniforms, at])).to(logits.matrix.device)
        quantiles = sent[: n * AHEAD].view(n, AHEAD)
        taken = sent[n * AHEAD :].long().split([sum(len(named[place]) for place in some) for some in blocks])
        parts = list[Tensor]()
        for some, where in zip(blocks, taken, strict=True):
            scores = self._masked(some, self.log_p(some, logits.take([self.rows[place] for place in some])))
            parts.append(scores.view(-1)[where].double())
            scores.view(-1)[where] = -math.inf
            parts.append(draw_ahead(scores, quantiles[some.start : some.stop]).view(-1))
        read = torch.cat(parts[::2] + parts[1::2]).tolist()  # the one transfer
        log_named, drawn = iter(read), read[sum(map(len, named)) :]
        found = []
        for place, (node, end) in enumerate(zip(self.nodes, ends, strict=True)):
            tokens, log_p, log_rest = _split(drawn[place * (2 * AHEAD + 1) : (place + 1) * (2 * AHEAD + 1)])
            found.append(
                TokensAhead(
                    dict(zip(named[place], log_named, strict=False)),
                    {token: x for token, x in zip(tokens, log_p, strict=True) if x > -math.inf},
                    math.exp(log_rest),
                    can_end=end,
                    ending=self.table.guide.open and node.remaining <= 1,
                )
            )
        return found

    def _masked(self, places: Sequence[int], log_p: Tensor) -> Tensor:
        """Return ``log_p``, ``[n, V]``, with ``-inf`` where a token is not live."""
        nodes = [self.nodes[place] for place in places]
        return add_rows(log_p, [self.table.bias(node.state, node.remaining, log_p.device) for node in nodes], out=log_p)


def _split(row: Sequence[float]) -> tuple[list[int], Sequence[float], float]:
    return list(map(int, row[:AHEAD])), row[AHEAD:-1], row[-1]
