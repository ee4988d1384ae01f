"""Lexer and parser of a grammar against the definition: S1 to S4, S6 and S9, T1 to T8 of grammar-theory.md."""

from __future__ import annotations

import numpy as np

from outlines_phi.automata.automaton import DEAD, UNREACHABLE, distances
from outlines_phi.guides.grammar.lexing.lexer import NOTHING, START
from outlines_phi.guides.grammar.parsing.parser import ERROR
from outlines_phi.guides.guide import DEAD as NO_STATE

from .runs import FAILED
from .second_patterns import lexemes_of
from .stack_tops import CONFIGURATIONS
from .subject import CheckFinding, GrammarParts, Subject, check, shown

PAIRS = 20_000  # The most pairs of states of the two lexers that are compared


@check("S1", "no lexeme is empty", of_grammars=True)
def no_empty_lexeme(subject: Subject) -> CheckFinding:
    """No terminal matches the empty text, so each lexeme (a piece of text that a terminal matches) writes something."""
    terminals = [terminal for terminal in subject.parts.guide.grammar.terminals if not terminal.of]
    for terminal in terminals:
        lexemes = lexemes_of(terminal)
        if lexemes.matches(lexemes.start):
            return CheckFinding.exhaustive(len(terminals), f"{terminal.name} matches the empty text")
    return CheckFinding.exhaustive(len(terminals))


@check("S2", "every state of the lexer is of use", of_grammars=True)
def lexer_is_pruned(subject: Subject) -> CheckFinding:
    """Each state of the lexer, which cuts texts into lexemes, is reached by some text, and some lexeme is completed from
    it.
    """
    lexer = subject.parts.guide.lexer
    source, column = np.nonzero(lexer.targets)
    target, states = lexer.targets[source, column], len(lexer)
    reached = distances(target, source, np.array([START]), states) != UNREACHABLE
    useful = distances(source, target, np.flatnonzero(lexer.can_end), states) != UNREACHABLE
    wrong = np.flatnonzero(~(reached & useful)[START:]) + START
    return CheckFinding.exhaustive(
        states - START, f"state {wrong[0]}: {lexer.describe(int(wrong[0]))}" if len(wrong) else None
    )


@check("S4", "a separator may stand anywhere", of_grammars=True)
def universal_separator(subject: Subject) -> CheckFinding:
    """An ignored byte, such as a space, may stand after every lexeme and belongs to none."""
    machine = subject.parts
    lexer, ignored = machine.guide.lexer, np.array([terminal.ignored for terminal in machine.guide.grammar.terminals])
    counts = np.asarray(lexer.reaches[:, ~ignored].any(axis=1))  # the states that may be part of a lexeme that counts
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
                return CheckFinding.assumption(cases, None, f"{shown(byte)} separates")
    return CheckFinding.assumption(
        cases,
        "no byte separates",
        "the theorems that need a separator do not apply; T10 to T14 are checked without one",
    )


@check("S6", "every lexeme can be followed", of_grammars=True)
def lexemes_can_be_followed(subject: Subject) -> CheckFinding:
    """After each complete lexeme, some byte begins another one."""
    lexer = subject.parts.guide.lexer
    complete = np.flatnonzero(lexer.label != NOTHING)
    stuck = complete[~(lexer.emits[complete] != 0).any(axis=1)]
    witness = f"only the end follows {lexer.describe(int(stuck[0]))}" if len(stuck) else None
    return CheckFinding.assumption(len(complete), witness, "terminals are taken as heads, not alone" if witness else "")


@check("S9", "both readers say the same terminals", of_grammars=True)
def readers_agree(subject: Subject) -> CheckFinding:
    """The oracle stands on a second reading of the grammar's text, by another reader, and both readings have the same terminals,
    ignored ones and priorities included.
    """
    terminals, reading = subject.parts.guide.grammar.terminals, subject.parts.reading
    if reading is None or reading.shared:
        why = reading.shared if reading else "no text of it in Lark's dialect is at hand"
        return CheckFinding.assumption(len(terminals), why, "so the oracle shares the engine's reader for this grammar")
    return CheckFinding.exhaustive(len(terminals), "; ".join(reading.differences) or None)


@check("T1", "the lexer is longest match", of_grammars=True)
def lexer_is_longest_match(subject: Subject) -> CheckFinding:
    """The lexer cuts each text as the definition does: into the longest lexemes."""
    machine = subject.parts
    lexer, lexing = machine.guide.lexer, machine.lexing
    pairs: dict[tuple[int, int], bytes] = {(START, 0): b""}
    pending, cases = [(START, 0)], 0
    for state, other in pending:  # it grows
        text = pairs[state, other]
        if lexer.flush(state) != lexing.flush_all(other):
            return CheckFinding.exhaustive(cases, f"the end after {shown(text)}")
        for byte in range(256):
            cases += 1
            ours, moved = lexer.lex(bytes([byte]), state), lexing.move(other, byte)
            if (None if ours is None else ours[1]) != (None if moved is None else moved.word):
                return CheckFinding.exhaustive(
                    cases, shown(text + bytes([byte])), f"{_names(machine, ours)} instead of {_names(machine, moved)}"
                )
            if ours is not None and moved is not None and (ours[0], moved.state) not in pairs:
                pairs[ours[0], moved.state] = text + bytes([byte])
                pending.append((ours[0], moved.state))
        if len(pairs) > PAIRS:
            return CheckFinding.bounded(len(text), cases, None, f"the first {len(pairs):,} pairs of states")
    return CheckFinding.exhaustive(cases, None, f"{len(pairs):,} pairs of states, all bytes")


