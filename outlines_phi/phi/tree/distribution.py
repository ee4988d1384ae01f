"""The next-token distribution of a node of a token tree, as far as its children leave it: whole, or by tokens drawn ahead.

Everything is a log probability: a token may be the only one that can still succeed, however much likelier others are.
"""

from __future__ import annotations

import math
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...guides.guide import DEAD, DONE
from ...guides.table import Moves
from ...numerics.weights import draw, log, log_sum, scaled, top_of
from ...vocabulary.vocabulary import EOS, Vocabulary

AHEAD_BYTES, ENTRY_BYTES = 450, 100  # Measured footprint of tokens drawn ahead: of none, and of each, on CPython 3.11

LITTLE = 2.0**-10  # The share of a sum that is left where it is summed afresh


@final
class TokensAhead:
    """A next-token distribution of which some tokens were drawn ahead, and nothing but the sum is known of all others.

    What is drawn from it are the distinct tokens of independent draws, in their order: each has, given the children that the node
    has by then, the distribution without them (theory.md, section 5.3).

    ``named``: ``log p`` of the tokens that the node has children for, or will have at once.
    ``drawn``: ``log p`` of the tokens drawn ahead, in their order.
    ``log_rest``: the log probability of all other live tokens.
    ``can_end``: whether the end of sequence is live.
    ``ending``: whether every free token ends the text, as at the limit of free text; else none does.
    ``top``: ``log p`` of the likeliest tokens, live or not, where accounts ask for them.
    ``nbytes``: memory that it holds by itself.
    """

    __slots__ = ("_drawn", "_ending", "_log_rest", "_named", "can_end", "nbytes", "top")

    def __init__(
        self,
        named: dict[int, float],
        drawn: dict[int, float],
        log_rest: float,
        *,
        can_end: bool,
        ending: bool,
        top: dict[int, float] | None = None,
    ) -> None:
        self._named, self._drawn, self._log_rest, self.top = named, drawn, log_rest, top
        self.can_end, self._ending = can_end, ending
        self.nbytes = AHEAD_BYTES + ENTRY_BYTES * (len(drawn) + len(named) + len(top or ()))

    def take(self, token: int) -> float:
        """Remove a named or drawn ``token`` from the free part and return its ``log p``."""
        return (self._drawn if token in self._drawn else self._named).pop(token)

    def log_mass(self) -> float:
        """Return the log probability of all free tokens."""
        return log_sum([self._log_rest, *self._drawn.values()])

    def log_ends(self) -> float:
        """Return the log probability of the free tokens that end the text."""
        return self.log_mass() if self._ending else -math.inf

    def draw(self, rng: np.random.Generator) -> int | None:
        """Return the next of the tokens drawn ahead; ``None`` where all of them have become children."""
        return next(iter(self._drawn), None)

    def likeliest(self) -> tuple[int, float] | None:
        """Return the likeliest token drawn ahead, and its ``log p``; ``None`` where none is left."""
        return max(self._drawn.items(), key=lambda pair: pair[1], default=None)


@final
class RunningMass:
    """The log mass of some free tokens, which are taken one by one; summed afresh, in float64, where little of a sum is left.

    So a sum and what was taken from it agree to about ``1 / LITTLE`` times the precision of float64.
    """

    __slots__ = ("_least", "_log_free", "_mass", "_places", "_top")

    def __init__(self, log_free: NDArray[np.floating], places: NDArray[np.int64] | slice = slice(None)) -> None:
        self._log_free, self._places = log_free, places
        self._sum()

    def _sum(self) -> None:
        log_free = self._log_free[self._places].astype(np.float64)
        self._top = top_of(log_free)
        self._mass = float(np.add.reduce(np.exp(log_free - self._top))) if self._top > -math.inf else 0.0
        self._least = LITTLE * self._mass

    def take(self, log_p: float) -> None:
        """Take a token, which is no free one any more."""
        if log_p > -math.inf:
            self._mass -= math.exp(log_p - self._top)
            if self._mass < self._least:
                self._sum()

    @property
    def log(self) -> float:
        """The log mass."""
        return self._top + log(self._mass)


