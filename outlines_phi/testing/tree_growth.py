"""Random token trees of a language model, and the logits that it answered for each node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError
from ..lm.model import Evaluation, TokenTrees


@final
class TreeGrowth:
    """Grows random trees, and remembers the whole sequence of every node with its logits.

    Parameters
    ----------
    trees
        The token trees, before their first call.
    prompts
        The prompts that they are rooted at.
    size
        How many tokens the vocabulary has.
    tokens
        The tokens that are drawn from; by default all but the first three.
    max_length
        The longest sequence; ``None`` when there is no limit.
    seed
        Of the random choices.
    """

    def __init__(
        self,
        trees: TokenTrees,
        prompts: Sequence[Sequence[int]],
        size: int,
        *,
        tokens: Sequence[int] | None = None,
        max_length: int | None = None,
        seed: int = 0,
    ) -> None:
        self.trees, self.prompts = trees, prompts
        self._size, self._max_length = size, max_length
        self._tokens: NDArray[np.int64] = np.arange(3, size) if tokens is None else np.asarray(tokens, dtype=np.int64)
        self.random = np.random.default_rng(seed)
        self.sequences: dict[int, tuple[int, ...]] = {}  # of live nodes
        self.parents: dict[int, int] = {}
        self.history: list[tuple[tuple[int, ...], Tensor]] = []  # of all nodes

    def plant(self, count: int = 0) -> None:
        """Evaluate the prompts, and ``count`` first nodes with them."""
        self.sequences = {node: tuple(prompt) for node, prompt in enumerate(self.prompts)}
        parents = self._random_parents(count)
        tokens = self._random_tokens(parents)
        evaluation = self.trees.roots(parents, tokens)
        logits = self._answer("roots()", evaluation, range(len(self.prompts) + count))
        self.history += [(self.sequences[node], logits[node].double()) for node in self.sequences]
        self._remember(evaluation.nodes[len(self.prompts) :], parents, tokens, logits[len(self.prompts) :])

    def grow(self, count: int) -> range:
        """Add ``count`` nodes under random live nodes or earlier nodes of the same call."""
        return self.follow(self._random_parents(count))

    def follow(self, parents: Sequence[int]) -> range:
        """Add one random child under each of ``parents``, in one call."""
        first, tokens = self.trees.next_node, self._random_tokens(parents)
        evaluation = self.trees.extend(parents, tokens)
        logits = self._answer("extend()", evaluation, range(first, first + len(parents)))
        self._remember(evaluation.nodes, parents, tokens, logits)
        return evaluation.nodes

    def prune(self, keep: Sequence[int]) -> None:
        """Compact, and forget the nodes that are given back."""
        self.trees.compact(keep)
        live = set(range(len(self.prompts)))
        for node in keep:
            while node not in live:
                live.add(node)
                node = self.parents[node]
        self.sequences = {node: self.sequences[node] for node in sorted(live)}

    def live(self) -> None:
        """Grow in several calls, the prompts' own among them, with parents of the same call, compact, and grow on."""
        self.plant(6)
        for count in (7, 30, 1, 12):
            self.grow(count)
        self.prune(self.random.choice(list(self.sequences), size=6, replace=False).tolist())
        self.grow(9)
        self.prune(list(self.sequences)[-5:])
        for _ in range(2):
            self.follow([node for node in list(self.sequences)[-4:] if self.has_room(node)])
        self.grow(5)

    def has_room(self, node: int) -> bool:
        """Return whether the model's context has room for a token after a node."""
        return self._max_length is None or len(self.sequences[node]) < self._max_length

    def errors(self, law: Callable[[tuple[int, ...]], Tensor]) -> Tensor:
        """Return ``[nodes, V]``: what was answered minus ``law`` of each whole sequence."""
        return torch.stack([logits - law(sequence) for sequence, logits in self.history])

    def _answer(self, call: str, evaluation: Evaluation, nodes: range) -> Tensor:
        if evaluation.nodes != nodes or self.trees.next_node != nodes.stop:
            raise ModelError(
                f"Number new nodes from next_node on, in their order. {call} gave {evaluation.nodes} in place of {nodes}, and "
                f"next_node is {self.trees.next_node} then."
            )
        if evaluation.logits.shape != (len(nodes), self._size):
            raise ModelError(
                f"Return a row of logits for each node, [{len(nodes)}, {self._size}]. {call} gave {list(evaluation.logits.shape)}."
            )
        return evaluation.logits

    def _random_parents(self, count: int) -> list[int]:
        lengths = {node: len(sequence) for node, sequence in self.sequences.items()}
        parents: list[int] = []
        for node in range(self.trees.next_node, self.trees.next_node + count):
            room = [n for n, length in lengths.items() if self._max_length is None or length < self._max_length]
            parents.append(int(self.random.choice(room)))
            lengths[node] = lengths[parents[-1]] + 1
        return parents

    def _random_tokens(self, parents: Sequence[int]) -> list[int]:
        return self.random.choice(self._tokens, size=len(parents)).tolist()

    def _remember(self, nodes: range, parents: Sequence[int], tokens: Sequence[int], logits: Tensor) -> None:
        for node, parent, token, answer in zip(nodes, parents, tokens, logits, strict=True):
            self.parents[node] = parent
            self.sequences[node] = (*self.sequences[parent], token)
            self.history.append((self.sequences[node], answer.double()))
