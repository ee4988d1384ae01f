"""The children of a prefix that carry its mass: those that an estimator asks the model about."""

from __future__ import annotations

import math
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...guides.guide import DONE
from ...guides.table import Table
from ..estimator import floored


@final
class Candidates:
    """The likeliest children of one prefix, the ends left out: their ``h`` is 1.

    Parameters
    ----------
    table
        The compiled guide.
    state, remaining
        The guide state of the prefix, and the tokens that may still be written.
    log_p
        ``[V]``: the distribution of the next token.
    most
        How many there are at most.
    share
        They are chosen until they hold this share of the mass of all live children.

    Attributes
    ----------
    tokens, targets
        The token of each, and the guide state it leads to.
    """

    def __init__(self, table: Table, state: int, remaining: int, log_p: Tensor, *, most: int, share: float) -> None:
        self._live = table.moves(state, remaining).tokens
        states, self._places = table.destinations(state, remaining)
        self._ends = (states == DONE)[self._places]
        law: NDArray[np.float64] = log_p.double().cpu().numpy()[self._live]
        law = np.where(self._ends, -np.inf, law)
        top = law.max(initial=-math.inf)
        self._p = np.exp(law - top) if top > -math.inf else np.zeros_like(law)
        first = np.argpartition(-self._p, most)[:most] if most < len(self._p) else np.arange(len(self._p))
        first = first[np.argsort(-self._p[first], kind="stable")]
        before = np.cumsum(self._p[first]) - self._p[first]
        self._chosen = first[(self._p[first] > 0) & (before < share * self._p.sum())]
        self.tokens: list[int] = self._live[self._chosen].tolist()
        self.targets: list[int] = states[self._places[self._chosen]].tolist()

    def __len__(self) -> int:
        return len(self.tokens)

    def add_to(self, scores: Tensor, log_h: NDArray[np.float64], floor: float) -> None:
        """Add ``log h`` of every next token to ``scores``, ``[V]``, in place, given that of the candidates.

        Another child has the mean of the candidates with the same target, by their mass, or of all candidates where there are
        none. All are held above ``floor`` times the largest.
        """
        spread, ends = torch.from_numpy(self._spread(log_h)), torch.from_numpy(self._ends)
        kept = floored(spread, floor, ends, torch.ones_like(ends)).to(scores.device, scores.dtype)
        live = torch.from_numpy(self._live).to(scores.device)
        scores.add_(torch.full_like(scores, -math.inf).index_copy_(0, live, kept))

    def _spread(self, log_h: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``log h`` of all live tokens, given that of the candidates."""
        if not len(self):
            return np.zeros(len(self._live))
        top = log_h.max()
        top = top if top > -math.inf else 0.0
        mass, value = self._p[self._chosen], np.exp(log_h - top)
        places, size = self._places[self._chosen], int(self._places.max()) + 1
        held = np.bincount(places, mass, minlength=size)
        mean = np.full(size, mass @ value / mass.sum())
        np.divide(np.bincount(places, mass * value, minlength=size), held, out=mean, where=held > 0)
        with np.errstate(divide="ignore"):
            found = np.log(mean)[self._places] + top
        found[self._chosen] = log_h
        found[self._ends] = 0.0
        return found
