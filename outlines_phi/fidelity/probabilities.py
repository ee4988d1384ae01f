"""The probability of each value of an output type, with certified bounds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..automata.stops import Thoughts
from ..errors import BudgetError, ValueReadError
from ..guides.guide import DONE, Match
from ..guides.guide_texts import list_texts
from ..lm.model import LanguageModel, ModelCounts, Progress, check_interruption, current, follow
from ..numerics.marginals import Marginals, frozen
from ..numerics.weights import bounds_text, ratio
from ..phi.tree.best_first import enumerate_together, expand_usual
from ..phi.tree.distribution import Beginnings, Distribution
from ..phi.tree.evaluator import Evaluator
from ..phi.tree.tree import BoundsTree, Node, refuse_impossible
from ..settings import SamplingSettings
from ..vocabulary.special_tokens import MARK
from ..vocabulary.vocabulary import Vocabulary

Place = tuple[Node, int]
"""An undecided part of a tree: an unexpanded node with -1, or an expanded node and one of its free tokens."""


def text_masses(tree: BoundsTree) -> tuple[dict[bytes, float], Counter[bytes]]:
    """Return the share of ``U`` of every text that ``tree`` has reached, and the number of its tokenizations."""
    shares, spellings = defaultdict[bytes, float](float), Counter[bytes]()
    for node in tree.walk():
        if node.state == DONE and node.log_p > -math.inf:
            written = tree.table.guide.member(node.tokens())
            shares[written] += math.exp(node.log_p - tree.root.log_upper)
            spellings[written] += 1
        elif tree.table.guide.match is not None and node.distribution is not None:
            for text, found in _ended(tree, tree.table.guide.match, node, node.distribution):
                shares[text] += float(found.sum())
                spellings[text] += len(found)
    return dict(shares), spellings


def _ended(
    tree: BoundsTree, match: Match | Thoughts, node: Node, free: Distribution
) -> Iterator[tuple[bytes, NDArray[np.float64]]]:
    """Yield the texts that free tokens end, and the shares of ``U`` of those tokens; none of them has a node."""
    vocabulary, (tokens, log_p) = tree.table.vocabulary, free.ended()
    shares = np.exp(node.log_p + log_p - tree.root.log_upper)
    tokens, shares = tokens[shares > 0], shares[shares > 0]

    def cuts(key: int, find: Callable[[int, Vocabulary], NDArray[np.int64]]) -> NDArray[np.int64]:
        return tree.table.keep("cuts", key, lambda: find(key, vocabulary), lambda found: found.nbytes)[..., tokens]

    spelled = [vocabulary.tokens[token] for token in tokens.tolist()]
    for text, places in match.ended(vocabulary.decode(node.tokens()), spelled, cuts) if spelled else ():
        yield text, shares[places]


def undecided_share(tree: BoundsTree) -> float:
    """Return the share of ``U`` of which :func:`text_masses` does not know to what texts it goes."""
    share = ratio(tree.root.log_gap, tree.root.log_upper)
    for node in tree.walk() if tree.table.guide.match is not None else ():
        if node.distribution is None and node.log_ends > -math.inf:
            share += math.exp(node.log_p + node.log_ends - tree.root.log_upper)
    return share


Writing = Callable[[bytes, int], Iterator[tuple[int, int]]]
"""Yields every token that a text may go on with at a position, and the position after it."""


def tokens_writing(tokens: Sequence[bytes]) -> Writing:
    """Return the function that finds the tokens that a text may go on with."""
    ids = defaultdict[bytes, list[int]](list)
    for token, written in enumerate(tokens):
        ids[written].append(token)
    longest = max(map(len, ids))

    def writing(text: bytes, at: int) -> Iterator[tuple[int, int]]:
        for end in range(at + 1, min(at + longest, len(text)) + 1):
            for token in ids.get(text[at:end], ()):
                yield token, end

    return writing


def undecided_places(root: Node, text: bytes, writing: Writing) -> Iterator[tuple[Place, bytes, float]]:
    """Yield every undecided place below ``root`` that may go to ``text``, what it has written, and its share of ``U``.

    An undecided prefix can go to a text only if the text begins with what the prefix has written, so most of the undecided mass is
    out of the question for most texts.
    """
    stack = [(root, 0)]
    while stack:
        node, at = stack.pop()
        log_share = node.log_p - root.log_upper
        if not node.expanded or (node.distribution is None and node.log_rest > -math.inf):
            yield (node, -1), text[:at], math.exp(log_share + (node.log_rest if node.expanded else 0.0))
        for token, end in writing(text, at) if node.expanded else ():
            child = node.children.get(token)
            if child is not None:
                stack.append((child, end))
            elif node.distribution is not None and (log_p := node.distribution.log_p(token)) > -math.inf:
                yield (node, token), text[:end], math.exp(log_share + log_p)


LISTED_PREFIXES = 20_000
"""A type whose texts have at most this many prefixes is listed whole, with the values that were not reached."""

READING = 0.2  # Share of a call's time that values may be read for after its end, so that what was found is not lost

Reader: TypeAlias = Callable[[str], Any] | None  # The reader of values from texts; `None` where the text is the value

ROWS = 20  # Values that a printed table shows


@final
@dataclass(frozen=True, kw_only=True)
class Probability:
    """The probability of one value under ``mu*``.

    Attributes
    ----------
    value
        The value that the output type reads from the texts; a text itself where the type refuses it.
    p
        The estimate: the share of what was enumerated. ``nan`` where nothing was.
    lo, hi
        ``lo <= P(value) <= hi``, certified.
    texts
        The texts of this value that are known, the likeliest first; without a string that ended them.
    spellings
        The number of tokenizations of all these texts that were enumerated.
    refused
        The reason that the type refuses the text although it fits the format; ``None`` for a value.
    """

    value: Any
    p: float
    lo: float
    hi: float
    texts: tuple[str, ...]
    spellings: int
    refused: ValueReadError | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The likeliest text of the value."""
        return self.texts[0]

    def __float__(self) -> float:
        return self.p


