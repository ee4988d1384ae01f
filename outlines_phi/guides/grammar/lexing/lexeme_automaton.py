"""One byte automaton of the lexemes of all terminals: the product of theirs, with priorities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import DEAD, UNREACHABLE, ByteAutomaton, distances
from ....errors import EmptyLanguageError, GrammarError, UnsupportedError
from ....format_limits import current_limits
from ....regex.dialects import DIALECTS
from ....regex.patterns import compile_lexeme
from ..grammar import Terminal

NOTHING = -1  # No terminal

_CHUNK = 1 << 21
"""The number of entries of states' tuples that are held at a time: it bounds the memory of a step, not its result."""


@final
@dataclass(frozen=True, eq=False)
class LexemeAutomaton:
    """The least automaton that tells which terminal a byte string is a lexeme of, and whether it begins one.

    ``targets``, ``int32[S, C]``, is the next state, row 0 dead; ``byte_class``, ``uint8[256]``, the column of each byte; ``start``
    is not accepting; ``label``, ``int32[S]``, is the terminal of each accepting state, :data:`NOTHING` elsewhere.
    """

    targets: NDArray[np.int32]
    byte_class: NDArray[np.uint8]
    start: int
    label: NDArray[np.int32]

    @classmethod
    def of(cls, terminals: Sequence[Terminal]) -> LexemeAutomaton:
        """Return the automaton of the lexemes of ``terminals``.

        Where several match a byte string, it is a lexeme of the one with the highest priority, of a literal if two of them tie, of
        the one that is of all of them if there is such a one. Raises :class:`GrammarError` where a terminal matches nothing or the
        empty text, or two match the same text and neither comes first.
        """
        joint, matched = joint_of(terminals)
        targets, byte_class = joint.targets, joint.byte_class
        label, first = candidates(terminals, matched)
        # Which of two ignored terminals it is does not matter.
        tied = (first.sum(axis=1) > 1) & ~(first <= [terminal.ignored for terminal in terminals]).all(axis=1)
        if tied.any():
            text = ByteAutomaton(targets, byte_class, 1, tied).shortest()
            state = ByteAutomaton(targets, byte_class, 1, tied).advance(1, text)
            raise GrammarError(_tie([terminals[t] for t in np.flatnonzero(first[state])], text))
        block = blocks(label, targets)
        _, kept = np.unique(block, return_index=True)
        return cls(block[targets[kept]], byte_class, int(block[1]), label[kept])

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def accepting(self) -> NDArray[np.bool_]:
        """``bool[S]``: where a lexeme is complete."""
        return self.label != NOTHING

    @cached_property
    def reaches(self) -> NDArray[np.bool_]:
        """``bool[S, T]``: the terminals that a lexeme so begun may still be of, the one that it already is among them."""
        source, column = np.nonzero(self.targets)
        target = self.targets[source, column]
        found = np.zeros((len(self), int(self.label.max()) + 1), dtype=bool)
        for terminal in range(found.shape[1]):
            goals = np.flatnonzero(self.label == terminal)
            found[:, terminal] = distances(source, target, goals, len(self)) != UNREACHABLE
        return found

    def leading_to(self, states: NDArray[np.bool_]) -> ByteAutomaton:
        """Return the automaton of the byte strings that lead to one of ``states``."""
        return ByteAutomaton(self.targets, self.byte_class, self.start, states)


class JointAutomaton(NamedTuple):
    """Several byte automata, run at once: their product, as far as byte strings lead.

    State 0 is dead and state 1 the start. ``places``, ``int32[S, T]``, are the states of each, ``targets``, ``int32[S, C]``, the
    next states, ``byte_class``, ``uint8[256]``, the column of each byte, ``matched``, ``bool[S, T]``, which of them accept.
    """

    places: NDArray[np.int32]
    targets: NDArray[np.int32]
    byte_class: NDArray[np.uint8]
    matched: NDArray[np.bool_]

    @classmethod
    def of(cls, automata: Sequence[ByteAutomaton]) -> JointAutomaton:
        """Return the product of ``automata``."""
        classes = np.stack([automaton.byte_class for automaton in automata])
        _, first, joint = np.unique(classes, axis=1, return_index=True, return_inverse=True)
        tables = [automaton.targets[:, automaton.byte_class[first]] for automaton in automata]
        start = np.array([automaton.start for automaton in automata], dtype=np.int32)
        places, targets = _product(tables, start)
        matched = np.stack([a.accepting[places[:, i]] for i, a in enumerate(automata)], axis=1)
        return cls(places, targets, joint.reshape(-1).astype(np.uint8), matched)


