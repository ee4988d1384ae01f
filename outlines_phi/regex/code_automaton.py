"""Sets of code points, and deterministic automata over them, each the least of its language."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import Any, final

import numpy as np
import regex
from numpy.typing import NDArray

from ..automata.automaton import UNREACHABLE, distances, explored
from ..format_limits import LimitError, current_limits

CodePoints = tuple[int, ...]
"""An inversion list: the first code point of a run inside the set, then of the run outside that follows, and so on."""

FIRST_SURROGATE, AFTER_SURROGATES = 0xD800, 0xE000
"""Surrogates are no characters. A set may hold them, but no string does."""

NOTHING: CodePoints = ()
CODE_POINTS = sys.maxunicode + 1
EVERYTHING: CodePoints = (0, CODE_POINTS)
ASCII: CodePoints = (0, 0x80)


def ranges(*pairs: tuple[int, int]) -> CodePoints:
    """Return the set of all code points from ``first`` to ``last``, both included, for each pair of them."""
    found: list[int] = []
    for first, last in sorted(pairs):
        if found and first <= found[-1]:
            found[-1] = max(found[-1], last + 1)
        else:
            found += [first, last + 1]
    return tuple(found)


def characters(text: str) -> CodePoints:
    """Return the set of the characters of ``text``."""
    return ranges(*((ord(character), ord(character)) for character in text))


def union(sets: Iterable[CodePoints]) -> CodePoints:
    """Return the union of ``sets``."""
    return ranges(
        *((first, after - 1) for points in sets for first, after in zip(points[::2], points[1::2], strict=True))
    )


def others(points: CodePoints) -> CodePoints:
    """Return the complement of ``points``."""
    inside = points[1:] if points[:1] == (0,) else (0, *points)
    return inside[:-1] if inside[-1:] == (CODE_POINTS,) else (*inside, CODE_POINTS)


def both(one: CodePoints, other: CodePoints) -> CodePoints:
    """Return the intersection of two sets."""
    return others(union([others(one), others(other)]))


def contains(points: CodePoints, code_point: int) -> bool:
    """Return True if ``code_point`` is in the set."""
    return bool(bisect_right(points, code_point) % 2)


def cut(sets: list[CodePoints]) -> tuple[NDArray[np.int32], NDArray[np.int32], list[list[int]]]:
    """Cut the code points into classes that no set tells apart: the first of each run, its class, and the classes of each set.

    No run begins inside the surrogates: they go with the character before them.
    """
    bounds = np.unique(np.array([0, *(place for points in sets for place in points)], dtype=np.int32))
    bounds = bounds[bounds < CODE_POINTS]
    bounds[(bounds >= FIRST_SURROGATE) & (bounds < AFTER_SURROGATES)] = AFTER_SURROGATES
    bounds = np.unique(bounds)
    inside = np.array([np.searchsorted(points, bounds, side="right") % 2 for points in sets], dtype=np.uint8)
    packed = np.packbits(inside.reshape(len(sets), len(bounds)), axis=0).T
    number: dict[bytes, int] = {}
    classes = np.array([number.setdefault(row.tobytes(), len(number)) for row in packed], dtype=np.int32)
    return bounds, classes, [sorted(set(classes[row == 1].tolist())) for row in inside]


@lru_cache(maxsize=64)
def found(written: str) -> CodePoints:
    """Return the characters that a class matches, written as the package ``regex`` reads it; ``regex.error`` where it does not."""
    spans = (match.span() for match in regex.finditer(f"(?:{written})+", _every_character()))
    return tuple(place for span in spans for place in span)


@lru_cache(maxsize=1)
def _every_character() -> str:
    return np.arange(CODE_POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@lru_cache(maxsize=256)
def in_any_case(points: CodePoints) -> CodePoints:
    """Return the characters that are in ``points`` but for their case, by Unicode's simple case folding."""
    cased = both(points, found(_CASED))
    if not cased:
        return points
    written = "".join(
        f"\\U{first:08X}-\\U{after - 1:08X}" for first, after in zip(cased[::2], cased[1::2], strict=True)
    )
    folded = set(regex.findall(f"(?i:[{written}])", "".join(regex.findall(_CASED, _every_character()))))
    # The package takes the letters I, i, and the Turkic ones without and with a dot for one.
    folded -= set("\u0130\u0131" if contains(points, ord("i")) or contains(points, ord("I")) else "\u0130\u0131Ii")
    return union([points, characters("".join(folded))])


