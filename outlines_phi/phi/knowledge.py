"""Values of guide states, by a fixed point over observed steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..guides.guide import DEAD, DONE

STEPS = 32
"""Steps that are kept of each state, the latest."""

ENTRIES = 2**19
"""Masses that are kept of all steps together, about: 6 MB."""

SWEEPS, SETTLED = 100, 1e-3
"""Sweeps over all steps, and the largest change of a ``log V`` that ends them before."""


class Observed(NamedTuple):
    """One step: the probability ``mass[k]`` with which ``state`` was left for each of ``targets``, 0 where not live."""

    state: int
    targets: NDArray[np.integer]
    mass: Tensor


@final
@dataclass(frozen=True, eq=False)
class Knowledge:
    """Steps, and the values that follow from them: ``V(s)``, the mean over steps in ``s`` of ``sum_t mass(t) V(t)``.

    The mean is geometric, because contexts differ by orders of magnitude and the few best would promise too much for all others;
    steps that lead nowhere count by their share. ``V = 1`` at the end of sequence. A target without a visit is taken for
    an average one of its siblings. Phi is the least solution of its recursion, so a new state starts from 0. All in log space.

    Attributes
    ----------
    states, log_v
        ``[n]`` the visited states, ascending, and ``log V``.
    at, ends
        ``[m]`` the state of each step, and where its masses end.
    targets, log_mass
        ``[e]`` the masses of all steps, without zeros.
    """

    states: NDArray[np.int64]
    log_v: NDArray[np.float64]
    at: NDArray[np.int64]
    ends: NDArray[np.int64]
    targets: NDArray[np.int64]
    log_mass: NDArray[np.float64]

    def log_values(self, states: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return ``log V`` of each of ``states``: 0 at the end of sequence, ``nan`` at states without a visit."""
        found = np.full(len(states), np.nan)
        if len(self.states):
            place = np.minimum(self.states.searchsorted(states), len(self.states) - 1)
            found = np.where(self.states[place] == states, self.log_v[place], np.nan)
        return np.where(states == DONE, 0.0, np.where(states == DEAD, -np.inf, found))

    def after(self, observed: Sequence[Observed]) -> Knowledge:
        """Return what is known after these steps, too."""
        if not observed:
            return self
        # Masses may lie on another device: they come over in one piece.
        mass = torch.cat([step.mass for step in observed]).double().cpu().numpy()
        width = np.array([len(step.targets) for step in observed])
        targets, step = np.concatenate([step.targets for step in observed]), np.repeat(np.arange(len(observed)), width)
        live = mass > 0
        length = np.bincount(step[live], minlength=len(observed))
        at = np.concatenate([self.at, np.array([step.state for step in observed], dtype=np.int64)])
        lengths = np.concatenate([np.diff(self.ends, prepend=0), length])
        targets = np.concatenate([self.targets, targets[live]])
        return self._settled(at, lengths, targets, np.concatenate([self.log_mass, np.log(mass[live])]))

    def _settled(
        self,
        at: NDArray[np.int64],
        lengths: NDArray[np.int64],
        targets: NDArray[np.int64],
        log_mass: NDArray[np.float64],
    ) -> Knowledge:
        order = at.argsort(kind="stable")
        _, first, count = np.unique(at[order], return_index=True, return_counts=True)
        age = np.empty(len(at), dtype=np.int64)  # 0 for the latest step of a state
        age[order] = np.repeat(first + count - 1, count) - np.arange(len(at))
        most = STEPS
        while most > 1 and lengths[age < most].sum() > ENTRIES:
            most //= 2
        kept = age < most
        inside = np.repeat(kept, lengths)
        at, lengths, targets, log_mass = at[kept], lengths[kept], targets[inside], log_mass[inside]
        states = np.unique(at)
        before = self.log_values(states)
        before[np.isnan(before)] = -np.inf
        log_v = _solved(states, before, at, lengths, targets, log_mass)
        return Knowledge(states, log_v, at, lengths.cumsum(), targets, log_mass)


def _solved(
    states: NDArray[np.int64],
    log_v: NDArray[np.float64],
    at: NDArray[np.int64],
    lengths: NDArray[np.int64],
    targets: NDArray[np.int64],
    log_mass: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the values of ``states`` that agree with one another, in sweeps that begin at ``log_v``."""
    step, place = np.repeat(np.arange(len(at)), lengths), np.minimum(states.searchsorted(targets), len(states) - 1)
    done, visited = targets == DONE, states[place] == targets
    beyond = _log_sums(step, np.where(done | visited, -np.inf, log_mass), len(at))
    own = states.searchsorted(at)
    steps = np.bincount(own, minlength=len(states))
    for _ in range(SWEEPS):
        value = np.where(done, 0.0, np.where(visited, log_v[place], -np.inf))
        inside = _log_sums(step, log_mass + value, len(at))
        known = _log_sums(step, np.where(value > -np.inf, log_mass, -np.inf), len(at))
        average = np.where(known > -np.inf, inside - np.where(known > -np.inf, known, 0.0), 0.0)
        total = np.logaddexp(inside, beyond + average)
        alive = total > -np.inf
        lived = np.bincount(own[alive], minlength=len(states))
        with np.errstate(divide="ignore"):
            share = np.log(lived / steps)
        new = np.bincount(own[alive], weights=total[alive], minlength=len(states)) / np.maximum(lived, 1) + share
        with np.errstate(invalid="ignore"):  # -inf on both sides is no move
            moved = np.where(new == log_v, 0.0, np.abs(new - log_v))
        log_v = new
        if moved.max(initial=0.0) < SETTLED:
            break
    return log_v


def _log_sums(group: NDArray[np.int64], x: NDArray[np.float64], groups: int) -> NDArray[np.float64]:
    """Return ``[groups]``: the log of the sum of ``exp(x)`` by group."""
    top = np.full(groups, -np.inf)
    np.maximum.at(top, group, x)
    shift = np.where(top > -np.inf, top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.bincount(group, weights=np.exp(x - shift[group]), minlength=groups)) + shift


EMPTY = Knowledge(
    states=np.empty(0, dtype=np.int64),
    log_v=np.empty(0, dtype=np.float64),
    at=np.empty(0, dtype=np.int64),
    ends=np.empty(0, dtype=np.int64),
    targets=np.empty(0, dtype=np.int64),
    log_mass=np.empty(0, dtype=np.float64),
)
