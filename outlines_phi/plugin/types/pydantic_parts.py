"""What pydantic asks of a value beside the JSON schema of its type, and what it reads as its own strings and patterns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from decimal import Decimal
from functools import partial
from typing import Any

from pydantic.json_schema import JsonSchemaValue
from pydantic_core import SchemaValidator, ValidationError

from ...guides.json_schema.reading.place import PATTERN_DIALECT
from ...guides.json_schema.strings.formats import IPV4, IPV6

Said = dict[str, Any]  # A JSON schema
REFUSED = "refused"  # The keyword of what no schema says: what to do instead, and why


def refused(remedy: str, why: str) -> Said:
    """Return the schema that stands for what is refused; neither sentence has a full stop."""
    return {REFUSED: [remedy, why]}


def url(schema: Mapping[str, Any], found: Said) -> Said:
    """Return the schema of the URIs of the schemes that a core schema of URLs allows; what else it reads is checked by pydantic."""
    schemes = "|".join(map(re.escape, schema.get("allowed_schemes", ())))
    said = {"pattern": f"^(?:{schemes}):" + "//[A-Za-z0-9/]" * ("default_host" not in schema)} if schemes else {}
    return checked({**found, "format": "uri", **said}, "a URL of pydantic")


def _whole(pattern: str) -> Said:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _base64(last: str) -> Said:
    """Return the schema of whole groups of Base64, with these two characters behind letters and digits."""
    one = f"[A-Za-z0-9{last}]"
    return _whole(f"(?:{one}{{4}})*(?:{one}[AQgw]==|{one}{{2}}[AEIMQUYcgkosw048]=)?")


_IPV4_INTERFACE = f"{IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?"
_IPV6_INTERFACE = f"{IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"
_HOST_BITS: Said = {"format": "that the bits of a host are 0"}

FORMATS: Mapping[str, Said] = {
    **dict.fromkeys(("binary", "password", "path", "file-path", "directory-path"), {"type": "string"}),
    "base64": _base64("+/"),
    "base64url": _base64("_\\-"),
    "ipv4network": {**_whole(_IPV4_INTERFACE), **_HOST_BITS},
    "ipv6network": {**_whole(_IPV6_INTERFACE), **_HOST_BITS},
    "ipv4interface": _whole(_IPV4_INTERFACE),
    "ipv6interface": _whole(_IPV6_INTERFACE),
    "ipvanyaddress": {"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    "ipvanyinterface": _whole(f"{_IPV4_INTERFACE}|{_IPV6_INTERFACE}"),
    "ipvanynetwork": {**_whole(f"{_IPV4_INTERFACE}|{_IPV6_INTERFACE}"), **_HOST_BITS},
    "name-email": {"type": "string", "format": "email"},
    "regex": refused(
        "Give str for a pattern, and compile it in the application",
        "a string is a regular expression, which is no regular set",
    ),
}
"""The strings of each format that pydantic writes for its types and JSON Schema does not know; all of them are valid."""

TERM = "outlines.types.dsl.Term.__get_pydantic_core_schema__.<locals>.<lambda>"
"""What matches whole texts with a term of Outlines."""

_SAID = re.compile(
    rf"{re.escape(TERM)}|operator\.attrgetter|ipaddress\.IPv[46](?:Address|Interface|Network)"
    r"|pydantic\._internal\._validators\.(?:ip_v[46]_(?:address|interface|network)|pattern_(?:bytes|either|str)|defaultdict)_validator"
    r"|pydantic\._internal\._generate_schema\.GenerateSchema\._path_schema\.<locals>\.path_validator"
    r"|pydantic\.networks\.(?:(?:IPvAny(?:Address|Interface|Network)|EmailStr|NameEmail)\._validate|_Base(?:MultiHost)?Url\..*\.wrap_val)"
    r"|pydantic\.types\.(?:EncodedBytes\.decode|Secret\.__get_pydantic_core_schema__\.<locals>\.<lambda>|Secret(?:Bytes|Str))"
)
"""The functions within pydantic's types that ask no more than the schemas of these types say, by their names."""