_CASED = r"[\p{Changes_When_Casemapped}\p{Changes_When_Casefolded}\p{Cased}\u0345]"
"""The characters that may have another case."""


DEAD_END = -1

_FEW = 16  # States that are told apart in as many rounds sooner than by the lengths of what they accept
_MANY = 256  # States of which a round that looks at some alone is the sooner one

Interval = tuple[int, int | None]
"""The least and the greatest length, both included; ``None`` is no bound."""


def is_within(length: int, intervals: Iterable[Interval]) -> bool:
    """Return True if a length is in one of the intervals."""
    return any(low <= length and (high is None or length <= high) for low, high in intervals)


def check_states(states: int, what: str) -> None:
    """Refuse an automaton over code points with more states than :attr:`Limits.states`; ``what`` needs them."""
    most = current_limits().states
    if states > most:
        raise LimitError(
            "Lower the bounds of lengths and repeats, drop one of what restricts the same string, or raise the limit by "
            "`outlines_phi.limits(states=...)`",
            f"{what} needs more than {most:,} states",
        )


@final
@dataclass(frozen=True, eq=False)
class CodeAutomaton:
    """A complete deterministic automaton over code points, in canonical form: equal languages have equal tables.

    State 0 is the start, and states are numbered in the order in which they are met. Each class of code points has a
    column; classes are numbered in the order of their least code points. Surrogates are no characters: they are counted
    to the run before them, and no run begins among them.

    Attributes
    ----------
    bounds
        ``int32[R]``: the first code point of each run; neighbours differ in their class.
    classes
        ``int32[R]``: the class of each run.
    targets
        ``int32[S, C]``: the next state.
    accepting
        ``bool[S]``: whether the code points read so far are a member; or ``int64[S]``: of which of several languages, as bits.
    position
        ``int16[S]``: as of :class:`~outlines_phi.automata.automaton.ByteAutomaton`; states that differ in it are not merged.
    """

    bounds: NDArray[np.int32]
    classes: NDArray[np.int32]
    targets: NDArray[np.int32]
    accepting: NDArray[Any]
    position: NDArray[np.int16] | None = None

    @classmethod
    def of(
        cls,
        bounds: NDArray[np.int32],
        classes: NDArray[np.int32],
        targets: NDArray[np.int32],
        accepting: NDArray[Any],
        position: NDArray[np.int16] | None = None,
    ) -> CodeAutomaton:
        """Return the canonical automaton for any table whose start is state 0."""
        block = equivalent(targets, accepting, position)
        first = np.unique(block, return_index=True)[1]
        if position is not None:
            position = position[first]
        targets, accepting, start = block[targets[first]], accepting[first], int(block[0])
        # Columns in the order of their least code points, the equal ones merged.
        used = classes[np.sort(np.unique(classes, return_index=True)[1])]
        alike = numbered(np.ascontiguousarray(targets[:, used].T))
        column = np.zeros(targets.shape[1], dtype=np.int32)
        column[used] = alike
        targets, classes = targets[:, used[np.unique(alike, return_index=True)[1]]], column[classes]
        changes = np.concatenate([[True], classes[1:] != classes[:-1]])
        order = _as_met(targets.tolist(), start)
        place = np.zeros(len(targets), dtype=np.int32)
        place[order] = np.arange(len(order))
        position = None if position is None else position[order]
        return cls(bounds[changes], classes[changes], place[targets[order]], accepting[order], position)

    @property
    def packed(self) -> NDArray[np.int32]:
        """All parts behind their sizes, without positions; ``accepting`` tells one language."""
        parts = self.bounds, self.classes, self.targets.reshape(-1), self.accepting
        return np.concatenate([[len(self.bounds), *self.targets.shape], *parts]).astype(np.int32)

    @classmethod
    def unpacked(cls, numbers: NDArray[np.int32]) -> CodeAutomaton:
        """Return the automaton of :attr:`packed` numbers."""
        runs, states, columns = numbers[:3].tolist()
        bounds, classes, targets, accepting = np.split(numbers[3:], np.cumsum([runs, runs, states * columns]))
        return cls(bounds, classes, targets.reshape(states, columns), accepting > 0)

    @classmethod
    def of_values(cls, values: Iterable[str]) -> CodeAutomaton:
        """Return the automaton of the given strings."""
        # A trie of the reversed order shares equal ends: a state is whether it accepts, and where each character leads.
        suffixes: dict[tuple[bool, tuple[tuple[str, int], ...]], int] = {(False, ()): 0}
        path: list[tuple[bool, list[tuple[str, int]]]] = [(False, [])]
        previous = ""

        def close(depth: int) -> None:
            while len(path) - 1 > depth:
                accepts, edges = path.pop()
                number = suffixes.setdefault((accepts, tuple(edges)), len(suffixes))
                check_states(len(suffixes), "A list of values")
                path[-1][1].append((previous[len(path) - 1], number))

        for value in sorted(set(values)):
            shared = 0
            while shared < min(len(previous), len(value)) and previous[shared] == value[shared]:
                shared += 1
            close(shared)
            path += [(False, []) for _ in value[shared:]]
            path[-1] = (True, path[-1][1])
            previous = value
        close(0)
        start = suffixes.setdefault((path[0][0], tuple(path[0][1])), len(suffixes))
        letters = sorted({letter for _, edges in suffixes for letter, _ in edges})
        bounds, classes, members = cut([characters(letter) for letter in letters])
        column = {letter: found[0] for letter, found in zip(letters, members, strict=True) if found}
        targets = np.zeros((len(suffixes), int(classes.max()) + 1), dtype=np.int32)
        for (_, edges), number in suffixes.items():
            for letter, target in edges:
                if letter in column:  # a lone surrogate is no character
                    targets[number, column[letter]] = target
        accepting = np.array([accepts for accepts, _ in suffixes])
        swapped = np.arange(len(suffixes))
        swapped[[0, start]] = start, 0
        return cls.of(bounds, classes, swapped[targets][swapped].astype(np.int32), accepting[swapped])

    @classmethod
    def of_lengths(cls, intervals: Iterable[Interval]) -> CodeAutomaton:
        """Return the automaton of the strings with so many code points, in any of the intervals, bounds included."""
        spans = tuple(intervals)
        most = max((low if high is None else high + 1 for low, high in spans), default=0)
        check_states(most + 1, f"A length of {most - 1:,}, told together with what else restricts the string,")
        accepting = np.zeros(most + 1, dtype=bool)
        for low, high in spans:
            accepting[low : None if high is None else high + 1] = True
        targets = np.minimum(np.arange(most + 1) + 1, most).astype(np.int32)[:, None]
        return cls.of(np.zeros(1, np.int32), np.zeros(1, np.int32), targets, accepting)

    def multiplied(self, cuts: Sequence[int]) -> CodeAutomaton:
        """Return the automaton of the strings of which the state has the bit of their length; another begins at each cut."""
        counter = CodeAutomaton.of_lengths([(cuts[-1], None)])  # a state for each length
        product = self & replace(counter, accepting=(1 << np.searchsorted(cuts, np.arange(len(counter)), side="right")))
        return CodeAutomaton.of(product.bounds, product.classes, product.targets, product.accepting != 0)

    def __len__(self) -> int:
        return len(self.targets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CodeAutomaton) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> tuple[bytes, ...]:
        return tuple(array.tobytes() for array in (self.bounds, self.classes, self.targets, self.accepting))

    def __invert__(self) -> CodeAutomaton:
        return CodeAutomaton(self.bounds, self.classes, self.targets, ~self.accepting)

    def __and__(self, other: CodeAutomaton) -> CodeAutomaton:
        bounds = np.union1d(self.bounds, other.bounds).astype(np.int32)
        left, right = (one.classes[np.searchsorted(one.bounds, bounds, side="right") - 1] for one in (self, other))
        pairs, classes = np.unique(left.astype(np.int64) * other.targets.shape[1] + right, return_inverse=True)
        left, right = np.divmod(pairs, other.targets.shape[1])
        mine, others = self._onward(left), other._onward(right)
        if not (self.useful[0] and other.useful[0]):
            return CodeAutomaton.of_lengths(())

        def steps(place: tuple[int, int]) -> list[tuple[int, int] | None]:
            pairs = zip(mine[place[0]], others[place[1]], strict=True)
            return [None if DEAD_END in pair else pair for pair in pairs]

        places, targets = explored(
            [(0, 0)], steps, partial(check_states, what="What restricts the string, taken together,")
        )
        a, b = np.array([*places]).T
        # The dead state, the first of a product, goes behind all others: state 0 is the start.
        targets = np.roll(targets - 1, -1, axis=0) % len(targets)
        accepting = np.append(self.accepting[a] & other.accepting[b], False)
        return CodeAutomaton.of(bounds, classes.astype(np.int32), targets, accepting)

    def _onward(self, columns: NDArray[np.integer]) -> list[list[int]]:
        """Return the columns of the table; a state that leads to no member is a :data:`DEAD_END`."""
        number = np.where(self.useful, np.arange(len(self)), DEAD_END)
        return number[self.targets[:, columns]].tolist()

    @cached_property
    def useful(self) -> NDArray[np.bool_]:
        """``bool[S]``: whether a state leads to a member."""
        if self.position is not None:
            return self.distances != UNREACHABLE
        # In the least automaton one state does not, at most, and leads to itself alone.
        return (self.accepting != 0) | (self.targets != np.arange(len(self))[:, None]).any(axis=1)

    @cached_property
    def distances(self) -> NDArray[np.int32]:
        """``int32[S]``: the least number of characters from each state to an accepting one, or ``UNREACHABLE``."""
        return self._to(self.accepting)

    def _to(self, goals: NDArray[Any]) -> NDArray[np.int32]:
        source = np.repeat(np.arange(len(self)), self.targets.shape[1])
        return distances(source, self.targets.reshape(-1), np.flatnonzero(goals), len(self))

    def shortest(self, cuts: Sequence[int] = ()) -> int | None:
        """Return the number of characters of the shortest member, ``None`` if there is none; with bits that tell lengths apart."""
        reached, length = np.arange(len(self)) == 0, 0
        for bit, (first, after) in enumerate(pairwise((0, *cuts, UNREACHABLE))):
            for _ in range(length, first):
                targets, reached = self.targets[reached], np.zeros(len(self), dtype=bool)
                reached[targets] = True
            length = first
            least = int(self._to(self.accepting >> bit & 1)[reached].min())
            if first + least < after:
                return first + least
        return None

    @cached_property
    def longest(self) -> int | None:
        """The number of characters of the longest member, -1 if there is none, ``None`` if they have no end."""
        alive = self.distances != UNREACHABLE
        if (alive & (self.targets.T == np.arange(len(self))).any(axis=0)).any():  # a state that leads to itself
            return None
        height = _heights(self.targets, alive)
        return None if height[0] == UNREACHABLE else int(height[0])

    @cached_property
    def _runs(self) -> tuple[list[int], list[int]]:
        return self.bounds.tolist(), self.classes.tolist()

    def contains(self, text: str, bit: int = 0) -> bool:
        """Return True if ``text`` is a member, of the language of one bit; no text with a lone surrogate is."""
        bounds, classes, state = *self._runs, 0
        for character in text:
            point = ord(character)
            if FIRST_SURROGATE <= point < AFTER_SURROGATES:
                return False
            state = self.targets[state, classes[bisect_right(bounds, point) - 1]]
        return bool(self.accepting[state] >> bit & 1)