def blocks(kind: NDArray[np.integer], *tables: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the coarsest numbering of states that tells their ``kind`` and, by the same numbering, their successors apart.

    Moore's refinement (1956). State 0 stays 0, and blocks are numbered in the order of their first states.
    """
    block = _in_order(np.column_stack([np.arange(len(kind)) == 0, kind]))
    while True:
        finer = _in_order(np.column_stack([block, *(block[table] for table in tables)]))
        if finer.max() == block.max():
            return block
        block = finer


def _in_order(rows: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return the number of each row, equal for equal rows, in the order of appearance."""
    packed = np.ascontiguousarray(rows.astype(np.int32)).view(f"V{4 * rows.shape[1]}").ravel().tolist()
    number: dict[bytes, int] = {}
    return np.array([number.setdefault(row, len(number)) for row in packed], dtype=np.int32)


def automaton_of(terminal: Terminal) -> ByteAutomaton:
    """Return the automaton of the lexemes of one terminal.

    Raises :class:`GrammarError` or :class:`UnsupportedError` where it has none, or its pattern cannot be used.
    """
    try:
        automaton = compile_lexeme(terminal.pattern, DIALECTS[terminal.dialect])
    except EmptyLanguageError as error:
        raise GrammarError(f"the terminal {terminal.name} matches nothing: {error}") from None
    except (GrammarError, UnsupportedError) as error:
        kind = GrammarError if isinstance(error, GrammarError) else UnsupportedError
        raise kind(f"the terminal {terminal.name} cannot be read: {error}") from None
    if automaton.is_empty:
        raise GrammarError(f"the terminal {terminal.name} matches nothing: {terminal.pattern!r:.80}")
    if automaton.accepting[automaton.start]:
        raise GrammarError(
            f"the terminal {terminal.name} matches the empty text: {terminal.pattern!r:.80}. A lexeme has at least one byte; let "
            "the pattern match at least one, and make the terminal optional in the rules that use it"
        )
    if not terminal.shortest:
        return automaton
    targets = automaton.targets.copy()
    targets[automaton.accepting] = DEAD
    return ByteAutomaton(targets, automaton.byte_class, automaton.start, automaton.accepting).trim()


def _product(
    tables: Sequence[NDArray[np.int32]], start: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the tuples of states that byte strings lead to, ``int32[S, T]``, and their successors ``int32[S, C]``.

    The first tuple is dead, the second ``start``. Most automata are dead after one byte, so the tuples are few.
    """
    width = len(start)
    states = [np.zeros((1, width), dtype=np.int32), start[None]]
    targets = [np.zeros((1, tables[0].shape[1]), dtype=np.int32)]
    number = {start.tobytes(): 1}
    pending = [start[None]]
    while pending:
        frontier = pending.pop(0)
        size = max(1, _CHUNK // (width * tables[0].shape[1]))
        if len(frontier) > size:
            pending.insert(0, frontier[size:])
            frontier = frontier[:size]
        # [frontier x C, T]
        after = np.stack([table[frontier[:, i]] for i, table in enumerate(tables)], axis=-1).reshape(-1, width)
        live = np.flatnonzero(after.any(axis=1))
        after = after[live]
        before = len(number)
        keys = np.ascontiguousarray(after).view(f"V{4 * width}").ravel().tolist()
        numbers = np.array([number.setdefault(key, len(number) + 1) for key in keys], dtype=np.int32)
        current_limits().check("states", len(number), "The number of states of the automaton of all terminals")
        row = np.zeros(len(frontier) * tables[0].shape[1], dtype=np.int32)
        row[live] = numbers
        targets.append(row.reshape(len(frontier), -1))
        if len(number) > before:
            found, place = np.unique(numbers, return_index=True)
            states.append(after[place[found > before]])
            pending.append(states[-1])
    return np.concatenate(states), np.concatenate(targets)


def joint_of(terminals: Sequence[Terminal]) -> tuple[JointAutomaton, NDArray[np.bool_]]:
    """Return the product of the automata of ``terminals``, and ``bool[S, T]``, which of them match in each state."""
    plain = [t for t, terminal in enumerate(terminals) if not terminal.of]
    joint = JointAutomaton.of([automaton_of(terminals[t]) for t in plain])
    matched = np.zeros((len(joint.targets), len(terminals)), dtype=bool)
    matched[:, plain] = joint.matched
    for t, terminal in enumerate(terminals):
        if terminal.of:
            matched[:, t] = matched[:, terminal.of].all(axis=1)
    return joint, matched


def candidates(
    terminals: Sequence[Terminal], matched: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the first terminal that comes before all others which match in a state, :data:`NOTHING` where none does, and
    ``bool[S, T]``, all that do.
    """
    rank = [(2 * each.priority + each.literal) * (len(terminals) + 1) + len(each.of) for each in terminals]
    highest = np.where(matched, rank, min(rank) - 1).max(axis=1)
    first = matched & (rank == highest[:, None])
    return np.where(first.any(axis=1), first.argmax(axis=1), NOTHING).astype(np.int32), first


def as_prior(terminal: Terminal, priority: int) -> str:
    """Write the advice to give ``terminal`` a priority; one without a name in the grammar is given a name."""
    if terminal.name.isidentifier():
        return f"as in `{terminal.name}.{priority}: ...`"
    return f"and a name to put it on, as in `NAMED.{priority}: {terminal.name}`"


def _tie(both: Sequence[Terminal], text: bytes) -> str:
    ignored = next((terminal.name for terminal in both if terminal.ignored), None)
    names = " and ".join(terminal.name for terminal in both)
    kind = f"{ignored} is ignored, and may stand anywhere" if ignored else "both may stand there"
    return (
        f"Leave texts such as {text.decode(errors='backslashreplace')!r} out of the pattern of all but one of {names}, or give one "
        f"a higher priority, {as_prior(both[0], both[0].priority + 1)}. All of them match it, and {kind}, so it is not decided "
        "which it is."
    )
