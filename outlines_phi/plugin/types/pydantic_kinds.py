"""What pydantic reads as its own kinds of strings: URLs, networks, Base64 and others that JSON Schema has no word for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Said = dict[str, Any]
"""A JSON schema."""

REFUSED = "refused"
"""The keyword of what no schema says: what to do instead, and why."""


def refused(remedy: str, why: str) -> Said:
    """Return the schema that stands for what is refused; neither sentence has a full stop."""
    return {REFUSED: [remedy, why]}


_HOST = r"[a-z][a-z0-9]{0,20}(?:-[a-z0-9]{1,20})?(?:\.[a-z][a-z0-9]{0,20}){1,3}"
_USER = "(?:[a-z0-9]{1,20}(?::[a-z0-9]{1,20})?@)?"
_PATH = r"(?:/[A-Za-z0-9\-._~!$&()*+,;=:@]{0,60})"
_OTHER = r"^(?!(?:https?|wss?|ftp|file):)[a-z][a-z0-9+.\-]{0,20}:[A-Za-z0-9][A-Za-z0-9\-._~!$&()*+,;=:@/]*$"


def url(schema: Mapping[str, Any]) -> Said:
    """Return the schema of the URLs that a core schema of URLs reads: plain ones, which are written out as they are given."""
    schemes = schema.get("allowed_schemes")
    port = "(?!file:)" if schemes is None or "file" in schemes else ""
    named = "[a-z][a-z0-9+.\\-]{0,20}" if schemes is None else "|".join(map(re.escape, schemes))
    found: Said = {"type": "string"}
    patterns = [f"^{port}(?:{named})://{_USER}{_HOST}(?::[1-9][0-9]{{0,3}})?{_PATH}{{0,3}}$"]
    if port:
        patterns.append(f"^file://(?:{_HOST})?{_PATH}{{1,3}}$")
    if schemes is None and not schema.get("host_required"):
        patterns.append(_OTHER)
    found |= {"pattern": patterns[0]} if len(patterns) == 1 else {"anyOf": [{"pattern": each} for each in patterns]}
    if "max_length" in schema:
        found["maxLength"] = schema["max_length"] - 1  # of the URL with the slash that is put behind its host
    return found


_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = "[0-9a-f]{1,4}"
_IPV6 = f"(?:{_GROUP}(?::{_GROUP}){{7}}|(?:{_GROUP}(?::{_GROUP}){{0,3}})?::(?:{_GROUP}(?::{_GROUP}){{0,2}})?)"


def _network_of_ipv4(bits: int) -> str:
    """Return the pattern of the networks with so many bits, whose other bits are 0."""
    whole, part = divmod(bits, 8)
    octets = [_BYTE] * whole
    if part:
        octets.append("(?:" + "|".join(map(str, range(0, 256, 1 << 8 - part))) + ")")
    return r"\.".join(octets + ["0"] * (4 - len(octets))) + f"/{bits}"


_IPV4_NETWORK = "(?:" + "|".join([_IPV4, *map(_network_of_ipv4, range(33))]) + ")"
_IPV6_NETWORK = (
    f"(?:{_IPV6}(?:/128)?|{_GROUP}(?::{_GROUP}){{0,3}}::/(?:64|80|96|112)|{_GROUP}(?::{_GROUP})?::/(?:32|48)|::/0)"
)
_IPV4_INTERFACE = f"{_IPV4}(?:/(?:3[0-2]|[12]?[0-9]))?"
_IPV6_INTERFACE = f"{_IPV6}(?:/(?:12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"


def _whole(pattern: str) -> Said:
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def _base64(last: str) -> str:
    """Return the pattern of whole groups of Base64, with these two characters behind letters and digits."""
    one = f"[A-Za-z0-9{last}]"
    return f"(?:{one}{{4}})*(?:{one}[AQgw]==|{one}{{2}}[AEIMQUYcgkosw048]=)?"


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


def _base64_of_ascii() -> Said:
    """Return the schema of Base64, of either alphabet, that stands for ASCII: the bit above seven others is 0."""

    def without(bit: int) -> str:
        kept = [c for value, c in enumerate(_ALPHABET) if not value & bit]
        return f"[{''.join(kept)}]"  # the last two letters of the alphabets have all bits but one

    a, b, c, d = without(32), without(8), without(2), r"[A-Za-z0-9+/_\-]"
    return _whole(f"(?:{a}{b}{c}{d})*(?:{a}[AQgw]==|{a}{b}[AEIMQUYcgkosw048]=)?")


_ANY_STRING: Said = {"type": "string"}

FORMATS: Mapping[str, Said] = {
    "binary": _ANY_STRING,
    "password": _ANY_STRING,
    "path": _ANY_STRING,
    "file-path": _ANY_STRING,
    "directory-path": _ANY_STRING,
    "base64": _whole(_base64("+/")),
    "base64url": _whole(_base64("_\\-")),
    "ipv4network": _whole(_IPV4_NETWORK),
    "ipv6network": _whole(_IPV6_NETWORK),
    "ipv4interface": _whole(_IPV4_INTERFACE),
    "ipv6interface": _whole(_IPV6_INTERFACE),
    "ipvanyaddress": {"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    "ipvanyinterface": _whole(f"{_IPV4_INTERFACE}|{_IPV6_INTERFACE}"),
    "ipvanynetwork": _whole(f"{_IPV4_NETWORK}|{_IPV6_NETWORK}"),
    "name-email": {"type": "string", "format": "email"},
    "regex": refused(
        "Give str for a pattern, and compile it in the application",
        "a string is a regular expression, which is no regular set",
    ),
}
"""The strings of each format that pydantic writes for its types and JSON Schema does not know; all of them are valid."""

_EXISTS = refused("Give Path, or a Literal of the paths that there are", "what a path leads to must exist, or must not")

_IMPORT = refused("Give a Literal of the names that may be imported, as strings", "a string is what can be imported")

TERM = "outlines.types.dsl.Term.__get_pydantic_core_schema__.<locals>.<lambda>"
"""What matches whole texts with a term of Outlines."""

FUNCTIONS: Mapping[str, Said] = {
    **dict.fromkeys(
        [
            "ipaddress.IPv4Address",
            "ipaddress.IPv4Interface",
            "ipaddress.IPv4Network",
            "ipaddress.IPv6Address",
            "ipaddress.IPv6Interface",
            "ipaddress.IPv6Network",
            "operator.attrgetter",
            TERM,
            "pydantic._internal._generate_schema.GenerateSchema._path_schema.<locals>.path_validator",
            "pydantic._internal._validators.defaultdict_validator",
            "pydantic._internal._validators.ip_v4_address_validator",
            "pydantic._internal._validators.ip_v4_interface_validator",
            "pydantic._internal._validators.ip_v4_network_validator",
            "pydantic._internal._validators.ip_v6_address_validator",
            "pydantic._internal._validators.ip_v6_interface_validator",
            "pydantic._internal._validators.ip_v6_network_validator",
            "pydantic._internal._validators.pattern_bytes_validator",
            "pydantic._internal._validators.pattern_either_validator",
            "pydantic._internal._validators.pattern_str_validator",
            "pydantic.networks.EmailStr._validate",
            "pydantic.networks.IPvAnyAddress._validate",
            "pydantic.networks.IPvAnyInterface._validate",
            "pydantic.networks.IPvAnyNetwork._validate",
            "pydantic.networks.NameEmail._validate",
            "pydantic.networks._BaseMultiHostUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
            "pydantic.networks._BaseUrl.__get_pydantic_core_schema__.<locals>.wrap_val",
            "pydantic.types.EncodedBytes.decode",
            "pydantic.types.Secret.__get_pydantic_core_schema__.<locals>.<lambda>",
            "pydantic.types.SecretBytes",
            "pydantic.types.SecretStr",
        ],
        {},
    ),
    "pydantic._internal._validators.import_string": _IMPORT,
    **dict.fromkeys(
        (f"pydantic.types.PathType.validate_{kind}" for kind in ("directory", "file", "new", "socket")), _EXISTS
    ),
    "pydantic.types.ByteSize._validate": {"type": "integer", "minimum": 0},
    "pydantic.types.EncodedStr.decode_str": _base64_of_ascii(),
}
"""What functions within pydantic's types ask, by their names, beside what the schemas of these types say."""


def named(function: Callable[..., Any]) -> str:
    """Return the name of a function, with its module."""
    while isinstance(function, partial):
        function = function.func
    kind = function if hasattr(function, "__qualname__") else type(function)
    return f"{kind.__module__}.{kind.__qualname__}"
