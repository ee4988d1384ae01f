"""What a guide cannot say: constraints on whole token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

FURTHER = 4
"""Tests after a draw where nobody says how many: of the first few, each takes more noise from the weight than the one after it."""


class Constraint(Protocol):
    """Rules out token sequences that the guide allows; part of the language, like the guide.

    A tree asks once for every prefix that it makes a node of, and a walk for the few next tokens that it tests, so a constraint
    costs what the visited prefixes cost. It is part of the key under which trees are kept: equal ones stand for one constraint.
    ``str`` of it is what messages call it.

    Attributes
    ----------
    further
        Next tokens that a walk tests after the one that it draws, at least 1: more make its weight less noisy.
    bytes
        Memory that it holds beside what others hold anyway.
    """

    @property
    def further(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        """Return whether a sequence is a member (``finished``), or may still become the beginning of one.

        ``tokens`` come without the end of sequence. Saying yes to a prefix that has no member costs time and nothing else;
        saying no to one that has some is an error.
        """


@final
@dataclass(frozen=True)
class Conjunction:
    """What several constraints allow, asked in their order."""

    parts: tuple[Constraint, ...]

    @property
    def further(self) -> int:
        """The least of the parts."""
        return min(part.further for part in self.parts)

    @property
    def bytes(self) -> int:
        """The sum of the parts."""
        return sum(part.bytes for part in self.parts)

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        """See :meth:`Constraint.allows`."""
        return all(part.allows(tokens, finished=finished) for part in self.parts)

    def __str__(self) -> str:
        return " with ".join(map(str, self.parts))


def all_of(*constraints: Constraint | None) -> Constraint | None:
    """Return what all of ``constraints`` allow; ``None`` where there are none."""
    given = tuple(constraint for constraint in constraints if constraint is not None)
    return Conjunction(given) if len(given) > 1 else next(iter(given), None)
