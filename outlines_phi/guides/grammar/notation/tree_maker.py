"""Trees of expressions from what Lark has read of a dialect: the part that is alike in GBNF and in llguidance's dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from lark import Token, Transformer, v_args

from ....errors import GrammarError, VocabularyError
from ....regex.syntax_tree import Choice, Leaf, Node, Sequence
from ....vocabulary.special_tokens import references

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
