"""Ancestral sampling from a proposal, with importance weights (theory.md, sections 1.4, 4.1 and 7), and sequential Monte Carlo:
populations of particles that advance together (section 8.1).

Resampling is systematic: of ``N`` new particles ``E[copies of i] = N W_i``, with ``W`` the normalised weights, and of the usual
schemes its copies vary least (Douc, Cappe and Moulines 2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from operator import attrgetter
from typing import Annotated, Literal, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..lm.model import ModelCounts
from ..numerics.checks import Checked, Count, Share, check, fitting
from ..numerics.weights import at_quantiles, effective_size, log_mean, normalized, scaled
from ..phi.branches import Branch
from ..phi.estimator import ProposalPhi
from .draws import Draw, DrawCounts, Draws, Guarantee, Population
from .sampler import Prefetch, Request, Sampler, Stream
from .stepper import Observer, Stepper, Trajectory

Unit = TypeVar("Unit")

TOGETHER = 512
"""Prefixes that grow at a time: a tree's attention costs as the square of its nodes."""


@final
@dataclass(frozen=True)
class AncestralSampler(Sampler):
    """Draws ``v ~ q_h(v|y) = p(v|y) h(yv) / S(y)`` step by step; ``log_w = sum_t [log S(y_t) - log h(y_{t+1})]``.

    ``E[w] = Phi(prompt)`` for any ``h`` that is positive where ``Phi`` is, trajectories without an allowed token counting
    with weight 0. It may depend on all that was seen before its step: an estimator that learns sets the rounds. Equal prefixes of
    a round are evaluated once.

    With a draft, one model call writes several tokens. The distribution of the draws and their weights are those without a draft,
    whatever is drafted. Where drafts are deterministic the draws themselves are, seed for seed.
    """

    phi: ProposalPhi
    observer: Observer | None = None  # An object that is told of every step; `None` for none
    draft: Prefetch | None = None  # The drafts of the walks; `None` for none

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises :class:`UnsupportedError`: a draft beside a constraint.
        Raises :class:`DraftError`: the drafter raised, or proposed something that is no draft.
        """
        stepper = self._stepper(request)
        walks: list[Trajectory] = []
        stepper.follow(lambda: walks, request.n * len(request.prompts))
        for size in self.phi.rounds(request.n):
            walks += (together := stepper.launch(size))
            for _ in grow_walks(stepper, together):
                pass
        return [
            _draws_of(request, stepper, [walk for walk in walks if walk.row == row], request.budgets[row])
            for row in range(len(request.prompts))
        ]

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that grew after every model call, by one token or several.

        A token is final when it is drawn: a trajectory only ever grows.
        """
        stepper = self._stepper(request)
        return chain.from_iterable(grow_walks(stepper, stepper.launch(size)) for size in self.phi.rounds(request.n))

    def _stepper(self, request: Request) -> Stepper:
        draft = self.draft if self.draft is not None and (self.draft.asked or request.constraint is None) else None
        return Stepper(request, self.phi, self.observer, draft, weighted=request.weighted)


def grow(
    stepper: Stepper,
    units: Sequence[Unit],
    moving: Callable[[Unit], Iterable[Trajectory]],
    settled: Callable[[Sequence[Unit]], Sequence[Unit]],
) -> Iterator[Sequence[Unit]]:
    """Take units of walks to their ends, few prefixes at a time, and yield those that have grown after every model call.

    Those that began last go first. ``moving`` returns the walks of a unit that go on, ``settled`` the units after a step. All begin
    together; then a unit is never split.
    """
    groups: list[list[Unit]] = [list(units)]
    while groups:
        group = groups.pop()
        stepper.advance([walk for unit in group for walk in moving(unit)])
        below = _groups(settled(group), moving, min(TOGETHER, stepper.room))
        yield group
        groups += below
        lengths = {walk.at: len(walk.tokens) for waiting in groups for unit in waiting for walk in moving(unit)}
        needed = {prefix.held: length for prefix, length in lengths.items()}
        if below:
            stepper.branches.tidy(needed, sum(needed.values()))
        elif groups:
            stepper.branches.compact(needed)


def _groups(units: Sequence[Unit], moving: Callable[[Unit], Iterable[Trajectory]], together: int) -> list[list[Unit]]:
    """Return the units that go on, in groups of few prefixes."""
    groups: list[list[Unit]] = []
    prefixes: set[Branch] = set()
    for unit in units:
        own = {walk.at for walk in moving(unit)}
        if own and (not groups or len(prefixes) + len(own - prefixes) > together):
            groups.append([])
            prefixes = set()
        if own:
            groups[-1].append(unit)
            prefixes |= own
    return groups


