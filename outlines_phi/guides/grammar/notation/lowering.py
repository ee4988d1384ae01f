"""Rules of the dialects that Lark does not compile itself: their trees, as productions and as regular expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

from lark import Token, Transformer, v_args

from ....errors import GrammarError, VocabularyError
from ....regex.code_automaton import CodePoints
from ....regex.patterns import literal
from ....regex.syntax_tree import Chars, Choice, Leaf, Node, Repeat, RuleName, Sequence
from ....vocabulary.special_tokens import references
from ..grammar import Production

REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
"""The least and the most times that operators say."""


def position(token: Token) -> int:
    """Return the offset of a token in the text."""
    assert token.start_pos is not None
    return token.start_pos


@final
@dataclass(frozen=True)
class SpecialToken(Leaf):
    """A special token, or any of several, as it is written: ``<|end|>``, ``<[5-9]>``."""

    written: str
    at: int


@v_args(inline=True)
class TreeMaker(Transformer[Token, Any]):
    """Maker of the trees of ``choice`` and ``sequence``, of the grammar that ``text`` is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def _error(self, message: str, token: Token, offset: int = 0) -> GrammarError:
        """Return an error that points at a token, or at a place in it."""
        return GrammarError(message, self.text, position(token) + offset)

    def choice(self, *parts: Node) -> Node:
        """Return one of several parts."""
        return parts[0] if len(parts) == 1 else Choice(parts)

    def sequence(self, *parts: Node) -> Node:
        """Return one part after the other."""
        return parts[0] if len(parts) == 1 else Sequence(parts)

    def special(self, token: Token) -> Node:
        """Return a special token."""
        try:
            references(str(token))
        except VocabularyError as error:
            raise self._error(str(error), token) from None
        return SpecialToken(str(token), position(token))


Body: TypeAlias = tuple[int, ...]

MOST_SYMBOLS = 50_000
"""The most symbols of all productions with repeats written out."""


class GrammarRule(NamedTuple):
    """The tree of a rule, and the line that it begins in, 0 if unknown."""

    body: Node
    line: int = 0


@final
class Lowering:
    """The productions of rules whose leaves are terminals or names of rules.

    Choices inside of others and repeats have nonterminals of their own, one for equal trees; alternatives are in the order in which
    they are written, more repeats before fewer. ``number`` has the symbols of ``terminals``, of each rule by its name, and of these
    parts by their trees. The first rule is that of a whole text.
    """

    def __init__(self, rules: Mapping[str, GrammarRule], terminals: Iterable[Leaf]) -> None:
        self.number: dict[object, int] = {terminal: place for place, terminal in enumerate(terminals)}
        self.names = list(rules)
        self._first, self._size = len(self.number), 0
        self.number |= {name: self._first + place for place, name in enumerate(rules)}
        self._found: dict[Production, None] = {}
        for self._rule, (body, self._line) in rules.items():
            self._define(
                self.number[self._rule], map(self._body, body.branches if isinstance(body, Choice) else (body,))
            )

    @property
    def productions(self) -> tuple[Production, ...]:
        """All productions, those of one head in their order."""
        return tuple(self._found)

    def _body(self, tree: Node) -> Body:
        match tree:
            case Sequence(parts):
                return tuple(symbol for part in parts for symbol in self._body(part))
            case RuleName(name):
                return (self.number[name],)
            case Choice(branches):
                return self._apart(tree, map(self._body, branches))
            case Repeat(part, least, most):
                once, more = self._body(part), tuple[int, ...]()
                required = once * min(least, MOST_SYMBOLS)  # more are refused when they are added
                if most is None:  # read from the left, so it comes first
                    return self._apart(Repeat(part, 0, None), [(self._next, *once), ()]) + required
                for times in range(1, most - least + 1):
                    more = self._apart(Repeat(part, 0, times), [(*once, *more), ()])
                return required + more
        return (self.number[tree],)

    @property
    def _next(self) -> int:
        """The number of the next new nonterminal."""
        return self._first + len(self.names)

    def _apart(self, part: Node, bodies: Iterable[Body]) -> Body:
        """Return the nonterminal of a part of a rule, which derives ``bodies`` if it is new."""
        if part not in self.number:
            self.number[part] = head = self._next
            self.names.append(f"__{self._rule}_{len(self.names)}")
            self._define(head, bodies)
        return (self.number[part],)

    def _define(self, head: int, bodies: Iterable[Body]) -> None:
        for body in bodies:
            self._found[Production(head, body, self._line)] = None
            self._size += 1 + len(body)
            if self._size > MOST_SYMBOLS:
                place = f"rule {self._rule!r}" + (f" in line {self._line}" if self._line else "")
                raise GrammarError(
                    f"the productions have more than {MOST_SYMBOLS:,} symbols when repeats are written out, up to {place}. Lower "
                    "the numbers of repeats, or leave the upper ones out"
                )


def written(tree: Node, leaf: Callable[[Node], str]) -> str:
    """Write a tree as a regular expression, with ``leaf`` for what no dialect of these has."""
    match tree:
        case Chars(points):
            return class_of(points)
        case Sequence(parts):
            return "".join(written(part, leaf) for part in parts)
        case Choice(branches):
            return f"(?:{'|'.join(written(branch, leaf) for branch in branches)})"
        case Repeat(part, least, most):
            return f"(?:{written(part, leaf)}){{{least},{'' if most is None else most}}}"
    return leaf(tree)


def class_of(points: CodePoints) -> str:
    """Return the pattern of one character."""
    pairs = [(literal(chr(low)), literal(chr(after - 1))) for low, after in zip(points[::2], points[1::2], strict=True)]
    if len(pairs) == 1 and len({*pairs[0]}) == 1:
        return pairs[0][0]
    return f"[{''.join(low if low == high else f'{low}-{high}' for low, high in pairs)}]"
