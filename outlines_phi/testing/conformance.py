"""The conformance test of a language model: what samplers rely on, checked on random token trees."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError, OutlinesPhiError, UnsupportedError
from ..lm.model import Evaluation, LanguageModel, TokenTrees
from ..numerics.checks import is_count, shown


@final
class TreeGrowth:
    """Grows random trees of ``trees``, and remembers the whole sequence of every node with its logits.

    ``tokens``: those that are drawn from; by default all of the vocabulary's ``size`` but the first three.
    ``max_length``: the longest sequence; ``None`` for no limit.
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
        """Return True if the model's context has room for a token after a node."""
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


LIKELY = 1e-4
"""Tokens below this probability are not compared: in single precision their log probability means little."""


@final
@dataclass(frozen=True)
class Conformance:
    """The observations of a language model that passes."""

    nodes: int  # Nodes whose answer was compared with that about their whole sequence
    calls: int  # Model calls that their trees took
    error: float  # The largest difference of `log p` of a token of at least :data:`LIKELY`, in nats


def check_language_model(
    lm: LanguageModel,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    reference: Callable[[tuple[int, ...]], Any] | None = None,
    tolerance: float = 1e-3,
    seed: int = 0,
) -> Conformance:
    """Check that a language model keeps what :class:`LanguageModel` and :class:`TokenTrees` promise, or raise what is wrong.

    Random trees are grown over several prompts: chains and forks within a call, nodes below old ones, calls after nodes were given
    back. Every node has to have the distribution of its whole sequence, handles have to be numbered and refused as promised, and a
    call that is refused has to change nothing.

    Parameters
    ----------
    lm
        The model.
    prompts
        Token ids, at least two prompts; by default random ones of different lengths, two of them equal.
    reference
        The logits after a sequence of token ids, ``[V]``, from elsewhere. By default the model's own answer about the sequence as
        a prompt: then trees are checked against the model, and nothing says that the model is right.
    tolerance
        The largest distance of two values of ``log p`` of a token of at least 1e-4, in nats.
    seed
        Of the random choices.

    Returns
    -------
    Conformance
        The number of nodes compared and of calls, and the largest error.

    Raises
    ------
    ModelError
        The violation of the interface, and the remedy.
    UnsupportedError
        An argument that nothing can be checked with.

    Examples
    --------
    >>> from outlines_phi.lm import TableModel
    >>> from outlines_phi.vocabulary.vocabulary import Vocabulary
    >>> lm = TableModel.random(Vocabulary.from_tokens(list("abcdefg."), 7), seed=1)
    >>> check_language_model(lm).error
    0.0
    """
    _check_given(lm, prompts, tolerance)
    _check_declared(lm)
    ends = set(lm.vocabulary.eos_ids)
    tokens = [token for token in np.flatnonzero(lm.vocabulary.real).tolist() if token not in ends]
    if prompts is None:
        random, longest = np.random.default_rng(seed), max(1, (lm.max_length or 64) // 4)
        first, *others = (random.choice(tokens, size=min(length, longest)).tolist() for length in (5, 2, 7))
        prompts = [first, *others, first]

    def growth(number: int) -> TreeGrowth:
        assert prompts is not None
        size = len(lm.vocabulary)
        trees = lm.trees(prompts)
        return TreeGrowth(trees, prompts, size, tokens=tokens, max_length=lm.max_length, seed=seed + number)

    _check_order(growth(0))
    grown = [growth(1), growth(2)]
    for each in grown:
        each.live()
        _check_refusals(each, len(lm.vocabulary))
        _check_counts(each.trees)
    law = reference or (lambda sequence: lm.trees([sequence]).roots().logits[0])
    error = max(_error(each, law, tolerance) for each in grown)
    _check_context(growth(3), lm.max_length)
    return Conformance(sum(len(each.history) for each in grown), sum(each.trees.counts.calls for each in grown), error)


def _check_given(lm: object, prompts: Any, tolerance: object) -> None:
    """Refuse arguments that nothing can be checked with."""
    if not isinstance(lm, LanguageModel):
        raise UnsupportedError(f"Derive the model from outlines_phi.lm.LanguageModel. lm={shown(lm)} was given.")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise UnsupportedError(
            f"Let tolerance= be a number of nats, 0 or more. tolerance={shown(tolerance)} was given."
        )
    longest = lm.max_length if isinstance(lm.max_length, int) else np.inf
    for prompt in () if prompts is None else prompts:
        if isinstance(prompt, str) or not all(map(is_count, prompt)) or not 0 < len(prompt) < longest:
            raise UnsupportedError(
                "Give prompts as sequences of token ids, not empty and shorter than max_length= of the model. "
                f"{shown(prompt)} is among them."
            )


def _check_declared(lm: LanguageModel) -> None:
    """Check the declarations of a model."""
    version, fingerprint, longest = lm.version(), lm.fingerprint(), lm.max_length
    expectations = {
        "version()": (
            isinstance(version, Hashable) and version == lm.version(),
            "one hashable value while nothing changes",
        ),
        "fingerprint()": (
            isinstance(fingerprint, str) and fingerprint == lm.fingerprint(),
            "one text while nothing changes",
        ),
        "rounding": (isinstance(lm.rounding, float) and 0 <= lm.rounding < 1, "a small number of nats"),
        "max_length": (longest is None or (isinstance(longest, int) and longest > 1), "None, or how many tokens"),
        "device": (isinstance(lm.device, torch.device), "a torch.device"),
    }
    for name, (holds, expected) in expectations.items():
        if not holds:
            found = getattr(lm, name.removesuffix("()"))
            raise ModelError(f"Let {name} be {expected}. It is {found() if callable(found) else found!r}.")


def _refused(what: str, call: Callable[[], object], remedy: str) -> None:
    try:
        call()
    except OutlinesPhiError:
        return
    except Exception as error:
        raise ModelError(f"Raise ModelError: {remedy}. {what} raised {type(error).__name__} ({error}).") from error
    raise ModelError(f"Raise ModelError: {remedy}. {what} was taken.")


def _check_order(growth: TreeGrowth) -> None:
    trees = growth.trees
    _refused("extend() before roots()", lambda: trees.extend([0], [0]), "prompts are evaluated first")
    _refused("roots() with an unknown parent", lambda: trees.roots([10**6], [0]), "a parent is a node before its child")
    growth.plant(2)
    _refused("a second roots()", trees.roots, "prompts are evaluated once")


def _check_refusals(growth: TreeGrowth, size: int) -> None:
    """Check that wrong arguments are refused, take no handles, and leave the trees as they were."""
    trees, root = growth.trees, 0
    first = trees.next_node
    given_back = next(node for node in range(first) if node not in growth.sequences)
    refused = {
        "a parent that no node has": ([first + 99], [0]),
        "a negative parent": ([-1], [0]),
        "a parent behind its child": ([first + 1, root], [0, 0]),
        "a parent that was given back": ([given_back], [0]),
        "a token beyond the vocabulary": ([root], [size]),
        "a negative token": ([root], [-1]),
        "more parents than tokens": ([root, root], [0]),
    }
    for what, (parents, tokens) in refused.items():
        _refused(what, lambda p=parents, t=tokens: trees.extend(p, t), "handles and tokens have to exist")  # type: ignore[misc]
    _refused("compact() to a node that was given back", lambda: trees.compact([given_back]), "handles have to exist")
    if trees.next_node != first:
        raise ModelError(f"Let a refused call take no handles. next_node went from {first} to {trees.next_node}.")
    growth.follow([root, *list(growth.sequences)[-1:]] if growth.has_room(list(growth.sequences)[-1]) else [root])


def _check_counts(trees: TokenTrees) -> None:
    counts = trees.counts
    if min(counts.calls, counts.prompt_tokens, counts.tokens) < 1:
        raise ModelError(
            f"Count calls, prompt tokens and tokens of nodes in `counts`. After several calls they are {counts}."
        )


def _check_context(growth: TreeGrowth, max_length: int | None) -> None:
    if max_length is None:
        return
    growth.plant()
    node = 0
    for _ in range(max_length - len(growth.prompts[0])):
        (node,) = growth.follow([node])
    _refused(
        f"a node beyond max_length={max_length}",
        lambda: growth.trees.extend([node], [0]),
        "the context is the model's limit",
    )
    growth.follow([1])


def _error(growth: TreeGrowth, law: Callable[[tuple[int, ...]], Any], tolerance: float) -> float:
    """Return the largest error of the answers about nodes, against those about whole sequences; raise beyond the tolerance."""
    largest = 0.0
    for sequence, logits in growth.history:
        log_p = logits.log_softmax(-1).cpu()
        expected = torch.as_tensor(law(sequence)).double().cpu()
        if expected.shape != log_p.shape:
            raise UnsupportedError(
                f"Let reference= return one logit for each of the {len(log_p)} tokens. It gave {list(expected.shape)} after "
                f"{list(sequence)}."
            )
        expected = expected.log_softmax(-1)
        likely = torch.maximum(log_p, expected) > np.log(LIKELY)
        error = float((log_p - expected)[likely].abs().max())
        if not error <= tolerance:
            raise ModelError(
                "Evaluate every node as its whole sequence: look for a cache that holds other nodes, a wrong position or mask, or "
                f"rows in another order. After {list(sequence)} log p is off by {error:.3g} nats, beyond tolerance={tolerance}."
            )
        largest = max(largest, error)
    return largest
