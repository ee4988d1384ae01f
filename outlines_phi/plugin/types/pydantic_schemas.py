"""The JSON schemas of Python types: those that pydantic writes, with what it checks beside them named by field."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from decimal import Decimal
from enum import EnumMeta
from fractions import Fraction
from functools import partial
from types import FunctionType, GenericAlias, SimpleNamespace
from typing import Any, NewType, cast, get_args, get_origin, get_type_hints

from outlines.types import utils as kind
from outlines.types.dsl import Alternatives, JsonSchema, Regex, Term, python_types_to_terms
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonRef, JsonSchemaValue
from pydantic_core import SchemaValidator, ValidationError, core_schema

from ...errors import SchemaWarning, UnsupportedError, warn_of
from ...guides.json_schema.formats import IPV4, IPV6
from ...guides.json_schema.formula import pointer_to
from ...guides.json_schema.reading.place import PATTERN_DIALECT

FLOAT_DIGITS = 15  # Of a decimal number that a float tells from all others
DIGITS = 28  # Of a `Decimal`: the precision of Python's own context
LARGEST = 1e300  # The largest number that is written where infinity is forbidden, which greater ones are rounded to
CERTAIN = 2**20  # Multiples of any step up to here are multiples to pydantic, which allows for greater roundings

REFUSED = "refused"  # The keyword of what no schema says: what to do instead, and why


def refused(remedy: str, why: str) -> JsonSchemaValue:
    """Return the schema that stands for what is refused; neither sentence has a full stop."""
    return {REFUSED: [remedy, why]}


def _whole(pattern: str, **more: str) -> JsonSchemaValue:
    return {"type": "string", "pattern": f"^(?:{pattern})$", **more}


def _base64(last: str) -> JsonSchemaValue:
    """Return the schema of whole groups of Base64, with these two characters behind letters and digits."""
    one = f"[A-Za-z0-9{last}]"
    return _whole(f"(?:{one}{{4}})*(?:{one}[AQgw]==|{one}{{2}}[AEIMQUYcgkosw048]=)?")


_IPV4_INTERFACE = f"{IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?"
_IPV6_INTERFACE = f"{IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"
_EITHER = f"{_IPV4_INTERFACE}|{_IPV6_INTERFACE}"
_HOST_BITS = "that the bits of a host are 0"

FORMATS: Mapping[str, JsonSchemaValue] = {
    **dict.fromkeys(("binary", "password", "path", "file-path", "directory-path"), {"type": "string"}),
    "base64": _base64("+/"),
    "base64url": _base64("_\\-"),
    "ipv4network": _whole(_IPV4_INTERFACE, format=_HOST_BITS),
    "ipv6network": _whole(_IPV6_INTERFACE, format=_HOST_BITS),
    "ipv4interface": _whole(_IPV4_INTERFACE),
    "ipv6interface": _whole(_IPV6_INTERFACE),
    "ipvanyaddress": {"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    "ipvanyinterface": _whole(_EITHER),
    "ipvanynetwork": _whole(_EITHER, format=_HOST_BITS),
    "name-email": {"type": "string", "format": "email"},
    "regex": refused(
        "Give str for a pattern, and compile it in the application",
        "a string is a regular expression, which is no regular set",
    ),
}
"""The strings of each format that pydantic writes for its types and JSON Schema does not know."""

NO_SCHEMA = {
    "is-subclass": refused("Give a Literal of the names of the classes", "no JSON stands for a class"),
    "json": refused("Give the type within Json by itself", "no JSON schema says that a string holds JSON"),
    "complex": refused("Give two floats for a complex number", "no JSON schema says how a string holds one"),
}
"""The core schemas of what no schema says."""

FUNCTIONS: Mapping[str, JsonSchemaValue] = {
    "pydantic._internal._validators.import_string": refused(
        "Give a Literal of the names that may be imported, as strings", "a string is what can be imported"
    ),
    **dict.fromkeys(
        (f"pydantic.types.PathType.validate_{kind}" for kind in ("directory", "file", "new", "socket")),
        refused("Give Path, or a Literal of the paths that there are", "what a path leads to must exist, or must not"),
    ),
    "pydantic.types.ByteSize._validate": {"type": "integer", "minimum": 0},
}
"""The schemas of the types that functions of pydantic check."""

TERM = "outlines.types.dsl.Term.__get_pydantic_core_schema__.<locals>.<lambda>"
"""The function that matches whole texts with a term of Outlines."""

_SAID = re.compile(
    rf"{re.escape(TERM)}|operator\.attrgetter|ipaddress\.IPv[46](?:Address|Interface|Network)"
    r"|pydantic\._internal\._validators\.(?:ip_v[46]_(?:address|interface|network)|pattern_(?:bytes|either|str)|defaultdict)_validator"
    r"|pydantic\._internal\._generate_schema\.GenerateSchema\._path_schema\.<locals>\.path_validator"
    r"|pydantic\.networks\.(?:(?:IPvAny(?:Address|Interface|Network)|EmailStr|NameEmail)\._validate|_Base(?:MultiHost)?Url\..*\.wrap_val)"
    r"|pydantic\.types\.(?:EncodedBytes\.decode|Secret\.__get_pydantic_core_schema__\.<locals>\.<lambda>|Secret(?:Bytes|Str))"
)
"""The functions within pydantic's types that ask no more than the schemas of these types say, by their names."""