@check("T2", "tokens do what their bytes do", of_grammars=True)
def tokens_are_their_bytes(subject: Subject) -> CheckFinding:
    """Reading a token at once is the same as reading its bytes one by one."""
    machine, collapse = subject.parts, subject.collapse
    cases = 0
    for state in range(START, len(machine.guide.lexer)):
        spans = machine.guide.spanner.of_state(state)
        for token, text in zip(collapse.tokens.tolist(), collapse.texts, strict=True):
            cases += 1
            ours = int(spans.target[spans.partition.class_of[token]]), spans.word[spans.partition.class_of[token]]
            found = machine.guide.lexer.lex(text, state)
            word = () if found is None else machine.guide.lexer.counted(found[1])
            if ours[0] != (DEAD if found is None else found[0]) or (
                found and machine.guide.spanner.words[ours[1]] != word
            ):
                return CheckFinding.exhaustive(
                    cases, f"{shown(text)} in state {state}: {machine.guide.lexer.describe(state)}"
                )
    return CheckFinding.exhaustive(
        cases, None, f"{len(machine.guide.lexer) - START:,} states, {len(collapse.tokens):,} tokens that stand for all"
    )


@check("T4", "token classes are exact", of_grammars=True)
def classes_are_exact(subject: Subject) -> CheckFinding:
    """Tokens of one class do the same to the lexer, and tokens of no class cannot be read."""
    machine, vocabulary = subject.parts, subject.guide.vocabulary
    spelled = np.flatnonzero(np.fromiter(map(len, vocabulary.tokens), np.int64))
    runs, cases = machine.oracle.runs(vocabulary.tokens), 0
    for state, (other, _) in machine.states.items():
        spans, effects = machine.guide.spanner.of_state(state), runs.of(other)
        # Each combination of a class and what the definition says is looked at once.
        combined = np.stack([spans.partition.class_of[spelled], effects.target[spelled], effects.word[spelled]])
        found, first = np.unique(combined, axis=1, return_index=True)
        cases += len(spelled)
        for place, (kind, after, word) in zip(first.tolist(), found.T.tolist(), strict=True):
            target = int(spans.target[kind])
            right = (after == FAILED) == (target == DEAD)
            if after != FAILED and right:
                right = machine.guide.spanner.words[spans.word[kind]] == runs.words[word] and (
                    machine.guide.lexer.flush(target) == machine.lexing.flush_all(after)
                )
            if not right:
                witness = f"{shown(vocabulary.tokens[spelled[place]])} in state {state}: {machine.guide.lexer.describe(state)}"
                return CheckFinding.exhaustive(cases, witness)
    return CheckFinding.exhaustive(cases, None, f"{len(machine.states):,} states, all tokens")


def _names(machine: GrammarParts, found: tuple[int, tuple[int, ...]] | None) -> str:
    return (
        "nothing" if found is None else repr(" ".join(machine.oracle.grammar.name(terminal) for terminal in found[1]))
    )


@check("S3", "every symbol of the grammar is of use", of_grammars=True)
def grammar_is_reduced(subject: Subject) -> CheckFinding:
    """Each rule is used by the start rule, and derives some text."""
    grammar = subject.parts.guide.grammar
    first = len(grammar.terminals)
    ending = set(range(first))
    while more := {p.head for p in grammar.productions if ending.issuperset(p.body)} - ending:
        ending |= more
    needed = {grammar.start}
    while more := {symbol for p in grammar.productions if p.head in needed for symbol in p.body} - needed:
        needed |= more
    for symbol in range(first, first + len(grammar.nonterminals)):
        if symbol not in ending & needed:
            return CheckFinding.exhaustive(len(grammar.nonterminals), f"{grammar.name(symbol)} is useless")
    return CheckFinding.exhaustive(len(grammar.nonterminals))


@check("T5", "stack invariance", of_grammars=True)
def stack_is_invariant(subject: Subject) -> CheckFinding:
    """A step that the parser accepts by the top of its stack alone is accepted whatever stands below."""
    tops = subject.parts.tops
    if tops.wrongly_accepted:
        return CheckFinding.bounded(1, tops.cases, tops.named(tops.wrongly_accepted[0]), "by the top of the stack")
    return _on_tops(subject, f"{tops.accepted:,} steps accepted", subject.kept.wrongly_allowed)