def equivalent(
    targets: NDArray[np.int32], accepting: NDArray[Any], position: NDArray[np.int16] | None = None
) -> NDArray[np.int32]:
    """Return ``int32[S]``: one number for all states from which the same strings are accepted, and lead to the same positions.

    Numbers are in the order of the first states that have them; ``accepting`` may be any labels. Moore's refinement; a round looks
    at the states alone of which the last one moved a successor. Of many states it begins with the lengths of the shortest and
    longest string that is accepted, and that is not: these alone tell the states of a counter apart, which would take a round each
    otherwise.
    """
    states = len(accepting)
    rows = [accepting, np.zeros(states) if position is None else position]
    if states > _FEW:
        source = np.repeat(np.arange(states), targets.shape[1])
        for goals in (accepting, accepting == 0):
            rows.append(distances(source, targets.reshape(-1), np.flatnonzero(goals), states))
            rows.append(_heights(targets, rows[-1] != UNREACHABLE))
    block = numbered(np.stack(rows, axis=1).astype(np.int32))
    looked_at = np.arange(states)
    while True:
        finer = numbered(np.concatenate([block[looked_at, None], block[targets[looked_at]]], axis=1))
        if len(looked_at) == states and finer.max() == block.max():
            return finer
        if states <= _MANY:
            block = finer
            continue
        # The first group of a block keeps its number, the others get new ones.
        leads = np.unique(finer, return_index=True)[1]
        names = block[looked_at[leads]]
        new = np.ones(len(leads), dtype=bool)
        new[np.unique(names, return_index=True)[1]] = False
        if not new.any():
            return numbered(block[:, None])
        names[new] = block.max() + 1 + np.arange(new.sum())
        moved = np.zeros(states, dtype=bool)
        moved[looked_at] = names[finer] != block[looked_at]
        block[looked_at] = names[finer]
        again = moved[targets].any(axis=1)
        others = np.full(block.max() + 1, DEAD_END)  # of each block, a state that has stayed as it was
        others[block[~again]] = np.flatnonzero(~again)
        stayed = others[np.unique(block[again])]
        looked_at = np.concatenate([stayed[stayed != DEAD_END], np.flatnonzero(again)])


