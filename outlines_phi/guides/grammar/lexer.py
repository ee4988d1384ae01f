"""The lexing transducer: bytes in, the terminals of longest-match lexemes out (grammar-theory.md, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, UNREACHABLE, distances, explored
from ...errors import GrammarError
from ...format_limits import current_limits
from ...regex.code_automaton import equivalent
from .grammar import Terminal
from .lexeme_automaton import NOTHING as NOTHING
from .lexeme_automaton import LexemeAutomaton, as_prior

HELD = 8  # The most terminals that are held back until it is known whether a longer lexeme comes about


@final
@dataclass(frozen=True, eq=False)
class Rollbacks:
    """The pairs (state of the longer lexeme, state of what comes in its place if it fails) where both may happen.

    While a longer lexeme goes on behind a complete one, the bytes since are read a second time, as the lexemes that they are if it
    fails. A pair matters if bytes can lead to such a failure. ``1.`` and ``1e`` of a JSON number do not: nothing else begins so.
    ``pairs``, ``int64[P]``, are those that matter, ``state * S + other``, ascending; from those that are ``deep`` more than
    :data:`HELD` terminals would have to be held back.
    """

    automaton: LexemeAutomaton
    pairs: NDArray[np.int64]
    deep: NDArray[np.bool_]

    @classmethod
    def of(cls, automaton: LexemeAutomaton) -> Rollbacks:
        _, longer, again = _beginnings(automaton)
        pairs, source, target, emits, fails = _reachable(automaton, np.unique(longer * len(automaton) + again))
        matters = distances(source, target, np.flatnonzero(fails), len(pairs)) != UNREACHABLE
        along = matters[source] & matters[target]
        source, target, emits = source[along], target[along], emits[along]
        deep = matters
        for _ in range(HELD):
            goals = np.unique(source[emits & deep[target]])
            deep = matters & (distances(source, target, goals, len(pairs)) != UNREACHABLE)
        return cls(automaton, pairs[matters], deep[matters])

    def matter(self, state: int, others: Sequence[int]) -> bool:
        """Return True if ``state`` may fail where one of ``others`` goes on."""
        return any(self._place(state * len(self.automaton) + other) >= 0 for other in others)

    @cached_property
    def steps(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """``bool[S, C]`` each: the steps out of complete lexemes whose outcome matters, and those that may be waited for without
        end.

        The latter on the safe side: what is read again may be lexed here in ways that later bytes rule out.
        """
        matters = np.zeros(self.automaton.targets.shape, dtype=bool)
        deep = np.zeros_like(matters)
        edges, longer, again = _beginnings(self.automaton)
        for (state, column), key in zip(edges.tolist(), (longer * len(self.automaton) + again).tolist(), strict=True):
            place = self._place(key)
            matters[state, column] = place >= 0
            deep[state, column] = place >= 0 and self.deep[place]
        return matters, deep

    def outranked(self, comes_first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return ``bool[S, C]``: the steps after which all terminals that the lexeme may be of come before the complete one.

        ``comes_first[t, u]`` tells whether ``t`` comes before ``u``.
        """
        others = ~comes_first.T[self.automaton.label]  # [S, T]: what does not come before the label
        reaches = self.automaton.reaches[self.automaton.targets]  # [S, C, T]
        return np.asarray(~(reaches & others[:, None, : reaches.shape[2]]).any(axis=2))

    def _place(self, key: int) -> int:
        place = int(np.searchsorted(self.pairs, key))
        return place if place < len(self.pairs) and self.pairs[place] == key else -1

    def refusal(self, terminals: Sequence[Terminal], refused: NDArray[np.bool_]) -> GrammarError:
        """Return the error that names a shortest text that leads behind one of the ``refused`` steps."""
        automaton, byte_of = self.automaton, _spelled(self.automaton)
        places = np.argwhere(refused).tolist()
        ways = ((automaton.leading_to(np.arange(len(automaton)) == s).shortest(), s, column) for s, column in places)
        complete, state, column = min(ways, key=lambda way: (len(way[0]), way))
        text = complete + bytes([byte_of[column]])
        short = terminals[automaton.label[state]]
        longer_ones = [terminals[t] for t in np.flatnonzero(automaton.reaches[automaton.targets[state, column]])]
        names = " or ".join(terminal.name for terminal in longer_ones)
        return GrammarError(
            f"no bounded number of bytes tells how {_shown(text)} is read: {_shown(complete)} is a complete {short.name}; what "
            f"follows may be part of a longer {names}, or, if that never ends, lexemes of its own. If what begins like {names} has "
            f"to be one, give it a higher priority than {short.name}, {as_prior(longer_ones[0], short.priority + 1)}; "
            f"else change the patterns so that {short.name} is not how {names} begins"
        )


