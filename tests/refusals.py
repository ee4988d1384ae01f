"""Refusals: a call, and the error that it has to raise."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from outlines_phi import UnsupportedError

Errors = type[BaseException] | tuple[type[BaseException], ...]


def refused(
    words: str | None,
    call: Callable[..., object],
    /,
    *arguments: Any,
    error: Errors = UnsupportedError,
    **keywords: Any,
) -> pytest.ExceptionInfo[Any]:
    """Call, and return the error, in whose message the regular expression has to be found, where one is given."""
    with pytest.raises(error, match=words) as caught:
        call(*arguments, **keywords)
    return caught


def refusals(
    rows: Iterable[tuple[Callable[[Any], object], str]], *, fixture: str = "model", error: Errors = UnsupportedError
) -> Callable[..., None]:
    """Return the test that each call of a table, given a fixture, raises an error with the words that stand beside it."""
    table = list(rows)

    @pytest.mark.parametrize(("call", "words"), table, ids=[words for _, words in table])
    def test(call: Callable[[Any], object], words: str, request: pytest.FixtureRequest) -> None:
        refused(words, call, request.getfixturevalue(fixture), error=error)

    return test
