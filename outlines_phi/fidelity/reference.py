"""The exact laws of a small language, by enumeration: what every sampler is compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from ..errors import UnsupportedError
from ..guides.guide import DONE
from ..guides.table import Table
from ..lm.model import LanguageModel
from ..settings import SamplingSettings


@final
@dataclass(frozen=True)
class Reference:
    """Every member of a language within the budget, with its exact log probabilities.

    Attributes
    ----------
    log_p
        ``log p(y)`` of each member, by its token ids, in nats.
    log_mask
        ``log mu_proj(y)``: the law of plain masking.
    """

    log_p: dict[tuple[int, ...], float]
    log_mask: dict[tuple[int, ...], float]

    @cached_property
    def log_phi(self) -> float:
        """``log Phi(prompt) = log sum_y p(y)``."""
        values = np.array(list(self.log_p.values()))
        return float(np.logaddexp.reduce(values)) if values.size else -math.inf

    @cached_property
    def mu(self) -> dict[tuple[int, ...], float]:
        """``mu*``: the model's own law conditioned on the language."""
        return {ids: math.exp(log_p - self.log_phi) for ids, log_p in self.log_p.items()}

    @cached_property
    def mask(self) -> dict[tuple[int, ...], float]:
        """``mu_proj``: the law of plain masking (below 1 in total where truncation empties a step)."""
        return {ids: math.exp(log_q) for ids, log_q in self.log_mask.items()}


def enumerate_language(
    lm: LanguageModel,
    table: Table,
    prompt: Sequence[int],
    settings: SamplingSettings,
    budget: int,
    *,
    max_prefixes: int = 100_000,
) -> Reference:
    """Return the exact laws of a language after ``prompt``, level by level, one model call each.

    Parameters
    ----------
    lm, table, prompt, settings
        As for a sampler.
    budget
        The most tokens of a member, end of sequence included.
    max_prefixes
        Prefixes to evaluate at most.

    Raises
    ------
    UnsupportedError
        The language has more prefixes than that.
    """
    reference = Reference({}, {})
    trees = lm.trees([prompt])
    evaluation = trees.roots()
    level: list[tuple[tuple[int, ...], int, float, float]] = [((), table.start, 0.0, 0.0)]
    seen = 1
    for remaining in range(budget, 0, -1):
        log_p = (
            settings.log_p(evaluation.logits, lm.vocabulary, ((*prompt, *ids) for ids, *_ in level))
            .double()
            .cpu()
            .numpy()
        )
        parents: list[int] = []
        below: list[tuple[tuple[int, ...], int, float, float]] = []
        for node, law, (ids, state, path, masked) in zip(evaluation.nodes, log_p, level, strict=True):
            moves = table.moves(state, remaining)
            live = law[moves.tokens]
            if not live.size or live.max() == -math.inf:
                continue
            log_s = float(np.logaddexp.reduce(live))
            for token, target, log_v in zip(moves.tokens.tolist(), moves.targets.tolist(), live.tolist(), strict=True):
                child = ((*ids, token), target, path + log_v, masked + log_v - log_s)
                if log_v == -math.inf:
                    continue
                if target == DONE:
                    reference.log_p[child[0]], reference.log_mask[child[0]] = child[2:]
                else:
                    parents.append(node)
                    below.append(child)
        seen += len(below)
        if seen > max_prefixes:
            raise UnsupportedError(
                f"The language has more than {max_prefixes} prefixes; give a smaller one or a larger max_prefixes."
            )
        if not below:
            break
        level = below
        evaluation = trees.extend(parents, [ids[-1] for ids, *_ in below])
    return reference
