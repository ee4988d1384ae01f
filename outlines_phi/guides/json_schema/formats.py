"""The formats of JSON Schema that assert something, each as a set of strings.

Soundness comes first: what a format accepts here is accepted by the usual validators, and so some of what the standards
allow is left out; :data:`LEFT_OUT` says what. A format asserts in every draft: each lets formats be added to its own.

    python -m outlines_phi.guides.json_schema.formats

makes their automata anew, which are read from a file: that of an e-mail address takes fifty times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from ...regex.code_automaton import CodeAutomaton
from .string_set import StringSet

KEPT = Path(__file__).with_suffix(".npz")
"""The file of the automata, by the names of the formats."""


@lru_cache
def format_strings(name: str) -> StringSet | None:
    """Return the strings of the format ``name``; ``None`` if it is not known."""
    if name not in FORMATS:
        return None
    with np.load(KEPT) as kept:
        return StringSet.of_automaton(CodeAutomaton.unpacked(kept[name]))


def _whole(pattern: str, *excluded: str) -> Callable[[], StringSet]:
    """Make a builder of the strings that ``pattern`` matches as a whole and none of ``excluded`` is found in."""

    def build() -> StringSet:
        strings = StringSet.matching(f"^(?:{pattern})$")
        for other in excluded:
            strings &= ~StringSet.matching(other)
        return strings

    return build


# Dates and times: RFC 3339.
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][48]|[2468]0|[13579][26])00)"
_DATE = (
    r"(?:(?!0000)[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    rf"02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])"


def _parts_of(units: str) -> str:
    """Return the pattern of one or more of these units that follow each other, each with its number."""
    number = "[0-9]{1,6}"
    return (
        "(?:"
        + "|".join(
            f"{number}{unit}"
            + "".join(f"(?:{number}{later}" for later in units[at + 1 :])
            + ")?" * (len(units) - at - 1)
            for at, unit in enumerate(units)
        )
        + ")"
    )


_DURATION = rf"P(?:{_parts_of('YMD')}(?:T{_parts_of('HMS')})?|T{_parts_of('HMS')}|[0-9]{{1,6}}W)"

# Hosts: RFC 1123, RFC 4291. A name has at most 253 characters: so many labels of up to 30, or fewer with longer ones among them.
_NO_TAG = "(?:^|[.@])[A-Za-z0-9].--"  # xn--


def _label(most: int, of: str = "A-Za-z0-9") -> str:
    return f"[{of}](?:[{of}\\-]{{0,{most - 2}}}[{of}])?"


_HOSTNAME = rf"{_label(63)}(?:\.{_label(63)}){{0,2}}|{_label(63)}(?:\.{_label(30)}){{0,6}}"
BYTE = "(?:[0-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
IPV4 = rf"{BYTE}(?:\.{BYTE}){{3}}"
_H = "[0-9A-Fa-f]{1,4}"
_LAST = f"(?:{_H}:{_H}|{IPV4})"  # 32 bits
IPV6 = (
    "(?:"
    + "|".join(
        [f"(?:{_H}:){{6}}{_LAST}"]
        + [
            (f"(?:(?:{_H}:){{0,{before - 1}}}{_H})?" if before else "") + "::" + f"(?:{_H}:){{{5 - before}}}{_LAST}"
            for before in range(6)
        ]
        + [f"(?:(?:{_H}:){{0,5}}{_H})?::{_H}", f"(?:(?:{_H}:){{0,6}}{_H})?::"]
    )
    + ")"
)

# E-mail: the dot-atoms of RFC 5321. The names that RFC 2606 and its like keep from the network are left out.
_ATOM = r"A-Za-z0-9!#$%&'*+\-/=?^_`{|}~"
_DOMAIN = rf"(?:{_label(30)}\.){{1,7}}"


def _email(local: str) -> Callable[[], StringSet]:
    def build() -> StringSet:
        strings = StringSet.matching(f"^[{local}]+(?:\\.[{local}]+)*@{_DOMAIN}[A-Za-z]{{2,30}}$")
        strings &= StringSet.matching("^[^@]{1,64}@") & ~StringSet.matching(_NO_TAG)
        kept = "|".join(
            "".join(f"[{c}{c.upper()}]" for c in name)
            for name in ("arpa", "invalid", "local", "localhost", "onion", "test")
        )
        return strings & ~StringSet.matching(f"\\.(?:{kept})$")

    return build


# URIs: RFC 3986 and 3987.
def _uri(more: str = "", private: str = "") -> tuple[str, str]:
    """Return the patterns of a URI and of a relative reference; ``more`` and ``private`` characters are allowed as they are."""
    pct = "%[0-9A-Fa-f]{2}"
    free = rf"A-Za-z0-9\-._~{more}!$&'()*+,;="
    segment = f"(?:[{free}:@]|{pct})"
    userinfo = f"(?:(?:[{free}:]|{pct})*@)?"
    host = rf"(?:\[(?:{IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9\-._~!$&'()*+,;=:]+)\]|(?:[{free}]|{pct})*)"
    authority = f"//{userinfo}{host}(?::[0-9]*)?"
    rest = f"(?:/{segment}*)*"
    absolute = f"/(?:{segment}+{rest})?"
    after = rf"(?:\?(?:[{free}:@/?{private}]|{pct})*)?(?:#(?:[{free}:@/?]|{pct})*)?"
    uri = rf"[A-Za-z][A-Za-z0-9+\-.]*:(?:{authority}{rest}|{absolute}|{segment}+{rest}|){after}"
    relative = f"(?:{authority}{rest}|{absolute}|(?:[{free}@]|{pct})+{rest}|){after}"
    return uri, relative


_UCS = "".join(
    f"\\u{{{first:X}}}-\\u{{{last:X}}}"
    for first, last in [(0xA0, 0xD7FF), (0xF900, 0xFDCF), (0xFDF0, 0xFFEF)]
    + [(plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)]
    + [(0xE1000, 0xEFFFD)]
)
_PRIVATE = "".join(
    f"\\u{{{first:X}}}-\\u{{{last:X}}}" for first, last in [(0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD)]
)
_URI, _RELATIVE = _uri()
_IRI, _IRI_RELATIVE = _uri(_UCS, _PRIVATE)

# URI templates: RFC 6570.
_VARNAME = r"[A-Za-z0-9_](?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"
_VARSPEC = rf"{_VARNAME}(?::[1-9][0-9]{{0,2}}|\*)?"
_LITERAL = rf"[!#$&-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|%[0-9A-Fa-f]{{2}}"
_TEMPLATE = rf"(?:{_LITERAL}|\{{[+#./;?&]?{_VARSPEC}(?:,{_VARSPEC})*\}})*"

_POINTER = "(?:/(?:[^~/]|~[01])*)*"


def _uuid(version: str = "[0-9A-Fa-f]") -> Callable[[], StringSet]:
    variant = "[0-9A-Fa-f]" if len(version) > 1 else "[89ABab]"
    return _whole(
        f"[0-9A-Fa-f]{{8}}-[0-9A-Fa-f]{{4}}-{version}[0-9A-Fa-f]{{3}}-{variant}[0-9A-Fa-f]{{3}}-[0-9A-Fa-f]{{12}}"
    )


FORMATS: Mapping[str, Callable[[], StringSet]] = MappingProxyType(
    {
        "date": _whole(_DATE),
        "time": _whole(_TIME),
        "date-time": _whole(f"{_DATE}[Tt]{_TIME}"),
        "duration": _whole(_DURATION),
        "email": _email(_ATOM),
        "idn-email": _email(_ATOM + r"\u00A1-\u00AC\u00AE-\u02FF\u0370-\u052F\u3041-\u3096\u4E00-\u9FA5\uAC00-\uD7A3"),
        "hostname": _whole(_HOSTNAME, _NO_TAG),
        "ipv4": _whole(IPV4),
        "ipv6": _whole(IPV6),
        "uri": _whole(_URI),
        "uri-reference": _whole(f"{_URI}|{_RELATIVE}"),
        "uri-template": _whole(_TEMPLATE),
        "iri": _whole(_IRI),
        "iri-reference": _whole(f"{_IRI}|{_IRI_RELATIVE}"),
        "uuid": _uuid(),
        **{f"uuid{version}": _uuid(str(version)) for version in range(1, 9)},
        "json-pointer": _whole(_POINTER),
        "relative-json-pointer": _whole(rf"(?:0|[1-9]+0?)(?:#|{_POINTER})"),
    }
)
"""The builder of the strings of each format."""

LEFT_OUT: Mapping[str, str] = {
    "date": "the year 0000, which Python's `datetime` has not",
    "time": "leap seconds, which Python's `datetime` has not",
    "date-time": "as `date` and `time`",
    "duration": "numbers of more than six digits: Python's `timedelta` ends at a thousand million days",
    "email": "quoted names, addresses in brackets, domains of one label, and those kept from the network, such as `.local`",
    "idn-email": "as `email`, and letters that are not Latin, Greek, Cyrillic, Chinese, Japanese or Korean",
    "hostname": "labels whose third and fourth character are both `-`, which must be decoded to be judged",
    "uri-template": "prefixes of four digits, and variables that begin with `%`",
    "relative-json-pointer": "digits behind a zero in its number",
}
"""The texts of a format's standard that the set leaves out: Python, or validators in wide use, stumble over them."""

if __name__ == "__main__":
    packed: dict[str, Any] = {name: build().code_automaton.packed for name, build in FORMATS.items()}
    np.savez_compressed(KEPT, **packed)
