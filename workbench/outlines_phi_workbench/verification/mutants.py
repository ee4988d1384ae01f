"""Guides and engines made wrong on purpose, one place that texts lead to each, and the check that finds each out: T17 and T18."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from random import Random
from typing import Any, NamedTuple, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.errors import OutlinesPhiError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.lexing.lexer import NOTHING, Lexer
from outlines_phi.guides.grammar.lexing.spanner import Spanner
from outlines_phi.guides.grammar.parsing.lr_tables import LRTables
from outlines_phi.guides.grammar.parsing.parser import ERROR, Parser
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.vocabulary.classes import EOS, NEVER, Partition
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .guide_checks import CHECKS
from .subject import Check, CheckFinding, Subject

DEPTH = 3  # How far a wrong guide is followed
NODES = 100  # In how many nodes at most
TOKENS = 64  # Over how many tokens an engine is made again, which it has to be quickly

BROKEN, HARMLESS, NOWHERE = "an error", "no mistake here", "no place for it"
"""In the place of a check: tables that contradict each other, what changes nothing that was visited, and what cannot be made."""

Place = TypeVar("Place")


class Mutation(NamedTuple):
    """A way to make a guide wrong; ``make`` returns such a guide, ``None`` where there is no place for the mistake."""

    name: str
    make: Callable[[Subject, Random], Guide | None]


def chosen(rng: Random, places: Iterable[Place]) -> Place | None:
    """Return one of the places, each with the same chance; ``None`` where there is none."""
    several = list(dict.fromkeys(places))
    return rng.choice(several) if several else None


# Guides of any kind


@final
class Mutant(Guide):
    """A guide of which rows, the promised lengths, or the ranks of tokens are others."""

    def __init__(
        self,
        guide: Guide,
        row: Callable[[int, Row], Row] = lambda state, row: row,
        promise: Callable[[int, int], int] = lambda state, distance: distance,
        rank: Callable[[int, NDArray[np.int64]], NDArray[np.int64]] = lambda state, ranks: ranks,
    ) -> None:
        self.guide, self._change, self._promise, self._rank = guide, row, promise, rank
        self.vocabulary, self.start = guide.vocabulary, guide.start
        self._rows: dict[int, Row] = {}

    def row(self, state: int) -> Row:
        if state not in self._rows:
            self._rows[state] = self._change(state, self.guide.row(state))
        return self._rows[state]

    def min_tokens(self, state: int) -> int:
        return self._promise(state, self.guide.min_tokens(state))

    def distances_after(self, state: int) -> NDArray[np.int64]:
        return self._rank(state, super().distances_after(state))

    def describe(self, state: int) -> str:
        return self.guide.describe(state)


Targets = NDArray[np.integer]


def _everywhere(name: str, change: Callable[[Guide, int, Targets, Targets], Targets]) -> Mutation:
    """Return the mutation of the targets of all rows; ``change`` is given the numbers of their classes as well."""

    def make(right: Subject, rng: Random) -> Guide:
        def changed(state: int, row: Row) -> Row:
            return Row(row.partition, change(right.guide, state, row.targets, np.arange(len(row.targets))))

        return Mutant(right.guide, changed)

    return Mutation(name, make)


def _somewhere(
    name: str, others: Callable[[Subject, int], Iterable[int]], change: Callable[[Row, int, int], Row]
) -> Mutation:
    """Return the mutation of one class of one row: ``change`` is given the class and one of the ``others``."""

    def make(right: Subject, rng: Random) -> Guide | None:
        places = (
            (state, kind, other) for state, kind in _classes(right) for other in others(right, state) if kind != other
        )
        if (place := chosen(rng, places)) is None:
            return None
        return Mutant(right.guide, lambda state, row: change(row, *place[1:]) if state == place[0] else row)

    return Mutation(name, make)


def _in_one(row: Row, kind: int, other: int) -> Row:
    class_of = np.where(row.partition.class_of == other, kind, row.partition.class_of)
    return Row(Partition(class_of.astype(np.int32), row.partition.size), row.targets)


def _led(row: Row, kind: int, target: int) -> Row:
    return Row(row.partition, np.where(np.arange(len(row.targets)) == kind, target, row.targets))


def _classes(right: Subject, state: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the states that texts lead to, or one of them, with the classes that have a token."""
    for each in dict.fromkeys(node.state for node in right.exploration.inner) if state is None else [state]:
        partition = right.guide.partition_of(each)
        kinds = np.unique(partition.class_of)
        yield from ((each, kind) for kind in kinds[kinds > EOS].tolist())


DISTANCES: dict[str, tuple[bool, Callable[[int], int]]] = {
    "too small": (True, lambda d: d - 1),
    "too large": (True, lambda d: d + 1),
    "infinite instead of finite": (True, lambda d: UNREACHABLE),
    "finite instead of infinite": (False, lambda d: 1),
}
"""How a distance is wrong: whether it is finite, and what becomes of it."""