def _beginnings(automaton: LexemeAutomaton) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the steps ``int64[E, 2]`` out of complete lexemes into ones that are not, and the two states that each leads to.

    Only those where the byte can also begin a lexeme.
    """
    edges = np.argwhere(automaton.accepting[:, None] & (automaton.targets != DEAD))
    longer = automaton.targets[edges[:, 0], edges[:, 1]].astype(np.int64)
    again = automaton.targets[automaton.start, edges[:, 1]].astype(np.int64)
    kept = ~automaton.accepting[longer] & (again != DEAD)
    return edges[kept], longer[kept], again[kept]


def _reachable(
    automaton: LexemeAutomaton, pairs: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return all pairs that ``pairs`` lead to, ascending, the steps between them, and where the longer lexeme may fail.

    What is read again is lexed by longest match too; where that depends on later bytes, both outcomes are followed. A step is the
    place of its source, of its target, and whether it completes a lexeme; the last ``bool`` is per pair.
    """
    size = len(automaton)
    found, frontier = pairs, pairs
    steps = [np.zeros((0, 3), dtype=np.int64)]
    failing = [np.zeros(0, dtype=np.int64)]
    while len(frontier):
        longer, again = np.divmod(frontier, size)
        then, along = automaton.targets[longer], automaton.targets[again]  # [frontier, C]
        complete = automaton.accepting[again][:, None]
        anew = np.where(complete & ~automaton.accepting[along], automaton.targets[automaton.start], DEAD)
        fails = (then == DEAD) & ((along != DEAD) | (anew != DEAD))
        failing.append(frontier[fails.any(axis=1) | complete[:, 0]])
        waits = (then != DEAD) & ~automaton.accepting[then]
        for emits, others in enumerate((along, anew)):
            row, column = np.nonzero(waits & (others != DEAD))
            target = then[row, column].astype(np.int64) * size + others[row, column]
            steps.append(np.unique(np.stack([frontier[row], target, np.full(len(row), emits)], axis=1), axis=0))
        frontier = np.setdiff1d(np.concatenate([step[:, 1] for step in steps[-2:]]), found)
        found = np.union1d(found, frontier)
        current_limits().check("states", len(found) // 100, "The number of pairs of states of lexemes, in hundreds,")
    source, target, emits = np.concatenate(steps).T
    return (
        found,
        np.searchsorted(found, source),
        np.searchsorted(found, target),
        emits.astype(bool),
        np.isin(found, np.concatenate(failing)),
    )


def _spelled(automaton: LexemeAutomaton) -> list[int]:
    """Return a byte of each class, one that can be read where there is one."""
    readable = sorted(range(256), key=lambda byte: (not 0x20 < byte < 0x7F, byte))
    classes, first = np.unique(automaton.byte_class[readable], return_index=True)
    return [readable[place] for place in first[np.argsort(classes)]]


def _shown(text: bytes) -> str:
    return repr(text.decode(errors="backslashreplace"))


Word = tuple[int, ...]  # A sequence of terminals

LIMIT = 10_000  # The most states that hold terminals back

START = 1
"""The state before the first byte, and after the end of a text. No byte leads to it: between lexemes, one of them is pending."""


class _Pending(NamedTuple):
    """State of a transducer: a lexeme, :data:`NOTHING` before the first; if it may fail, the terminals then, and what goes on."""

    lexeme: int
    held: Word = ()
    fallback: _Pending | None = None

    @property
    def chain(self) -> list[_Pending]:
        """The lexemes that may be pending, one fallback after the other."""
        found = [self]
        while found[-1].fallback is not None:
            found.append(found[-1].fallback)
        return found


class _TooMany(GrammarError):
    """No bounded number of terminals, or of states, would do."""

    def __init__(self) -> None:
        super().__init__(
            f"the lexer would have to hold more than {HELD} terminals back, or in more than {LIMIT} ways, until it is "
            "known whether longer lexemes fail. Give the terminals of the longer lexemes a higher priority than those of "
            "their beginnings, or shorten the repeats in them"
        )


def _endless(
    terminals: Sequence[Terminal], automaton: LexemeAutomaton, rollbacks: Rollbacks, steps: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return those of ``steps`` that cannot be waited for, all if none is so by itself."""
    places = np.argwhere(steps)
    # What follows depends on where a step leads, and where its byte leads as the first one of a lexeme.
    states = np.stack([automaton.targets[steps], automaton.targets[automaton.start, places[:, 1]]])
    _, first, which = np.unique(states, axis=1, return_index=True, return_inverse=True)
    endless = np.zeros(len(first), dtype=bool)
    for kind, place in enumerate(first.tolist()):
        alone = np.zeros_like(steps)
        alone[tuple(places[place])] = True
        try:
            _built(terminals, automaton, rollbacks, alone)
        except _TooMany:
            endless[kind] = True
    found = np.zeros_like(steps)
    found[steps] = endless[which.reshape(-1)]
    return found if found.any() else steps


def _built(
    terminals: Sequence[Terminal], automaton: LexemeAutomaton, rollbacks: Rollbacks, held_back: NDArray[np.bool_]
) -> Lexer:
    """Return the lexer, not the least one, that holds terminals back behind some steps; it raises :class:`_TooMany`."""
    tables = automaton.targets, automaton.label, automaton.accepting, held_back
    rows, label, accepting, holds = (table.tolist() for table in tables)
    first, known = rows[automaton.start], dict[_Pending, list[tuple[_Pending | None, Word]]]()
    words, waiting = dict[Word, int]({(): 0}), list[_Pending]()
    for state in np.flatnonzero(automaton.accepting).tolist():
        words.setdefault((label[state],), len(words))

    def way(at: _Pending, column: int) -> tuple[_Pending | None, Word]:
        state = automaton.start if at.lexeme == NOTHING else at.lexeme
        then = rows[state][column]
        if at.fallback is None:
            if holds[state][column]:
                return _Pending(then, (label[state],), _Pending(first[column])), ()
            # A byte that ends a complete lexeme is read once more, as a beginning.
            ends = then == DEAD and accepting[state] and first[column] != DEAD
            return (
                (_Pending(first[column]), (label[state],)) if ends else (_Pending(then) if then != DEAD else None, ())
            )
        after, word = ways(at.fallback)[column]
        if then == DEAD:
            return after, at.held + word if after else ()
        chain = after.chain if after else []
        if accepting[then] or not rollbacks.matter(then, [each.lexeme for each in chain]):
            return _Pending(then), ()
        found = _Pending(then, at.held + word, after)
        if sum(len(each.held) for each in found.chain) > HELD:
            raise _TooMany
        return found, ()

    def ways(at: _Pending) -> list[tuple[_Pending | None, Word]]:
        if at not in known:
            known[at] = [way(at, column) for column in range(len(first))]
            waiting.extend([at] if at.fallback else [])
            if len(waiting) > LIMIT:
                raise _TooMany
        return known[at]

    def end(at: _Pending) -> int:
        *around, last = at.chain
        if last.lexeme != NOTHING and not accepting[last.lexeme]:
            return NOTHING
        word = (label[last.lexeme],) if last.lexeme != NOTHING else ()
        return words.setdefault(sum((each.held for each in around), ()) + word, len(words))

    number, targets = explored([_Pending(NOTHING)], lambda at: [to for to, _ in ways(at)])
    places = sorted(number, key=lambda at: (at.fallback is not None, number[at] if at.fallback else at.lexeme))
    order = np.array([DEAD, *(number[at] for at in places)])
    rank = np.argsort(order).astype(np.int32)
    emits = [[words.setdefault(word, len(words)) for _, word in known[at]] for at in places]
    lexeme = [automaton.start if at.lexeme == NOTHING else at.lexeme for at in places]
    held = [words.setdefault(at.held, len(words)) for at in places]
    fallback = [rank[number[at.fallback]] if at.fallback else DEAD for at in places]
    columns = ([NOTHING, *map(end, places)], [DEAD, *lexeme], [0, *held], [DEAD, *fallback])
    ends, lexemes, helds, fallbacks = (np.array(part, dtype=np.int32) for part in columns)
    table = np.array([[0] * len(first), *emits], dtype=np.int32)
    reaches = np.zeros((len(lexemes), len(terminals)), dtype=bool)
    reaches[:, : automaton.reaches.shape[1]] = automaton.reaches[lexemes]
    return Lexer(
        tuple(terminals),
        rank[targets[order]],
        table,
        tuple(words),
        automaton.byte_class,
        automaton.label[lexemes],
        ends,
        reaches,
        helds,
        fallbacks,
    )


@final
@dataclass(frozen=True, eq=False)
class Lexer:
    """A deterministic transducer that cuts a text into lexemes, each as long as possible (grammar-theory.md, sections 2 and 3).

    A state is what is known of the lexeme that is pending. A byte that prolongs it emits nothing; one that does not ends it, emits
    its terminal and begins the next lexeme, if it can. :meth:`flush` is what the end of the text emits.

    **Where a longer lexeme may fail.** In ``1else``, ``1`` is a number and ``1e`` begins a longer one that the next byte refutes.
    So the terminal is held back: the state knows which terminals the bytes since are if the longer lexeme fails, and then all are
    emitted at once. Where that would hold more than :data:`HELD` terminals, as a comment ``/* ..`` that may not end does
    beside ``/`` and ``*``, the longer lexeme must be ignored or have a higher priority: what begins like it has to be one. Other
    such grammars are refused.
    """

    terminals: tuple[Terminal, ...]  # their numbers are what is emitted
    targets: NDArray[np.int32]  # ``int32[L, C]``: the next state. Row 0 is dead, row :data:`START` comes first
    # ``int32[L, C]``: what that step emits, an index into ``words``. At most one terminal, but where some were held back.
    emits: NDArray[np.int32]
    words: tuple[Word, ...]  # the words that steps and the end of a text emit; ``words[0]`` is ``()``
    byte_class: NDArray[np.uint8]  # ``uint8[256]``: the column of each byte
    label: NDArray[np.int32]  # ``int32[L]``: the terminal of which the pending bytes are a lexeme, or :data:`NOTHING`
    # ``int32[L]``: what the end of the text emits, an index into ``words``, or :data:`NOTHING` where it may not end.
    ends: NDArray[np.int32]
    # ``bool[L, T]``: the terminals that the pending lexeme may be of when it is complete, all bytes since the last emission
    # belonging to it.
    reaches: NDArray[np.bool_]
    # ``int32[L]``: where ``held``, an index into ``words``, is not 0, terminals are held back: if the longer lexeme fails, it is
    # as if they had been emitted and the lexer were in the state ``fallback``.
    held: NDArray[np.int32]
    fallback: NDArray[np.int32]

    @classmethod
    def of(cls, terminals: Sequence[Terminal]) -> Lexer:
        """Return the lexer of ``terminals``.

        A :class:`GrammarError` where a terminal is empty or matches the empty text, two match the same text and neither comes
        first, or no bounded number of bytes tells how a text is cut. The last two name a shortest such text, or its beginning.
        """
        automaton = LexemeAutomaton.of(terminals)
        rollbacks = Rollbacks.of(automaton)
        committed = np.array([terminal.committed for terminal in terminals])
        goes_back = automaton.accepting & ~committed[automaton.label]
        matters, deep = (steps & goes_back[:, None] for steps in rollbacks.steps)
        if not deep.any():
            return _built(terminals, automaton, rollbacks, matters)._least()
        # Steps that no bound holds for are not waited for where the longer lexeme is ignored, or if need be has a higher priority.
        ignored = np.array([terminal.ignored for terminal in terminals])
        priority = np.array([terminal.priority for terminal in terminals])
        comments = np.repeat(ignored[:, None], len(terminals), axis=1)
        waits = matters & ~(deep & rollbacks.outranked(comments))
        prior = matters & ~(deep & rollbacks.outranked(comments | (priority[:, None] > priority)))
        for held_back in (waits, prior):
            try:
                return _built(terminals, automaton, rollbacks, held_back)._least()
            except _TooMany:
                if held_back is prior and not (prior & deep).any():
                    raise
        raise rollbacks.refusal(terminals, _endless(terminals, automaton, rollbacks, prior & deep))

    def _least(self) -> Lexer:
        """Return the same lexer, with states that emit the same from now on as one, and bytes that act alike."""
        kind = np.unique(np.column_stack([self.emits, self.ends]), axis=0, return_inverse=True)[1].reshape(-1)
        block = equivalent(self.targets, kind)
        kept = np.unique(block, return_index=True)[1]
        number = np.zeros(block.max() + 1, dtype=np.int32)
        number[block[kept]] = np.arange(len(kept))
        targets, emits = number[block[self.targets[kept]]], self.emits[kept]
        _, first, merged = np.unique(np.concatenate([targets, emits]), axis=1, return_index=True, return_inverse=True)
        return replace(
            self,
            targets=np.ascontiguousarray(targets[:, first]),
            emits=np.ascontiguousarray(emits[:, first]),
            byte_class=merged.reshape(-1)[self.byte_class].astype(np.uint8),
            label=self.label[kept],
            ends=self.ends[kept],
            reaches=self.reaches[kept],
            held=self.held[kept],
            fallback=number[block[self.fallback[kept]]],
        )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def can_end(self) -> NDArray[np.bool_]:
        """``bool[L]``: where the text may end, as far as the lexer is concerned."""
        return self.ends != NOTHING

    def flush(self, state: int) -> Word | None:
        """Return the word that the end of the text emits in ``state``; ``None`` where it cuts a lexeme short."""
        return self.words[self.ends[state]] if self.ends[state] != NOTHING else None

    def lex(self, text: bytes, state: int = START) -> tuple[int, Word] | None:
        """Return the state after ``text`` and what was emitted; ``None`` where it is no beginning of a text."""
        emitted: Word = ()
        for byte in text:
            column = self.byte_class[byte]
            emitted += self.words[self.emits[state, column]]
            state = int(self.targets[state, column])
            if state == DEAD:
                return None
        return state, emitted

    def counted(self, word: Word) -> Word:
        """Return a word without ignored terminals, as a parser reads it."""
        return tuple(terminal for terminal in word if not self.terminals[terminal].ignored)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``."""
        names = [self.terminals[t].name for t in np.flatnonzero(self.reaches[state])]
        if state == START:
            return "at the start"
        begun = self.terminals[self.label[state]].name if self.label[state] != NOTHING else "incomplete"
        held = " ".join(self.terminals[t].name for t in self.words[self.held[state]])
        otherwise = f", else {held} {self.describe(int(self.fallback[state]))}" if held else ""
        return f"{begun} of {' | '.join(names)}{otherwise}"
