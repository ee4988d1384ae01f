"""Terminals in Python's dialect of regular expressions, which Lark uses, translated to that of Outlines.

A lexeme is the *longest* text that its terminal matches (maximal munch), whatever the order of alternatives: where Python gives
the first alternative that matches, ``a|ab`` gives ``ab`` here.

A lazy quantifier asks for the *first* end instead. The texts ``A R*? S`` up to their first end are a regular language too, and
where its expression is short it is written out:

- ``R`` one character and ``S`` a word: ``R*?S`` becomes the paths of the Knuth-Morris-Pratt automaton of ``S`` to its
  end; ``A`` is as long as it can be;
- ``".*?(?<!\\\\)(\\\\\\\\)*?"``, the strings of Lark's own library, become ``"(?:[^"\\\\\\n]|\\\\[^\\n])*"``.

Otherwise the terminal is marked as ending where it first matches. That is what Python gives if no word of ``A`` is the beginning of
another one, nor one of ``R``, and the words of ``S`` have one length; other lazy quantifiers are refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ....errors import EmptyLanguageError, OutlinesPhiError
from ....regex.patterns import compile_lexeme, compile_regex

if sys.version_info >= (3, 11):
    from re import _constants as sre
    from re import _parser as sre_parser
else:
    import sre_constants as sre
    import sre_parse as sre_parser


class RegexNode(NamedTuple):
    """Operator and argument, as Python's own parser gives them, and the flags that hold where they stand."""

    operator: Any
    argument: Any
    flags: int


class Translation(NamedTuple):
    """A pattern for :func:`~outlines_phi.regex.patterns.compile_regex`; ``shortest`` if a lexeme ends where it first matches."""

    pattern: str
    shortest: bool = False


class Untranslatable(Exception):
    """The message says what cannot be translated, and what to write instead."""


def literal(text: str, *, ignore_case: bool = False) -> Translation:
    """Return the pattern of one text."""
    written = "".join(map(_character, map(ord, text)))
    return Translation(f"(?i:{written})" if ignore_case else written)


_TOO_LARGE = "the regular expression is too large or nested too deeply; write it as several terminals"


def translate(pattern: str) -> Translation:
    """Return what matches the same lexemes as ``pattern`` does in Python.

    Raises :class:`Untranslatable` where it cannot be read, matches the empty text, or uses a feature that is not regular or looks
    outside the lexeme.
    """
    try:
        tree = sre_parser.parse(pattern)
    except re.error as error:
        hint = ". Write flags behind the closing slash, `/.../i`, or around a part, `(?i:...)`"
        hint = hint if str(error).startswith("global flags") else ""
        raise Untranslatable(f"the regular expression cannot be read: {error}{hint}") from None
    except (OverflowError, RecursionError, ValueError):
        raise Untranslatable(_TOO_LARGE) from None
    writer = _Writer()
    flags = tree.state.flags
    try:
        written = writer.sequence(_nodes(tree, flags), at_end=True, alone=True)
        least, _ = tree.getwidth()
    except RecursionError:
        raise Untranslatable(_TOO_LARGE) from None
    if least > 0 and writer.looks:
        try:
            compile_lexeme(written)
        except EmptyLanguageError as error:
            raise Untranslatable(str(error)) from None
        except OutlinesPhiError:
            raise Untranslatable(writer.looks) from None
    if least == 0:
        raise Untranslatable(
            "it matches the empty text, and no lexeme is empty. Ask for at least one character (`+` for `*`), and make the "
            "terminal optional where rules use it"
        )
    return Translation(f"(?i:{written})" if flags & re.IGNORECASE else written, writer.shortest)


_CHARACTERS = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)  # What matches exactly one character

_CATEGORIES = {
    sre.CATEGORY_DIGIT: (r"\p{Nd}", "0-9"),
    sre.CATEGORY_SPACE: (r"\s\x1C-\x1F", r"\t-\r "),
    sre.CATEGORY_WORD: (r"\p{L}\p{N}_", "0-9A-Z_a-z"),
}
"""What Python's classes contain, as items of a class; and with the flag ``a``."""

_OPPOSITES = {
    sre.CATEGORY_NOT_DIGIT: sre.CATEGORY_DIGIT,
    sre.CATEGORY_NOT_SPACE: sre.CATEGORY_SPACE,
    sre.CATEGORY_NOT_WORD: sre.CATEGORY_WORD,
}

