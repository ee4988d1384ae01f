"""Assumptions and theorems of grammar-constrained decoding, each a check with a verdict (grammar-theory.md, section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, cast, final

import numpy as np

from outlines_phi.guides import CFGGuide
from outlines_phi.guides.grammar.lexer import START
from outlines_phi.guides.grammar.parser import ERROR
from outlines_phi.guides.guide import DEAD

from .mutants import GUIDES, engine_mutations, found_out, near
from .oracle import GrammarOracle
from .subject import Check, CheckFinding, Subject, Verdict, shown

MOST = 2_000  # How many pairs of states are looked at most, where no depth is asked for
PAIRS = 20_000  # How many pairs of states of the two lexers are compared at most
CONFIGURATIONS = 300  # How many configurations of the parser are looked at at most
READ = 3_000_000  # How many tokens are read in all where those of every node are


def of_grammar(subject: Subject) -> bool:
    """Return True if there is a lexer and a parser to look at."""
    return isinstance(subject.guide, CFGGuide)


def check(
    id: str, statement: str, applies: Callable[[Subject], bool] = lambda _: True
) -> Callable[[Callable[[Subject], CheckFinding]], Check]:
    """Return the decorator that makes a check of a function; its docstring is the meaning."""
    return lambda find: Check(id, statement, " ".join(str(find.__doc__).split()), find, applies)


@check("S5", "every byte is a token")
def bytes_are_tokens(subject: Subject) -> CheckFinding:
    """Each byte that a text may hold is a token by itself, so any text can be completed byte by byte."""
    tokens = set(subject.guide.vocabulary.tokens)
    missing = next((byte for byte in sorted(subject.used) if bytes([byte]) not in tokens), None)
    witness = None if missing is None else f"{shown(bytes([missing]))} is no token"
    remark = "texts are completed by whole tokens" * bool(witness)
    return CheckFinding(len(subject.used), None, witness, remark, needed=False)


@check("S8", "few tokens stand for all")
def classes_are_alike(subject: Subject) -> CheckFinding:
    """Tokens of one class lead to the same, so it is enough to try one of each."""
    vocabulary, explored, cases = subject.guide.vocabulary, subject.exploration, 0
    every = np.flatnonzero(np.fromiter(map(len, vocabulary.tokens), np.int64, len(vocabulary)))
    inner, most = explored.inner, max(READ // max(len(every), 1), 1)
    nodes = inner[:: -(-len(inner) // most) or 1]  # from all of them
    for node in nodes:
        row = subject.guide.row(node.state)
        kinds, chosen = row.partition.class_of[every], explored.tokens(row.partition)
        points = np.array(explored.read(node, every), dtype=np.int64)
        # The point behind the token that stands for each class; behind what no class allows no member may begin.
        stands_for = np.full(row.partition.size, -2)
        stands_for[row.partition.class_of[chosen]] = explored.read(node, chosen)
        cases += len(every)
        pairs, which = np.unique(np.stack([points, stands_for[kinds], row.targets[kinds]]), axis=1, return_inverse=True)
        for number, (point, other, target) in enumerate(pairs.T.tolist()):
            begun = subject.oracle.continues(point)
            if begun if target == DEAD else other < 0 or not subject.oracle.alike(point, other):
                place = int((which.reshape(-1) == number).argmax())
                return subject.covered(cases, (*node.word, int(every[place])), "is not what stands for it")
    remark = f"all tokens, after {len(nodes):,} of {len(inner):,} pairs of states"
    return subject.covered(cases, None, remark, all=len(nodes) == len(inner))


@check("S9", "Lark says the same terminals", of_grammar)
def readers_agree(subject: Subject) -> CheckFinding:
    """The oracle stands on Lark's own reading of the text, which has the same terminals, ignored ones and priorities
    included.
    """
    reading, terminals = subject.reading, cast("GrammarOracle", subject.oracle.machine).grammar.terminals
    if reading is None or reading.shared:
        why = reading.shared if reading else "no text of it in Lark's dialect is at hand"
        shared = "so the oracle shares the engine's reader for this grammar"
        return CheckFinding(len(terminals), None, why, shared, needed=False)
    return CheckFinding(len(terminals), None, "; ".join(reading.differences) or None)


@check("T1", "the lexer is longest match", of_grammar)
def lexer_is_longest_match(subject: Subject) -> CheckFinding:
    """The lexer cuts each text as the definition does: into the longest lexemes."""
    lexer, lexing = cast("CFGGuide", subject.guide).lexer, cast("GrammarOracle", subject.oracle.machine).lexing
    pairs: dict[tuple[int, int], bytes] = {(START, 0): b""}
    cases, pending = 0, list(pairs)
    for state, other in pending:  # it grows
        text = pairs[state, other]
        if lexer.flush(state) != lexing.flush(other):
            return CheckFinding(cases, None, f"the end after {shown(text)}")
        for byte in range(256):
            cases += 1
            ours, moved = lexer.lex(bytes([byte]), state), lexing.move(other, byte)
            if (ours and ours[1]) != (moved and moved.word):
                return CheckFinding(cases, None, shown(text + bytes([byte])), "is cut in another way")
            if ours and moved and (ours[0], moved.state) not in pairs:
                pairs[ours[0], moved.state] = text + bytes([byte])
                pending.append((ours[0], moved.state))
        if len(pairs) > PAIRS:
            return CheckFinding(cases, len(text), None, f"the first {len(pairs):,} pairs of states")
    return CheckFinding(cases, None, None, f"{len(pairs):,} pairs of states, all bytes")


@check("T7", "the parser is the grammar", of_grammar)
def parser_is_earley(subject: Subject) -> CheckFinding:
    """After each sequence of terminals, the parser reads what the grammar allows, by Earley's method."""
    parser, oracle = cast("CFGGuide", subject.guide).parser, cast("GrammarOracle", subject.oracle.machine)
    grammar, earley = oracle.grammar, oracle.earley
    words: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {(parser.start, ()): ()}
    cases, closed, pending = 0, True, list(words)
    for configuration, items in pending:  # it grows
        word = words[configuration, items]
        named = " ".join(map(grammar.name, word)) or "no terminal"
        if parser.accepts(configuration) != earley.derives(word):
            return CheckFinding(cases, len(word), f"the end after {named}")
        for terminal in range(len(parser.grammar.terminals)):
            cases += 1
            after = parser.shift(configuration, terminal)
            if (after != ERROR) != earley.survives((*word, terminal)):
                return CheckFinding(cases, len(word) + 1, f"{grammar.name(terminal)} after {named}")
            pair = after, earley.canonical((*word, terminal))
            if after != ERROR and pair not in words:
                closed &= len(words) < CONFIGURATIONS
                if len(words) < CONFIGURATIONS:
                    words[pair] = (*word, terminal)
                    pending.append(pair)
    bound = None if closed else max(map(len, words.values()))
    return CheckFinding(cases, bound, None, f"{len(words):,} configurations")


