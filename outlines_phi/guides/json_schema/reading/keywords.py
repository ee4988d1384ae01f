"""The formulas of each keyword of JSON Schema, and their table."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any, final

from ....errors import UnsupportedError
from ..formats import format_strings
from ..formula import (
    FALSE,
    TRUE,
    TYPES,
    Formula,
    Names,
    both,
    either,
    kind,
    negated,
)
from ..number_set import NumberSet
from ..shapes import Counted, Some, among, arrays, equal_to, member, objects, required
from ..string_set import StringSet
from .place import FROM_6, FROM_7, FROM_2019, FROM_2020, PATTERN_DIALECT, TO_7, Keyword, Place

BRANCHES = 8
"""Conditions of one ``unevaluated`` keyword; each doubles its formula."""


@final
@dataclass(frozen=True)
class Evaluated:
    """The names and items that are evaluated where ``condition`` is true.

    Attributes
    ----------
    condition
        The formula that is asked of the value.
    names, patterns
        The names of members.
    first
        The number of first items evaluated.
    items
        The formula of the items that are evaluated wherever they stand.
    """

    condition: Formula
    names: frozenset[str] = frozenset()
    patterns: StringSet = StringSet.none()
    first: int = 0
    items: Formula = FALSE


def unevaluated_members(place: Place) -> Formula:
    """Return that all members that nothing else speaks of are as ``unevaluatedProperties`` says."""
    value, cases = place.below("unevaluatedProperties"), []
    for condition, found in _evaluated_cases(place, "unevaluatedProperties"):
        patterns = StringSet.none()
        for one in found:
            patterns |= one.patterns
        names = frozenset[str]().union(*(one.names for one in found))
        cases.append(both(condition, objects(every=(Some(names, ~patterns, value),))))
    return either(*cases)


def unevaluated_items(place: Place) -> Formula:
    """Return that all items that nothing else speaks of are as ``unevaluatedItems`` says."""
    value, cases = place.below("unevaluatedItems"), []
    for condition, found in _evaluated_cases(place, "unevaluatedItems"):
        first, others = max((one.first for one in found), default=0), (one.items for one in found)
        cases.append(both(condition, arrays(first=(TRUE,) * first, rest=either(value, *others))))
    return either(*cases)


def _evaluated_cases(place: Place, keyword: str) -> Iterator[tuple[Formula, list[Evaluated]]]:
    """Yield the evaluated names and items for each choice of the conditions that are true."""
    always, sometimes = list[Evaluated](), dict[Formula, list[Evaluated]]()
    for one in _spoken_of(place, frozenset([(place.pointer, place.scope)])):
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


def _spoken_of(place: Place, above: frozenset[Hashable]) -> Iterator[Evaluated]:
    """Yield the names and items that the keywords of a schema evaluate, but for those that ask this."""
    schema = place.schema
    matched = StringSet.all() if "additionalProperties" in schema else place.matched()
    yield Evaluated(TRUE, names=frozenset(place.mapping("properties")), patterns=matched)
    first = schema["items"] if isinstance(schema.get("items"), list) else schema.get("prefixItems", [])
    whole = "additionalItems" in schema if isinstance(schema.get("items"), list) else "items" in schema
    yield Evaluated(TRUE, first=len(first) if isinstance(first, list) else 0, items=TRUE if whole else FALSE)
    if "contains" in schema and place.specification.name == "draft2020-12":
        yield Evaluated(TRUE, items=place.below("contains"))
    for condition, branch in _branches(place):
        for one in _spoken_within(branch, above):
            if (joint := both(condition, one.condition)) is not FALSE:
                yield replace(one, condition=joint)


def _spoken_within(place: Place, above: frozenset[Hashable]) -> Iterator[Evaluated]:
    """Yield the names and items that a schema of the same value evaluates, its own ``unevaluated`` keywords included."""
    if (place.pointer, place.scope) in above or not isinstance(place.contents, dict):
        return
    if "unevaluatedProperties" in place.schema:
        yield Evaluated(TRUE, patterns=StringSet.all())
    if "unevaluatedItems" in place.schema:
        yield Evaluated(TRUE, items=TRUE)
    yield from _spoken_of(place, above | {(place.pointer, place.scope)})


def _branches(place: Place) -> Iterator[tuple[Formula, Place]]:
    """Yield the schemas within one that are asked of the same value, each with the condition under which it evaluates."""
    schema = place.schema
    for keyword in ("allOf", "anyOf", "oneOf"):
        for i in range(len(place.listed(keyword, object)) if keyword in schema else 0):
            yield TRUE if keyword == "allOf" else place.below(keyword, i), place.at(keyword, i)
    if "if" in schema:
        holds = place.below("if")
        for keyword, condition in (("if", holds), ("then", holds), ("else", negated(holds))):
            if keyword in schema:
                yield condition, place.at(keyword)
    for keyword in ("dependentSchemas", "dependencies"):
        for name, needed in place.mapping(keyword).items():
            if not isinstance(needed, list):
                yield both(kind(["object"]), required(name)), place.at(keyword, name)
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keyword in schema:
            yield TRUE, place.reading.target(place, keyword)


def _type(place: Place) -> Formula:
    names = place.value("type")
    names = [names] if isinstance(names, str) else place.listed("type", str)
    for name in names:
        if name not in TYPES:
            raise place.malformed("type", f"one of {', '.join(TYPES)}, or a list of these")
    return _of_types(tuple(names), place.reading.plain or place.specification.name == "draft-04")


@lru_cache(maxsize=256)
def _of_types(names: tuple[str, ...], plain: bool) -> Formula:
    """Return that a value is of one of these types, integers being written ``plain`` or in any way."""
    whole = kind(["plain number"]) if plain else both(kind(TYPES["integer"]), among(NumberSet.integers()))
    others = kind(found for name in names if name != "integer" for found in TYPES[name])
    return either(others, whole) if "integer" in names and "number" not in names else others


def _equal_to(place: Place, keyword: str, values: list[Any]) -> Formula:
    """Return that a value is one of these, its members in the order of the one that it is."""
    for number, part in enumerate(waiting := list(values)):
        if isinstance(part, dict):
            place.in_order(part, f"{keyword}/{number}")
        waiting += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return equal_to(values)


def _bound(place: Place, keyword: str, over: Callable[..., NumberSet]) -> Formula:
    # Draft 4 has a flag beside the bound.
    exclusive = place.schema.get(f"exclusive{keyword.capitalize()}") is True
    return among(over(place.number(keyword), exclusive=exclusive))


def _exclusive_bound(place: Place, keyword: str, over: Callable[..., NumberSet]) -> Formula:
    if isinstance(place.value(keyword), bool):
        return TRUE
    if place.specification.name == "draft-04":
        raise place.malformed(keyword, "true or false beside a bound (or name a later draft in $schema)")
    return among(over(place.number(keyword), exclusive=True))


def _multiple(place: Place) -> Formula:
    divisor = place.number("multipleOf")
    if divisor <= 0:
        raise place.malformed("multipleOf", "a number above 0")
    return among(NumberSet.multiples_of(divisor))


def _lengths(place: Place, keyword: str) -> Formula:
    count = place.count(keyword)
    return among(StringSet.of_lengths(count, None) if keyword == "minLength" else StringSet.of_lengths(0, count))


def _pattern(place: Place) -> Formula:
    return among(place.matching(place.text("pattern"), "pattern", dialect=place.contents.get(PATTERN_DIALECT, "ecma")))


def _format(place: Place) -> Formula:
    name = place.text("format")
    strings = format_strings(name)
    if strings is not None:
        if place.reading.formats is None:
            return TRUE
        place.reading.formats.append(place.pointer)
        return among(strings)
    place.leave_out(
        "format", f"{name} is not asked of it" if " checks" in name else f"the format {name!r} is not known"
    )
    return TRUE


def _items(place: Place) -> Formula:
    if not isinstance(place.value("items"), list):
        first = place.schema.get("prefixItems", [])
        return arrays(first=(TRUE,) * len(first if isinstance(first, list) else []), rest=place.below("items"))
    # Draft 2020-12 forbids a list, so it means what it did before.
    rest = place.below("additionalItems") if "additionalItems" in place.schema else TRUE
    return arrays(first=tuple(place.each("items")), rest=rest)


def _additional_items(place: Place) -> Formula:
    if not isinstance(place.schema.get("items"), list) and place.below("additionalItems") is not TRUE:
        place.leave_out("additionalItems", "it says nothing but beside a list of items")
    return TRUE


def _contains(place: Place) -> Formula:
    least, most = (place.count(name) if name in place.schema else None for name in ("minContains", "maxContains"))
    return arrays(counted=(Counted(0, place.below("contains"), 1 if least is None else least, most),))


def _required(place: Place) -> Formula:
    if isinstance(place.value("required"), bool):  # as in draft 3, inside of a property
        place.leave_out("required", "it is a list of names since draft 4, in the schema of the object")
        return TRUE
    names = place.listed("required", str)
    place.in_order(names)
    return both(*map(required, names))


def _properties(place: Place) -> Formula:
    place.in_order(place.mapping("properties"), "properties")
    others = _other_members(place, FALSE) if place.closed and _OPENING.isdisjoint(place.schema) else TRUE
    return both(*(member(name, value) for name, value in place.named("properties")), others)


def _other_members(place: Place, value: Formula) -> Formula:
    """Return that a value is asked of all members that neither ``properties`` nor ``patternProperties`` speaks of."""
    return objects(every=(Some(frozenset(place.mapping("properties")), ~place.matched(), value),))


_OPENING = frozenset(
    {
        *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"),
        *("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef"),
    }
)
"""Keywords beside ``properties`` that may speak of other members."""


def _dependencies(place: Place, keyword: str) -> Formula:
    """Return that the member of each name brings other names with it, or says what the whole object is."""
    found = []
    for name, needed in place.mapping(keyword).items():
        if isinstance(needed, list):
            names = place.at(keyword, name).listed(None, str)
            place.in_order([name, *names])
            found.append(either(negated(required(name)), both(*map(required, names))))
        else:
            place.in_order([name])
            found.append(either(_without(name), place.below(keyword, name)))
    return both(*found)


def _without(name: str) -> Formula:
    """Return that a value is no object with a member of this name."""
    return either(negated(kind(["object"])), negated(required(name)))


def _one_of(place: Place) -> Formula:
    each = place.each("oneOf")
    return either(
        *(both(one, *(negated(other) for j, other in enumerate(each) if j != i)) for i, one in enumerate(each))
    )


def _if(place: Place) -> Formula:
    condition = place.below("if")
    then, otherwise = (place.below(name) if name in place.schema else TRUE for name in ("then", "else"))
    return both(either(negated(condition), then), either(condition, otherwise))


KEYWORDS: Mapping[str, Keyword] = {
    "type": Keyword(_type, fate="enforced: `1.0` is an integer, but in draft 4"),
    "const": Keyword(
        lambda place: _equal_to(place, "const", [place.value("const")]),
        FROM_6,
        "enforced: a value, in each of its spellings",
    ),
    "enum": Keyword(
        lambda place: _equal_to(place, "enum", place.listed("enum", object)),
        fate="enforced: values, in each of their spellings",
    ),
    "minimum": Keyword(
        partial(_bound, keyword="minimum", over=NumberSet.at_least), fate="enforced: no exponents under a bound"
    ),
    "maximum": Keyword(
        partial(_bound, keyword="maximum", over=NumberSet.at_most), fate="enforced: no exponents under a bound"
    ),
    "exclusiveMinimum": Keyword(
        partial(_exclusive_bound, keyword="exclusiveMinimum", over=NumberSet.at_least),
        fate="enforced: a number, or (as in draft 4) `true` beside `minimum`",
    ),
    "exclusiveMaximum": Keyword(
        partial(_exclusive_bound, keyword="exclusiveMaximum", over=NumberSet.at_most),
        fate="enforced: a number, or (as in draft 4) `true` beside `maximum`",
    ),
    "multipleOf": Keyword(_multiple),
    "minLength": Keyword(partial(_lengths, keyword="minLength"), fate="enforced: in code points"),
    "maxLength": Keyword(partial(_lengths, keyword="maxLength"), fate="enforced: in code points"),
    "pattern": Keyword(_pattern, fate="enforced: a search, as ECMA-262 has it; back-references are refused"),
    "format": Keyword(_format, fate="enforced where it is known, in every draft; else named in a warning"),
    "items": Keyword(_items, fate="enforced: a list of schemas as well, which draft 2020-12 has not"),
    "additionalItems": Keyword(_additional_items, fate="enforced beside a list of `items`; elsewhere an annotation"),
    "prefixItems": Keyword(lambda place: arrays(first=tuple(place.each("prefixItems"))), FROM_2020),
    "contains": Keyword(_contains, FROM_6),
    "minContains": Keyword(None, FROM_2019, "enforced with `contains`"),
    "maxContains": Keyword(None, FROM_2019, "enforced with `contains`"),
    "minItems": Keyword(lambda place: arrays(least=place.count("minItems"))),
    "maxItems": Keyword(lambda place: arrays(most=place.count("maxItems"))),
    "uniqueItems": Keyword(
        lambda place: arrays(unique=f"{place.pointer}/uniqueItems") if place.flag("uniqueItems") else TRUE,
        fate="enforced; refused where it must be false (`not`, `oneOf`, `if`), and where items must hold arrays of its own kind",
    ),
    "unevaluatedItems": Keyword(unevaluated_items, FROM_2019),
    "properties": Keyword(_properties),
    "required": Keyword(_required),
    "patternProperties": Keyword(
        lambda place: both(
            *(
                objects(every=(Some(frozenset(), place.matching(pattern, "patternProperties", pattern), value),))
                for pattern, value in place.named("patternProperties")
            )
        )
    ),
    "additionalProperties": Keyword(lambda place: _other_members(place, place.below("additionalProperties"))),
    "propertyNames": Keyword(lambda place: Names(place.below("propertyNames")), FROM_6),
    "minProperties": Keyword(lambda place: objects(least=place.count("minProperties"))),
    "maxProperties": Keyword(lambda place: objects(most=place.count("maxProperties"))),
    "dependencies": Keyword(partial(_dependencies, keyword="dependencies"), TO_7),
    "dependentRequired": Keyword(partial(_dependencies, keyword="dependentRequired"), FROM_2019),
    "dependentSchemas": Keyword(partial(_dependencies, keyword="dependentSchemas"), FROM_2019),
    "unevaluatedProperties": Keyword(unevaluated_members, FROM_2019),
    "allOf": Keyword(lambda place: both(*place.each("allOf"))),
    "anyOf": Keyword(lambda place: either(*place.each("anyOf"))),
    "oneOf": Keyword(_one_of),
    "not": Keyword(lambda place: negated(place.below("not"))),
    "if": Keyword(_if, FROM_7),
    "then": Keyword(None, FROM_7, "enforced with `if`"),
    "else": Keyword(None, FROM_7, "enforced with `if`"),
    "$ref": Keyword(
        lambda place: place.reading.reference(place, "$ref"),
        fate="enforced within the document; other documents are refused; its siblings say nothing up to draft 7",
    ),
    "$recursiveRef": Keyword(
        lambda place: place.reading.reference(place, "$recursiveRef"),
        ("draft2019-09",),
        "enforced: the outermost part on the way that has the anchor is meant",
    ),
    "$dynamicRef": Keyword(
        lambda place: place.reading.reference(place, "$dynamicRef"),
        FROM_2020,
        "enforced: the outermost part on the way that has the anchor is meant",
    ),
}
"""All keywords that say something of a value. All others are annotations."""
