"""What a JSON schema asks too much of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ...errors import UnsupportedError
from ...format_limits import limits


def states_of(*, compiling: bool) -> AbstractContextManager[Any]:
    """Bound the states of automata as the limits in force say, or not at all within a text, where nothing is refused."""
    return nullcontext() if compiling else limits(states=1 << 40)


@contextmanager
def not_too_deep() -> Iterator[None]:
    """Refuse a schema that has more parts inside each other than Python follows."""
    try:
        yield
    except RecursionError:
        raise UnsupportedError(
            "Give a JSON schema with fewer schemas inside each other. This one is too deep."
        ) from None


class SchemaLimit(UnsupportedError):
    """A part of a schema needs more states, cases or names than are made.

    Parameters
    ----------
    remedy
        What to write instead; where it stands comes behind it.
    reason
        What there is too much of.
    """

    def __init__(self, remedy: str, reason: str) -> None:
        super().__init__(remedy, reason)
        self.remedy, self.reason = remedy, reason

    def __str__(self) -> str:
        return f"{self.remedy}. {self.reason}."

    def at(self, pointer: str) -> UnsupportedError:
        """Return the error of the part at a JSON pointer."""
        return UnsupportedError(f"{self.remedy}, at {pointer} of the JSON schema. {self.reason}.")
