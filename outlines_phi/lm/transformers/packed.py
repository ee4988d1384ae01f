"""Token trees in one cache, whose rows hold whole paths: a prompt has one row, or as many as its tree is worth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import UnsupportedError
from ...numerics.distributions import Rows, send
from ..sequences import ForestTrees, grown
from .forward import Forward
from .slots import Layout, SlotCache, TreeMask, eightfold, windows


@final
class PackedTrees(ForestTrees):
    """Token trees of many prompts in one key-value cache, one batch row per prompt at first.

    Prompts are left padded; every node has a slot of its own in a row of its prompt and sees the prompt, its ancestors
    and itself, at position ``prompt length + depth - 1``. A call appends nodes of any rows, padded to the row
    with most of them; rows without new nodes take no part. Every node of a row is read for every new one. A row that has grown to
    more than twice of what a prompt, the longest path and ``room`` take is divided: the paths go to several rows, each with copies
    of what they share. What a node costs thus grows with the length of its path, not with the size of the tree.
    A call is split, parents first, where logits and masks would take more than ``forward.memory`` bytes.

    ``room``: slots of a row beyond those of a prompt and a path: neighbours share a row up to here, however short they are.
    ``gap``: slots that stay empty between prompts and nodes. Nothing depends on it where the model goes by positions, as it
        should; one that counts slots is found out.
    """

    def __init__(self, forward: Forward, prompts: Sequence[Sequence[int]], *, room: int = 256, gap: int = 0) -> None:
        super().__init__(prompts, forward.size, forward.max_length)
        self._forward, self._free = forward, room
        # Each look at these walks over the model's parameters, or its configuration.
        self._device, self._dtype = forward.hf_model.device, forward.hf_model.dtype
        self._heads = forward.heads_in_memory
        if forward.attention == "flex_attention":
            raise UnsupportedError("flexible attention takes no mask of its own for every slot")
        lengths = self._forest.prompt_lengths
        self._base = eightfold(int(lengths.max()) + gap)
        self._mask = TreeMask(lengths, self._base, windows(forward.hf_model.config))
        self._used = np.zeros(len(lengths), dtype=np.int64)  # [R] node slots in use
        self._row = np.arange(len(lengths))  # per handle: the row of the cache that its children go to,
        self._slot = np.full(len(lengths), -1, dtype=np.int64)  # and its node slot there, -1 for a root
        self._longest = 0  # tokens of a path after its prompt
        self.cache = SlotCache(len(lengths), self._base)

    def _begin(self, nodes: range) -> Rows:
        new = np.arange(len(self._used), nodes.stop)
        self._settle(nodes)
        if len(new) and self._fits_with_prompts(new):
            return self._call_with_prompts(new)
        parts = [self._call_prompts(), *([self._evaluate(new)] if len(new) else [])]
        return Rows.joined(parts, np.split(np.arange(nodes.stop), new[:1]))

    def _grow(self, nodes: range) -> Rows:
        self._settle(nodes)
        used = self._used.copy()
        try:
            return self._evaluate(np.arange(nodes.start, nodes.stop))
        except BaseException:  # the slots written so far are free again, and will be overwritten
            self._used = used
            raise

    def compact(self, keep: Sequence[int]) -> None:
        held = int(self._forest.alive[: len(self._forest)].sum())
        live = self._forest.retain(keep)
        if len(live) < held:
            self._arrange(live)

    def _settle(self, nodes: range) -> None:
        """Choose the rows of new nodes: those of their parents, divided before where they are crowded."""
        forest, count = self._forest, len(self._forest.prompts)
        self._row, self._slot = grown(self._row, nodes.stop), grown(self._slot, nodes.stop)
        new = slice(max(nodes.start, count), nodes.stop)
        self._longest = int(forest.depth[new].max(initial=self._longest))
        while True:
            self._row[new] = self._row[forest.parent[new]]
            for node in (new.start + np.flatnonzero(forest.parent[new] >= new.start)).tolist():
                self._row[node] = self._row[forest.parent[node]]
            wanted = self._used + np.bincount(self._row[new], minlength=len(self._used))
            if not ((self._used > self._room) & (wanted > 2 * self._room)).any():
                return
            self._arrange(np.flatnonzero(forest.alive[: new.start]))

    @property
    def _room(self) -> int:
        """The most node slots that a row may begin with."""
        return self._base + self._longest + self._free

    def _arrange(self, live: NDArray[np.int64]) -> None:
        """Keep ``live`` nodes and the prompts alone, in rows of whole paths."""
        forest, count = self._forest, len(self._forest.prompts)
        self._longest = int(forest.depth[live].max())
        live = live[np.argsort(forest.row[live], kind="stable")]
        trees = np.split(live, np.searchsorted(forest.row[live], np.arange(1, count)))
        rows = [
            (prompt, part) for prompt, tree in enumerate(trees) for part in divided(forest.parent, tree, self._room)
        ]
        self._used = np.array([len(part) for _, part in rows], dtype=np.int64)
        of, most = np.array([self._row[prompt] for prompt, _ in rows]), int(self._used.max())
        from_row, columns = (
            np.tile(of[:, None], self._base + most),
            np.zeros((len(rows), self._base + most), dtype=np.int64),
        )
        columns[:, : self._base] = np.arange(self._base)
        parents, positions = np.full((len(rows), most), -1), np.zeros((len(rows), most), dtype=np.int64)
        for row, (prompt, part) in enumerate(rows):
            here = slice(self._base, self._base + len(part))
            from_row[row, here], columns[row, here] = self._row[part], self._base + self._slot[part]
            above = np.searchsorted(part, forest.parent[part])
            parents[row, : len(part)] = np.where(forest.parent[part] < count, -1, above)
            positions[row, : len(part)] = forest.prompt_lengths[prompt] + forest.depth[part] - 1
        for row, (prompt, part) in reversed(list(enumerate(rows))):  # What has copies has its place in the first
            self._row[prompt] = self._row[part] = row
            self._slot[part] = np.arange(len(part))
        self._mask.arrange(of, parents, positions)
        self.cache.select(*send(self._device, from_row, columns))

    def _prompts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the left-padded prompts ``[P, L]`` and the position of each of their columns, negative in the padding."""
        lengths = self._forest.prompt_lengths
        tokens = np.zeros((len(lengths), lengths.max()), dtype=np.int64)
        for row, prompt in enumerate(self._forest.prompts):
            tokens[row, -len(prompt) :] = prompt
        return tokens, np.arange(tokens.shape[1]) - (lengths.max() - lengths)[:, None]

    def _call_prompts(self) -> Rows:
        """Evaluate the prompts alone; return the logits after each."""
        tokens, positions = self._prompts()
        # The model makes its own causal masks here, so that a prompt is evaluated as it would be anywhere else.
        ids, real, places = send(self._device, tokens, (positions >= 0).astype(np.int64), np.maximum(positions, 0))
        logits, _ = self._forward(ids, mask=real, positions=places, cache=self.cache, last=1)
        self.counts.calls += 1
        self.counts.prompt_tokens += int(self._forest.prompt_lengths.sum())
        return self._forward.checked(Rows.all(logits[:, -1]))

    def _fits_with_prompts(self, nodes: NDArray[np.int64]) -> bool:
        """Return True if the prompts and ``nodes`` may share a call: masks and logits within the memory given."""
        length, most = int(self._forest.prompt_lengths.max()), int(np.bincount(self._row[nodes]).max())
        columns = length + most
        scores = self._heads * columns * (self._base + eightfold(most))
        size = torch.finfo(self._dtype).bits // 8
        return len(self._used) * size * (scores + (most + 1) * self._forward.size) <= self._forward.memory

    def _call_with_prompts(self, nodes: NDArray[np.int64]) -> Rows:
        """Evaluate the prompts and the first nodes in one model call; return their logits, the prompts' first."""
        row = self._row[nodes]
        rank, everyone = ranks(row), np.arange(len(self._used))
        layout = Layout(everyone, np.tile(np.arange(rank.max() + 1), (len(everyone), 1)), (row, rank))
        node_tokens = self._place(nodes, layout)
        tokens, positions = self._prompts()
        length = tokens.shape[1]
        columns = np.concatenate([np.tile(np.arange(length), (len(everyone), 1)), self._base + layout.columns], axis=1)
        ids, places, columns, of_prompts, *lines = send(
            self._device,
            np.concatenate([tokens, node_tokens], axis=1),
            np.concatenate([np.maximum(positions, 0), self._mask.positions(layout)], axis=1),
            columns,
            self._mask.prompt_positions,
            *self._mask.lines(layout),
        )
        self.cache.aim(None, columns, self._base + layout.width)
        masks = self._mask.build(places[:, length:], *lines, dtype=self._dtype)
        above = self._mask.build_prompts(of_prompts, length, layout.width, dtype=self._dtype)
        masks = {kind: torch.cat([above[kind], mask], dim=2) for kind, mask in masks.items()}
        logits, _ = self._forward(
            ids,
            mask=masks if len(masks) > 1 else next(iter(masks.values())),
            positions=places,
            cache=self.cache,
            last=1 + node_tokens.shape[1],
        )
        self.counts.calls += 1
        self.counts.prompt_tokens += int(self._forest.prompt_lengths.sum())
        self.counts.tokens += len(nodes)
        self._used[:] = np.bincount(row, minlength=len(everyone))
        places = np.concatenate([everyone * logits.shape[1], row * logits.shape[1] + 1 + rank])
        return self._forward.checked(Rows(logits.flatten(0, 1), places.tolist()))

    def _evaluate(self, nodes: NDArray[np.int64]) -> Rows:
        """Evaluate consecutive new nodes in as few calls as memory allows; return their logits ``[n, V]``."""
        row = self._row[nodes]
        rank = ranks(row)
        pieces = self._pieces(row, rank)
        parts = [np.flatnonzero(pieces == piece) for piece in range(pieces.max() + 1)]
        return Rows.joined([self._call(nodes[part], ranks(row[part])) for part in parts], parts)

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

    def _call(self, nodes: NDArray[np.int64], rank: NDArray[np.int64]) -> Rows:
        """Evaluate ``nodes``, each the ``rank``-th new one of its prompt, in one model call."""
        forward = self._forward
        layout = Layout.of(self._row[nodes], rank, self._used)
        tokens = self._place(nodes, layout)
        ids, places, rows, columns, *lines = send(
            self._device,
            tokens,
            self._mask.positions(layout),
            layout.rows,
            self._base + layout.columns,
            *self._mask.lines(layout),
        )
        everyone, stretch = len(layout.rows) == len(self._used), layout.stretch
        written = slice(self._base + stretch.start, self._base + stretch.stop) if everyone and stretch else columns
        self.cache.aim(None if everyone else rows, written, self._base + layout.width)
        masks = self._mask.build(places, *lines, dtype=self._dtype)
        logits, _ = forward(
            ids,
            mask=masks if len(masks) > 1 else next(iter(masks.values())),
            positions=places,
            cache=self.cache,
        )
        self.counts.calls += 1
        self.counts.tokens += len(nodes)
        self._used[layout.rows] += np.bincount(layout.places[0])
        return forward.checked(Rows(logits.flatten(0, 1), layout.flat.tolist()))

    def _place(self, nodes: NDArray[np.int64], layout: Layout) -> NDArray[np.int64]:
        """Give ``nodes`` the slots of ``layout`` and their lines of ancestors; return the tokens ``[r, n]`` of the call."""
        forest = self._forest
        self._slot[nodes] = layout.columns[layout.places]
        position = forest.prompt_lengths[forest.row[nodes]] + forest.depth[nodes] - 1
        self._mask.append(layout, self._slot[forest.parent[nodes]], position)
        tokens = np.zeros(layout.columns.shape, dtype=np.int64)
        tokens[layout.places] = forest.token[nodes]
        return tokens


