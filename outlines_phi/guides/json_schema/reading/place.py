"""A schema within its document: what its keywords hold, and where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol, final

from referencing import Specification
from referencing._core import Resolver

from ....errors import GrammarError, UnsupportedError
from ....format_limits import LimitError, current_limits
from ..formula import FALSE, TRUE, Formula
from ..strings.string_set import StringSet
from ..values import pointer_to

PATTERN_DIALECT = "$patternDialect"
"""A keyword of schemas of Python types alone: the dialect of the pattern beside it, ``rust`` or ``python``."""

MOST_COUNTED = 1 << 40
"""No text has as many characters, items or members."""


class Reading(Protocol):
    """The reader of the parts of a document."""

    plain: bool
    """True if integers are written without a fraction and an exponent, as in draft 4."""
    formats: list[str] | None
    """Pointers of the formats that assert something; ``None`` where all formats are annotations."""

    def formula(self, place: Place) -> Formula:
        """Return the formula of a schema."""

    def reference(self, place: Place, keyword: str) -> Formula:
        """Return the formula of the part of the document that a keyword refers to."""

    def target(self, place: Place, keyword: str) -> Place:
        """Return the part of the document that a keyword refers to."""

    def leave_out(self, pointer: str, why: str) -> None:
        """Take note of what is not asked of a value."""

    def put_in_order(self, names: Iterable[str], pointer: str | None) -> None:
        """Take note that members of these names come in this order; without a pointer, that they come in none."""

    def is_keyword(self, name: str, draft: str) -> bool:
        """Return True if a name may say something in a draft."""


@final
@dataclass(frozen=True)
class Place:
    """A part of a document.

    Attributes
    ----------
    contents
        The part of the document there.
    pointer
        The JSON pointer to it in the document, behind a number sign.
    resolver, specification
        The base of references here, and the draft.
    reading
        The reader of the document.
    entered
        True if ``resolver`` and ``specification`` are those inside of this part, which may have a name or a draft of its own.
    scope
        The resources that led here, by their URIs, the outermost first: the *dynamic scope*.
    """

    contents: Any
    pointer: str
    resolver: Resolver[Any]
    specification: Specification[Any]
    reading: Reading
    entered: bool = False
    scope: tuple[str, ...] = ()

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The keywords and what they hold, without those of other drafts."""
        assert isinstance(self.contents, dict)
        draft = self.specification.name
        return {name: held for name, held in self.contents.items() if self.reading.is_keyword(name, draft)}

    def at(self, *steps: str | int) -> Place:
        """Return a part of this part."""
        contents = self.contents
        for step in steps:
            contents = contents[step]
        return replace(self, contents=contents, pointer=pointer_to(steps, self.pointer), entered=False)

    def below(self, *steps: str | int) -> Formula:
        """Return the formula of the schema there."""
        return self.reading.formula(self.at(*steps))

    def each(self, keyword: str) -> list[Formula]:
        """Return the formula of each schema of a list."""
        return [self.below(keyword, i) for i in range(len(self.listed(keyword, object)))]

    def named(self, keyword: str) -> Iterator[tuple[str, Formula]]:
        """Yield the names of an object of schemas, and what each says."""
        for name in self.mapping(keyword):
            yield name, self.below(keyword, name)

    def value(self, keyword: str | None) -> Any:
        """Return the value of a keyword, or the contents of this place."""
        return self.contents if keyword is None else self.schema[keyword]

    def mapping(self, keyword: str) -> dict[str, Any]:
        """Return the object that a keyword holds; an empty one where it is not there."""
        return (
            self._checked(keyword, lambda value: isinstance(value, dict), "an object") if keyword in self.schema else {}
        )

    def listed(self, keyword: str | None, kind: type) -> list[Any]:
        """Return the list that a keyword holds, or that stands here."""

        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, kind) for item in value)

        return self._checked(keyword, fits, "a list of names" if kind is str else "a list")

    def text(self, keyword: str) -> str:
        """Return the string that a keyword holds."""
        return self._checked(keyword, lambda value: isinstance(value, str), "a string")

    def flag(self, keyword: str) -> bool:
        """Return the truth that a keyword holds."""
        return self._checked(keyword, lambda value: isinstance(value, bool), "true or false")

    def number(self, keyword: str) -> int | float | Decimal:
        """Return the number that a keyword holds."""
        return self._checked(keyword, _is_number, "a number")

    def count(self, keyword: str) -> int:
        """Return the whole number that a keyword holds, or the greatest that makes a difference to any text."""
        count = self._checked(
            keyword, lambda n: _is_number(n) and n >= 0 and min(n, MOST_COUNTED) % 1 == 0, "a whole number"
        )
        return int(min(count, MOST_COUNTED))

    def reference(self, keyword: str) -> Formula:
        """Return the formula that a keyword refers to."""
        return self.reading.reference(self, keyword)

    def leave_out(self, keyword: str, why: str) -> None:
        """Take note that a keyword is not asked of a value."""
        self.reading.leave_out(f"{self.pointer}/{keyword}", why)

    def malformed(self, keyword: str | None, expected: str) -> UnsupportedError:
        """Return the error of a keyword that holds something else."""
        pointer = self.pointer if keyword is None else f"{self.pointer}/{keyword}"
        return UnsupportedError(
            f"Write {expected} at {pointer} of the JSON schema. It holds {self.value(keyword)!r:.80}."
        )

    def in_no_order(self, names: Iterable[str]) -> None:
        """Take note that names are told apart that have no order by that."""
        self.reading.put_in_order(names, None)

    def in_order(self, keyword: str, names: Iterable[str]) -> None:
        """Take note that a keyword names members in an order."""
        self.reading.put_in_order(names, f"{self.pointer}/{keyword}")

    def matching(self, pattern: str, *steps: str, dialect: str = "ecma") -> StringSet:
        """Return the strings that a pattern matches, which stands in a part of this part."""
        with self.within(*steps):
            return StringSet.matching(pattern, dialect)

    def matched(self) -> StringSet:
        """Return the union of the languages of the patterns of ``patternProperties``."""
        found = StringSet.none()
        for pattern in self.mapping("patternProperties"):
            found |= self.matching(pattern, "patternProperties", pattern)
        return found

    @contextmanager
    def within(self, *steps: str) -> Iterator[None]:
        """Say in every error of a part where it stands."""
        try:
            yield
        except GrammarError as error:
            pointer = pointer_to(steps, self.pointer)
            dialect = {"rust": "the crate regex", "python": "the module re"}.get(
                self.contents.get(PATTERN_DIALECT), "ECMA-262"
            )
            raise UnsupportedError(
                f"Write a regular expression of {dialect} at {pointer} of the JSON schema. In the one that is there, {error}"
            ) from error
        except LimitError as limit:
            raise limit.at(pointer_to(steps, self.pointer)) from None
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{error} It stands at {pointer_to(steps, self.pointer)} of the JSON schema."
            ) from error

    def _checked(self, keyword: str | None, fits: Callable[[Any], bool], expected: str) -> Any:
        value = self.value(keyword)
        if not fits(value):
            raise self.malformed(keyword, expected)
        if isinstance(value, (list, dict)):
            where = self.pointer if keyword is None else f"{self.pointer}/{keyword}"
            current_limits().check("members", len(value), f"The number of members at {where} of the JSON schema")
        return value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def constant(contents: Any) -> Formula | None:
    """Return the formula of a schema that is a truth value; ``None`` of another."""
    return {True: TRUE, False: FALSE}[contents] if isinstance(contents, bool) else None