_LOOKS = {
    sre.ASSERT: "it looks beyond the lexeme, `(?=...)` or `(?<=...)`. Leave this out: what may follow is for the rules to say",
    sre.ASSERT_NOT: "it looks around, `(?!...)` or `(?<!...)`. To keep a word from being a name, use it as a string in a rule: of "
    "equally long lexemes a string wins. Otherwise write the allowed texts out, as in `[^a]|a[^b]` for `(?!ab)..?`",
}
_REFUSED = {
    sre.GROUPREF: "it has a back-reference, which is not regular. Write each alternative out",
    sre.GROUPREF_EXISTS: "it has a conditional group. Write each alternative out, with `|`",
}

_EDGE = (
    "it has an assertion (`^`, `$`, `\\b`, `\\A`, `\\Z`). Leave it out: a lexeme is matched as a whole and as long as it can be, "
    "so a word ends where a name would; to match whole lines, match the line break"
)
_WORD = r"[\p{L}\p{N}_]"
_EDGES = {
    sre.AT_BEGINNING: r"\A",
    sre.AT_BEGINNING_STRING: r"\A",
    sre.AT_BOUNDARY: f"(?:(?<={_WORD})(?!{_WORD})|(?<!{_WORD})(?={_WORD}))",
    sre.AT_NON_BOUNDARY: f"(?:(?<={_WORD})(?={_WORD})|(?<!{_WORD})(?!{_WORD}))",
    sre.AT_END: r"(?:\z|(?=\n\z))",
    sre.AT_END_STRING: r"\z",
}
_LINES = {sre.AT_BEGINNING: "^", sre.AT_END: "$"}
_ATOMIC = "it has an atomic group or a possessive quantifier. Use `(?:...)`, `*`, `+` or `?`"
_FIRST_END = (
    "so its lexemes cannot be told from where they first end. Use a greedy quantifier and exclude what ends it, as in `[^;]*;` for "
    "`.*?;`"
)


@dataclass
class _Writer:
    """Writes the tree of one pattern.

    ``shortest`` records that it must end where it first matches, ``looks`` what to say if it looks beyond its lexemes.
    """

    shortest: bool = False
    looks: str = ""

    def sequence(self, nodes: Sequence[RegexNode], *, at_end: bool, alone: bool = False) -> str:
        """Return the pattern of ``nodes`` one after another.

        ``at_end``: nothing that must follow comes after them; ``alone``: they are the whole pattern.
        """
        for place, (operator, argument, _) in enumerate(nodes):
            if operator is sre.MIN_REPEAT and argument[0] != argument[1]:
                if not at_end:
                    raise Untranslatable(f"more of it follows behind a lazy quantifier and its group, {_FIRST_END}")
                return self._lazy(nodes[:place], nodes[place], nodes[place + 1 :], alone)
        last = len(nodes) - 1
        return "".join(
            self._node(node, at_end=at_end and place == last, alone=alone and last == 0)
            for place, node in enumerate(nodes)
        )

    def _node(self, node: RegexNode, *, at_end: bool, alone: bool) -> str:
        operator, argument, flags = node
        if operator in _CHARACTERS:
            return _one_character(node)
        if operator is sre.BRANCH:
            branches = (self.sequence(_nodes(branch, flags), at_end=at_end) for branch in argument[1])
            return f"(?:{'|'.join(branches)})"
        if operator is sre.SUBPATTERN:  # one that switches whether case is ignored
            inside = (flags | argument[1]) & ~argument[2]
            written = self.sequence(_nodes(argument[3], inside), at_end=at_end, alone=alone)
            return f"(?{'i' if inside & re.IGNORECASE else '-i'}:{written})"
        if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, body = argument
            return self._repeated(_nodes(body, flags), at_end=at_end and least <= 1) + _bounds(least, most)
        if operator is sre.AT:
            self.looks = self.looks or _EDGE
            return f"(?m:{_LINES[argument]})" if argument in _LINES and flags & re.MULTILINE else _EDGES[argument]
        if operator in _LOOKS:
            self.looks = self.looks or _LOOKS[operator]
            direction, body = argument
            sign = "<" * (direction < 0) + ("=" if operator is sre.ASSERT else "!")
            return f"(?{sign}{self.sequence(_nodes(body, flags), at_end=False)})"
        # Possessive repeats and atomic groups, of Python 3.11, have no name before.
        raise Untranslatable(_REFUSED.get(operator, _ATOMIC))

    def _repeated(self, nodes: Sequence[RegexNode], *, at_end: bool) -> str:
        written = self.sequence(nodes, at_end=at_end)
        return written if len(nodes) == 1 and nodes[0].operator in _CHARACTERS else f"(?:{written})"

    def _lazy(self, before: Sequence[RegexNode], repeat: RegexNode, after: Sequence[RegexNode], alone: bool) -> str:
        """Return the pattern of ``A R{least,most}? S`` up to its first end."""
        least, most, body = repeat.argument
        first, repeated = self.sequence(before, at_end=False), _nodes(body, repeat.flags)
        if len(repeated) == 1 and (inside := _class(repeated[0])) and most is sre.MAXREPEAT:
            closed = None if least else _string(before, repeated[0], after)
            closed = closed or _up_to(repeated[0], after)
            if closed is not None:
                return first + (inside + _bounds(least, least) if least else "") + closed
        if self.looks:
            raise Untranslatable(self.looks)
        if not alone:
            raise Untranslatable(f"a lazy quantifier is only a part of it, {_FIRST_END}")
        rest, written = self.sequence(after, at_end=False), self._repeated(repeated, at_end=False)
        if self.looks:
            raise Untranslatable(self.looks)
        if not (_prefix_free(first, repeat.flags) and _prefix_free(written, repeat.flags) and _one_length(after)):
            raise Untranslatable(
                f"what its lazy quantifier repeats, or what stands around it, may end in several places, {_FIRST_END}"
            )
        self.shortest = True
        return f"{first}{written}{_bounds(least, most)}{rest}"


