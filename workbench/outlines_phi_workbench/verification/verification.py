"""Assumptions and theorems of grammar-constrained decoding, each a check with a verdict (grammar-theory.md, section 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, final

from . import grammar_checks, guide_checks
from .mutating import mutations
from .subject import Check, CheckFinding, Subject, Verdict

MOST = 2_000  # The most pairs of states, where no depth is asked for

CHECKS = tuple(
    sorted(
        (
            each
            for module in (grammar_checks, guide_checks, mutations)
            for each in vars(module).values()
            if type(each) is Check
        ),
        key=lambda each: (each.id[0], int(each.id[1:])),
    )
)
"""All checks; S are assumptions, T theorems."""


class Result(NamedTuple):
    """A check with what it found, and how long it took."""

    check: Check
    finding: CheckFinding
    seconds: float


@final
@dataclass(frozen=True)
class Verification:
    """A subject with the results of all checks that it has the parts for."""

    subject: Subject
    results: tuple[Result, ...]

    @property
    def holds(self) -> bool:
        """True if there is no counterexample."""
        return all(result.finding.verdict is not Verdict.COUNTEREXAMPLE for result in self.results)

    @property
    def texts(self) -> int:
        """The number of texts, one token after a pair of states of guide and oracle, that were compared."""
        return len(self.subject.exploration.inner) * len(self.subject.collapse.tokens)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        exploration, collapse = self.subject.exploration, self.subject.collapse
        return {
            "holds": self.holds,
            "vocabulary": {"tokens": len(collapse.stands_for), "representatives": len(collapse.tokens)},
            "exploration": {
                "asked_depth": self.subject.depth,
                "complete_depth": exploration.complete,
                "closed": exploration.closed,
                "pairs": len(exploration.nodes),
                "pairs_tried": len(exploration.inner),
                "texts": self.texts,
            },
            "checks": [
                {
                    "id": check.id,
                    "statement": check.statement,
                    "meaning": check.meaning,
                    "verdict": finding.verdict.value,
                    "bound": finding.bound,
                    "cases": finding.cases,
                    "witness": finding.witness,
                    "remark": finding.remark or None,
                    "seconds": round(seconds, 3),
                }
                for check, finding, seconds in self.results
            ],
        }


def verify(subject: Subject, progress: Callable[[Check], None] | None = None) -> Verification:
    """Run all checks; ``progress`` is told each check before it is run."""
    results = []
    for check in CHECKS:
        if (check.of_grammars and subject.machine is None) or (check.of_tables and not subject.has_tables):
            continue
        if progress is not None:
            progress(check)
        began = perf_counter()
        results.append(Result(check, check.find(subject), perf_counter() - began))
    return Verification(subject, tuple(results))
