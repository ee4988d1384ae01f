"""Probabilities of texts by a token tree: a text has many tokenizations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from ...guides.guide import DONE
from .tree import BoundsTree, Node

Place = tuple[
    Node, int
]  # An undecided part of a tree: an unexpanded node with -1, or an expanded node and one of its free tokens


@final
@dataclass
class TextMass:
    """The tokenizations of one text that a tree has reached: their share of ``U``, and how many they are."""

    share: float = 0.0
    count: int = 0


def text_masses(tree: BoundsTree) -> dict[bytes, TextMass]:
    """Return every text that ``tree`` has reached with its tokenizations."""
    found: dict[bytes, TextMass] = defaultdict(TextMass)
    for node in tree.walk():
        if node.state == DONE and node.log_p > -math.inf:
            text = found[tree.table.vocabulary.decode(node.tokens())]
            text.share += math.exp(node.log_p - tree.root.log_upper)
            text.count += 1
    return dict(found)


@final
class Undecided:
    """The undecided mass ``U - Lo`` of a tree, in shares of ``U``, by the texts that it may still go to.

    An undecided prefix can go to a text only if the text begins with what the prefix has written, so most of the undecided mass is
    out of the question for most texts. The tree must not change meanwhile.
    """

    def __init__(self, tree: BoundsTree) -> None:
        self._root = tree.root
        self._tokens_writing: dict[bytes, list[int]] = defaultdict(list)
        for token, written in enumerate(tree.table.vocabulary.tokens):
            if written:
                self._tokens_writing[written].append(token)
        self._longest = max(map(len, self._tokens_writing))

    def below(self, text: bytes) -> Iterator[tuple[Place, bytes, float]]:
        """Yield every undecided place that may go to ``text``, what it has written, and its share."""
        stack = [(self._root, 0)]
        while stack:
            node, at = stack.pop()
            log_share = node.log_p - self._root.log_upper
            if not node.expanded or (node.distribution is None and node.log_rest > -math.inf):
                yield (node, -1), text[:at], math.exp(log_share + (node.log_rest if node.expanded else 0.0))
            for token, end in self._tokens(text, at) if node.expanded else ():
                child = node.children.get(token)
                if child is not None:
                    stack.append((child, end))
                elif node.distribution is not None and (log_p := node.distribution.log_p(token)) > -math.inf:
                    yield (node, token), text[:end], math.exp(log_share + log_p)

    def _tokens(self, text: bytes, at: int) -> Iterator[tuple[int, int]]:
        """Yield every token that ``text`` may go on with at a position, and the position after it."""
        for end in range(at + 1, min(at + self._longest, len(text)) + 1):
            for token in self._tokens_writing.get(text[at:end], ()):
                yield token, end
