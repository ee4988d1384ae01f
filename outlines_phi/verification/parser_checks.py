"""The parser of a grammar against Earley's algorithm: assumption S3, theorems T5 to T8 and T17 of grammar-theory.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from ..automata.automaton import DEAD
from ..guides.grammar.lexing.lexer import START
from ..guides.grammar.parsing.parser import ERROR
from ..guides.guide import DEAD as NO_STATE
from .finding import Finding, check
from .subject import Machine, Subject

CONFIGURATIONS = 300
"""How many configurations of the parser are looked at most."""

KNOWN = (1, 2)
"""How many entries of a stack are known where the rest is cut off."""

CUTS = 20_000
"""After how many words that are read from stacks that are cut off no further stack is cut."""


class Viable(NamedTuple):
    """Pairs (configuration, the oracle's items) nearest to the start, each with a shortest word of terminals that leads there.

    All words of at most ``longest`` terminals lead to one of them; if ``closed``, words of any length.
    """

    words: dict[tuple[int, tuple[int, ...]], tuple[int, ...]]
    longest: int
    closed: bool


@check("S3", "every symbol of the grammar is of use", of_grammars=True)
def grammar_is_reduced(subject: Subject) -> Finding:
    """Each rule is used by the start rule, and derives some text."""
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


@check("T5", "stack invariance", of_grammars=True)
def stack_is_invariant(subject: Subject) -> Finding:
    """What the parser accepts by the top of its stack alone, it accepts whatever stands below."""
    return _cut_off(subject, "accepted")


@check("T6", "forgetting the stack allows more", of_grammars=True)
def forgetting_allows_more(subject: Subject) -> Finding:
    """What the parser refuses by the top of its stack alone, it refuses whatever stands below."""
    return _cut_off(subject, "rejected")


@check("T7", "the parser is the grammar", of_grammars=True)
def parser_is_earley(subject: Subject) -> Finding:
    """After each sequence of terminals, the parser expects what the grammar allows, by Earley's method."""
    machine = subject.parts
    found, cases = _viable(machine), 0
    earley, terminals = machine.oracle.earley, range(len(machine.grammar.terminals))
    for (configuration, _), word in found.words.items():
        expected = machine.parser.expected(configuration)
        for terminal in terminals:
            cases += 1
            if expected[terminal] != earley.survives((*word, terminal)):
                return Finding.bounded(len(word) + 1, cases, _spelled(machine, (*word, terminal)))
            if expected[terminal] != (machine.parser.shift(configuration, terminal) != ERROR):
                return Finding.bounded(
                    len(word) + 1, cases, _spelled(machine, (*word, terminal)), "expected, and not read"
                )
        cases += 1
        if machine.parser.accepts(configuration) != earley.derives(word):
            return Finding.bounded(len(word), cases, f"the end after {_spelled(machine, word)}")
    remark = f"{len(found.words):,} configurations"
    return (
        Finding.proved(cases, None, remark) if found.closed else Finding.bounded(found.longest + 1, cases, None, remark)
    )


@check("T8", "masks are what survives and ends", of_grammars=True)
def mask_is_characterised(subject: Subject) -> Finding:
    """A token is allowed exactly where lexer and parser can read it, and the text can still be ended."""
    machine, exploration, collapse = subject.parts, subject.exploration, subject.collapse
    vocabulary, cases = subject.guide.vocabulary, 0
    nodes = exploration.inner[:: -(-len(exploration.inner) // CONFIGURATIONS) or 1]
    for node in nodes:
        read = machine.lexer.lex(vocabulary.decode(node.word))
        row = subject.guide.row(node.state)
        allowed = row.targets[row.partition.class_of[collapse.tokens]] != NO_STATE
        configuration = _read(machine, machine.parser.start, read[1]) if read else ERROR
        if read is None or configuration == ERROR:
            return Finding.bounded(
                exploration.complete, cases, subject.spelled(node.word), "is reached, and does not survive"
            )
        spans = machine.spanner.of_state(read[0])
        kinds = spans.partition.class_of[collapse.tokens]
        survives = np.array(
            [
                target != DEAD and machine.parser.read(configuration, machine.spanner.words[word]) != ERROR
                for target, word in zip(spans.target.tolist(), spans.word.tolist(), strict=True)
            ]
        )[kinds]
        cases += len(kinds)
        outcomes = subject.oracle.outcomes(node.point, collapse.texts)
        wrong = np.flatnonzero((allowed != survives) & (allowed | outcomes.continues[outcomes.of_text]))
        if len(wrong):
            witness = subject.spelled((*node.word, int(collapse.tokens[wrong[0]])))
            return Finding.bounded(exploration.complete, cases, witness)
    sampled = len(nodes) < len(exploration.inner)
    remark = f"in {len(nodes):,} of {len(exploration.inner):,} pairs of states" if sampled else ""
    return Finding.bounded(exploration.complete, cases, None, remark)


@check("T17", "beginnings of what is read are read", of_grammars=True)
def prefixes_survive(subject: Subject) -> Finding:
    """The beginnings of what lexer and parser read are read by them, so nothing is refused halfway."""
    machine, exploration, cases = subject.parts, subject.exploration, 0
    tried = exploration.endings[:: -(-len(exploration.endings) // CONFIGURATIONS) or 1]
    for word in tried:
        text, state, configuration = subject.guide.vocabulary.decode(word), START, machine.parser.start
        for place in range(len(text)):
            cases += 1
            moved = machine.lexer.lex(text[place : place + 1], state)
            state, emitted = moved or (DEAD, ())
            configuration = _read(machine, configuration, emitted)
            if state == DEAD or configuration == ERROR:
                return Finding.bounded(exploration.complete, cases, subject.spelled(word), f"byte {place} is refused")
    return Finding.bounded(
        max(map(len, tried)), cases, None, f"{len(tried):,} of {len(exploration.endings):,} members that were found"
    )


def _cut_off(subject: Subject, outcome: str) -> Finding:
    machine = subject.parts
    parser, found, cases, decided, stacks = machine.parser, _viable(machine), 0, 0, 0
    longest = 2 if len(machine.grammar.terminals) <= 12 else 1
    for (configuration, _), before in found.words.items():
        if cases >= CUTS:
            break
        stacks += 1
        for known, word in product(KNOWN, _words(len(machine.grammar.terminals), longest)):
            cases += 1
            cut = parser.read(parser.cut(configuration, known), word)
            whole = parser.read(configuration, word)
            certain = parser.is_certain(cut) if outcome == "accepted" else cut == ERROR
            decided += certain
            if certain and (whole == ERROR) != (outcome == "rejected"):
                return Finding.bounded(longest, cases, _spelled(machine, before + word), f"top {known} of the stack")
    remark = f"{decided:,} {outcome} by the top alone, in {stacks:,} configurations"
    return Finding.bounded(longest, cases, None, remark)


def _words(terminals: int, longest: int) -> Iterator[tuple[int, ...]]:
    for length in range(1, longest + 1):
        yield from product(range(terminals), repeat=length)


def _viable(machine: Machine) -> Viable:
    parser, earley = machine.parser, machine.oracle.earley
    words: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {(parser.start, ()): ()}
    pending = list(words)
    for configuration, items in pending:  # it grows
        word = words[configuration, items]
        for terminal in np.flatnonzero(parser.expected(configuration)).tolist():
            after = parser.shift(configuration, terminal)
            pair = after, earley.canonical((*word, terminal))
            if after == ERROR or pair in words:
                continue
            if len(words) == CONFIGURATIONS:
                return Viable(words, len(word), False)
            words[pair] = (*word, terminal)
            pending.append(pair)
    return Viable(words, max(map(len, words.values())), True)


def _read(machine: Machine, configuration: int, word: tuple[int, ...]) -> int:
    """Return the configuration after what the lexer put out; ignored terminals are not read."""
    counted = [terminal for terminal in word if not machine.grammar.terminals[terminal].ignored]
    return machine.parser.read(configuration, counted)


def _spelled(machine: Machine, word: tuple[int, ...]) -> str:
    return " ".join(machine.grammar.name(terminal) for terminal in word) or "no terminal"