@check("T6", "forgetting the stack allows more", of_grammars=True)
def forgetting_allows_more(subject: Subject) -> CheckFinding:
    """A step that the parser refuses by the top of its stack alone is refused whatever stands below."""
    tops = subject.parts.tops
    if tops.wrongly_refused:
        return CheckFinding.bounded(1, tops.cases, tops.named(tops.wrongly_refused[0]), "by the top of the stack")
    return _on_tops(subject, f"{tops.refused:,} steps refused", subject.kept.wrongly_dead)


@check("T7", "the parser is the grammar", of_grammars=True)
def parser_is_earley(subject: Subject) -> CheckFinding:
    """After each sequence of terminals, the parser reads what the grammar allows, by Earley's method."""
    machine = subject.parts
    found, cases = machine.viable, 0
    earley, terminals = machine.oracle.earley, range(len(machine.guide.grammar.terminals))
    for (configuration, _), word in found.words.items():
        for terminal in terminals:
            cases += 1
            if (machine.guide.parser.shift(configuration, terminal) != ERROR) != earley.survives((*word, terminal)):
                return CheckFinding.bounded(len(word) + 1, cases, machine.named((*word, terminal)))
        cases += 1
        if machine.guide.parser.accepts(configuration) != earley.derives(word):
            return CheckFinding.bounded(len(word), cases, f"the end after {machine.named(word)}")
    remark = f"{len(found.words):,} configurations"
    return (
        CheckFinding.exhaustive(cases, None, remark)
        if found.closed
        else CheckFinding.bounded(found.longest + 1, cases, None, remark)
    )


@check("T8", "masks are what survives and ends", of_grammars=True)
def mask_is_characterised(subject: Subject) -> CheckFinding:
    """A token is allowed exactly where lexer and parser can read it, and the text can still be ended."""
    machine, exploration, collapse = subject.parts, subject.exploration, subject.collapse
    vocabulary, cases = subject.guide.vocabulary, 0
    nodes = exploration.inner[:: -(-len(exploration.inner) // CONFIGURATIONS) or 1]
    for node in nodes:
        place = machine.after(vocabulary.decode(node.word))
        row = subject.guide.row(node.state)
        allowed = row.targets[row.partition.class_of[collapse.tokens]] != NO_STATE
        if place is None:
            return subject.bounded(cases, node.word, "is reached, and does not survive")
        configuration, lexed = place
        spans = machine.guide.spanner.of_state(lexed)
        kinds = spans.partition.class_of[collapse.tokens]
        survives = np.array(
            [
                target != DEAD and machine.guide.parser.read(configuration, machine.guide.spanner.words[word]) != ERROR
                for target, word in zip(spans.target.tolist(), spans.word.tolist(), strict=True)
            ]
        )[kinds]
        cases += len(kinds)
        outcomes = subject.oracle.outcomes(node.point, collapse.texts)
        wrong = np.flatnonzero((allowed != survives) & (allowed | outcomes.continues[outcomes.of_text]))
        if len(wrong):
            return subject.bounded(cases, (*node.word, int(collapse.tokens[wrong[0]])))
    sampled = len(nodes) < len(exploration.inner)
    remark = f"in {len(nodes):,} of {len(exploration.inner):,} pairs of states" if sampled else ""
    return subject.bounded(cases, None, remark)


@check("T3", "beginnings of what is read are read", of_grammars=True)
def prefixes_survive(subject: Subject) -> CheckFinding:
    """The beginnings of what lexer and parser read are read by them, so nothing is refused halfway."""
    machine, exploration, cases = subject.parts, subject.exploration, 0
    tried = exploration.endings[:: -(-len(exploration.endings) // CONFIGURATIONS) or 1]
    for word in tried:
        text, place = subject.guide.vocabulary.decode(word), machine.after(b"")
        for number in range(len(text)):
            cases += 1
            place = machine.after(text[number : number + 1], place)
            if place is None:
                return subject.bounded(cases, word, f"byte {number} is refused")
    return CheckFinding.bounded(
        max(map(len, tried)), cases, None, f"{len(tried):,} of {len(exploration.endings):,} members that were found"
    )


def _on_tops(subject: Subject, said: str, wrong: str | None) -> CheckFinding:
    """Return the finding on the steps of tops, and on the distances that the engine keeps for them beside the lexer's states."""
    tops, kept = subject.parts.tops, subject.kept
    cases, remark = tops.cases + kept.cases, f"{said} by {tops.tops:,} tops alone"
    if kept.pairs:
        remark += f"; distances kept for {kept.tops:,} tops beside states of the lexer, in {kept.pairs:,} stacks"
    if wrong is not None:
        return CheckFinding.bounded(1, cases, wrong, "by the distances that are kept for the top of the stack")
    return CheckFinding.exhaustive(cases, None, remark) if tops.closed else CheckFinding.bounded(1, cases, None, remark)