def grow_walks(stepper: Stepper, walks: Sequence[Trajectory]) -> Iterator[Sequence[Trajectory]]:
    """Take ``walks``, at the start, to their ends; yield those that have grown after every model call.

    No prefix is in two groups, so none is evaluated twice.
    """
    for group in grow(stepper, _sharing([walks]), iter, _sharing):
        yield list(chain.from_iterable(group))


def _sharing(groups: Sequence[Sequence[Trajectory]]) -> list[list[Trajectory]]:
    """Return the unfinished walks of some groups, those on one prefix together."""
    prefixes: dict[Branch, list[Trajectory]] = {}
    for walk in chain.from_iterable(groups):
        if not walk.finished:
            prefixes.setdefault(walk.at, []).append(walk)
    return list(prefixes.values())


def _draws_of(request: Request, stepper: Stepper, walks: Sequence[Trajectory], budget: int) -> Draws:
    """Return the draws that finished ``walks`` of one prompt are."""
    items = tuple(
        Draw.of(
            request.table.guide,
            walk.tokens,
            log_p=walk.log_p,
            log_w=walk.log_w,
            guarantee=Guarantee.WEIGHTED,
            tokens=tuple(walk.accounts),
        )
        for walk in walks
        if not walk.failed
    )
    drafted = stepper.draft_counts(walks)
    counts = DrawCounts(**vars(stepper.branches.trees.counts), **drafted, attempts=len(walks), accepted=len(items))
    return Draws(items=items, counts=counts, budget=budget, failures=len(walks) - len(items))


Ancestors = NDArray[np.int64]
"""``[N]``: the particle that each new particle continues, ascending."""


@final
class Particles:
    """The particles of one run.

    ``threshold``: They are resampled after any step whose effective sample size is below so many times the particles, finished and
        failed ones included; 0 for never.
    ``rng``: The random stream of the run; particles propose by their own.
    """

    def __init__(self, walks: Sequence[Trajectory], threshold: float, rng: np.random.Generator) -> None:
        self.walks, self._threshold, self.rng = list(walks), threshold, rng
        self.resamplings = 0

    @property
    def moving(self) -> list[Trajectory]:
        """Those that take the next step."""
        return [walk for walk in self.walks if not walk.finished]

    def settle(self) -> None:
        """Resample, if it is time after a step."""
        if self.moving and effective_size(scaled(_log_w(self.walks))) < self._threshold * len(self.walks):
            self._resample()

    def _resample(self) -> None:
        """Replace the particles by copies, each with the mean weight; each place keeps its random stream."""
        log_w = _log_w(self.walks)
        mean = log_mean(log_w)
        ancestors = systematic(log_w, self.rng).tolist()
        self.walks = [_continued(self.walks[i], place, mean) for place, i in zip(self.walks, ancestors, strict=True)]
        self.resamplings += 1


def _continued(walk: Trajectory, place: Trajectory, log_w: float) -> Trajectory:
    """Return a copy of ``walk`` in the place of another."""
    # By hand: copy() takes four times as long, for every particle of every resampling.
    kept = walk.at, walk.state, walk.remaining, list(walk.tokens), walk.log_p, log_w
    return Trajectory(walk.row, place.number, place.rng, *kept, accounts=list(walk.accounts))


def _log_w(walks: Sequence[Trajectory]) -> NDArray[np.float64]:
    return np.array([walk.log_w for walk in walks])


def systematic(log_w: NDArray[np.float64], rng: np.random.Generator) -> Ancestors:
    """Return ancestors at the quantiles ``(i + u) / N`` with one ``u`` for all: copies of ``i`` are ``N W_i`` rounded up or down.

    ``log_w``: ``[N]`` log weights, at least one above ``-inf``; a particle of weight 0 is never an ancestor.
    """
    return at_quantiles(normalized(log_w), (np.arange(len(log_w)) + rng.random()) / len(log_w))


Resample = Literal["never", "ess"]

