"""Walks that draw token by token: what one is, and what all those of a call stand on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor

from ..errors import EmptyLanguageError, UnsupportedError
from ..guides.guide import DONE
from ..lm.watch import Progress, follow
from ..numerics.distributions import Distributions, together
from ..numerics.transfers import Exchange, Rows
from ..phi.branches import Branches
from ..phi.constraint import Constraint
from ..phi.estimator import Prefixes, ProposalPhi, SampledRun
from .awrs import draw_allowed
from .sampler import Request, Stream


@dataclass(eq=False)
class Trajectory:
    """One draw in the making."""

    # Its prompt, and its number among those of the prompt
    row: int
    number: int
    rng: np.random.Generator  # Its random stream
    node: int  # The node it stands on, in the run's branches
    # The guide state, and the tokens that may still be written
    state: int
    remaining: int
    tokens: list[int] = field(default_factory=list)  # The tokens that it has written
    # `log p(y)` and `log p(y) - log q(y)` so far, in nats; `log_w` is `-inf` where it failed
    log_p: float = 0.0
    log_w: float = 0.0

    @property
    def finished(self) -> bool:
        """True if the end of sequence was written, or no token was allowed."""
        return self.state == DONE or self.failed

    @property
    def failed(self) -> bool:
        """True if no token that guide and constraint allow had any probability: a draw of weight 0."""
        return self.log_w == -math.inf


class BaseStepper:
    """The walks of a call: their launch, the distributions of where they stand, and their accounts. Who takes them further inherits
    from it.

    ``weighted``: Whether anybody will read the weights of the walks.
    """

    def __init__(self, request: Request, phi: ProposalPhi, *, weighted: bool = True) -> None:
        self._request = request
        self.branches = Branches(request.trees())
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

    def distributions(self, prefixes: Prefixes, exchange: Exchange) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return the function of ``log p`` and ``log p + log h``, ``[n, V]``, of raw logits after ``prefixes``."""
        scores = self.estimate.step(prefixes, exchange)

        def distributions(logits: Tensor) -> tuple[Tensor, Tensor]:
            log_p = self._run.log_p(logits, zip(prefixes.rows, prefixes.tokens, strict=True))
            return log_p, scores(log_p)

        return distributions

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


class Observer(Protocol):
    """Sees the distribution of every step of every trajectory; the draws are the same with or without one."""

    def step(
        self,
        draws: Sequence[tuple[int, int]],
        rows: Sequence[int],
        tokens: Sequence[int],
        log_p: Tensor,
        scores: Tensor,
    ) -> None:
        """Take note of one step of some trajectories.

        ``draws``: Prompt and number of each trajectory.
        ``rows``: The row of ``log_p`` and ``scores`` that each stands on.
        ``tokens``: The token that each takes there; meaningless where its row of ``scores`` is ``-inf`` throughout, which ends
        it.
        ``log_p``, ``scores``: ``[distributions, V]``: ``log p(v|y)``, and ``log p(v|y) + log h(yv)``.
        """


