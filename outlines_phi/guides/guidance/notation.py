r"""The dialect of Lark in which guidance writes its grammars (``ll_grammar()``), which is that of llguidance.

Lark's own parser reads it, by a grammar of the dialect. Values of JSON behind ``%json``, ``%regex`` and ``%llguidance`` are read
before that, by Python's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple, final

from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedInput, VisitError

from ...errors import GrammarError
from ...regex.patterns import literal
from ...regex.syntax_tree import Leaf, Node, Repeat, RuleName
from ..grammar.notation.lowering import REPEATS, TreeMaker, position


@final
@dataclass(frozen=True)
class Spelled(Leaf):
    """Texts that a regular expression matches, in the dialect of Outlines."""

    pattern: str
    at: int  # where it is written, an offset


@final
@dataclass(frozen=True, eq=False)
class Values(Leaf):
    """The JSON values that a schema is true of: ``%json``."""

    schema: Any
    at: int


@final
@dataclass(frozen=True, eq=False)
class Nested(Leaf):
    """A grammar inside another one: ``%lark``."""

    definitions: tuple[Definition, ...]
    at: int


class Attribute(NamedTuple):
    """Attribute of a rule, in brackets behind its name: a number, a name, the part that ends it, or ``True``."""

    value: Any
    at: int


class Definition(NamedTuple):
    """A rule, or a terminal, whose name is in capitals."""

    name: str
    attributes: Mapping[str, Attribute]
    body: Node
    at: int

    @property
    def is_terminal(self) -> bool:
        """True if it is one lexeme."""
        return self.name.isupper()


HEADER = "%llguidance"
"""The first line of a grammar of this dialect."""

_PLACEHOLDER = "\x01"
_DECODER = json.JSONDecoder(parse_float=Decimal)

_DIALECT = r"""
start: _NL? (_item (_NL _item)*)? _NL?
_item: rule | options | unread
rule: (RULE | TERMINAL) ["[" attribute ("," attribute)* "]"] ":" choice
attribute: RULE ["=" (STRING | REGEXP | NUMBER | TERMINAL)]
options: "%llguidance" JSON
unread: UNREAD
choice: sequence (_OR sequence)*
sequence: _repeated*
_repeated: _atom | repeat
repeat: _atom OPERATOR
      | _atom "{" bounds "}"
      | _atom "~" NUMBER [".." NUMBER] -> between
bounds: NUMBER -> both
      | NUMBER "," -> least
      | "," NUMBER -> most
      | NUMBER "," NUMBER -> both