THRESHOLD = 0.5
"""The default of ``SMC(resample="ess", threshold=...)``."""


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class SMC(Checked):
    """Sequential Monte Carlo, ``sampler=SMC(particles=50)``: each draw is picked by weight from a population of particles.

    Draws are *weighted*: the ``log_w`` of each is the ``log Z_hat`` of its population. The populations themselves are in
    :attr:`Draws.populations`. More particles can be worse where they are resampled at every step, because those that have already
    paid for ending are replaced by those that have not yet, so the default is not to resample; see ``docs/smc.md``.

    Attributes
    ----------
    particles
        ``N``, the particles of each run.
    resample
        ``"never"``; or ``"ess"``, after any step whose effective sample size is below ``threshold * particles``.
    threshold
        A share of the particles; 0.5 by default.

    Raises
    ------
    UnsupportedError
        A value out of range, or an option without effect beside the others.
    """

    particles: Annotated[Count, fitting(4096, "particles")] = 50
    resample: Resample = "never"
    threshold: Share | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            "SMC",
            self.resample == "never" or self.particles > 1,
            "more particles, or no resample: one particle cannot be replaced by another",
            particles=self.particles,
            resample=self.resample,
        )
        check(
            "SMC",
            self.threshold is None or self.resample != "never",
            "resample='ess', or no threshold: it has no effect without resampling",
            resample=self.resample,
            threshold=self.threshold,
        )

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = [f"{name}={value!r}" for name, value in given.items() if value not in (None, "never")]
        return f"SMC({', '.join(shown)})"

    def begin(self, request: Request, walks: Sequence[Trajectory]) -> Particles:
        """Return the run whose particles are ``walks``, at the start."""
        number = walks[0].number // self.particles
        stream = request.stream(walks[0].row, Stream.RESAMPLING + number)
        threshold = 0.0 if self.resample == "never" else self.threshold or THRESHOLD
        return Particles(walks, threshold, stream)


@final
@dataclass(frozen=True)
class SMCSampler(Sampler):
    """Runs populations of particles that follow ``q_h``, and picks one particle of each by weight.

    The mean weight at the end, ``Z_hat``, is unbiased for ``Phi``, whenever particles are resampled (theory.md, section 8.1).

    All particles of all runs of all prompts advance in one model call per step, equal prefixes evaluated once, up to
    ``TOGETHER`` different prefixes; beyond it, whole runs take turns. An estimator that learns from walks makes rounds of them.
    """

    phi: ProposalPhi
    options: SMC = field(default_factory=SMC)

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`: the draws of a prompt are picks from one run each."""
        stepper, size, n = Stepper(request, self.phi), self.options.particles, request.n
        runs: list[Particles] = []
        walks: list[Trajectory] = []
        stepper.follow(
            lambda: chain(walks, *(run.walks for run in runs)), wanted=n * len(request.prompts), particles=size
        )
        if self.options.resample == "never":  # particles have nothing to do with one another, so any may begin together
            for together in self.phi.rounds(n * size):
                walks += (begun := stepper.launch(together))
                for _ in grow_walks(stepper, begun):
                    pass
            walks, runs = [], self._runs(request, sorted(walks, key=lambda walk: (walk.row, walk.number)))
        else:
            for together in self.phi.rounds(n):
                runs += (begun_runs := self._runs(request, stepper.launch(together * size)))
                for _ in grow(stepper, begun_runs, attrgetter("moving"), _settled):
                    pass
        return picks(request, runs, stepper.branches.trees.counts)

    def _runs(self, request: Request, walks: Sequence[Trajectory]) -> list[Particles]:
        """Return the runs that ``walks``, in the order of prompts and numbers, are the particles of."""
        size = self.options.particles
        return [self.options.begin(request, walks[first : first + size]) for first in range(0, len(walks), size)]


def _settled(runs: Sequence[Particles]) -> Sequence[Particles]:
    for run in runs:
        run.settle()
    return runs


def population_of(request: Request, run: Particles, drawn: dict[tuple[int, ...], Draw]) -> Population:
    """Return the population of a finished run; equal particles share the draw that ``drawn`` has for their prompt."""
    items = []
    for walk in run.walks:
        if walk.failed:
            continue
        ids = tuple(walk.tokens)
        if ids not in drawn:
            drawn[ids] = Draw.of(
                request.table.guide, ids, log_p=walk.log_p, log_w=walk.log_w, guarantee=Guarantee.WEIGHTED
            )
        items.append(replace(drawn[ids], log_w=walk.log_w, tokens=tuple(walk.accounts)))
    return Population(items=tuple(items), failures=len(run.walks) - len(items), resamplings=run.resamplings)


def picks(request: Request, runs: Sequence[Particles], counts: ModelCounts) -> list[Draws]:
    """Return the draws of every prompt, one picked by weight from each of its finished ``runs``."""
    results = []
    for row, budget in enumerate(request.budgets):
        drawn: dict[tuple[int, ...], Draw] = {}
        own = [(population_of(request, run, drawn), run.rng) for run in runs if run.walks[0].row == row]
        alive = [(population, rng) for population, rng in own if population.log_z > -math.inf]
        results.append(
            Draws(
                items=tuple(population.pick(rng) for population, rng in alive),
                counts=DrawCounts(**vars(counts), attempts=len(own), accepted=len(alive)),
                budget=budget,
                failures=len(own) - len(alive),
                populations=tuple(population for population, _ in alive),
            )
        )
    return results