def _distances(how: str, *, of_tokens: bool) -> Mutation:
    finite, change = DISTANCES[how]

    def make(right: Subject, rng: Random) -> Guide | None:
        guide = right.guide
        if of_tokens:
            ranks = {state: guide.distances_after(state) for state, _ in _classes(right)}
            place = chosen(rng, (at for at in _classes(right) if (ranks[at[0]][at[1]] < UNREACHABLE) == finite))
            if place is None:
                return None

            def ranked(state: int, found: NDArray[np.int64]) -> NDArray[np.int64]:
                if state == place[0]:
                    found[place[1]] = change(int(found[place[1]]))
                return found

            return Mutant(guide, rank=ranked)
        if how == "too large" and isinstance(guide, JSONGuide):
            return None  # which promises the length of some text, and may
        # A promise may be larger than needed; one less is wrong where no token comes nearer.
        met = (node.state for node in right.exploration.inner)
        tight = (state for state in met if guide.distances_after(state).min() + 1 >= guide.min_tokens(state))
        state = chosen(rng, tight) if finite else DEAD
        return Mutant(guide, promise=lambda at, distance: change(distance) if at == state else distance)

    return Mutation(f"takes a {'distance after a token' if of_tokens else 'distance'} for {how}", make)


GUIDES = (
    _everywhere("ends anywhere", lambda guide, state, targets, kinds: np.where(kinds == EOS, DONE, targets)),
    _everywhere(
        "never ends after a text",
        lambda guide, state, targets, kinds: np.where((kinds == EOS) & (state != guide.start), DEAD, targets),
    ),
    _everywhere(
        "forbids one class of tokens",
        lambda guide, state, targets, kinds: np.where(
            kinds == kinds[(kinds > EOS) & (targets != DEAD)].max(initial=NEVER), DEAD, targets
        ),
    ),
    _everywhere(
        "allows every class",
        lambda guide, state, targets, kinds: np.where(
            (kinds > EOS) & (targets == DEAD), targets[kinds > EOS].max(initial=DEAD), targets
        ),
    ),
    _everywhere(
        "forbids what leads away from the end",
        lambda guide, state, targets, kinds: np.where(
            (targets != DONE) & (guide.min_tokens_of(targets) > guide.min_tokens(state)), DEAD, targets
        ),
    ),
    _somewhere("has two classes in one", lambda right, state: (kind for _, kind in _classes(right, state)), _in_one),
    _somewhere("has a class that leads elsewhere", lambda right, _: (n.state for n in right.exploration.nodes), _led),
    *(_distances(how, of_tokens=of_tokens) for of_tokens in (False, True) for how in DISTANCES),
)
"""Wrong masks, classes and distances of any guide."""


# Engines: the automaton of a pattern, the lexer and the parser of a grammar


@final
class Engine:
    """The tables that a guide is made of, and the places of them that texts lead to."""

    def __init__(self, right: Subject) -> None:
        self.guide: Any = right.guide
        self._texts = [right.guide.vocabulary.decode(node.word) for node in right.exploration.inner]

    def over(
        self, *, automaton: ByteAutomaton | None = None, lexer: Lexer | None = None, tables: LRTables | None = None
    ) -> Guide:
        """Return the guide with another table."""
        guide = self.guide
        if automaton is not None:
            return FSMGuide.from_automaton(automaton, guide.vocabulary)
        parser = guide.parser if tables is None else Parser(guide.grammar, tables)
        return CFGGuide(Spanner(lexer or guide.lexer, guide.vocabulary), parser)

    @cached_property
    def states(self) -> list[int]:
        """The states of the automaton or the lexer."""
        if isinstance(self.guide, FSMGuide):
            automaton = cast("ByteAutomaton", self.guide.automaton)
            return list(dict.fromkeys(automaton.advance(automaton.start, text) for text in self._texts))
        return list(dict.fromkeys(self.guide.lexer.lex(text)[0] for text in self._texts))

    @cached_property
    def configurations(self) -> list[int]:
        """The configurations of the parser."""
        lexer, parser = self.guide.lexer, self.guide.parser
        read = (lexer.counted(lexer.lex(text)[1]) for text in self._texts)
        return list(dict.fromkeys(parser.read(parser.start, word) for word in read))

    def tops(self, *, read: bool) -> Iterator[tuple[int, int]]:
        """Yield states on top of stacks, each with the terminals that can be ``read`` there, or cannot."""
        parser = self.guide.parser
        for configuration in self.configurations:
            for terminal in range(parser.END, len(parser.grammar.terminals)):
                if (parser.shift(configuration, terminal) != ERROR) == read:
                    yield from ((parser.top(stack), terminal) for stack in parser.stacks(configuration))


