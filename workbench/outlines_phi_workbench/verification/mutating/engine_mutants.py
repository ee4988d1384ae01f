"""Engines of grammars made wrong on purpose: the lexer, the classes of tokens, the parser's tables, the distances."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, cast, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.automata.automaton import DEAD as NOWHERE
from outlines_phi.automata.lift import FIRST
from outlines_phi.guides.grammar.cfg_guide import CFGGuide, SuffixDistances
from outlines_phi.guides.grammar.completion import FAR
from outlines_phi.guides.grammar.lexing.lexer import NOTHING, START, Lexer
from outlines_phi.guides.grammar.lexing.spanner import Spanner, Spans
from outlines_phi.guides.grammar.parsing.lr_tables import LRTables
from outlines_phi.guides.grammar.parsing.parser import ERROR, Parser
from outlines_phi.guides.guide import UNREACHABLE

from .mutants import DISTANCES, Met, Mutation, chosen, merged

# The lexer


def _lexer(name: str, change: Callable[[Lexer, list[int], Random], Lexer | None]) -> Mutation:
    def make(met: Met, rng: Random) -> CFGGuide | None:
        guide = met.right.parts.guide
        lexer = change(guide.lexer, _states(met), rng)
        return None if lexer is None else CFGGuide(Spanner(lexer, guide.vocabulary), guide.parser)

    return Mutation(f"has a lexer with {name}", make)


def _states(met: Met) -> list[int]:
    return list(dict.fromkeys(state for _, state in met.of_lexer_and_parser))


def _steps(lexer: Lexer, states: list[int]) -> Iterator[tuple[int, int]]:
    return ((state, column) for state in states for column in np.flatnonzero(lexer.targets[state]).tolist())


def _redirected(lexer: Lexer, states: list[int], rng: Random) -> Lexer | None:
    others = range(START + 1, len(lexer))
    places = ((*step, other) for step in _steps(lexer, states) for other in others if other != lexer.targets[step])
    return _with(lexer, "targets", chosen(rng, places))


def _emits(lexer: Lexer, states: list[int], rng: Random, *, dropped: bool) -> Lexer | None:
    emitting = (step for step in _steps(lexer, states) if lexer.emits[step])
    others = [0] if dropped else range(1, len(lexer.words))
    places = ((*step, other) for step in emitting for other in others if other != lexer.emits[step])
    return _with(lexer, "emits", chosen(rng, places))


def _ends(lexer: Lexer, states: list[int], rng: Random, *, allowed: bool) -> Lexer | None:
    change = range(len(lexer.words)) if allowed else [NOTHING]
    places = ((state, other) for state in states for other in change if bool(lexer.can_end[state]) != allowed)
    return _with(lexer, "ends", chosen(rng, places))


def _with(lexer: Lexer, table: str, place: tuple[int, ...] | None) -> Lexer | None:
    """Return the lexer with the last number of ``place`` in the table, at the place of the others."""
    if place is None:
        return None
    changed = getattr(lexer, table).copy()
    changed[place[:-1]] = place[-1]
    return replace(lexer, **{table: changed})


# The classes of tokens


def _spans(name: str, change: Callable[[Spanner, int, Random], Spans | None]) -> Mutation:
    def make(met: Met, rng: Random) -> CFGGuide | None:
        guide = met.right.parts.guide
        state = chosen(rng, _states(met))
        assert state is not None
        spans = change(guide.spanner, state, rng)
        if spans is None:
            return None
        spanner = copy.copy(guide.spanner)  # it forgets the classes of states
        vars(spanner)["_of_state"][state] = spans
        return CFGGuide(spanner, guide.parser)

    return Mutation(f"has classes of tokens with {name}", make)


def _in_one(spanner: Spanner, state: int, rng: Random) -> Spans | None:
    spans = spanner.of_state(state)
    spelled = range(FIRST, spans.partition.size)
    pair = chosen(rng, ((kind, other) for kind in spelled for other in spelled if kind != other))
    return None if pair is None else replace(spans, partition=merged(spans.partition, *pair))


def _of_class(spanner: Spanner, state: int, rng: Random, *, field: str) -> Spans | None:
    spans = spanner.of_state(state)
    others = range(START + 1, len(spanner.lexer)) if field == "target" else range(len(spanner.words))
    effects = getattr(spans, field)
    kinds = range(FIRST, spans.partition.size)
    place = chosen(rng, ((kind, other) for kind in kinds for other in others if other != effects[kind]))
    if place is None:
        return None
    changed = effects.copy()
    changed[place[0]] = place[1]
    return replace(spans, **{field: changed})


# The parser's tables


def _parser(name: str, change: Callable[[Parser, list[int], Random], LRTables | None]) -> Mutation:
    def make(met: Met, rng: Random) -> CFGGuide | None:
        guide = met.right.parts.guide
        tables = change(guide.parser, list(dict.fromkeys(each for each, _ in met.of_lexer_and_parser)), rng)
        return None if tables is None else CFGGuide(guide.spanner, Parser(guide.grammar, tables))

    return Mutation(f"has a parser with {name}", make)


def _tops(parser: Parser, configurations: list[int], *, read: bool) -> Iterator[tuple[int, int]]:
    """Yield states on top of stacks, each with the terminals that can be ``read`` there, or cannot."""
    for configuration in configurations:
        for terminal in range(parser.END, len(parser.grammar.terminals)):
            if (parser.shift(configuration, terminal) != ERROR) == read:
                yield from ((parser.top(stack), terminal) for stack in parser.stacks(configuration))


def _shift(parser: Parser, configurations: list[int], rng: Random) -> LRTables | None:
    rows = parser.tables.shifts
    place = chosen(rng, ((state, t) for state, t in _tops(parser, configurations, read=True) if t in rows[state]))
    return None if place is None else _changed(parser.tables, "shifts", place[0], {place[1]: None})


def _reduction(parser: Parser, configurations: list[int], rng: Random) -> LRTables | None:
    """Drop the reductions of a state, as most states have one rule, which is reduced whatever follows."""
    tables = parser.tables
    tops = list(_tops(parser, configurations, read=True))
    entered = [tables.shifts[state][t] for state, t in tops if t in tables.shifts[state]]
    state = chosen(rng, (state for state in [*(top for top, _ in tops), *entered] if tables.reductions[state]))
    return None if state is None else _changed(tables, "reductions", state, dict.fromkeys(tables.reductions[state]))


def _lookahead(parser: Parser, configurations: list[int], rng: Random) -> LRTables | None:
    rows = parser.tables.reductions
    places = (
        (state, t, reduced)
        for state, t in _tops(parser, configurations, read=False)
        for reduced in rows[state].values()
        if t not in rows[state]
    )
    place = chosen(rng, places)
    return None if place is None else _changed(parser.tables, "reductions", place[0], {place[1]: place[2]})


def _goto(parser: Parser, configurations: list[int], rng: Random) -> LRTables | None:
    """Redirect to a state that the same nonterminal leads to elsewhere, so that stacks still spell words."""
    rows = parser.tables.goto
    below, pending = set(configurations), list(configurations)
    while pending:
        lower = {each for stack in parser.stacks(pending.pop()) for each in parser.below(stack)} - below
        below |= lower
        pending += lower
    places = (
        (state, head, other[head])
        for state in sorted({parser.top(stack) for each in below for stack in parser.stacks(each)})
        for head, target in rows[state].items()
        for other in rows
        if other.get(head, target) != target
    )
    place = chosen(rng, places)
    return None if place is None else _changed(parser.tables, "goto", place[0], {place[1]: place[2]})


def _changed(tables: LRTables, table: str, state: int, actions: dict[int, Any]) -> LRTables:
    """Return the tables with other actions in the row of a state, none instead of ``None``."""
    rows = list(getattr(tables, table))
    rows[state] = {symbol: action for symbol, action in {**rows[state], **actions}.items() if action is not None}
    return replace(tables, **cast("dict[str, Any]", {table: tuple(rows)}))


# The distances


def _met_distances(met: Met, *, finite: bool) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield configurations and states of the lexer with a class, and the configuration and the state that it leads to."""
    guide = met.right.parts.guide
    for configuration, state in met.of_lexer_and_parser:
        spans = guide.spanner.of_state(state)
        for kind in range(FIRST, spans.partition.size):
            after = guide.parser.read(configuration, guide.spanner.words[spans.word[kind]])
            if after == ERROR or spans.target[kind] == NOWHERE:
                continue
            target = int(spans.target[kind])
            if (guide.completion.distance(after, target) < UNREACHABLE) == finite:
                yield configuration, state, kind, after, target


