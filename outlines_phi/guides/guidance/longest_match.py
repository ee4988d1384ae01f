"""The texts of a guidance grammar without recursion, as a byte automaton: where each lexeme is as long as it can be.

A grammar without recursion is a regular expression over lexemes. What its position automaton (Glushkov 1961) may be before is a
*row*; the lexemes that a row allows are followed side by side, each in its own automaton. Where a byte goes on with none of them,
all that match end; a lazy one ends as soon as it matches, and all beside it. Both lead to one row, so this is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton, explored, joint_classes, position_between
from ...automata.byte_machine import closure
from ...errors import GrammarError, UnsupportedError
from ...regex.syntax_tree import Choice, Node, Repeat, RuleName, Sequence
from ..json_schema.formula import Formula
from ..json_schema.reading.schema import END, Piece, Template
from .guidance_rules import START, GuidanceRules, JSONValue, Lexeme

MOST_POSITIONS = 5_000


WHOLE = RuleName(START, 0)
"""The rule of a whole text."""


def template_of(rules: GuidanceRules, tree: Node = WHOLE) -> Template:
    """Return the template of rules without recursion, or of a part of them: its pieces of bytes are the automata of the lexemes.

    Raises
    ------
    UnsupportedError
        It has more than :data:`MOST_POSITIONS` pieces.
    """
    known: dict[str, Template] = {}

    def of(tree: Any) -> Template:
        match tree:
            case Lexeme():
                return Template.of_bytes(tree.automaton)
            case JSONValue():
                return tree.template
            case RuleName():
                if tree.rule not in known:
                    known[tree.rule] = _checked(of(rules.rules[tree.rule].body))
                return known[tree.rule]
            case Sequence(parts):
                return Template.sequence(_checked(of(part)) for part in parts)
            case Choice(parts):
                return _checked(Template.one_of([_checked(of(part)) for part in parts]))
            case Repeat(once, least, most):
                return _checked(of(once).repeated(least, most))
        raise AssertionError(tree)

    return _checked(of(tree))


def blocks_of(rules: GuidanceRules) -> tuple[int, ...]:
    """Return the block that each piece of :func:`template_of` is in, as of :func:`position_between`: parts are what is captured.

    Captures inside of others, of repeats, and of alternatives are not seen.
    """
    found, block, waiting = list[int](), 0, list[Node]([WHOLE])
    while waiting:
        part = waiting.pop()
        rule = rules.rules[part.rule] if isinstance(part, RuleName) else None
        captured = rule is not None and bool(rule.capture or rule.ending)
        if isinstance(part, Sequence):
            waiting += reversed(part.parts)
        elif rule is not None and not captured:
            waiting.append(rule.body)
        else:
            found += [block + captured] * len(template_of(rules, part).pieces)
            block += 2 * captured
    return tuple(found)


def _checked(template: Template) -> Template:
    if len(template.pieces) > MOST_POSITIONS:
        raise UnsupportedError(
            f"Write parts of the grammar as one lexeme: a regular expression, or a select of texts. It has more than "
            f"{MOST_POSITIONS:,} lexemes when its rules and repeats are written out."
        )
    return template


MOST_STATES = 200_000

Row = frozenset[int]
"""Positions of a template that the text may be before; :data:`~outlines_phi.guides.json_schema.reading.schema.END` among them."""


class MatchState(NamedTuple):
    """A place in a text."""

    row: Row  # the row of the text before, as of the beginning of the pending lexeme
    # The lexemes that may be pending, by number, with the states of their automata; none at their beginning.
    pending: tuple[tuple[int, int], ...] = ()


@final
class LexemeMatch:
    """Steps on bytes through a template whose pieces of bytes are the automata of ``lexemes``, which were read from ``text``.

    While it steps, a :class:`GrammarError` where what ends a lexeme and is taken away is not the beginning of what follows.
    """

    def __init__(self, template: Template, lexemes: tuple[Lexeme, ...], text: str) -> None:
        self.template, self.lexemes, self._text = template, lexemes, text
        number = {one.automaton: place for place, one in enumerate(lexemes)}
        self._kind = [number.get(piece) if isinstance(piece, ByteAutomaton) else None for piece in template.pieces]
        # Bytes of what is read again are told from all others.
        apart = {byte for one in lexemes if one.hidden for ending in one.endings for byte in ending}
        rows = [
            np.zeros(256),
            *(one.automaton.byte_class for one in lexemes),
            *(np.arange(256) == one for one in sorted(apart)),
        ]
        self.byte_class, self.first = joint_classes([row.astype(np.uint8) for row in rows])
        self._automata = [one.automaton for one in lexemes]
        self._moves = [one.targets[:, one.byte_class[self.first]].tolist() for one in self._automata]
        self._accepting = [one.accepting.tolist() for one in self._automata]
        self._reading: set[Row] = set()
        self.begun, self.after, self.steps = cache(self._begun), cache(self._row_after), cache(self._steps)

    def entered(self, positions: Iterable[int]) -> Row:
        """Return the row before some positions; those that may be empty are passed."""

        def passed(place: int) -> Iterable[int]:
            kind = None if place == END else self._kind[place]
            return self.template.follow[place] if kind is not None and self.lexemes[kind].is_nullable else ()

        return frozenset(closure(positions, passed))

    def _begun(self, row: Row) -> tuple[tuple[int, int], ...]:
        """Return the lexemes that a row allows, at their beginnings."""
        kinds = sorted({kind for place in row if place != END and (kind := self._kind[place]) is not None})
        return tuple((kind, self.lexemes[kind].automaton.start) for kind in kinds)

    def _row_after(self, row: Row, kinds: frozenset[int]) -> Row:
        """Return the row after a lexeme of some kinds."""
        places = [place for place in row if place != END and self._kind[place] in kinds]
        return self.entered(after for place in places for after in self.template.follow[place])

    def rests(self, state: MatchState) -> Row:
        """Return the row of the text before if the pending lexeme ends here; empty where it may not."""
        return self.after(state.row, self._ended(state)) if state.pending else state.row

    def _ended(self, state: MatchState) -> frozenset[int]:
        return frozenset(kind for kind, at in state.pending if self._accepting[kind][at])

    def _steps(self, state: MatchState) -> list[MatchState | None]:
        """Return the state after a byte of each class; ``None`` where there is none."""
        pending = state.pending or self.begun(state.row)
        columns = (
            zip(*(self._moves[kind][at] for kind, at in pending), strict=True) if pending else [()] * len(self.first)
        )
        ended = self._ended(state) if state.pending else frozenset()
        following = self.steps(MatchState(self.after(state.row, ended))) if ended else None
        found: list[MatchState | None] = []
        for column, targets in enumerate(columns):
            if any(targets):
                moved = tuple((kind, to) for (kind, _), to in zip(pending, targets, strict=True) if to != DEAD)
                found.append(self._moved(state, moved, column))
            else:
                found.append(None if following is None else following[column])
        return found

    def _moved(self, state: MatchState, moved: tuple[tuple[int, int], ...], column: int) -> MatchState | None:
        lazy = frozenset(kind for kind, at in moved if self.lexemes[kind].lazy and self._accepting[kind][at])
        if not lazy:
            return MatchState(state.row, moved)
        after = MatchState(self.after(state.row, lazy))
        return self._read_again(after, lazy, column) if any(self.lexemes[k].hidden for k in lazy) else after

    def _read_again(self, after: MatchState, lazy: frozenset[int], column: int) -> MatchState | None:
        """Return the state after the text that ended a lexeme and is the beginning of what follows; the end if nothing does."""
        if after.row == {END}:
            return after
        byte = int(self.first[column])
        endings = [ending for kind in lazy for ending in self.lexemes[kind].endings if ending[-1] == byte]
        found: set[MatchState | None] = {None}
        if after.row not in self._reading:  # what ends it may end the same lexeme again, for ever
            self._reading.add(after.row)
            found = {self._forced(after, ending) for ending in endings}
            self._reading.remove(after.row)
        if len(found) != 1 or None in found or not all(self.lexemes[kind].hidden for kind in lazy):
            text = endings[0].decode(errors="backslashreplace")
            raise GrammarError(
                f"the text {text!r} ends this, is taken away, and something else may follow. Let what follows begin with it, as in "
                f"gen(stop={text!r}) + {text!r}; or use suffix={text!r}, which stays in the text, and in no capture",
                self._text,
                self.lexemes[min(lazy)].at,
            )
        return found.pop()

    def _forced(self, state: MatchState, text: bytes) -> MatchState | None:
        """Return the state after a text that must come; ``None`` if another one may, or none."""
        for byte in text:
            row = self.rests(state)
            if END in row or any(one != END and self._kind[one] is None for one in row):
                return None
            after = self.steps(state)
            ways = [column for column, to in enumerate(after) if to is not None]
            only = len(ways) == 1 and np.count_nonzero(self.byte_class == ways[0]) == 1
            to = after[self.byte_class[byte]]
            if not only or to is None:
                return None
            state = to
        return state

    @property
    def start(self) -> MatchState:
        """The state before the first byte."""
        return MatchState(self.entered(self.template.first))

    def explored(self, starts: Iterable[MatchState]) -> tuple[dict[MatchState, int], NDArray[np.int32]]:
        """Return all states that bytes lead to, see :func:`~outlines_phi.automata.automaton.explored`."""

        def check(states: int) -> None:
            if states > MOST_STATES:
                raise UnsupportedError(
                    "Lower the bounds of the repeats in the grammar, or write fewer alternatives. Its automaton has more than "
                    f"{MOST_STATES:,} states."
                )

        return explored(starts, self.steps, check)

    def automaton(
        self,
        row: Row,
        goal: int,
        states: dict[MatchState, int],
        targets: NDArray[np.int32],
        blocks: tuple[int, ...] = (),
    ) -> ByteAutomaton:
        """Return the automaton of what leads from a row to where a position comes next; it tells the ``blocks`` of the pieces."""
        accepting, position = [False, *(goal in self.rests(state) for state in states)], None
        if (parts := (max(blocks, default=0) + 1) // 2) > 0:
            found = [0, *(self._position(state, (*blocks, 2 * parts), parts) for state in states)]
            position = np.array(found, dtype=np.int16) if any(found) else None
        return ByteAutomaton(targets, self.byte_class, states[MatchState(row)], np.array(accepting), position).trim()

    def _position(self, state: MatchState, blocks: tuple[int, ...], parts: int) -> int:
        kinds = {kind for kind, _ in state.pending}
        here = [blocks[place] for place in state.row if not kinds or (place != END and self._kind[place] in kinds)]
        return position_between(min(here), max(*here, *(blocks[place] for place in self.rests(state)), 0), parts)


def between_values(match: LexemeMatch) -> Template:
    """Return the template of the same texts whose pieces of bytes are all that may stand between two values.

    There is one for each pair of values, or ends of the text, with nothing but lexemes between them.
    """
    template = match.template
    values = [place for place, piece in enumerate(template.pieces) if isinstance(piece, Formula)]
    rows = [match.start.row, *(match.entered(template.follow[place]) for place in values)]
    known = match.explored([MatchState(row) for row in rows])
    pieces: list[Piece] = [template.pieces[place] for place in values]
    follow: list[frozenset[int]] = [frozenset()] * len(values)
    after: list[frozenset[int]] = []
    for row in rows:
        ways = []
        for goal, to in ((END, END), *((place, number) for number, place in enumerate(values))):
            found = match.automaton(row, goal, *known)
            if not found.is_empty:
                ways.append(len(pieces))
                pieces.append(found)
                follow.append(frozenset([to]))
        after.append(frozenset(ways))
    follow[: len(values)] = after[1:]
    return Template(tuple(pieces), after[0], tuple(follow), template.schemas)