UNNAMED = refused(
    "Give the keys of a dict strings under a pattern, or numbers without bounds", "no JSON schema says the others"
)
KEYS = {
    "integer": "^(0|-?[1-9][0-9]*)$",
    "number": r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$",
    "boolean": "^(true|false)$",
}
"""The texts of keys that are no strings, by their type."""

STRIPPED = {"pattern": r"^(?:[^\s\x85](?:[\s\S]*[^\s\x85])?)?$"}
"""No white space at either end, where it would be taken off before lengths and patterns are looked at."""

ASCII = {"pattern": r"^[\x00-\x7f]*$"}
HEXADECIMAL = {"pattern": "^(?:[0-9a-f]{2})*$"}

SPELLED_ONCE = frozenset({"int", "bool", "none", "str"})
"""Core schemas of which two values that JSON tells apart are two values in Python, where strings are as they stand."""


def checked(found: JsonSchemaValue, name: str) -> JsonSchemaValue:
    """Return a schema beside which something is checked that no schema says: an unknown format, of which a warning is given."""
    return _beside(found, {"format": f"what {name} checks"})


def _beside(found: JsonSchemaValue, more: JsonSchemaValue) -> JsonSchemaValue:
    return found if REFUSED in found else {**found, "allOf": [*found.get("allOf", ()), more]}


def _named(function: Any) -> tuple[str, str]:
    """Return the name of a function, with its module and as its author has written it."""
    while isinstance(function, partial):
        function = function.func
    of = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(of, '__module__', '')}.{of.__qualname__}", of.__qualname__.rpartition("<locals>.")[2]