def _completion(how: str) -> Mutation:
    finite, change = DISTANCES[how]

    def make(met: Met, rng: Random) -> CFGGuide | None:
        guide = met.right.parts.guide
        met_or_dead = met.of_lexer_and_parser if finite else (place[3:] for place in _met_distances(met, finite=False))
        place = chosen(rng, met_or_dead)
        if place is None:
            return None
        configuration, state = place
        kept = (guide.parser, guide.spanner, guide.parser.tables.rules)
        completion = copy.deepcopy(guide.completion, {id(each): each for each in kept})
        tables = vars(completion)
        base, shape = completion._of(configuration)
        after = change(int(tables["_shapes"][shape, state]))
        tables["_shapes"][shape, state] = FAR if after is None else after
        return CFGGuide(guide.spanner, guide.parser, completion)

    return Mutation(f"takes a distance of the parser for {how}", make)


@final
class _WrongSuffixes:
    """Distances after classes of tokens, one of them another."""

    def __init__(self, right: SuffixDistances, place: tuple[int, int], kind: int, change: Callable[[int], int | None]):
        self._right, self._place, self._kind, self._change = right, place, kind, change

    def distances(self, configuration: int, lexer_state: int) -> NDArray[np.int64]:
        found = self._right.distances(configuration, lexer_state)
        if (configuration, lexer_state) != self._place:
            return found
        found = found.copy()
        after = self._change(int(found[self._kind]))
        found[self._kind] = UNREACHABLE if after is None else after
        return found


