"""Assumptions and theorems of grammar-constrained decoding, each a check with a verdict (cfg.md, section 3)."""

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
    """One row of the table: what is stated, and how it is checked."""

    id: str
    statement: str
    find: Callable[[Subject], Finding]
    of_grammars: bool = False
    """It looks at the lexer or the parser, which regular languages have not."""


CHECKS = (
    Check("S1", "no lexeme is empty", lexer_checks.no_empty_lexeme, True),
    Check("S2", "every state of the lexer is of use", lexer_checks.lexer_is_pruned, True),
    Check("S3", "every symbol of the grammar is of use", parser_checks.grammar_is_reduced, True),
    Check("S4", "a separator may stand anywhere", lexer_checks.universal_separator, True),
    Check("S5", "every byte is a token", guide_checks.bytes_are_tokens),
    Check("S6", "every lexeme can be followed", lexer_checks.lexemes_can_be_followed, True),
    Check("S7", "ids decode as their bytes", guide_checks.bytes_are_exact),
    Check("S8", "few tokens stand for all", guide_checks.collapse_is_lossless),
    Check("T1", "the lexer is longest match", lexer_checks.lexer_is_longest_match, True),
    Check("T2", "tokens do what their bytes do", lexer_checks.tokens_are_their_bytes, True),
    Check("T3", "producible is reachable", lexer_checks.producible_is_reachable, True),
    Check("T4", "token classes are exact", lexer_checks.classes_are_exact, True),
    Check("T5", "stack invariance", parser_checks.stack_is_invariant, True),
    Check("T6", "forgetting the stack allows more", parser_checks.forgetting_allows_more, True),
    Check("T7", "the parser is the grammar", parser_checks.parser_is_earley, True),
    Check("T8", "masks are what survives and ends", parser_checks.mask_is_characterised, True),
    Check("T9", "what is allowed survives", guide_checks.allowed_survives),
    Check("T10", "what is allowed begins a member", guide_checks.sound),
    Check("T11", "what begins a member is allowed", guide_checks.complete),
    Check("T12", "members, and no others, may end", guide_checks.ends_are_exact),
    Check("T13", "accepted words are the members", guide_checks.language_is_exact),
    Check("T14", "allowed words are their beginnings", guide_checks.prefixes_are_exact),
    Check("T15", "masks depend on the text alone", guide_checks.independent_of_the_cut),
    Check("T16", "members within the promised length", guide_checks.productive),
    Check("T17", "beginnings of what is read are read", parser_checks.prefixes_survive, True),
    Check("T18", "wrong guides are found out", guide_checks.mistakes_are_found),
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
