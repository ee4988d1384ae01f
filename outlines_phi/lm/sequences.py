"""Token trees in sequences of one cache, each of which holds the path to a node: for libraries that fork sequences."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import ModelError
from ..numerics.transfers import Rows
from .forest import ForestTrees
from .model import LanguageModel, TokenTrees


class Entry(NamedTuple):
    """One token of a batch."""

    token: int
    position: int
    sequences: Sequence[int]  # The sequences that it belongs to: all have the same tokens before it
    wanted: bool  # True if the logits after it are read


class Context(Protocol):
    """Keys and values of sequences that share cells: a token sees the cells of its own sequences, up to its position."""

    remedy: str  # Where a text finds no room: what to do
    size: int  # Of the vocabulary
    sequences: int  # At most
    batch_size: int  # Tokens of a call, at most

    def decode(self, entries: Sequence[Entry]) -> NDArray[np.float32] | None:
        """Evaluate tokens in one call; return the logits of those wanted, or ``None`` for want of cells."""

    def fork(self, source: int, target: int, length: int) -> None:
        """Let the sequence ``target`` be the first ``length`` tokens of ``source``."""

    def cut(self, sequence: int, length: int) -> None:
        """Let a sequence be its first ``length`` tokens."""

    def clear(self) -> None:
        """Forget all sequences."""


class NewPath(NamedTuple):
    """A new path, to ``leaf``, and the sequence that is to hold it."""

    leaf: int
    chain: tuple[int, ...]  # The nodes that are evaluated, from the first to `leaf`
    base: int  # The node above them, whose path some sequence holds; -1 above a prompt
    source: int  # That sequence, or -1
    sequence: int


@final
class SequencePaths(ForestTrees):
    """Token trees whose paths are sequences of a context.

    A new node goes on from a sequence that ends at its parent, or from a fork of one that passes there, which costs no keys or
    values. Where sequences or cells run out, those that were not used for longest are given up; what is below them later is
    evaluated again from the nearest node that is held, and counts again.
    """

    def __init__(
        self, context: Context, prompts: Sequence[Sequence[int]], vocabulary_size: int, max_length: int | None
    ) -> None:
        super().__init__(prompts, vocabulary_size, max_length)
        self._context = context
        self._tips: dict[int, int] = {}  # the node that each sequence in use ends at, the latest used last
        context.clear()

    def _grow(self, nodes: range) -> Rows:
        try:
            return self._evaluated(nodes)
        except BaseException:  # the nodes are withdrawn
            for sequence in [sequence for sequence, tip in self._tips.items() if tip in nodes]:
                self._end_at(sequence, -1)
            raise

    def _evaluated(self, nodes: range) -> Rows:
        found: dict[int, NDArray[np.float32]] = {}
        forest = self._forest
        inner = {int(forest.parent[node]) for node in nodes}
        leaves, most = [node for node in nodes if node not in inner], self._context.sequences
        while leaves:
            branches = self._branches(leaves[:most])
            logits = self._evaluate(branches)
            if logits is None:
                most = max(1, len(branches) // 2)  # fewer at a time take fewer cells
                continue
            found |= logits
            leaves = leaves[len(branches) :]
        return Rows.all(torch.from_numpy(np.stack([found[node] for node in nodes])))

    def compact(self, keep: Sequence[int]) -> None:
        super().compact(keep)
        for sequence, tip in list(self._tips.items()):
            node = tip
            while node >= 0 and not self._forest.alive[node]:
                node = int(self._forest.parent[node])
            if node != tip:
                self._end_at(sequence, node)

    def _branches(self, leaves: Sequence[int]) -> list[NewPath]:
        """Return the branches that evaluate the first of ``leaves``: as many as there are sequences for."""
        through, tips = self._through(), {tip: sequence for sequence, tip in self._tips.items()}
        free = [sequence for sequence in range(self._context.sequences) if sequence not in self._tips]
        branches, needed, given_up = list[NewPath](), set[int](), set[int]()
        for leaf in leaves:
            chain, base = [leaf], int(self._forest.parent[leaf])
            while base >= 0 and base not in through:
                chain.append(base)
                base = int(self._forest.parent[base])
            # A sequence that ends at the base goes on; else one is free, or the oldest that no branch needs is given up.
            source = own = tips.pop(base, -1)
            if own < 0 or own in needed:
                source = through.get(base, -1)
                unused = (sequence for sequence in self._tips if sequence not in needed | {source})
                own = free.pop() if free else next(unused, -1)
                if own < 0 or source in given_up:
                    break
                given_up.add(own)
            needed |= {own, source}
            branches.append(NewPath(leaf, tuple(reversed(chain)), base, source, own))
        return branches

    def _through(self) -> dict[int, int]:
        """Return a sequence that passes through each node that is held: the latest used, so that older ones may be given up."""
        through: dict[int, int] = {}
        for sequence, tip in reversed(self._tips.items()):
            node = tip
            while node >= 0 and node not in through:
                through[node] = sequence
                node = int(self._forest.parent[node])
        return through

    def _evaluate(self, branches: Sequence[NewPath]) -> dict[int, NDArray[np.float32]] | None:
        """Return the logits after the nodes of some branches; ``None`` where there are not enough cells for so many.

        Raises :class:`ModelError`: there are not enough for one.
        """
        for branch in branches:
            self._fork(branch)
        sequences = defaultdict[int, list[int]](list)
        for branch in branches:
            for node in branch.chain:
                sequences[node].append(branch.sequence)
        entries, wanted = list[Entry](), list[int]()
        for node in sorted(sequences):
            entries += self._entries(node, sequences[node])
            wanted.append(node)
        found = list[NDArray[np.float32]]()
        for start in range(0, len(entries), self._context.batch_size):
            part = entries[start : start + self._context.batch_size]
            logits = self._decoded(part, {branch.sequence for branch in branches})
            if logits is None:
                for branch in branches:
                    self._end_at(branch.sequence, -1)
                if len(branches) == 1:
                    raise ModelError(
                        f"{self._context.remedy}. A text of {self._length(branches[0].leaf)} tokens found no room in the cache."
                    )
                return None
            found += list(logits)
        for branch in branches:
            self._tips.pop(branch.sequence, None)
            self._tips[branch.sequence] = branch.leaf
        return dict(zip(wanted, found, strict=True))

    def _fork(self, branch: NewPath) -> None:
        """Let the sequence of a branch hold the path to its base."""
        self._tips.pop(branch.sequence, None)
        if branch.source < 0:
            self._context.cut(branch.sequence, 0)
        elif branch.source != branch.sequence:
            self._context.fork(branch.source, branch.sequence, self._length(branch.base))

    def _entries(self, node: int, sequences: Sequence[int]) -> list[Entry]:
        forest, last = self._forest, self._length(node) - 1
        if node >= len(forest.prompts):
            self.counts.tokens += 1
            return [Entry(int(forest.token[node]), last, sequences, True)]
        prompt = forest.prompts[node]
        self.counts.prompt_tokens += len(prompt)
        return [Entry(token, i, sequences, i == last) for i, token in enumerate(prompt)]

    def _decoded(self, part: Sequence[Entry], busy: set[int]) -> NDArray[np.float32] | None:
        """Evaluate tokens; where cells run out, give up sequences that take no part, the oldest first."""
        self.counts.calls += 1
        while (logits := self._context.decode(part)) is None:
            oldest = next((sequence for sequence in self._tips if sequence not in busy), -1)
            if oldest < 0:
                return None
            self._end_at(oldest, -1)
        return logits

    def _end_at(self, sequence: int, node: int) -> None:
        """Cut a sequence back to the path to ``node``; -1 for none of it."""
        self._context.cut(sequence, self._length(node) if node >= 0 else 0)
        self._tips.pop(sequence, None)
        if node >= 0:
            self._tips[sequence] = node

    def _length(self, node: int) -> int:
        return int(self._forest.prompt_lengths[self._forest.row[node]] + self._forest.depth[node])


class SequenceModel(LanguageModel):
    """A language model whose token trees are sequences of a context. What trees give back serves the next ones."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._spare: list[Context] = []

    @abstractmethod
    def _context(self) -> Context:
        """Return a new context."""

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        context = self._spare.pop() if self._spare else self._context()
        trees = SequencePaths(context, prompts, len(self.vocabulary), self.max_length)
        weakref.finalize(trees, self._spare.append, context)
        return trees
