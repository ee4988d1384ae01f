"""A grammar's machine as a graph: rules over LR states, terminals over their automata, and the lexer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import numpy as np

from outlines_phi.automata.automaton import DEAD
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.lexing.lexeme_automaton import automaton_of
from outlines_phi.guides.grammar.lexing.lexer import NOTHING, START
from outlines_phi.guides.grammar.parsing.lr_tables import END

from .automaton_graph import automaton_states
from .byte_names import byte_set
from .machine_graph import MOST_STATES, GraphEdge, GraphNode, GraphPart, MachineGraph, PartStates, merged, reached

LEXER, ENTRY = "lexer", "entry"


@final
class GrammarGraph:
    """The parts of a guide of a grammar: a rule with the LR states in which it is begun, a terminal, and the lexer of all.

    A rule calls the rules and the terminals of its bodies, as the parser has them: without empty bodies (grammar-theory.md,
    section 5). Within a rule the states are those of the LR automaton whose dotted rules include one of it; each step reads a
    symbol, and a nonterminal is a call.
    """

    def __init__(self, guide: CFGGuide) -> None:
        self._lexer, self._tables = guide.lexer, guide.parser.tables
        self._rules, self._terminals = guide.parser.tables.rules, guide.grammar.terminals
        self._states_by_rule: dict[int, list[int]] = {}
        for state, kernel in enumerate(self._tables.kernels):
            for head in dict.fromkeys(self._rules.productions[item.production].head for item in kernel):
                self._states_by_rule.setdefault(head, []).append(state)

    def graph(self) -> MachineGraph:
        """Return the graph."""
        parts = [*map(self._rule, self._rules.by_head), *map(self._terminal, range(len(self._terminals)))]
        states = len(self._lexer) - START
        text = (
            f"{states} states, which all terminals share. The longest lexeme wins: behind a complete one (a double border), a byte "
            "that does not go on ends it, and begins another as from the start."
        )
        parts.append(GraphPart(LEXER, "lexer", "lexer", text, states))
        remark = f"{len(self._tables.kernels):,} parser states, {states:,} lexer states"
        return MachineGraph(tuple(parts), merged(list(self._calls())), self._find, remark)

    def part_of(self, symbol: int) -> str:
        """Return the part of a symbol."""
        return f"t{symbol}" if symbol < self._rules.terminals else f"r{symbol}"

    def place_of(self, state: int) -> tuple[str, str]:
        """Return the part and the node of an LR state: the rule that its first dotted rule is of."""
        kernel = self._tables.kernels[state]
        return self.part_of(self._rules.productions[kernel[0].production].head), f"p{state}"

    def pending(self, state: int) -> str:
        """Return the description of the pending lexeme in a state of the lexer."""
        lexer = self._lexer
        if state == START:
            return "the beginning"
        names = [self._terminals[t].name for t in np.flatnonzero(lexer.reaches[state]).tolist()]
        label = int(lexer.label[state])
        if label == NOTHING:
            return f"an incomplete {' or '.join(names)}"
        others = [name for name in names if name != self._terminals[label].name]
        return self._terminals[label].name + (f", which may become {' or '.join(others)}" if others else "")

    def dotted(self, state: int) -> str:
        """Return the dotted rules of an LR state, a line each."""
        return "\n".join(self._rules.describe(*item) for item in self._tables.kernels[state])

    def _rule(self, head: int) -> GraphPart:
        text = "\n".join(self._rules.describe(number) for number in self._rules.by_head[head])
        size = len(self._states_by_rule.get(head, ()))
        return GraphPart(self.part_of(head), "rule", self._rules.name(head), text, size, head == self._rules.start)

    def _terminal(self, symbol: int) -> GraphPart:
        terminal = self._terminals[symbol]
        said = ["/" + terminal.pattern + "/", f"priority {terminal.priority}" * bool(terminal.priority)]
        text = ", ".join([*filter(None, said), *["ignored"] * terminal.ignored])
        return GraphPart(self.part_of(symbol), "terminal", terminal.name, text)

    def _calls(self) -> Iterator[tuple[str, str, str]]:
        for production in self._rules.productions:
            for symbol in production.body:
                if symbol != END:
                    yield self.part_of(production.head), self.part_of(symbol), ""
        yield from ((self.part_of(symbol), LEXER, "") for symbol in range(len(self._terminals)))

    def _find(self, part: str) -> PartStates:
        if part == LEXER:
            return self._lexer_states()
        symbol = int(part[1:])
        if part[0] == "t":
            return automaton_states(automaton_of(self._terminals[symbol]), f"{part}/")
        return self._rule_states(symbol)

    def _rule_states(self, head: int) -> PartStates:
        rules, tables = self._rules, self._tables
        states = self._states_by_rule.get(head, [])
        drawn = states[:MOST_STATES]
        here, called = set(drawn), dict[int, None]()
        nodes, edges = [GraphNode(ENTRY, "•", f"{rules.name(head)} begins", is_start=True)], list[GraphEdge]()
        for state in drawn:
            kernel = [item for item in tables.kernels[state] if rules.productions[item.production].head == head]
            is_end = any(item.dot == len(rules.productions[item.production].body) for item in kernel)
            nodes.append(GraphNode(f"p{state}", str(state), self.dotted(state), is_end=is_end))
            for item in kernel:
                body = rules.productions[item.production].body
                if item.dot == 1:
                    edges.append(GraphEdge(ENTRY, f"p{state}", rules.name(body[0]), _kind(body[0] < rules.terminals)))
                    called[body[0]] = None
                if item.dot < len(body):
                    symbol = body[item.dot]
                    called[symbol] = None
                    row = tables.shifts[state] if symbol < rules.terminals else tables.goto[state]
                    if row[symbol] in here:
                        kind = _kind(symbol < rules.terminals)
                        edges.append(GraphEdge(f"p{state}", f"p{row[symbol]}", rules.name(symbol), kind))
        called.pop(END, None)
        nodes += [GraphNode(f"to{symbol}", rules.name(symbol), part=self.part_of(symbol)) for symbol in called]
        edges += [
            GraphEdge(f"{source}", f"to{symbol}", "", "call")
            for symbol in called
            for source in self._callers(head, symbol, drawn)
        ]
        return PartStates(tuple(nodes), tuple(dict.fromkeys(edges)), len(states) - len(drawn))

    def _callers(self, head: int, symbol: int, drawn: list[int]) -> Iterator[str]:
        """Yield the nodes of a rule before which ``symbol`` may stand next."""
        rules = self._rules
        if any(rules.productions[number].body[0] == symbol for number in rules.by_head[head]):
            yield ENTRY
        for state in drawn:
            for item in self._tables.kernels[state]:
                production = rules.productions[item.production]
                if production.head == head and production.body[item.dot : item.dot + 1] == (symbol,):
                    yield f"p{state}"
                    break

    def _lexer_states(self) -> PartStates:
        lexer = self._lexer
        order, _ = reached(START, lambda s: lexer.targets[s][lexer.targets[s] != DEAD].tolist(), MOST_STATES)
        names = {f"l{state}" for state in order}
        nodes = [
            GraphNode(
                f"l{state}",
                self._terminals[lexer.label[state]].name if lexer.label[state] != NOTHING else str(state),
                lexer.describe(state),
                state == START,
                bool(lexer.can_end[state]),
            )
            for state in order
        ]
        edges = list[GraphEdge]()
        for state in order:
            edges += (edge for edge in self._lexer_steps(state) if edge.target in names)
        return PartStates(tuple(nodes), tuple(edges), len(lexer) - START - len(order))

    def _lexer_steps(self, state: int) -> Iterator[GraphEdge]:
        """Yield the steps of a state of the lexer, but for those that end a lexeme and begin another as from the start."""
        lexer = self._lexer
        targets, emits = lexer.targets[state], lexer.emits[state]
        steps: dict[tuple[int, int], list[int]] = {}
        for byte, column in enumerate(lexer.byte_class.tolist()):
            target, word = int(targets[column]), int(emits[column])
            begins = word and word == lexer.ends[state] and target == lexer.targets[START, column]
            if target != DEAD and not begins:
                steps.setdefault((target, word), []).append(byte)
        for (target, word), read in steps.items():
            emitted = " ".join(self._terminals[terminal].name for terminal in lexer.words[word])
            label = byte_set(read) + f" → {emitted}" * bool(emitted)
            yield GraphEdge(f"l{state}", f"l{target}", label, "emit" if emitted else "step")


def _kind(is_terminal: bool) -> str:
    return "step" if is_terminal else "goto"
