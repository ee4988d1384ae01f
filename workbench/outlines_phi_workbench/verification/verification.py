"""All checks of a guide, run one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple, final

from . import guide_checks
from .guide_checks import check
from .mutants import GUIDES, engine_mutations, found_out, near
from .subject import Check, CheckFinding, Subject, Verdict

MOST = 2_000  # How many pairs of states are looked at most, where no depth is asked for


@check("T17", "wrong guides are found out")
def mistakes_are_found(subject: Subject) -> CheckFinding:
    """Masks, classes of tokens and distances that are made wrong on purpose are found out by these checks."""
    return found_out(near(subject), GUIDES)


@check("T18", "wrong engines are found out", lambda subject: bool(engine_mutations(subject)))
def wrong_engines_are_found(subject: Subject) -> CheckFinding:
    """Guides whose lexer, parser or automaton is made wrong on purpose are found out by these checks."""
    return found_out(near(subject), engine_mutations(subject))


CHECKS = (*guide_checks.CHECKS, mistakes_are_found, wrong_engines_are_found)
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
                    **vars(each.finding),
                    "verdict": each.finding.verdict.value,
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