def _table(
    engine: str, name: str, what: str, table: str, places: Callable[[Engine, Any], Iterator[tuple[int, ...]]]
) -> Mutation:
    """Return the mutation of an entry of an array: the last number of a place is written at the others."""

    def make(right: Subject, rng: Random) -> Guide | None:
        made = Engine(right)
        part = getattr(made.guide, engine)
        place = chosen(rng, places(made, part))
        if place is None:
            return None
        changed = getattr(part, table).copy()
        changed[place[:-1]] = place[-1]
        return made.over(**{engine: replace(part, **{table: changed})})

    return Mutation(f"{what} {name}", make)


def _steps(made: Engine, part: Any, *, others: Iterable[int] | None = None) -> Iterator[tuple[int, ...]]:
    for state in made.states:
        for column in np.flatnonzero(part.targets[state]).tolist():
            for other in range(1, len(part.targets)) if others is None else others:
                if other != part.targets[state, column]:
                    yield state, column, other


def _emits(made: Engine, lexer: Lexer, *, dropped: bool) -> Iterator[tuple[int, ...]]:
    for state in made.states:
        for column in np.flatnonzero(lexer.emits[state]).tolist():
            for other in [0] if dropped else range(1, len(lexer.words)):
                if other != lexer.emits[state, column]:
                    yield state, column, other


def _ends(made: Engine, lexer: Lexer, *, allowed: bool) -> Iterator[tuple[int, ...]]:
    others = range(len(lexer.words)) if allowed else [NOTHING]
    return ((state, other) for state in made.states for other in others if bool(lexer.can_end[state]) != allowed)


def _accepts(made: Engine, automaton: ByteAutomaton, *, ends: bool) -> Iterator[tuple[int, ...]]:
    return ((state, ends) for state in made.states if automaton.accepting[state] != ends)


def _parser(
    name: str, change: Callable[[Engine, LRTables, Random], tuple[str, int, dict[int, Any]] | None]
) -> Mutation:
    """Return the mutation of a row of the LR tables: other actions by symbol, none instead of ``None``."""

    def make(right: Subject, rng: Random) -> Guide | None:
        made = Engine(right)
        tables: LRTables = made.guide.parser.tables
        found = change(made, tables, rng)
        if found is None:
            return None
        table, state, actions = found
        rows = list(getattr(tables, table))
        rows[state] = {symbol: action for symbol, action in {**rows[state], **actions}.items() if action is not None}
        return made.over(tables=replace(tables, **cast("dict[str, Any]", {table: tuple(rows)})))

    return Mutation(f"has a parser with {name}", make)


def _shift(made: Engine, tables: LRTables, rng: Random) -> tuple[str, int, dict[int, Any]] | None:
    place = chosen(rng, ((state, t) for state, t in made.tops(read=True) if t in tables.shifts[state]))
    return None if place is None else ("shifts", place[0], {place[1]: None})


def _reduction(made: Engine, tables: LRTables, rng: Random) -> tuple[str, int, dict[int, Any]] | None:
    """Drop the reductions of a state, as most states have one rule, which is reduced whatever follows."""
    tops = list(made.tops(read=True))
    entered = [tables.shifts[state][t] for state, t in tops if t in tables.shifts[state]]
    state = chosen(rng, (state for state in [*(top for top, _ in tops), *entered] if tables.reductions[state]))
    return None if state is None else ("reductions", state, dict.fromkeys(tables.reductions[state]))


def _lookahead(made: Engine, tables: LRTables, rng: Random) -> tuple[str, int, dict[int, Any]] | None:
    rows = tables.reductions
    tops = ((state, t) for state, t in made.tops(read=False) if t not in rows[state])
    place = chosen(rng, ((state, t, reduced) for state, t in tops for reduced in rows[state].values()))
    return None if place is None else ("reductions", place[0], {place[1]: place[2]})


def _goto(made: Engine, tables: LRTables, rng: Random) -> tuple[str, int, dict[int, Any]] | None:
    """Redirect to a state that the same nonterminal leads to elsewhere, so that stacks still spell words."""
    places = (
        (state, head, other[head])
        for state, row in enumerate(tables.goto)
        for head, target in row.items()
        for other in tables.goto
        if other.get(head, target) != target
    )
    place = chosen(rng, places)
    return None if place is None else ("goto", place[0], {place[1]: place[2]})


AUTOMATON = (
    _table("automaton", "that leads elsewhere", "has a byte", "targets", _steps),
    _table("automaton", "that leads nowhere", "has a byte", "targets", partial(_steps, others=[DEAD])),
    _table("automaton", "one more state", "ends in", "accepting", partial(_accepts, ends=True)),
    _table("automaton", "one state less", "ends in", "accepting", partial(_accepts, ends=False)),
)
"""Wrong automata of a pattern."""

