"""What each keyword of JSON Schema says, as formulas."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, final

from .evaluated import unevaluated_items, unevaluated_members
from .formats import format_strings
from .formula import (
    TRUE,
    Contains,
    Formula,
    Items,
    Length,
    Member,
    Members,
    Names,
    Numeric,
    Plain,
    Required,
    Size,
    Textual,
    Unique,
    both,
    either,
    equal_to,
    kind,
    negated,
)
from .numbers import NumberSet
from .place import Place
from .strings import StringSet
from .values import TYPES


@final
class Keyword(NamedTuple):
    """How a keyword is read.

    Attributes
    ----------
    says
        What makes its formula, of the place of the schema that it stands in; ``None`` where it says nothing of a value.
    note
        What users may want to know.
    """

    says: Callable[[Place], Formula] | None
    note: str = ""


def _type(place: Place) -> Formula:
    names = place.value("type")
    names = [names] if isinstance(names, str) else place.listed("type", str)
    for name in names:
        if name not in TYPES:
            raise place.malformed("type", f"one of {', '.join(TYPES)}, or a list of these")
    plain = kind(found for name in names if name != "integer" for found in TYPES[name])
    integers = Plain() if place.specification.name == "draft-04" else Numeric(NumberSet.integers())
    whole = both(kind(TYPES["integer"]), integers)
    return either(plain, whole) if "integer" in names and "number" not in names else plain


def _const(place: Place) -> Formula:
    return equal_to([place.value("const")])


def _enum(place: Place) -> Formula:
    return equal_to(place.listed("enum", object))


def _bound(place: Place, keyword: str, over: Callable[..., NumberSet]) -> Formula:
    # Draft 4 has a flag beside the bound.
    return Numeric(over(place.number(keyword), exclusive=place.schema.get(_exclusive(keyword)) is True))


def _exclusive_bound(place: Place, keyword: str, over: Callable[..., NumberSet]) -> Formula:
    if isinstance(place.value(keyword), bool):
        return TRUE
    return Numeric(over(place.number(keyword), exclusive=True))


def _exclusive(keyword: str) -> str:
    return f"exclusive{keyword.capitalize()}"


def _multiple(place: Place) -> Formula:
    divisor = place.number("multipleOf")
    if divisor <= 0:
        raise place.malformed("multipleOf", "a number above 0")
    return Numeric(NumberSet.multiples_of(divisor))


def _lengths(place: Place, keyword: str) -> Formula:
    count = place.count(keyword)
    return Textual(StringSet.of_lengths(count, None) if keyword == "minLength" else StringSet.of_lengths(0, count))


def _pattern(place: Place) -> Formula:
    return Textual(place.matching(place.text("pattern"), "pattern"))


def _format(place: Place) -> Formula:
    name = place.text("format")
    strings = format_strings(name)
    if strings is not None:
        return Textual(strings)
    place.leave_out("format", f"the format {name!r} is not known")
    return TRUE


def _items(place: Place) -> Formula:
    if not isinstance(place.value("items"), list):
        first = place.value("prefixItems") if _has_prefix(place) else []
        return Items((TRUE,) * len(first if isinstance(first, list) else []), place.below("items"))
    rest = place.below("additionalItems") if "additionalItems" in place.schema else TRUE
    return Items(tuple(place.each("items")), rest)


def _has_prefix(place: Place) -> bool:
    return "prefixItems" in place.schema and place.specification.name == "draft2020-12"


def _prefix_items(place: Place) -> Formula:
    if not _has_prefix(place):
        place.leave_out("prefixItems", f"it says nothing in {place.specification.name}")
        return TRUE
    return Items(tuple(place.each("prefixItems")), TRUE)


def _contains(place: Place) -> Formula:
    least = place.count("minContains") if "minContains" in place.schema else 1
    most = place.count("maxContains") if "maxContains" in place.schema else None
    return Contains(place.below("contains"), least, most)


def _unique(place: Place) -> Formula:
    return Unique(f"{place.pointer}/uniqueItems") if place.flag("uniqueItems") else TRUE


def _required(place: Place) -> Formula:
    if isinstance(place.value("required"), bool):  # as in draft 3, inside of a property
        place.leave_out("required", "it is a list of names since draft 4, in the schema of the object")
        return TRUE
    return both(*map(Required, place.listed("required", str)))


def _properties(place: Place) -> Formula:
    return both(*(Member(name, value) for name, value in place.named("properties")))


def _pattern_properties(place: Place) -> Formula:
    return both(
        *(
            Members(frozenset(), place.matching(pattern, "patternProperties", pattern), value)
            for pattern, value in place.named("patternProperties")
        )
    )


def _additional_properties(place: Place) -> Formula:
    names = frozenset(place.mapping("properties"))
    return Members(names, ~place.matched(), place.below("additionalProperties"))


def _property_names(place: Place) -> Formula:
    return Names(place.below("propertyNames"))


def _dependencies(place: Place, keyword: str) -> Formula:
    """Return that the member of each name brings other names with it, or says what the whole object is."""
    found = []
    for name, needed in place.mapping(keyword).items():
        if isinstance(needed, list):
            names = place.at(keyword, name).listed(None, str)
            found.append(either(negated(Required(name)), both(*map(Required, names))))
        else:
            found.append(either(_without(name), place.below(keyword, name)))
    return both(*found)


def _without(name: str) -> Formula:
    """Return that a value is no object with a member of this name."""
    return either(negated(kind(["object"])), negated(Required(name)))


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
    "type": Keyword(_type),
    "const": Keyword(_const, "a value, in each of its spellings"),
    "enum": Keyword(_enum, "values, in each of their spellings"),
    "minimum": Keyword(partial(_bound, keyword="minimum", over=NumberSet.at_least), "no exponents under a bound"),
    "maximum": Keyword(partial(_bound, keyword="maximum", over=NumberSet.at_most), "no exponents under a bound"),
    "exclusiveMinimum": Keyword(partial(_exclusive_bound, keyword="exclusiveMinimum", over=NumberSet.at_least)),
    "exclusiveMaximum": Keyword(partial(_exclusive_bound, keyword="exclusiveMaximum", over=NumberSet.at_most)),
    "multipleOf": Keyword(_multiple),
    "minLength": Keyword(partial(_lengths, keyword="minLength"), "in code points"),
    "maxLength": Keyword(partial(_lengths, keyword="maxLength"), "in code points"),
    "pattern": Keyword(_pattern, "a search, as ECMA-262 has it; no back-references"),
    "format": Keyword(_format, "asserted where it is known, else named in a warning"),
    "items": Keyword(_items),
    "additionalItems": Keyword(None, "read with `items`"),
    "prefixItems": Keyword(_prefix_items),
    "contains": Keyword(_contains),
    "minContains": Keyword(None, "read with `contains`"),
    "maxContains": Keyword(None, "read with `contains`"),
    "minItems": Keyword(lambda place: Length(place.count("minItems"), None)),
    "maxItems": Keyword(lambda place: Length(0, place.count("maxItems"))),
    "uniqueItems": Keyword(_unique, "not where it would have to be false: under not, oneOf and if"),
    "unevaluatedItems": Keyword(unevaluated_items),
    "properties": Keyword(_properties),
    "required": Keyword(_required),
    "patternProperties": Keyword(_pattern_properties),
    "additionalProperties": Keyword(_additional_properties),
    "propertyNames": Keyword(_property_names),
    "minProperties": Keyword(lambda place: Size(place.count("minProperties"), None)),
    "maxProperties": Keyword(lambda place: Size(0, place.count("maxProperties"))),
    "dependencies": Keyword(partial(_dependencies, keyword="dependencies"), "in every draft"),
    "dependentRequired": Keyword(partial(_dependencies, keyword="dependentRequired")),
    "dependentSchemas": Keyword(partial(_dependencies, keyword="dependentSchemas")),
    "unevaluatedProperties": Keyword(unevaluated_members),
    "allOf": Keyword(lambda place: both(*place.each("allOf"))),
    "anyOf": Keyword(lambda place: either(*place.each("anyOf"))),
    "oneOf": Keyword(_one_of),
    "not": Keyword(lambda place: negated(place.below("not"))),
    "if": Keyword(_if),
    "then": Keyword(None, "read with `if`"),
    "else": Keyword(None, "read with `if`"),
    "$ref": Keyword(lambda place: place.reference("$ref"), "within the document; siblings count from draft 2019-09 on"),
    "$dynamicRef": Keyword(lambda place: place.reference("$dynamicRef"), "where no part can replace what it names"),
    "$recursiveRef": Keyword(lambda place: place.reference("$recursiveRef"), "where no part can replace what it names"),
}
"""All keywords that say something of a value. All others are annotations."""


def says(place: Place) -> Iterator[Formula]:
    """Yield what each keyword of a schema says."""
    for keyword in place.schema:
        if keyword in KEYWORDS and (reading := KEYWORDS[keyword].says) is not None:
            yield reading(place)
