"""The strings in which a regular expression of ECMA-262 is found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ....format_limits import current_limits
from ....numerics.cache import kept
from ..limits import SchemaLimit
from . import ecma
from .code_automaton import CodeAutomaton, check_states
from .code_points import CodePoints, cut
from .ecma import Ahead, Beginning, Behind, Chars, Choice, End, Node, Repeat, Sequence
from .string_set import StringSet

PLACES = 50
"""The most places of a pattern that a state is made of, and the most steps between them, on average."""

FINISHED = 0
"""The rest of a pattern that asks for nothing more."""

Context = tuple[int, ...]
"""The state of the automaton of each look-behind."""

Duties = frozenset[tuple[int, int]]
"""What look-aheads still ask of the text: each an automaton, by its number, and its state."""

NO_DUTIES: Duties = frozenset()


@kept
def matching(pattern: str) -> StringSet:
    """Return the strings in which ``pattern`` is found: anywhere, unless ``^`` or ``$`` says where.

    Raises
    ------
    GrammarError
        The pattern cannot be read.
    UnsupportedError
        It has a feature that is not offered, or its automaton is too large.
    """
    return StringSet.of_automaton(_Builder(pattern, ecma.read(pattern)).build())


class LookAround(NamedTuple):
    """The least complete automaton of a look-around, over classes of characters; the start is state 0.

    What follows a ``constant`` state changes nothing.
    """

    targets: list[list[int]]
    accepting: list[bool]
    constant: list[bool]

    @classmethod
    def least(cls, targets: list[list[int]], accepting: list[bool]) -> LookAround:
        # The classes stand for code points here.
        columns = np.arange(len(targets[0]), dtype=np.int32)
        found = CodeAutomaton.of(columns, columns, np.array(targets, dtype=np.int32), np.array(accepting))
        column = found.classes[np.searchsorted(found.bounds, columns, side="right") - 1]
        table = found.targets[:, column].tolist()
        return cls(table, found.accepting.tolist(), [set(row) == {state} for state, row in enumerate(table)])


class PatternPlace(NamedTuple):
    """What is still to be matched, and what look-aheads ask of the text beside."""

    rest: int
    duties: Duties


class PatternMoves(NamedTuple):
    """What a place does in a context: for each class the places that follow, and whether the text may end here."""

    following: list[list[int]]
    accepts: bool


class _Builder:
    """The automaton of a pattern by subsets of places.

    What comes before is told by automata that run along, one for each look-behind; their states are the context. A
    look-ahead is an automaton that runs along from where it stands: a duty of the place. So a state is a set of places
    and a context.

    A rest is a part of the pattern and the rest after it, by number; a repeat is unrolled only as far as the text goes.
    """

    def __init__(self, pattern: str, tree: Node) -> None:
        check_states(_least(tree) + 1, f"The pattern {_short(pattern)}")  # one for each character of a shortest match
        self.pattern, self.tree, self.budget = pattern, tree, PLACES * current_limits().states
        sets = list(dict.fromkeys(part.points for part in _parts(tree) if isinstance(part, Chars)))
        self.bounds, self.classes, members = cut(sets)
        self.width = int(self.classes.max()) + 1
        self.members: dict[CodePoints, list[int]] = dict(zip(sets, members, strict=True))
        self.members[ecma.EVERYTHING] = list(range(self.width))
        self.behinds: list[LookAround] = []
        self.behind_of: dict[Node, int] = {}
        self.aheads: list[LookAround] = []
        self.ahead_of: dict[tuple[int, bool, Context], int] = {}
        # Parts and rests are compared by number: a deep tree is not compared again and again.
        self.parts: list[Node] = []
        self.part_of: dict[int, int] = {}
        self.repeats: dict[tuple[int, int, int | None], int] = {}
        self.rests: list[tuple[int, int]] = [(-1, -1)]
        self.rest_of: dict[tuple[int, int], int] = {}
        self.places: list[PatternPlace] = []
        self.place_of: dict[PatternPlace, int] = {}
        self.moves_of: dict[tuple[int, Context], PatternMoves] = {}
        self.anything = self.rest(ecma.ANYTHING, FINISHED)

    def build(self) -> CodeAutomaton:
        """Return the automaton of the texts in which the pattern is found."""
        for part in _parts(self.tree):
            looked = part.part if isinstance(part, Behind) else part
            if not isinstance(part, (Behind, Beginning)) or looked in self.behind_of:
                continue
            if isinstance(part, Beginning):
                targets, accepting = [[1] * self.width] * 2, [True, False]
            else:
                if any(isinstance(inner, (Ahead, End)) for inner in _parts(part.part)):
                    raise SchemaLimit(
                        "Put the look-ahead behind the look-behind",
                        f"The pattern {_short(self.pattern)} has a look-ahead or `$` inside a look-behind, which is not offered",
                    )
                rest = self.rest(ecma.ANYTHING, self.rest(part.part, FINISHED))
                targets, accepting = self.subsets(rest, (0,) * len(self.behinds))
            self.behind_of[looked] = len(self.behinds)
            self.behinds.append(LookAround.least(targets, accepting))
            self.moves_of.clear()  # contexts are longer from here on
            self.ahead_of.clear()
        # The pattern may begin anywhere, and anything may follow it.
        rest = self.rest(ecma.ANYTHING, self.rest(self.tree, self.anything))
        targets, accepting = self.subsets(rest, (0,) * len(self.behinds))
        return CodeAutomaton.of(self.bounds, self.classes, np.array(targets, dtype=np.int32), np.array(accepting))

    def rest(self, part: Node | int, after: int) -> int:
        """Return the number of the rest that is ``part``, and then the rest ``after``."""
        if not isinstance(part, int):
            if id(part) not in self.part_of:
                self.part_of[id(part)] = len(self.parts)
                self.parts.append(part)
            part = self.part_of[id(part)]
        key = (part, after)
        if key not in self.rest_of:
            self.rest_of[key] = len(self.rests)
            self.rests.append(key)
        return self.rest_of[key]

    def fewer(self, number: int, repeat: Repeat) -> int:
        """Return the number of ``repeat``, the part ``number``, after one time more."""
        least, most = max(repeat.least - 1, 0), None if repeat.most is None else repeat.most - 1
        if (least, most) == (repeat.least, repeat.most):
            return number
        key = (id(repeat.part), least, most)
        if key not in self.repeats:
            self.repeats[key] = len(self.parts)
            self.parts.append(Repeat(repeat.part, least, most))
        return self.repeats[key]

    def subsets(self, rest: int, context: Context) -> tuple[list[list[int]], list[bool]]:
        """Return the targets and the accepting states of the automaton of ``rest`` in this context."""
        done = self.place(PatternPlace(self.anything, NO_DUTIES))
        start = (frozenset({self.place(PatternPlace(rest, NO_DUTIES))}), context)
        number = {start: 0}
        states, targets, accepting = [start], [], []
        settled, later = (frozenset({done}), context), dict[Context, list[Context]]()
        for places, here in states:
            moves = [self.moves(place, here) for place in places]
            self.spend(self.width + sum(len(following) for move in moves for following in move.following))
            accepting.append(any(move.accepts for move in moves))
            row = []
            if here not in later:
                later[here] = [self.advanced(here, column) for column in range(self.width)]
            for found, then in zip(self.union(moves), later[here], strict=True):
                # Where anything may follow, nothing else matters, nor what came before.
                key = settled if done in found else (found, then)
                if key not in number:
                    number[key] = len(states)
                    states.append(key)
                    check_states(len(states), f"The pattern {_short(self.pattern)}")
                row.append(number[key])
            targets.append(row)
        return targets, accepting

    def union(self, moves: list[PatternMoves]) -> Iterable[frozenset[int]]:
        """Return the places that each class of characters leads to."""
        if len(moves) < 2:
            return map(frozenset, moves[0].following if moves else [()] * self.width)
        return (frozenset().union(*lists) for lists in zip(*(move.following for move in moves), strict=True))

    def advanced(self, context: Context, column: int) -> Context:
        """Return the context after a character of the class ``column``."""
        return tuple(table.targets[state][column] for table, state in zip(self.behinds, context, strict=True))

    def place(self, place: PatternPlace) -> int:
        """Return the number of ``place``."""
        if place not in self.place_of:
            self.place_of[place] = len(self.places)
            self.places.append(place)
        return self.place_of[place]

    def moves(self, place: int, context: Context) -> PatternMoves:
        """Return what a place does in a context."""
        key = (place, context)
        if key not in self.moves_of:
            self.moves_of[key] = self.expanded(self.places[place], context)
        return self.moves_of[key]

    def expanded(self, place: PatternPlace, context: Context) -> PatternMoves:
        """Follow everything that reads no character."""
        following: list[list[int]] = [[] for _ in range(self.width)]
        accepts = False
        seen, waiting = {place}, [place]
        while waiting:
            here = waiting.pop()
            if here.rest == FINISHED:
                accepts = accepts or all(self.aheads[number].accepting[state] for number, state in here.duties)
                continue
            number, after = self.rests[here.rest]
            part = self.parts[number]
            if isinstance(part, Chars):
                for column in self.members[part.points]:
                    duties = self.after(here.duties, column)
                    if duties is not None:
                        following[column].append(self.place(PatternPlace(after, duties)))
                continue
            for ways in self.ways(number, part, after, here.duties, context):
                if ways not in seen:
                    seen.add(ways)
                    waiting.append(ways)
            self.spend(1)
        return PatternMoves(following, accepts)

    def ways(self, number: int, part: Node, after: int, duties: Duties, context: Context) -> Iterator[PatternPlace]:
        """Yield the places that a part leads to without a character."""
        match part:
            case Sequence(parts):
                for inner in reversed(parts):
                    after = self.rest(inner, after)
                yield PatternPlace(after, duties)
            case Choice(branches):
                for branch in branches:
                    yield PatternPlace(self.rest(branch, after), duties)
            case Repeat(inner, least, most):
                if least == 0:
                    yield PatternPlace(after, duties)
                if most != 0:
                    yield PatternPlace(self.rest(inner, self.rest(self.fewer(number, part), after)), duties)
            case Behind(inner, negated):
                behind = self.behind_of[inner]
                if self.behinds[behind].accepting[context[behind]] != negated:
                    yield PatternPlace(after, duties)
            case Beginning():
                behind = self.behind_of[part]
                if self.behinds[behind].accepting[context[behind]]:
                    yield PatternPlace(after, duties)
            case Ahead() | End():
                found = self.kept({*duties, (self.ahead(part, context), 0)})
                if found is not None:
                    yield PatternPlace(after, found)

    def ahead(self, part: Ahead | End, context: Context) -> int:
        """Return the number of the automaton of what may follow."""
        key = (id(part), isinstance(part, Ahead) and part.negated, context)
        if key not in self.ahead_of:
            if isinstance(part, End):
                targets, accepting = [[1] * self.width] * 2, [True, False]
            else:
                targets, accepting = self.subsets(self.rest(part.part, self.anything), context)
                accepting = [accepts != part.negated for accepts in accepting]
            self.ahead_of[key] = len(self.aheads)
            self.aheads.append(LookAround.least(targets, accepting))
        return self.ahead_of[key]

    def after(self, duties: Duties, column: int) -> Duties | None:
        """Return what is left of ``duties`` after a character of the class ``column``; ``None`` if they fail."""
        if not duties:
            return duties
        return self.kept({(number, self.aheads[number].targets[state][column]) for number, state in duties})

    def kept(self, duties: set[tuple[int, int]]) -> Duties | None:
        """Return those of ``duties`` that are still open; ``None`` if one fails whatever follows."""
        constant = {(number, state) for number, state in duties if self.aheads[number].constant[state]}
        if not all(self.aheads[number].accepting[state] for number, state in constant):
            return None
        return frozenset(duties - constant)

    def spend(self, steps: int) -> None:
        """Count steps of the work."""
        self.budget -= steps
        if self.budget < 0:
            check_states(current_limits().states + 1, f"The pattern {_short(self.pattern)}")


def _parts(tree: Node) -> Iterator[Node]:
    """Yield the parts of a pattern, the inner ones first."""
    match tree:
        case Sequence(inner) | Choice(inner):
            for part in inner:
                yield from _parts(part)
        case Repeat(part) | Ahead(part) | Behind(part):
            yield from _parts(part)
    yield tree


def _least(tree: Node) -> int:
    """Return the fewest characters of a match."""
    match tree:
        case Chars():
            return 1
        case Sequence(inner):
            return sum(map(_least, inner))
        case Choice(inner):
            return min(map(_least, inner))
        case Repeat(part, least):
            return least and least * _least(part)
    return 0


def _short(pattern: str, longest: int = 80) -> str:
    return repr(pattern if len(pattern) <= longest else pattern[:longest] + "...")
