r"""Grammars in GBNF, the dialect of llama.cpp: rules over characters, without terminals and without a lexer.

``name ::= ...`` up to the end of the line; inside parentheses, behind ``::=`` and behind ``|`` a line may break anywhere. Lark's
parser reads it into trees. Of their rules pieces are made that longest match finds again in every text: a grammar over lexemes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, combinations, count, groupby, takewhile
from typing import final

import numpy as np
from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedToken, VisitError
from lark.lark import PostLex

from ....automata.automaton import DEAD, ByteAutomaton, Product
from ....automata.byte_machine import closure
from ....errors import GrammarError, GrammarWarning, OutlinesPhiError, warn_of
from ....regex.code_automaton import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE, both, others, ranges
from ....regex.patterns import compile_regex
from ....regex.syntax_tree import EMPTY, Chars, Choice, Leaf, Node, Repeat, RuleName, Sequence, parts_of, rules_of
from ..grammar import Grammar, Production, Terminal
from ..lexeme_automaton import bytes_behind, joint
from .lowering import REPEATS, GrammarRule, Lowering, SpecialToken, TreeMaker, position, written
from .source import check_writable, meant

_MOST_WRITTEN = 10_000
"""The most characters of the pattern of a terminal."""


class _NotRegular(Exception):
    """A rule uses itself or has a special token, or its expression is too long to be that of a terminal."""


@final
@dataclass(frozen=True)
class TerminalLeaf(Leaf):
    """A part of a rule that is one terminal."""

    expression: Node


@final
class Pieces:
    """The expressions of rules: which are regular, as patterns; ``opened`` are those that are taken apart nevertheless."""

    def __init__(self, rules: Mapping[str, GrammarRule]) -> None:
        self.rules = rules
        self.opened: set[Node] = set()
        self._patterns: dict[Node, str | None] = {}
        self._automata: dict[Node, ByteAutomaton | None] = {}

    def pattern(self, expression: Node) -> str | None:
        """Return the regular expression of what an expression derives, ``None`` if it is not regular or too long."""
        if expression not in self._patterns:
            self._patterns[expression] = None  # if it uses itself
            try:
                pattern = written(expression, self._of_rule)
                self._patterns[expression] = pattern if len(pattern) <= _MOST_WRITTEN else None
            except _NotRegular:
                pass
        return self._patterns[expression]

    def _of_rule(self, rule: Node) -> str:
        if isinstance(rule, SpecialToken):
            raise _NotRegular
        assert isinstance(rule, RuleName)
        if (pattern := self.pattern(self.rules[rule.rule].body)) is None:
            raise _NotRegular
        return f"(?:{pattern})"

    def is_terminal(self, expression: Node) -> bool:
        """Return True if an expression is to be one terminal."""
        return expression not in self.opened and self.pattern(expression) is not None

    def automaton(self, expression: Node) -> ByteAutomaton | None:
        """Return the automaton of a regular expression, ``None`` where it is too large."""
        if expression not in self._automata:
            try:
                special = expression.written if isinstance(expression, SpecialToken) else None
                made = (
                    compile_regex(self.pattern(expression) or "")
                    if special is None
                    else ByteAutomaton.of_special(special)
                )
                self._automata[expression] = made
            except OutlinesPhiError:
                self._automata[expression] = None
        return self._automata[expression]

    def cut(self, tree: Node) -> Node:
        """Return a tree with its largest regular pieces as leaves."""
        if self.is_terminal(tree):
            return self._terminal(tree)
        match tree:
            case Choice(branches):
                regular = tuple(branch for branch in branches if self.pattern(branch) is not None)
                if len(regular) < 2 or not self.is_terminal(Choice(regular)):
                    return Choice(tuple(map(self.cut, branches)))
                others = (self.cut(branch) for branch in branches if branch not in regular)
                return Choice((self._terminal(Choice(regular)), *others))
            case Sequence(parts):
                runs = groupby(parts, lambda part: self.pattern(part) is not None)
                cut = ((self._run(tuple(run)) if regular else map(self.cut, run)) for regular, run in runs)
                return Sequence(tuple(chain.from_iterable(cut)))
            case Repeat(part, least, most):
                return Repeat(self.cut(part), least, most)
            case SpecialToken():
                return TerminalLeaf(tree)
        return tree

    def _run(self, parts: tuple[Node, ...]) -> Iterator[Node]:
        """Yield regular parts that follow each other: first a piece of as many of them as can be."""
        while parts:
            last = next((end for end in range(len(parts), 0, -1) if self.is_terminal(_joined(parts[:end]))), 0)
            if all(isinstance(part, Chars) for part in parts) and last < len(parts):
                last = 1  # a string is one piece or none
            yield self.cut(_joined(parts[: max(last, 1)]))
            parts = parts[max(last, 1) :]

    def _terminal(self, expression: Node) -> Node:
        """Return the leaf of a regular expression, which may be left out where it may be empty."""
        automaton, leaf = self.automaton(expression), TerminalLeaf(expression)
        if automaton is None or not automaton.accepting[automaton.start]:
            return leaf
        return EMPTY if automaton.without_empty().is_empty else Choice((EMPTY, leaf))


def _joined(parts: tuple[Node, ...]) -> Node:
    """Return one part after another."""
    return parts[0] if len(parts) == 1 else Sequence(parts)


_SHOWN = 60  # The length of a pattern in the name of a terminal

_PATIENCE = 10
"""The most times that the last part of a sequence is taken off before all of its parts are taken apart."""


def over_lexemes(rules: Mapping[str, GrammarRule], starts: tuple[str, ...]) -> Grammar:
    """Return the grammar of the texts that one of the rules ``starts`` derives.

    Raises :class:`GrammarError` where repeats make it too large.
    """
    start = " | ".join(starts)
    if len(starts) > 1:
        rules = {**rules, start: GrammarRule(Choice(tuple(map(RuleName, starts))))}
    needed = set(closure([start], lambda rule: (used.rule for used in rules_of(rules[rule].body))))
    if unused := [name for name in rules if name not in needed]:
        warn_of(
            GrammarWarning,
            f"rules that the start rule {start!r} does not need are left out: {', '.join(map(repr, unused))}. Use them, or remove "
            "them",
        )
    pieces = Pieces(rules)
    for tried in count():
        cut = _Cut(pieces, start)
        apart = cut.conflicts()
        if not apart:
            return cut.grammar()
        assert not apart <= pieces.opened
        pieces.opened |= apart
        if tried >= _PATIENCE:
            pieces.opened.update(run for each in apart for run in _runs(each))
    raise AssertionError("single characters have no conflicts")


def _runs(expression: Node) -> Iterator[Node]:
    """Yield all runs of several parts of a sequence."""
    if isinstance(expression, Sequence):
        for first, last in combinations(range(len(expression.parts) + 1), 2):
            if last > first + 1:
                yield Sequence(expression.parts[first:last])


@final
class _Cut:
    """One way to cut rules into terminals."""

    def __init__(self, pieces: Pieces, start: str) -> None:
        self._pieces = pieces
        rules: dict[str, GrammarRule] = {}
        found: dict[Node, None] = {}
        for name in (waiting := [start]):  # it grows
            if name not in rules:
                body, line = pieces.rules[name]
                rules[name] = GrammarRule(pieces.cut(body), line)
                leaves = [part for part in parts_of(rules[name].body) if isinstance(part, Leaf)]
                waiting += [leaf.rule for leaf in leaves if isinstance(leaf, RuleName)]
                found |= dict.fromkeys(leaf.expression for leaf in leaves if isinstance(leaf, TerminalLeaf))
        self._terminals = list(found)
        self._lowered = Lowering(rules, map(TerminalLeaf, found))

    def conflicts(self) -> set[Node]:
        """Return the expressions that have to be taken apart, so that longest match cuts every member as it was derived."""
        wrong = {i for i, terminal in enumerate(self._terminals) if self._pieces.automaton(terminal) is None}
        if not wrong and self._terminals:
            wrong = self._prolonged()
        apart = {self._terminals[i] for i in wrong if not isinstance(self._terminals[i], Chars)}
        assert bool(apart) == bool(wrong), "single characters are never taken apart"
        return apart

    def grammar(self) -> Grammar:
        """Return the grammar of a cut without conflicts."""
        terminals = [
            Terminal(t.written, "", special=t.written)
            if isinstance(t, SpecialToken)
            else Terminal(self._name(t), self._pieces.pattern(t) or "", committed=True)
            for t in self._terminals
        ]
        matched = self._joint.matched if terminals else np.zeros((1, 0), dtype=bool)
        # For each terminal the first with the same lexemes.
        first = [int((matched.T == row).all(axis=1).argmax()) for row in matched.T]
        productions = (
            Production(p.head, tuple(first[s] if s < len(first) else s for s in p.body), p.line)
            for p in self._lowered.productions
        )
        return Grammar(tuple(terminals), tuple(self._lowered.names), tuple(dict.fromkeys(productions)), len(first))

    def _name(self, terminal: Node) -> str:
        if isinstance(terminal, RuleName):
            return terminal.rule
        pattern = self._pieces.pattern(terminal) or ""
        return pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]}..."

    @cached_property
    def _joint(self) -> Product:
        return joint([automaton.without_empty() for t in self._terminals if (automaton := self._pieces.automaton(t))])

    def _prolonged(self) -> set[int]:
        """Return the terminals that go on behind a complete lexeme with a byte with which what may follow that begins."""
        joined, next_bytes = self._joint, bytes_behind(self._joint, self._lowered.productions)
        wrong = (joined.matched.astype(np.float32) @ next_bytes.astype(np.float32) > 0) & (joined.targets != DEAD)
        return set(np.flatnonzero((joined.places[joined.targets[wrong]] != DEAD).any(axis=0)).tolist())


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
