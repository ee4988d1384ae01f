"""What a guide cannot say: constraints on whole token sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Constraint(Protocol):
    """Rules out token sequences that the guide allows; part of the language, like the guide.

    A tree asks once for every prefix that it makes a node of, so a constraint costs what the visited prefixes cost. It is
    part of the key under which trees are kept, so one object stands for one constraint.
    """

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        """Return whether a sequence is a member (``finished``), or may still become the beginning of one.

        ``tokens`` come without the end of sequence. Saying yes to a prefix that has no member costs time and nothing else;
        saying no to one that has some is an error.
        """
