"""Speculative verification: the part of a draft that is kept, and the token after it (theory.md, section 7.1).

Pure torch, all rows at once, on any device.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from torch import Tensor

from ..numerics.distributions import Distributions, block_sums, columns, quantile, together


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
    """Return the accepted length of each draft and the token after it: together a draw of ``q_1 q_2 ...`` whatever was drafted.

    A draft that was not drawn is followed as long as it is what the walk draws by itself: token for token the walk without a
    draft. A draft ``d ~ r`` is kept with probability ``min(1, q(d) / r(d))``; else a token is drawn from the positive part of
    ``q - r`` (Leviathan et al., arXiv 2211.17192), from ``q`` where rounding leaves nothing of it. One uniform serves both: given
    that it rejects, what is above the acceptance is uniform again. Nothing is read back from the device.
    """
    batch, longest = chains.tokens.shape
    own_tokens = distributions.draw(chains.rows.clamp_min(0).reshape(-1), chains.uniforms.reshape(-1)).view(
        batch, longest + 1
    )
    if not longest:  # nothing was drafted for anybody
        return CouplingResult(torch.zeros_like(chains.lengths), torch.where(chains.rows < 0, -1, own_tokens)[:, 0])
    follows = own_tokens[:, :longest] == chains.tokens
    if proposals is not None:
        keeps = _keeps(distributions, chains, proposals)
        follows[proposals.walks] = chains.uniforms[proposals.walks, :longest] < keeps
    known = distributions.log_s[chains.rows[:, :longest].clamp_min(0)].isfinite()
    follows &= known & (torch.arange(longest, device=follows.device) < chains.lengths[:, None])
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
    for part in torch.arange(len(rows), device=rows.device).split(together(distributions.scores)):
        own = rows[part]
        q = distributions.scores.index_select(0, own).sub_(distributions.log_s[own, None]).exp_()
        rest = q.sub_(log_r.index_select(0, drawn_from[part]).to(q.dtype).exp_()).clamp_min_(0.0)
        masses = block_sums(rest).nan_to_num(nan=0.0).cumsum(-1)
        left = masses[:, -1:] > 0

        def shares(block: Tensor, own: Tensor = own, rest: Tensor = rest, left: Tensor = left) -> Tensor:
            tokens, beyond = columns(block, size)
            return torch.where(left, rest.gather(-1, tokens).masked_fill(beyond, 0.0), distributions.shares(own, block))

        masses = torch.where(left, masses, distributions.masses[own])
        found.append(quantile(masses, uniforms[part], shares, size))
    return torch.cat(found)
