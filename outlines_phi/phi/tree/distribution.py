"""The next-token distribution of a node of a token tree, as far as its children leave it."""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...guides.guide import DONE
from ...guides.table import Moves
from ...numerics.weights import draw

UNKNOWN: NDArray[np.floating] = np.ones(())  # `h` of every token where there is no estimator


@final
class Distribution:
    """A node's next-token distribution without its materialised children.

    ``moves``: the live tokens, shared with the table.
    ``free``: ``[k]``, in the model's precision: ``p(v | y) / exp(log_scale)`` of live tokens without a child node, else 0.
        Relative to the likeliest live token, so that a tiny live mass keeps its proportions.
    ``h``: ``[k]``: what an estimator says of ``Phi`` of every live token; a single 1 where there is none.
    ``log_scale``: ``log p`` of the likeliest live token.
    """

    __slots__ = ("free", "h", "log_scale", "moves")

    def __init__(self, moves: Moves, log_p: NDArray[np.floating], h: NDArray[np.floating]) -> None:
        live = log_p[moves.tokens]
        self.moves = moves
        self.log_scale = float(live.max()) if live.size else -math.inf
        self.free = np.exp(live - live.dtype.type(self.log_scale)) if self.log_scale > -math.inf else live[:0]
        self.h = h[moves.tokens] if h.ndim and self.free.size else UNKNOWN

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
        return float(self.free[self._ended].sum(dtype=np.float64)) * math.exp(self.log_scale) if self.free.size else 0.0

    def rescale(self, mass: float) -> None:
        """Scale the free part to ``mass``: what a node's distribution was when its children's probabilities were taken from it."""
        now = self.mass()
        if now > 0 and mass > 0:
            self.log_scale += math.log(mass / now)
        else:
            self.free[:] = 0.0

    def undecided(self) -> float:
        """Return the probability of the free tokens that do not end the text."""
        return float(self._unended().sum(dtype=np.float64)) * math.exp(self.log_scale) if self.free.size else 0.0

    def draw(self, rng: np.random.Generator) -> int:
        """Draw a free token in proportion to its probability."""
        return self._draw(self.free, rng)

    def draw_undecided(self, rng: np.random.Generator) -> int:
        """Draw a free token that does not end the text in proportion to its probability."""
        return self._draw(self._unended(), rng)

    def draw_ended(self, rng: np.random.Generator) -> int:
        """Draw a free token that ends the text in proportion to its probability."""
        return self._draw(np.where(self._ended, self.free, self.free.dtype.type(0)), rng)

    @property
    def _ended(self) -> NDArray[np.bool_]:
        """Which live tokens end the text; in a closed guide the end of sequence alone, which has a node at once."""
        return self.moves.targets == DONE

    def _unended(self) -> NDArray[np.floating]:
        return np.where(self._ended, self.free.dtype.type(0), self.free)

    def _draw(self, free: NDArray[np.floating], rng: np.random.Generator) -> int:
        return int(self.moves.tokens[draw(free, rng)])

    def target(self, token: int) -> int:
        """Return the guide state that ``token`` leads to, :data:`DEAD` where it is not live."""
        return self.moves.target(token)
