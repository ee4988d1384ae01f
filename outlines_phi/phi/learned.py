"""Values of guide states, learned while they are used."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Annotated, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..guides.guide import DONE
from ..guides.table import ClassTargets, Table
from ..numerics.checks import Checked, Share, that
from ..numerics.distributions import Exchange, runs, send
from ..settings import SamplingSettings
from .estimator import Estimate, Need, Prefixes, SampledRun, StepPhi, add_by_class, doubling, live_mass, scores_alone
from .state_values import KeptValues, Knowledge, LearnedFrom, Observed, StateValues

ROUND = 8  # Walks of the first round; values learn between rounds
STALE = 64
"""Steps that wait to be learned from where there are no rounds; a quarter of the known ones, where that is more."""


@final
@dataclass(frozen=True)
class LearnedPhi(Checked, StepPhi):
    """``h(yv) = V(s)``, the value of the guide state after ``yv``, learned from the steps of real calls, at no model call.

    A step sees the probability of every next state, ``mass(t | y)``; ``V(s)`` is the mean over steps in ``s`` of
    ``sum_t mass(t | y) V(t)`` (:class:`StateValues`). Exact when class masses depend on the guide state only. Many draws of one
    call are made in rounds, and values learn between them. A weight uses the numbers of its own steps, so ``E[w] = Phi``
    whatever has been learned.

    Attributes
    ----------
    values
        The store of values. ``None``: the one that the model keeps for this output type and these settings, which is
        what ``phi="learned"`` means; in a logits processor, those of this object.
    floor
        See :class:`~outlines_phi.phi.estimator.OneStepPhi`.
    """

    values: Annotated[
        StateValues | KeptValues | None,
        that(
            lambda values: isinstance(values, StateValues | KeptValues),
            "StateValues(), or StateValues.load(path) for values of a file, or None for those that the model keeps",
        ),
    ] = None
    floor: Share = 1e-3
    name: ClassVar[str] = "learned"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits"})
    _own: StateValues = field(default_factory=StateValues, init=False, repr=False, compare=False)

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """See :meth:`StepPhi.log_h`; from what is known by now, learning nothing."""
        to = table.class_targets(state, remaining, log_p.device)
        values = send(log_p.device, *_values([self._values.known] * len(log_p), to.states, self.floor))
        return _log_h(_target_mass(log_p, to), self.floor, *values).index_select(-1, to.places)

    def scores(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        """Return ``log p + log h``, and learn from the steps now and then; see :meth:`StepPhi.scores`."""
        estimate = LearnedEstimate(self.floor, table, self._values, [self._values.lately(STALE)])
        return estimate.scores(log_p, Prefixes([0] * len(states), (), states, remaining, ()))

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
        return scores_alone(self, log_p, prefixes)

    def step(self, prefixes: Prefixes, exchange: Exchange) -> Callable[[Tensor], Tensor]:
        alike = runs(zip(prefixes.states, prefixes.remaining, strict=True))
        parts = [
            (state, self._table.class_targets(state, left, exchange.device), part) for (state, left), part in alike
        ]
        known = [self._known[row] for row in prefixes.rows]
        values = exchange.send(*(x for _, to, part in parts for x in _values(known[part], to.states, self._floor)))

        def scores(log_p: Tensor) -> Tensor:
            sent, scores, masses = iter(values()), torch.empty_like(log_p), list[Tensor]()
            for _, to, part in parts:
                masses.append(mass := _target_mass(log_p[part], to))
                log_h = _log_h(mass, self._floor, *islice(sent, 4)).index_select(-1, to.places)
                add_by_class(log_p[part], log_h, to.partition, to.few, out=scores[part])
            exchange.tell(see, *masses)
            return scores

        def see(*masses: NDArray[np.floating]) -> None:
            places = ((state, to.states) for state, to, part in parts for _ in range(part.start, part.stop))
            found = [
                (row, Observed(*place, m)) for row, place, m in zip(prefixes.rows, places, chain(*masses), strict=True)
            ]
            self._drafted = {place: found[place] for place, drafted in enumerate(prefixes.drafted) if drafted}
            self._note(seen for place, seen in enumerate(found) if place not in self._drafted)

        return scores

    def reached(self, places: Sequence[int]) -> None:
        self._note(self._drafted.pop(place) for place in places)

    def learn(self) -> None:
        self._known = [known.after(some) for known, some in zip(self._known, self._seen, strict=True)]
        self._seen = [[] for _ in self._known]

    def _note(self, steps: Iterable[tuple[int, Observed]]) -> None:
        for row, seen in steps:
            self._seen[row].append(seen)
            self._values.add(seen)


def _target_mass(log_p: Tensor, to: ClassTargets) -> Tensor:
    """Return the probability of every target, ``[n, T]``, under ``log_p``, ``[n, V]``."""
    by_class = live_mass(log_p, to.partition, to.few)
    return by_class.new_zeros(len(log_p), len(to.states) + 1).index_add_(-1, to.places, by_class)[:, :-1]


def _values(
    known: Sequence[Knowledge], targets: NDArray[np.integer], floor: float
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the values of ``targets`` in each of ``k`` kinds of knowledge that hold for ``n`` steps.

    ``[n]``: which kind holds for each step; ``[k, T]``: ``log V``, ``nan`` for targets without a visit; ``[k, 2, T]``: ``V`` of
    the others, in units of the largest, and which these are; ``[k, 3]``: the log of this unit, the largest ``log V`` but for ends,
    and the least ``log h`` where all have a visit.
    """
    kinds = {id(one): one for one in known}
    number = {key: i for i, key in enumerate(kinds)}
    log_v = np.stack([one.log_values(targets) for one in kinds.values()])
    visited, unknown = log_v > -np.inf, np.isnan(log_v)
    unit = np.where(visited, log_v, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    unit[unit == -np.inf] = 0.0
    top = np.where(unknown | (targets == DONE), -np.inf, log_v).max(-1, keepdims=True, initial=-np.inf)
    least = np.where(top > -np.inf, top + math.log(floor), 0.0)
    shares = np.stack([np.exp(np.where(visited, log_v - unit, -np.inf)), visited], axis=1)
    which = np.array([number[id(one)] for one in known])
    return which, log_v, shares, np.concatenate([unit, top, least], axis=1)


def _log_h(mass: Tensor, floor: float, which: Tensor, log_v: Tensor, shares: Tensor, bounds: Tensor) -> Tensor:
    """Return ``log h`` of every target, and of none at the end, ``[n, T + 1]``, given :func:`_values`.

    Targets without a visit have the mean value of the others, by their mass. ``log h`` is held above a share of the largest.
    """
    log_v, shares, bounds = (values.to(mass.dtype).index_select(0, which) for values in (log_v, shares, bounds))
    unit, top, least = bounds.split(1, -1)
    within, held = (shares @ mass[..., None])[..., 0].split(1, -1)
    average = ((within / held).log() + unit).nan_to_num(nan=0.0, neginf=0.0)
    unknown = log_v.isnan()
    floors = torch.where(unknown.any(-1, keepdim=True), average.clamp_min(top) + math.log(floor), least)
    log_h = torch.where(unknown, average, log_v).maximum(floors)
    return torch.nn.functional.pad(log_h, (0, 1), value=-math.inf)
