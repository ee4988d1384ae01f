"""The lexer of a grammar against the definition: assumptions S1, S2 and S4 to S6, theorems T1 to T4 of grammar-theory.md."""

from __future__ import annotations

import numpy as np

from ..automata.automaton import DEAD, UNREACHABLE, distances
from ..guides.grammar.lexing.lexer import NOTHING, START
from .finding import Finding, check, shown
from .lexemes import Lexemes
from .runs import FAILED
from .subject import Machine, Subject

PAIRS = 20_000
"""How many pairs of states of the two lexers are compared at most."""


@check("S1", "no lexeme is empty", of_grammars=True)
def no_empty_lexeme(subject: Subject) -> Finding:
    """No terminal matches the empty text, so each lexeme (a piece of text that a terminal matches) writes something."""
    terminals = subject.parts.grammar.terminals
    for terminal in terminals:
        lexemes = Lexemes(terminal.pattern, terminal.shortest)
        if lexemes.matches(lexemes.start):
            return Finding.proved(len(terminals), f"{terminal.name} matches the empty text")
    return Finding.proved(len(terminals))


@check("S2", "every state of the lexer is of use", of_grammars=True)
def lexer_is_pruned(subject: Subject) -> Finding:
    """Each state of the lexer, which cuts texts into lexemes, is reached by some text, and some lexeme is completed from
    it.
    """
    lexer = subject.parts.lexer
    source, column = np.nonzero(lexer.targets)
    target, states = lexer.targets[source, column], len(lexer)
    reached = distances(target, source, np.array([START]), states) != UNREACHABLE
    useful = distances(source, target, np.flatnonzero(lexer.can_end), states) != UNREACHABLE
    wrong = np.flatnonzero(~(reached & useful)[START:]) + START
    return Finding.proved(states - START, f"state {wrong[0]}: {lexer.describe(int(wrong[0]))}" if len(wrong) else None)


@check("S4", "a separator may stand anywhere", of_grammars=True)
def universal_separator(subject: Subject) -> Finding:
    """An ignored byte, such as a space, may stand after every lexeme and belongs to none."""
    machine = subject.parts
    lexer, ignored = machine.lexer, np.array([terminal.ignored for terminal in machine.grammar.terminals])
    counts = np.asarray(lexer.reaches[:, ~ignored].any(axis=1))  # whether a state may be part of a lexeme that counts
    states = np.arange(START, len(lexer))
    cases = 0
    for column in range(lexer.targets.shape[1]):
        cases += 1
        after = lexer.targets[states, column]
        goes = np.not_equal(after, DEAD)
        separates = bool(goes[0]) and (goes == lexer.can_end[states]).all() and not counts[after[goes]].any()
        again = int(after[0])
        if separates and lexer.can_end[again] and not lexer.held[again]:
            # Behind the separator everything may begin that begins a text.
            begin, follow = lexer.targets[START], lexer.targets[again]
            if ((follow == begin) | ((follow != DEAD) & ~counts[follow])).all():
                byte = bytes([int((lexer.byte_class == column).argmax())])
                return Finding.assumption(cases, None, f"{shown(byte)} separates")
    return Finding.assumption(
        cases,
        "no byte separates",
        "the theorems that need a separator do not apply; T10 to T14 are checked without one",
    )


@check("S6", "every lexeme can be followed", of_grammars=True)
def lexemes_can_be_followed(subject: Subject) -> Finding:
    """After each complete lexeme, some byte begins another one."""
    lexer = subject.parts.lexer
    complete = np.flatnonzero(lexer.label != NOTHING)
    stuck = complete[~(lexer.emits[complete] != 0).any(axis=1)]
    witness = f"only the end follows {lexer.describe(int(stuck[0]))}" if len(stuck) else None
    return Finding.assumption(len(complete), witness, "terminals are taken as heads, not alone" if witness else "")


@check("T1", "the lexer is longest match", of_grammars=True)
def lexer_is_longest_match(subject: Subject) -> Finding:
    """The lexer cuts each text as the definition does: into the longest lexemes."""
    machine = subject.parts
    lexer, lexing = machine.lexer, machine.lexing
    pairs: dict[tuple[int, int], bytes] = {(START, 0): b""}
    pending, cases = [(START, 0)], 0
    for state, other in pending:  # it grows
        text = pairs[state, other]
        if lexer.flush(state) != lexing.flush_all(other):
            return Finding.proved(cases, f"the end after {shown(text)}")
        for byte in range(256):
            cases += 1
            ours, moved = lexer.lex(bytes([byte]), state), lexing.move(other, byte)
            if (None if ours is None else ours[1]) != (None if moved is None else moved.word):
                return Finding.proved(
                    cases, shown(text + bytes([byte])), f"{_names(machine, ours)} instead of {_names(machine, moved)}"
                )
            if ours is not None and moved is not None and (ours[0], moved.state) not in pairs:
                pairs[ours[0], moved.state] = text + bytes([byte])
                pending.append((ours[0], moved.state))
        if len(pairs) > PAIRS:
            return Finding.bounded(len(text), cases, None, f"the first {len(pairs):,} pairs of states")
    return Finding.proved(cases, None, f"{len(pairs):,} pairs of states, all bytes")


