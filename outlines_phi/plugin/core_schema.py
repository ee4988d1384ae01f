"""A JSON schema as one that outlines_core reads right, and what is left out of it.

``outlines_core.json_schema.build_regex_from_schema`` looks at one keyword of a schema and at what it knows beside it, and drops
the rest without a word. Here a schema is written anew before it is handed over: references are put in, ``allOf`` is merged,
``anyOf`` and ``oneOf`` are multiplied out over their siblings, values are filtered by their siblings. What then says more than
outlines_core can honour is left out and named, or refused. So the language never has a text that the schema forbids, but for what
is named. It may have fewer: objects have no other keys than the declared ones, in their order.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from ..errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError
from .core_patterns import FORMATS, PatternError, to_json_pattern

KEYWORDS = {
    "type": "right; without it the types that the other keywords speak of, any JSON if they speak of none",
    "enum": "right: the values that fit their siblings, refused where outlines_core misspells a number",
    "const": "as `enum`",
    "properties": "right: these keys in this order and no others, although the standard allows others",
    "required": "right; a key that is not declared is written after those that are",
    "additionalProperties": "right; beside declared keys there are no others",
    "patternProperties": "warned of where keys are free, and where it matches a declared key",
    "propertyNames": "warned of where keys are free, and where a declared key does not fit",
    "minProperties": "right up to 1 and where the required keys are as many; else warned of",
    "maxProperties": "right if 0 and where the declared keys are no more; else warned of",
    "dependentRequired": "warned of where it speaks of a declared key, or keys are free",
    "dependentSchemas": "as `dependentRequired`",
    "dependencies": "as `dependentRequired`",
    "unevaluatedProperties": "right beside declared keys; else warned of",
    "items": "right",
    "prefixItems": "right: so many items, and more only where `minItems` asks for them",
    "additionalItems": "right, beside a list of `items`",
    "minItems": "right",
    "maxItems": "right",
    "uniqueItems": "warned of where there may be two items",
    "contains": "warned of",
    "minContains": "warned of with `contains`",
    "maxContains": "warned of with `contains`",
    "unevaluatedItems": "right beside `items` or `prefixItems`; else warned of",
    "minLength": "right; 1 gives way to a pattern that says as much",
    "maxLength": "right; warned of beside a known `format`",
    "pattern": "right: the whole string, without look-around; warned of beside a length",
    "format": f"right: {', '.join(FORMATS)}; warned of: all others, and beside a length from 2 or a pattern",
    "minimum": "right for an integer with both bounds, at most 256 values apart; else warned of",
    "maximum": "as `minimum`",
    "exclusiveMinimum": "as `minimum`",
    "exclusiveMaximum": "as `minimum`",
    "multipleOf": "as `minimum`",
    "minDigits": "outlines_core's own, as it reads it; so `maxDigits`, `minDigitsInteger` and `maxDigitsInteger`",
    "minDigitsFraction": "refused: it allows `1.`; so `maxDigitsFraction`, `minDigitsExponent` and `maxDigitsExponent`",
    "allOf": "right: merged; refused where two parts list items by place",
    "anyOf": "right, with its siblings",
    "oneOf": "right where types, values or a required key tell the alternatives apart; else read as `anyOf` and warned of",
    "$ref": "right, inside the document; one that leads to itself is followed 4 levels deep; others are refused",
    "$dynamicRef": "refused; so `$recursiveRef`",
    "not": "warned of",
    "if": "warned of with `then` or `else`",
}
"""What becomes of each keyword. All others are annotations, which allow and forbid nothing."""

_DIGITS = ("minDigits", "maxDigits", "minDigitsInteger", "maxDigitsInteger")
_REFUSED = {
    f"{end}Digits{part}": "allows `1.`, which is no JSON" for end in ("min", "max") for part in ("Fraction", "Exponent")
}
_REFUSED |= dict.fromkeys(("$dynamicRef", "$recursiveRef"), "depends on who refers to it")

TYPES = {
    "object": "properties required additionalProperties patternProperties propertyNames minProperties maxProperties "
    "dependentRequired dependentSchemas dependencies unevaluatedProperties",
    "array": "items prefixItems additionalItems minItems maxItems uniqueItems contains unevaluatedItems",
    "string": "minLength maxLength pattern format",
    "number": "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
    "integer": "",
    "boolean": "",
    "null": "",
}
"""The types, and the keywords that speak of each."""

_MEANT = {*KEYWORDS, *_DIGITS, *_REFUSED, "then", "else"}
_ANY: dict[str, Any] = {"anyOf": [{}]}  # in parentheses, which {} alone lacks
_DEPTH = 4
_MOST_VALUES = 256
_MOST_PARTS = 20_000


class CoreSchema(NamedTuple):
    """A schema for outlines_core, as text, and the JSON pointers of the keywords that are left out."""

    text: str
    dropped: tuple[str, ...]


class _Nothing(Exception):
    """A part that no value fits; carries the error of a schema that needs it."""

    def __init__(self, error: OutlinesPhiError) -> None:
        super().__init__(error)
        self.error = error


@dataclass
class _Parts:
    """The keywords that hold for a value, wherever they are written.

    Attributes
    ----------
    keywords, at
        The keywords, and their JSON pointers.
    choices
        The keyword, alternatives and JSON pointer of each ``anyOf`` and ``oneOf``.
    nodes
        The schemas that a value must fit.
    via
        The references that lead here.
    """

    keywords: dict[str, Any] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    choices: tuple[tuple[str, list[Any], str], ...] = ()
    nodes: tuple[Any, ...] = ()
    via: tuple[str, ...] = ()
    pointer: str = ""

    def get(self, keyword: str, default: Any = None) -> Any:
        return self.keywords.get(keyword, default)


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
    reader = _Reader(json.loads(text))
    try:
        schema = reader.read(reader.root, "", ())
    except _Nothing as nothing:
        raise nothing.error from None
    except Unresolvable as error:
        raise UnsupportedError(
            f"Write what `$ref` refers to into the schema: {error} is not in it, and nothing is fetched."
        ) from None
    return CoreSchema(json.dumps(schema), tuple(reader.dropped))


def what_is_dropped(dropped: tuple[str, ...], shown: int = 8) -> str:
    """Return the text of the warning."""
    more = f" and {len(dropped) - shown} more" if len(dropped) > shown else ""
    return (
        "Check the values, for instance with constraint=, or write what they must be as enum, const or a regex: texts may violate "
        f"the JSON schema at {', '.join(dropped[:shown])}{more}. Outlines' front end cannot honour these keywords, and they are "
        "left out."
    )


class _Reader:
    def __init__(self, root: Any) -> None:
        self.root = root
        self.dropped: dict[str, None] = {}
        self._pointers = {id(node): pointer for pointer, node in _nodes(root, "")}
        draft = validator_for(root, default=Draft202012Validator)
        self._validator = draft(root)
        # Up to draft 7 whatever stands beside $ref is ignored.
        self._alone = "prefixItems" not in draft.VALIDATORS and "$recursiveRef" not in draft.VALIDATORS
        self._recursive = _recursive(root)
        self._count = 0

    def read(self, node: Any, pointer: str, via: tuple[str, ...]) -> dict[str, Any]:
        """Return what is handed over for a part of the schema."""
        return self._form(self._flat(node, pointer, via))

    def _flat(self, node: Any, pointer: str, via: tuple[str, ...]) -> _Parts:
        """Return the keywords of ``node``, of what it refers to, and of all parts of its ``allOf``."""
        self._count += 1
        pointer = self._pointers.get(id(node), pointer)
        if self._count > _MOST_PARTS:
            raise UnsupportedError(
                f"Write a smaller schema: with every `$ref` put in it has more than {_MOST_PARTS:,} parts, at {pointer or '/'}. "
                "A part that refers to itself in several places grows with every level."
            )
        if node is True:
            return _Parts(via=via, pointer=pointer)
        if node is False:
            raise self._empty(pointer, "`false` fits no value")
        if not isinstance(node, dict):
            raise GrammarError(f"Write a JSON schema at {pointer or '/'}: {node!r:.40} is none.")
        own = {keyword: value for keyword, value in node.items() if keyword in _MEANT}
        if self._alone and "$ref" in own:
            own = {"$ref": own["$ref"]}
        for keyword in own.keys() & _REFUSED.keys():
            raise UnsupportedError(
                f"Leave `{keyword}` out, or write the format as a regex: at {pointer}/{keyword} it {_REFUSED[keyword]}."
            )
        reference, parts = own.pop("$ref", None), own.pop("allOf", [])
        choices = [(keyword, own.pop(keyword), f"{pointer}/{keyword}") for keyword in ("anyOf", "oneOf") if keyword in own]
        flat = _Parts(own, {keyword: f"{pointer}/{keyword}" for keyword in own}, tuple(choices), (node,), via, pointer)
        if reference is not None:
            target, place = self._target(reference, f"{pointer}/$ref")
            flat = self._merged(flat, self._flat(target, place, self._followed(place, via, pointer)))
        for index, part in enumerate(parts):
            flat = self._merged(flat, self._flat(part, f"{pointer}/allOf/{index}", flat.via))
        return flat

    def _target(self, reference: str, pointer: str) -> tuple[Any, str]:
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        if base not in ("", self.root.get("$id", self.root.get("id", ""))) or (fragment and fragment[0] != "/"):
            raise UnsupportedError(
                f"Write what it refers to into the schema, and refer to it by a JSON pointer: the reference {reference!r} at "
                f"{pointer} is not one. Nothing is fetched."
            )
        target = _found(self.root, fragment)
        if target is None:
            raise GrammarError(f"Write what it refers to into the schema: the reference {reference!r} at {pointer} leads nowhere.")
        return target[0], fragment

    def _followed(self, place: str, via: tuple[str, ...], pointer: str) -> tuple[str, ...]:
        if place in self._recursive and sum(known in self._recursive for known in via) >= _DEPTH:
            raise _Nothing(
                UnsupportedError(
                    f"Write {pointer}/$ref as an optional key, an item or an alternative: it leads to itself without end. Or write "
                    "the format as a grammar, outlines.types.CFG."
                )
            )
        return (*via, place)

    def _empty(self, pointer: str, why: str) -> _Nothing:
        return _Nothing(
            EmptyLanguageError(f"Change the JSON schema at {pointer or '/'}: {why}. So no text is in the format.")
        )

    def _merged(self, left: _Parts, right: _Parts) -> _Parts:
        """Return the keywords that hold where those of both parts do."""
        keywords, at = dict(left.keywords), dict(left.at)
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if right.get(keyword, True) is not True:
                self._drop(right, keyword)  # it does not see its neighbours
        both = [{**part.get("properties", {})} for part in (left, right)]
        if any(both):
            names = [*both[0], *(name for name in both[1] if name not in both[0])]
            keywords["properties"] = {
                name: _both(self._value(left, name, both[0]), self._value(right, name, both[1])) for name in names
            }
            at.setdefault("properties", right.at.get("properties", ""))
        for keyword, value in right.keywords.items():
            if keyword == "properties":
                continue
            if keyword in keywords and keywords[keyword] != value:
                keywords[keyword] = self._conjunction(keyword, left, right)
            else:
                keywords[keyword] = value
                at.setdefault(keyword, right.at[keyword])
        return _Parts(
            keywords, at, left.choices + right.choices, left.nodes + right.nodes, max(left.via, right.via, key=len), left.pointer
        )

    def _value(self, part: _Parts, name: str, declared: Mapping[str, Any]) -> Any:
        """Return the schema that a part has for a key, declared or not."""
        if name in declared:
            return declared[name]
        found = [schema for pattern, schema in part.get("patternProperties", {}).items() if _matches(pattern, name)]
        if len(found) > 1:
            return {"allOf": found}
        return found[0] if found else part.get("additionalProperties", True)

    def _conjunction(self, keyword: str, left: _Parts, right: _Parts) -> Any:
        one, other = left.keywords[keyword], right.keywords[keyword]
        match keyword:
            case "type":
                kinds = [kind for kind in _kinds(one) if kind in _kinds(other)]
                for these, those in ((_kinds(one), _kinds(other)), (_kinds(other), _kinds(one))):
                    if "integer" in these and "number" in those and "integer" not in kinds:
                        kinds.append("integer")
                if not kinds:
                    raise self._empty(right.at[keyword], f"no value has the types of {left.at[keyword]}, too")
                return kinds
            case "required":
                return [*one, *(name for name in other if name not in one)]
            case "minLength" | "minItems" | "minProperties" | "minimum" | "exclusiveMinimum":
                return max(one, other)
            case "maxLength" | "maxItems" | "maxProperties" | "maximum" | "exclusiveMaximum":
                return min(one, other)
            case "uniqueItems":
                return True
            case "enum" | "const":
                return one  # all schemas of the parts are asked about the values
            case "additionalProperties":
                return _both(one, other)
            case "items" if not isinstance(one, list) and not isinstance(other, list) and not (
                "prefixItems" in left.keywords or "prefixItems" in right.keywords
            ):
                return _both(one, other)
            case "patternProperties":
                return {key: _both(one.get(key, True), other.get(key, True)) for key in {**one, **other}}
            case "items" | "prefixItems" | "additionalItems":
                raise UnsupportedError(
                    f"Write the items in one place: {right.at[keyword]} and {left.at[keyword]} both list them by place. Outlines' "
                    "front end cannot honour both."
                )
        self._drop(right, keyword)
        return one

    def _drop(self, flat: _Parts, *keywords: str) -> None:
        for keyword in keywords:
            if keyword in flat.keywords:
                self.dropped[flat.at[keyword]] = None

    def _form(self, flat: _Parts) -> dict[str, Any]:
        if "enum" in flat.keywords or "const" in flat.keywords:
            given = flat.keywords["enum"] if "enum" in flat.keywords else [flat.keywords["const"]]
            return self._values(flat, given)
        if flat.choices:
            return self._alternatives(flat)
        if flat.get("not", False) is not False:
            self._drop(flat, "not")
        if "then" in flat.keywords or "else" in flat.keywords:
            self._drop(flat, "if")
        kinds = _kinds(flat.get("type", []))
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
            except _Nothing as nothing:
                last = nothing
        if not forms:
            raise last
        return _one_of(forms)

    def _values(self, flat: _Parts, given: list[Any]) -> dict[str, Any]:
        validators = [self._validator.evolve(schema=node) for node in flat.nodes]
        values = [value for value in given if all(validator.is_valid(value) for validator in validators)]
        pointer = flat.at.get("enum", flat.at.get("const", flat.pointer))
        if not values:
            raise self._empty(pointer, "none of the values fits its siblings")
        return {"enum": [_spelled(value, pointer) for value in values]}

    def _alternatives(self, flat: _Parts) -> dict[str, Any]:
        (keyword, branches, pointer), *rest = flat.choices
        beside = _Parts(flat.keywords, flat.at, tuple(rest), flat.nodes, flat.via, flat.pointer)
        alternatives, forms, last = [], [], self._empty(pointer, "it has no alternative")
        for index, branch in enumerate(branches):
            try:
                flattened = self._flat(branch, f"{pointer}/{index}", flat.via)
                alternatives.append(merged := self._merged(beside, flattened))
                forms.append(self._form(merged))
            except _Nothing as nothing:
                last = nothing
        if not forms:
            raise last
        if keyword == "oneOf" and not self._told_apart(flat, branches, pointer):
            self.dropped[pointer] = None
        return _one_of(forms)

    def _told_apart(self, flat: _Parts, branches: list[Any], pointer: str) -> bool:
        """Tell whether no value can fit two of the alternatives, by what they say of their type, values and required keys."""
        alternatives = []
        for branch in branches:
            try:
                alternatives.append(self._flat(branch, pointer, ()))
            except _Nothing:
                continue
        return all(
            self._apart(one, other, flat.get("type"))
            for index, one in enumerate(alternatives)
            for other in alternatives[index + 1 :]
        )

    def _apart(self, one: _Parts, other: _Parts, kind: Any = None, deep: int = 2) -> bool:
        if one.get("type") and other.get("type"):
            kinds = [{"number" if kind == "integer" else kind for kind in _kinds(part.get("type"))} for part in (one, other)]
            if not kinds[0] & kinds[1]:
                return True
        values = [part.get("enum", [part.get("const")] if "const" in part.keywords else None) for part in (one, other)]
        if values[0] is not None and values[1] is not None and not _common(*values):
            return True
        objects = all(part.get("type", kind) in ("object", ["object"]) for part in (one, other))
        names = [set(part.get("required", [])) & part.get("properties", {}).keys() for part in (one, other)]
        for name in (names[0] & names[1]) if objects and deep else ():
            try:
                below = [self._flat(part.get("properties")[name], "", ()) for part in (one, other)]
            except _Nothing:
                continue
            if self._apart(below[0], below[1], deep=deep - 1):
                return True
        return False

    def _object(self, flat: _Parts) -> dict[str, Any]:
        declared, required = flat.get("properties", {}), list(flat.get("required", []))
        if "properties" not in flat.keywords and not required:
            return self._map(flat)
        self._check_keys(flat, declared, required)
        properties = {}
        for name in [*declared, *(name for name in required if name not in declared)]:
            pointer = f"{flat.at.get('properties', flat.pointer)}/{_token(name)}"
            try:
                properties[name] = self.read(self._value(flat, name, declared), pointer, flat.via)
            except _Nothing:
                if name in required:
                    raise
        lowest, highest = flat.get("minProperties", 0), flat.get("maxProperties", math.inf)
        if len(properties) < lowest or highest < len(required):
            raise self._empty(flat.pointer, "so many keys cannot be had")
        if lowest > len(required):
            self._drop(flat, "minProperties")
        if highest < len(properties):
            self._drop(flat, "maxProperties")
        return {
            "type": "object",
            "properties": {_inside(name): form for name, form in properties.items()},
            "required": [_inside(name) for name in required],
        }

    def _check_keys(self, flat: _Parts, declared: Mapping[str, Any], required: list[str]) -> None:
        names = [*declared, *required]
        if any(_matches(pattern, name) for pattern in flat.get("patternProperties", {}) for name in declared):
            self._drop(flat, "patternProperties")
        if "propertyNames" in flat.keywords:
            fits = self._validator.evolve(schema=flat.keywords["propertyNames"]).is_valid
            if not all(map(fits, names)):
                self._drop(flat, "propertyNames")
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needed in flat.get(keyword, {}).items():
                if name in names and not (isinstance(needed, list) and set(needed) <= set(required)):
                    self._drop(flat, keyword)

    def _map(self, flat: _Parts) -> dict[str, Any]:
        """Return an object whose keys are free."""
        patterns, extra = flat.get("patternProperties", {}), flat.get("additionalProperties", True)
        self._drop(flat, "propertyNames", "dependentRequired", "dependentSchemas", "dependencies")
        lowest, highest = flat.get("minProperties", 0), flat.get("maxProperties", math.inf)
        if flat.get("unevaluatedProperties", True) is not True:
            self._drop(flat, "unevaluatedProperties")
        if patterns:
            self._drop(flat, "patternProperties")
            if extra is False:
                extra = next(iter(patterns.values())) if len(patterns) == 1 else True
        try:
            value = self.read(extra, flat.at.get("additionalProperties", flat.pointer), flat.via) if highest else None
        except _Nothing:
            value = None
        if value is None:
            if lowest:
                raise self._empty(flat.pointer, "so many keys cannot be had")
            return {"type": "object", "maxProperties": 0}
        if lowest > 1:
            self._drop(flat, "minProperties")
        self._drop(flat, "maxProperties")
        return {"type": "object", "additionalProperties": value, "minProperties": min(lowest, 1)}

    def _array(self, flat: _Parts) -> dict[str, Any]:
        items, rest, prefix = flat.get("items", True), flat.get("items", True), flat.get("prefixItems", [])
        where = flat.at.get("items", flat.pointer)
        if isinstance(items, list):
            prefix, rest = items, flat.get("additionalItems", True)
        least, most = int(flat.get("minItems", 0)), flat.get("maxItems", math.inf)
        self._drop(flat, "contains")
        if most > 1 and flat.get("uniqueItems"):
            self._drop(flat, "uniqueItems")
        if flat.get("unevaluatedItems", True) is not True and not flat.keywords.keys() & {"items", "prefixItems"}:
            self._drop(flat, "unevaluatedItems")
        if least > most:
            raise self._empty(flat.pointer, "minItems is more than maxItems")
        if prefix:
            wanted = [*prefix, *[rest] * (least - len(prefix))]
            listed = [
                self.read(item, f"{where}/{place}", flat.via)
                for place, item in enumerate(wanted[: min(int(min(most, len(wanted))), len(wanted))])
            ]
            return {"prefixItems": listed} if listed else {"type": "array", "maxItems": 0}
        try:
            form = self.read(rest, where, flat.via) if most else None
        except _Nothing:
            if least:
                raise
            form = None
        if form is None:
            return {"type": "array", "maxItems": 0}
        bounds = {"minItems": least} if most == math.inf else {"minItems": least, "maxItems": int(most)}
        return {"type": "array", **({} if form == _ANY else {"items": form}), **bounds}

    def _string(self, flat: _Parts) -> dict[str, Any]:
        least, most = int(flat.get("minLength", 0)), flat.get("maxLength", math.inf)
        pattern, known = flat.get("pattern"), FORMATS.get(flat.get("format"))
        if least > most:
            raise self._empty(flat.pointer, "minLength is more than maxLength")
        if "format" in flat.keywords and (known is None or pattern is not None or least > 1):
            self._drop(flat, "format")
        if pattern is None and known is not None and least <= 1:
            self._drop(flat, "maxLength")
            return {"type": "string", "pattern": f"(?:{known})"}
        implied = pattern is not None and most == math.inf and (least == 0 or (least == 1 and not _matches(pattern, "")))
        if implied:
            try:
                return {"type": "string", "pattern": to_json_pattern(pattern)}
            except PatternError as error:
                raise UnsupportedError(
                    f"Write the pattern at {flat.at['pattern']} differently: {error}. Classes, groups, alternatives, repeats and "
                    "anchors at the ends are read."
                ) from None
        self._drop(flat, "pattern")
        if not least and most == math.inf:
            return {"type": "string"}
        return {"type": "string", "minLength": least, **({} if most == math.inf else {"maxLength": int(most)})}

    def _number(self, flat: _Parts) -> dict[str, Any]:
        self._drop(flat, *TYPES["number"].split())
        return {"type": "number", **{keyword: flat.keywords[keyword] for keyword in _DIGITS if keyword in flat.keywords}}

    def _integer(self, flat: _Parts) -> dict[str, Any]:
        low = max(flat.get("minimum", -math.inf), flat.get("exclusiveMinimum", -math.inf))
        high = min(flat.get("maximum", math.inf), flat.get("exclusiveMaximum", math.inf))
        if high - low < _MOST_VALUES:
            return self._values(flat, list(range(math.ceil(low), math.floor(high) + 1)))
        if flat.get("multipleOf") != 1:
            self._drop(flat, "multipleOf")
        self._drop(flat, "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        return {"type": "integer", **{keyword: flat.keywords[keyword] for keyword in _DIGITS if keyword in flat.keywords}}

    def _boolean(self, flat: _Parts) -> dict[str, Any]:
        return {"type": "boolean"}

    def _null(self, flat: _Parts) -> dict[str, Any]:
        return {"type": "null"}


def _one_of(forms: list[dict[str, Any]]) -> dict[str, Any]:
    return forms[0] if len(forms) == 1 else {"anyOf": forms}


def _both(one: Any, other: Any) -> Any:
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}


def _kinds(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _common(some: list[Any], others: list[Any]) -> bool:
    keys = [{json.dumps(value, sort_keys=True) for value in values} for values in (some, others)]
    numbers = [{value for value in values if isinstance(value, (int, float))} for values in (some, others)]
    # Objects and lists may hold equal numbers that are written differently; they are not compared.
    return bool(keys[0] & keys[1] or numbers[0] & numbers[1]) or any(isinstance(v, (dict, list)) for v in (*some, *others))


def _matches(pattern: str, text: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True  # nobody knows: what depends on it is named


def _token(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _inside(name: str) -> str:
    """Return a key as it stands between quotation marks; outlines_core does not escape it."""
    return json.dumps(name, ensure_ascii=False)[1:-1]


def _spelled(value: Any, pointer: str) -> Any:
    match value:
        case dict():
            return {_inside(key): _spelled(item, pointer) for key, item in value.items()}
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


def _nodes(node: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, (dict, list)):
        yield pointer, node
        for key, part in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _nodes(part, f"{pointer}/{_token(str(key))}")


def _found(root: Any, pointer: str) -> tuple[Any] | None:
    node = root
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and token.isdigit() and int(token) < len(node):
            node = node[int(token)]
        elif isinstance(node, dict) and token in node:
            node = node[token]
        else:
            return None
    return (node,)


def _recursive(root: Any) -> set[str]:
    """Return the places that refer to themselves, at once or by others."""
    below: dict[str, set[str]] = {}
    waiting = _references(root)
    while waiting:
        place = waiting.pop()
        if place not in below:
            found = _found(root, place)
            below[place] = set() if found is None else _references(found[0])
            waiting |= below[place] - below.keys()
    return {place for place in below if place in _reached(below, place)}


def _reached(below: Mapping[str, set[str]], place: str) -> set[str]:
    reached: set[str] = set()
    waiting = set(below[place])
    while waiting:
        reached |= waiting
        waiting = {further for one in waiting for further in below.get(one, ())} - reached
    return reached


def _references(node: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            found.add(unquote(node["$ref"].partition("#")[2]))
        for key, part in node.items():
            if key not in ("$defs", "definitions"):
                found |= _references(part)
    if isinstance(node, list):
        for part in node:
            found |= _references(part)
    return found
