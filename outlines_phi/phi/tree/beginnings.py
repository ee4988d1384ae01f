"""The likeliest beginnings of a text by the model alone, and within a format."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...guides.guide import DEAD
from ...guides.table import Moves
from ...vocabulary.vocabulary import Vocabulary

SHOWN, LIVE = 5, 3
"""The number of likeliest first tokens that are kept, and of those that the format allows."""


class FirstToken(NamedTuple):
    """A first token: what it writes (empty for special tokens), its probability, and whether the format allows it."""

    text: str
    p: float
    live: bool

    def __str__(self) -> str:
        return f"{self.text!r} {self.p:.2g}" if self.text else f"the end {self.p:.2g}"


@final
class Beginnings(NamedTuple):
    """The likeliest first tokens of free text and of the format, the likeliest first, and the log probability of all live ones."""

    tokens: tuple[FirstToken, ...]
    log_live: float

    @classmethod
    def of(cls, log_p: NDArray[np.floating], moves: Moves, log_live: float, vocabulary: Vocabulary) -> Beginnings:
        """Return those of the distribution ``log_p[V]`` after a prompt, ``moves`` being what the format allows there."""
        live = moves.tokens[_largest(log_p[moves.tokens], LIVE)]
        likeliest = sorted({*_largest(log_p, SHOWN).tolist(), *live.tolist()}, key=lambda token: -log_p[token])
        written = [vocabulary.tokens[token].decode(errors="replace") for token in likeliest]
        rows = zip(written, np.exp(log_p[likeliest]).tolist(), likeliest, strict=True)
        return cls(tuple(FirstToken(text, p, moves.target(token) != DEAD) for text, p, token in rows), log_live)

    def listed(self, *, live: bool) -> str:
        """Return the likeliest tokens that are live, or those that are not, with their probabilities, as a text."""
        some = [str(token) for token in self.tokens if token.live == live and token.p > 0]
        return ", ".join(some[:LIVE]) or "nothing"


def _largest(values: NDArray[np.floating], n: int) -> NDArray[np.int64]:
    """Return the places of the ``n`` largest values."""
    return np.argpartition(values, -n)[-n:] if values.size > n else np.arange(values.size)
