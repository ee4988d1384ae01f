"""Tags: finite sets of values by which formulas evidently exclude each other."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeAlias

from .formula import And, Formula, Kind, Or, Property, Required
from .kinds import LITERALS, Kinds

Tags: TypeAlias = Mapping[str | None, frozenset[Hashable]]
"""Values that what a formula is true of may be, under ``None``; or those of a member that it has, under its name."""


def tags_of(kinds: Kinds, formula: Formula) -> Tags:
    """Return the tags of a formula; none where they are not evident."""
    formula = kinds.meant(formula)
    own = _scalars(kinds, formula)
    if own is not None:
        return {None: own}
    parts = formula.formulas if isinstance(formula, And) else (formula,)
    if not any(isinstance(part, Kind) and part.kinds == {"object"} for part in parts):
        return {}
    found: dict[str | None, frozenset[Hashable]] = {}
    required = {part.name for part in parts if isinstance(part, Required)}
    for part in parts:
        if isinstance(part, Property) and part.name in required:
            values = _scalars(kinds, kinds.meant(part.value))
            if values is not None:
                found[part.name] = found.get(part.name, values) & values
    return found


def common(tags: Sequence[Tags]) -> Sequence[frozenset[Hashable]] | None:
    """Return the values of all under a tag that they have in common; ``None`` where there is none."""
    names = [name for name in tags[0] if all(name in one for one in tags)] if tags else []
    return [one[names[0]] for one in tags] if names else None


def _scalars(kinds: Kinds, formula: Formula) -> frozenset[Hashable] | None:
    """Return values of which one is meant, where these are scalars and few."""
    if isinstance(formula, Or):
        parts = [_scalars(kinds, kinds.meant(part)) for part in formula.formulas]
        return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
    if not isinstance(formula, (And, Kind)) or kinds.may_be("array", formula) or kinds.may_be("object", formula):
        return None
    strings = kinds.strings(formula)
    numbers = [kinds.numbers(formula, plain=plain).members for plain in (True, False)]
    if (strings.values is None or strings.without) and not strings.is_empty or None in numbers:
        return None
    literals = {kind for kind in LITERALS if kinds.may_be(kind, formula)}
    return frozenset(
        [("string", text) for text in strings.values or ()]
        + [("number", number) for one in numbers for number in one or ()]
        + [(kind, None) for kind in literals]
    )
