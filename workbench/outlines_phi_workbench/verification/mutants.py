"""Guides and engines made wrong on purpose, one place that texts lead to each, and the check that finds each out: T17 and T18."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from random import Random
from typing import Any, NamedTuple, cast, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi import OutlinesPhiError, Vocabulary
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides import CFGGuide, FSMGuide, Guide, JSONGuide
from outlines_phi.guides.grammar.grammar import LRTables
from outlines_phi.guides.grammar.lexer import NOTHING, START
from outlines_phi.guides.grammar.parser import ERROR, Parser
from outlines_phi.guides.grammar.spanner import Spanner
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Row
from outlines_phi.vocabulary.vocabulary import EOS, NEVER, Partition

from .subject import Check, CheckFinding, Subject

DEPTH, NODES = 3, 100  # How far a wrong guide is followed, in how many nodes at most
TOKENS = 64  # Over how many longer tokens an engine is made again, which it has to be quickly

BROKEN, HARMLESS, NOWHERE = "an error", "no mistake here", "no place for it"
"""In the place of a check: tables that contradict each other, what changes nothing that was visited, and what cannot be made."""

Targets = NDArray[np.integer]


class Mutation(NamedTuple):
    """A way to make a guide wrong: the places for the mistake, none where it cannot be made, and the guide with it in one."""

    name: str
    places: Callable[[Subject], Iterable[Any]]
    make: Callable[[Subject, Any], Guide]


@final
class Mutant(Guide):
    """A guide of which rows, the promised lengths, or the ranks of tokens are others: what the method ``what`` returns."""

    def __init__(self, guide: Guide, what: str, change: Callable[[int, Any], Any]) -> None:
        self.guide, self._what, self._change = guide, what, change
        self.vocabulary, self.start = guide.vocabulary, guide.start
        self._rows: dict[int, Row] = {}

    def row(self, state: int) -> Row:
        if state not in self._rows:
            self._rows[state] = self._changed("row", state, self.guide.row(state))
        return self._rows[state]

    def min_tokens(self, state: int) -> int:
        return int(self._changed("min_tokens", state, self.guide.min_tokens(state)))

    def distances_after(self, state: int) -> NDArray[np.int64]:
        return np.asarray(self._changed("distances_after", state, super().distances_after(state)))

    def _changed(self, what: str, state: int, right: Any) -> Any:
        return self._change(state, right) if what == self._what else right

    def describe(self, state: int) -> str:
        return self.guide.describe(state)


def _everywhere(name: str, change: Callable[[Guide, int, Targets, Targets], Targets]) -> Mutation:
    """Return the mutation of the targets ``t`` of all rows; ``change`` is given the numbers ``k`` of their classes as well."""

    def make(right: Subject, place: None) -> Guide:
        def changed(state: int, row: Row) -> Row:
            return Row(row.partition, change(right.guide, state, row.targets, np.arange(len(row.targets))))

        return Mutant(right.guide, "row", changed)

    return Mutation(name, lambda right: [None], make)


def _states(right: Subject) -> list[int]:
    """Return the states that texts lead to."""
    return list(dict.fromkeys(node.state for node in right.exploration.inner))


def _classes(right: Subject, state: int) -> list[int]:
    """Return the classes of a state that have a token."""
    kinds = np.unique(right.guide.partition_of(state).class_of)
    return list(kinds[kinds > EOS].tolist())


def _in_one_state(
    name: str, what: str, places: Callable[[Subject], Iterable[tuple[int, ...]]], change: Callable[..., Any]
) -> Mutation:
    """Return the mutation of the row, the promise or the ranks of one state; ``change`` is given the rest of a place as well."""

    def make(right: Subject, place: tuple[int, ...]) -> Guide:
        at, *rest = place
        return Mutant(right.guide, what, lambda state, found: change(found, *rest) if state == at else found)

    return Mutation(name, places, make)


def _with(array: NDArray[Any], place: Any, entry: Any) -> NDArray[Any]:
    """Return an array with another entry in one place."""
    changed = array.copy()
    changed[place] = entry
    return changed


def _two_classes(right: Subject) -> Iterator[tuple[int, int, int]]:
    kinds = {state: _classes(right, state) for state in _states(right)}
    return ((s, k, o) for s in kinds for k in kinds[s] for o in kinds[s] if k != o)


def _in_one(row: Row, kind: int, other: int) -> Row:
    class_of = np.where(row.partition.class_of == other, kind, row.partition.class_of)
    return Row(Partition(class_of.astype(np.int32), row.partition.size), row.targets)


def _other_states(right: Subject) -> Iterator[tuple[int, int, int]]:
    rows = {state: right.guide.row(state).targets for state in _states(right)}
    return ((s, k, o) for s in rows for k in _classes(right, s) for o in rows if o != rows[s][k])


def _led_elsewhere(row: Row, kind: int, target: int) -> Row:
    return Row(row.partition, _with(row.targets, kind, target))


DISTANCES: dict[str, tuple[bool, Callable[[int], int]]] = {
    "too small": (True, lambda d: d - 1),
    "too large": (True, lambda d: d + 1),
    "infinite instead of finite": (True, lambda d: UNREACHABLE),
    "finite instead of infinite": (False, lambda d: 1),
}
"""The mistake in a distance: whether it is finite, and what becomes of it."""


def _promise(how: str) -> Mutation:
    finite, change = DISTANCES[how]

    def places(right: Subject) -> Iterable[tuple[int]]:
        guide = right.guide
        if how == "too large" and isinstance(guide, JSONGuide):
            return []  # which promises the length of some text, and may
        # A promise may be larger than needed; one less is wrong where no token comes nearer.
        tight = ((s,) for s in _states(right) if guide.distances_after(s).min() + 1 >= guide.min_tokens(s))
        return tight if finite else [(DEAD,)]

    return _in_one_state(f"takes a distance for {how}", "min_tokens", places, change)


def _rank(how: str) -> Mutation:
    finite, change = DISTANCES[how]

    def places(right: Subject) -> Iterator[tuple[int, int]]:
        ranks = {state: right.guide.distances_after(state) for state in _states(right)}
        return ((s, k) for s in ranks for k in _classes(right, s) if (ranks[s][k] < UNREACHABLE) == finite)

    def changed(ranks: NDArray[np.int64], kind: int) -> NDArray[np.int64]:
        return _with(ranks, kind, change(int(ranks[kind])))

    return _in_one_state(f"takes a distance after a token for {how}", "distances_after", places, changed)


GUIDES = (
    _everywhere("ends anywhere", lambda guide, state, t, k: np.where(k == EOS, DONE, t)),
    _everywhere(
        "never ends after a text", lambda guide, state, t, k: np.where((k == EOS) & (state != guide.start), DEAD, t)
    ),
    _everywhere(
        "forbids one class of tokens",
        lambda guide, state, t, k: np.where(k == k[(k > EOS) & (t != DEAD)].max(initial=NEVER), DEAD, t),
    ),
    _everywhere(
        "allows every class",
        lambda guide, state, t, k: np.where((k > EOS) & (t == DEAD), t[k > EOS].max(initial=DEAD), t),
    ),
    _everywhere(
        "forbids what leads away from the end",
        lambda guide, state, t, k: np.where((t != DONE) & (guide.min_tokens_of(t) > guide.min_tokens(state)), DEAD, t),
    ),
    _in_one_state("has two classes in one", "row", _two_classes, _in_one),
    _in_one_state("has a class that leads elsewhere", "row", _other_states, _led_elsewhere),
    *map(_promise, DISTANCES),
    *map(_rank, DISTANCES),
)
"""Wrong masks, classes and distances of any guide."""


def _texts(right: Subject) -> list[bytes]:
    """Return the texts that were explored."""
    return [right.guide.vocabulary.decode(node.word) for node in right.exploration.inner]


def _tops(right: Subject, *, read: bool) -> Iterator[tuple[int, int]]:
    """Yield states on top of stacks, each with the terminals that can be ``read`` there, or cannot."""
    guide: Any = right.guide
    lexer, parser = guide.lexer, guide.parser
    words = dict.fromkeys(lexer.counted(lexer.lex(text)[1]) for text in _texts(right))
    for configuration in dict.fromkeys(parser.read(parser.start, word) for word in words):
        for terminal in range(parser.END, len(parser.grammar.terminals)):
            if (parser.shift(configuration, terminal) != ERROR) == read:
                yield from ((parser.top(stack), terminal) for stack in parser.stacks(configuration))


def _entry(part: str, name: str, table: str, others: Callable[[Any, int, Any], Iterable[int]]) -> Mutation:
    """Return the mutation of an entry of an array; ``others`` are given its row and the part, and what it is."""

    def places(right: Subject) -> Iterator[tuple[tuple[int, ...], int]]:
        made = getattr(right.guide, part)
        rows, after = getattr(made, table), made.advance if part == "automaton" else lambda _, text: made.lex(text)[0]
        states = dict.fromkeys(after(made.start if part == "automaton" else START, text) for text in _texts(right))
        entries = [((s, *rest), rows[(s, *rest)]) for s in states for rest in np.ndindex(rows.shape[1:])]
        return ((at, new) for at, now in entries for new in others(made, at[0], now) if new != now)

    def make(right: Subject, place: tuple[tuple[int, ...], int]) -> Guide:
        guide: Any = right.guide
        made = getattr(guide, part)
        wrong = replace(made, **{table: _with(getattr(made, table), *place)})
        if part == "automaton":
            return FSMGuide.from_automaton(wrong, guide.vocabulary)
        return CFGGuide(Spanner(wrong, guide.vocabulary), guide.parser)

    return Mutation(name, places, make)


Change = tuple[str, int, tuple[Any, ...], Any]
"""A table of a parser, a row of it, some symbols, and the action by them, ``None`` for none."""


def _parser(name: str, changes: Callable[[Subject, LRTables], Iterable[Change]]) -> Mutation:
    """Return the mutation of a row of the LR tables."""

    def make(right: Subject, change: Change) -> Guide:
        guide: Any = right.guide
        table, state, symbols, action = change
        rows = list(getattr(guide.parser.tables, table))
        actions = {**rows[state], **dict.fromkeys(symbols, action)}
        rows[state] = {symbol: action for symbol, action in actions.items() if action is not None}
        return CFGGuide(guide.spanner, Parser(guide.grammar, replace(guide.parser.tables, **{table: tuple(rows)})))

    def places(right: Subject) -> Iterable[Change]:
        return changes(right, cast(CFGGuide, right.guide).parser.tables)

    return Mutation(f"has a parser with {name}", places, make)


def _shift(right: Subject, tables: LRTables) -> Iterator[Change]:
    return (("shifts", state, (t,), None) for state, t in _tops(right, read=True) if t in tables.shifts[state])


def _reduction(right: Subject, tables: LRTables) -> Iterator[Change]:
    """Drop the reductions of a state, as most states have one rule, which is reduced whatever follows."""
    tops = list(_tops(right, read=True))
    entered = [tables.shifts[state][t] for state, t in tops if t in tables.shifts[state]]
    states = (state for state in [*(top for top, _ in tops), *entered] if tables.reductions[state])
    return (("reductions", state, tuple(tables.reductions[state]), None) for state in states)


def _lookahead(right: Subject, tables: LRTables) -> Iterator[Change]:
    rows = tables.reductions
    tops = ((state, t) for state, t in _tops(right, read=False) if t not in rows[state])
    return (("reductions", state, (t,), reduced) for state, t in tops for reduced in rows[state].values())


def _goto(right: Subject, tables: LRTables) -> Iterator[Change]:
    """Redirect to a state that the same nonterminal leads to elsewhere, so that stacks still spell words."""
    rows = ((state, head, target) for state, row in enumerate(tables.goto) for head, target in row.items())
    others = ((state, head, target, other.get(head, target)) for state, head, target in rows for other in tables.goto)
    return (("goto", state, (head,), other) for state, head, target, other in others if other != target)


def _others(part: Any, state: int, now: int) -> Iterable[int]:
    return range(1, len(part)) if now else ()


AUTOMATON = (
    _entry("automaton", "has a byte that leads elsewhere", "targets", _others),
    _entry("automaton", "has a byte that leads nowhere", "targets", lambda a, s, now: [DEAD]),
    _entry("automaton", "ends in one more state", "accepting", lambda a, s, now: [True]),
    _entry("automaton", "ends in one state less", "accepting", lambda a, s, now: [False]),
)
"""Wrong automata of a pattern."""

GRAMMAR = (
    _entry("lexer", "has a lexer with a byte that leads elsewhere", "targets", _others),
    _entry("lexer", "has a lexer with a terminal dropped", "emits", lambda x, s, now: [0]),
    _entry(
        "lexer", "has a lexer with a terminal instead of another", "emits", lambda x, s, now: _others(x.words, s, now)
    ),
    _entry(
        "lexer", "has a lexer with an end too many", "ends", lambda x, s, _: () if x.can_end[s] else range(len(x.words))
    ),
    _entry("lexer", "has a lexer with an end too few", "ends", lambda x, s, now: [NOTHING] if x.can_end[s] else ()),
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


def found_out(right: Subject, mutations: Iterable[Mutation], checks: Sequence[Check]) -> CheckFinding:
    """Try the mutants of the guide that is right; all should be found out, and the remark says by which checks."""
    found, cases = dict[str, list[str]](), 0
    assert right.exploration.nodes  # an error of the right guide is none of a mutant
    for mutation in mutations:
        said = tried(right, mutation, Random(mutation.name), checks)
        cases += said != NOWHERE
        if said is None:
            return CheckFinding(cases, DEPTH, f"a guide that {mutation.name} was not found out")
        found.setdefault(said, []).append(mutation.name)
    remark = "; ".join(f"{said}: {', '.join(names)}" for said, names in sorted(found.items()))
    return CheckFinding(cases, DEPTH, None, remark)


def tried(right: Subject, mutation: Mutation, rng: Random, checks: Iterable[Check]) -> str | None:
    """Return the first check that finds a mutant out, or what there is in the place of one; ``None`` where it is not found out."""
    try:
        if not (places := list(dict.fromkeys(mutation.places(right)))):
            return NOWHERE
        wrong = replace(right, guide=mutation.make(right, rng.choice(places)))
        asked = [check for check in checks if check.id[0] == "T" or check.id == "S8"]
        for check in sorted(asked, key=lambda check: check.id[0] == "S"):
            if check.applies(wrong) and check.find(wrong).witness is not None:
                return check.id
        return None if _differs(right, wrong) else HARMLESS
    except (OutlinesPhiError, ArithmeticError, AssertionError, LookupError, RecursionError, ValueError, TypeError):
        return BROKEN


def _differs(right: Subject, wrong: Subject) -> bool:
    """Return True if a row or a distance that was visited is another one."""
    for node in wrong.exploration.inner:
        known = ((right.guide, reduce(right.guide.advance, node.word, right.guide.start)), (wrong.guide, node.state))
        mine, others = (guide.distances_after(at)[guide.partition_of(at).class_of] for guide, at in known)
        if len({guide.min_tokens(at) for guide, at in known}) > 1 or not np.array_equal(mine, others):
            return True
    return False


def near(subject: Subject) -> Subject:
    """Return the subject on few words, and where an engine can be made again, over few tokens."""
    guide, tokens = subject.guide, subject.guide.vocabulary.tokens
    depth = min(subject.depth or DEPTH, DEPTH)
    few = replace(subject, depth=depth, most=NODES, fault=None)
    if len(tokens) <= TOKENS or not engine_mutations(subject):
        return few
    texts = [text for text in dict.fromkeys(tokens) if text and subject.used.issuperset(text)]
    longer = [text for text in texts if len(text) > 1]
    kept = [text for text in texts if len(text) == 1] + longer[:: -(-len(longer) // TOKENS) or 1]
    small: Any = Vocabulary.from_tokens([*kept, b""], len(kept))
    made: Any = guide
    if isinstance(guide, FSMGuide):
        return replace(few, guide=FSMGuide.from_automaton(made.automaton, small))
    return replace(few, guide=CFGGuide(Spanner(made.lexer, small), made.parser))
