"""Refusals: a call, and the error that it has to raise."""

from collections.abc import Callable
from typing import Any

import pytest

from outlines_phi import UnsupportedError

Errors = type[Exception] | tuple[type[Exception], ...]


def refused(
    words: str, call: Callable[..., object], /, *arguments: Any, error: Errors = UnsupportedError, **keywords: Any
) -> pytest.ExceptionInfo[Exception]:
    """Call, and return the error, in whose message the regular expression has to be found."""
    with pytest.raises(error, match=words) as caught:
        call(*arguments, **keywords)
    return caught
