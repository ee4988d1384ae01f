"""The JSON schemas of Python types: what pydantic reads of each, and nothing else."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from enum import EnumMeta
from functools import partial
from types import FunctionType
from typing import Any, get_args

from outlines.types import utils as kind
from outlines.types.dsl import Choice, JsonSchema, Term, python_types_to_terms
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue
from pydantic_core import core_schema

from ..errors import UnsupportedError

DIGITS = 28
"""Of a ``Decimal``: the precision of Python's own context."""

LARGEST = 1e300
"""The largest number that is written where infinity is forbidden, which greater ones are rounded to."""

UNICODE_ESCAPE = re.compile(r"\\[sSDWbB]|\[\^[^\]]*\\[dw]")
"""What ECMA-262 and Rust's crate ``regex``, which pydantic searches with, understand differently beyond ASCII."""

_IN_CLASS = r"\[\^?\]?(?:\\.|[^\]\\\[&~-]|&(?!&)|-(?!-)|~(?!~))*"

RUST_CLASS = re.compile(rf"(?:\\.|[^\\\[]|{_IN_CLASS}\])*{_IN_CLASS}(?:\[|&&|--|~~)")
"""A class of characters of Rust's own: within another one, or combined with it."""

IN_ASCII = {"pattern": r"^[\x00-\x7f]*$"}

STRIPPED = {"pattern": r"^(?:[^\s\x85](?:[\s\S]*[^\s\x85])?)?$"}
"""No white space at either end, where it would be taken off before lengths and patterns are looked at."""

HOST = r"[a-z][a-z0-9]{0,20}(?:-[a-z0-9]{1,20})?(?:\.[a-z][a-z0-9]{0,20}){1,3}(?::[1-9][0-9]{0,3})?"
"""Host names that every scheme takes."""


class _Written(GenerateJsonSchema):
    """The schema of what is written for a type: all that it says, and what pydantic asks beyond the schema that it gives.

    - Keys that a type does not declare are not written, unless it keeps them (``extra="allow"``): pydantic would drop them.
    - A term of Outlines, as the type of a field, matches whole texts; ``pattern`` would find it within one.
    - Strings under a pattern that means another thing beyond ASCII to pydantic are in ASCII, and so are bytes that are counted.
    - Strings that are stripped before they are looked at begin and end with no white space.
    - A ``Decimal`` is written as a number, of the places that it may have.
    - A URL of certain schemes is a plain one.
    - Keys of a dict are of their type.

    What pydantic asks and no schema says is refused: flags of a pattern, classes of Rust's own, bounds of keys and dates, paths as
    aliases, JSON within strings.
    """

    def generate_inner(self, schema: core_schema.CoreSchema) -> JsonSchemaValue:
        found = super().generate_inner(schema)
        if schema["type"] == "function-plain" and found.get("type") == "string" and "pattern" in found:
            return {**found, "pattern": f"^(?:{found['pattern']})$"}
        return found

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        found = super().str_schema(schema)
        given, pattern = schema.get("pattern", ""), found.get("pattern", "")
        flags = re.RegexFlag(given.flags & ~re.UNICODE) if isinstance(given, re.Pattern) else None
        if flags:
            raise UnsupportedError(
                f"Write what the flags mean into the pattern {pattern!r}, such as [aA]. It has {flags!r}."
            )
        if RUST_CLASS.match(pattern) and self._config.regex_engine != "python-re":
            raise UnsupportedError(
                f"Write out the characters of each class in the pattern {pattern!r}, and a backslash before [, &, - and ~. "
                "pydantic reads classes within classes there, which JSON Schema does not know."
            )
        if UNICODE_ESCAPE.search(pattern):
            found["allOf"] = [IN_ASCII]
        stripped = schema.get("strip_whitespace", self._config.str_strip_whitespace)
        if stripped and ("pattern" in found or "minLength" in found):
            found["allOf"] = [*found.get("allOf", ()), STRIPPED]
        return found

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        found = super().bytes_schema(schema)
        return {**found, "allOf": [IN_ASCII]} if "maxLength" in found else found

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        found = super().float_schema(schema)
        if schema.get("allow_inf_nan") is False:
            found["allOf"] = [{"minimum": -LARGEST, "maximum": LARGEST}]
        return found

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is None:
            digits, least = DIGITS, DIGITS
        else:
            least = digits - (places or 0)
        bounds = {"exclusiveMinimum": -(10**least), "exclusiveMaximum": 10**least}
        found: JsonSchemaValue = {"type": "number", "allOf": [bounds]}
        if least == 0:  # 0 has a digit before the point
            found["not"] = {"const": 0}
        if places is not None or "max_digits" in schema:
            found["allOf"].append({"multipleOf": 10 ** -(places or 0)})
        self.update_with_validations(found, schema, self.ValidationsMapping.numeric)
        return {key: float(value) if isinstance(value, Decimal) else value for key, value in found.items()}

    def date_schema(self, schema: core_schema.DateSchema) -> JsonSchemaValue:
        return _unbounded(schema, super().date_schema(schema))

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        return _unbounded(schema, super().time_schema(schema))

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        return _unbounded(schema, super().timedelta_schema(schema))

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        if schema.get("tz_constraint") == "naive":
            raise UnsupportedError("Give datetime for NaiveDatetime. A date-time of JSON Schema has an offset.")
        return _unbounded(schema, super().datetime_schema(schema))

    def json_schema(self, schema: core_schema.JsonSchema) -> JsonSchemaValue:
        raise UnsupportedError("Give the type within Json by itself. No JSON schema says that a string holds JSON.")

    def complex_schema(self, schema: core_schema.ComplexSchema) -> JsonSchemaValue:
        raise UnsupportedError("Give two floats for a complex number. No JSON schema says how a string holds one.")

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        if "allowed_schemes" not in schema:
            return super().url_schema(schema)
        schemes = "|".join(map(re.escape, schema["allowed_schemes"]))
        return {"type": "string", "pattern": f"^(?:{schemes})://{HOST}(?:/[!-~]{{0,200}})?$"}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        found = super().dict_schema(schema)
        names = self._names(schema["keys_schema"]) if "keys_schema" in schema else {}
        return {**found, "propertyNames": names} if names not in ({}, {"type": "string"}) else found

    def _names(self, schema: core_schema.CoreSchema) -> JsonSchemaValue:
        """Return the schema of the keys that are read as values of a type."""
        keys = self.generate_inner(schema)
        while "$ref" in keys and (definition := self.get_schema_from_definitions(JsonRef(keys["$ref"]))) is not None:
            keys = definition
        if schema["type"] == "enum" and schema.get("sub_type") == "int":
            return {"enum": [str(value) for value in keys.get("enum", [keys.get("const")])]}
        if schema["type"] == "nullable":
            return self._names(schema["schema"])  # no key is None
        if schema["type"] == "union":
            return {"anyOf": [self._names(one[0] if isinstance(one, tuple) else one) for one in schema["choices"]]}
        said = {keyword: value for keyword, value in keys.items() if keyword not in ("title", "description")}
        if "enum" in said or "const" in said or said.get("type") not in KEYS:
            return said
        if len(said.get("allOf", ())) == 1:
            del said["allOf"]  # bounds beyond the digits of keys
        if len(said) > 1:
            raise UnsupportedError(
                f"Give the keys of a dict strings under a pattern, or numbers without bounds. They have {said!r:.200}."
            )
        return {"pattern": KEYS[said["type"]]}

    def _get_alias_name(self, field: Any, name: str) -> str:
        alias = field.get("validation_alias", name)
        if isinstance(alias, list) and not any(isinstance(way, list) and len(way) == 1 for way in alias):
            raise UnsupportedError(
                f"Give the field {name!r} one name as its alias, or as one of its AliasChoices. Its AliasPath {alias!r} is no "
                "part of a JSON schema."
            )
        return super()._get_alias_name(field, name)