def numbered(rows: NDArray[np.int32], number: dict[bytes, int] | None = None) -> NDArray[np.int32]:
    """Return a number for each row, the same for equal rows; ``number`` has those of known rows, and gets the others."""
    number = {} if number is None else number
    data, width = rows.tobytes(), rows.shape[1] * rows.itemsize
    found = [number.setdefault(data[at : at + width], len(number)) for at in range(0, len(data), width)]
    return np.array(found, dtype=np.int32)


def _heights(targets: NDArray[np.int32], alive: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the length of the longest way inside ``alive`` from each state: -1 outside, ``UNREACHABLE`` if it has no end."""
    height = np.where(alive, UNREACHABLE, -1).astype(np.int32)
    if alive.all():  # there is no way out of a complete automaton
        return height
    successors = [set(row) for row in targets.tolist()]
    waiting = [0] * len(height)
    before: dict[int, list[int]] = {}
    for state in np.flatnonzero(alive).tolist():
        live = [target for target in successors[state] if alive[target]]
        waiting[state] = len(live)
        for target in live:
            before.setdefault(target, []).append(state)
    ready = deque(state for state in np.flatnonzero(alive).tolist() if not waiting[state])
    for state in ready:
        height[state] = 0
    while ready:
        state = ready.popleft()
        for other in before.get(state, ()):
            waiting[other] -= 1
            if not waiting[other]:  # the last successor to be told is the highest
                height[other] = height[state] + 1
                ready.append(other)
    return height


def _as_met(targets: list[list[int]], start: int) -> list[int]:
    """Return the states in the order in which they are met from ``start``."""
    met, queue = {start}, [start]
    for state in queue:
        for target in targets[state]:
            if target not in met:
                met.add(target)
                queue.append(target)
    return queue
