"""What is checked, and what a check finds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, final


class Verdict(str, Enum):
    """How far a statement was checked, and with what result."""

    PROVED = "PROVED"
    """Decided: there are finitely many cases, and all were tried."""

    BOUNDED = "BOUNDED"
    """No counterexample among the words of the bound, or in a sample."""

    COUNTEREXAMPLE = "COUNTEREXAMPLE"
    """It does not hold, as the witness shows."""

    NOT_NEEDED = "NOT NEEDED"
    """An assumption that does not hold here; what follows from it elsewhere is checked by itself."""

    @property
    def meaning(self) -> str:
        """What the verdict says, in a sentence."""
        return MEANINGS[self]


MEANINGS = {
    Verdict.PROVED: "All cases were tried, and it holds in each.",
    Verdict.BOUNDED: "It holds in every case that was tried, of at most so many tokens, bytes or terminals.",
    Verdict.COUNTEREXAMPLE: "It does not hold, as the text beside it shows.",
    Verdict.NOT_NEEDED: "An assumption that does not hold here; what it is for elsewhere is checked by itself.",
}


@final
@dataclass(frozen=True)
class Finding:
    """The verdict of one check.

    Attributes
    ----------
    verdict
        See :class:`Verdict`.
    cases
        How many were tried.
    bound
        The most tokens, bytes or terminals of a case; ``None`` where all cases were tried.
    witness
        The shortest case that breaks the statement, or that shows why the assumption does not hold.
    remark
        What is worth knowing besides.
    """

    verdict: Verdict
    cases: int
    bound: int | None = None
    witness: str | None = None
    remark: str = ""

    @classmethod
    def proved(cls, cases: int, witness: str | None = None, remark: str = "") -> Finding:
        """Return the finding of a check that tried all cases; a witness is a counterexample."""
        return cls(Verdict.COUNTEREXAMPLE if witness is not None else Verdict.PROVED, cases, None, witness, remark)

    @classmethod
    def bounded(cls, bound: int, cases: int, witness: str | None = None, remark: str = "") -> Finding:
        """Return the finding of a check that tried the cases up to a bound; a witness is a counterexample."""
        return cls(Verdict.COUNTEREXAMPLE if witness is not None else Verdict.BOUNDED, cases, bound, witness, remark)

    @classmethod
    def assumption(cls, cases: int, witness: str | None = None, remark: str = "") -> Finding:
        """Return the finding on an assumption that nothing else here rests on."""
        return cls(Verdict.NOT_NEEDED if witness is not None else Verdict.PROVED, cases, None, witness, remark)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "verdict": self.verdict.value,
            "bound": self.bound,
            "cases": self.cases,
            "witness": self.witness,
            "remark": self.remark or None,
        }


class Check(NamedTuple):
    """A statement, and how it is checked; the docstring of ``find`` says what the statement means.

    What is ``of_grammars`` looks at the lexer or the parser, which regular languages have not.
    """

    id: str
    statement: str
    find: Callable[[Any], Finding]
    of_grammars: bool = False

    @property
    def meaning(self) -> str:
        """What is stated, in a sentence that needs no notation."""
        return " ".join((self.find.__doc__ or "").split())


def check(id: str, statement: str, *, of_grammars: bool = False) -> Callable[[Callable[[Any], Finding]], Check]:
    """Return what makes a check of the function that finds whether ``statement`` holds."""
    return lambda find: Check(id, statement, find, of_grammars)


def shown(text: bytes) -> str:
    """Return a text as it is printed: between quotes, what is no UTF-8 as escapes."""
    return repr(text.decode(errors="backslashreplace"))
