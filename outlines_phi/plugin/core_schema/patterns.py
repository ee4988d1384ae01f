"""The ``pattern`` and ``format`` of a JSON schema as regular expressions of JSON text, in the dialect of outlines_core.

A ``pattern`` speaks of the characters of a string, and outlines_core puts it between quotation marks as it stands. There a
``.`` would match the quotation mark that ends the string, and ``\\d`` the digits of all scripts.
"""

from __future__ import annotations

import json
import re

_TOKEN = re.compile(
    r"""\(\?(?:<?[=!]|.) | \( | \) | \| | \^ | \$ | \. | \{\d+(?:,\d*)?\}\??
    | [*+?]\?? | \[ | \\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|c[A-Za-z]|[pP]\{\w+(?:=\w+)?\}|.) | .""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|c[A-Za-z]|[pP]\{\w+(?:=\w+)?\}|.)|.", re.DOTALL)

_RAW = r'"\\\x00-\x1F'
"""What no JSON string has as it is."""

_BLANKS = r" \x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}"
_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": rf"\t-\r{_BLANKS}"}
"""The classes of ECMA-262."""
_WIDE = {"d": r"\d", "w": r"\w", "s": rf"\s{_BLANKS}"}
"""Their complements are taken of these, such that no reader of the schema finds a character that it does not allow."""

_SPECIAL = r"\.+*?()|[]{}^$#&-~"
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_QUANTIFIER = re.compile(r"[*+?]\??|\{\d+(?:,\d*)?\}\??")

_DAY = (
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])?"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9\-]*[A-Za-z0-9])?\.)+[A-Za-z]{2,}"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?\^_`{|}~\-]+"
_URI = r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})"

FORMATS = {
    "date": _DAY,
    "time": _TIME,
    "date-time": f"{_DAY}T{_TIME}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_HOST}",
    "uri": rf"(?:(?:https?|ftp)://(?:{_HOST}|localhost)(?::[0-9]{{1,5}})?(?:/{_URI}*)*(?:\?(?:{_URI}|[/?])*)?"
    rf"(?:#(?:{_URI}|[/?])*)?|urn:[A-Za-z0-9][A-Za-z0-9\-]{{1,30}}:{_URI}+)",
}
"""The formats that outlines_core knows. Its own expressions for most of them match texts that are no JSON, or no such value."""


class PatternError(ValueError):
    """A pattern that cannot be written as a regular expression of JSON text; says why."""


def to_json_pattern(pattern: str) -> str:
    r"""Return the regular expression, a group, of the JSON spellings of the strings that ``pattern`` matches as a whole.

    Outlines reads a pattern as if it were anchored at both ends. An anchor is left out where it says that and nothing else, in
    each alternative by itself: ``^a|b$`` is ``a|b``. A quotation mark, a backslash and a control character are spelled with a
    backslash; classes match none of them.

    Raises
    ------
    PatternError
        Look-around, a back-reference, an anchor in the middle, or what ECMA-262 does not have.
    """
    tokens, position = [], 0
    while position < len(pattern):
        found = _TOKEN.match(pattern, position)
        assert found is not None
        position = _end_of_class(pattern, position) if found[0] == "[" else found.end()
        tokens.append(pattern[found.start() : position])
    partners = _partners(tokens)
    return "(?:" + "".join(_translated(tokens, index, partners) for index in range(len(tokens))) + ")"


def _end_of_class(pattern: str, start: int) -> int:
    position = start + 1
    while position < len(pattern) and pattern[position] != "]":
        position += 2 if pattern[position] == "\\" else 1
    if position >= len(pattern):
        raise PatternError("a class is not closed")
    return position + 1


def _partners(tokens: list[str]) -> dict[int, tuple[int, int]]:
    """Return the indices of the parentheses around each token; beyond the ends where there are none."""
    around, opened, groups = {}, [-1], {-1: len(tokens)}
    inside: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token == ")":
            if len(opened) == 1:
                raise PatternError("a group is not open")
            groups[opened.pop()] = index
        inside[index] = opened[-1]
        if token[0] == "(":
            opened.append(index)
    if len(opened) > 1:
        raise PatternError("a group is not closed")
    for index, start in inside.items():
        around[index] = start, groups[start]
    return around


def _translated(tokens: list[str], index: int, partners: dict[int, tuple[int, int]]) -> str:
    match token := tokens[index]:
        case "^":
            if not _begins(tokens, index - 1, partners):
                raise PatternError("`^` stands in the middle")
            return ""
        case "$":
            if not _ends(tokens, index + 1, partners):
                raise PatternError("`$` stands in the middle")
            return ""
        case "(" | "(?:":
            return "(?:"
        case ")" | "|":
            return token
        case ".":
            return rf"[^{_RAW}\x{{2028}}\x{{2029}}\x7F-\x9F]"
    if token[0] == "(":
        raise PatternError(f"`{token}` is not offered")
    if _QUANTIFIER.fullmatch(token):
        if index == 0 or tokens[index - 1] in ("^", "$", "(", "|", "(?:") or _QUANTIFIER.fullmatch(tokens[index - 1]):
            raise PatternError(f"`{token}` repeats nothing")
        return token
    if token[0] == "[":
        return _class(token[1:-1])
    return _class(token, outside=True) if _is_class(token) else _literal(_character(token, outside=True))


def _begins(tokens: list[str], index: int, partners: dict[int, tuple[int, int]]) -> bool:
    """Tell whether nothing comes before what follows the token at ``index``."""
    if index < 0:
        return True
    start, end = partners[index] if tokens[index] == "|" else (index, partners.get(index + 1, (0, len(tokens)))[1])
    if tokens[index] != "|" and tokens[index][0] != "(":
        return False
    if start < 0:
        return True
    repeated = end + 1 < len(tokens) and _QUANTIFIER.fullmatch(tokens[end + 1])
    return not repeated and _begins(tokens, start - 1, partners)


def _ends(tokens: list[str], index: int, partners: dict[int, tuple[int, int]]) -> bool:
    """Tell whether nothing comes after what precedes the token at ``index``."""
    if index >= len(tokens):
        return True
    if tokens[index] not in ("|", ")"):
        return False
    end = partners[index][1] if tokens[index] == "|" else index
    return _ends(tokens, end + 1, partners)


def _is_class(token: str) -> bool:
    return token[0] == "\\" and token[1:2] in tuple("dDwWsSpP")


def _class(body: str, *, outside: bool = False) -> str:
    """Return a class, without what no JSON string has."""
    negated = not outside and body.startswith("^")
    items = body if not negated else body[1:]
    if not items:
        raise PatternError("an empty class is not offered")
    parts, pieces = [], _ESCAPE.findall(items)
    for place, piece in enumerate(pieces):
        if _is_class(piece):
            parts.append(_shorthand(piece, negated))
        elif (
            piece == "-"
            and 0 < place < len(pieces) - 1
            and not (_is_class(pieces[place - 1]) or _is_class(pieces[place + 1]))
        ):
            parts.append("-")
        else:
            parts.append(f"\\x{{{ord(_character(piece, outside=False)):X}}}")
    return f"[[{'^' if negated else ''}{''.join(parts)}]&&[^{_RAW}]]"


def _shorthand(piece: str, negated: bool) -> str:
    kind = piece[1]
    if kind in "pP":
        if len(piece) == 2:
            raise PatternError(f"`{piece}` is not offered")
        return piece
    # What is taken away twice is taken away in full, what is taken away once as widely as anybody reads it.
    if kind.islower():
        return (_WIDE if negated else _NARROW)[kind]
    return f"[^{(_NARROW if negated else _WIDE)[kind.lower()]}]"


def _character(piece: str, *, outside: bool) -> str:
    """Return the one character that a piece of a pattern stands for."""
    if piece[0] != "\\":
        if outside and piece == "{":
            raise PatternError("`{` stands for itself; write `\\{`")
        return piece
    if len(piece) == 1:
        raise PatternError("nothing follows a backslash")
    kind, rest = piece[1], piece[2:]
    if kind in "ux" and rest:
        if 0xD800 <= int(rest, 16) < 0xE000:
            raise PatternError("half of a surrogate pair is not offered")
        return chr(int(rest, 16))
    if kind == "c" and rest:
        return chr(ord(rest) % 32)
    if kind == "b" and not outside:
        return "\b"
    if kind in _CONTROLS:
        return _CONTROLS[kind]
    if kind.isalnum():
        raise PatternError(f"`{piece}` is not offered")
    return kind


def _literal(character: str) -> str:
    """Return the regular expression of the JSON spelling of a character."""
    spelled = literal(character)
    return f"(?:{spelled})" if len(character) < len(json.dumps(character, ensure_ascii=False)) - 2 else spelled


def literal(text: str) -> str:
    """Return the regular expression of the JSON spelling of a text, without quotation marks."""
    spelled = json.dumps(text, ensure_ascii=False)[1:-1]
    return "".join(f"\\{character}" if character in _SPECIAL else character for character in spelled)
