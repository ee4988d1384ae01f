"""Trees that the model has left behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class StaleTreesError(Exception):
    """A kept tree has another law at its prompt than the model has now; nobody outside of the package sees it."""


def afresh(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a call again where the trees that it was lent are stale; the store has forgotten them by then."""

    @wraps(call)
    def again(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except StaleTreesError:
            return call(*args, **kwargs)

    return again
