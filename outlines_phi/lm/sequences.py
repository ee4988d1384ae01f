"""Token trees in sequences of one cache, each of which holds the path to a node: for libraries that fork sequences."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError
from ..numerics.distributions import Rows
from .model import Evaluation, LanguageModel, ModelCounts, TokenTrees


@final
class Forest:
    """The nodes of the token trees of some prompts, by handle, in growing arrays.

    Handles ``0 .. P - 1`` are the prompts; every later node is one token after its parent. Only the shape of
    the trees lives here; what a model keeps per node (cache slots, rows) it keeps beside, by the same handle.

    ``prompt_lengths``: ``[P]``.
    ``parent``, ``token``, ``depth``, ``row``: ``[capacity]`` per handle: the parent (-1 for a root), the token (-1 for a root),
        the number of tokens after the prompt, and the prompt it belongs to. Entries from ``len(self)`` on mean nothing.
    ``alive``: ``[capacity]`` per handle: not given back by :meth:`retain`.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], vocabulary_size: int, max_length: int | None) -> None:
        self.prompts = tuple(tuple(int(token) for token in prompt) for prompt in prompts)
        self.vocabulary_size, self.max_length = vocabulary_size, max_length
        if not self.prompts:
            raise ModelError("No prompts were given; token trees need at least one prompt.")
        for index, prompt in enumerate(self.prompts):
            self._check_prompt(index, prompt)
        count = len(self.prompts)
        self.prompt_lengths = np.array([len(prompt) for prompt in self.prompts], dtype=np.int64)
        self.parent = np.full(count, -1, dtype=np.int64)
        self.token = np.full(count, -1, dtype=np.int64)
        self.depth = np.zeros(count, dtype=np.int64)
        self.row = np.arange(count, dtype=np.int64)
        self.alive = np.ones(count, dtype=bool)
        self._size, self._evaluated = count, False

    def __len__(self) -> int:
        return self._size

    def plant(self, parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> range:
        """Return the handles of the roots and of the first nodes, which are about to be evaluated; a second time is an error."""
        if self._evaluated:
            raise ModelError("roots() was called twice; keep the evaluation that it returned the first time.")
        self._evaluated = True
        try:
            return range(self.add(parents, tokens).stop)
        except ModelError:
            self._evaluated = False
            raise

    def add(self, parents: Sequence[int], tokens: Sequence[int]) -> range:
        """Append one node per pair and return their handles; a pair that is refused changes nothing."""
        if not self._evaluated:
            raise ModelError("extend() was called before roots(); evaluate the prompts first.")
        parent, token = np.asarray(parents, dtype=np.int64), np.asarray(tokens, dtype=np.int64)
        if parent.ndim != 1 or parent.shape != token.shape:
            raise ModelError(f"{parent.size} parents came with {token.size} tokens; give one token per parent.")
        first, nodes = self._size, range(self._size, self._size + len(parent))
        self._check_tokens(token, "a new node")
        self._check_parents(parent, first)
        for name in ("parent", "token", "depth", "row", "alive"):
            setattr(self, name, grown(getattr(self, name), nodes.stop))
        new = slice(nodes.start, nodes.stop)
        self.parent[new], self.token[new], self.alive[new] = parent, token, True
        self.depth[new], self.row[new] = self.depth[parent] + 1, self.row[parent]
        for node in (first + np.flatnonzero(parent >= first)).tolist():  # in order: the parent stands before the child
            above = self.parent[node]
            self.depth[node], self.row[node] = self.depth[above] + 1, self.row[above]
        self._check_lengths(new)
        self._size = nodes.stop
        return nodes

    def withdraw(self, nodes: range) -> None:
        """Undo the last :meth:`add`, whose evaluation failed."""
        assert nodes.stop == self._size, (nodes, self._size)
        self._size = nodes.start

    def path(self, node: int) -> tuple[int, ...]:
        """Return the tokens between the prompt and ``node``, ``node`` included."""
        tokens = []
        while self.parent[node] >= 0:
            tokens.append(int(self.token[node]))
            node = int(self.parent[node])
        return tuple(reversed(tokens))

    def sequence(self, node: int) -> tuple[int, ...]:
        """Return the whole token sequence of ``node``, prompt included."""
        return self.prompts[self.row[node]] + self.path(node)

    def retain(self, keep: Sequence[int]) -> NDArray[np.int64]:
        """Give back all but ``keep``, their ancestors and the roots; return the live handles in order."""
        front = np.unique(np.asarray(keep, dtype=np.int64))
        if front.size and (front[0] < 0 or front[-1] >= self._size or not self.alive[front].all()):
            raise ModelError("compact() was told to keep a node that does not exist or was given back before.")
        kept = np.zeros(self._size, dtype=bool)
        kept[: len(self.prompts)] = True
        while front.size:
            kept[front] = True
            front = np.unique(self.parent[front])
            front = front[front >= 0]
            front = front[~kept[front]]
        self.alive[: self._size] = kept
        return np.flatnonzero(kept)

    def _check_prompt(self, index: int, prompt: tuple[int, ...]) -> None:
        if not prompt:
            raise ModelError(
                f"Prompt {index} has no tokens but a model needs at least one; start it with the tokenizer's "
                "beginning-of-sequence token."
            )
        self._check_tokens(np.asarray(prompt, dtype=np.int64), f"prompt {index}")
        if self.max_length is not None and len(prompt) > self.max_length:
            raise ModelError(
                f"Prompt {index} is {len(prompt)} tokens long but the model's context is {self.max_length}; "
                "shorten the prompt or use a model with a longer context."
            )

    def _check_tokens(self, tokens: NDArray[np.int64], where: str) -> None:
        wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary_size)]
        if wrong.size:
            raise ModelError(
                f"Token {wrong[0]} of {where} is outside the model's vocabulary of {self.vocabulary_size}; "
                "use the tokenizer that belongs to the model."
            )

    def _check_parents(self, parent: NDArray[np.int64], first: int) -> None:
        wrong = (parent < 0) | (parent >= first + np.arange(len(parent)))
        old = ~wrong & (parent < first)
        wrong[old] = ~self.alive[parent[old]]
        if wrong.any():
            index = int(wrong.argmax())
            raise ModelError(
                f"Node {first + index} was given parent {parent[index]}, which is not a live node before it. "
                "Parents are handles of earlier evaluations or of earlier nodes of this call, and compact() "
                "takes back every node that it was not told to keep."
            )

    def _check_lengths(self, new: slice) -> None:
        if self.max_length is None or new.start == new.stop:
            return
        prompt, depth = self.prompt_lengths[self.row[new]], self.depth[new]
        worst = int((prompt + depth).argmax())
        if prompt[worst] + depth[worst] > self.max_length:
            raise ModelError(
                f"A node lies {depth[worst]} tokens after a prompt of {prompt[worst]} tokens, together "
                f"{prompt[worst] + depth[worst]}, but the model's context is {self.max_length}; shorten the "
                "prompt or lower max_new_tokens."
            )


def grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return ``array`` with at least ``size`` entries: as it is, or a copy twice as long, zeros at the end."""
    if size <= len(array):
        return array
    larger = np.zeros((max(size, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


class ForestTrees(TokenTrees):
    """Token trees over a :class:`Forest`: a subclass says how new nodes are evaluated."""

    def __init__(self, prompts: Sequence[Sequence[int]], vocabulary_size: int, max_length: int | None) -> None:
        self.counts = ModelCounts()
        self._forest = Forest(prompts, vocabulary_size, max_length)
        self._nothing: Rows | None = None  # the answer about no nodes

    @property
    def next_node(self) -> int:
        return len(self._forest)

    def roots(self, parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> Evaluation:
        nodes = self._forest.plant(parents, tokens)
        rows = self._begin(nodes)
        self._nothing = Rows.all(rows.matrix.new_empty(0, rows.matrix.shape[-1]))
        return Evaluation(nodes, rows)

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
        nodes = self._forest.add(parents, tokens)
        try:
            return Evaluation(nodes, self._grow(nodes) if nodes or self._nothing is None else self._nothing)
        except BaseException:
            self._forest.withdraw(nodes)
            raise

    def compact(self, keep: Sequence[int]) -> None:
        self._forest.retain(keep)

    def _begin(self, nodes: range) -> Rows:
        """Evaluate the prompts and the first nodes; return their logits ``[n, V]``. As :meth:`_grow`, unless overridden."""
        return self._grow(nodes)

    @abstractmethod
    def _grow(self, nodes: range) -> Rows:
        """Evaluate new nodes, of which there are some; return their logits ``[n, V]``. Where it raises, they are withdrawn."""


@final
class SequenceTrees(ForestTrees):
    """Token trees of a model that evaluates whole sequences: ``logits`` maps them to ``[n, V]``."""

    def __init__(
        self,
        logits: Callable[[Sequence[tuple[int, ...]]], Tensor],
        prompts: Sequence[Sequence[int]],
        vocabulary_size: int,
        max_length: int | None,
    ) -> None:
        super().__init__(prompts, vocabulary_size, max_length)
        self._logits = logits

    def _begin(self, nodes: range) -> Rows:
        logits = self._grow(nodes)
        self.counts.prompt_tokens += int(self._forest.prompt_lengths.sum())
        self.counts.tokens -= len(self._forest.prompts)
        return logits

    def _grow(self, nodes: range) -> Rows:
        logits = torch.as_tensor(self._logits([self._forest.sequence(node) for node in nodes])).detach()
        self.counts.calls += 1
        self.counts.tokens += len(nodes)
        return Rows.all(logits)


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
