"""Limits on formats: what reading and compiling one may take, checked before the work is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import final

from .errors import UnsupportedError


@final
@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on the size of a format. What exceeds one is refused, never cut; :func:`limits` raises them.

    Attributes
    ----------
    source
        Bytes of a regular expression, a grammar, or a schema as JSON.
    nesting
        Groups, optional parts, arrays, objects or schemas inside each other.
    states
        States of one automaton that a part of a format is compiled into.
    members
        Members that one array or object of a JSON schema lists: properties, enumerated values, alternatives.
    phrases
        Bytes of all banned phrases of a call.
    """

    source: int = 1 << 20
    nesting: int = 200
    states: int = 20_000
    members: int = 20_000
    phrases: int = 1 << 18

    def check(self, name: str, found: int, what: str) -> None:
        """Raise :class:`UnsupportedError` where ``found`` exceeds the limit ``name``; ``what`` has so many of them."""
        if found > (most := getattr(self, name)):
            raise UnsupportedError(
                f"Write a smaller format, or raise the limit, as in `with outlines_phi.limits({name}={found}): ...`. "
                f"{what} is {found:,}, more than {most:,}."
            )


@final
class LimitError(UnsupportedError):
    """A part of a format needs more states, cases or names than are made.

    Parameters
    ----------
    remedy
        The alternative to write; its place comes behind it.
    reason
        The quantity that is too large.
    """

    def __init__(self, remedy: str, reason: str) -> None:
        super().__init__(remedy, reason)
        self.remedy, self.reason = remedy, reason

    def __str__(self) -> str:
        return f"{self.remedy}. {self.reason}."

    def at(self, pointer: str) -> UnsupportedError:
        """Return the error of the part at a JSON pointer."""
        return UnsupportedError(f"{self.remedy}, at {pointer} of the JSON schema. {self.reason}.")


_DEFAULT = Limits()
_limits: ContextVar[Limits] = ContextVar("outlines_phi.limits", default=_DEFAULT)


def current_limits() -> Limits:
    """Return the limits in force."""
    return _limits.get()


@contextmanager
def limits(**bounds: int) -> Iterator[Limits]:
    """Set limits of formats for the calls inside the ``with`` block, by the names of :class:`Limits`.

    Raises
    ------
    UnsupportedError
        A name that is no limit, or a bound that is no positive whole number.
    """
    known = Limits.__dataclass_fields__
    for name, bound in bounds.items():
        if name not in known:
            raise UnsupportedError(f"Give one of {', '.join(known)}. {name!r} is not a limit.")
        if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
            raise UnsupportedError(f"Give {name} a whole number of at least 1. It was {bound!r}.")
    token = _limits.set(replace(_limits.get(), **bounds))
    try:
        yield _limits.get()
    finally:
        _limits.reset(token)
