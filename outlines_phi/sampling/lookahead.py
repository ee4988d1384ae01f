"""Texts without banned phrases, drawn window by window (theory.md, section 6)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from ..errors import COST, BudgetError, UnsupportedError
from ..lm.model import ModelCounts
from ..lm.watch import Progress, follow
from ..phi.tree.window import Windows
from .ancestral import TOGETHER
from .committing_walk import Account, CommittingWalk
from .drafted_stepper import Prefetch
from .draw import Draw, Guarantee
from .draws import DrawCounts, Draws
from .phi_options import LookaheadPhi
from .sampler import Request, Sampler, Stream
from .smc import SMC, finished, picks
from .stepper import Trajectory
from .window_walks import EvaluatedText, EvaluatedTexts

WALK_BYTES = 160
"""Measured footprint of a walk for every token of the vocabulary: the distributions of a window under way."""

AT_ONCE = 2**30
"""Memory that walks may take side by side; the others come after them."""


@final
@dataclass(frozen=True)
class LookaheadSampler(Sampler):
    """Draws windows, each by adaptive rejection from ``p(x | r) 1[no phrase] / Psi(r)``, and commits them.

    All windows of all draws of all prompts advance together, in one model call per step; a text is evaluated once while a walk
    may come back to it. A draw depends on the seed, its prompt's number and its own, and on nothing else of the call.
    """

    phi: LookaheadPhi
    # The drafts, evaluated ahead of the walks; `None` for none. Walks come to the same distributions by fewer calls, so the
    # draws of a seed are, token for token, those without a draft, as far as the model answers alike in calls of other sizes.
    # The noise of their weights may be another.
    draft: Prefetch | None = None

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises :class:`BudgetError`: the effort ran out in a window; carries what was drawn so far.
        Raises :class:`UnsupportedError`: a guide that bans no phrases, or a constraint beside it.
        Raises :class:`DraftError`: the drafter raised, or proposed what is no draft.
        """
        run = Lookahead(self.phi, request, self.draft)
        for _ in run.steps():
            pass
        return run.draws()

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that have committed tokens, or failed, after every model call.

        A token is final when it is committed: a trajectory only ever grows, by several tokens at once where they were one window.
        """
        return Lookahead(self.phi, request, self.draft).steps()


@final
class Lookahead:
    """One call of a look-ahead.

    ``draft``: The drafts, evaluated ahead of the walks; ``None`` for none.
    Raises :class:`UnsupportedError`: a guide that bans no phrases, or a constraint beside it.
    """

    def __init__(self, phi: LookaheadPhi, request: Request, draft: Prefetch | None = None) -> None:
        if request.constraint is not None:
            raise UnsupportedError(
                f"{request.constraint} was given with phi='lookahead', which commits a text before a predicate has seen it whole. "
                "Give phi='local' or phi='exact', which ban the same phrases, or leave the constraint out."
            )
        self._phi, self._request, self._draft = phi, request, draft
        self._windows = Windows(request.table, phi.ending)
        self._texts = EvaluatedTexts(request, draft)
        self._accounts: list[Account] = []
        self._diagnostics: dict[tuple[int, int], np.random.Generator] = {}

    def steps(self) -> Iterator[Sequence[Trajectory]]:
        """Take all draws to their ends; yield the trajectories that have grown, or failed, after every model call.

        Raises :class:`BudgetError`: the effort ran out in a window of some draw; raised when the others have ended.
        """
        numbers = [(row, i) for row in range(len(self._request.prompts)) for i in range(self._request.n)]
        follow(lambda: self.progress(len(numbers), sum(one.trajectory.finished for one in self._accounts)))
        at_once = side_by_side(len(self._request.table.vocabulary))
        for first in range(0, len(numbers), at_once):
            walks = self.launch(numbers[first : first + at_once])
            while walks:
                yield from self.step(walks, walks)
                walks = [walk for walk in walks if walk.under_way]
        self.refuse_exhausted(self.draws)

    def draws(self) -> list[Draws]:
        """Return the draws of every prompt."""
        return [self._draws(row) for row in range(len(self._request.prompts))]

    def launch(self, numbers: Sequence[tuple[int, int]]) -> list[CommittingWalk]:
        """Return walks at the start, by the number of their prompt and their own; those of one prompt share what they evaluate."""
        request = self._request
        roots = {row: self._texts.root(row) for row, _ in numbers}
        for row, i in numbers:
            self._diagnostics[row, i] = request.stream(row, Stream.DIAGNOSTIC + i)
        return [
            self.resume(
                Trajectory(row, i, request.stream(row, i), row, request.starts[row], request.budgets[row]), roots[row]
            )
            for row, i in numbers
        ]

    def resume(self, trajectory: Trajectory, text: EvaluatedText) -> CommittingWalk:
        """Return a walk that goes on with ``trajectory``, whose text is ``text``, in the place of the walk with its number."""
        row, diagnostics = trajectory.row, self._diagnostics[trajectory.row, trajectory.number]
        walk = CommittingWalk(self._windows, self._phi, trajectory, text, self._request.prompts[row], diagnostics)
        self._accounts.append(walk.account)
        return walk

    def step(self, walks: Sequence[CommittingWalk], kept: Sequence[CommittingWalk]) -> Iterator[Sequence[Trajectory]]:
        """Take ``walks`` as far as known distributions lead, yield those that have grown or failed, and ask the model for the next
        distributions.

        Texts that none of the walks ``kept`` needs are given back now and then.
        """
        before = [len(walk.trajectory.tokens) for walk in walks]
        wanted = {text: ids for walk in walks for text, ids in walk.advance().items()}
        grown = [
            walk.trajectory
            for walk, length in zip(walks, before, strict=True)
            if len(walk.trajectory.tokens) > length or walk.trajectory.failed
        ]
        if grown:
            yield grown
        if wanted:
            self._texts.evaluate(wanted)
        size = sum(len(walk.trajectory.tokens) for walk in kept)
        self._texts.tidy(lambda: (text for walk in kept for text in walk.held()), size)

    @property
    def counts(self) -> ModelCounts:
        """The cost of the model calls so far."""
        return self._texts.counts

    def progress(self, wanted: int, draws: int) -> Progress:
        """Return how far the call has come, with so many of the ``wanted`` draws."""
        attempts = sum(account.attempts for account in self._accounts)
        return Progress.of(self.counts, draws=draws, wanted=wanted, attempts=attempts)

    def rejections(self, row: int) -> dict[str, int]:
        """Return how many attempts each phrase has cost the draws of a prompt, by its name."""
        rejected = sum((account.rejected for account in self._of(row)), Counter[int]())
        return {self._names[phrase]: count for phrase, count in sorted(rejected.items())}

    def refuse_exhausted(self, draws: Callable[[], list[Draws]]) -> None:
        """Raise where the effort of a window ran out.

        Raises :class:`BudgetError`: it did; carries ``draws()``, those that were completed.
        """
        account = next((account for account in self._accounts if account.exhausted), None)
        if account is None:
            return
        index, written = account.trajectory.row, len(account.trajectory.tokens)
        rejections = self.rejections(index)
        costly = sorted(rejections, key=lambda name: -rejections[name])[:3]
        named = f", mostly {', '.join(costly)}" if costly else ""
        raise BudgetError.of(
            "Mask last tokens instead (phi='local'), give a larger LookaheadPhi(effort=Effort(...)), or change the prompt",
            f"Prompt {index}: the effort ran out after {written} tokens of a draw, in a window where the model hardly writes "
            f"anything else than banned phrases{named}",
            f"the error's .draws holds the draws that were completed, and {COST}",
            draws=draws(),
        )

    @property
    def _names(self) -> Sequence[str]:
        return self._windows.guide.phrases.names

    def _of(self, row: int) -> list[Account]:
        return [account for account in self._accounts if account.trajectory.row == row]

    def _draws(self, row: int) -> Draws:
        accounts = self._of(row)
        items = [self._draw(one.trajectory) for one in accounts if not (one.exhausted or one.trajectory.failed)]
        return Draws(
            items=tuple(items),
            counts=DrawCounts(
                **vars(self.counts),
                attempts=sum(account.attempts for account in accounts),
                accepted=sum(account.committed for account in accounts),
                **self._drafted(row),
            ),
            budget=self._request.budgets[row],
            failures=sum(account.trajectory.failed for account in accounts),
            rejections=self.rejections(row),
        )

    def _drafted(self, row: int) -> dict[str, int]:
        if self._draft is None:
            return {}
        written = sum(len(account.trajectory.tokens) for account in self._of(row))
        turns = sum(account.turns for account in self._of(row))
        return {**vars(self._texts.tallies[row]), "written": written, "turns": turns}

    def _draw(self, walk: Trajectory) -> Draw:
        return Draw.of(
            self._request.table.vocabulary,
            walk.tokens,
            log_p=walk.log_p,
            log_w=walk.log_w if self._phi.weights else math.nan,
            guarantee=Guarantee.WEIGHTED if self._phi.weights else Guarantee.APPROXIMATE,
        )


def side_by_side(vocabulary: int, walks: int = 1) -> int:
    """Return how many draws advance together, of so many walks each, over a vocabulary of this size."""
    return max(1, min(TOGETHER, AT_ONCE // (WALK_BYTES * vocabulary)) // walks)


@final
@dataclass(frozen=True)
class LookaheadSMCSampler(Sampler):
    """Runs populations of walks that write window by window, and picks one walk of each by weight.

    As :class:`~outlines_phi.sampling.smc.SMCSampler`, with a window in the place of a token: its proposal is the window's
    distribution, and its weight the estimate of ``Psi(r)``, which has mean ``Psi(r)`` whatever the window is; so everything stays
    unbiased. A step is over when every particle that moves has committed a window and knows its weight.

    Raises :class:`UnsupportedError`: a look-ahead without weights.
    """

    phi: LookaheadPhi  # The options of the look-ahead, with weights
    options: SMC

    def __post_init__(self) -> None:
        if not self.phi.weights:
            raise UnsupportedError(
                "sampler=SMC(...) was given with phi='lookahead' without weights, by which particles are picked. Give "
                "phi=LookaheadPhi(weights=True), or leave sampler out."
            )

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`: the draws of a prompt are picks from one run each."""
        run, size = Lookahead(self.phi, request), self.options.particles
        numbers = [(row, i) for row in range(len(request.prompts)) for i in range(request.n)]
        populations: list[LookaheadPopulation] = []
        follow(lambda: run.progress(len(numbers), sum(population.particles.finished for population in populations)))
        at_once = side_by_side(len(request.table.vocabulary), walks=size)
        for first in range(0, len(numbers), at_once):
            together = [
                LookaheadPopulation(run, self.options, request, run.launch([(row, i * size + k) for k in range(size)]))
                for row, i in numbers[first : first + at_once]
            ]
            _advance(run, together)
            populations += together
        run.refuse_exhausted(lambda: [])
        return [
            replace(picks(request, row, found, run.counts), rejections=run.rejections(row))
            for row, found in enumerate(finished(request, [population.particles for population in populations]))
        ]