@final
class Distribution:
    """A node's next-token distribution without its materialised children, with the probability of every live token.

    ``moves``: the live tokens, shared with the table.
    ``log_free``: ``[k]``, in the model's precision: ``log p(v | y) - log_scale`` of live tokens without a child, else ``-inf``.
    ``log_scale``: 0, or what the free part is scaled by, see :meth:`rescale`.
    ``top``: as of :class:`TokensAhead`.
    """

    __slots__ = ("_apart", "_ends", "_mass", "log_free", "log_scale", "moves", "top")

    def __init__(
        self,
        moves: Moves,
        live: NDArray[np.floating],
        top: dict[int, float] | None = None,
    ) -> None:
        self.moves, self.log_scale, self.top = moves, 0.0, top
        possible = top_of(live) > -math.inf
        self.log_free = live if possible else live[:0]
        # Where tokens of text end it, the masses of those and of all others are kept apart: once these have become children,
        # nothing is undecided, whatever rounding makes of the sums. The end of sequence alone is a child at once.
        self._apart = possible and (
            len(moves.ended) > 1 or (len(moves.ended) > 0 and moves.classes[moves.ended[0]] != EOS)
        )
        others = np.delete(np.arange(len(live)), moves.ended) if self._apart else slice(None)
        self._mass = RunningMass(self.log_free, others)
        self._ends = RunningMass(self.log_free, moves.ended if possible else slice(None))

    @property
    def nbytes(self) -> int:
        """Memory that the distribution holds by itself."""
        return self.log_free.nbytes + ENTRY_BYTES * len(self.top or ())

    def _place(self, token: int) -> int:
        """Return the place of a live ``token``."""
        return int(self.moves.tokens.searchsorted(token))

    def log_p(self, token: int) -> float:
        """Return ``log p`` of a free token; ``-inf`` of any other."""
        place = self._place(token)
        free = place < self.log_free.size and self.moves.tokens[place] == token
        return float(self.log_free[place]) + self.log_scale if free else -math.inf

    def take(self, token: int) -> float:
        """Remove a live ``token`` from the free part and return its ``log p``."""
        if not self.log_free.size:
            return -math.inf
        place = self._place(token)
        log_free = float(self.log_free[place])
        self.log_free[place] = -math.inf
        ends = self.moves.leads[self.moves.classes[place]] == DONE
        if ends:
            self._ends.take(log_free)
        if not (ends and self._apart):
            self._mass.take(log_free)
        return log_free + self.log_scale

    def log_mass(self) -> float:
        """Return the log probability of all free tokens."""
        return (log_sum([self._mass.log, self._ends.log]) if self._apart else self._mass.log) + self.log_scale

    def log_ends(self) -> float:
        """Return the log probability of the free tokens that end the text."""
        return self._ends.log + self.log_scale

    def rescale(self, log_mass: float) -> None:
        """Scale the free part to ``log_mass``, which it had when the children's probabilities were taken from it."""
        now = self.log_mass()
        if now > -math.inf and log_mass > -math.inf:
            self.log_scale += log_mass - now
        else:
            self.log_free = self.log_free[:0]
            self._mass, self._ends, self._apart = RunningMass(self.log_free), RunningMass(self.log_free), False

    def likeliest(self) -> tuple[int, float] | None:
        """Return the likeliest free token, and its ``log p``; ``None`` where none is left."""
        if not self.log_free.size:
            return None
        place = int(self.log_free.argmax())
        log_p = float(self.log_free[place])
        return (int(self.moves.tokens[place]), log_p + self.log_scale) if log_p > -math.inf else None

    def draw(self, rng: np.random.Generator, places: NDArray[np.int64] | slice = slice(None)) -> int:
        """Draw one of the free tokens at some places in proportion to its probability."""
        return int(self.moves.tokens[places][draw(scaled(self.log_free[places]), rng)])

    def ended(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the free tokens that end the text, and ``log p`` of each, ``-inf`` of those that are not free any more."""
        places = self.moves.ended if self.log_free.size else slice(0)
        return self.moves.tokens[places], self.log_free[places].astype(np.float64) + self.log_scale

    def unended(self) -> NDArray[np.floating]:
        """Return the free part without what ends the text; in a closed guide the end of sequence, which has a node at once."""
        free = self.log_free.copy()
        if free.size:
            free[self.moves.ended] = -math.inf
        return free


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
        written = [vocabulary.text_of(token).decode(errors="replace") for token in likeliest]
        rows = zip(written, np.exp(log_p[likeliest]).tolist(), likeliest, strict=True)
        return cls(tuple(FirstToken(text, p, moves.target(token) != DEAD) for text, p, token in rows), log_live)

    def listed(self, *, live: bool) -> str:
        """Return the likeliest tokens that are live, or those that are not, with their probabilities, as a text."""
        some = [str(token) for token in self.tokens if token.live == live and token.p > 0]
        return ", ".join(some[:LIVE]) or "nothing"


def likeliest(log_p: NDArray[np.floating], n: int) -> dict[int, float]:
    """Return ``log p`` of the ``n`` likeliest tokens of a distribution, ``[V]``; without an order."""
    tokens = _largest(log_p, n)
    return dict(zip(tokens.tolist(), log_p[tokens].tolist(), strict=True))


def _largest(values: NDArray[np.floating], n: int) -> NDArray[np.int64]:
    """Return the places of the ``n`` largest values."""
    return np.argpartition(values, -n)[-n:] if values.size > n else np.arange(values.size)
