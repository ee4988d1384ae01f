"""The next-token distribution of a node of a token tree, as far as its children leave it: whole, or by tokens drawn ahead."""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...guides.table import Moves
from ...numerics.weights import draw

AHEAD_BYTES, ENTRY_BYTES = 450, 100  # Measured footprint of tokens drawn ahead: of none, and of each, on CPython 3.11

UNKNOWN: NDArray[np.floating] = np.ones(())  # `h` of every token where there is no estimator


@final
class TokensAhead:
    """A next-token distribution of which some tokens were drawn ahead, and nothing but the sum is known of all others.

    What is drawn from it are the distinct tokens of independent draws, in their order: each has, given the children that the node
    has by then, the distribution without them (theory.md, section 5.3).

    ``named``: ``log p`` of the tokens that the node has children for, or will have at once.
    ``drawn``: ``log p`` of the tokens drawn ahead, in their order.
    ``rest``: the probability of all other live tokens.
    ``can_end``: whether the end of sequence is live.
    ``ending``: whether every free token ends the text, as at the limit of free text; else none does.
    ``nbytes``: memory that it holds by itself.
    """

    __slots__ = ("_drawn", "_ending", "_named", "_rest", "can_end", "nbytes")

    def __init__(
        self, named: dict[int, float], drawn: dict[int, float], rest: float, *, can_end: bool, ending: bool
    ) -> None:
        self._named, self._drawn, self._rest = named, drawn, rest
        self.can_end, self._ending = can_end, ending
        self.nbytes = AHEAD_BYTES + ENTRY_BYTES * (len(drawn) + len(named))

    def h_of(self, token: int) -> float:
        """Return 1: no estimator is asked about it."""
        return 1.0

    def take(self, token: int) -> float:
        """Remove a named or drawn ``token`` from the free part and return its ``log p``."""
        known = self._drawn if token in self._drawn else self._named
        return known.pop(token)

    def mass(self) -> float:
        """Return the probability of all free tokens."""
        return math.fsum([self._rest, *map(math.exp, self._drawn.values())])

    def ends(self) -> float:
        """Return the probability of the free tokens that end the text."""
        return self.mass() if self._ending else 0.0

    def draw(self, rng: np.random.Generator) -> int | None:
        """Return the next of the tokens drawn ahead; ``None`` where all of them have become children."""
        return next(iter(self._drawn), None)

    def likeliest(self) -> tuple[int, float] | None:
        """Return the likeliest token drawn ahead, and its probability; ``None`` where none is left."""
        if not self._drawn:
            return None
        token = max(self._drawn, key=self._drawn.__getitem__)
        return token, math.exp(self._drawn[token])


@final
class Distribution:
    """A node's next-token distribution without its materialised children, with the probability of every live token.

    It is made of ``log p`` of the live tokens ``moves``, ``live[k]``, and of ``h``.

    ``moves``: the live tokens, shared with the table.
    ``free``: ``[k]``, in the model's precision: ``p(v | y) / exp(log_scale)`` of live tokens without a child node, else 0.
        Relative to the likeliest live token, so that a tiny live mass keeps its proportions.
    ``h``: ``[k]``: what an estimator says of ``Phi`` of every live token; a single 1 where there is none.
    ``log_scale``: ``log p`` of the likeliest live token.
    """

    __slots__ = ("free", "h", "log_scale", "moves")

    def __init__(self, moves: Moves, live: NDArray[np.floating], h: NDArray[np.floating] = UNKNOWN) -> None:
        self.moves = moves
        self.log_scale = float(live.max()) if live.size else -math.inf
        self.free = np.exp(live - live.dtype.type(self.log_scale)) if self.log_scale > -math.inf else live[:0]
        self.h = h if self.free.size else UNKNOWN

    @property
    def nbytes(self) -> int:
        """Memory that the distribution holds by itself."""
        return self.free.nbytes + (self.h.nbytes if self.h.ndim else 0)

    def h_of(self, token: int) -> float:
        """Return ``h`` of a live ``token``."""
        return float(self.h[int(self.moves.tokens.searchsorted(token))] if self.h.ndim else self.h)

    def take(self, token: int) -> float:
        """Remove ``token`` from the free part and return its ``log p``."""
        index = int(self.moves.tokens.searchsorted(token))
        share = float(self.free[index]) if self.free.size else 0.0
        self.free[index : index + 1] = 0.0
        return self.log_scale + math.log(share) if share > 0 else -math.inf

    def mass(self) -> float:
        """Return the probability of all free tokens, summed in float64."""
        return float(self.free.sum(dtype=np.float64)) * math.exp(self.log_scale) if self.free.size else 0.0

    def ends(self) -> float:
        """Return the probability of the free tokens that end the text."""
        if not self.free.size or not self.moves.ended.size:
            return 0.0
        return float(self.free[self.moves.ended].sum(dtype=np.float64)) * math.exp(self.log_scale)

    def rescale(self, mass: float) -> None:
        """Scale the free part to ``mass``: what a node's distribution was when its children's probabilities were taken from it."""
        now = self.mass()
        if now > 0 and mass > 0:
            self.log_scale += math.log(mass / now)
        else:
            self.free[:] = 0.0

    def likeliest(self) -> tuple[int, float] | None:
        """Return the likeliest free token, and its probability; ``None`` where none is left."""
        if not self.free.size:
            return None
        place = int(self.free.argmax())
        return int(self.moves.tokens[place]), float(self.free[place]) * math.exp(self.log_scale)

    def undecided(self) -> float:
        """Return the probability of the free tokens that do not end the text."""
        return float(self._unended().sum(dtype=np.float64)) * math.exp(self.log_scale) if self.free.size else 0.0

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a free token in proportion to its probability."""
        return self._draw(self.free, rng)

    def draw_undecided(self, rng: np.random.Generator) -> int:
        """Draw a free token that does not end the text in proportion to its probability."""
        return self._draw(self._unended(), rng)

    def draw_leading_to(self, place: int, rng: np.random.Generator, *, by_h: bool) -> int:
        """Draw a free token of the ``place``-th of the destinations in proportion to its probability, times ``h`` if need be."""
        tokens = self.moves.leading_to(place)
        weights = self.free[tokens] * self.h[tokens] if by_h and self.h.ndim else self.free[tokens]
        return int(self.moves.tokens[tokens[draw(weights, rng)]])

    def draw_ended(self, rng: np.random.Generator) -> int:
        """Draw a free token that ends the text in proportion to its probability."""
        ended = self.moves.ended
        return int(self.moves.tokens[ended[draw(self.free[ended], rng)]])

    def _unended(self) -> NDArray[np.floating]:
        """Return the free part without what ends the text; in a closed guide the end of sequence, which has a node at once."""
        free = self.free.copy()
        free[self.moves.ended] = 0
        return free

    def _draw(self, free: NDArray[np.floating], rng: np.random.Generator) -> int:
        return int(self.moves.tokens[draw(free, rng)])

    def target(self, token: int) -> int:
        """Return the guide state that ``token`` leads to, :data:`DEAD` where it is not live."""
        return self.moves.target(token)
