"""The fewest tokens that write a text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .trie import Trie
from .vocabulary import Vocabulary


def fewest_tokens(vocabulary: Vocabulary, text: bytes) -> tuple[int, ...]:
    """Return the fewest tokens that write ``text``, as far as tokens can, the first ones as long as possible.

    That is how tokenizers mostly write it: a guess where none is at hand.
    """
    trie = Trie.of(vocabulary)
    fewest = {0: 0}  # by place: the tokens that write what stands before it
    last: dict[int, tuple[int, int]] = {}  # and the last of them, with where it begins
    for start in range(len(text)):
        for end, token in _tokens_at(trie, text, start) if start in fewest else ():
            if fewest[start] + 1 <= fewest.get(end, len(text)):
                fewest[end], last[end] = fewest[start] + 1, (start, token)
    tokens, place = list[int](), max(fewest)
    while place:
        place, token = last[place]
        tokens.append(token)
    return tuple(reversed(tokens))


def _tokens_at(trie: Trie, text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Yield the end of every token that stands in ``text`` at ``start``, and the token, the least id of those alike."""
    node = np.zeros(1, dtype=np.int64)
    for end in range(start, len(text)):
        children, _ = trie.below(node)
        node = children[trie.byte[children] == text[end]]
        if not len(node):
            return
        if trie.is_end[node[0]]:
            yield end + 1, int(trie.ending(node)[0][0])