KEYS = {
    "integer": "^-?(0|[1-9][0-9]{0,17})$",
    "number": r"^-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?$",
    "boolean": "^(true|false)$",
}
"""The texts of keys that are no strings, by their type."""


class PythonSchema(JsonSchema):
    """The JSON schema of a Python type."""

    @classmethod
    def of(cls, schema: str, whitespace_pattern: str | None) -> PythonSchema:
        """Return the schema with this text."""
        made = cls.__new__(cls)
        made.schema, made.whitespace_pattern = schema, whitespace_pattern
        return made


def _unbounded(schema: Mapping[str, Any], found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a type of which no JSON schema says the bounds, if it has none."""
    if any(bound in schema for bound in ("le", "ge", "lt", "gt")):
        raise UnsupportedError(
            f"Check the bounds of a {schema['type']} in a validator of your own, or by constraint=. No JSON schema says them."
        )
    return found


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"additionalProperties": False, **schema} if "properties" in schema else schema


def schemas_within(output_type: Any) -> dict[str, str]:
    """Return the JSON schema of each Python type in an output type, by the one that Outlines has for it: texts of both."""
    found: dict[str, str] = {}
    for part in _mentioned(output_type):
        term = python_types_to_terms(part)
        if isinstance(term, JsonSchema):
            found[term.schema] = json.dumps(_schema(part))
    return found


def signature(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the model of a function's arguments."""
    try:
        read = inspect.signature(function, eval_str=True)
    except NameError:  # an annotation that only a type checker sees
        read = inspect.signature(function)
    fields: dict[str, Any] = {
        key: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
        for key, parameter in read.parameters.items()
    }
    return create_model(getattr(function, "__name__", "Arguments"), **fields)


def functions_of(enum: EnumMeta) -> list[FunctionType]:
    """Return the functions that are members' values.

    Such a function is no member to Python; Outlines tells it from a method by where it was defined.
    """
    inside = f"{enum.__qualname__}."
    return [
        value
        for key, value in vars(enum).items()
        if isinstance(value, FunctionType) and not key.startswith("_") and not value.__qualname__.startswith(inside)
    ]


def _schema(part: Any) -> JsonSchemaValue:
    written = part if isinstance(part, type) else signature(part)
    return TypeAdapter(written).json_schema(schema_generator=_Written)


def _mentioned(output_type: Any) -> Iterator[Any]:
    """Yield the pydantic models, dataclasses, typed dicts and functions that an output type is made of."""
    if any(is_one(output_type) for is_one in (kind.is_dataclass, kind.is_typed_dict, kind.is_pydantic_model)):
        yield output_type
        return
    parts: Iterable[Any] = get_args(output_type)
    match output_type:
        case EnumMeta():
            members: list[Any] = list(output_type)
            parts = [*(one.value for one in members), *functions_of(output_type)]
        case Choice():
            parts = output_type.items
        case Term():
            parts = (*getattr(output_type, "terms", ()), *filter(None, [getattr(output_type, "term", None)]))
        case _ if not parts and kind.is_callable(output_type):
            yield output_type
    for part in parts:
        if isinstance(part, (type, Term, FunctionType, partial)) or get_args(part):
            yield from _mentioned(part)
