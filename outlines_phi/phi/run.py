"""What an estimator may read of the call that it works in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from torch import Tensor

from ..guides.table import Table
from ..lm.model import LanguageModel
from ..settings import SamplingSettings
from .branches import Branches


class Prefixes(NamedTuple):
    """The distinct prefixes of one step, in the order of the rows of their laws.

    Attributes
    ----------
    rows
        The prompt of each, by its number.
    nodes
        The node of each in the run's branches.
    states, remaining
        The guide state of each, and the tokens that it may still write.
    tokens
        What has been written in each.
    drafted
        Which of them stand on drafts, where there are any: whether a walk comes to one of these is found out after the step, see
        :meth:`~outlines_phi.phi.estimator.Estimate.reached`.
    """

    rows: Sequence[int]
    nodes: Sequence[int]
    states: Sequence[int]
    remaining: Sequence[int]
    tokens: Sequence[Sequence[int]]
    drafted: Sequence[bool] = ()


@final
@dataclass(frozen=True)
class Run:
    """One call of a sampler, as an estimator sees it.

    Attributes
    ----------
    lm, table, settings
        What is likely, what is allowed, and what the user asked for.
    prompts, budgets
        Token ids of each prompt, and the most tokens after it.
    branches
        The prefixes evaluated in this run.
    stream
        A random stream per prompt, for estimators that draw; keyed by the call's seed, apart from those of the draws.
    """

    lm: LanguageModel
    table: Table
    settings: SamplingSettings
    prompts: Sequence[tuple[int, ...]]
    budgets: Sequence[int]
    branches: Branches
    stream: Callable[[int], np.random.Generator]

    def log_p(self, logits: Tensor, prefixes: Iterable[tuple[int, Sequence[int]]]) -> Tensor:
        """Return ``log p``, ``[n, V]``, of raw ``logits`` after ``(prompt number, written tokens)``."""
        contexts = ((*self.prompts[row], *tokens) for row, tokens in prefixes)
        return self.settings.log_p(logits, self.lm.vocabulary, contexts)
