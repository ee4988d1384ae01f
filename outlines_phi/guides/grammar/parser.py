"""A generalised LR parser over terminals: all stacks of the words read so far, shared and interned."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import final

from .grammar import END, Grammar, LRTables, augmented, without_empty_bodies

UNKNOWN = 0
"""The stack of which nothing is known: it lies below the entries of a stack that was cut off, and below itself."""


ERROR = -1  # The configuration in which no text can be completed
_SEVERAL = -2  # The top of a configuration that has several stacks


@final
class Parser:
    """A machine over terminals for any context-free grammar: a generalised LR parser (grammar-theory.md, section 5).

    A *stack* is a state of an LR automaton, its top, on others below, ascending: on one, where it is an ordinary stack, or several,
    where it stands for as many (a graph-structured stack: Tomita 1987); on ``()`` at the bottom. Stacks share what lies below them,
    are immutable, each made once, and known by numbers from the bottom up. The top of :data:`UNKNOWN` is -1.

    A *configuration* is the set of all stacks that the terminals read so far can leave behind: one stack where the grammar is
    LALR(1), a graph of shared stacks elsewhere. Configurations are immutable, interned and known by numbers, so any of them can be
    kept and come back to, and whatever is computed from one is remembered under its number.

    To read a terminal, all reductions that the tables allow before it are followed, in time that is polynomial in the size of the
    graph; the stacks that then can shift it do; and those whose state has nothing but one rule to reduce reduce it at once, so that
    texts that come to the same thing (one list element or two) are in the same configuration. A stack is always a viable prefix, so
    the configuration is :data:`ERROR` exactly where no text goes on this way, however late an LALR table notices. The rules are
    first freed of empty bodies, so that every reduction takes something off the stack: hidden left recursion and symbols that
    derive themselves end like all others.

    ``tables`` are those of the rules without empty bodies, ``start`` is the configuration before the first terminal. Where
    ``is_lone``, the tables have no conflicts, and a configuration is always one stack.
    """

    ERROR = ERROR
    END = END

    def __init__(self, grammar: Grammar, tables: LRTables) -> None:
        self.grammar, self.tables = grammar, tables
        self._shifts, self._goto = tables.shifts, tables.goto
        productions = tables.rules.productions
        # The data of a reduction: its head, and the number of entries that come off below the top one.
        self._reductions: list[dict[int, tuple[tuple[int, int], ...]]] = [
            {
                t: tuple((productions[p].head, len(productions[p].body) - 1) for p in several)
                for t, several in row.items()
            }
            for row in tables.reductions
        ]
        # The states of a single rule that has been read to its end: no terminal that may follow asks for anything else.
        self._forced = {
            state: (productions[kernel[0].production].head, kernel[0].dot - 1)
            for state, kernel in enumerate(tables.kernels)
            if len(kernel) == 1
            and kernel[0].dot == len(productions[kernel[0].production].body)
            and tables.reductions[state]
        }
        self.is_lone = not tables.conflicts
        self._top = [-1]
        self._below: list[tuple[int, ...]] = [(UNKNOWN,)]
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._width = len(grammar.terminals) + 1
        self._after: dict[int, int] = {}  # by configuration and terminal, as one number
        self.start = self._push(0, ())

    @classmethod
    def of(cls, grammar: Grammar) -> Parser:
        """Build the parser of ``grammar``, whose useless symbols do no harm; raise :class:`EmptyLanguageError` where it derives no
        word.
        """
        return cls(grammar, LRTables.of(without_empty_bodies(augmented(grammar))))

    def __len__(self) -> int:
        """Return the number of stacks met so far, an upper bound of that of configurations."""
        return len(self._top)

    def shift(self, configuration: int, terminal: int) -> int:
        """Return the configuration after ``terminal``, or :data:`ERROR` where no text goes on with it.

        :data:`END` is a terminal here: a configuration that it leads to is that of a complete text.
        """
        if configuration == ERROR:
            return ERROR
        key = configuration * self._width + (terminal - END)
        after = self._after.get(key)
        if after is None:
            shift = self._shift_one if self.is_lone else self._shift
            after = self._after[key] = shift(configuration, terminal)
        return after

    def read(self, configuration: int, terminals: Iterable[int]) -> int:
        """Return the configuration after all of ``terminals``; nothing is computed behind the first that cannot follow."""
        for terminal in terminals:
            if configuration == ERROR:
                break
            configuration = self.shift(configuration, terminal)
        return configuration

    def accepts(self, configuration: int) -> bool:
        """Return True if the text may end here."""
        return self.is_certain(self.shift(configuration, END))

    def cut(self, configuration: int, entries: int) -> int:
        """Return ``configuration`` with only the top ``entries`` of its stacks known.

        What is read from it holds for every configuration with these entries on top (grammar-theory.md, section 5.2): :data:`ERROR`
        means that no stack allows it, a configuration that :meth:`is_certain` that all do, and any other that it depends on what
        lies below.
        """
        if configuration == ERROR:
            return ERROR
        stacks = self.stacks(configuration)
        levels = [set(stacks) - {UNKNOWN}]
        while len(levels) < entries and levels[-1]:
            levels.append({lower for upper in levels[-1] for lower in self._below[upper]} - {UNKNOWN})
        new: dict[int, int] = {}
        for level in reversed(levels[:entries]):
            new = {
                upper: self._push(self._top[upper], {new.get(lower, UNKNOWN) for lower in self._below[upper]})
                for upper in level
            }
        return self._configuration({new.get(stack, UNKNOWN) for stack in stacks})

    def beyond(self, configuration: int, terminal: int) -> tuple[int, int]:
        """Return the first reduction before ``terminal`` that reaches below the known entries of a lone stack.

        It takes some ``entries`` off below the last entry that is known, and puts the nonterminal ``head`` there.
        """
        (stack,) = self.stacks(configuration)
        state, (lower,) = self.top(stack), self.below(stack)
        while True:
            ((head, entries),) = self._reductions[state][terminal]
            while entries and lower != UNKNOWN:
                (lower,) = self.below(lower)
                entries -= 1
            if lower == UNKNOWN:
                return entries, head
            state = self._goto[self.top(lower)][head]

    def is_certain(self, configuration: int) -> bool:
        """Return True if some stack of it is known; false for :data:`ERROR`."""
        return configuration not in (ERROR, UNKNOWN)

    def stacks(self, configuration: int) -> tuple[int, ...]:
        """Return the stacks of a configuration, no two with the same state on top; none for :data:`ERROR`."""
        if configuration == ERROR:
            return ()
        return self._below[configuration] if self._top[configuration] == _SEVERAL else (configuration,)

    def top(self, stack: int) -> int:
        """Return the LR state on top of ``stack``; -1 where it is not known."""
        return self._top[stack]

    def below(self, stack: int) -> tuple[int, ...]:
        """Return the stacks that the top of ``stack`` lies on: one where the grammar is LALR(1), none at the bottom."""
        return self._below[stack]

    def descend(self, stack: int, entries: int) -> Collection[int]:
        """Return the stacks that are left when ``entries`` are taken off."""
        left: Collection[int] = (stack,)
        for _ in range(entries):
            if len(left) == 1:
                left = self._below[next(iter(left))]
            else:
                left = {lower for upper in left for lower in self._below[upper]}
        return left

    def goto(self, stack: int, nonterminal: int) -> int:
        """Return the stack with ``nonterminal`` read on top of ``stack``, or :data:`ERROR` where it cannot stand there."""
        target = self._goto[self.top(stack)].get(nonterminal) if stack != UNKNOWN else None
        return ERROR if target is None else self._push(target, (stack,))

    def describe(self, configuration: int) -> str:
        """Return the dotted rules that the configuration stands in, a line each."""
        rules, lines = self.tables.rules, dict[str, None]()
        for stack in self.stacks(configuration):
            for item in self.tables.kernels[self.top(stack)] if stack != UNKNOWN else ():
                lines[rules.describe(rules.productions[item.production], item.dot)] = None
            if stack == UNKNOWN:
                lines["…"] = None
        return "\n".join(lines) or "no text goes on this way"

    def _shift_one(self, stack: int, terminal: int) -> int:
        """As :meth:`_shift`, where there is one stack and one thing to do."""
        if stack == UNKNOWN:
            return UNKNOWN
        top, below = self._top, self._below
        state, lower = top[stack], below[stack]
        while terminal in self._reductions[state]:
            ((head, entries),) = self._reductions[state][terminal]
            for _ in range(entries):
                lower = below[lower[0]]
            if lower[0] == UNKNOWN:
                return UNKNOWN
            state = self._goto[top[lower[0]]][head]
        if terminal not in self._shifts[state]:
            return ERROR
        lower = (self._push(state, lower),)
        state = self._shifts[state][terminal]
        while state in self._forced:
            head, entries = self._forced[state]
            left: tuple[int, ...] = lower
            for _ in range(entries):
                left = below[left[0]]
            if left[0] == UNKNOWN:
                break
            state, lower = self._goto[top[left[0]]][head], left
        return self._push(state, lower)

    def _shift(self, configuration: int, terminal: int) -> int:
        frontier, is_open = self._reduce(configuration, terminal)
        edges = {
            (self._shifts[state][terminal], self._push(state, below))
            for state, below in frontier.items()
            if terminal in self._shifts[state]
        }
        pending = list(edges)
        settled: dict[int, set[int]] = {}
        while pending:
            state, lower = pending.pop()
            head, entries = self._forced.get(state, (ERROR, 0))
            left = (UNKNOWN,) if head == ERROR else self.descend(lower, entries)
            if UNKNOWN in left:  # nothing is forced, or one would have to know what is not known
                settled.setdefault(state, set()).add(lower)
                continue
            new = {(self._goto[self._top[stack]][head], stack) for stack in left} - edges
            edges |= new
            pending += new
        members = [self._push(state, below) for state, below in settled.items()]
        if is_open:
            members.append(UNKNOWN)
        return self._configuration(members) if members else ERROR

    def _reduce(self, configuration: int, terminal: int) -> tuple[dict[int, set[int]], bool]:
        """Return, by LR state, the stacks that it lies on after reductions before ``terminal`` or none; and if one took off more
        than is known.
        """
        top, below = self._top, self._below
        stacks = self.stacks(configuration)
        frontier = {top[stack]: set(below[stack]) for stack in stacks if stack != UNKNOWN}
        is_open = UNKNOWN in stacks
        pending = [(state, lower) for state, several in frontier.items() for lower in several]
        while pending:
            state, lower = pending.pop()
            for head, entries in self._reductions[state].get(terminal, ()):
                for left in self.descend(lower, entries):
                    if left == UNKNOWN:
                        is_open = True
                        continue
                    target = self._goto[top[left]][head]
                    on = frontier.setdefault(target, set())
                    if left not in on:
                        on.add(left)
                        pending.append((target, left))
        return frontier, is_open

    def _push(self, state: int, below: Collection[int]) -> int:
        """Return the stack of ``state`` on top of those in ``below``, which are all different."""
        key = (state, tuple(sorted(below)) if len(below) > 1 else tuple(below))
        number = self._numbers.setdefault(key, len(self._top))
        if number == len(self._top):
            self._top.append(state)
            self._below.append(key[1])
        return number

    def _configuration(self, stacks: Collection[int]) -> int:
        """Return the configuration of these stacks: a lone stack is one itself."""
        return next(iter(stacks)) if len(stacks) == 1 else self._push(_SEVERAL, stacks)