def _by_function(function: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a core schema with a function, whose own schema says something."""
    name, written = _named(function)
    return found if _SAID.fullmatch(name) else checked(found, written)


def _searched(pattern: str, *, python: bool) -> JsonSchemaValue:
    """Return the schema of the strings in which a pattern is found: of Rust's crate ``regex``, or of ``re`` if ``python``."""
    return {"pattern": pattern, PATTERN_DIALECT: "python" if python else "rust"}


class PydanticSchema(GenerateJsonSchema):
    """The schema that pydantic writes of a type, closed where its objects have names (``docs/output-types.md``).

    A term of Outlines, as the type of a field, matches whole texts; ``pattern`` would find it within one. What pydantic checks and
    its schema does not say is an unknown format, which a :class:`SchemaWarning` names; what no schema says has the keyword
    :data:`REFUSED`.
    """

    def build_schema_type_to_method(self) -> Any:
        return {kind: partial(self._beyond, method) for kind, method in super().build_schema_type_to_method().items()}

    def _beyond(self, method: Callable[[Any], JsonSchemaValue], schema: Any) -> JsonSchemaValue:
        """Return the schema of a value's check by pydantic, where its own schema says less."""
        if schema["type"] in NO_SCHEMA:
            return deepcopy(NO_SCHEMA[schema["type"]])
        found = method(schema)
        match schema:
            case {"type": "model" | "dataclass" | "typed-dict"}:
                return _closed(schema, found)
            case {"type": "model-fields", "extras_keys_schema": _}:
                return checked(found, "the type of the keys of __pydantic_extra__")
            case {"type": "set" | "frozenset"}:
                return _set(schema, found)
            case {"type": "dict" | "frozendict" | "ordered-dict" | "counter"}:
                return self._dict(schema, found)
            case {"type": "union"}:
                kept = [one for one in found.get("anyOf", ()) if REFUSED not in one]
                return {**found, "anyOf": kept} if kept else found
            case {"type": "tagged-union", "discriminator": by} if callable(by):
                return checked(found, by.__qualname__)
            case {"type": "tagged-union"} if "discriminator" in found:
                # Also where the tag has a default.
                return {**found, "required": [found["discriminator"]["propertyName"]]}
            case {"type": "function-before" | "function-after" | "function-wrap", "function": {"function": function}}:
                return _by_function(function, found)
            case {"type": "chain", "steps": [_, _, *_]}:
                return checked(found, "the steps of the type")
            case {"type": "literal" | "enum"}:
                return _read_back(schema, found)
            case {"type": "url" | "multi-host-url"}:
                return _url(schema, found)
            case {"type": "datetime", "tz_constraint": "naive"}:
                return refused("Give datetime for NaiveDatetime", "a date-time of JSON Schema has an offset, and any")
            case {"type": "date"} if "now_op" not in schema:
                return {**found, "allOf": _dates(schema)}
            case {"type": "date" | "time" | "timedelta" | "datetime" as of} if {
                *("le", "ge", "lt", "gt", "now_op")
            } & schema.keys():
                return refused(
                    f"Check the bounds of a {of} by constraint=, or in the application", "no JSON schema says them"
                )
        return found

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        found = super().generate_inner(schema)
        name = _named(schema["function"]["function"])[0] if schema["type"].startswith("function-") else ""
        if name == TERM:
            return {**found, **_searched(rf"\A(?:{found['pattern']})\Z", python=True)}
        return deepcopy(FUNCTIONS.get(name, found))

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        return refused(
            "Give a type that is written as JSON, or say what is written for it by pydantic's WithJsonSchema",
            f"it is {error_info}",
        )

    # Containers of values.

    def field_is_present(self, field: Any) -> bool:
        # A dataclass's own is not read, but where it is a tag.
        tag = len(field["schema"].get("schema", {}).get("expected", ())) == 1 and self._config.extra != "forbid"
        return (field.get("init", True) or tag) and super().field_is_present(field)

    def field_is_required(self, field: Any, total: bool) -> bool:
        inner = field["schema"]  # whose default is written where pydantic would look at it
        validated = inner.get("validate_default", self._config.validate_default)
        # What is left out where it is wrong is an item, no field.
        none = inner.keys().isdisjoint({"default", "default_factory"})
        return (inner["type"] == "default" and bool(validated or none)) or super().field_is_required(field, total)

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        if schema.get("variadic_item_index", -1) + 1 not in (0, len(schema["items_schema"])):
            return refused(
                "Give a list for a tuple with items behind those of any number", "no JSON schema says such items"
            )
        return super().tuple_schema(schema)

    def _dict(self, schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
        keys = schema.get("keys_schema", {"type": "any"})
        names = self._names(keys) if keys["type"] not in ("any", "str") or len(keys) > 1 else {}
        # Its pattern is one of ECMA-262, which the names need not have.
        found |= zip(["additionalProperties"], found.pop("patternProperties", {}).values(), strict=False)
        found |= {"propertyNames": names} if names else {}
        alike = schema.get("min_length", 0) > 1 and keys["type"] not in SPELLED_ONCE  # two texts may be one key
        return checked(found, "min_length") if alike else found

    def _names(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of the keys that are read as values of a type."""
        keys = self.generate_inner(schema)
        while "$ref" in keys and (definition := self.get_schema_from_definitions(JsonRef(keys["$ref"]))) is not None:
            keys = definition
        if schema["type"] == "nullable":
            return self._names(schema["schema"])  # no key is None
        if schema["type"] == "union":
            return {"anyOf": [self._names(one[0] if isinstance(one, tuple) else one) for one in schema["choices"]]}
        if schema["type"] == "enum" and schema.get("sub_type") == "int":
            return {"enum": [str(value) for value in keys.get("enum", [keys.get("const")])]}
        # The bounds of decimals are beyond the digits of keys.
        beside = {"title", "description", *(["allOf"] if schema["type"] == "decimal" else [])}
        said = {keyword: value for keyword, value in keys.items() if keyword not in beside}
        if said.get("type") == "string" or REFUSED in said:
            return said
        return {"pattern": KEYS[said["type"]]} if said.keys() == {"type"} and said["type"] in KEYS else UNNAMED

    def _get_alias_name(self, field: Any, name: str) -> str:
        alias = field.get("validation_alias", name)
        if isinstance(alias, list) and not any(isinstance(way, list) and len(way) == 1 for way in alias):
            raise UnsupportedError(
                f"Give the field {name!r} one name as its alias, or as one of its AliasChoices. Its AliasPath {alias!r} is no "
                "part of a JSON schema."
            )
        return super()._get_alias_name(field, name)

    def function_plain_schema(self, schema: Any) -> JsonSchemaValue:
        given = schema.get("json_schema_input_schema")
        return _by_function(schema["function"]["function"], {} if given is None else self.generate_inner(given))

    # Values written as one.

    def str_schema(self, schema: core_schema.StringSchema) -> JsonSchemaValue:
        found = super().str_schema(schema)
        given, pattern = schema.get("pattern"), found.pop("pattern", None)
        compiled = isinstance(given, re.Pattern)
        flags = re.RegexFlag(given.flags & ~re.UNICODE) if compiled else re.RegexFlag(0)  # type: ignore[union-attr]
        if flags & ~re.IGNORECASE:
            return refused(
                "Write what the flags mean into the pattern, such as [aA]", f"the pattern {pattern!r} has {flags!r}"
            )
        if pattern is not None:
            python = compiled or self._config.regex_engine == "python-re"
            found |= _searched(f"(?i){pattern}" if flags else pattern, python=python)
        if schema.get("ascii_only"):
            found = _beside(found, ASCII)
        stripped = schema.get("strip_whitespace", self._config.str_strip_whitespace)
        return _beside(found, STRIPPED) if stripped and {"pattern", "minLength"} & found.keys() else found

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        spelled = {"base64": FORMATS["base64url"], "hex": HEXADECIMAL}.get(self._config.val_json_bytes, {})
        found = {**super().bytes_schema(schema), **spelled}
        if not spelled:
            return _beside(found, ASCII) if "maxLength" in found else found
        counted = found.keys() & {"minLength", "maxLength"}
        found = {key: value for key, value in found.items() if key not in counted}
        return checked(found, "the length") if counted else found

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        found = super().float_schema(schema)
        if schema.get("allow_inf_nan") is False:
            found = _beside(found, {"minimum": -LARGEST, "maximum": LARGEST})
        return _multiples(schema["multiple_of"], found) if "multiple_of" in schema else found

    def fraction_schema(self, schema: Any) -> JsonSchemaValue:
        found: JsonSchemaValue = {"type": "number", "allOf": [{"minimum": -LARGEST, "maximum": LARGEST}]}
        self.update_with_validations(found, schema, self.ValidationsMapping.numeric)
        return {key: value if isinstance(value, (str, list)) else float(value) for key, value in found.items()}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        whole = 10 ** (DIGITS if digits is None else digits - (places or 0))
        if step := schema.get("multiple_of"):  # as many digits as a float keeps
            whole = min(whole, float(Decimal(10) ** (FLOAT_DIGITS + cast(int, step.as_tuple().exponent))))
        asked: list[JsonSchemaValue] = [{"exclusiveMinimum": -whole, "exclusiveMaximum": whole}]
        asked += [{"multipleOf": 10 ** -(places or 0)}] if (digits, places) != (None, None) else []
        found: JsonSchemaValue = {"type": "number", "allOf": asked}
        found |= {"not": {"const": 0}} if whole == 1 else {}  # 0 has a digit before the point
        self.update_with_validations(found, schema, self.ValidationsMapping.numeric)
        return {key: float(value) if isinstance(value, Decimal) else value for key, value in found.items()}


def _multiples(step: float, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of the multiples that stay multiples as floats, which pydantic divides.

    Those of ``a 2^k``, with ``a`` odd, do up to ``2^53 2^k``; a step that is rounded itself, such as 0.1, is warned of.
    """
    ratio, exact = float(step).as_integer_ratio(), Fraction(str(step)) == Fraction(step)
    last = Fraction(ratio[0] & -ratio[0], ratio[1])
    most = 2**53 * last if exact else Fraction(CERTAIN)
    stated: list[Any] = [
        found.get(word, found.get(f"exclusive{word.title()}", math.inf)) for word in ("minimum", "maximum")
    ]
    if last == step or max(map(abs, stated)) <= most:
        return found
    bound = most.numerator if most.denominator == 1 else float(most)
    within = {"minimum": -bound, "maximum": bound}
    return _beside(found, within) if exact else checked(found, f"multiple_of, rounded beyond {CERTAIN:,},")


def _set(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of a set, of which pydantic makes the items one that are equal in Python, and hashes them."""
    items = schema.get("items_schema", {"type": "any"})
    if items["type"] in ("list", "set", "dict", "typed-dict") or getattr(items.get("cls"), "__hash__", True) is None:
        return refused("Give a list, or tuples and frozen models as the items", "items of a set must be hashable")
    found |= {"items": {"type": ["string", "number", "boolean", "null"]}} if items["type"] == "any" else {}
    alike = schema.get("min_length", 0) > 1 and items["type"] not in SPELLED_ONCE
    return checked(found, "min_length") if alike else found


def _dates(schema: Mapping[str, Any]) -> list[JsonSchemaValue]:
    """Return the schemas of the dates within the bounds of a core schema: the order of their texts is that of the calendar."""
    found: list[JsonSchemaValue] = []
    for keyword in sorted(schema.keys() & {"ge", "gt", "le", "lt"}):
        greater, bound = keyword[0] == "g", schema[keyword].isoformat()[:10]
        beyond = [
            f"{bound[:at]}[{int(digit) + 1}-9]" if greater else f"{bound[:at]}[0-{int(digit) - 1}]"
            for at, digit in enumerate(bound)
            if digit not in ("-", "9" if greater else "0")
        ]
        found.append({"pattern": f"^(?:{'|'.join([*beyond, bound if keyword[1] == 'e' else '(?!)'])})"})
    return found


def _url(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of the URIs of the schemes that a core schema of URLs allows; what else it reads is checked by pydantic."""
    schemes = "|".join(map(re.escape, schema.get("allowed_schemes", ())))
    said = {"pattern": f"^(?:{schemes}):" + "//[A-Za-z0-9/]" * ("default_host" not in schema)} if schemes else {}
    return checked({**found, "format": "uri", **said}, "a URL of pydantic")


def _read_back(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of those values that pydantic reads from JSON as members."""
    validator = SchemaValidator({key: value for key, value in schema.items() if key != "ref"})
    given, kept = found.get("enum", [found.get("const")]), []
    for value in given:
        with suppress(ValidationError):
            validator.validate_json(json.dumps(value))
            kept.append(value)
    if kept:
        return {**found, "enum": kept} if len(kept) < len(given) else found
    return refused(
        "Give strings, numbers, bool or None as the values", f"pydantic reads none of {given!r:.100} from JSON"
    )


def _closed(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return the schema of an object that has no other members, and of what its class checks."""
    found = {"additionalProperties": False, **found} if "properties" in found else found
    cls: Any = schema.get("cls")
    if schema.get("custom_init"):
        found = checked(found, f"{cls.__qualname__}.__init__")
    after = schema.get("post_init") and getattr(
        cls, "__post_init__" if schema["type"] == "dataclass" else schema["post_init"]
    )
    own = after and not after.__module__.startswith("pydantic.")
    return checked(found, after.__qualname__) if own else found


class SchemaText(str):
    """The text of a JSON schema, which is its name, beside the document: nothing reads it again."""

    document: Any


class UncheckedSchema(JsonSchema):
    """A JSON schema that is read by this package alone, which says by its JSON pointer what it cannot read."""

    def __init__(self, document: Any, text: str | None = None) -> None:
        self.schema, self.whitespace_pattern = SchemaText(json.dumps(document) if text is None else text), None
        self.schema.document = document


class PythonSchema(UncheckedSchema):
    """The JSON schema of a Python type."""


def term_of(output_type: Any) -> Term:
    """Return the term of Outlines for an output type; pydantic models, dataclasses, typed dicts and functions are read here."""
    return python_types_to_terms(_with_schemas(output_type))


def _with_schemas(output_type: Any) -> Any:
    """Return an output type with the terms of the types in it that are written as JSON."""
    output_type = getattr(output_type, "__value__", output_type)  # of an alias
    if asked := [one for one in getattr(output_type, "__metadata__", ()) if not isinstance(one, str)]:
        warn_of(
            SchemaWarning, f"Give {asked!r:.80} to a field of a model. It is not asked of {output_type!r:.80} alone."
        )
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


def _schema(written: type) -> JsonSchemaValue:
    document = TypeAdapter(written).json_schema(schema_generator=PydanticSchema)
    for part, pointer in _parts(document):
        if part.get("format") in FORMATS:
            part |= deepcopy(FORMATS[part.pop("format")])
        if isinstance(part.get(REFUSED), list):
            remedy, why = part[REFUSED]
            raise UnsupportedError(f"{remedy}. At {pointer} of the JSON schema of {written.__name__}, {why}.")
    return document


def _parts(schema: JsonSchemaValue, pointer: str = "#") -> Iterator[tuple[JsonSchemaValue, str]]:
    """Yield a schema and those in it, each with its JSON pointer; none that its values hold."""
    yield schema, pointer
    for keyword, inner in schema.items():
        named = inner.items() if keyword in ("properties", "patternProperties", "$defs") else ()
        listed = enumerate(inner) if keyword in ("allOf", "anyOf", "oneOf", "prefixItems") else named
        alone = [((keyword,), inner)] if keyword in ("items", "additionalProperties", "propertyNames", "not") else []
        for steps, part in [*(((keyword, step), part) for step, part in listed), *alone]:
            if isinstance(part, dict):
                yield from _parts(part, pointer_to(steps, pointer))


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
