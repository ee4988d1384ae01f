"""Which members and items the other keywords of a schema speak of, for ``unevaluatedProperties`` and ``unevaluatedItems``."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import final

from ....errors import UnsupportedError
from ..formula import FALSE, TRUE, Formula, Items, Properties, Required, both, either, kind, negated
from ..strings.string_set import StringSet
from .place import Place

BRANCHES = 8
"""Conditions of one ``unevaluated`` keyword; each doubles its formula."""


@final
@dataclass(frozen=True)
class Evaluated:
    """What is spoken of where ``condition`` is true.

    Attributes
    ----------
    condition
        When that is.
    names, patterns
        The names of members.
    first
        How many of the first items.
    items
        What those items are that are spoken of wherever they stand.
    """

    condition: Formula
    names: frozenset[str] = frozenset()
    patterns: StringSet = StringSet.none()
    first: int = 0
    items: Formula = FALSE


def unevaluated_members(place: Place) -> Formula:
    """Return that all members that nothing else speaks of are as ``unevaluatedProperties`` says."""
    value, cases = place.below("unevaluatedProperties"), []
    for condition, found in _cases(place, "unevaluatedProperties"):
        patterns = StringSet.none()
        for one in found:
            patterns |= one.patterns
        names = frozenset[str]().union(*(one.names for one in found))
        cases.append(both(condition, Properties(names, ~patterns, value)))
    return either(*cases)


def unevaluated_items(place: Place) -> Formula:
    """Return that all items that nothing else speaks of are as ``unevaluatedItems`` says."""
    value, cases = place.below("unevaluatedItems"), []
    for condition, found in _cases(place, "unevaluatedItems"):
        first, others = max((one.first for one in found), default=0), (one.items for one in found)
        cases.append(both(condition, Items((TRUE,) * first, either(value, *others))))
    return either(*cases)


def _cases(place: Place, keyword: str) -> Iterator[tuple[Formula, list[Evaluated]]]:
    """Yield what is spoken of for each choice of the conditions that are true."""
    always, sometimes = list[Evaluated](), dict[Formula, list[Evaluated]]()
    for one in _of(place, frozenset([(place.pointer, place.scope)])):
        if one.condition is TRUE:
            always.append(one)
        else:
            sometimes.setdefault(one.condition, []).append(one)
    if len(sometimes) > BRANCHES:
        raise UnsupportedError(
            f"Use {keyword} beside at most {BRANCHES} branches of anyOf, oneOf, if and dependentSchemas. There are "
            f"{len(sometimes)} at {place.pointer} of the JSON schema."
        )
    for truths in product([True, False], repeat=len(sometimes)):
        chosen = list(zip(sometimes, truths, strict=True))
        condition = both(*(one if true else negated(one) for one, true in chosen))
        yield condition, always + [spoken for one, true in chosen if true for spoken in sometimes[one]]


def _of(place: Place, above: frozenset[Hashable]) -> Iterator[Evaluated]:
    """Yield what the keywords of a schema speak of, but for those that ask this."""
    if not isinstance(place.contents, dict):
        return
    yield from _keywords(place)
    for keyword, where in _branches(place):
        branch = place.at(*where)
        condition = TRUE if keyword == "allOf" else place.reading.formula(branch)
        if keyword == "dependentSchemas":
            condition = both(kind(["object"]), Required(str(where[-1])))
        elif keyword == "else":
            condition = negated(place.below("if"))
        elif keyword == "then":
            condition = place.below("if")
        yield from _under(condition, _inner(branch, above))
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in place.schema:
            yield from _inner(place.reading.target(place, keyword), above)


def _inner(place: Place, above: frozenset[Hashable]) -> Iterator[Evaluated]:
    """Yield what a schema of the same value speaks of, its own ``unevaluated`` keywords included."""
    if (place.pointer, place.scope) in above or not isinstance(place.contents, dict):
        return
    if "unevaluatedProperties" in place.schema:
        yield Evaluated(TRUE, patterns=StringSet.all())
    if "unevaluatedItems" in place.schema:
        yield Evaluated(TRUE, items=TRUE)
    yield from _of(place, above | {(place.pointer, place.scope)})


def _keywords(place: Place) -> Iterator[Evaluated]:
    schema = place.schema
    matched = StringSet.all() if "additionalProperties" in schema else place.matched()
    yield Evaluated(TRUE, names=frozenset(place.mapping("properties")), patterns=matched)
    first = schema["items"] if isinstance(schema.get("items"), list) else schema.get("prefixItems", [])
    whole = "additionalItems" in schema if isinstance(schema.get("items"), list) else "items" in schema
    yield Evaluated(TRUE, first=len(first) if isinstance(first, list) else 0, items=TRUE if whole else FALSE)
    if "contains" in schema and place.specification.name == "draft2020-12":
        yield Evaluated(TRUE, items=place.below("contains"))


def _branches(place: Place) -> Iterator[tuple[str, tuple[str | int, ...]]]:
    schema = place.schema
    for keyword in ("allOf", "anyOf", "oneOf"):
        for i in range(len(place.listed(keyword, object)) if keyword in schema else 0):
            yield keyword, (keyword, i)
    for keyword in ("if", "then", "else"):
        if keyword in schema and (keyword == "if" or "if" in schema):
            yield keyword, (keyword,)
    for keyword in ("dependentSchemas", "dependencies"):
        for name, needed in place.mapping(keyword).items():
            if not isinstance(needed, list):
                yield "dependentSchemas", (keyword, name)


def _under(condition: Formula, found: Iterator[Evaluated]) -> Iterator[Evaluated]:
    for one in found:
        if (joint := both(condition, one.condition)) is not FALSE:
            yield Evaluated(joint, one.names, one.patterns, one.first, one.items)
