"""A way to the end of a text, where only the next tokens are known."""

from __future__ import annotations

import string
from collections import Counter, deque
from collections.abc import Callable
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedError
from ...vocabulary.vocabulary import Vocabulary

Allowed: TypeAlias = Callable[[tuple[int, ...]], NDArray[np.bool_]]
"""What may follow some more tokens: ``bool[V]``, the end of sequence where the text may end after them."""

FEW = 64
"""A text that so many tokens may follow at most is gone on with by each of them; else by those that lead to an end, as a rule."""

_AT_ONCE, _STEPS, _SEARCHED = 200, 400, 5_000
"""Texts that are looked at breadth first, steps of one attempt that takes what closes first, and texts at last."""

_TIMES = (64, 1, 8)
"""How often a kind of character is tried where the same tokens may follow, in each attempt; the first one tries no other kind."""

_KINDS = (")]}>", "\"'", string.digits, string.ascii_letters, ";.,:=+-*/_|&", " \n\t\r", "([{<")
"""What ends a text soonest, as a rule, comes first."""

_FIRST, _SHORTEST = 8, 512
"""Tokens that are tried at once where few attempts are made, and the shortest ones that they are taken of."""

_QUOTES = 1
"""The kind that ends a text in which many tokens may follow."""


@final
class Endings:
    """Looks for a short way to the end.

    Texts are looked at breadth first, each once however tokens spell it, as long as few tokens can follow; the way is a shortest
    one then. Where many can, a text is gone on with by single characters, what closes something first; and, where that leads
    nowhere, by another kind of character where the same tokens may follow again. A way is found in a few steps in most grammars,
    not always a shortest.

    Parameters
    ----------
    vocabulary
        The tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens, self._eos = vocabulary.tokens, vocabulary.eos_ids[0]
        lengths = np.array([len(token) for token in self._tokens])
        order = {byte: place for place, byte in enumerate("".join(_KINDS).encode())}
        kind = {byte: place for place, kind in enumerate(_KINDS) for byte in kind.encode()}
        first = [token[0] if token else 0 for token in self._tokens]
        preference = np.array([order.get(byte, 256) for byte in first])
        self._kind = np.array([kind.get(byte, len(_KINDS)) for byte in first])
        self._order = np.lexsort((preference, lengths))  # shorter ones first
        self._rank = self._order.argsort()
        writes = (lengths > 0) & (np.arange(len(lengths)) != self._eos)
        self._shortest = self._order[writes[self._order]][:_SHORTEST]
        self._lengths = lengths

    def find(self, allowed: Allowed, text: str) -> tuple[int, ...] | None:
        """Return tokens after which the text may end; ``None`` where there are none.

        Parameters
        ----------
        allowed
            What may follow.
        text
            What was written, for a message.

        Raises
        ------
        UnsupportedError
            It was not found out with a large effort.
        """
        found, exhausted = self._breadth_first(allowed, _AT_ONCE, stop=True)
        if found is None and not exhausted:
            found = next(filter(None, (self._straight(allowed, times) for times in _TIMES)), None)
        if found is None and not exhausted:
            found, exhausted = self._breadth_first(allowed, _SEARCHED, stop=False)
        if found is None and not exhausted:
            raise UnsupportedError(
                f"{_SEARCHED} steps did not tell whether the text {text!r} can be finished: the engine says which tokens may "
                "follow, and no more. Simplify the output type, or use backend=None."
            )
        return found

    def first(self, follows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return a few of the tokens that may follow, of the shortest ones there are, in the order in which they are tried."""
        return self._shortest[follows[self._shortest]][:_FIRST]

    def one_of_each_kind(self, follows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return one of the shortest tokens that may follow for each kind of character that they begin with."""
        live = self._shortest[follows[self._shortest]]
        return live[np.unique(self._kind[live], return_index=True)[1]]

    def _in_order(self, follows: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return all tokens that may follow, in the order in which they are tried."""
        live = np.flatnonzero(follows)
        return live[self._rank[live].argsort()] if len(live) <= FEW else self._order[follows[self._order]]

    def _breadth_first(self, allowed: Allowed, limit: int, *, stop: bool) -> tuple[tuple[int, ...] | None, bool]:
        """Return a way to the end, and whether all texts were looked at; ``stop`` where more than a few tokens may follow."""
        queue, met, complete = deque[tuple[int, ...]]([()]), {b""}, True
        while queue:
            if limit == 0:
                return None, False
            limit -= 1
            tokens = queue.popleft()
            follows = allowed(tokens)
            if follows[self._eos]:
                return tokens, True
            live = self._in_order(follows)
            if len(live) > FEW:
                if stop:
                    return None, False
                live, complete = live[:FEW], False
            written = b"".join(self._tokens[token] for token in tokens)
            for token in live.tolist():
                text = written + self._tokens[token]
                if text not in met:
                    met.add(text)
                    queue.append((*tokens, token))
        return None, complete

    def _straight(self, allowed: Allowed, times: int) -> tuple[int, ...] | None:
        """Return the way to the end that takes what closes first, another kind after ``times`` times; ``None`` if it finds none."""
        tokens: tuple[int, ...] = ()
        seen = Counter[bytes]()
        for _ in range(_STEPS):
            follows = allowed(tokens)
            if follows[self._eos]:
                return tokens
            key = np.packbits(follows).tobytes()
            live = self._in_order(follows)
            if not len(live):
                return None
            again, seen[key] = seen[key] // times, seen[key] + 1
            if times == _TIMES[0] and again:
                return None
            tokens = (*tokens, self._next(live, again))
        return None

    def _next(self, live: NDArray[np.int64], times: int) -> int:
        """Return the token to go on with where these may follow, of the first kind that they have, or of one ``times`` after it."""
        if len(live) <= FEW:
            longest = self._tokens[int(live[-1])]
            if all(longest.startswith(self._tokens[token]) for token in live.tolist()):
                return int(live[-1])
        single = live[self._lengths[live] == self._lengths[live[0]]]
        kinds = np.unique(self._kind[single])
        if len(live) > FEW:  # text in quotes, as a rule
            kinds = np.concatenate([kinds[kinds == _QUOTES], kinds[kinds != _QUOTES]])
        again, which = divmod(times, len(kinds))
        same = single[self._kind[single] == kinds[which]]
        return int(same[again % len(same)])