def _nodes(tree: Iterable[tuple[Any, Any]], flags: int) -> list[RegexNode]:
    """Return a sequence of Python's tree; groups that do not switch whether case is ignored are replaced by what is in them."""
    flat: list[RegexNode] = []
    for operator, argument in tree:
        if operator is sre.SUBPATTERN and not ((flags | argument[1]) & ~argument[2] ^ flags) & re.IGNORECASE:
            flat += _nodes(argument[3], (flags | argument[1]) & ~argument[2])
        else:
            flat.append(RegexNode(operator, argument, flags))
    return flat


def _bounds(least: int, most: int) -> str:
    named = {(0, sre.MAXREPEAT): "*", (1, sre.MAXREPEAT): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in named:
        return named[least, most]
    return f"{{{least},}}" if most is sre.MAXREPEAT else f"{{{least}}}" if least == most else f"{{{least},{most}}}"


def _character(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise Untranslatable("it has a lone surrogate, which cannot be written in UTF-8. Remove it")
    character = chr(code)
    if character in r"\.+*?()|[]{}^$#&-~":
        return "\\" + character
    return {"\n": r"\n", "\t": r"\t", "\r": r"\r"}.get(character) or (
        character if character.isprintable() else f"\\x{{{code:X}}}"
    )


def _one_character(node: RegexNode) -> str:
    operator, argument, flags = node
    if operator is sre.LITERAL:
        return _character(argument)
    if operator is sre.NOT_LITERAL:
        return f"[^{_character(argument)}]"
    if operator is sre.ANY:
        return "(?s:.)" if flags & re.DOTALL else r"[^\n]"
    negated = argument[0][0] is sre.NEGATE
    items = "".join(_item(item, flags) for item in argument[negated:])
    if not items:  # lone surrogates only: none of them can be written
        return "(?s:.)" if negated else r"[^\x{0}-\x{10FFFF}]"
    return f"[{'^' if negated else ''}{items}]"


def _item(item: tuple[Any, Any], flags: int) -> str:
    """Return an item of a class; a range is cut at the surrogates, which no text has."""
    operator, argument = item
    if operator is sre.CATEGORY:
        positive = _OPPOSITES.get(argument, argument)
        inside = _CATEGORIES[positive][bool(flags & re.ASCII)]
        return inside if positive is argument else f"[^{inside}]"
    low, high = (argument, argument) if operator is sre.LITERAL else argument
    low, high = (0xE000 if 0xD800 <= low <= 0xDFFF else low), (0xD7FF if 0xD800 <= high <= 0xDFFF else high)
    if low > high:
        return ""
    return _character(low) if low == high else f"{_character(low)}-{_character(high)}"


_ANY = r"[\x{0}-\x{10FFFF}]"
_BACKSLASH = r"\\"  # As it is written in a pattern


def _without(inside: str, written: str) -> str:
    """Return the class of what is in ``inside`` but not ``written``."""
    if inside == _ANY:
        return f"[^{written}]"
    return f"{inside[:-1]}{written}]" if inside.startswith("[^") else f"[{inside}&&[^{written}]]"


def _class(node: RegexNode) -> str:
    """Return the class of the characters that ``node`` matches, empty if it does not match exactly one character."""
    operator, argument, flags = node
    if operator is sre.BRANCH:
        parts = [_nodes(branch, flags) for branch in argument[1]]
        classes = [_class(part[0]) if len(part) == 1 else "" for part in parts]
        if any(f"[^{one[1:]}" in classes for one in classes):
            return _ANY
        return f"[{''.join(classes)}]" if all(classes) else ""
    if operator is sre.LITERAL:
        return f"[{_character(argument)}]"
    if operator is sre.ANY:
        return _ANY if flags & re.DOTALL else r"[^\n]"
    return _one_character(node) if operator in _CHARACTERS else ""


def _matches(node: RegexNode, character: str) -> bool:
    """Return whether a node that has a class matches ``character``, which has no case if case is ignored."""
    return compile_regex(_class(node)).accepts(character.encode())


def _string(before: Sequence[RegexNode], one: RegexNode, after: Sequence[RegexNode]) -> str | None:
    r"""Return the pattern of a string's inside and end, if that is what ``R*?(?<!\\)(\\\\)*?"`` or ``R*?(?<!\\)"`` is.

    In the first form the string ends at the first quote behind an even number of backslashes, in the second at the first quote
    that no backslash precedes.
    """
    backslash = ord("\\")
    opened = bool(before) and before[-1].operator is sre.LITERAL and before[-1].argument != backslash
    if len(after) < 2 or not opened or after[0].operator is not sre.ASSERT_NOT or after[-1].operator is not sre.LITERAL:
        return None
    direction, behind = after[0].argument
    quote = after[-1].argument
    if direction != -1 or list(behind) != [(sre.LITERAL, backslash)] or quote == backslash:
        return None
    if not (_matches(one, "\\") and _matches(one, chr(quote))):
        return None
    anything, end = _class(one), _character(quote)
    plain = _without(anything, end + _BACKSLASH)
    if len(after) == 2:
        return rf"(?:{plain}|\\+{_without(anything, _BACKSLASH)})*{end}"
    operator, argument, flags = after[1]
    pairs = operator is sre.MIN_REPEAT and tuple(argument[:2]) == (0, sre.MAXREPEAT)
    if len(after) == 3 and pairs and _nodes(argument[2], flags) == [(sre.LITERAL, backslash, flags)] * 2:
        return rf"(?:{plain}|\\{anything})*{end}"
    return None


_LONGEST_WORD = 4  # The expression of the paths to the end of a word grows exponentially with its length


def _up_to(one: RegexNode, after: Sequence[RegexNode]) -> str | None:
    """Return the pattern of ``R*S`` up to the first ``S``, if that is a short word."""
    if not after or len(after) > _LONGEST_WORD or any(node.operator is not sre.LITERAL for node in after):
        return None
    word = "".join(chr(node.argument) for node in after)
    if one.flags & re.IGNORECASE and word.lower() != word.upper():
        return None
    inside, written = _class(one), [_character(ord(character)) for character in word]
    if not _matches(one, word[0]):
        return f"{inside}*{''.join(written)}"
    if not all(_matches(one, character) for character in word):
        return None
    others = _without(inside, "".join(sorted(set(written))))

    def after_failing(matched: int, character: str) -> int:
        read = word[:matched] + character
        return next(n for n in range(matched, -1, -1) if read.endswith(word[:n]))

    def paths(source: int, target: int) -> str:
        """From where ``source`` characters of the word are matched to where ``target`` are for the first time."""
        return "".join(loops(n) + written[n] for n in range(source, target))

    def loops(matched: int) -> str:
        wrong = [c for c in dict.fromkeys(word) if c != word[matched]]
        ways = [_character(ord(c)) + paths(after_failing(matched, c), matched) for c in wrong]
        ways.append(others + paths(0, matched))
        return f"(?:{'|'.join(ways)})*" if len(ways) > 1 or matched else f"{others}*"

    return paths(0, len(word))


def _prefix_free(pattern: str, flags: int) -> bool:
    """Return whether no word of ``pattern`` is the beginning of another one."""
    if not pattern:
        return True
    try:
        automaton = compile_regex(f"(?i:{pattern})" if flags & re.IGNORECASE else pattern)
    except OutlinesPhiError:
        return False
    return not np.any(automaton.targets[automaton.accepting])


def _one_length(nodes: Sequence[RegexNode]) -> bool:
    tree = sre_parser.SubPattern(sre_parser.State(), [(node.operator, node.argument) for node in nodes])
    least, most = tree.getwidth()
    return bool(least == most)
