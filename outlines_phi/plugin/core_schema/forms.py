"""The parts of a JSON schema in the words that outlines_core reads right."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from referencing.exceptions import Unresolvable

from ...errors import GrammarError, UnsupportedError
from .document import token
from .parts import Nothing, Parts, Reader, kinds_of, matches
from .patterns import FORMATS, PatternError, literal, to_json_pattern
from .table import DIGITS, TYPES

_ANY: dict[str, Any] = {"anyOf": [{}]}  # in parentheses, which {} alone lacks
_MOST_VALUES = 256
_SHAPES = {
    str: "string",
    int: "number",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    type(None): "null",
}


class CoreSchema(NamedTuple):
    """A schema for outlines_core, as text, and the JSON pointers of the keywords that are left out."""

    text: str
    dropped: tuple[str, ...]


@lru_cache(maxsize=128)
def to_core(text: str) -> CoreSchema:
    """Return the schema that outlines_core is given for a JSON schema.

    Raises
    ------
    UnsupportedError
        A keyword that cannot be honoured or left out; the message has its JSON pointer.
    GrammarError
        A reference that leads nowhere.
    EmptyLanguageError
        A part that is required and that no value fits.
    """
    try:
        reader = Reader(json.loads(text))
        schema = _Writer(reader).read(reader.root, "", ())
    except Nothing as nothing:
        raise nothing.error from None
    except Unresolvable as error:
        raise UnsupportedError(
            f"Write what `$ref` refers to into the schema: {error} is not in it, and nothing is fetched."
        ) from None
    except (AttributeError, KeyError, TypeError) as error:  # Outlines checks the keywords of draft 7 alone
        raise GrammarError(
            f"Write each keyword of the JSON schema with a value of its kind: {type(error).__name__}: {error}. The schema is "
            f"{text:.200}."
        ) from error
    return CoreSchema(json.dumps(schema), tuple(reader.dropped))


def what_is_dropped(dropped: tuple[str, ...], shown: int = 8) -> str:
    """Return the text of the warning."""
    more = f" and {len(dropped) - shown} more" if len(dropped) > shown else ""
    return (
        "Check the values, for instance with constraint=, or write what they must be as enum, const or a regex: texts may violate "
        f"the JSON schema at {', '.join(dropped[:shown])}{more}. Outlines' front end cannot honour these keywords, and they are "
        "left out."
    )


class _Writer:
    """Writes what is handed over for each part of a schema."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def read(self, node: Any, pointer: str, via: tuple[str, ...]) -> dict[str, Any]:
        """Return what is handed over for a part of the schema."""
        return self._form(self._reader.flat(node, pointer, via))

    def _form(self, flat: Parts) -> dict[str, Any]:
        if "enum" in flat.keywords or "const" in flat.keywords:
            given = flat.keywords["enum"] if "enum" in flat.keywords else [flat.keywords["const"]]
            return self._values(flat, given)
        if flat.choices:
            return self._alternatives(flat)
        if flat.get("not") in ({}, True):
            raise self._reader.empty(flat.at["not"], "every value fits it")
        if flat.get("not", False) is not False:
            self._reader.drop(flat, "not")
        if "then" in flat.keywords or "else" in flat.keywords:
            self._reader.drop(flat, "if")
        kinds = kinds_of(flat.get("type", []))
        if not kinds:
            kinds = [kind for kind, spoken in TYPES.items() if flat.keywords.keys() & set(spoken.split())]
        if not kinds:
            return _ANY
        forms = []
        for kind in kinds:
            if kind == "integer" and "number" in kinds:
                continue
            try:
                forms.append(getattr(self, f"_{kind}")(flat))
            except Nothing as nothing:
                last = nothing
        if not forms:
            raise last
        return _one_of(forms)

    def _values(self, flat: Parts, given: list[Any]) -> dict[str, Any]:
        validators = [self._reader.validator.evolve(schema=node) for node in flat.nodes]
        values = [value for value in given if all(validator.is_valid(value) for validator in validators)]
        pointer = flat.at.get("enum", flat.at.get("const", flat.pointer))
        if not values:
            raise self._reader.empty(pointer, "none of the values fits its siblings")
        return {"enum": [_spelled(value, pointer) for value in values]}

    def _alternatives(self, flat: Parts) -> dict[str, Any]:
        (keyword, branches, pointer), *rest = flat.choices
        beside = Parts(flat.keywords, flat.at, tuple(rest), flat.nodes, flat.via, flat.pointer)
        alternatives, forms, last = [], [], self._reader.empty(pointer, "it has no alternative")
        for index, branch in enumerate(branches):
            try:
                flattened = self._reader.flat(branch, f"{pointer}/{index}", flat.via)
                alternatives.append(merged := self._reader.merged(beside, flattened))
                forms.append(self._form(merged))
            except Nothing as nothing:
                last = nothing
        if not forms:
            raise last
        if keyword == "oneOf" and not self._told_apart(flat, branches, pointer):
            self._reader.dropped[pointer] = None
        return _one_of(forms)

    def _told_apart(self, flat: Parts, branches: list[Any], pointer: str) -> bool:
        """Tell whether no value can fit two of the alternatives, by what they say of their type, values and required keys."""
        alternatives = []
        for branch in branches:
            try:
                alternatives.append(self._reader.flat(branch, pointer, ()))
            except Nothing:
                continue
        return all(
            self._apart(one, other, flat.get("type"))
            for index, one in enumerate(alternatives)
            for other in alternatives[index + 1 :]
        )

    def _apart(self, one: Parts, other: Parts, kind: Any = None, deep: int = 2) -> bool:
        kinds = [_shapes(part) for part in (one, other)]
        if kinds[0] and kinds[1] and not kinds[0] & kinds[1]:
            return True
        values = [part.get("enum", [part.get("const")] if "const" in part.keywords else None) for part in (one, other)]
        if values[0] is not None and values[1] is not None and not _common(*values):
            return True
        objects = all(part.get("type", kind) in ("object", ["object"]) for part in (one, other))
        names = [set(part.get("required", [])) & part.get("properties", {}).keys() for part in (one, other)]
        for name in (names[0] & names[1]) if objects and deep else ():
            try:
                below = [self._reader.flat(part.get("properties")[name], "", ()) for part in (one, other)]
            except Nothing:
                continue
            if self._apart(below[0], below[1], deep=deep - 1):
                return True
        return False

    def _object(self, flat: Parts) -> dict[str, Any]:
        declared, required = flat.get("properties", {}), list(flat.get("required", []))
        if "properties" not in flat.keywords and not required:
            return self._map(flat)
        self._check_keys(flat, declared, required)
        properties = {}
        for name in [*declared, *(name for name in required if name not in declared)]:
            pointer = f"{flat.at.get('properties', flat.pointer)}/{token(name)}"
            try:
                properties[name] = self.read(self._reader.value(flat, name, declared), pointer, flat.via)
            except Nothing:
                if name in required:
                    raise
        lowest, highest = flat.get("minProperties", 0), flat.get("maxProperties", math.inf)
        if len(properties) < lowest or highest < len(required):
            raise self._reader.empty(flat.pointer, "so many keys cannot be had")
        if lowest > len(required):
            self._reader.drop(flat, "minProperties")
        if highest < len(properties):
            self._reader.drop(flat, "maxProperties")
        return {
            "type": "object",
            "properties": {_inside(name): form for name, form in properties.items()},
            "required": [_inside(name) for name in required],
        }

    def _check_keys(self, flat: Parts, declared: Mapping[str, Any], required: list[str]) -> None:
        names = [*declared, *required]
        if any(matches(pattern, name) for pattern in flat.get("patternProperties", {}) for name in declared):
            self._reader.drop(flat, "patternProperties")
        if "propertyNames" in flat.keywords:
            fits = self._reader.validator.evolve(schema=flat.keywords["propertyNames"]).is_valid
            if not all(map(fits, names)):
                self._reader.drop(flat, "propertyNames")
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in flat.get(keyword, {}).items():
                if name in names and not (isinstance(needed, list) and set(needed) <= set(required)):
                    self._reader.drop(flat, keyword)

    def _map(self, flat: Parts) -> dict[str, Any]:
        """Return an object whose keys are free."""
        patterns, extra = flat.get("patternProperties", {}), flat.get("additionalProperties", True)
        self._reader.drop(flat, "propertyNames", "dependentRequired", "dependentSchemas", "dependencies")
        lowest, highest = flat.get("minProperties", 0), flat.get("maxProperties", math.inf)
        if flat.get("unevaluatedProperties", True) is not True:
            self._reader.drop(flat, "unevaluatedProperties")
        if patterns:
            self._reader.drop(flat, "patternProperties")
            if extra is False:
                extra = next(iter(patterns.values())) if len(patterns) == 1 else True
        try:
            value = self.read(extra, flat.at.get("additionalProperties", flat.pointer), flat.via) if highest else None
        except Nothing:
            value = None
        if value is None:
            if lowest:
                raise self._reader.empty(flat.pointer, "so many keys cannot be had")
            return {"type": "object", "maxProperties": 0}
        if lowest > 1:
            self._reader.drop(flat, "minProperties")
        self._reader.drop(flat, "maxProperties")
        values = {} if value == _ANY else {"additionalProperties": value}
        return {"type": "object", **values, "minProperties": min(lowest, 1)}

    def _array(self, flat: Parts) -> dict[str, Any]:
        items, rest, prefix = flat.get("items", True), flat.get("items", True), flat.get("prefixItems", [])
        where = flat.at.get("items", flat.pointer)
        if isinstance(items, list):
            prefix, rest = items, flat.get("additionalItems", True)
        least, most = int(flat.get("minItems", 0)), flat.get("maxItems", math.inf)
        self._reader.drop(flat, "contains")
        if most > 1 and flat.get("uniqueItems"):
            self._reader.drop(flat, "uniqueItems")
        if flat.get("unevaluatedItems", True) is not True and not flat.keywords.keys() & {"items", "prefixItems"}:
            self._reader.drop(flat, "unevaluatedItems")
        if least > most:
            raise self._reader.empty(flat.pointer, "minItems is more than maxItems")
        if prefix:
            wanted = [*prefix, *[rest] * (least - len(prefix))]
            listed = [
                self.read(item, f"{where}/{place}", flat.via)
                for place, item in enumerate(wanted[: min(int(min(most, len(wanted))), len(wanted))])
            ]
            return {"prefixItems": listed} if listed else {"type": "array", "maxItems": 0}
        try:
            form = self.read(rest, where, flat.via) if most else None
        except Nothing:
            if least:
                raise
            form = None
        if form is None:
            return {"type": "array", "maxItems": 0}
        bounds = {"minItems": least} if most == math.inf else {"minItems": least, "maxItems": int(most)}
        return {"type": "array", **({} if form == _ANY else {"items": form}), **bounds}

    def _string(self, flat: Parts) -> dict[str, Any]:
        least, most = int(flat.get("minLength", 0)), flat.get("maxLength", math.inf)
        pattern, known = flat.get("pattern"), FORMATS.get(flat.get("format"))
        if least > most:
            raise self._reader.empty(flat.pointer, "minLength is more than maxLength")
        if "format" in flat.keywords and (known is None or pattern is not None or least > 1):
            self._reader.drop(flat, "format")
        if pattern is None and known is not None and least <= 1:
            self._reader.drop(flat, "maxLength")
            return {"type": "string", "pattern": f"(?:{known})"}
        implied = pattern is not None and most == math.inf and (least == 0 or (least == 1 and not matches(pattern, "")))
        if implied:
            try:
                return {"type": "string", "pattern": to_json_pattern(pattern)}
            except PatternError as error:
                raise UnsupportedError(
                    f"Write the pattern at {flat.at['pattern']} differently: {error}. Classes, groups, alternatives, repeats and "
                    "anchors at the ends are read."
                ) from None
        self._reader.drop(flat, "pattern")
        if not least and most == math.inf:
            return {"type": "string"}
        return {"type": "string", "minLength": least, **({} if most == math.inf else {"maxLength": int(most)})}

    def _number(self, flat: Parts) -> dict[str, Any]:
        self._reader.drop(flat, *TYPES["number"].split())
        return {"type": "number", **{keyword: flat.keywords[keyword] for keyword in DIGITS if keyword in flat.keywords}}

    def _integer(self, flat: Parts) -> dict[str, Any]:
        low = max(flat.get("minimum", -math.inf), flat.get("exclusiveMinimum", -math.inf))
        high = min(flat.get("maximum", math.inf), flat.get("exclusiveMaximum", math.inf))
        if high - low < _MOST_VALUES:
            return self._values(flat, list(range(math.ceil(low), math.floor(high) + 1)))
        if flat.get("multipleOf") != 1:
            self._reader.drop(flat, "multipleOf")
        self._reader.drop(flat, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        return {
            "type": "integer",
            **{keyword: flat.keywords[keyword] for keyword in DIGITS if keyword in flat.keywords},
        }

    def _boolean(self, flat: Parts) -> dict[str, Any]:
        return {"type": "boolean"}

    def _null(self, flat: Parts) -> dict[str, Any]:
        return {"type": "null"}


def _one_of(forms: list[dict[str, Any]]) -> dict[str, Any]:
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _shapes(part: Parts) -> set[str]:
    """Return the types that a value can have, by what is said of it; none where nothing is."""
    if "type" in part.keywords:
        return {"number" if kind == "integer" else kind for kind in kinds_of(part.keywords["type"])}
    values = part.get("enum", [part.keywords["const"]] if "const" in part.keywords else [])
    return {_SHAPES[type(value)] for value in values}


def _common(some: list[Any], others: list[Any]) -> bool:
    keys = [{json.dumps(value, sort_keys=True) for value in values} for values in (some, others)]
    numbers = [{value for value in values if isinstance(value, (int, float))} for values in (some, others)]
    # Objects and lists may hold equal numbers that are written differently; they are not compared.
    return bool(keys[0] & keys[1] or numbers[0] & numbers[1]) or any(
        isinstance(v, (dict, list)) for v in (*some, *others)
    )


def _inside(name: str) -> str:
    """Return a key as it stands between quotation marks, which outlines_core makes a regular expression of."""
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _spelled(value: Any, pointer: str) -> Any:
    match value:
        case dict():
            # outlines_core puts the keys of a value into the regular expression as they are.
            return {literal(key): _spelled(item, pointer) for key, item in value.items()}
        case list():
            return [_spelled(item, pointer) for item in value]
        case bool():
            return value
        case int() | float() if float(f"{value:.15g}") != value and not (
            isinstance(value, int) and -(2**63) <= value < 2**64
        ):
            raise UnsupportedError(
                f"Write the number {value!r:.40} at {pointer} with 15 digits at most, or the format as a regex. Outlines' front "
                "end rounds it."
            )
    return value
