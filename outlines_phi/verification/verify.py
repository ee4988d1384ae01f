"""Assumptions and theorems of grammar-constrained decoding, each a check with a verdict (grammar-theory.md, section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, final

from . import guide_checks, lexer_checks, parser_checks
from .finding import Finding, Verdict
from .subject import Subject

DEPTH = 4
"""Tokens of the longest words that are tried, where nothing else is asked for."""

MOST = 500_000
"""How many pairs of states are looked at most, where no depth is asked for."""


class Check(NamedTuple):
    """One row of the table: what is stated, what that means, and how it is checked."""

    id: str
    statement: str
    meaning: str
    find: Callable[[Subject], Finding]
    of_grammars: bool = False
    """It looks at the lexer or the parser, which regular languages have not."""


CHECKS = (
    Check(
        "S1",
        "no lexeme is empty",
        "No terminal matches the empty text, so each lexeme (a piece of text that a terminal matches) writes something.",
        lexer_checks.no_empty_lexeme,
        of_grammars=True,
    ),
    Check(
        "S2",
        "every state of the lexer is of use",
        "Each state of the lexer, which cuts texts into lexemes, is reached by some text, and some lexeme is completed from it.",
        lexer_checks.lexer_is_pruned,
        of_grammars=True,
    ),
    Check(
        "S3",
        "every symbol of the grammar is of use",
        "Each rule is used by the start rule, and derives some text.",
        parser_checks.grammar_is_reduced,
        of_grammars=True,
    ),
    Check(
        "S4",
        "a separator may stand anywhere",
        "An ignored byte, such as a space, may stand after every lexeme and belongs to none.",
        lexer_checks.universal_separator,
        of_grammars=True,
    ),
    Check(
        "S5",
        "every byte is a token",
        "Each byte that a text may hold is a token by itself, so any text can be completed byte by byte.",
        guide_checks.bytes_are_tokens,
    ),
    Check(
        "S6",
        "every lexeme can be followed",
        "After each complete lexeme, some byte begins another one.",
        lexer_checks.lexemes_can_be_followed,
        of_grammars=True,
    ),
    Check(
        "S7",
        "ids decode as their bytes",
        "The tokenizer writes ids as the bytes that they are taken for, one after the other.",
        guide_checks.bytes_are_exact,
    ),
    Check(
        "S8",
        "few tokens stand for all",
        "Tokens that are taken as alike do the same everywhere, so it is enough to try one of each kind.",
        guide_checks.collapse_is_lossless,
    ),
    Check(
        "T1",
        "the lexer is longest match",
        "The lexer cuts each text as the definition does: into the longest lexemes.",
        lexer_checks.lexer_is_longest_match,
        of_grammars=True,
    ),
    Check(
        "T2",
        "tokens do what their bytes do",
        "Reading a token at once is the same as reading its bytes one by one.",
        lexer_checks.tokens_are_their_bytes,
        of_grammars=True,
    ),
    Check(
        "T3",
        "producible is reachable",
        "The terminals that a state of the lexer promises as next are those that some text brings next.",
        lexer_checks.producible_is_reachable,
        of_grammars=True,
    ),
    Check(
        "T4",
        "token classes are exact",
        "Tokens of one class do the same to the lexer, and tokens of no class cannot be read.",
        lexer_checks.classes_are_exact,
        of_grammars=True,
    ),
    Check(
        "T5",
        "stack invariance",
        "What the parser accepts by the top of its stack alone, it accepts whatever stands below.",
        parser_checks.stack_is_invariant,
        of_grammars=True,
    ),
    Check(
        "T6",
        "forgetting the stack allows more",
        "What the parser refuses by the top of its stack alone, it refuses whatever stands below.",
        parser_checks.forgetting_allows_more,
        of_grammars=True,
    ),
    Check(
        "T7",
        "the parser is the grammar",
        "After each sequence of terminals, the parser expects what the grammar allows, by Earley's method.",
        parser_checks.parser_is_earley,
        of_grammars=True,
    ),
    Check(
        "T8",
        "masks are what survives and ends",
        "A token is allowed exactly where lexer and parser can read it, and the text can still be ended.",
        parser_checks.mask_is_characterised,
        of_grammars=True,
    ),
    Check(
        "T9",
        "what is allowed survives",
        "Nothing that is allowed has a terminal out of place.",
        guide_checks.allowed_survives,
    ),
    Check(
        "T10",
        "what is allowed begins a member",
        "Nothing too much is allowed: all that is allowed can be completed to a member of the language.",
        guide_checks.sound,
    ),
    Check(
        "T11",
        "what begins a member is allowed",
        "Nothing too little is allowed: all that begins a member is allowed.",
        guide_checks.complete,
    ),
    Check(
        "T12",
        "members, and no others, may end",
        "A text may end where it is a member, and nowhere else.",
        guide_checks.ends_are_exact,
    ),
    Check(
        "T13",
        "accepted words are the members",
        "The words of tokens that are accepted to their end are those that write members.",
        guide_checks.language_is_exact,
    ),
    Check(
        "T14",
        "allowed words are their beginnings",
        "The words of tokens that are allowed so far are those that write beginnings of members.",
        guide_checks.prefixes_are_exact,
    ),
    Check(
        "T15",
        "masks depend on the text alone",
        "What may follow a text does not depend on which tokens wrote it.",
        guide_checks.independent_of_the_cut,
    ),
    Check(
        "T16",
        "members within the promised length",
        "From all that is allowed, a member is written within as many tokens as is promised (with --schema: one that is valid).",
        guide_checks.productive,
    ),
    Check(
        "T17",
        "beginnings of what is read are read",
        "The beginnings of what lexer and parser read are read by them, so nothing is refused halfway.",
        parser_checks.prefixes_survive,
        of_grammars=True,
    ),
    Check(
        "T18",
        "wrong guides are found out",
        "Masks that are made wrong on purpose are found out by these checks.",
        guide_checks.mistakes_are_found,
    ),
)
"""All checks; S are assumptions, T theorems."""


@final
@dataclass(frozen=True)
class Result:
    """A check with what it found, and how long it took."""

    check: Check
    finding: Finding
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "id": self.check.id,
            "statement": self.check.statement,
            "meaning": self.check.meaning,
            **self.finding.as_dict(),
            "seconds": round(self.seconds, 3),
        }


@final
@dataclass(frozen=True)
class Verification:
    """The results of all checks of a subject.

    Attributes
    ----------
    results
        One for each check that the subject has the parts for.
    vocabulary, representatives
        How many tokens there are, and how many stand for them.
    nodes, tried
        How many distinct pairs of states of guide and oracle were looked at, and after how many of them all tokens were tried.
    texts
        How many texts, one token after such a pair, were compared.
    complete
        All words of at most so many tokens were covered, of any number if ``closed``.
    asked
        The number of tokens that was asked for.
    """

    results: tuple[Result, ...]
    vocabulary: int
    representatives: int
    nodes: int
    tried: int
    texts: int
    complete: int
    closed: bool
    asked: int

    @property
    def holds(self) -> bool:
        """Whether there is no counterexample."""
        return all(result.finding.verdict is not Verdict.COUNTEREXAMPLE for result in self.results)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "holds": self.holds,
            "vocabulary": {"tokens": self.vocabulary, "representatives": self.representatives},
            "exploration": {
                "asked_depth": self.asked,
                "complete_depth": self.complete,
                "closed": self.closed,
                "pairs": self.nodes,
                "pairs_tried": self.tried,
                "texts": self.texts,
            },
            "checks": [result.as_dict() for result in self.results],
        }


def verify(subject: Subject, progress: Callable[[Check], None] | None = None) -> Verification:
    """Run all checks; ``progress`` is told each check before it is run."""
    results = []
    for check in CHECKS:
        if check.of_grammars and subject.machine is None:
            continue
        if progress is not None:
            progress(check)
        began = perf_counter()
        finding = check.find(subject)
        results.append(Result(check, finding, perf_counter() - began))
    exploration, collapse = subject.exploration, subject.collapse
    return Verification(
        tuple(results),
        len(subject.guide.vocabulary),
        len(collapse.tokens),
        len(exploration.nodes),
        len(exploration.inner),
        len(exploration.inner) * len(collapse.tokens),
        exploration.complete,
        exploration.closed,
        subject.depth,
    )
