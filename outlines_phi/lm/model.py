"""The interface of every language model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import final

import torch
from torch import Tensor

from ..numerics.checks import Amount, Checked
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


@final
@dataclass(frozen=True)
class CallCost(Checked):
    """The time of a model call over ``n`` tokens, in times of a call over one: ``1 + second [n > 1] + later (n - 1)``.

    Drafts are as long as pays by it, and ``auto`` tries as long to be exact. It is a constant until ``lm.cost =
    CallCost.measured(lm)`` is set: a seed gives the same draws on every machine for equal costs.

    Attributes
    ----------
    second
        The cost of the second token, a matrix in place of a vector: 0.5 to 0.7 were measured on a CPU.
    later
        The cost of each token behind the first: 0.03 to 0.06 were measured on a CPU.

    Raises
    ------
    UnsupportedError
        One of them is negative or no number.
    """

    second: Amount = 0.5
    later: Amount = 0.05

    @classmethod
    def measured(cls, lm: LanguageModel) -> CallCost:
        """Return the cost of a model's calls by the clock: the shortest of several over 1, 2, and 32 tokens each."""
        writing = [token for token, text in enumerate(lm.vocabulary.tokens) if text]
        trees, least = lm.trees([writing[:1]]), dict.fromkeys((1, 2, 32), math.inf)
        trees.roots()
        for n in [*least] * 8:
            began = perf_counter()
            trees.extend([0] * n, (writing * n)[:n]).logits[0, 0].item()  # waits for the device
            least[n] = min(least[n], perf_counter() - began)
        later = max(0.0, (least[32] - least[2]) / (30 * least[1]))
        return cls(max(0.0, least[2] / least[1] - 1 - later), later)


class LanguageModel(ABC):
    """A causal language model over token ids."""

    vocabulary: Vocabulary  # The exact bytes of every token
    # The longest sequence, prompt included, that the model can evaluate; `None` when there is no limit
    max_length: int | None
    device: torch.device  # Where logits are returned
    cost = CallCost()

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


class WrappedModel(LanguageModel):
    """A model with the distribution of another one, ``lm``, of which it has all but the token trees."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.vocabulary, self.max_length, self.device, self.cost = lm.vocabulary, lm.max_length, lm.device, lm.cost

    def version(self) -> Hashable:
        return self.lm.version()

    @property
    def opaque(self) -> bool:
        return self.lm.opaque

    @property
    def rounding(self) -> float:
        return self.lm.rounding

    def fingerprint(self) -> str:
        return self.lm.fingerprint()
