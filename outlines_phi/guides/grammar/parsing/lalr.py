"""LALR(1) tables that keep every action, so that they serve grammars that are not LALR(1) too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

from .lookaheads import lookaheads
from .lr0 import Item, LR0Automaton
from .rules import Rules


@final
@dataclass(frozen=True, eq=False)
class LRTables:
    """What a parser may do in each state, before each terminal. The start is state 0.

    There is no action of its own for acceptance: the end of the text is the terminal ``rules.END``, which is shifted.

    Attributes
    ----------
    rules
        The productions that are reduced.
    kernels
        For each state the dotted rules that it was reached by.
    shifts
        For each state, by terminal that it reads, the next state.
    goto
        For each state, by nonterminal, the next state.
    reductions
        For each state, by the terminal that follows, the productions that may be reduced.
    """

    rules: Rules
    kernels: tuple[tuple[Item, ...], ...]
    shifts: tuple[dict[int, int], ...]
    goto: tuple[dict[int, int], ...]
    reductions: tuple[dict[int, tuple[int, ...]], ...]
    _automaton: LR0Automaton

    @classmethod
    def of(cls, rules: Rules) -> LRTables:
        """Build the tables of ``rules``."""
        automaton = LR0Automaton.of(rules)
        reductions = []
        for found in lookaheads(automaton):
            row: dict[int, tuple[int, ...]] = {}
            for production, terminals in found.items():
                for terminal in terminals:
                    row[terminal] = (*row.get(terminal, ()), production)
            reductions.append(row)
        return cls(
            rules,
            automaton.kernels,
            tuple({s: target for s, target in row.items() if s < rules.terminals} for row in automaton.transitions),
            tuple({s: target for s, target in row.items() if s >= rules.terminals} for row in automaton.transitions),
            tuple(reductions),
            automaton,
        )

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.kernels)

    @cached_property
    def conflicts(self) -> tuple[str, ...]:
        """What a parser with one stack could not decide, a message each; empty where the rules are LALR(1).

        Each names a shortest way there, the terminal that is next, and all that may be done before it.
        """
        messages = []
        for state, row in enumerate(self.reductions):
            choices: dict[tuple[str, ...], list[int]] = {}
            for terminal, productions in sorted(row.items()):
                actions = [f"reduce {self.rules.describe(number)}" for number in productions]
                if terminal in self.shifts[state]:
                    target = self.kernels[self.shifts[state][terminal]]
                    actions += [f"shift {self.rules.describe(item.production, item.dot - 1)}" for item in target]
                if len(productions) + (terminal in self.shifts[state]) > 1:
                    choices.setdefault(tuple(actions), []).append(terminal)
            for several, terminals in choices.items():
                before = " ".join(map(self.rules.name, self._automaton.example(state)))
                names = ", ".join(map(self.rules.name, terminals))
                messages.append(f"after {before!r}, before {names}: {' or '.join(several)}")
        return tuple(messages)