@final
class Stepper(BaseStepper):
    """Takes walks one token further: the estimator's ``log h`` on the distribution of each prefix, one choice per walk.

    ``log_w`` of a walk grows by ``log S(y) - log h(yv)`` (theory.md, section 4.1). Where the request has a constraint, ``S`` is
    the mass of what it allows too, of which :mod:`~outlines_phi.sampling.awrs` has an unbiased estimate.

    Raises :class:`UnsupportedError`: an observer of a request with a constraint, whose mass no step knows.
    """

    def __init__(
        self, request: Request, phi: ProposalPhi, observer: Observer | None = None, *, weighted: bool = True
    ) -> None:
        if observer is not None and request.constraint is not None:
            raise UnsupportedError(
                f"An observer was given beside {request.constraint}, which is asked about few tokens of a step, so the "
                "distribution of a step is not known; leave out one of them."
            )
        super().__init__(request, phi, weighted=weighted or observer is not None)
        self._observer = observer

    def first(self, walks: Sequence[Trajectory]) -> None:
        """Evaluate the prompts and draw the first token of every walk."""
        self._step(walks, *self.branches.plant())

    def advance(self, walks: Sequence[Trajectory]) -> None:
        """Evaluate every distinct prefix that unfinished ``walks`` stand on, in one call, and draw the next token of each."""
        new = dict.fromkeys((walk.node, walk.tokens[-1]) for walk in walks)
        nodes, logits = self.branches.reach([parent for parent, _ in new], [token for _, token in new])
        arrived = dict(zip(new, nodes, strict=True))
        for walk in walks:
            walk.node = arrived[walk.node, walk.tokens[-1]]
        self._step(walks, nodes, logits)

    def _step(self, walks: Sequence[Trajectory], nodes: Sequence[int], logits: Rows) -> None:
        """Draw the next token of every walk from the distribution of the node it stands on: few rows at a time, one transfer."""
        standing: dict[int, list[Trajectory]] = {}
        for walk in walks:
            standing.setdefault(walk.node, []).append(walk)
        # Neighbours of one guide state are treated together.
        alike = sorted(standing.values(), key=lambda same: (same[0].state, same[0].remaining))
        moving = [walk for same in alike for walk in same]
        # An estimator with a state is asked about a step as a whole, and an observer told of it.
        apart = self.estimate.stateless and self._observer is None
        size = together(logits.matrix) if apart else len(alike)
        position = {node: i for i, node in enumerate(nodes)}
        places = [position[same[0].node] for same in alike]
        rows = [row % size for row, same in enumerate(alike) for _ in same]
        constraint = self._request.constraint
        if self._observer is not None or constraint is not None:
            logits.read()  # what others see before it is read below is checked before
        exchange = Exchange(logits)
        logits_of = exchange.rows(places)
        uniforms = [] if constraint else [walk.rng.random() for walk in moving]
        sent = exchange.send(np.array(rows), np.array(uniforms))
        parts = [slice(start, start + size) for start in range(0, len(alike), size)]
        asked = [self.distributions(_prefixes([same[0] for same in alike[part]]), exchange) for part in parts]
        first, chosen = 0, list[Tensor]()
        for part, distributions in zip(parts, asked, strict=True):
            here = slice(first, first := first + sum(map(len, alike[part])))
            log_p, scores = distributions(logits_of(part))
            index, quantiles = sent()
            chosen.append(self._choose(moving[here], rows[here], index[here], quantiles[here], log_p, scores))
        (read,) = exchange.read(torch.cat(chosen, -1))
        for walk, token, log_s, *account in zip(moving, *read.tolist(), strict=True):
            if log_s > -math.inf:
                self.take(walk, int(token), *account)
                self.end_free(walk)
            else:
                walk.log_w = -math.inf
        self.branches.prune(nodes, ((walk.node, walk.tokens[-1]) for walk in walks if not walk.finished))

    def _choose(
        self,
        walks: Sequence[Trajectory],
        rows: Sequence[int],
        index: Tensor,
        uniforms: Tensor,
        log_p: Tensor,
        scores: Tensor,
    ) -> Tensor:
        """Draw one token per walk from the row of ``scores`` that ``rows`` names, and ``index`` on the device.

        Returns ``[4, n]`` float64: the token, ``log S``, ``log p`` of the token, and ``log p - log q``.
        """
        constraint = self._request.constraint
        if constraint is None:
            distributions = Distributions.of(scores)
            tokens, log_s = distributions.draw(index, uniforms), distributions.log_s[index]
        else:
            tokens, log_s = self._draw_allowed(walks, rows, scores.double(), constraint)
        if self._observer is not None:
            draws = [(walk.row, walk.number) for walk in walks]
            self._observer.step(draws, rows, tokens.tolist(), log_p, scores.double())
        # log p - log q = log S - log h
        log_p_v, log_q_v = log_p[index, tokens].double(), scores[index, tokens].double() - log_s
        return torch.stack([tokens.double(), log_s, log_p_v, log_p_v - log_q_v])

    def _draw_allowed(
        self, walks: Sequence[Trajectory], rows: Sequence[int], scores: Tensor, constraint: Constraint
    ) -> tuple[Tensor, Tensor]:
        """Return a token per walk that ``constraint`` allows too, and the estimate of the log of the mass that both allow.

        Raises :class:`EmptyLanguageError`: the constraint allows no first token of a prompt: not one draw of any number would
        be completed.
        """
        head = dict(zip(rows, walks, strict=True))
        table = self._request.table

        def allows(row: int, token: int) -> bool:
            walk = head[row]
            finished = table.advance(walk.state, token, walk.remaining) == DONE
            written = walk.tokens if token == table.vocabulary.eos_ids[0] else [*walk.tokens, token]
            return constraint.allows(written, finished=finished)

        keys = [int(walk.rng.integers(2**63)) for walk in walks]
        outcomes = draw_allowed(scores, rows, keys, allows, constraint.further)
        for walk, outcome in zip(walks, outcomes, strict=True):
            if outcome.token < 0 and outcome.tests and not walk.tokens:
                truncation = self._request.settings.truncation
                raise EmptyLanguageError(
                    f"Prompt {walk.row}: {constraint} allows no output at all{truncation and f' under {truncation}'}: it was asked "
                    f"about every first token that the output type leaves, {outcome.tests} in all, and refused each. It is asked "
                    "about unfinished texts too, and has to allow every beginning of what it allows."
                )
        tokens = torch.tensor([max(0, outcome.token) for outcome in outcomes], device=scores.device)
        return tokens, torch.tensor([outcome.log_s for outcome in outcomes], dtype=scores.dtype, device=scores.device)


def _prefixes(walks: Sequence[Trajectory]) -> Prefixes:
    """Return the prefixes that ``walks`` stand on, all distinct."""
    return Prefixes(
        rows=[walk.row for walk in walks],
        nodes=[walk.node for walk in walks],
        states=[walk.state for walk in walks],
        remaining=[walk.remaining for walk in walks],
        tokens=[walk.tokens for walk in walks],
    )