@check("T2", "tokens do what their bytes do", of_grammars=True)
def tokens_are_their_bytes(subject: Subject) -> Finding:
    """Reading a token at once is the same as reading its bytes one by one."""
    machine, collapse = subject.parts, subject.collapse
    cases = 0
    for state in range(START, len(machine.lexer)):
        spans = machine.spanner.of_state(state)
        for token, text in zip(collapse.tokens.tolist(), collapse.texts, strict=True):
            cases += 1
            ours = int(spans.target[spans.partition.class_of[token]]), spans.word[spans.partition.class_of[token]]
            found = machine.lexer.lex(text, state)
            word = () if found is None else _counted(machine, found[1])
            if ours[0] != (DEAD if found is None else found[0]) or (found and machine.spanner.words[ours[1]] != word):
                return Finding.proved(cases, f"{shown(text)} in state {state}: {machine.lexer.describe(state)}")
    return Finding.proved(
        cases, None, f"{len(machine.lexer) - START:,} states, {len(collapse.tokens):,} tokens that stand for all"
    )


@check("T3", "producible is reachable", of_grammars=True)
def producible_is_reachable(subject: Subject) -> Finding:
    """The terminals that a state of the lexer promises as next are those that some text brings next."""
    machine = subject.parts
    lexing, cases, single = machine.lexing, 0, 0
    first: dict[int, set[int]] = {}
    silent: dict[int, set[int]] = {}
    pending = [other for other, _ in machine.states.values()]
    for other in pending:  # it grows
        if other in first:
            continue
        flushed = lexing.flush_all(other)
        moves = [move for byte in range(256) if (move := lexing.move(other, byte)) is not None]
        first[other] = {move.word[0] for move in moves if move.word} | set((flushed or ())[:1])
        silent[other] = {move.state for move in moves if not move.word}
        single += bool(flushed) and not any(move.word for move in moves)
        pending += silent[other] - first.keys()
    changed = True
    while changed:
        before = sum(map(len, first.values()))
        for other, following in silent.items():
            first[other].update(*(first[after] for after in following))
        changed = before != sum(map(len, first.values()))
    for state, (other, text) in machine.states.items():
        cases += len(machine.grammar.terminals)
        if set(np.flatnonzero(machine.lexer.producible[state]).tolist()) != first[other]:
            return Finding.proved(cases, f"after {shown(text)}")
    return Finding.proved(cases, None, f"in {single:,} states a terminal is never put out alone" if single else "")


@check("T4", "token classes are exact", of_grammars=True)
def classes_are_exact(subject: Subject) -> Finding:
    """Tokens of one class do the same to the lexer, and tokens of no class cannot be read."""
    machine, vocabulary = subject.parts, subject.guide.vocabulary
    spelled = np.flatnonzero(np.fromiter(map(len, vocabulary.tokens), np.int64))
    runs, cases = machine.oracle.runs(vocabulary.tokens), 0
    for state, (other, _) in machine.states.items():
        spans, effects = machine.spanner.of_state(state), runs.of(other)
        # Each combination of a class and what the definition says is looked at once.
        combined = np.stack([spans.partition.class_of[spelled], effects.target[spelled], effects.word[spelled]])
        found, first = np.unique(combined, axis=1, return_index=True)
        cases += len(spelled)
        for place, (kind, after, word) in zip(first.tolist(), found.T.tolist(), strict=True):
            target = int(spans.target[kind])
            right = (after == FAILED) == (target == DEAD)
            if after != FAILED and right:
                right = machine.spanner.words[spans.word[kind]] == runs.words[word] and (
                    machine.lexer.flush(target) == machine.lexing.flush_all(after)
                )
            if not right:
                witness = (
                    f"{shown(vocabulary.tokens[spelled[place]])} in state {state}: {machine.lexer.describe(state)}"
                )
                return Finding.proved(cases, witness)
    return Finding.proved(cases, None, f"{len(machine.states):,} states, all tokens")


def _counted(machine: Machine, word: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(terminal for terminal in word if not machine.grammar.terminals[terminal].ignored)


def _names(machine: Machine, found: tuple[int, tuple[int, ...]] | None) -> str:
    return "nothing" if found is None else repr(" ".join(machine.grammar.name(terminal) for terminal in found[1]))
