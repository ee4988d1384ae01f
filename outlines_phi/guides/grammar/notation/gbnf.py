r"""Grammars in GBNF, the dialect of llama.cpp: rules over characters, without terminals and without a lexer.

``name ::= ...`` up to the end of the line; inside parentheses, behind ``::=`` and behind ``|`` a line may break anywhere. Lark's
parser reads it into trees; :mod:`~outlines_phi.guides.grammar.notation.scannerless` makes a grammar of them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import takewhile
from typing import final

from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedToken, VisitError
from lark.lark import PostLex

from ....errors import GrammarError
from ....regex.code_points import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE, both, others, ranges
from ....regex.syntax_tree import Chars, Node, Repeat, RuleName, Sequence, rules_of
from .lowering import REPEATS, GrammarRule, TreeMaker, position
from .source import check_writable, meant

VALID = others((FIRST_SURROGATE, AFTER_SURROGATES))
"""All characters: no text has a surrogate."""

_MOST_NESTED = 150  # The most groups inside each other that are read

_DIALECT = r"""
start: _NL? (rule (_NL rule)* _NL?)?
rule: NAME _DEFINED choice
choice: sequence (_OR sequence)*
sequence: _repeated*
_repeated: _atom | repeat
repeat: _repeated (OPERATOR | BOUNDS)
_atom: _OPEN choice _CLOSE | string | characters | anything | named | special
string: STRING
characters: CLASS
anything: "."
named: NAME
special: SPECIAL
SPECIAL: /<[^<>\s]+>/
NAME: /[A-Za-z0-9_-]+/
STRING: /"(\\.|[^"\\])*"/s
CLASS: /\[(\\.|[^\]\\])*\]/s
OPERATOR: /[*+?]/
BOUNDS: /\{[ \t]*[0-9]{1,6}[ \t]*(,[ \t]*([0-9]{1,6}[ \t]*)?)?\}/
_OPEN: "("
_CLOSE: ")"
_DEFINED: /::=([ \t\r\n]|#[^\r\n]*)*/
_OR: /\|([ \t\r\n]|#[^\r\n]*)*/
_NL.2: /([ \t]*(#[^\r\n]*)?(\r\n?|\n))+[ \t]*/
UNREAD.-1: /./s
%ignore /[ \t]+|#[^\r\n]*/
"""

_ESCAPE = re.compile(r"""\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([tnr\\"\[\]-]))""")
_NAMED = {"t": 0x09, "n": 0x0A, "r": 0x0D}

_UNREAD = {
    '"': 'this string is not closed; add `"`',
    "[": "this class of characters is not closed; add `]`",
    "{": "repeats are written `{3}`, `{3,}` or `{3,5}`, with numbers of at most six digits",
    "<": "a special token is written `<name>` or `<[5]>`",
    "!": (
        "a negated token would be any other token, whatever it writes, and a grammar says what texts are, however tokens write "
        "them. Write the characters that may come, `.` for any; special tokens are never inside a text"
    ),
}
"""Characters that begin what is not read, and the remedy of each."""


class _TooDeep(Exception):
    """More groups than are read are inside each other; it has the last one."""


@final
class _Groups(PostLex):
    """Leaves out the line ends inside of groups."""

    always_accept = ("UNREAD",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        for token, opened in _grouped(stream):
            if len(opened) > _MOST_NESTED:
                raise _TooDeep(token)
            if token.type != "_NL" or not opened:
                yield token


def _grouped(stream: Iterator[Token]) -> Iterator[tuple[Token, tuple[Token, ...]]]:
    """Yield tokens, each with the beginnings of the groups that are open behind it."""
    opened: list[Token] = []
    for token in stream:
        if token.type == "_OPEN":
            opened.append(token)
        elif token.type == "_CLOSE":
            del opened[-1:]
        yield token, tuple(opened)


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_DIALECT, parser="lalr", lexer="basic", postlex=_Groups(), maybe_placeholders=False)


def read_gbnf(text: str, starts: Iterable[str]) -> dict[str, GrammarRule]:
    """Return the rules that ``text`` defines, by name.

    A :class:`GrammarError` with line, column and caret where it cannot be read, or a rule that is used is not defined.
    """
    check_writable(text)
    try:
        rules: dict[str, GrammarRule] = _GBNFReader(text).transform(_parser().parse(text))
    except VisitError as error:
        raise error.orig_exc from None
    except UnexpectedToken as error:
        raise _unexpected(text, error) from None
    except _TooDeep as error:
        said = f"more than {_MOST_NESTED} groups are inside each other here; give inner ones a rule"
        raise GrammarError(said, text, position(error.args[0])) from None
    for start in starts:
        if start not in rules:
            hint = meant(start, rules)
            raise GrammarError(
                f"there is no rule {start!r} to start with; {hint}Define it, or name another with `start=`", text, 0
            )
    return rules


def _unexpected(text: str, error: UnexpectedToken) -> GrammarError:
    token, expected = error.token, error.expected
    at = len(text) if token.type == "$END" else position(token)
    before = takewhile(lambda group: position(group[0]) < at, _grouped(_parser().lex(text)))
    opened = next((opened for _, opened in deque(before, maxlen=1)), ())
    if "_DEFINED" in expected:
        message = "`::=` is expected here, behind the name of a rule"
    elif "NAME" in expected and "_OPEN" not in expected:
        message = "the name of a rule is expected here, of letters, digits, `-` and `_`"
    elif token.type == "UNREAD" and token in _UNREAD:
        message = _UNREAD[token]
    elif token.type in ("OPERATOR", "BOUNDS"):
        message = "there is nothing to repeat before this; write it behind what it repeats"
    elif opened and token.type == "$END":
        message, at = "this group is not closed; add `)`", position(opened[-1])
    elif opened:
        message = "`)` is expected here, or more of the group"
    else:
        message = "a rule ends here, so a new line is expected. A rule goes on over several lines inside parentheses and behind `|`"
    return GrammarError(message, text, at)


@final
@v_args(inline=True)
class _GBNFReader(TreeMaker):
    """Makes trees of what Lark has read."""

    def start(self, *rules: tuple[Token, Node]) -> dict[str, GrammarRule]:
        found: dict[str, GrammarRule] = {}
        for name, body in rules:
            if name in found:
                raise self._error(f"rule {str(name)!r} is defined twice; remove one, or join them with `|`", name)
            found[str(name)] = GrammarRule(body, self.text.count("\n", 0, position(name)) + 1)
        for used in (used for rule in found.values() for used in rules_of(rule.body)):
            if used.rule not in found:
                said = f"rule {used.rule!r} is not defined; {meant(used.rule, found)}Define it, or leave it out"
                raise GrammarError(said, self.text, used.at)
        return found

    def rule(self, name: Token, body: Node) -> tuple[Token, Node]:
        return name, body

    def repeat(self, part: Node, how: Token) -> Node:
        if how.type == "OPERATOR":
            return Repeat(part, *REPEATS[how])
        least, comma, most = how.strip("{}").partition(",")
        if not comma or not most.strip():
            return Repeat(part, int(least), None if comma else int(least))
        if int(most) < int(least):
            raise self._error(f"this asks for at least {int(least)} and at most {int(most)}; swap them", how)
        return Repeat(part, int(least), int(most))

    def string(self, token: Token) -> Node:
        characters: list[Node] = []
        for at, code, _ in self._codes(token, token[1:-1]):
            if 0xD800 <= code < 0xE000:
                raise self._error("a lone surrogate has no UTF-8; remove it", token, at)
            characters.append(Chars(ranges((code, code))))
        return characters[0] if len(characters) == 1 else Sequence(tuple(characters))

    def characters(self, token: Token) -> Node:
        inside, found = token[1:-1], list[tuple[int, int]]()
        codes = list(self._codes(token, inside.removeprefix("^"), inside.startswith("^")))
        while codes:
            at, low, _ = codes.pop(0)
            high = low
            if len(codes) > 1 and codes[0][2] == "-":
                high = codes[1][1]
                del codes[:2]
            if high < low:
                said = "this range is empty: its first character comes after its last; swap them"
                raise self._error(said, token, at)
            found.append((low, high))
        within = both(others(ranges(*found)) if inside.startswith("^") else ranges(*found), VALID)
        if not found or not within:
            raise self._error("this class has no character; write `.` for any character, or leave it out", token)
        return Chars(within)

    def anything(self) -> Node:
        return Chars(VALID)

    def named(self, name: Token) -> Node:
        return RuleName(str(name), position(name))

    def _codes(self, token: Token, text: str, skipped: int = 0) -> Iterator[tuple[int, int, str]]:
        """Yield each character of a string or class: its offset in the token, its code, and as it is written."""
        at = 0
        while at < len(text):
            if text[at] != "\\":
                written, code = text[at], ord(text[at])
            elif found := _ESCAPE.match(text, at):
                written, hexadecimal = found[0], found[1] or found[2] or found[3]
                code = int(hexadecimal, 16) if hexadecimal else _NAMED.get(found[4], ord(found[4]))
            else:
                raise self._error(
                    r"this escape is not known. There are `\n`, `\r`, `\t`, `\\`, `\"`, `\[`, `\]`, `\-`, and `\x41`, `\u0041` "
                    r"and `\U00000041` for code points",
                    token,
                    1 + skipped + at,
                )
            if code >= CODE_POINTS:
                said = "there is no character of this code point; the last is `\\U0010FFFF`"
                raise self._error(said, token, 1 + skipped + at)
            yield 1 + skipped + at, code, written
            at += len(written)
