"""Values of guide states, learned while they are used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import UnsupportedError
from ..guides.guide import DONE
from ..guides.table import ClassTargets, Table
from ..numerics.checks import check_shares
from ..numerics.distributions import runs
from ..settings import SamplingSettings
from .estimator import Estimate, Need, Prefixes, SampledRun, StepPhi, add_by_class, doubling, live_mass
from .state_values import KeptValues, Knowledge, LearnedFrom, Observed, StateValues

ROUND = 8  # Walks of the first round; values learn between rounds
STALE = 64
"""Steps that wait to be learned from where there are no rounds; a quarter of the known ones, where that is more."""


@final
@dataclass(frozen=True)
class LearnedPhi(StepPhi):
    """``h(yv) = V(s)``, the value of the guide state after ``yv``, learned from the steps of real calls, at no model call.

    A step sees the probability of every next state, ``mass(t | y)``; ``V(s)`` is the mean over steps in ``s`` of
    ``sum_t mass(t | y) V(t)`` (:class:`StateValues`). Exact when class masses depend on the guide state only. Many draws of one
    call are made in rounds, and values learn between them. A weight uses the numbers of its own steps, so ``E[w] = Phi``
    whatever has been learned.

    Attributes
    ----------
    values
        Where values come from and go to. ``None``: those that the model keeps for this output type and these settings, which is
        what ``phi="learned"`` means; in a logits processor, those of this object.
    floor
        ``h`` of a live token is at least this share of the largest among its siblings, so that ``h`` is positive wherever ``Phi``
        is. Where no token ends the text, no choice multiplies a weight by more than its inverse (theory.md, section 3.1).
    """

    values: StateValues | KeptValues | None = None
    floor: float = 1e-3
    name: ClassVar[str] = "learned"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits"})
    _own: StateValues = field(default_factory=StateValues, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.values, StateValues | KeptValues | None):
            raise UnsupportedError(
                f"LearnedPhi(values={self.values!r}) was given; expected StateValues(), or StateValues.load(path) for values of a "
                "file, or None for those that the model keeps."
            )
        check_shares("LearnedPhi", floor=self.floor)

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """See :meth:`StepPhi.log_h`; from what is known by now, learning nothing."""
        to = table.class_targets(state, remaining, log_p.device)
        return _step(self._values.known, self.floor, log_p, to)[0]

    def scores(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        """Return ``log p + log h``, and learn from the steps now and then; see :meth:`StepPhi.scores`."""
        known = self._values.lately(STALE)
        where = zip(repeat(known), states, remaining, strict=False)
        scores, steps = _scores(log_p, self.floor, table, where)
        for step in steps:
            self._values.add(step)
        return scores

    def check(self, table: Table, settings: SamplingSettings) -> None:
        if isinstance(self.values, StateValues):
            self.values.concern(LearnedFrom.of(None, table, settings))

    def begin(self, run: SampledRun) -> Estimate:
        """See :meth:`ProposalPhi.begin`.

        Raises
        ------
        UnsupportedError
            The values were learned of another model, output type or distribution.
        """
        match self.values:
            case KeptValues() as kept:
                values = kept.of(run.lm, run.table, run.settings)
            case StateValues() as values:
                values.concern(LearnedFrom.of(run.lm, run.table, run.settings))
            case None:
                values = self._own
        start = values.known if run.settings.seed is None else values.given
        return LearnedEstimate(self.floor, run.table, values, [start] * len(run.prompts))

    def rounds(self, n: int) -> list[int]:
        """See :meth:`ProposalPhi.rounds`: as many walks as all before have made, so that few are drawn knowing little."""
        return doubling(n, ROUND)

    def keeping(self, values: KeptValues) -> LearnedPhi:
        return replace(self, values=values) if self.values is None else self

    @property
    def _values(self) -> StateValues:
        return self.values if isinstance(self.values, StateValues) else self._own


@final
class LearnedEstimate(Estimate):
    """Learned values at work: every prompt of a run goes its own way from a common start, ``known``; ``values`` keep all steps."""

    def __init__(self, floor: float, table: Table, values: StateValues, known: list[Knowledge]) -> None:
        self._floor, self._table, self._values, self._known = floor, table, values, known
        self._seen: list[list[Observed]] = [[] for _ in known]
        self._drafted: dict[int, tuple[int, Observed]] = {}  # by place: what was seen where no walk has been yet

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        known = [self._known[row] for row in prefixes.rows]
        where = zip(known, prefixes.states, prefixes.remaining, strict=True)
        scores, steps = _scores(log_p, self._floor, self._table, where)
        found = list(zip(prefixes.rows, steps, strict=True))
        self._drafted = {place: found[place] for place, drafted in enumerate(prefixes.drafted) if drafted}
        self._note(seen for place, seen in enumerate(found) if place not in self._drafted)
        return scores

    def reached(self, places: Sequence[int]) -> None:
        self._note(self._drafted.pop(place) for place in places)

    def learn(self) -> None:
        self._known = [known.after(seen) for known, seen in zip(self._known, self._seen, strict=True)]
        self._seen = [[] for _ in self._known]

    def _note(self, steps: Iterable[tuple[int, Observed]]) -> None:
        for row, seen in steps:
            self._seen[row].append(seen)
            self._values.add(seen)


def _scores(
    log_p: Tensor, floor: float, table: Table, where: Iterable[tuple[Knowledge, int, int]]
) -> tuple[Tensor, list[Observed]]:
    """Return ``log p + log h``, ``[B, V]``, and what each step shows, given the values, the state and the tokens left of each."""
    scores, steps = torch.empty_like(log_p), list[Observed]()
    for (known, state, left), part in runs(where):
        to = table.class_targets(state, left, log_p.device)
        log_h, masses = _step(known, floor, log_p[part], to)
        add_by_class(log_p[part], log_h, to.partition, to.few, out=scores[part])
        steps += (Observed(state, to.states, mass) for mass in masses)
    return scores, steps


def _step(known: Knowledge, floor: float, log_p: Tensor, to: ClassTargets) -> tuple[Tensor, Tensor]:
    """Return ``log h`` by class, ``[n, G]`` or ``[G]``, and the mass of every target, ``[n, T]``. Nothing is read back."""
    by_class = live_mass(log_p, to.partition, to.few)
    mass = by_class.new_zeros(len(log_p), len(to.states) + 1).index_add_(-1, to.places, by_class)[:, :-1]
    log_v = known.log_values(to.states)
    unknown = np.isnan(log_v)
    top = float(log_v[(to.states != DONE) & ~unknown].max(initial=-math.inf))
    if unknown.any():
        log_h = _with_average(log_v, mass, top, math.log(floor))
    else:  # known on the host alone, so that the device has one copy to make
        least = top + math.log(floor) if top > -math.inf else 0.0
        log_h = torch.from_numpy(np.append(np.maximum(log_v, least), -math.inf)).to(mass)
    return log_h.index_select(-1, to.places), mass


def _with_average(log_v: NDArray[np.float64], mass: Tensor, top: float, log_floor: float) -> Tensor:
    """Return ``log h`` of every target, and of none at the end, where ``log_v`` is ``nan`` for targets without a visit.

    These have the mean value of the others, by their mass. ``top`` is the largest value of the others, ends left out.
    """
    visited = log_v > -math.inf
    scale = log_v[visited].max(initial=-math.inf) if visited.any() else 0.0
    shares = np.stack([np.exp(np.where(visited, log_v - scale, -math.inf)), visited])
    within, held = (mass @ torch.from_numpy(shares).to(mass).T).split(1, -1)
    average = (within / held).log().nan_to_num(nan=-scale, neginf=-scale) + scale
    log_h = torch.from_numpy(log_v).to(mass)
    log_h = torch.where(log_h.isnan(), average, log_h).maximum(average.clamp_min(top) + log_floor)
    return torch.nn.functional.pad(log_h, (0, 1), value=-math.inf)
