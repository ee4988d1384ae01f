"""The interface of every language model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..numerics.transfers import Rows
from ..vocabulary.vocabulary import Vocabulary


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """The answer of one model call about ``n`` new nodes."""

    nodes: range  # The handles of the nodes, consecutive integers
    # `[n, V]` raw next-token logits after each node, on the model's device. What the user's settings make of them (temperature,
    # truncation) is `p`; see `SamplingSettings`.
    rows: Rows

    @property
    def logits(self) -> Tensor:
        """All rows, to be read and not written."""
        return self.rows.whole()


@dataclass
class ModelCounts:
    """The cost of a set of token trees so far."""

    calls: int = 0  # Calls of the model
    prompt_tokens: int = 0  # Prompt tokens evaluated, padding excluded
    tokens: int = 0  # Generated tokens (tree nodes) evaluated, padding excluded


class TokenTrees(ABC):
    """The token trees of some prompts, evaluated in shared model calls.

    A node is a token sequence after a prompt, named by an integer handle; the handles ``0 .. P - 1`` are the roots,
    the prompts themselves. Nothing is ever cropped: a node may be extended at any time, in any order, in
    company of nodes of other prompts.
    """

    counts: ModelCounts

    @abstractmethod
    def roots(self, parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> Evaluation:
        """Evaluate all prompts, and the first new nodes with them, in one call, once.

        Row ``i < P`` answers for prompt ``i``; the nodes of the pairs ``(parents, tokens)`` follow, as in :meth:`extend`. A plan
        that a guide makes before any distribution is known (every live prefix of a short choice) thus costs no call of its own.
        """

    @abstractmethod
    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
        """Evaluate one new node per pair, all in one call.

        ``parents``: handle of each new node's parent. The ``i``-th new node's handle is ``evaluation.nodes[i]``, which is known
            beforehand (``next_node + i``), so a parent may be a node of this same call that stands before it.
        ``tokens``: the token of each new node.

        Raises :class:`ModelError`: a node would lie beyond the model's context. That the model answered NaN is known, and
        raised, when something of the answer is read.
        """

    @property
    @abstractmethod
    def next_node(self) -> int:
        """The handle that the first node of the next :meth:`extend` will get."""

    @abstractmethod
    def compact(self, keep: Sequence[int]) -> None:
        """Give back the memory of every node that is neither in ``keep``, an ancestor of one, nor a root.

        The handles of kept nodes stay valid; the others must not be used again.
        """


class LanguageModel(ABC):
    """A causal language model over token ids."""

    vocabulary: Vocabulary  # The exact bytes of every token
    # The longest sequence, prompt included, that the model can evaluate; `None` when there is no limit
    max_length: int | None
    device: torch.device  # Where logits are returned

    def version(self) -> Hashable:
        """Return a value that changes with what a forward pass depends on beside its input (weights, adapter, dtype, device).

        What cannot be seen in a model need not be in it: trees that are used again compare the distribution of their prompt.
        """
        return None

    @property
    def opaque(self) -> bool:
        """True if the distribution may change unseen by :meth:`version`; calls with a kept tree then ask the model."""
        return False

    @property
    def rounding(self) -> float:
        """The most that two evaluations of one prefix, in calls of other shapes, differ: see :meth:`BoundsTree.drift`, in nats."""
        return 1e-6

    def fingerprint(self) -> str:
        """Return a name for the distribution that another process knows, too; made without reading all weights."""
        return type(self).__name__

    @abstractmethod
    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        """Return token trees rooted at ``prompts`` (token ids, each at least one token long); no call is made yet."""