@check("T16", "members within the promised length")
def productive(subject: Subject) -> CheckFinding:
    """From all that is allowed, a member is written within as many tokens as is promised (with --schema: one that is
    valid). Some token lowers that number, none that counts lowers it by more than one, and tokens are ranked by it.
    """
    found = subject.law("productive", "member", "lowers", "fewest", "ranked")
    if found.witness is None and subject.fault is not None:
        for word in subject.exploration.endings:
            if fault := subject.fault(subject.guide.vocabulary.decode(word)):
                return subject.covered(found.cases, word, fault)
    return found


@check("T10", "what is allowed begins a member")
def sound(subject: Subject) -> CheckFinding:
    """Nothing too much is allowed: all that is allowed can be completed to a member of the language."""
    return subject.law("sound", "live")


@check("T11", "what begins a member is allowed")
def complete(subject: Subject) -> CheckFinding:
    """Nothing too little is allowed, by a row or by a single step: all that begins a member is allowed."""
    return subject.law("complete", "one relation")


@check("T12", "members, and no others, may end")
def ends_are_exact(subject: Subject) -> CheckFinding:
    """A text may end where it is a member, and nowhere else."""
    return subject.law("end")


GUIDE_CHECKS = tuple(
    sorted((each for each in vars().values() if type(each) is Check), key=lambda each: (each.id[0], int(each.id[1:])))
)
"""The checks of a guide, which find its mutants out; S are assumptions, T theorems."""


@check("T17", "wrong guides are found out")
def mistakes_are_found(subject: Subject) -> CheckFinding:
    """Masks, classes of tokens and distances that are made wrong on purpose are found out by these checks."""
    return found_out(near(subject), GUIDES, GUIDE_CHECKS)


@check("T18", "wrong engines are found out", lambda subject: bool(engine_mutations(subject)))
def wrong_engines_are_found(subject: Subject) -> CheckFinding:
    """Guides whose lexer, parser or automaton is made wrong on purpose are found out by these checks."""
    return found_out(near(subject), engine_mutations(subject), GUIDE_CHECKS)


CHECKS = (*GUIDE_CHECKS, mistakes_are_found, wrong_engines_are_found)
"""All checks; the last two check the checks."""


class Result(NamedTuple):
    """A check with what it found, and how long it took."""

    check: Check
    finding: CheckFinding
    seconds: float


@final
@dataclass(frozen=True)
class Verification:
    """A subject with the results of all checks that apply to it."""

    subject: Subject
    results: tuple[Result, ...]

    @property
    def holds(self) -> bool:
        """True if there is no counterexample."""
        return all(result.finding.verdict is not Verdict.COUNTEREXAMPLE for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        exploration = self.subject.exploration
        return {
            "holds": self.holds,
            "exploration": {
                "tokens": len(self.subject.guide.vocabulary),
                "asked_depth": self.subject.depth,
                "complete_depth": exploration.complete,
                "closed": exploration.closed,
                "pairs": len(exploration.nodes),
                "pairs_tried": len(exploration.inner),
            },
            "checks": [
                {
                    **{name: getattr(each.check, name) for name in ("id", "statement", "meaning")},
                    "verdict": each.finding.verdict.value,
                    **{name: getattr(each.finding, name) for name in ("cases", "bound", "witness", "remark")},
                    "seconds": round(each.seconds, 3),
                }
                for each in self.results
            ],
        }


def verify(subject: Subject, progress: Callable[[Check], None] | None = None) -> Verification:
    """Run all checks that apply; ``progress`` is told each check before it is run."""
    results = []
    for each in CHECKS:
        if each.applies(subject):
            if progress is not None:
                progress(each)
            began = perf_counter()
            results.append(Result(each, each.find(subject), perf_counter() - began))
    return Verification(subject, tuple(results))
