"""Token trees in one cache: all nodes of a prompt share its row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UnsupportedError
from ..forest import ForestTrees, grown
from .forward import Forward
from .slots import Layout, SlotCache, TreeMask, eightfold, windows


@final
class PackedTrees(ForestTrees):
    """Token trees of many prompts in one key-value cache, one batch row per prompt.

    Prompts are left padded; every node has a slot of its own in its prompt's row and sees the prompt, its ancestors
    and itself, at position ``prompt length + depth - 1``. A call appends nodes of any prompts, padded to the prompt
    with most of them; prompts without new nodes take no part.
    A call is split, parents first, where logits and masks would take more than ``forward.memory`` bytes.

    ``gap``: slots that stay empty between prompts and nodes. Nothing depends on it where the model goes by positions, as it
        should; one that counts slots is found out.
    """

    def __init__(self, forward: Forward, prompts: Sequence[Sequence[int]], *, gap: int = 0) -> None:
        super().__init__(prompts, forward.size, forward.max_length)
        self._forward = forward
        # Each look at these walks over the model's parameters, or its configuration.
        self._device, self._dtype, self._heads = forward.device, forward.dtype, forward.heads_in_memory
        if forward.attention == "flex_attention":
            raise UnsupportedError("flexible attention takes no mask of its own for every slot")
        lengths = self._forest.prompt_lengths
        self._base = eightfold(int(lengths.max()) + gap)
        self._mask = TreeMask(lengths, self._base, windows(forward.config))
        self._used = np.zeros(len(lengths), dtype=np.int64)  # [P] node slots in use
        self._slot = np.full(len(lengths), -1, dtype=np.int64)  # per handle: its node slot, -1 for a root
        self.cache = SlotCache(len(lengths), self._base)

    def _begin(self, nodes: range) -> Tensor:
        new = np.arange(len(self._used), nodes.stop)
        self._slot = grown(self._slot, nodes.stop)
        if len(new) and self._fits_with_prompts(new):
            return self._call_with_prompts(new)
        logits = self._call_prompts()
        return torch.cat([logits, self._evaluate(new)]) if len(new) else logits

    def _grow(self, nodes: range) -> Tensor:
        if not nodes:
            return torch.empty(0, self._forward.size, dtype=self._dtype, device=self._device)
        used = self._used.copy()
        self._slot = grown(self._slot, nodes.stop)
        try:
            return self._evaluate(np.arange(nodes.start, nodes.stop))
        except BaseException:  # the slots written so far are free again, and will be overwritten
            self._used = used
            raise

    def compact(self, keep: Sequence[int]) -> None:
        live = self._forest.retain(keep)[len(self._forest.prompts) :]
        if len(live) == self._used.sum():
            return
        row, slot = self._forest.row[live], self._slot[live]
        kept = [np.sort(slot[row == prompt]) for prompt in range(len(self._used))]
        self._used = np.array([len(slots) for slots in kept], dtype=np.int64)
        columns = np.zeros((len(kept), self._base + self._used.max()), dtype=np.int64)
        columns[:, : self._base] = np.arange(self._base)
        for prompt, slots in enumerate(kept):
            columns[prompt, self._base : self._base + len(slots)] = self._base + slots
            mine = live[row == prompt]
            self._slot[mine] = np.searchsorted(slots, self._slot[mine])
        self._mask.select(kept)
        self.cache.select(self._to(columns))

    def _prompts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the left-padded prompts ``[P, L]`` and the position of each of their columns, negative in the padding."""
        lengths = self._forest.prompt_lengths
        tokens = np.zeros((len(lengths), lengths.max()), dtype=np.int64)
        for row, prompt in enumerate(self._forest.prompts):
            tokens[row, -len(prompt) :] = prompt
        return tokens, np.arange(tokens.shape[1]) - (lengths.max() - lengths)[:, None]

    def _call_prompts(self) -> Tensor:
        """Evaluate the prompts alone; return the logits after each."""
        tokens, positions = self._prompts()
        # The model makes its own causal masks here, so that a prompt is evaluated as it would be anywhere else.
        logits, _ = self._forward(
            self._to(tokens),
            mask=self._to((positions >= 0).astype(np.int64)),
            positions=self._to(np.maximum(positions, 0)),
            cache=self.cache,
            last=1,
        )
        self.counts.calls += 1
        self.counts.prompt_tokens += int(self._forest.prompt_lengths.sum())
        return self._forward.checked(logits[:, -1])

    def _fits_with_prompts(self, nodes: NDArray[np.int64]) -> bool:
        """Return whether the prompts and ``nodes`` may share a call: masks and logits within the memory given."""
        length, most = int(self._forest.prompt_lengths.max()), int(np.bincount(self._forest.row[nodes]).max())
        columns = length + most
        scores = self._heads * columns * (self._base + eightfold(most))
        size = torch.finfo(self._dtype).bits // 8
        return len(self._used) * size * (scores + (most + 1) * self._forward.size) <= self._forward.memory

    def _call_with_prompts(self, nodes: NDArray[np.int64]) -> Tensor:
        """Evaluate the prompts and the first nodes in one model call; return their logits, the prompts' first."""
        row = self._forest.row[nodes]
        rank, everyone = ranks(row), np.arange(len(self._used))
        layout = Layout(everyone, np.tile(np.arange(rank.max() + 1), (len(everyone), 1)), (row, rank))
        node_tokens = self._place(nodes, layout)
        tokens, positions = self._prompts()
        length = tokens.shape[1]
        columns = np.concatenate([np.tile(np.arange(length), (len(everyone), 1)), self._base + layout.columns], axis=1)
        self.cache.aim(None, self._to(columns), self._base + layout.width)
        masks = self._mask.build(layout, dtype=self._dtype, device=self._device)
        above = self._mask.build_prompts(layout.width, length, dtype=self._dtype, device=self._device)
        masks = {kind: torch.cat([above[kind], mask], dim=2) for kind, mask in masks.items()}
        logits, _ = self._forward(
            self._to(np.concatenate([tokens, node_tokens], axis=1)),
            mask=masks if len(masks) > 1 else next(iter(masks.values())),
            positions=self._to(np.concatenate([np.maximum(positions, 0), self._mask.positions(layout)], axis=1)),
            cache=self.cache,
            last=1 + node_tokens.shape[1],
        )
        self.counts.calls += 1
        self.counts.prompt_tokens += int(self._forest.prompt_lengths.sum())
        self.counts.tokens += len(nodes)
        self._used[:] = np.bincount(row, minlength=len(everyone))
        places = np.concatenate([everyone, row]), np.concatenate([np.zeros_like(everyone), 1 + rank])
        return self._forward.checked(logits[tuple(self._to(index) for index in places)])

    def _evaluate(self, nodes: NDArray[np.int64]) -> Tensor:
        """Evaluate consecutive new nodes in as few calls as memory allows; return their logits ``[n, V]``."""
        row = self._forest.row[nodes]
        rank = ranks(row)
        pieces = self._pieces(row, rank)
        if pieces.max() == 0:
            return self._call(nodes, rank)
        logits = None
        for piece in range(pieces.max() + 1):
            part = np.flatnonzero(pieces == piece)
            answer = self._call(nodes[part], ranks(row[part]))
            if logits is None:
                logits = answer.new_empty(len(nodes), answer.shape[1])
            logits[self._to(part)] = answer
        assert logits is not None
        return logits

    def _pieces(self, row: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the call, from 0, that each node belongs to; parents come first or together."""
        slots = self._base + eightfold(int((self._used[row] + rank).max()) + 1)
        size = torch.finfo(self._dtype).bits // 8
        places = max(1, self._forward.memory // (size * (self._forward.size + self._heads * slots)))
        if (rank.max() + 1) * len(self._used) <= places:
            return np.zeros(len(row), dtype=np.int64)
        rows, where = np.unique(row, return_inverse=True)
        together = min(len(rows), places)  # prompts per call
        length = rank // max(1, places // together)  # which stretch of its prompt's nodes
        keys = (where // together) * (length.max() + 1) + length
        return np.unique(keys, return_inverse=True)[1]

    def _call(self, nodes: NDArray[np.int64], rank: NDArray[np.int64]) -> Tensor:
        """Evaluate ``nodes``, each the ``rank``-th new one of its prompt, in one model call."""
        forward = self._forward
        layout = Layout.of(self._forest.row[nodes], rank, self._used)
        tokens = self._place(nodes, layout)
        everyone = len(layout.rows) == len(self._used)
        rows = None if everyone else self._to(layout.rows)
        self.cache.aim(rows, self._slots(layout), self._base + layout.width)
        masks = self._mask.build(layout, dtype=self._dtype, device=self._device)
        logits, _ = forward(
            self._to(tokens),
            mask=masks if len(masks) > 1 else next(iter(masks.values())),
            positions=self._to(self._mask.positions(layout)),
            cache=self.cache,
        )
        self.counts.calls += 1
        self.counts.tokens += len(nodes)
        self._used[layout.rows] += np.bincount(layout.places[0])
        logits, flat = logits.flatten(0, 1), layout.flat
        if not np.array_equal(flat, np.arange(len(logits))):
            logits = logits.index_select(0, self._to(flat))
        return forward.checked(logits)

    def _place(self, nodes: NDArray[np.int64], layout: Layout) -> NDArray[np.int64]:
        """Give ``nodes`` the slots of ``layout`` and their lines of ancestors; return the tokens ``[r, n]`` of the call."""
        forest = self._forest
        self._slot[nodes] = layout.columns[layout.places]
        position = forest.prompt_lengths[forest.row[nodes]] + forest.depth[nodes] - 1
        self._mask.append(layout, self._slot[forest.parent[nodes]], position)
        tokens = np.zeros(layout.columns.shape, dtype=np.int64)
        tokens[layout.places] = forest.token[nodes]
        return tokens

    def _slots(self, layout: Layout) -> Tensor | slice:
        """Return where the rows of ``layout`` are written."""
        base, stretch = self._base, layout.stretch
        if stretch is None or len(layout.rows) < len(self._used):
            return self._to(base + layout.columns)
        return slice(base + stretch.start, base + stretch.stop)

    def _to(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def ranks(row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each entry, how many equal entries stand before it."""
    order = np.argsort(row, kind="stable")
    arranged, rank = row[order], np.empty(len(row), dtype=np.int64)
    rank[order] = np.arange(len(row)) - arranged.searchsorted(arranged)
    return rank
