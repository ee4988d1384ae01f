"""Assumptions and theorems of grammar-constrained decoding, each a check with a verdict (grammar-theory.md, section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

from . import grammar_checks, guide_checks
from .subject import Check, CheckFinding, Subject, Verdict

DEPTH = 4
"""Tokens of the longest words that are tried, where nothing else is asked for."""

MOST = 500_000
"""How many pairs of states are looked at most, where no depth is asked for."""


_FOUND = [found for module in (grammar_checks, guide_checks) for found in vars(module).values()]

CHECKS = tuple(
    sorted((found for found in _FOUND if type(found) is Check), key=lambda found: (found.id[0], int(found.id[1:])))
)
"""All checks; S are assumptions, T theorems."""


@final
@dataclass(frozen=True)
class Result:
    """A check with what it found, and how long it took."""

    check: Check
    finding: CheckFinding
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