_atom: "(" choice ")" | maybe | range | spelled | matched | named | special | reference | values | chunks | nested
maybe: "[" choice "]"
range: STRING ".." STRING
spelled: STRING
matched: REGEXP
named: RULE | TERMINAL
special: SPECIAL
reference: REFERENCE
values: "%json" JSON
chunks: "%regex" JSON
nested: LARK "{" start "}"
LARK: "%lark"
RULE: /!?[?_]?[a-z][_a-z0-9\-]*/
TERMINAL: /_?[A-Z][_A-Z0-9\-]*/
STRING: /"(\\.|[^"\\\n])*"i?/
REGEXP: /\/(?![\/*])(\\.|[^\/\\\n])+\/[imslux]*/
NUMBER: /[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/
OPERATOR: /[+*?]/
SPECIAL: /<[^<>\s]+>/
REFERENCE: /@[A-Za-z0-9_\-]+/
UNREAD: /%(ignore|import|override|extend|declare)[^\n]*/
JSON: "\x01"
_OR.2: /((\s*((\/\/|\#)[^\n]*)?\n)+\s*)?\|/
_NL: /(\s*((\/\/|\#)[^\n]*)?\n)+\s*/
%ignore /[ \t\r]+/
%ignore /(\/\/|\#)[^\n]*/
"""

_ELSEWHERE = re.compile(
    r"""(?://|\#)[^\n]* | "(?:\\.|[^"\\\n])*" | /(?![/*])(?:\\.|[^/\\\n])+/ | (?P<keyword>%(?:json|regex|llguidance))\b""",
    re.VERBOSE,
)

_UNREAD = {
    "%ignore": "`%ignore` is not read: what is ignored may stand between any two lexemes. Write the white space into the rules",
    "%import": "`%import` is not read. Write the terminal out, as in `INT: /[0-9]+/`",
}

_ATTRIBUTES = {
    "capture": "STRING",
    "max_tokens": "NUMBER",
    "stop": "an end",
    "suffix": "an end",
    "stop_capture": "STRING",
    "lazy": "",
    "temperature": "NUMBER",
}
"""The attributes of a rule, and the type of the value of each."""


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_DIALECT, parser="lalr", maybe_placeholders=False, propagate_positions=False)


def parse(text: str) -> tuple[Definition, ...]:
    """Parse the text of a grammar into its definitions, in its order.

    Raises
    ------
    GrammarError
        The text is not of this dialect, or has what is not read here; with line, column and caret.
    """
    objects, without = _values(text)
    try:
        found: tuple[Definition, ...] = _LLGuidanceReader(text, objects).transform(_parser().parse(without))
        return found
    except UnexpectedInput as error:
        at = error.pos_in_stream
        raise GrammarError(
            "this is not expected here, in llguidance's dialect of grammars. Give what ll_grammar() of a guidance grammar returns",
            text,
            len(text.rstrip()) if at is None or at < 0 else at,
        ) from None
    except VisitError as error:
        raise error.orig_exc from None


def _values(text: str) -> tuple[dict[int, Any], str]:
    """Return the values of JSON by where they begin, and the text with a placeholder for each, at the same offsets."""
    objects: dict[int, Any] = {}
    pieces, at = [], 0
    while (found := _ELSEWHERE.search(text, at)) is not None:
        pieces.append(text[at : found.end()])
        at = found.end()
        if found["keyword"]:
            begin = re.compile(r"\s*").match(text, at).end()  # type: ignore[union-attr]
            try:
                value, end = _DECODER.raw_decode(text, begin)
            except json.JSONDecodeError as error:
                raise GrammarError(f"JSON is expected here: {error.msg}", text, min(error.pos, len(text))) from None
            except RecursionError:
                raise GrammarError("this JSON is nested too deeply", text, begin) from None
            objects[begin] = value
            pieces.append(" " * (begin - at) + _PLACEHOLDER + " " * (end - begin - 1))
            at = end
    return objects, "".join([*pieces, text[at:]])


@v_args(inline=True)
class _LLGuidanceReader(TreeMaker):
    """Makes trees of what Lark has read."""

    def __init__(self, text: str, objects: Mapping[int, Any]) -> None:
        super().__init__(text)
        self._objects = objects

    def start(self, *items: Definition | None) -> tuple[Definition, ...]:
        return tuple(item for item in items if item is not None)

    def rule(self, name: Token, *parts: Any) -> Definition:
        *attributes, body = parts
        said = {key: attribute for key, attribute in attributes}
        if said and name.isupper():
            raise self._error("a terminal has no attributes; rules have, whose names are in small letters", name)
        return Definition(str(name).lstrip("!?"), said, body, position(name))

    def attribute(self, key: Token, value: Token | None = None) -> tuple[str, Attribute]:
        if key not in _ATTRIBUTES:
            raise self._error(f"the attribute {str(key)!r} is not known; there are {', '.join(_ATTRIBUTES)}", key)
        asked = _ATTRIBUTES[key]
        given = "" if value is None else value.type
        if asked == "an end" and given in ("STRING", "REGEXP", "TERMINAL"):
            assert value is not None
            read_end = {"STRING": self.spelled, "REGEXP": self.matched, "TERMINAL": self.named}[value.type]
            return str(key), Attribute(read_end(value), position(key))
        if given != asked and not (key == "capture" and value is None):
            raise self._error(f"the attribute {str(key)!r} takes {f'a {asked}' if asked else 'no value'}", key)
        read = True if value is None else self._string(value) if given == "STRING" else float(value)
        return str(key), Attribute(read, position(key))

    def options(self, value: Token) -> None:
        said = self._objects[position(value)]
        # `no_forcing` concerns tokens that are forced, not texts.
        if not isinstance(said, dict) or said.keys() - {"no_forcing"}:
            raise self._error("these options are not read; leave them out: `%llguidance {}`", value)

    def unread(self, statement: Token) -> None:
        word = statement.split()[0]
        raise self._error(_UNREAD.get(word, f"`{word}` is not read; write the rules out"), statement)

    def repeat(self, part: Node, how: Token | tuple[int, int | None]) -> Node:
        return Repeat(part, *(REPEATS[how] if isinstance(how, Token) else how))

    def least(self, count: Token) -> tuple[int, None]:
        return self.both(count)[0], None

    def most(self, count: Token) -> tuple[int, int]:
        return 0, self.both(count)[1]

    def between(self, part: Node, *bounds: Token) -> Node:
        return Repeat(part, *self.both(*bounds))

    def both(self, least: Token, most: Token | None = None) -> tuple[int, int]:
        most = least if most is None else most
        if not (least.isdigit() and most.isdigit() and len(most) < 10 and int(least) <= int(most)):
            raise self._error("a repeat takes two whole numbers, the smaller one first", least)
        return int(least), int(most)

    def maybe(self, part: Node) -> Node:
        return Repeat(part, 0, 1)

    def range(self, first: Token, last: Token) -> Node:
        ends = [self._string(one) for one in (first, last)]
        if any(len(end) != 1 for end in ends) or ends[0] > ends[1]:
            raise self._error('a range is between two characters, the smaller one first, as in `"a".."z"`', first)
        return Spelled("[" + "-".join(literal(end) for end in ends) + "]", position(first))

    def spelled(self, value: Token) -> Node:
        return Spelled(literal(self._string(value), ignore_case=value.endswith("i")), position(value))

    def matched(self, value: Token) -> Node:
        pattern, _, flags = value[1:].rpartition("/")
        if "l" in flags:
            raise self._error("the flag `l` is not read; leave it out", value)
        return Spelled(f"(?{flags}:{pattern})" if flags else pattern, position(value))

    def named(self, name: Token) -> Node:
        return RuleName(str(name), position(name))

    def reference(self, name: Token) -> Node:
        raise self._error("the grammar that this refers to is not here; write it in this place, `%lark { ... }`", name)

    def values(self, value: Token) -> Node:
        return Values(self._objects[position(value)], position(value))

    def chunks(self, value: Token) -> Node:
        said = self._objects[position(value)]
        match said:
            case {"substring_chunks": [*chunks]}:
                pass
            case {"substring_chars": str(text)}:
                chunks = list(text)
            case _:
                raise self._error(
                    "`%regex` takes `substring_chunks`, a list of texts; write a /regular expression/", value
                )
        if not all(isinstance(chunk, str) for chunk in chunks):
            raise self._error("`substring_chunks` is a list of texts", value)
        written = [literal(chunk) for chunk in chunks]
        if sum(map(len, written)) * (len(written) + 1) > 2 * _MOST_WRITTEN:
            raise self._error(
                f"the parts of this text take more than {_MOST_WRITTEN:,} characters when they are written out. Give a shorter "
                "text, or longer chunks",
                value,
            )
        return Spelled(_substrings(written), position(value))

    def nested(self, keyword: Token, definitions: tuple[Definition, ...]) -> Node:
        return Nested(definitions, position(keyword))

    def _string(self, token: Token) -> str:
        try:
            text: str = json.loads(token.removesuffix("i"))
            text.encode()
        except (json.JSONDecodeError, UnicodeEncodeError):
            raise self._error("this is no string of JSON: see its escapes", token) from None
        return text


_MOST_WRITTEN = 200_000


def _substrings(chunks: list[str]) -> str:
    """Return the pattern of some chunks in a row, or none."""
    rest, ways = "", []
    for chunk in reversed(chunks):
        rest = f"{chunk}(?:{rest})?" if rest else chunk
        ways.append(rest)
    return f"(?:{'|'.join(reversed(ways))})?" if ways else ""
