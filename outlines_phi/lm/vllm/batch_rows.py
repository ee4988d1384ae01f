"""The rows of an engine's batch by request: the book-keeping of a logits processor of vLLM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

Kept = TypeVar("Kept")


@final
class BatchRows(Generic[Kept]):
    """The state that a processor keeps for the rows of a batch, by row; rows of other requests have nothing.

    ``make`` returns what is kept for a request, given its parameters, the ids of its prompt and the list of its outputs, which
    grows as it is written; ``None`` for a request that is not ours. A request that was preempted is added again, with its outputs.
    """

    def __init__(self, make: Callable[[SamplingParams, list[int] | None, list[int]], Kept | None]) -> None:
        self._make = make
        self.of: dict[int, Kept] = {}

    def update(self, change: BatchUpdate | None) -> None:
        """Follow a change of the batch: what left, what came, what moved, in this order."""
        if change is None:
            return
        for row in change.removed:
            self.of.pop(row, None)
        for row, params, prompt, outputs in change.added:
            self._put(row, self._make(params, prompt, outputs))
        for source, target, direction in change.moved:
            moved, replaced = self.of.pop(source, None), self.of.pop(target, None)
            self._put(target, moved)
            if direction == MoveDirectionality.SWAP:
                self._put(source, replaced)

    def _put(self, row: int, kept: Kept | None) -> None:
        """Let a row have what is kept for its request, whatever it had before."""
        self.of.pop(row, None)
        if kept is not None:
            self.of[row] = kept
