"""The conformance tests of language models, on random token trees, and of guides, by definition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..automata.byte_machine import ByteMachine
from ..errors import ModelError, OutlinesPhiError, UnsupportedError
from ..guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from ..lm.model import Evaluation, LanguageModel, TokenTrees
from ..numerics.checks import is_count, shown
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import EOS, NEVER, Partition, Vocabulary


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
        if evaluation.logits.requires_grad or not evaluation.logits.amax(-1).isfinite().all():
            raise ModelError(
                f"Return logits without gradients, below +inf, and one of each row finite. {call} gave others (NaN, maybe)."
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
"""Tokens below this probability, and below the likeliest, are not compared: in single precision their log means little."""


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
    _check_given(lm, prompts, reference, tolerance, seed)
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


def _check_given(lm: object, prompts: Any, reference: object, tolerance: object, seed: object) -> None:
    """Refuse arguments that nothing can be checked with."""
    if not isinstance(lm, LanguageModel):
        raise UnsupportedError(f"Derive the model from outlines_phi.lm.LanguageModel. lm={shown(lm)} was given.")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
        raise UnsupportedError(
            f"Let tolerance= be a number of nats, 0 or more. tolerance={shown(tolerance)} was given."
        )
    if not isinstance(prompts, Sequence | None) or not (reference is None or callable(reference)) or not is_count(seed):
        raise UnsupportedError(
            "Give prompts= as a list, reference= as a function, and seed= as a whole number, 0 or more. "
            f"{shown(prompts)}, {shown(reference)} and {shown(seed)} were given."
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
        larger = torch.maximum(log_p, expected)
        error = float((log_p - expected)[larger >= min(np.log(LIKELY), float(larger.max()))].abs().max())
        if not error <= tolerance:
            raise ModelError(
                "Evaluate every node as its whole sequence: look for a cache that holds other nodes, a wrong position or mask, or "
                f"rows in another order. After {list(sequence)} log p is off by {error:.3g} nats, beyond tolerance={tolerance}."
            )
        largest = max(largest, error)
    return largest


def assert_guide(guide: Guide, *, limit: int = 10_000, shortest: bool = True) -> None:
    """Assert the laws of every guide, whatever its language, in the states that tokens reach from its start.

    - DEAD and DONE lead nowhere; DEAD cannot be finished and DONE is finished.
    - DONE is reached by the end of sequence and, but where texts begin with a member, by nothing else.
    - Ids that write nothing are never allowed, except the first end-of-sequence id.
    - ``min_tokens`` is one more than the least of a state's targets, so no allowed token leads into a dead end; or no less
      where it is not ``shortest``. Where the text may end, it is 0 for an open guide.

    Parameters
    ----------
    guide
        The guide.
    limit
        The most states that are looked at.
    shortest
        True if ``min_tokens`` is promised to be the least number of tokens, not only an upper bound that some token lowers.

    Raises
    ------
    AssertionError
        A law that does not hold, with the state.
    """
    for state, fewest in ((DEAD, UNREACHABLE), (DONE, 0)):
        assert guide.min_tokens(state) == fewest, f"min_tokens of state {state} must be {fewest}"
        assert not guide.row(state).targets.any(), f"state {state} must lead nowhere"
    for state in reachable(guide, limit=limit):
        row, here = guide.row(state), guide.describe(state)
        assert row.targets.shape == (row.partition.size,), here
        class_of = row.partition.class_of
        assert class_of.shape == (len(guide.vocabulary),) and class_of.max() < row.partition.size, here
        assert row.partition.members(EOS).tolist() == [guide.vocabulary.eos_ids[0]], here
        silent = [
            v for v, token in enumerate(guide.vocabulary.tokens) if not token and v != guide.vocabulary.eos_ids[0]
        ]
        assert not row.targets[row.partition.class_of[silent]].any(), f"an id that writes nothing is allowed: {here}"
        assert row.targets[NEVER] == DEAD, f"no state allows NEVER: {here}"
        assert row.targets[EOS] in (DEAD, DONE), f"the end of sequence only ends a text: {here}"
        ends = (guide.match is not None and guide.ends_by_tokens) or DONE not in row.targets[EOS + 1 :]
        assert ends, f"something else than the end of sequence ends a text: {here}"
        targets = {int(target) for target in row.targets} - {DEAD}
        assert targets, f"nothing is allowed: {here}"
        distances = [guide.min_tokens(target) for target in targets]
        assert max(distances) < UNREACHABLE, f"an allowed token leads into a dead end: {here}"
        least = 0 if guide.open and row.targets[EOS] == DONE else 1 + min(distances)
        assert guide.min_tokens(state) == least or (not shortest and least < guide.min_tokens(state)), here


def assert_spells(
    guide: Guide,
    machine: ByteMachine[Any] | Guide,
    *,
    limit: int = 10_000,
    shortest: bool = True,
    start: int | None = None,
) -> None:
    """Assert that ``guide`` allows exactly the token sequences whose bytes ``machine`` allows.

    It is compared with a :class:`ReferenceGuide`, state by state: the allowed tokens, where they lead, and the fewest tokens to an
    end.

    Parameters
    ----------
    guide
        The guide.
    machine
        The language, or another guide that has it.
    limit
        The most pairs of states that are looked at.
    shortest
        True if ``min_tokens`` is promised to be the least number of tokens, not only an upper bound that some token lowers.
    start
        The state of the guide that texts begin in, which a prompt may decide.

    Raises
    ------
    AssertionError
        A token or a distance that differs, with the state.
    """
    reference = machine if isinstance(machine, Guide) else ReferenceGuide(machine, guide.vocabulary, open=guide.open)
    every = np.arange(len(guide.vocabulary))
    pairs = {(guide.start if start is None else start, reference.start)}
    queue = deque(pairs)
    while queue and len(pairs) < limit:
        state, place = queue.popleft()
        here = f"{guide.describe(state)}; {reference.describe(place)}"
        least, expected = guide.min_tokens(state), reference.min_tokens(place)
        assert least == expected or (not shortest and expected < least < UNREACHABLE), (
            f"{least}, not {expected}: {here}"
        )
        assert np.array_equal(guide.mask(state), reference.mask(place)), f"the mask: {here}"
        found, wanted = (row.targets[row.partition.class_of] for row in (guide.row(state), reference.row(place)))
        assert [guide.advance(state, token) for token in every.tolist()] == found.tolist(), here
        for token in np.flatnonzero((found != DEAD) != (wanted != DEAD)).tolist():
            raise AssertionError(f"token {token}, {guide.vocabulary.tokens[token]!r}: {here}")
        for pair in zip(found.tolist(), wanted.tolist(), strict=True):
            if min(pair) > DONE and pair not in pairs:
                pairs.add(pair)
                queue.append(pair)


def reachable(guide: Guide, *, limit: int = 10_000) -> list[int]:
    """Return the states that tokens reach from the start, at most ``limit``, without DEAD and DONE."""
    found = {guide.start}
    queue = deque(found)
    while queue and len(found) < limit:
        new = set(np.unique(guide.row(queue.popleft()).targets).tolist()) - found - {DEAD, DONE}
        found |= new
        queue.extend(sorted(new))
    return sorted(found)


MOST_STATES = 100_000
"""The most states in which an end is looked for."""


@final
class ReferenceGuide(Guide):
    """The token sequences whose bytes a machine allows, by a walk of the trie that steps each distinct place and byte once.

    ``min_tokens`` is the fewest tokens, breadth first; ``AssertionError`` where :data:`MOST_STATES` states do not tell. An end
    costs a token, but in an ``open`` guide.
    """

    machine: ByteMachine[Any]

    def __init__(self, machine: ByteMachine[Any], vocabulary: Vocabulary, *, open: bool = False) -> None:
        self.machine, self.vocabulary, self.open = machine, vocabulary, open
        self._trie = Trie.of(vocabulary)
        self._places: list[Any] = [None, None]
        self._number: dict[Any, int] = {None: DEAD}
        self._steps: dict[int, int] = {}
        self._targets: dict[int, NDArray[np.int64]] = {}
        self._fewest: dict[int, int] = {DEAD: UNREACHABLE, DONE: 0}
        self.start = self._state(machine.start)

    def row(self, state: int) -> Row:
        states, which = np.unique(self._walk(state), return_inverse=True)
        live = [target if self.min_tokens(target) < UNREACHABLE else DEAD for target in states.tolist()]
        class_of: NDArray[np.int32] = (which.reshape(-1) + EOS + 1).astype(np.int32)
        end = live[which.reshape(-1)[self.vocabulary.eos_ids[0]]]
        class_of[[not token for token in self.vocabulary.tokens]] = NEVER
        class_of[self.vocabulary.eos_ids[0]] = EOS
        return Row(Partition(class_of, EOS + 1 + len(live)), np.array([DEAD, end, *live]))

    def min_tokens(self, state: int) -> int:
        if state not in self._fewest:
            self._fewest[state] = self._search(state)
        return self._fewest[state]

    def describe(self, state: int) -> str:
        return self.machine.describe(self._places[state]) if state > DONE else ("dead", "done")[state]

    def _state(self, place: Any) -> int:
        number = self._number.setdefault(place, len(self._places))
        self._places += [place] * (number == len(self._places))
        return number

    def _step(self, key: int) -> int:
        """Return the state after a byte; both are one number, ``256 * state + byte``."""
        if key not in self._steps:
            state, byte = divmod(key, 256)
            self._steps[key] = self._state(self.machine.step(self._places[state], byte)) if state > DONE else DEAD
        return self._steps[key]

    def _walk(self, state: int) -> NDArray[np.int64]:
        """Return the target of each token, dead ends not told."""
        if state not in self._targets:
            trie, at = self._trie, np.full(len(self._trie), state)
            for low, high in pairwise(trie.levels[1:].tolist()):
                keys = at[trie.parent[low:high]] * 256 + trie.byte[low:high]
                distinct, which = np.unique(keys, return_inverse=True)
                at[low:high] = np.array(list(map(self._step, distinct.tolist())))[which]
            at[0] = DEAD
            targets = self._targets[state] = at[trie.node_of]
            targets[self.vocabulary.eos_ids[0]] = (
                DONE if state > DONE and self.machine.ends(self._places[state]) else DEAD
            )
        return self._targets[state]

    def _search(self, state: int) -> int:
        level, seen, tokens = {state}, {state}, 0
        while level:
            found = set[int]().union(*(self._walk(one).tolist() for one in level))
            tokens += 1
            if DONE in found:
                return tokens - self.open
            level = found - seen - {DEAD}
            seen |= level
            assert len(seen) < MOST_STATES, f"no end was found from here: {self.describe(state)}"
        return UNREACHABLE
