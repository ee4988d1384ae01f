"""The parser of a grammar against Earley's algorithm: assumption S3, theorems T5 to T8 and T17 of cfg.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from ...automaton import DEAD
from ..guide import DEAD as NO_STATE
from .finding import Finding
from .lexer import START
from .parser import ERROR
from .subject import Machine, Subject

CONFIGURATIONS = 300
"""How many configurations of the parser are looked at most."""

KNOWN = (1, 2)
"""How many entries of a stack are known where the rest is cut off."""

CUTS = 20_000
"""How many words are read most from stacks that are cut off."""


class Viable(NamedTuple):
    """Words of terminals that some text has, with the configurations that they lead to, each configuration once."""

    words: dict[int, tuple[int, ...]]
    longest: int


def grammar_is_reduced(subject: Subject) -> Finding:
    """S3: every nonterminal derives a word, and occurs in what the start symbol derives; so a parser never goes astray."""
    grammar = subject.parts.grammar
    first = len(grammar.terminals)
    ending = set(range(first))
    while more := {p.head for p in grammar.productions if ending.issuperset(p.body)} - ending:
        ending |= more
    needed = {grammar.start}
    while more := {symbol for p in grammar.productions if p.head in needed for symbol in p.body} - needed:
        needed |= more
    for symbol in range(first, first + len(grammar.nonterminals)):
        if symbol not in ending & needed:
            return Finding.proved(len(grammar.nonterminals), f"{grammar.name(symbol)} is useless")
    return Finding.proved(len(grammar.nonterminals))


def stack_is_invariant(subject: Subject) -> Finding:
    """T5: what can be read without looking below the top of a stack can be read from every stack with that top."""
    return _cut_off(subject, "accepted")


def forgetting_allows_more(subject: Subject) -> Finding:
    """T6: what cannot be read although nothing is known of the stack below its top cannot be read from any such stack."""
    return _cut_off(subject, "rejected")


def parser_is_earley(subject: Subject) -> Finding:
    """T7: what is accepted, rejected or depends on the stack agrees with the grammar: after every word, what may follow."""
    machine = subject.parts
    found, cases = _viable(machine), 0
    earley, terminals = machine.oracle.earley, range(len(machine.grammar.terminals))
    for configuration, word in found.words.items():
        expected = machine.parser.expected(configuration)
        for terminal in terminals:
            cases += 1
            if expected[terminal] != earley.survives((*word, terminal)):
                return Finding.bounded(found.longest, cases, _spelled(machine, (*word, terminal)))
            if expected[terminal] != (machine.parser.shift(configuration, terminal) != ERROR):
                return Finding.bounded(
                    found.longest, cases, _spelled(machine, (*word, terminal)), "expected, and not read"
                )
        cases += 1
        if machine.parser.accepts(configuration) != earley.derives(word):
            return Finding.bounded(found.longest, cases, f"the end after {_spelled(machine, word)}")
    return Finding.bounded(found.longest, cases, None, f"{len(found.words):,} configurations")


def mask_is_characterised(subject: Subject) -> Finding:
    """T8: a token is allowed if and only if its text, read from the beginning, survives lexer and parser and can be ended."""
    machine, exploration, collapse = subject.parts, subject.exploration, subject.collapse
    vocabulary, cases = subject.guide.vocabulary, 0
    step = max(1, len(exploration.nodes) // CONFIGURATIONS)
    for node in exploration.nodes[::step]:
        read = machine.lexer.lex(vocabulary.decode(node.word))
        row = subject.guide.row(node.state)
        allowed = row.targets[row.partition.class_of[collapse.tokens]] != NO_STATE
        configuration = _read(machine, machine.parser.start, read[1]) if read else ERROR
        if read is None or configuration == ERROR:
            return Finding.bounded(subject.depth, cases, subject.spelled(node.word), "is reached, and does not survive")
        spans = machine.spanner.of_state(read[0])
        kinds = spans.partition.class_of[collapse.tokens]
        survives = np.array(
            [
                target != DEAD and machine.parser.read(configuration, machine.spanner.words[word]) != ERROR
                for target, word in zip(spans.target.tolist(), spans.word.tolist(), strict=True)
            ]
        )[kinds]
        cases += len(kinds)
        for index in np.flatnonzero(allowed != survives).tolist():
            point = subject.oracle.advance(node.point, collapse.texts[index])
            if allowed[index] or (point is not None and subject.oracle.continues(point)):
                return Finding.bounded(subject.depth, cases, subject.spelled((*node.word, int(collapse.tokens[index]))))
    return Finding.bounded(exploration.complete, cases)


def prefixes_survive(subject: Subject) -> Finding:
    """T17: the beginnings of what is read are read: by the lexer, byte by byte, and by the parser, terminal by terminal."""
    machine, exploration, cases = subject.parts, subject.exploration, 0
    for word in exploration.endings[:: max(1, len(exploration.endings) // CONFIGURATIONS)]:
        text, state, configuration = subject.guide.vocabulary.decode(word), START, machine.parser.start
        for place in range(len(text)):
            cases += 1
            moved = machine.lexer.lex(text[place : place + 1], state)
            state, emitted = moved or (DEAD, ())
            configuration = _read(machine, configuration, emitted)
            if state == DEAD or configuration == ERROR:
                return Finding.bounded(exploration.complete, cases, subject.spelled(word), f"byte {place} is refused")
    return Finding.bounded(exploration.complete, cases, None, f"{len(exploration.endings):,} members")


def _cut_off(subject: Subject, outcome: str) -> Finding:
    machine = subject.parts
    parser, found, cases, decided = machine.parser, _viable(machine), 0, 0
    longest = 2 if len(machine.grammar.terminals) <= 12 else 1
    for configuration, before in found.words.items():
        for known in KNOWN:
            for word in _words(len(machine.grammar.terminals), longest):
                if cases == CUTS:
                    break
                cases += 1
                cut = parser.read(parser.cut(configuration, known), word)
                whole = parser.read(configuration, word)
                certain = parser.is_certain(cut) if outcome == "accepted" else cut == ERROR
                decided += certain
                if certain and (whole == ERROR) != (outcome == "rejected"):
                    return Finding.bounded(
                        found.longest, cases, _spelled(machine, before + word), f"top {known} of the stack"
                    )
    return Finding.bounded(found.longest, cases, None, f"{decided:,} {outcome} by the top alone")


def _words(terminals: int, longest: int) -> Iterator[tuple[int, ...]]:
    for length in range(1, longest + 1):
        yield from product(range(terminals), repeat=length)


def _viable(machine: Machine) -> Viable:
    """Return the configurations nearest to the start, each with a shortest word."""
    parser = machine.parser
    words: dict[int, tuple[int, ...]] = {parser.start: ()}
    pending = [parser.start]
    longest = 0
    for configuration in pending:  # it grows
        word = words[configuration]
        longest = len(word) + 1
        for terminal in np.flatnonzero(parser.expected(configuration)).tolist():
            after = parser.shift(configuration, terminal)
            if after != ERROR and after not in words and len(words) < CONFIGURATIONS:
                words[after] = (*word, terminal)
                pending.append(after)
    return Viable(words, longest)


def _read(machine: Machine, configuration: int, word: tuple[int, ...]) -> int:
    """Return the configuration after what the lexer put out; ignored terminals are not read."""
    counted = [terminal for terminal in word if not machine.grammar.terminals[terminal].ignored]
    return machine.parser.read(configuration, counted)


def _spelled(machine: Machine, word: tuple[int, ...]) -> str:
    return " ".join(machine.grammar.name(terminal) for terminal in word) or "no terminal"
