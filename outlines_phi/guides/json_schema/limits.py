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