@final
@dataclass(frozen=True, kw_only=True)
class Probabilities(Mapping[Any, Probability]):
    """``P(value)`` under ``mu*`` for the values of an output type after a prompt, the likeliest first.

    A mapping from values. A value that cannot be hashed (a pydantic instance, a dict) is found by its content:
    ``probabilities[Character(...)]``.

    Attributes
    ----------
    entries
        One :class:`Probability` per value.
    other
        ``(lo, hi)`` bounds of the probability of all values that are not listed, together.
    complete
        True if every value of the type is listed, also those of probability 0.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi(prompt)``, in nats.
    counts
        The cost: model calls and tokens, of the whole batch.
    budget
        The ``N`` that the distribution depends on: the most tokens of a text, end of sequence included.
    beginnings
        The likeliest first tokens of the model and of the format, where they were read.
    """

    entries: tuple[Probability, ...]
    other: tuple[float, float]
    complete: bool
    log_z_bounds: tuple[float, float]
    counts: ModelCounts
    budget: int
    beginnings: Beginnings | None = field(default=None, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return (entry.value for entry in self.entries)

    def __getitem__(self, value: Any) -> Probability:
        for refused in (False, True):
            try:
                return self._index[key(value, refused=refused)]
            except (KeyError, TypeError):  # not listed, or no text
                continue
        rest = f"it is among the others, which together have at most {self.other[1]:.3g}"
        raise KeyError(f"{value!r:.200} is not listed: " + ("no such value" if self.complete else rest))

    @cached_property
    def _index(self) -> dict[Hashable, Probability]:
        return {key(entry.value, refused=entry.refused is not None): entry for entry in self.entries}

    @property
    def tolerance(self) -> float:
        """``(U - Lo) / U``: no interval is wider, and the estimates are within this total variation of ``mu*``."""
        lower, upper = self.log_z_bounds
        return max(0.0, -math.expm1(lower - upper)) if upper > -math.inf else 0.0

    @property
    def distribution(self) -> dict[Any, float]:
        """The estimate of each value that was reached; it sums to 1, within :attr:`tolerance` of ``mu*`` in total variation.

        It is ``mu*`` conditioned on an event of probability ``Lo / Phi``, hence within ``1 - Lo / Phi <= (U - Lo) / U`` of it.
        """
        return {entry.value: entry.p for entry in self.entries if entry.spellings}

    def marginals(self) -> Marginals:
        """Return the distribution of each field of the values, with certified bounds."""
        return Marginals.certain(
            [entry.value if entry.refused is None else entry.refused for entry in self.entries],
            [(entry.p, entry.lo, entry.hi) for entry in self.entries],
            other=self.other[1],
            gap=self.tolerance,
            source=f"log Phi {bounds_text(self.log_z_bounds)}",
        )

    def __str__(self) -> str:
        """Return a table of the likeliest values, and ``log Phi``."""
        rows = [("value", "p", "lo", "hi"), *self.rows(ROWS)]
        width = max(min(60, len(name)) for name, *_ in rows)
        lines = [f"{name[:60]:{width}}  {p:>8}  {lo:>8}  {hi:>8}".rstrip() for name, p, lo, hi in rows]
        return "\n".join([*lines, f"log Phi {bounds_text(self.log_z_bounds)}"])

    def rows(self, top: int) -> list[tuple[str, ...]]:
        """Return the lines of a table of the ``top`` likeliest values: text, ``p``, ``lo`` and ``hi``, and what is left out."""
        number = "{:.4f}".format
        rows: list[tuple[str, ...]] = []
        for entry in self.entries[:top]:
            name = entry.text.replace("\n", "\\n") + " (refused)" * (entry.refused is not None)
            rows.append((name, *map(number, (entry.p, entry.lo, entry.hi))))
        if len(self) > top:
            rows.append((f"... {len(self) - top:,} more", "", "", ""))
        return rows if self.complete else [*rows, ("all others", "", *map(number, self.other))]


def probabilities(
    lm: LanguageModel,
    settings: SamplingSettings,
    prompts: Sequence[Sequence[int]],
    trees: Sequence[BoundsTree],
    *,
    tolerance: float,
    max_tokens: int,
    max_bytes: int = 2**40,
    reader: Callable[[str], Any] | None = None,
) -> list[Probabilities]:
    """Return the probability of every value after each prompt, in shared model calls.

    With ``Lo(x)`` the mass of the enumerated texts of a value ``x``, ``R(x)`` the undecided mass that may still go to it, and
    ``R'(x)`` the part of it that can go nowhere else in the language (theory.md, section 9)::

        Lo(x) / (U - R'(x))  <=  P(x)  <=  (Lo(x) + R(x)) / (Lo + R(x))

    An undecided prefix can spell only texts that begin with what it has written. That makes ``R(x)`` less than ``U - Lo`` where
    every text is its own value, or where all texts of the type are known; ``R'(x)`` is above 0 only in the second case.

    ``trees`` are one per prompt, in any state. They are enumerated until ``U - Lo <= tolerance * Lo``, for ``max_tokens`` model
    tokens and ``max_bytes`` of memory per prompt at most; the time of the call that is watched ends the work and
    the reading, too. ``reader`` gives the value of a text, ``None`` where every text is its own; what was not read is undecided.

    A :class:`BudgetError` where the tolerance was not reached, whose ``partial`` has the probabilities with the bounds that were;
    an :class:`EmptyLanguageError` where no member of the language has any probability.
    """
    evaluator, known = Evaluator(lm, settings, prompts, trees), [tree.expansions for tree in trees]
    follow(lambda: Progress.of(evaluator.counts, log_bounds=[tree.log_bounds for tree in trees]))
    expand_usual(trees, evaluator, max_tokens)
    spent = [tree.expansions - n for tree, n in zip(trees, known, strict=True)]
    reached = enumerate_together(trees, evaluator, tolerance, max_tokens, max_bytes, spent=spent)
    refuse_impossible(trees, settings)
    counts = replace(evaluator.counts)
    texts = {tree.budget: list_texts(tree.table, tree.table.start, tree.budget, LISTED_PREFIXES) for tree in trees}
    watch, results = current(), []
    for row, tree in enumerate(trees):
        left = max((watch.limit - watch.seconds) / (len(trees) - row), READING * watch.limit / len(trees))
        results.append(probabilities_of_tree(tree, texts[tree.budget], reader, counts, until=watch.seconds + left))
    for row, (result, unread) in enumerate(results):
        if reached[row] and not unread:
            continue
        low, high = result.log_z_bounds
        when = watch.end_of("its effort or its memory was used")
        raise BudgetError.of(
            "Give a larger effort or tolerance, or a smaller language: a lower max_new_tokens, or an output type with bounds",
            f"Prompt {row}: {trees[row].expansions} expanded prefixes ({counts.tokens} model tokens, paths that were evaluated "
            f"again included) left log Phi between {low:.4g} and {high:.4g}, short of tolerance={tolerance}, when {when}"
            + (f"; {unread:,} of the texts found were not read" if unread else ""),
            "the error's .partial has the probabilities with the bounds so far",
            partial=[found for found, _ in results],
            log_z_bounds=result.log_z_bounds,
        )
    return [found for found, _ in results]


def probabilities_of_tree(
    tree: BoundsTree, listed: list[bytes] | None, reader: Reader, counts: ModelCounts, until: float = math.inf
) -> tuple[Probabilities, int]:
    """Return the probabilities by what was read ``until`` then, in seconds of the call, and how many texts were not."""
    (shares, spellings), vocabulary, thoughts = text_masses(tree), tree.table.vocabulary, tree.table.guide.thoughts
    if listed is not None and thoughts is not None:
        listed = sorted(set(map(thoughts.member, listed)))
    if vocabulary.plain is not None and reader is None:  # what is shown may be written with special tokens and without
        reader = str
    likeliest = sorted({*shares, *(listed or ())}, key=lambda text: (-shares.get(text, 0.0), text))
    groups, unread = grouped(likeliest, reader, until, vocabulary.shown)
    listed = None if unread else listed
    # Sums of the numerators: the tree has added the same masses in another order, and shares of that would not add up to 1.
    lower = math.fsum(shares.get(text, 0.0) for group in groups for text in group.texts)
    upper = math.fsum(shares.values()) + undecided_share(tree)
    masses = [(upper - lower, 0.0)] * len(groups) if unread else undecided_masses(tree, groups, listed, reader)
    entries = []
    for group, (may, only) in zip(groups, masses, strict=True):
        p = math.fsum(shares.get(text, 0.0) for text in group.texts)
        ranked = sorted(group.texts, key=lambda text: -shares.get(text, 0.0))
        entry = Probability(
            value=group.value,
            p=min(1.0, p / lower) if lower > 0 else math.nan,
            lo=min(1.0, p / (upper - only)) if p > 0 else 0.0,
            hi=min(1.0, (p + may) / (lower + may)) if p + may > 0 else 0.0,
            texts=tuple(dict.fromkeys(vocabulary.shown(text).decode() for text in ranked)),
            spellings=sum(spellings[text] for text in group.texts),
            refused=group.refused,
        )
        entries.append(entry)
    entries.sort(key=lambda entry: (-entry.p if lower > 0 else 0.0, -entry.hi, entry.text))
    return Probabilities(
        entries=tuple(entries),
        other=(0.0, 0.0 if listed is not None else (upper - lower) / upper),
        complete=listed is not None,
        log_z_bounds=(tree.root.log_lower, tree.root.log_upper),
        counts=counts,
        budget=tree.budget,
        beginnings=tree.beginnings,
    ), unread


def undecided_masses(
    tree: BoundsTree, groups: Sequence[Group], listed: list[bytes] | None, reader: Reader
) -> list[tuple[float, float]]:
    """Return, for each group, the undecided mass that may go to it, and the part that can go nowhere else."""
    gap = undecided_share(tree)
    if gap <= 0:
        return [(0.0, 0.0)] * len(groups)
    if (listed is None and reader is not None) or tree.table.guide.match is not None:
        # A text that was not reached may have any of the values, and one that goes on may be of any shorter member.
        return [(gap, 0.0)] * len(groups)
    writing = tokens_writing(tree.table.vocabulary.tokens)
    masses = []
    for group in groups:
        places: dict[Place, tuple[bytes, float]] = {}
        for text in group.texts:
            places.update((place, (written, p)) for place, written, p in undecided_places(tree.root, text, writing))
        may = math.fsum(p for _, p in places.values())
        own = (
            p
            for written, p in places.values()
            if listed and _beginning(listed, written) == _beginning(group.texts, written)
        )
        masses.append((min(gap, may), min(gap, math.fsum(own))))
    return masses


def key(value: Any, *, refused: bool) -> Hashable:
    """Return the key of a value; a text that its type refuses is kept apart from a value that is this text."""
    return (ValueReadError, value) if refused else frozen(value)


@final
@dataclass
class Group:
    """The known texts of one value, in the order of their bytes."""

    value: Any
    refused: ValueReadError | None
    texts: list[bytes]


def grouped(
    texts: Sequence[bytes],
    reader: Reader,
    until: float = math.inf,
    shown: Callable[[bytes], bytes] = bytes,
) -> tuple[list[Group], int]:
    """Return ``texts`` by the value that ``reader`` makes of what they show, ``None`` for that itself, and how many were not read.

    A text that the type refuses is a group of its own. Nothing is read after ``until``, in seconds of the call.
    """
    groups: dict[Hashable, Group] = {}
    watch, unread, spelled = current(), 0, getattr(reader, "spelled", False)
    for at, written in enumerate(texts):
        if reader is not None and until < math.inf and watch.seconds >= until:
            unread = len(texts) - at
            break
        check_interruption()
        text = shown(written).decode()
        read = written.decode(errors="surrogateescape") if spelled else text
        try:
            group = Group(text if reader is None else reader(read), None, [])
        except ValueReadError as error:
            group = Group(text, error, [])
        groups.setdefault(key(group.value, refused=group.refused is not None), group).texts.append(written)
    for group in groups.values():
        group.texts.sort()
    return list(groups.values()), unread


def _beginning(texts: Sequence[bytes], written: bytes) -> int:
    """Return the number of the sorted ``texts`` with the prefix ``written``; no text holds the bytes that end the range."""
    return bisect_left(texts, written + 2 * MARK) - bisect_left(texts, written)