GRAMMAR = (
    _table("lexer", "a byte that leads elsewhere", "has a lexer with", "targets", partial(_steps)),
    _table("lexer", "a terminal dropped", "has a lexer with", "emits", partial(_emits, dropped=True)),
    _table("lexer", "a terminal instead of another", "has a lexer with", "emits", partial(_emits, dropped=False)),
    _table("lexer", "an end too many", "has a lexer with", "ends", partial(_ends, allowed=True)),
    _table("lexer", "an end too few", "has a lexer with", "ends", partial(_ends, allowed=False)),
    _parser("a shift dropped", _shift),
    _parser("a reduction dropped", _reduction),
    _parser("a lookahead too many", _lookahead),
    _parser("a goto that leads elsewhere", _goto),
)
"""Wrong lexers and parsers of a grammar."""


def engine_mutations(subject: Subject) -> tuple[Mutation, ...]:
    """Return the mutations of what the guide is made of; none where that is no table, as of a schema."""
    match subject.guide:
        case CFGGuide():
            return GRAMMAR
        case FSMGuide(automaton=ByteAutomaton()):
            return AUTOMATON
    return ()


def found_out(right: Subject, mutations: Iterable[Mutation]) -> CheckFinding:
    """Return whether all mutants of the guide that is right are found out; the remark says by which checks."""
    found, cases = dict[str, list[str]](), 0
    assert right.exploration.nodes  # an error of the right guide is none of a mutant
    for mutation in mutations:
        said = tried(right, mutation, Random(mutation.name))
        cases += said != NOWHERE
        if said is None:
            return CheckFinding.of(cases, DEPTH, f"a guide that {mutation.name} was not found out")
        found.setdefault(said, []).append(mutation.name)
    remark = "; ".join(f"{said}: {', '.join(names)}" for said, names in sorted(found.items()))
    return CheckFinding.of(cases, DEPTH, None, remark)


def tried(right: Subject, mutation: Mutation, rng: Random, checks: Iterable[Check] = CHECKS) -> str | None:
    """Return the first check that finds a mutant out, or what there is in the place of one; ``None`` where it is not found out."""
    try:
        mutant = mutation.make(right, rng)
        if mutant is None:
            return NOWHERE
        wrong = replace(right, guide=mutant)
        for check in checks:
            if check.id[0] == "T" and check.applies(wrong) and check.find(wrong).witness is not None:
                return check.id
        alike = next((check for check in checks if check.id == "S8"), None)
        if alike is not None and alike.find(wrong).witness is not None:
            return alike.id
        return None if _differs(right, wrong) else HARMLESS
    except (OutlinesPhiError, ArithmeticError, AssertionError, LookupError, RecursionError, ValueError, TypeError):
        return BROKEN


def _differs(right: Subject, wrong: Subject) -> bool:
    """Return whether a row or a distance that was visited is another one."""
    for node in wrong.exploration.inner:
        state = right.guide.start
        for token in node.word:
            state = right.guide.advance(state, token)
        promised = (right.guide.min_tokens(state), wrong.guide.min_tokens(node.state))
        if promised[0] != promised[1] or not np.array_equal(
            _after(right.guide, state), _after(wrong.guide, node.state)
        ):
            return True
    return False


def _after(guide: Guide, state: int) -> NDArray[np.int64]:
    """Return ``int64[V]``: the distance after each token."""
    return guide.distances_after(state)[guide.partition_of(state).class_of]


def near(subject: Subject) -> Subject:
    """Return what is verified on few words, and where an engine can be made again, over few tokens."""
    guide, vocabulary = subject.guide, subject.guide.vocabulary
    few = replace(
        subject, depth=min(subject.depth or DEPTH, DEPTH), most=NODES, tokenizer=None, fault=None, progress=None
    )
    if len(vocabulary) <= TOKENS or not isinstance(guide, (CFGGuide, FSMGuide)):
        return few
    order = sorted(range(len(vocabulary)), key=lambda token: len(vocabulary.tokens[token]))
    texts = [vocabulary.tokens[token] for token in order if subject.used.issuperset(vocabulary.tokens[token])]
    bytes_first = [text for text in texts if len(text) == 1]
    longer = [text for text in texts if len(text) > 1]
    kept = [*dict.fromkeys(bytes_first), *longer[:: -(-len(longer) // TOKENS) or 1]]
    small = Vocabulary.from_tokens([*kept, b""], len(kept))
    if isinstance(guide, FSMGuide):
        assert guide.automaton is not None
        return replace(few, guide=FSMGuide.from_automaton(guide.automaton, small))
    return replace(few, guide=CFGGuide(Spanner(guide.lexer, small), guide.parser))
