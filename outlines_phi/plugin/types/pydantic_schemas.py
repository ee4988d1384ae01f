"""The JSON schemas of pydantic's core schemas: the values that pydantic reads, of JSON that is written for it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from enum import EnumMeta
from functools import partial
from types import FunctionType, GenericAlias, SimpleNamespace
from typing import Any, NewType, cast, get_args, get_origin, get_type_hints

from outlines.types import utils as kind
from outlines.types.dsl import Alternatives, JsonSchema, Regex, Term, python_types_to_terms
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue
from pydantic_core import core_schema

from ...errors import UnsupportedError
from ...guides.json_schema.values import pointer_to
from .pydantic_parts import (
    ANNOTATIONS,
    FORMATS,
    IN_ASCII,
    NO_JSON,
    REFUSED,
    TERM,
    beside,
    by_function,
    checked,
    dates,
    flags_of,
    in_json_schema,
    is_self_spelled,
    multiples,
    named,
    narrowed,
    plain,
    read_back,
    refused,
    searched,
    takes,
    url,
)

DIGITS = 28  # Of a `Decimal`: the precision of Python's own context
LARGEST = 1e300  # The largest number that is written where infinity is forbidden, which greater ones are rounded to

STRIPPED = {"pattern": r"^(?:[^\s\x85](?:[\s\S]*[^\s\x85])?)?$"}
"""No white space at either end, where it would be taken off before lengths and patterns are looked at."""

KEYS = {
    "integer": "^(0|-?[1-9][0-9]*)$",
    "number": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$",
    "boolean": "^(true|false)$",
}
"""The texts of keys that are no strings, by their type."""

MODIFIERS = frozenset(
    {"pydantic_js_updates", "pydantic_js_extra", "pydantic_js_functions", "pydantic_js_annotation_functions"}
)
"""Where a core schema has what its author says of the JSON schema."""

UNHASHABLE = frozenset({"list", "set", "dict", "typed-dict", "deque", "ordered-dict", "counter", "generator"})
"""What pydantic makes of JSON that is no item of a set."""


NO_SCHEMA = {
    "is-subclass": refused("Give a Literal of the names of the classes", "no JSON stands for a class"),
    "json": refused("Give the type within Json by itself", "no JSON schema says that a string holds JSON"),
    "complex": refused("Give two floats for a complex number", "no JSON schema says how a string holds one"),
}
"""The core schemas of what no schema says."""

UNSAID = ("le", "ge", "lt", "gt", "now_op")  # Bounds of times, which no JSON schema says


class PydanticSchema(GenerateJsonSchema):
    """The schema of what is written for a type: all that it says, and what pydantic asks beyond it (``docs/output-types.md``).

    A term of Outlines, as the type of a field, matches whole texts; ``pattern`` would find it within one. Strings that are stripped
    before they are looked at begin and end with no white space, and bytes that are counted are in ASCII. What a function checks
    that is not pydantic's own is an unknown format, which a :class:`SchemaWarning` names; what no schema says has the keyword
    :data:`REFUSED`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._made: dict[int, tuple[Any, JsonSchemaValue]] = {}  # with the core schema, so that its identity is its own
        self._cores: dict[str, Any] = {}

    def build_schema_type_to_method(self) -> Any:
        return {kind: partial(self._make, method) for kind, method in super().build_schema_type_to_method().items()}

    def _make(self, method: Callable[[Any], JsonSchemaValue], schema: Any) -> JsonSchemaValue:
        """Return what a core schema says; and keep it, before its author changes it."""
        kind = schema["type"]
        found = deepcopy(NO_SCHEMA[kind]) if kind in NO_SCHEMA else self._beyond(schema, method(schema))
        self._made[id(schema)] = schema, deepcopy(found)
        return found

    def _beyond(self, schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
        """Return what pydantic asks of a value, where its own schema says less."""
        match schema["type"]:
            case "model" | "dataclass" | "typed-dict":
                return _closed(schema, found)
            case "set" | "frozenset":
                return self._set(schema, found)
            case "dict" | "frozendict" | "ordered-dict" | "counter":
                return self._dict(schema, found)
            case "union":
                if kept := [one for one in found.get("anyOf", ()) if REFUSED not in one]:
                    found["anyOf"] = kept
            case "tagged-union" if callable(schema["discriminator"]):
                return checked(found, schema["discriminator"].__qualname__)
            case "function-before" | "function-after" | "function-wrap":
                return by_function(schema, found)
            case "chain" if len(schema["steps"]) > 1:
                return checked(found, "the steps of the type")
            case "literal" | "enum":
                return read_back(schema, found)
            case "url" | "multi-host-url":
                return url(schema, found)
            case "datetime" if schema.get("tz_constraint", "aware") != "aware":
                return refused("Give datetime for NaiveDatetime", "a date-time of JSON Schema has an offset, and any")
            case "date" if "now_op" not in schema:
                return beside(found, *dates(schema))
            case "date":
                return refused("Give bounds, as in Annotated[date, Field(lt=...)]", "what is past depends on the day")
            case "time" | "timedelta" | "datetime" as kind if any(bound in schema for bound in UNSAID):
                return refused(
                    f"Check the bounds of a {kind} by constraint=, or in the application", "no JSON schema says them"
                )
        return found

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        if id(schema) in self._made and "ref" in schema:
            return super().generate_inner(schema)
        found = super().generate_inner(schema)
        if schema["type"] == "function-plain" and named(schema["function"]["function"])[0] == TERM:
            return {**found, **searched(rf"\A(?:{found['pattern']})\Z", python=True)}
        changed = bool(MODIFIERS & schema.get("metadata", {}).keys())
        if not changed and "format" not in found:
            return found
        if id(schema) not in self._made:  # its author has not asked
            self._schema_type_to_method[schema["type"]](schema)
        made, target = self._made[id(schema)][1], found
        if "ref" in schema and "$ref" in found:
            target = self.get_schema_from_definitions(JsonRef(found["$ref"])) or found
        said = in_json_schema(target)
        said = narrowed(said, in_json_schema(made)) if changed else said
        target.clear()
        target.update(said)
        return found

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return refused(NO_JSON, f"it is {error_info}")

    def definitions_schema(self, schema: core_schema.DefinitionsSchema) -> JsonSchemaValue:
        self._cores.update({each["ref"]: each for each in schema["definitions"]})
        return super().definitions_schema(schema)

    def _update_class_schema(self, json_schema: JsonSchemaValue, cls: type[Any], config: Any) -> None:
        made = deepcopy(json_schema)
        super()._update_class_schema(json_schema, cls, config)
        if config.get("json_schema_extra") is not None:
            said = narrowed(json_schema, made)
            json_schema.clear()
            json_schema.update(said)

    # What holds values.

    def field_is_required(self, field: Any, total: bool) -> bool:
        inner = field["schema"]
        if inner["type"] == "default" and inner.get("validate_default", self._config.validate_default):
            return super().field_is_required(field, total) or not takes(inner["schema"], inner.get("default", ...))
        return super().field_is_required(field, total)

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        if schema.get("variadic_item_index", -1) + 1 not in (0, len(schema["items_schema"])):
            return refused(
                "Give a list for a tuple with items behind those of any number", "no JSON schema says such items"
            )
        return super().tuple_schema(schema)

    def _set(self, schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
        items = schema.get("items_schema", {"type": "any"})
        if items["type"] == "any":
            found["items"] = {"type": ["string", "number", "boolean", "null"]}
        elif not self._is_hashable(items):
            return refused("Give a list, or tuples and frozen models as the items", "items of a set must be hashable")
        if schema.get("min_length", 0) > 1 and not is_self_spelled(items):
            found = checked(found, "min_length")
        return found

    def _is_hashable(self, schema: Any, within: tuple[str, ...] = ()) -> bool:
        match schema:
            case {"type": "model" | "dataclass"}:
                return schema["cls"].__hash__ is not None
            case {"type": "definition-ref"} if (
                schema["schema_ref"] in self._cores and schema["schema_ref"] not in within
            ):
                return self._is_hashable(self._cores[schema["schema_ref"]], (*within, schema["schema_ref"]))
            case {"type": kind} if kind in UNHASHABLE:
                return False
        inner = [schema.get(key) for key in ("schema", "lax_schema", "json_schema")]
        inner += [
            one[0] if isinstance(one, tuple) else one for one in schema.get("choices", ()) if not isinstance(one, str)
        ]
        if schema["type"] == "tuple":
            inner += schema["items_schema"]
        return all(self._is_hashable(one, within) for one in inner if isinstance(one, dict))

    def _dict(self, schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
        keys = schema.get("keys_schema", {"type": "any"})
        names = self._names(keys) if keys["type"] != "any" else {}
        if names not in ({}, {"type": "string"}):
            found = {**found, "propertyNames": names}
        # Its pattern is one of ECMA-262, which the names need not have.
        found |= zip(["additionalProperties"], found.pop("patternProperties", {}).values(), strict=False)
        if REFUSED in names:
            return names
        # Two texts may be one key.
        alike = schema.get("min_length", 0) > 1 and keys["type"] != "any" and not is_self_spelled(keys)
        return checked(found, "min_length") if alike or keys["type"] == "float" else found

    def _names(self, schema: Any) -> JsonSchemaValue:
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
        said = {keyword: value for keyword, value in keys.items() if keyword not in ANNOTATIONS}
        if said.get("type") not in KEYS or "enum" in said or "const" in said:
            return said
        if len(said.get("allOf", ())) == 1:
            del said["allOf"]  # bounds beyond the digits of keys
        if len(said) > 1:
            return refused(
                "Give the keys of a dict strings under a pattern, or numbers without bounds", f"keys have {said!r:.200}"
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

    # What functions check.

    def function_plain_schema(self, schema: Any) -> JsonSchemaValue:
        given = schema.get("json_schema_input_schema")
        return by_function(schema, {} if given is None else self.generate_inner(given))

    # What is written as one value.

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        found = super().str_schema(schema)
        given, pattern = schema.get("pattern"), found.pop("pattern", None)
        flags = flags_of(given)
        if pattern is not None and flags == re.IGNORECASE:
            pattern, flags = f"(?i){pattern}", re.RegexFlag(0)
        if flags:
            return refused(
                "Write what the flags mean into the pattern, such as [aA]", f"the pattern {pattern!r} has {flags!r}"
            )
        if pattern is not None:
            python = isinstance(given, re.Pattern) or self._config.regex_engine == "python-re"
            found |= searched(pattern, python=python)
        narrower = [IN_ASCII] if schema.get("ascii_only") else []
        stripped = schema.get("strip_whitespace", self._config.str_strip_whitespace)
        if stripped and ("pattern" in found or "minLength" in found):
            narrower.append(STRIPPED)
        return beside(found, *narrower)

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        found, spelled = super().bytes_schema(schema), self._config.val_json_bytes
        del found["format"]
        if spelled != "utf8":
            found |= FORMATS["base64url"] if spelled == "base64" else {"pattern": "^(?:[0-9a-f]{2})*$"}
            counted = found.keys() & {"minLength", "maxLength"}
            return checked({key: found[key] for key in found.keys() - counted}, "the length") if counted else found
        return beside(found, IN_ASCII) if "maxLength" in found else found

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        found = super().float_schema(schema)
        if schema.get("allow_inf_nan") is False:
            found = beside(found, {"minimum": -LARGEST, "maximum": LARGEST})
        return beside(found, multiples(found.pop("multipleOf"))) if "multipleOf" in found else found

    def fraction_schema(self, schema: Any) -> JsonSchemaValue:
        found: JsonSchemaValue = {"type": "number", "minimum": -LARGEST, "maximum": LARGEST}
        bounds: JsonSchemaValue = {}
        self.update_with_validations(bounds, schema, self.ValidationsMapping.numeric)
        return beside(found, {keyword: float(bound) for keyword, bound in bounds.items()})

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
        return {key: plain(value) for key, value in found.items()}


def _closed(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of an object that has no other members, and of what its class checks."""
    found = {"additionalProperties": False, **found} if "properties" in found else found
    cls, after = schema.get("cls"), schema.get("post_init")
    if schema["type"] == "dataclass":
        return checked(found, cls.__post_init__.__qualname__) if after else found
    if schema.get("custom_init"):
        found = checked(found, f"{cls.__qualname__}.__init__")
    after = getattr(cls, after or "", None)
    if after is not None and not after.__module__.startswith("pydantic."):
        found = checked(found, after.__qualname__)
    return found


class UncheckedSchema(JsonSchema):
    """A JSON schema that is read by this package alone, which says by its JSON pointer what it cannot read."""

    def __init__(self, schema: str, whitespace_pattern: str | None = None) -> None:
        self.schema, self.whitespace_pattern = schema, whitespace_pattern


class PythonSchema(UncheckedSchema):
    """The JSON schema of a Python type."""


def term_of(output_type: Any) -> Term:
    """Return what Outlines reads an output type as; pydantic models, dataclasses, typed dicts and functions in it are read here."""
    return python_types_to_terms(_with_schemas(output_type))


def _with_schemas(output_type: Any) -> Any:
    """Return an output type with the terms of the types in it that are written as JSON."""
    if any(is_one(output_type) for is_one in (kind.is_dataclass, kind.is_typed_dict, kind.is_pydantic_model)):
        return PythonSchema(_schema(output_type))
    parts = get_args(output_type)
    if kind.is_union(output_type):
        nothing = [Regex("None")] if type(None) in parts else []
        return Alternatives([*(term_of(part) for part in parts if part is not type(None)), *nothing])
    if get_origin(output_type) in (list, tuple, dict):
        inner = tuple(part if part in ((), ...) else _with_schemas(part) for part in parts)
        return GenericAlias(cast(type, get_origin(output_type)), inner)
    if isinstance(output_type, EnumMeta):
        members: list[Any] = [*(one.value for one in cast(Any, output_type)), *functions_of(output_type)]
        if any(isinstance(_with_schemas(one), PythonSchema) for one in members):
            return Alternatives([term_of(one) for one in members])
    if (
        kind.is_callable(output_type)
        and get_origin(output_type) is None
        and not isinstance(output_type, (Term, NewType))
    ):
        return PythonSchema(_schema(signature(output_type)))
    return output_type


def _schema(written: type) -> str:
    document = TypeAdapter(written).json_schema(schema_generator=PydanticSchema)
    for pointer, (remedy, why) in _refused(document):
        raise UnsupportedError(f"{remedy}. At {pointer} of the JSON schema of {written.__name__}, {why}.")
    return json.dumps(document)


def _refused(document: Any) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield where a schema has what no schema says, and what to say of it."""
    stack = [(document, "#")]
    while stack:
        part, pointer = stack.pop()
        if isinstance(part, dict) and isinstance(part.get(REFUSED), list):
            yield pointer, part[REFUSED]
        steps = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        stack += [(inner, pointer_to([step], pointer)) for step, inner in steps]


def signature(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the model of a function's arguments."""
    name = getattr(function, "__name__", "Arguments")
    parameters = inspect.signature(function).parameters
    fields: dict[str, Any] = {}
    for key, parameter in parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UnsupportedError(
                f"Give each argument of {name} a name by which it can be given. {str(parameter)!r} has none, and is written "
                "as no member of an object."
            )
        if parameter.annotation is parameter.empty:
            raise UnsupportedError(f"Annotate each argument of {name} with its type. {key!r} has none.")
        annotation = _evaluated(function, name, key, parameter.annotation)
        fields[key] = (annotation, ... if parameter.default is parameter.empty else parameter.default)
    return create_model(name, **fields)


def _evaluated(function: Any, name: str, key: str, annotation: Any) -> Any:
    """Return an annotation that may be given as text, as by ``from __future__ import annotations``."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = function if hasattr(function, "__globals__") else vars(type(function)).get("__call__", function)
    enclosed = {} if not inspect.isfunction(code) else dict(inspect.getclosurevars(code).nonlocals)
    try:
        return get_type_hints(
            SimpleNamespace(__annotations__={key: annotation}),
            getattr(code, "__globals__", {}),
            enclosed,
            include_extras=True,
        )[key]
    except (NameError, SyntaxError, TypeError) as error:
        raise UnsupportedError(
            f"Define the types that annotate the arguments of {name} at the top of their module. "
            f"{annotation!r} of {key!r} cannot be read: {error}."
        ) from error


def functions_of(enum: EnumMeta) -> list[FunctionType]:
    """Return the functions that are members' values; no members to Python, told from methods by where they were defined."""
    inside = f"{enum.__qualname__}."
    return [
        value
        for key, value in vars(enum).items()
        if isinstance(value, FunctionType) and not key.startswith("_") and not value.__qualname__.startswith(inside)
    ]
