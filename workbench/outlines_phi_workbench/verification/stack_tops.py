"""A bisimulation of cut stacks: all tops that a step of a parser looks at, each beside itself with one more entry known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.automata.automaton import DEAD
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.lexing.lexer import START
from outlines_phi.guides.grammar.parsing.lr_tables import END
from outlines_phi.guides.grammar.parsing.parser import ERROR, UNKNOWN, Parser
from outlines_phi.guides.guide import UNREACHABLE
from outlines_phi.vocabulary.classes import EOS

from .earley import Earley, Word

Path = tuple[int, ...]  # States of a stack, the top first

MOST = 250_000  # The most steps that are compared

_DEEPEST = 12  # Of how many entries a stack is at most that refuses later than its top does

_KNOWN = 3  # The number of entries that tell apart the tops that the engine keeps distances of
_BESIDE = 2  # The number of stacks with one top that are looked at, beside one state of the lexer
CONFIGURATIONS = 300  # The most configurations of the parser that are looked at


class TopFault(NamedTuple):
    """A step by ``terminal`` that a ``top`` and the same top on one more entry, ``below``, do not do alike."""

    top: Path
    below: int
    terminal: int


@final
class StackTops:
    """A parser on cut stacks beside itself on stacks of which one more entry is known (grammar-theory.md, section 5.2).

    A top is a path in the graph of the LR automaton. First come those of one state. A step is compared, where it is decided by
    the top, with that on each state from which an edge leads to the last one of the top; where it is not, and the first reduction
    takes off more than the top has, the top is made longer by each such state.

    ``accepted`` and ``refused`` are how many steps are decided by a top, ``tops`` the number of tops, ``cases`` that of the
    comparisons. They were all made if ``closed``. ``wrongly_accepted`` and ``wrongly_refused`` are the faults, shortest tops first.
    """

    def __init__(self, parser: Parser, most: int = MOST) -> None:
        self._parser, self._tables, self._most = parser, parser.tables, most
        self._stacks = parser._stacks  # so that paths are stacks also where no short word leads to them
        self._productions = parser.tables.rules.productions
        self._under: dict[int, list[int]] = {}
        for rows in (self._tables.shifts, self._tables.goto):
            for state, row in enumerate(rows):
                for target in row.values():
                    self._under.setdefault(target, []).append(state)
        self._is_refusing: dict[tuple[int, int], bool] = {}
        self.accepted = self.refused = self.tops = self.cases = 0
        self.closed = True
        self.wrongly_accepted: list[TopFault] = []
        self.wrongly_refused: list[TopFault] = []
        self._terminals = (*range(len(parser.grammar.terminals)), END)
        self._visit()

    def named(self, fault: TopFault) -> str:
        """Return a fault as it is printed: the symbols of the stack, the top last, and the terminal."""
        symbols = []
        for state in reversed((*fault.top, fault.below)):
            item = self._tables.kernels[state][0]
            symbols += (
                [self._tables.rules.name(self._productions[item.production].body[item.dot - 1])] if item.dot else []
            )
        return f"{self._tables.rules.name(fault.terminal)} after {' '.join(symbols) or 'nothing'}"

    def _visit(self) -> None:
        tops: list[tuple[Path, Word]] = [((state,), self._terminals) for state in range(self._tables.states)]
        while tops and not (self.wrongly_accepted or self.wrongly_refused):
            longer: list[tuple[Path, Word]] = []
            for top, by in tops:
                if self.cases > self._most:
                    self.closed = False
                    return
                longer += self._longer(top, by)
            tops = longer

    def _longer(self, top: Path, terminals: Word) -> Iterator[tuple[Path, Word]]:
        """Compare the steps of a top with those on each state that may lie below; yield the longer tops that are needed."""
        parser, shift, below = self._parser, self._parser.shift, self._under.get(top[-1], ())
        cut = self._stack(top)
        self.tops += 1
        steps = {terminal: shift(cut, terminal) for terminal in terminals}
        # What a shorter top of this rule's end refused is refused by all that the rule is reduced to as soon as it is known.
        ends = self._is_complete(top) and len(top) == self._rule(top[0])[1]
        refused = [t for t in (self._terminals if ends else terminals) if steps.get(t, ERROR) == ERROR]
        accepted = {terminal: found for terminal, found in steps.items() if parser.is_certain(found)}
        paths = {found: self._path(found) for found in accepted.values()} if parser.is_lone else {}
        left_over: dict[tuple[int, int], list[int]] = {}  # by what is taken off and put there, the terminals
        for terminal, found in steps.items() if parser.is_lone else ():
            if found == UNKNOWN:
                left_over.setdefault(parser.beyond(cut, terminal), []).append(terminal)
        self.refused += sum(found == ERROR for found in steps.values())
        self.accepted += len(accepted)
        waiting = tuple(terminal for terminal in terminals if self._is_waiting(top, terminal))
        for state in below:
            lower = self._stack((state,))
            whole = self._settled(top, state, lower)
            self.cases += len(terminals)
            for terminal in [t for t in refused if shift(whole, t) != ERROR]:
                if not (ends and self._is_refused(whole, terminal)):
                    self.wrongly_refused.append(TopFault(top, state, terminal))
            for terminal, found in accepted.items():
                further = shift(whole, terminal)
                if parser.is_lone:
                    is_right = further == self._settled(paths[found], state, lower)
                else:
                    is_right = self._goes_with(found, further, state)
                if not is_right:
                    self.wrongly_accepted.append(TopFault(top, state, terminal))
            for (entries, head), several in left_over.items():
                rest = UNKNOWN if entries else parser.goto(lower, head)
                for terminal in several:
                    if shift(whole, terminal) != shift(rest, terminal):
                        self.wrongly_accepted.append(TopFault(top, state, terminal))
            if waiting:
                yield (*top, state), waiting

    def _is_waiting(self, top: Path, terminal: int) -> bool:
        """Return True if the first reduction takes off more than is known.

        What a lone stack does behind it is compared with a step of what the reduction leaves, which is a top by itself.
        """
        numbers = self._tables.reductions[top[0]].get(terminal, ())
        taken = max((len(self._productions[number].body) for number in numbers), default=0)
        return len(top) + self._parser.is_lone <= taken

    def _goes_with(self, after: int, further: int, state: int) -> bool:
        """Return True if a step of several stacks leads to the same entries on what lies below, and otherwise to what is open."""
        known = {path for stack in self._parser.stacks(after) for path in self._paths(stack)}
        found = {path for stack in self._parser.stacks(further) for path in self._paths(stack)}
        if any(path and self._is_complete(path) for path in known):  # these go on as soon as enough is known
            return bool(found)
        return all(any(path[: len(top) + 1] == (*top, state) for path in found) for top in known if top) and (
            () in known or all(any(path[: len(top)] == top for top in known) for path in found)
        )

    def _is_refused(self, stack: int, terminal: int) -> bool:
        """Return True if a stack refuses a terminal, whatever lies below it."""
        key = (stack, terminal)
        if key not in self._is_refusing:
            after = self._parser.shift(stack, terminal)
            self._is_refusing[key] = not self._parser.is_certain(after)
            self.cases += 1
            if after == UNKNOWN:
                path = self._path(stack)
                longer = [self._stack((*path, state)) for state in self._under.get(path[-1], ())]
                if len(path) == _DEEPEST or self.cases > self._most:
                    self.closed = False
                else:
                    self._is_refusing[key] = all(self._is_refused(each, terminal) for each in longer)
        return self._is_refusing[key]

    def _stack(self, path: Path) -> int:
        below: tuple[int, ...] = (UNKNOWN,) if path[-1] in self._under else ()
        for state in reversed(path):
            below = (self._stacks.push(state, below),)
        return below[0]

    def _path(self, stack: int) -> Path:
        states = []
        while stack != UNKNOWN:
            states.append(self._parser.top(stack))
            stack = next(iter(self._parser.below(stack)), UNKNOWN)
        return tuple(states)

    def _paths(self, stack: int) -> Iterator[Path]:
        if stack == UNKNOWN:
            yield ()
            return
        lower = self._parser.below(stack)
        for rest in [path for each in lower for path in self._paths(each)] if lower else [()]:
            yield (self._parser.top(stack), *rest)

    def _settled(self, path: Path, state: int, lower: int) -> int:
        """Return the stack of a path on one more state, after the reductions that are done at once."""
        while self._is_complete(path) and len(path) == self._rule(path[0])[1]:
            path = (self._tables.goto[state][self._rule(path[0])[0]],)
        stack = lower
        for each in reversed(path):
            stack = self._stacks.push(each, (stack,))
        return stack

    def _is_complete(self, path: Path) -> bool:
        """Return True if nothing but one rule, of which all entries are known, can be reduced, but not what it lies on."""
        kernel = self._tables.kernels[path[0]]
        if len(kernel) > 1 or not self._tables.reductions[path[0]]:
            return False
        return kernel[0].dot == self._rule(path[0])[1] and len(path) <= kernel[0].dot

    def _rule(self, state: int) -> tuple[int, int]:
        production = self._productions[self._tables.kernels[state][0].production]
        return production.head, len(production.body)


class KeptDistances(NamedTuple):
    """The distances to the end after a token that the engine takes from the top of a stack, beside those of the whole stack.

    ``tops`` is the number of pairs of a state of the lexer and a top, ``pairs`` that of the stacks beside states of the lexer,
    ``cases`` that of the distances. ``wrongly_allowed`` and ``wrongly_dead`` are the names of the first places where a token has
    another distance than it should, or none.
    """

    tops: int = 0
    pairs: int = 0
    cases: int = 0
    wrongly_allowed: str | None = None
    wrongly_dead: str | None = None

    @classmethod
    def of(cls, guide: CFGGuide, places: Iterable[tuple[int, int, Callable[[], str]]]) -> KeptDistances:
        """Return the comparison at places: a configuration, a state of the lexer, and what returns their name.

        At most :data:`_BESIDE` are looked at for each pair of a state and a top. A parser that follows several stacks keeps nothing
        for tops.
        """
        parser = guide.parser
        met: dict[tuple[int, int], set[int]] = {}
        cases, allowed, dead = 0, None, None
        for stack, lexer_state, name in places if parser.is_lone else ():
            beside = met.setdefault((lexer_state, parser.cut(stack, _KNOWN)), set())
            if stack in beside or len(beside) == _BESIDE:
                continue
            beside.add(stack)
            kept = guide.distances_after(guide.start + (stack - parser.start) * len(guide.lexer) + lexer_state - START)
            whole = _distances(guide, stack, lexer_state)
            cases += len(kept)
            if allowed is None and ((kept < UNREACHABLE) & (kept != whole)).any():
                allowed = name()
            if dead is None and ((kept == UNREACHABLE) & (whole < UNREACHABLE)).any():
                dead = name()
        return cls(len(met), sum(map(len, met.values())), cases, allowed, dead)


class Viable(NamedTuple):
    """Pairs (configuration, the oracle's items) nearest to the start, each with a shortest word of terminals that leads there.

    All words of at most ``longest`` terminals lead to one of them; if ``closed``, words of any length.
    """

    words: dict[tuple[int, Word], Word]
    longest: int
    closed: bool

    @classmethod
    def of(cls, parser: Parser, earley: Earley) -> Viable:
        """Return the nearest :data:`CONFIGURATIONS`."""
        words: dict[tuple[int, Word], Word] = {(parser.start, ()): ()}
        pending = list(words)
        for configuration, items in pending:  # it grows
            word = words[configuration, items]
            for terminal in range(len(parser.grammar.terminals)):
                after = parser.shift(configuration, terminal)
                if after == ERROR:
                    continue
                pair = after, earley.canonical((*word, terminal))
                if pair in words:
                    continue
                if len(words) == CONFIGURATIONS:
                    return cls(words, len(word), False)
                words[pair] = (*word, terminal)
                pending.append(pair)
        return cls(words, max(map(len, words.values())), True)


def _distances(guide: CFGGuide, stack: int, lexer_state: int) -> NDArray[np.int64]:
    """Return ``int64[G]``: the distance to the end after each class of tokens, read from the whole stack."""
    spans = guide.spanner.of_state(lexer_state)
    found = np.full(spans.partition.size, UNREACHABLE, dtype=np.int64)
    lexed = np.flatnonzero(spans.target != DEAD)
    numbers, place = np.unique(spans.word[lexed], return_inverse=True)
    read = (guide.parser.read(stack, guide.spanner.words[number]) for number in numbers.tolist())
    after = np.fromiter(read, np.int64, len(numbers))
    found[lexed] = guide.completion.distances(after[place.reshape(-1)], spans.target[lexed])
    if spans.target[EOS] != DEAD:
        found[EOS] = (
            0 if guide.parser.accepts(guide.parser.read(stack, guide.spanner.words[spans.word[EOS]])) else UNREACHABLE
        )
    return found