def _suffixes(how: str) -> Mutation:
    finite, change = DISTANCES[how]

    def make(met: Met, rng: Random) -> CFGGuide | None:
        guide = met.right.parts.guide
        place = chosen(rng, _met_distances(met, finite=finite))
        if place is None:
            return None
        wrong = CFGGuide(guide.spanner, guide.parser, guide.completion)
        right = SuffixDistances(guide.spanner, guide.parser, guide.completion)
        vars(wrong)["_suffix_distances"] = _WrongSuffixes(right, place[:2], place[2], change)
        return wrong

    return Mutation(f"takes a distance after a token for {how}", make)


ENGINE: Iterable[Mutation] = (
    _lexer("a byte that leads elsewhere", _redirected),
    _lexer("a terminal dropped", partial(_emits, dropped=True)),
    _lexer("a terminal instead of another", partial(_emits, dropped=False)),
    _lexer("an end too many", partial(_ends, allowed=True)),
    _lexer("an end too few", partial(_ends, allowed=False)),
    _spans("two in one", _in_one),
    _spans("one that leads elsewhere", partial(_of_class, field="target")),
    _spans("one that completes others", partial(_of_class, field="word")),
    _parser("a shift dropped", _shift),
    _parser("a reduction dropped", _reduction),
    _parser("a lookahead too many", _lookahead),
    _parser("a goto that leads elsewhere", _goto),
    *map(_completion, DISTANCES),
    *map(_suffixes, DISTANCES),
)
"""Wrong parts of the guide of a grammar."""
