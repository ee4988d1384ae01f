"""Speculative verification: the part of a draft that is kept, and the token after it (theory.md, section 7.1).

Pure torch, all rows at once, on any device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from ..numerics.weights import masses_at

BLOCK = 256
"""Tokens that are summed together: a draw reads the sums of a distribution, then one block of it."""

CACHED = 2**17
"""Elements that are exponentiated at a time on a processor: what fits its cache. An accelerator takes :data:`AT_ONCE`."""

AT_ONCE = 2**26
"""Elements that are held beside the distributions, at most: 256 MiB in single precision."""


@final
@dataclass(frozen=True, eq=False)
class Distributions:
    """Distributions ``q(v) = exp(score(v)) / S`` that are read once, then drawn from by inverse CDF at the cost of a block each."""

    scores: Tensor  # `[L, V]`: `log p + log h`, or any other log of a distribution, normalised or not
    log_s: Tensor  # `[L]` float64: `log S`, `-inf` where a row allows nothing
    # `[L, V / BLOCK]` float64: the mass of each block and of all before it; 0 where a row allows nothing
    masses: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> Distributions:
        """Return the distributions of ``scores``, ``[L, V]``: one exponential and one sum of each element."""
        parts = [_sums(part) for part in scores.split(_together(scores))]
        log_s, sums = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return cls(scores, log_s, sums.cumsum(-1))

    def log_q(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Return ``log q`` of ``tokens`` in ``rows``, float64; means nothing in a row that allows nothing."""
        return self.scores[rows, tokens].double() - self.log_s[rows]

    def draw(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Return one token per entry of ``rows``, ``[n]``, at the quantile that ``uniforms``, ``[n]`` in [0, 1), names.

        The token of a row that allows nothing means nothing.
        """
        masses = self.masses.index_select(0, rows)
        return _quantile(masses, uniforms, lambda block: self.shares(rows, block), self.scores.shape[-1])

    def shares(self, rows: Tensor, block: Tensor) -> Tensor:
        """Return the mass of each token of a block of each row, ``[n, BLOCK]`` float64, in the measure of :attr:`masses`."""
        columns, beyond = _columns(block, self.scores.shape[-1])
        share = (self.scores[rows[:, None], columns].double() - self.log_s[rows, None]).exp_()
        return torch.where(beyond, 0.0, share).nan_to_num_(nan=0.0).mul_(self.masses[rows, -1:])


def _quantile(masses: Tensor, uniforms: Tensor, shares: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """Return the token at a quantile of each row, given the masses up to its blocks, and those of the tokens of one."""
    target = masses_at(masses, uniforms[:, None])[:, 0]
    block = torch.searchsorted(masses, target[:, None], right=True)[:, 0].clamp_(max=masses.shape[-1] - 1)
    inner = shares(block).cumsum(-1)
    # Below the block's mass, so that rounding never leads beyond the last token that has any.
    target = torch.minimum(target - _before(masses, block), torch.nextafter(inner[:, -1], torch.zeros_like(target)))
    found = torch.searchsorted(inner, target[:, None], right=True)[:, 0]
    return (block * BLOCK + found).clamp_(max=size - 1)


def _before(masses: Tensor, block: Tensor) -> Tensor:
    """Return the mass of all blocks before one of each row."""
    return torch.where(block > 0, masses.gather(-1, (block[:, None] - 1).clamp_min(0))[:, 0], 0.0)


def _columns(block: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of a block of each row, ``[n, BLOCK]``, and which of them are beyond the vocabulary."""
    columns = block[:, None] * BLOCK + torch.arange(min(BLOCK, size), device=block.device)
    return columns.clamp(max=size - 1), columns >= size


def _together(scores: Tensor) -> int:
    """Return how many rows of ``scores`` are read at a time."""
    return max(1, (CACHED if scores.device.type == "cpu" else AT_ONCE) // scores.shape[-1])


def _block_sums(weights: Tensor) -> Tensor:
    """Return the sum of each block of ``weights``, ``[n, V]``, in double precision."""
    whole = weights.shape[-1] // BLOCK * BLOCK
    sums = [weights[:, :whole].unflatten(-1, (-1, BLOCK)).sum(-1)] if whole else []
    if whole < weights.shape[-1]:
        sums.append(weights[:, whole:].sum(-1, keepdim=True))
    return torch.cat(sums, -1).double()


def _sums(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``log S`` of each row of ``scores``, and the masses of its blocks, which add up to 1 but for rounding."""
    q = scores.softmax(-1)  # in place of exp: half the time on a CPU
    masses = _block_sums(q)
    # softmax has divided by its own sum, which the largest element still knows; what the division left is summed in float64.
    log_s = scores.amax(-1).double() - q.amax(-1).double().log() + masses.sum(-1).log()
    return log_s.nan_to_num(nan=-math.inf, neginf=-math.inf), masses.nan_to_num(nan=0.0)


@final
class Chains(NamedTuple):
    """The drafts of ``B`` walks, ragged, of at most ``K`` tokens."""

    # `[B, K + 1]`: which of the distributions the token of each position has; -1 where there is no further token, after the end
    # of sequence. What stands beyond the position after a draft means nothing.
    rows: Tensor
    tokens: Tensor  # `[B, K]`: the drafted tokens; what stands beyond a draft means nothing
    lengths: Tensor  # `[B]`: how many tokens were drafted
    # `[B, K + 1]` float64 in [0, 1): one per position. Those of positions that are not reached are not used.
    uniforms: Tensor


@final
class Proposals(NamedTuple):
    """The distributions that ``S`` of the drafts were drawn from."""

    walks: Tensor  # `[S]`: whose drafts
    rows: Tensor  # `[S, K]`: which row of `log_r` each token was drawn from; what stands beyond a draft means nothing
    log_r: Tensor  # `[R, V]` log probabilities


@final
class CouplingResult(NamedTuple):
    """The outcome of some drafts."""

    accepted: Tensor  # `[B]`: how many tokens of each are kept
    tokens: Tensor  # `[B]`: the token after those, -1 where the draft has led to the end of sequence


def verify(distributions: Distributions, chains: Chains, proposals: Proposals | None = None) -> CouplingResult:
    """Return how much of each draft is kept, and the token after it: together a draw of ``q_1 q_2 ...`` whatever was drafted.

    A draft that was not drawn is followed as long as it is what the walk draws by itself: token for token the walk without a
    draft. A draft ``d ~ r`` is kept with probability ``min(1, q(d) / r(d))``; else a token is drawn from the positive part of
    ``q - r`` (Leviathan et al., arXiv 2211.17192), from ``q`` where rounding leaves nothing of it. One uniform serves both: given
    that it rejects, what is above the acceptance is uniform again. Nothing is read back from the device.
    """
    batch, longest = chains.tokens.shape
    own_tokens = distributions.draw(chains.rows.clamp_min(0).reshape(-1), chains.uniforms.reshape(-1)).view(
        batch, longest + 1
    )
    follows = own_tokens[:, :longest] == chains.tokens
    if proposals is not None:
        keeps = _keeps(distributions, chains, proposals)
        follows[proposals.walks] = chains.uniforms[proposals.walks, :longest] < keeps
    follows &= torch.arange(longest, device=follows.device) < chains.lengths[:, None]
    accepted = follows.long().cumprod(-1).sum(-1)
    here = torch.arange(batch, device=accepted.device)
    last, uniforms, tokens = (each[here, accepted] for each in (chains.rows, chains.uniforms, own_tokens))
    if proposals is not None:
        own, place = proposals.walks, accepted[proposals.walks].clamp_max(longest - 1)[:, None]
        kept, drawn_from = keeps.gather(-1, place)[:, 0], proposals.rows.gather(-1, place)[:, 0]
        above = ((uniforms[own] - kept) / (1 - kept)).clamp(0.0, 1 - 2**-53)
        rest = _draw_rest(distributions, last[own].clamp_min(0), proposals.log_r, drawn_from, above)
        tokens[own] = torch.where(accepted[own] < chains.lengths[own], rest, tokens[own])
    return CouplingResult(accepted, torch.where(last < 0, -1, tokens))


def _keeps(distributions: Distributions, chains: Chains, proposals: Proposals) -> Tensor:
    """Return ``min(1, q(d) / r(d))``, ``[S, K]``; 0 where ``q(d) = 0``, whatever ``r(d)`` has come to by rounding."""
    tokens = chains.tokens[proposals.walks]
    rows = chains.rows[proposals.walks, : tokens.shape[-1]].clamp_min(0)
    log_q = distributions.log_q(rows, tokens)
    log_r = proposals.log_r[proposals.rows.clamp_min(0), tokens].double()
    return (log_q - log_r).exp().nan_to_num(nan=0.0, posinf=1.0).clamp_max(1.0)


def _draw_rest(
    distributions: Distributions, rows: Tensor, log_r: Tensor, drawn_from: Tensor, uniforms: Tensor
) -> Tensor:
    """Return a token per row from the positive part of ``q - r``; from ``q`` where rounding leaves nothing of it."""
    found, size = [], distributions.scores.shape[-1]
    for part in torch.arange(len(rows), device=rows.device).split(_together(distributions.scores)):
        own = rows[part]
        q = distributions.scores.index_select(0, own).sub_(distributions.log_s[own, None]).exp_()
        rest = q.sub_(log_r.index_select(0, drawn_from[part]).to(q.dtype).exp_()).clamp_min_(0.0)
        masses = _block_sums(rest).nan_to_num(nan=0.0).cumsum(-1)
        left = masses[:, -1:] > 0

        def shares(block: Tensor, own: Tensor = own, rest: Tensor = rest, left: Tensor = left) -> Tensor:
            columns, beyond = _columns(block, size)
            return torch.where(
                left, rest.gather(-1, columns).masked_fill(beyond, 0.0), distributions.shares(own, block)
            )

        masses = torch.where(left, masses, distributions.masses[own])
        found.append(_quantile(masses, uniforms[part], shares, size))
    return torch.cat(found)