FUNCTIONS: Mapping[str, Said] = {
    "pydantic._internal._validators.import_string": refused(
        "Give a Literal of the names that may be imported, as strings", "a string is what can be imported"
    ),
    **dict.fromkeys(
        (f"pydantic.types.PathType.validate_{kind}" for kind in ("directory", "file", "new", "socket")),
        refused("Give Path, or a Literal of the paths that there are", "what a path leads to must exist, or must not"),
    ),
    "pydantic.types.ByteSize._validate": {"type": "integer", "minimum": 0},
}
"""What others ask beside them."""


def named(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the name of a function, with its module and as its author has written it."""
    while isinstance(function, partial):
        function = function.func
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}", kind.__qualname__.rpartition("<locals>.")[2]


IN_ASCII: Said = {"pattern": r"^[\x00-\x7f]*$"}


def searched(pattern: str, *, python: bool) -> Said:
    """Return the schema of the strings in which a pattern is found: of Rust's crate ``regex``, or of ``re`` if ``python``."""
    return {"pattern": pattern, PATTERN_DIALECT: "python" if python else "rust"}


def dates(schema: Mapping[str, Any]) -> list[Said]:
    """Return the schemas of the dates within the bounds of a core schema: the order of their texts is that of the calendar."""
    found: list[Said] = []
    for keyword, greater in (("ge", True), ("gt", True), ("le", False), ("lt", False)):
        if keyword in schema:
            bound = schema[keyword].isoformat()[:10]
            beyond = [
                f"{bound[:at]}[{int(digit) + 1}-9]" if greater else f"{bound[:at]}[0-{int(digit) - 1}]"
                for at, digit in enumerate(bound)
                if digit not in ("-", "9" if greater else "0")
            ]
            found.append({"pattern": f"^(?:{'|'.join([*beyond, bound if keyword[1] == 'e' else '(?!)'])})"})
    return found


def flags_of(pattern: Any) -> re.RegexFlag:
    """Return the flags of a compiled pattern of strings, but the one that all have."""
    return re.RegexFlag(pattern.flags & ~re.UNICODE) if isinstance(pattern, re.Pattern) else re.RegexFlag(0)


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
"""Up to here pydantic knows the multiples of a float: of one that is a fraction of twos, and of another."""


def by_function(schema: Any, found: JsonSchemaValue) -> JsonSchemaValue:
    """Return what a core schema with a function asks, whose own schema says something."""
    function = schema["function"]["function"]
    name, written = named(function)
    if name in FUNCTIONS or _SAID.fullmatch(name):
        said = FUNCTIONS.get(name, {})
        return deepcopy(said) if REFUSED in said or name.endswith("ByteSize._validate") else beside(found, said)
    if isinstance(function, partial) and function.func.__module__.startswith("pydantic."):
        inner = schema["schema"]
        for keyword, bound in function.keywords.items():
            if _is_counted(inner, found) if "length" in keyword else _is_number(inner):
                keys = BOUNDS.get(keyword, ())  # where no schema of its own has the keyword
                return beside(found, {key: plain(bound) for key in keys} or multiples(bound))
    return checked(found, written)


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
            return named(schema["function"]["function"])[0] == "pydantic.types.SecretStr"
    return found.get("type") == "array" and not found.get("uniqueItems")


def plain(value: Any) -> Any:
    """Return a bound as JSON has it."""
    return float(value) if isinstance(value, Decimal) else value


def multiples(divisor: Any) -> JsonSchemaValue:
    """Return the schema of the multiples that pydantic knows for what they are."""
    divisor = plain(divisor)
    most = EXACT if Decimal(divisor) == Decimal(str(divisor)) else NEARLY_EXACT
    return {"multipleOf": divisor, "minimum": -most, "maximum": most}
