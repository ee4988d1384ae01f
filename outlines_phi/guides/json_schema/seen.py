"""Values that an array holds already, where its items must differ."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, final

from .formula import Formula, either, equal_to, negated
from .numbers import exact
from .values import kind_of


@final
@dataclass(frozen=True)
class Seen:
    """A set of values: strings and numbers by themselves, and others by what says that a value is equal to them."""

    strings: frozenset[str] = frozenset()
    numbers: frozenset[Fraction] = frozenset()
    others: tuple[Formula, ...] = ()

    def and_also(self, value: Any) -> Seen:
        """Return the set with a value more."""
        match kind_of(value):
            case "string":
                return replace(self, strings=self.strings | {value})
            case "number":
                return replace(self, numbers=self.numbers | {exact(value)})
        return replace(self, others=tuple(dict.fromkeys((*self.others, equal_to([value])))))

    @cached_property
    def unlike(self) -> Formula:
        """That a value is none of these."""
        plain: Iterable[Any] = (*sorted(self.strings), *sorted(self.numbers))
        return negated(either(equal_to(plain), *self.others))


NOTHING = Seen()


def value_of(text: bytes) -> Any:
    """Return the value that a text spells, its numbers as decimals; what stands before the value may be a comma."""
    return json.loads(text.removeprefix(b",").decode(), parse_float=Decimal, parse_int=Decimal)
