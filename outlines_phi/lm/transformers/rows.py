"""Token trees as batch rows: for models that cannot hold a tree in one cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...numerics.transfers import Rows, send
from ..forest import ForestTrees
from .forward import Forward


@final
class RowTrees(ForestTrees):
    """Token trees whose every new node is a batch row with a whole sequence of its own.

    The cache of the last call is kept, where the model's can be. When all parents were nodes of the last call, its rows are
    selected (and copied, where a parent has several children) and one token each is evaluated; otherwise whole sequences are.
    The counts are what was really evaluated: prompts and paths that are evaluated again count again.

    ``padding``: whether sequences of different lengths may share a call, left padded. Models that let padding leak into their
        state need False: one call per length.
    ``cached``: whether the cache of one call serves the next. Models that begin every call anew (learned prompts), or whose state
        cannot be copied, need False: every node is evaluated with all that stands before it.
    """

    def __init__(
        self, forward: Forward, prompts: Sequence[Sequence[int]], *, padding: bool = True, cached: bool = True
    ) -> None:
        super().__init__(prompts, forward.size, forward.max_length)
        self._forward, self._padding, self._cached = forward, padding, cached
        self._cache: Any = None
        self._held: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # [b] nodes of the cache's rows, ascending
        self._real: NDArray[np.bool_] = np.empty((0, 0), dtype=bool)  # [b, columns] where the cache is not padding

    def _grow(self, nodes: range) -> Rows:
        new = np.arange(nodes.start, nodes.stop)
        try:
            follows = self._cache is not None and np.isin(self._forest.parent[new], self._held).all()
            return self._advance(new) if follows else self._evaluate(new)
        except BaseException:
            self._forget()
            raise

    def compact(self, keep: Sequence[int]) -> None:
        live = np.isin(self._held, self._forest.retain(keep))
        if not live.any():
            self._forget()
        elif self._cache is not None and not live.all():
            rows = np.flatnonzero(live)
            self._select(rows, *self._sent(rows))
            self._held, self._real = self._held[live], self._real[live]

    def _advance(self, nodes: NDArray[np.int64]) -> Rows:
        """Evaluate children of the last call's nodes from its cache, one token each."""
        forest = self._forest
        rows = np.searchsorted(self._held, forest.parent[nodes])
        self._real = np.pad(self._real[rows], ((0, 0), (0, 1)), constant_values=True)
        position = forest.prompt_lengths[forest.row[nodes]] + forest.depth[nodes] - 1
        tokens, real, positions, chosen = self._sent(
            forest.token[nodes][:, None], self._real.astype(np.int64), position[:, None], rows
        )
        self._select(rows, chosen)
        mask = None if self._forward.recurrent else real
        logits, self._cache = self._forward(tokens, mask=mask, positions=positions, cache=self._cache, last=1)
        self._held = nodes
        self.counts.calls += 1
        self.counts.tokens += len(nodes)
        return self._forward.checked(Rows.all(logits[:, -1]))

    def _evaluate(self, nodes: NDArray[np.int64]) -> Rows:
        """Evaluate the whole sequences of ``nodes``."""
        self._forget()
        sequences = [self._forest.sequence(int(node)) for node in nodes]
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        answers = []
        groups = self._groups(lengths)
        for group in groups:
            logits, cache, real = self._batch([sequences[index] for index in group])
            self.counts.calls += 1
            depths = self._forest.depth[nodes[group]]
            self.counts.prompt_tokens += int((lengths[group] - depths).sum())
            self.counts.tokens += int(depths.sum())
            answers.append(self._forward.checked(Rows.all(logits)))
            if len(groups) == 1 and self._cached:
                self._cache, self._held, self._real = cache, nodes, real
        return Rows.joined(answers, groups)

    def _groups(self, lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the groups of sequences that share a call: those that may, as many as memory allows."""
        size = torch.finfo(self._forward.hf_model.dtype).bits // 8
        heads = self._forward.heads_in_memory
        groups = []
        for length in [lengths.max()] if self._padding else np.unique(lengths):
            members = np.arange(len(lengths)) if self._padding else np.flatnonzero(lengths == length)
            together = max(1, int(self._forward.memory // (size * (self._forward.size + heads * length**2))))
            groups += np.split(members, range(together, len(members), together))
        return groups

    def _batch(self, sequences: Sequence[tuple[int, ...]]) -> tuple[Tensor, Any, NDArray[np.bool_]]:
        """Evaluate ``sequences`` in one call; return last logits ``[b, V]``, the cache, and where it is real."""
        length = max(map(len, sequences))
        tokens, real = np.zeros((2, len(sequences), length), dtype=np.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, -len(sequence) :], real[row, -len(sequence) :] = sequence, 1
        ids, mask, positions = self._sent(tokens, real, np.maximum(np.cumsum(real, axis=1) - 1, 0))
        logits, cache = self._forward(ids, mask=mask, positions=positions if self._padding else None, last=1)
        return logits[:, -1], cache, real.astype(bool)

    @torch.inference_mode()
    def _select(self, rows: NDArray[np.int64], sent: Tensor) -> None:
        """Keep the cache of these rows alone, in their order."""
        if not np.array_equal(rows, np.arange(len(self._held))):
            self._cache.reorder_cache(sent)

    def _forget(self) -> None:
        self._cache, self._held = None, np.empty(0, dtype=np.int64)

    def _sent(self, *arrays: NDArray[np.int64]) -> list[Tensor]:
        return send(self._forward.hf_model.device, *arrays)
