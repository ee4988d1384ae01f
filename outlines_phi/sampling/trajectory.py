"""Walks that draw token by token: what one is, and what all those of a call stand on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ..guides.guide import DONE
from ..lm.watch import Progress, follow
from ..numerics.streams import Stream
from ..phi.branches import Branches
from ..phi.estimator import Prefixes, ProposalPhi, SampledRun
from .sampler import Request


@dataclass(eq=False)
class Trajectory:
    """One draw in the making.

    Attributes
    ----------
    row, number
        Its prompt, and its number among those of the prompt.
    rng
        Its random stream.
    node
        The node it stands on, in the run's branches.
    state, remaining
        The guide state, and the tokens that may still be written.
    tokens
        The tokens that it has written.
    log_p, log_w
        ``log p(y)`` and ``log p(y) - log q(y)`` so far, in nats; ``log_w`` is ``-inf`` where it failed.
    """

    row: int
    number: int
    rng: np.random.Generator
    node: int
    state: int
    remaining: int
    tokens: list[int] = field(default_factory=list)
    log_p: float = 0.0
    log_w: float = 0.0

    @property
    def finished(self) -> bool:
        """Whether the end of sequence was written, or no token was allowed."""
        return self.state == DONE or self.failed

    @property
    def failed(self) -> bool:
        """Whether no token that guide and constraint allow had any probability: a draw of weight 0."""
        return self.log_w == -math.inf


class BaseStepper:
    """The walks of a call: their launch, the distributions of where they stand, and their accounts. Who takes them further inherits
    from it.

    Parameters
    ----------
    request
        The call.
    phi
        The estimator, ``h``.
    weighted
        Whether anybody will read the weights of the walks.

    Attributes
    ----------
    branches
        The prefixes of the run.
    estimate
        The estimator at work.
    """

    def __init__(self, request: Request, phi: ProposalPhi, *, weighted: bool = True) -> None:
        self._request = request
        self.branches = Branches(request.lm.trees(request.prompts))
        self._run = SampledRun(
            lm=request.lm,
            table=request.table,
            settings=request.settings,
            prompts=request.prompts,
            budgets=request.budgets,
            branches=self.branches,
            stream=lambda row: request.stream(row, Stream.ESTIMATE),
        )
        self.estimate = phi.begin(self._run)
        # Under truncation or a constraint a text that can only end may still be refused.
        refusing = bool(request.settings.truncation) or request.constraint is not None
        self._ends_free = not weighted and not refusing and self.estimate.stateless
        self._launched = 0

    def launch(self, n: int) -> list[Trajectory]:
        """Return ``n`` more walks of every prompt, at the start; the estimator has learned from those before."""
        request = self._request
        self.estimate.learn()
        numbers = range(self._launched, self._launched + n)
        self._launched += n
        return [
            Trajectory(row, i, request.stream(row, i), row, request.starts[row], request.budgets[row])
            for row in range(len(request.prompts))
            for i in numbers
        ]

    def follow(self, walks: Callable[[], Iterable[Trajectory]], wanted: int, particles: int = 1) -> None:
        """Let the finished ones of ``walks()`` tell how far the call has come; so many of them make one of the draws ``wanted``."""

        def progress() -> Progress:
            finished = sum(walk.finished for walk in walks())
            counts = self.branches.trees.counts
            return Progress.of(counts, draws=finished // particles, wanted=wanted, attempts=finished)

        follow(progress)

    def laws(self, logits: Tensor, prefixes: Prefixes) -> tuple[Tensor, Tensor]:
        """Return ``log p`` and ``log p + log h``, ``[n, V]``, of raw ``logits`` after ``prefixes``."""
        log_p = self._run.log_p(logits, zip(prefixes.rows, prefixes.tokens, strict=True))
        return log_p, self.estimate.add_log_h(log_p.clone(), prefixes)

    def take(self, walk: Trajectory, token: int, log_p: float, log_w: float) -> None:
        """Let ``walk`` write ``token``, which has ``log p`` and adds ``log p - log q`` to the weight."""
        walk.log_p, walk.log_w = walk.log_p + log_p, walk.log_w + log_w
        walk.tokens.append(token)
        walk.state = self._request.table.advance(walk.state, token, walk.remaining)
        walk.remaining -= 1

    def end_free(self, walk: Trajectory) -> None:
        """Let ``walk`` end without the model where its text can only end, if weights are not read: its own is not known then."""
        table = self._request.table
        if self._ends_free and not walk.finished and table.only_ends(walk.state, walk.remaining):
            self.take(walk, table.vocabulary.eos_ids[0], math.nan, math.nan)
