"""What pydantic asks of a value beside what the JSON schema of its type says."""

from __future__ import annotations

import json
from copy import deepcopy
from decimal import Decimal
from functools import partial
from typing import Any

from pydantic.json_schema import JsonSchemaValue
from pydantic_core import SchemaValidator, ValidationError

from .pydantic_kinds import FORMATS, FUNCTIONS, REFUSED, named, refused

ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator", "$comment"}
)

WIDENING = frozenset({"properties", "patternProperties", "prefixItems", "$schema", "$id"})
"""Keywords that change what others beside them say."""

NO_JSON = "Give a type that is written as JSON, or say what is written for it by pydantic's WithJsonSchema"

BOUNDS = {
    "ge": ("minimum",),
    "gt": ("exclusiveMinimum",),
    "le": ("maximum",),
    "lt": ("exclusiveMaximum",),
    "min_length": ("minItems", "minLength"),
    "max_length": ("maxItems", "maxLength"),
}
"""The keywords of what pydantic asks by a function."""

SELF_SPELLED = frozenset({"int", "float", "bool", "none"})
"""Core schemas of which two values that JSON tells apart are two values in Python."""

EXACT, NEARLY_EXACT = 1 << 53, 1 << 23
"""Up to here pydantic knows the multiples of a float for what they are: of one that is a fraction of twos, and of another."""


def by_function(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return what a core schema with a function asks, whose own schema says something."""
    function = schema["function"]["function"]
    name = named(function)
    if name in FUNCTIONS:
        said = FUNCTIONS[name]
        return deepcopy(said) if REFUSED in said or name.endswith("ByteSize._validate") else beside(found, said)
    if isinstance(function, partial) and function.func.__module__.startswith("pydantic."):
        inner = schema["schema"]
        for keyword, bound in function.keywords.items():
            if _is_counted(inner, found) if "length" in keyword else _is_number(inner):
                return beside(found, _bound(keyword, bound))
    return checked(found, name.rpartition("<locals>.")[2].rpartition("_validators.")[2])


def in_json_schema(found: JsonSchemaValue) -> JsonSchemaValue:
    """Return a schema with what the formats of pydantic's own mean, in their place."""
    if found.get("format") not in FORMATS:
        return found.copy()
    said = FORMATS[found["format"]]
    return {**{keyword: value for keyword, value in found.items() if keyword != "format"}, **deepcopy(said)}


def beside(found: JsonSchemaValue, *more: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of what is asked beside what a schema says."""
    asked = [one for one in more if one]
    return {**found, "allOf": [*found.get("allOf", ()), *asked]} if asked and REFUSED not in found else found


def checked(found: JsonSchemaValue, name: str) -> JsonSchemaValue:
    """Return a schema beside which something is checked that no schema says."""
    return beside(found, {"format": f"what {name} checks"})


def narrowed(said: JsonSchemaValue, made: JsonSchemaValue) -> JsonSchemaValue:
    """Return what an author says of a type, and what the type itself says, where that is more."""
    known = {keyword: value for keyword, value in made.items() if keyword not in ANNOTATIONS}
    holds = all(keyword in said and said[keyword] == value for keyword, value in known.items())
    if holds and not (said.keys() - made.keys()) & WIDENING:
        return said.copy()
    if made.get(REFUSED, [""])[0] == NO_JSON:
        return checked(said, "the type")
    return {"allOf": [said.copy(), known]}


def takes(schema: Any, default: Any) -> bool:
    """Return whether pydantic takes a default, as far as that can be told without the rest of the type."""
    try:
        SchemaValidator(schema).validate_python(default)
    except Exception:  # a validator may raise anything
        return False
    return True


def read_back(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of those values that pydantic reads from JSON as members."""
    validator = SchemaValidator({key: value for key, value in schema.items() if key != "ref"})

    def is_read(value: Any) -> bool:
        try:
            validator.validate_json(json.dumps(value))
        except ValidationError:
            return False
        return True

    given = found["enum"] if "enum" in found else [found["const"]]
    kept = list(filter(is_read, given))
    if not kept:
        return refused(
            "Give strings, numbers, bool or None as the values", f"pydantic reads none of {given!r:.100} from JSON"
        )
    return found if len(kept) == len(given) else {**found, "enum": kept}


def is_self_spelled(schema: Any) -> bool:
    """Return whether two values of a core schema that JSON tells apart are two values in Python."""
    transformed = ("strip_whitespace", "to_upper", "to_lower")
    return schema["type"] in SELF_SPELLED or (
        schema["type"] == "str" and not any(schema.get(key) for key in transformed)
    )


def _is_number(schema: Any) -> bool:
    """Return whether a core schema reads numbers alone."""
    if schema["type"] == "union":
        return all(_is_number(one[0] if isinstance(one, tuple) else one) for one in schema["choices"])
    return schema["type"] in ("int", "float", "decimal") or (
        schema["type"] == "function-after"
        and isinstance(schema["function"]["function"], partial)
        and _is_number(schema["schema"])
    )


def _is_counted(schema: Any, found: JsonSchemaValue) -> bool:
    """Return whether a value has as many parts as its JSON."""
    match schema:
        case {"type": "json-or-python", "json_schema": inner} | {"type": "lax-or-strict", "lax_schema": inner}:
            return _is_counted(inner, found)
        case {"type": "function-after", "function": {"function": partial(func=of)}} if "length" in of.__name__:
            return _is_counted(schema["schema"], found)
        case {"type": "function-after"}:
            return named(schema["function"]["function"]) == "pydantic.types.SecretStr"
    return found.get("type") == "array" and not found.get("uniqueItems")


def plain(value: Any) -> Any:
    """Return a bound as JSON has it."""
    return float(value) if isinstance(value, Decimal) else value


def _bound(keyword: str, bound: Any) -> JsonSchemaValue:
    """Return the schema of what pydantic asks by a function, where no schema of its own has the keyword."""
    return multiples(bound) if keyword == "multiple_of" else {key: plain(bound) for key in BOUNDS[keyword]}


def multiples(divisor: Any) -> JsonSchemaValue:
    """Return the schema of the multiples that pydantic knows for what they are."""
    divisor = plain(divisor)
    most = EXACT if Decimal(divisor) == Decimal(str(divisor)) else NEARLY_EXACT
    return {"multipleOf": divisor, "minimum": -most, "maximum": most}
