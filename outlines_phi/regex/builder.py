"""From the tree of a regular expression to the least automaton over code points, by subsets of places."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..automata.automaton import position_between
from ..format_limits import LimitError, current_limits
from .code_automaton import EVERYTHING, CodeAutomaton, CodePoints, check_states, cut, equivalent
from .syntax_tree import (
    ANYTHING,
    Ahead,
    Beginning,
    Behind,
    Chars,
    Choice,
    End,
    First,
    Node,
    Repeat,
    Sequence,
    blocks_of,
    least_lengths,
    parts_of,
)

PLACES = 40
"""The most places of a pattern that a state is made of, and the most steps between them, on average."""

FINISHED = 0
"""The rest of a pattern that asks for nothing more."""

COUNTED = -1
"""The times of the repeat in a rest whose count stands beside it."""

_FEW = 8  # A repeat of no more times is not counted beside: its copies are few

MARK: CodePoints = (-1, 0)
"""Symbols for the two ends of the part of a text that is to match: no characters."""

Context = tuple[int, ...]
"""The state of the automaton of each look-behind."""

Duties = frozenset[tuple[int, int]]
"""Pending look-aheads: each an automaton, by its number, and its state."""

NO_DUTIES: Duties = frozenset()


def automaton_of(tree: Node, name: str, *, anywhere: bool = False, larger: int = 1) -> CodeAutomaton:
    """Return the automaton of the texts that a tree matches: as a whole, or ``anywhere`` in them.

    Raises :class:`LimitError` where it has more than ``larger`` times ``Limits.states``, or takes more work than so many states
    commonly do; ``name`` is what needs them.
    """
    return _Builder(tree, name, larger).build(anywhere)


def depends_on_context(tree: Node, name: str) -> bool:
    """Return True if the text around a part decides whether ``tree`` matches the part; errors as :func:`automaton_of`.

    A mark stands at both ends of the part, which the tree cannot read and look-around passes over. In the least automaton of texts
    with two marks, no text before the first and none behind the second may make a difference then.
    """
    builder = _Builder(tree, name, 1, marked=True)
    builder.build_looks()
    mark = Chars(MARK)
    start = builder.rest(Sequence((ANYTHING, mark, tree, mark)), builder.anything)
    targets, accepting, _ = builder.subsets(start, (0,) * len(builder.behinds))
    table = LookAround.least(targets, accepting)
    first = table.targets[0]
    reached, waiting = set[int](), [first[-1]]
    while waiting:
        state = waiting.pop()
        if state not in reached:
            reached.add(state)
            waiting += table.targets[state][:-1]
    behind = {table.targets[state][-1] for state in reached}
    return set(first[:-1]) != {0} or any(set(table.targets[state][:-1]) != {state} for state in behind)


class LookAround(NamedTuple):
    """The least complete automaton of a look-around, over classes of characters; the start is state 0.

    What follows a ``constant`` state changes nothing.
    """

    targets: list[list[int]]
    accepting: list[bool]
    constant: list[bool]

    @classmethod
    def least(cls, targets: list[list[int]], accepting: list[bool]) -> LookAround:
        rows = np.array(targets, dtype=np.int32)
        block = equivalent(
            rows, np.array(accepting)
        )  # in the order of their first states, so the start stays the first
        first = np.unique(block, return_index=True)[1]
        table = block[rows[first]].tolist()
        return cls(table, np.array(accepting)[first].tolist(), [set(row) == {state} for state, row in enumerate(table)])


Rest = tuple[int, int, int]
"""A part of the pattern, how many times a repeat was begun, and the rest after it, each by number."""


class PatternPlace(NamedTuple):
    """Position of a match: the rest of the pattern, the pending look-aheads, and how often the counted repeat was begun.

    ``carried`` tells that the count is that of the place before, or one more.
    """

    rest: int
    duties: Duties
    counted: int = 0
    carried: bool = False


class PatternMove(NamedTuple):
    """Transition by the characters of some classes: a place by number and its count, or how much the count grows."""

    columns: list[int]
    to: int
    counted: int
    carried: bool


Front = tuple[int, int, int | None]
"""Key by which places are comparable: a group, the least and the number of times that a repeat was begun, ``None`` where the count
beside the rest tells it. Of those in one group that have begun it the least times, the fewest times do."""


class PlaceRow(NamedTuple):
    """Transitions of a set of places, the same for all counts at the same sides of the bounds.

    A target is a set by number, its count, and whether that is added to the count of the set before; or its places, where some
    counts are added and others are not. ``column`` is the number of the target of each class.
    """

    targets: list[tuple[int, int, bool] | list[PatternMove]]
    contexts: list[Context]
    column: list[int]
    accepts: bool
    position: int


class _Builder:
    """The automaton of a pattern by subsets of places.

    What comes before is told by automata that run along, one for each look-behind; their states are the context. A
    look-ahead is an automaton that runs along from where it stands: a duty of the place. So a state is a set of places
    and a context.

    A rest is a part of the pattern and the rest after it, by number. Of the repeats of many times in a rest the outermost has
    its count beside the rest. Sets of places that differ by what is added to all counts share their row, unless one of the counts
    is at a bound.

    A rest is in one of the ``blocks`` of :func:`blocks_of`; where it is a bound of them, at the end of one and before the next.
    """

    def __init__(self, tree: Node, name: str, larger: int, *, marked: bool = False) -> None:
        self.tree, self.name, self.larger, self.marked = tree, name, larger, marked
        self.blocks = blocks_of(tree)
        self.bounds_of_blocks = {FINISHED}
        self.block_of = [len(self.blocks)]
        least = least_lengths(tree)
        self.check(least[id(tree)] + 1)  # one for each character of a shortest match
        self.budget = PLACES * current_limits().states
        parts = list(parts_of(tree))
        self.countable = {
            id(part)
            for part in parts
            if isinstance(part, Repeat) and least[id(part.part)] and max(part.least, part.most or 0) > _FEW
        }
        sets = list(dict.fromkeys(part.points for part in parts if isinstance(part, Chars)))
        self.bounds, self.classes, members = cut(sets)
        self.width = int(self.classes.max()) + 1
        self.members: dict[CodePoints, list[int]] = dict(zip(sets, members, strict=True))
        self.members[EVERYTHING] = list(range(self.width))
        if marked:
            self.members[MARK] = [self.width]
            self.width += 1
        self.looks = [part for part in parts if isinstance(part, (Behind, Beginning))]
        self.behinds: list[LookAround] = []
        self.behind_of: dict[Node, int] = {}
        self.aheads: list[LookAround] = []
        self.ahead_of: dict[tuple[int, bool, Context], int] = {}
        self.first_of: dict[tuple[int, Context], int] = {}
        self.begun: list[tuple[dict[int, list[int]], bool]] = []
        # Parts and rests are compared by number: a deep tree is not compared again and again.
        self.parts: list[Node] = []
        self.part_of: dict[int | CodePoints, int] = {}
        self.rests: list[Rest] = [(-1, 0, -1)]
        self.counter: list[Repeat | None] = [None]
        self.rest_of: dict[Rest, int] = {}
        self.places: list[tuple[int, Duties]] = []
        self.place_of: dict[tuple[int, Duties], int] = {}
        self.fronts: list[Front | None] = []
        self.groups: dict[tuple[int, int, Duties], int] = {}
        self.moves_of: dict[tuple[int, int, bool, Context], tuple[list[PatternMove], bool, int]] = {}
        self.anything = self.rest(ANYTHING, FINISHED)

    def build(self, anywhere: bool) -> CodeAutomaton:
        """Return the automaton of the texts that match."""
        if anywhere:
            self.blocks = ()
        self.build_looks()
        if anywhere:
            rest = self.rest(ANYTHING, self.rest(self.tree, self.anything))
        else:
            rest = FINISHED
            for block in reversed(self.blocks or (self.tree,)):
                rest = self.rest(block, rest)
                self.bounds_of_blocks.add(rest)
        targets, accepting, positions = self.subsets(rest, (0,) * len(self.behinds))
        return CodeAutomaton.of(
            self.bounds,
            self.classes,
            np.array(targets, dtype=np.int32),
            np.array(accepting),
            np.array(positions, dtype=np.int16) if any(positions) else None,
        )

    def build_looks(self) -> None:
        """Make the automata of what comes before, the inner ones first."""
        for part in self.looks:
            looked = part.part if isinstance(part, Behind) else part
            if looked in self.behind_of:
                continue
            if isinstance(part, Beginning):
                targets, accepting = [[1] * self.width] * 2, [True, False]
            else:
                if any(isinstance(inner, (Ahead, End)) for inner in parts_of(part.part)):
                    raise LimitError(
                        "Put the look-ahead behind the look-behind",
                        f"{self.name} has a look-ahead or `$` inside a look-behind, which is not offered",
                    )
                rest = self.rest(ANYTHING, self.rest(part.part, FINISHED))
                targets, accepting, _ = self.subsets(rest, (0,) * len(self.behinds))
            self.behind_of[looked] = len(self.behinds)
            self.behinds.append(self.look(targets, accepting))
            self.moves_of.clear()  # contexts are longer from here on
            self.ahead_of.clear()
            self.first_of.clear()

    def look(self, targets: list[list[int]], accepting: list[bool]) -> LookAround:
        """Return the least automaton of a look-around; it passes over marks."""
        if self.marked:
            targets = [[*row[:-1], state] for state, row in enumerate(targets)]
        return LookAround.least(targets, accepting)

    def rest(self, part: Node | int, after: int, times: int = 0) -> int:
        """Return the number of the rest that is ``part``, begun so many times, and then the rest ``after``."""
        if not isinstance(part, int):
            key = part.points if isinstance(part, Chars) else id(part)
            if key not in self.part_of:
                self.part_of[key] = len(self.parts)
                self.parts.append(part)
            part = self.part_of[key]
        rest = part, times, after
        if rest not in self.rest_of:
            self.rest_of[rest] = len(self.rests)
            self.rests.append(rest)
            self.block_of.append(self.block_of[after] - (after in self.bounds_of_blocks))
            repeat = self.parts[part]
            self.counter.append(repeat if times == COUNTED and isinstance(repeat, Repeat) else self.counter[after])
        return self.rest_of[rest]

    def place(self, rest: int, duties: Duties) -> int:
        """Return the number of a place, its count aside."""
        key = rest, duties
        if key not in self.place_of:
            self.place_of[key] = len(self.places)
            self.places.append(key)
            part, times, after = self.rests[rest]
            front = None
            if rest != FINISHED and isinstance(repeat := self.parts[part], Repeat):
                group = self.groups.setdefault((part, after, duties), len(self.groups))
                front = group, repeat.least, None if times == COUNTED else times
            self.fronts.append(front)
        return self.place_of[key]

    def subsets(self, rest: int, context: Context) -> tuple[list[list[int]], list[bool], list[int]]:
        """Return the targets, the accepting states, and the positions of the automaton of ``rest`` in this context."""
        return _Subsets(self, context).table(self.place(rest, NO_DUTIES))

    def moves(self, number: int, count: int, context: Context) -> tuple[list[PatternMove], bool, int]:
        """Return the transitions of a place in a context, whether the text may end there, and the last block it may be in."""
        rest, duties = self.places[number]
        to_least, at_most = 0, False
        if (repeat := self.counter[rest]) is not None:
            to_least = min(max(repeat.least - count, 0), 2)
            at_most = count == repeat.most
        key = (number, to_least, at_most, context)
        if key not in self.moves_of:
            moves, accepts, last = self.expanded(PatternPlace(rest, duties, count, repeat is not None), context)
            # A count that is carried is told by how much it has grown.
            told = [
                PatternMove(columns, self.place(to.rest, to.duties), to.counted - count * to.carried, to.carried)
                for columns, to in moves
            ]
            self.moves_of[key] = told, accepts, last
        return self.moves_of[key]

    def expanded(self, place: PatternPlace, context: Context) -> tuple[list[tuple[list[int], PatternPlace]], bool, int]:
        """Follow everything that reads no character."""
        moves: list[tuple[list[int], PatternPlace]] = []
        accepts = False
        seen, waiting = {place}, [place]
        while waiting:
            here = waiting.pop()
            if here.rest == FINISHED:
                accepts = accepts or all(self.aheads[number].accepting[state] for number, state in here.duties)
                continue
            number, times, after = self.rests[here.rest]
            part = self.parts[number]
            if isinstance(part, Chars) or (isinstance(part, First) and times):
                for columns, rest in self.read(part, number, times, after):
                    if not here.duties:
                        moves.append((columns, here._replace(rest=rest)))
                        continue
                    for column in columns:
                        duties = self.after(here.duties, column)
                        if duties is not None:
                            moves.append(([column], here._replace(rest=rest, duties=duties)))
                continue
            for way in self.ways(here, context):
                if way not in seen:
                    seen.add(way)
                    waiting.append(way)
            self.spend(1)
        return moves, accepts, max(self.block_of[here.rest] for here in seen) if self.blocks else 0

    def read(self, part: Node, number: int, times: int, after: int) -> list[tuple[list[int], int]]:
        """Return the classes of characters that a part reads, with the rest behind them."""
        if isinstance(part, Chars):
            return [(self.members[part.points], after)]
        leads, _ = self.begun[times - 1]
        return [(columns, self.ended(number, after, target)) for target, columns in leads.items()]

    def ended(self, number: int, after: int, state: int) -> int:
        """Return the rest in a state of a part that ends first, by number: what comes after it where it ends."""
        return after if self.begun[state][1] else self.rest(number, after, state + 1)

    def first(self, part: First, context: Context) -> int:
        """Return the state, by number, in which a part begins that ends where it first may."""
        key = (id(part), context)
        if key not in self.first_of:
            targets, accepting, _ = self.subsets(self.rest(part.part, FINISHED), context)
            table = LookAround.least(targets, accepting)
            self.first_of[key] = start = len(self.begun)
            for row, accepts in zip(table.targets, table.accepting, strict=True):
                leads: dict[int, list[int]] = {}
                for column, target in enumerate(row):
                    if table.accepting[target] or not table.constant[target]:
                        leads.setdefault(start + target, []).append(column)
                self.begun.append((leads, accepts))
        return self.first_of[key]

    def ways(self, place: PatternPlace, context: Context) -> Iterator[PatternPlace]:
        """Yield the places that a part leads to without a character."""
        number, _, after = self.rests[place.rest]
        match self.parts[number]:
            case Sequence(parts):
                for inner in reversed(parts):
                    after = self.rest(inner, after)
                yield place._replace(rest=after)
            case Choice(branches):
                for branch in branches:
                    yield place._replace(rest=self.rest(branch, after))
            case Repeat() as repeat:
                yield from self.repeated(place, number, repeat)
            case Behind() | Beginning() as part:
                looked, negated = (part.part, part.negated) if isinstance(part, Behind) else (part, False)
                behind = self.behind_of[looked]
                if self.behinds[behind].accepting[context[behind]] != negated:
                    yield place._replace(rest=after)
            case First() as part:
                yield place._replace(rest=self.ended(number, after, self.first(part, context)))
            case Ahead() | End() as part:
                found = self.kept({*place.duties, (self.ahead(part, context), 0)})
                if found is not None:
                    yield place._replace(rest=after, duties=found)

    def repeated(self, place: PatternPlace, number: int, repeat: Repeat) -> Iterator[PatternPlace]:
        """Yield the places behind a repeat, and before one time more of what it repeats."""
        _, times, after = self.rests[place.rest]
        counted = times == COUNTED or (not times and id(repeat) in self.countable and self.counter[after] is None)
        done = place.counted if times == COUNTED else times
        beyond = place._replace(rest=after, counted=0, carried=False) if counted else place._replace(rest=after)
        if done >= repeat.least:
            yield beyond
        if done == repeat.most:
            return
        more = done + 1 if repeat.most is not None else min(done + 1, repeat.least)
        if counted and (repeat.most is not None or more < repeat.least):
            again = self.rest(repeat.part, self.rest(number, after, COUNTED))
            yield beyond._replace(rest=again, counted=more, carried=place.carried and times == COUNTED)
        else:
            yield beyond._replace(rest=self.rest(repeat.part, self.rest(number, after, more)))

    def ahead(self, part: Ahead | End, context: Context) -> int:
        """Return the number of the automaton of what may follow."""
        key = (id(part), isinstance(part, Ahead) and part.negated, context)
        if key not in self.ahead_of:
            if isinstance(part, End):
                targets, accepting = [[1] * self.width] * 2, [True, False]
            else:
                targets, accepting, _ = self.subsets(self.rest(part.part, self.anything), context)
                accepting = [accepts != part.negated for accepts in accepting]
            self.ahead_of[key] = len(self.aheads)
            self.aheads.append(self.look(targets, accepting))
        return self.ahead_of[key]

    def after(self, duties: Duties, column: int) -> Duties | None:
        """Return the rest of ``duties`` after a character of the class ``column``; ``None`` if they fail."""
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
            check_states(current_limits().states + 1, self.name)

    def check(self, states: int) -> None:
        """Refuse more states than the limit."""
        check_states(-(-states // self.larger), self.name)


_BITS = 40  # Of a count beside the number of a place; no pattern that is built has a greater one

Shape = frozenset[int]
"""Places by number, each with how much greater its count is than the least of them in the lower bits."""


class _Subsets:
    """The sets of places that texts lead to from one place."""

    def __init__(self, builder: _Builder, context: Context) -> None:
        self.builder, self.context = builder, context
        self.number: dict[tuple[Shape, Context], int] = {}
        self.sets: list[tuple[Shape, Context]] = []
        self.sides: list[
            list[int]
        ] = []  # the least counts at which a place of the set comes to another side of a bound
        self.rows: dict[tuple[int, int], PlaceRow] = {}
        self.later: dict[Context, list[Context]] = {}
        self.done = builder.place(builder.anything, NO_DUTIES)
        self.settled = (*self.named([PatternMove([], self.done, 0, False)], 0, context), False)

    def table(self, start: int) -> tuple[list[list[int]], list[bool], list[int]]:
        """Return the targets, the accepting states, and the positions of the automaton."""
        first = self.named([PatternMove([], start, 0, False)], 0, self.context)
        number: dict[tuple[int, ...], int] = {first: 0}
        states, targets, accepting, positions = [first], list[list[int]](), list[bool](), list[int]()
        for named, count in states:
            key = (named, bisect_right(self.sides[named], count))
            row = self.rows.get(key)
            if row is None:
                row = self.rows[key] = self.row(named, count)
            found = []
            for target, context in zip(row.targets, row.contexts, strict=True):
                if isinstance(target, list):
                    grown = [
                        PatternMove(columns, to, own + count * carried, False) for columns, to, own, carried in target
                    ]
                    state = self.named(grown, 0, context)
                else:
                    state = target[0], target[1] + count * target[2]
                if (place := number.get(state)) is None:
                    place = number[state] = len(states)
                    states.append(state)
                found.append(place)
            self.builder.spend(1)
            self.builder.check(len(states))
            targets.append([found[target] for target in row.column])
            accepting.append(row.accepts)
            positions.append(row.position)
        return targets, accepting, positions

    def named(self, moves: list[PatternMove], base: int, context: Context) -> tuple[int, int]:
        """Return the number of a set of places in a context, and the least of their counts, ``base`` aside where it is carried."""
        builder = self.builder
        chosen = _fewest(moves, base, builder.fronts) if len(moves) > 1 else moves
        counters = [builder.counter[builder.places[move.to][0]] for move in chosen]
        counts = [move.counted for move, counter in zip(chosen, counters, strict=True) if counter is not None]
        least = min(counts, default=0)
        shape = frozenset(
            move.to << _BITS | (move.counted - least if counter is not None else 0)
            for move, counter in zip(chosen, counters, strict=True)
        )
        key = (shape, context)
        if key not in self.number:
            self.number[key] = len(self.sets)
            self.sets.append(key)
            sides: set[int] = set()
            for move, repeat in zip(chosen, counters, strict=True):
                if repeat is not None:
                    bounds = (repeat.least - 1, repeat.least, repeat.most)
                    sides |= {bound - (move.counted - least) for bound in bounds if bound is not None}
            self.sides.append(sorted(sides))
        return self.number[key], least

    def row(self, named: int, count: int) -> PlaceRow:
        """Return the transitions of a set of places whose least count is ``count``."""
        builder = self.builder
        shape, context = self.sets[named]
        moves: list[PatternMove] = []
        accepts, first, last = False, len(builder.blocks), 0
        for code in shape:
            place, more = code >> _BITS, code & ((1 << _BITS) - 1)
            found, ends, may_be_in = builder.moves(place, count + more, context)
            rest = builder.places[place][0]
            first, last = min(first, builder.block_of[rest] - (rest in builder.bounds_of_blocks)), max(last, may_be_in)
            if more:
                found = [PatternMove(columns, to, own + more * carried, carried) for columns, to, own, carried in found]
            moves += found
            accepts = accepts or ends
        if context not in self.later:
            self.later[context] = [
                tuple(look.targets[state][column] for look, state in zip(builder.behinds, context, strict=True))
                for column in range(builder.width)
            ]
        leading: list[list[int]] = [[] for _ in range(builder.width)]
        for place, move in enumerate(moves):
            for column in move.columns:
                leading[column].append(place)
        builder.spend(builder.width + sum(map(len, leading)))
        targets: list[tuple[int, int, bool] | list[PatternMove]] = []
        contexts: list[Context] = []
        number: dict[tuple[tuple[int, ...], Context], int] = {}
        numbers: list[int] = []
        for together, then in zip(map(tuple, leading), self.later[context], strict=True):
            key = (together, then)
            if key not in number:
                number[key] = len(targets)
                targets.append(self.target([moves[place] for place in together], count, then))
                contexts.append(then)
            numbers.append(number[key])
        position = position_between(first, last, len(builder.blocks) // 2) if shape and builder.blocks else 0
        return PlaceRow(targets, contexts, numbers, accepts, position)

    def target(
        self, moves: list[PatternMove], count: int, context: Context
    ) -> tuple[int, int, bool] | list[PatternMove]:
        """Return the set of places that moves lead to, by number if it has one whatever the counts are."""
        if any(move.to == self.done for move in moves):
            # Where anything may follow, nothing else matters, nor what came before.
            return self.settled
        counter, places = self.builder.counter, self.builder.places
        carried = {move.carried for move in moves if counter[places[move.to][0]] is not None}
        if len(carried) > 1:
            return moves
        return (*self.named(moves, count, context), carried == {True})


def _fewest(moves: list[PatternMove], base: int, fronts: list[Front | None]) -> list[PatternMove]:
    """Return the moves without those to a place that matches no more than another one does."""
    chosen: dict[tuple[int, ...], tuple[int, PatternMove]] = {}
    for move in moves:
        front = fronts[move.to]
        key: tuple[int, ...] = (move.to, move.counted)
        done = 0
        if front is not None:
            group, least, times = front
            done = move.counted + base * move.carried if times is None else times
            if done >= least:
                key = (group, -1) if times is None else (group, -2, move.counted)
        if key not in chosen or done < chosen[key][0]:
            chosen[key] = done, move
    return [move for _, move in chosen.values()]
