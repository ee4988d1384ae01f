"""Adaptive weighted rejection: one token that a predicate allows, and an unbiased estimate of the mass that it allows.

The next token of a walk has the distribution ``q(v) 1[v allowed] / S`` with ``S = sum_v q(v) 1[v allowed]``, and only a few
tokens are tested (arXiv 2504.05410). ``q`` need not sum to 1, and is given by its log.

Tokens are tested in the order of a race, ``log q(v)`` plus a Gumbel number of its own, which is sampling without replacement;
the first allowed one is drawn. The mass is a weighted average over ``m`` further tests (theory.md, section 4.5), the untested
mass ``U_{i+k}`` being foreseen as ``U_i (1 - c)^k`` with ``c = sum q^2 / U_i^2``, the expected share of the next token.

For ``m = 1`` this is the recursive estimate of the paper. Its other one, by an imagined sample with replacement, needs fewer
tests where one token holds most of the mass, but its relative variance grows without bound as ``S`` falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import NamedTuple, final

import torch
from torch import Tensor

from ..lm.model import check_interruption

FIRST, GROWTH = 8, 4
"""Tokens of a walk's order that are laid out at first, and how much longer every further piece is."""

ELEMENTS = 2**20
"""Walks times tokens that are worked on at a time: 8 MiB for each of a few tensors."""

_LEAST = torch.finfo(torch.float64).min
"""Below every finite log, so that a row without any has a largest one."""


class AllowedDraw(NamedTuple):
    """The token of a walk, with the estimate of the allowed mass."""

    token: int  # The token drawn; -1 where none is allowed
    log_s: float  # The log of the unbiased estimate of `S`; `-inf` where no token is allowed
    tests: int  # Tokens tested