@final
class LookaheadPopulation:
    """One population, and the walks of its particles.

    ``walks``: The walks, at the start.
    """

    def __init__(self, run: Lookahead, options: SMC, request: Request, walks: Sequence[CommittingWalk]) -> None:
        self._run = run
        self._walks = {walk.trajectory: walk for walk in walks}
        self.particles = options.begin(request, list(self._walks))
        # Without resampling no particle waits for another.
        self._windows = math.inf if options.resample == "never" else 1
        self._send(self.particles.moving)

    @property
    def walks(self) -> list[CommittingWalk]:
        """The walks that particles go on with, those that wait included."""
        return list(self._walks.values())

    def turn(self) -> list[CommittingWalk]:
        """Return the walks that wait for distributions; where there are none, resample if it is time and send particles on."""
        while not (moving := [walk for walk in self.walks if walk.under_way]) and not self._over:
            if self.particles.settle():
                self._replace()
            self._send(self.particles.moving)
        return moving

    @property
    def _over(self) -> bool:
        return self.particles.finished or any(walk.account.exhausted for walk in self.walks)

    def _send(self, moving: Sequence[Trajectory]) -> None:
        for trajectory in moving:
            walk = self._walks[trajectory]
            walk.limit = walk.account.committed + self._windows

    def _replace(self) -> None:
        """Give every unfinished particle a walk of its own that goes on where its ancestor stood."""
        texts = {(walk.text.parent, walk.text.token): walk.text for walk in self.walks if not walk.trajectory.finished}
        self._walks = {
            particle: self._run.resume(particle, texts[particle.node, particle.tokens[-1]])
            for particle in self.particles.walks
            if not particle.finished
        }
        for walk in self.walks:
            walk.limit = 0


def _advance(run: Lookahead, populations: Sequence[LookaheadPopulation]) -> None:
    """Take every population to its end, in shared model calls."""
    while walks := [walk for population in populations for walk in population.turn()]:
        for _ in run.step(walks, [walk for population in populations for walk in population.walks]):
            pass