def ranks(row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each entry, how many equal entries stand before it."""
    order = np.argsort(row, kind="stable")
    arranged, rank = row[order], np.empty(len(row), dtype=np.int64)
    rank[order] = np.arange(len(row)) - arranged.searchsorted(arranged)
    return rank


def divided(parent: NDArray[np.int64], nodes: NDArray[np.int64], most: int) -> list[NDArray[np.int64]]:
    """Divide a tree, its root first, into parts of whole paths without the root: of at most ``most`` nodes, or of one path.

    Leaves are taken depth first, so that those that share much share a part. What lies above several parts is in each of them.
    """
    children = defaultdict[int, list[int]](list)
    root, *others = nodes.tolist()
    for node in others:
        children[int(parent[node])].append(node)
    parts, waiting = [{root}], [root]
    while waiting:
        node = waiting.pop()
        waiting += children[node]
        if not children[node]:
            path = _path(parent, node, parts[-1])
            if len(parts[-1]) > 1 and len(parts[-1]) + len(path) > most + 1:
                parts.append({root})
                path = _path(parent, node, parts[-1])
            parts[-1].update(path)
    return [np.array(sorted(part), dtype=np.int64)[1:] for part in parts]


def _path(parent: NDArray[np.int64], node: int, known: set[int]) -> list[int]:
    """Return ``node`` and its ancestors, as far as they are not known."""
    path = []
    while node not in known:
        path.append(node)
        node = int(parent[node])
    return path