def draw_allowed(
    log_q: Tensor, rows: Sequence[int], keys: Sequence[int], allows: Callable[[int, int], bool], further: int
) -> list[AllowedDraw]:
    """Return one allowed token per walk, with the estimate of the allowed mass.

    ``log_q``: ``[L, V]`` float64, on any device: a row per distribution, not normalised.
    ``rows``, ``keys``: ``[W]``: the row of each walk, and its random key, below ``2**63``: what it draws depends on both alone.
    ``allows``: Whether a distribution (by its row) allows a token; asked once for each pair.
    ``further``: Tests after the token that is drawn, at least 1.
    """
    columns = (log_q > -math.inf).any(0).nonzero()[:, 0]
    if not len(columns):
        return [AllowedDraw(-1, -math.inf, 0) for _ in rows]
    # Walks on one distribution share what is known of it.
    log_q, allows, empty = log_q[:, columns], cache(allows), set[int]()
    size = max(1, ELEMENTS // len(columns))
    outcomes: list[AllowedDraw] = []
    for i in range(0, len(rows), size):
        outcomes += _race(log_q, columns, rows[i : i + size], keys[i : i + size], allows, empty, further)
    return outcomes


@final
class Order:
    """The tokens of some walks in the order of a race, laid out piece by piece.

    ``log_q``: ``[W, K]``: a row per walk.
    ``tokens``: ``[K]``: the id of each column.
    ``keys``: ``[W]`` int64.
    """

    def __init__(self, log_q: Tensor, tokens: Tensor, keys: Tensor) -> None:
        self._tokens, self._waiting = tokens, log_q
        self._places = log_q + gumbel(keys, tokens)

    def next(self, size: int) -> Tensor:
        """Lay out the next ``size`` tokens of every walk.

        Returns ``[4, W, k]``: token, ``log q``, the log of the mass of all tokens after it, and of the sum of their squares.
        ``log q`` is ``-inf`` beyond the end of an order.
        """
        columns = self._places.topk(min(size, len(self._tokens))).indices
        log_q = self._waiting.gather(1, columns)
        self._places.scatter_(1, columns, -math.inf)
        self._waiting.scatter_(1, columns, -math.inf)
        top = self._waiting.amax(-1, keepdim=True).clamp_min(_LEAST)
        beyond = (self._waiting - top).exp_()
        squares = torch.linalg.vecdot(beyond, beyond)[:, None].log() + 2 * top
        after = _with_those_after(log_q, beyond.sum(-1, keepdim=True).log() + top)
        return torch.stack([self._tokens[columns].double(), log_q, after, _with_those_after(2 * log_q, squares)])

    def keep(self, walks: Sequence[int]) -> None:
        """Go on with these walks, by their place, alone."""
        if len(walks) < len(self._places):
            rows = torch.tensor(walks, dtype=torch.long, device=self._places.device)
            self._places, self._waiting = self._places[rows], self._waiting[rows]


@final
class MassEstimate:
    """The tests of one walk, of which ``further`` follow the draw: the token drawn, and the estimate so far."""

    def __init__(self, further: int) -> None:
        self.token, self.tests = -1, 0
        self._left = further
        self._log_allowed = self._log_estimate = -math.inf
        self._log_share = 0.0  # of the weight that no test has got yet
        self._log_untested = self._log_squares = -math.inf

    @property
    def outcome(self) -> AllowedDraw:
        """The result, once :meth:`run` says that there is one."""
        return AllowedDraw(self.token, _log_add(self._log_estimate, self._log_share + self._log_allowed), self.tests)

    def run(self, order: Iterable[Sequence[float]], allows: Callable[[int], bool]) -> bool:
        """Test the next tokens of the order, as many as are needed; return whether no more are."""
        for token, log_q, log_untested, log_squares in order:
            if log_q == -math.inf:
                return True
            allowed = allows(int(token))
            self.tests += 1
            if self.token >= 0:
                self._weigh(allowed)
            elif allowed:
                self.token = int(token)
            if allowed:
                self._log_allowed = _log_add(self._log_allowed, log_q)
            self._log_untested, self._log_squares = log_untested, log_squares
            if log_untested == -math.inf or (self.token >= 0 and self._log_share == -math.inf):
                return True
        return False

    def _weigh(self, allowed: bool) -> None:
        """Count one further test in the estimate: ``A + U 1[allowed]``, with its weight."""
        weight = _weight(math.exp(min(0.0, self._log_squares - 2 * self._log_untested)), self._left)
        self._left -= 1
        if weight > 0:
            found = _log_add(self._log_allowed, self._log_untested) if allowed else self._log_allowed
            self._log_estimate = _log_add(self._log_estimate, self._log_share + math.log(weight) + found)
        self._log_share = self._log_share + math.log1p(-weight) if weight < 1 else -math.inf


def gumbel(keys: Tensor, tokens: Tensor) -> Tensor:
    """Return ``[W, K]`` float64 standard Gumbel numbers, one for each key and token id, the same on every device.

    They come from a counter-based generator (splitmix64: Steele, Lea and Flood 2014), so that no walk's numbers depend on who is
    beside it. Integers of torch wrap around, as the generator wants it.
    """
    bits = keys[:, None] + (tokens + 1) * _signed(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits.bitwise_xor_(_shifted(bits, shift)).mul_(_signed(factor))
    bits.bitwise_xor_(_shifted(bits, 31))
    uniform = _shifted(bits, 12).double().add_(0.5).mul_(2.0**-52)  # never 0 or 1
    return uniform.log_().neg_().log_().neg_()


def _race(
    log_q: Tensor,
    columns: Tensor,
    rows: Sequence[int],
    keys: Sequence[int],
    allows: Callable[[int, int], bool],
    empty: set[int],
    further: int,
) -> list[AllowedDraw]:
    """Return the draws of some walks; ``empty`` are the distributions of which nothing was found allowed so far."""
    order = Order(log_q[torch.tensor(rows, device=log_q.device)], columns, torch.tensor(keys, device=log_q.device))
    tallies = [MassEstimate(further) for _ in rows]
    going, size = list(range(len(rows))), FIRST
    while going:
        check_interruption()
        pieces = order.next(size).movedim(0, -1).tolist()
        places = []
        for place, (walk, piece) in enumerate(zip(going, pieces, strict=True)):
            row, tally = rows[walk], tallies[walk]
            if row in empty:  # another walk has asked about all that this one can come to
                continue
            if not tally.run(piece, partial(allows, row)):
                places.append(place)
            elif tally.token < 0:
                empty.add(row)
        going = [going[place] for place in places]
        order.keep(places)
        size *= GROWTH
    return [tally.outcome for tally in tallies]


def _with_those_after(log_x: Tensor, log_beyond: Tensor) -> Tensor:
    """Return ``[W, k]``: the log of ``exp(log_beyond)``, ``[W, 1]``, and of all of ``exp(log_x)`` that stand after each."""
    return torch.logcumsumexp(torch.cat([log_beyond, log_x.flip(-1)[:, :-1]], -1), -1).flip(-1)


def _weight(share: float, left: int) -> float:
    """Return the fraction of the remaining weight for the next of ``left`` tests, which takes ``share`` of the untested mass.

    Weights in inverse proportion to foreseen variances ``r^k``, ``r = (1 - share)^2``: ``1 / sum_k r^-k``.
    """
    ratio = (1 - share) ** 2
    return ratio ** (left - 1) / math.fsum(ratio**k for k in range(left))


def _log_add(x: float, y: float) -> float:
    low, high = (x, y) if x < y else (y, x)
    return high + math.log1p(math.exp(low - high)) if low > -math.inf else high


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Return a logical shift to the right; that of torch keeps the sign."""
    return (bits >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
