"""Values of guide states: a fixed point over observed steps (theory.md, section 3.3), kept by threads together and by files."""

from __future__ import annotations

import json
import threading
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..guides.guide import DEAD, DONE
from ..guides.table import Table
from ..lm.model import LanguageModel
from ..numerics.cache import Cache, replacing
from ..numerics.checks import shown
from ..numerics.weights import largest_change
from ..settings import SamplingSettings

STEPS = 32  # Steps that are kept of each state, the latest
ENTRIES = 2**19  # Masses that are kept of all steps together, about: 6 MB
SWEEPS, SETTLED = 100, 1e-3  # Sweeps over all steps, and the largest change of a `log V` that ends them before

FORMAT = "outlines_phi state values, 1"

KEPT = 8  # Distributions (temperatures, truncations, versions of the weights) of one output type that are kept, the latest used
PENDING = 2048  # Steps that wait to be learned from, at most


class Observed(NamedTuple):
    """One step: the probability ``masses[k]`` with which ``state`` was left for each of ``targets``, 0 where not live."""

    state: int
    targets: NDArray[np.integer]
    masses: NDArray[np.floating]


@final
@dataclass(frozen=True, eq=False)
class Knowledge:
    """Steps, and the values that follow from them: ``V(s)``, the mean over steps in ``s`` of ``sum_t mass(t) V(t)``.

    The mean is geometric, because contexts differ by orders of magnitude and the few best would promise too much for all others;
    steps that lead nowhere count by their share. ``V = 1`` at the end of sequence. A target without a visit is taken for
    an average one of its siblings. Phi is the least solution of its recursion, so a new state starts from 0. All in log space.
    """

    states: NDArray[np.int64]  # `[n]` the visited states, ascending, and `log V`
    log_v: NDArray[np.float64]
    at: NDArray[np.int64]  # `[m]` the state of each step, and where its masses end
    ends: NDArray[np.int64]
    targets: NDArray[np.int64]  # `[e]` the masses of all steps, without zeros
    log_mass: NDArray[np.float64]

    def log_values(self, states: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return ``log V`` of each of ``states``: 0 at the end of sequence, ``nan`` at states without a visit."""
        found = np.full(len(states), np.nan)
        if len(self.states):
            place = np.minimum(self.states.searchsorted(states), len(self.states) - 1)
            found = np.where(self.states[place] == states, self.log_v[place], np.nan)
        return np.where(states == DONE, 0.0, np.where(states == DEAD, -np.inf, found))

    def after(self, observed: Sequence[Observed]) -> Knowledge:
        """Return the knowledge after these steps, too."""
        if not observed:
            return self
        mass = np.concatenate([step.masses for step in observed], dtype=np.float64)
        width = np.array([len(step.targets) for step in observed])
        targets, step = np.concatenate([step.targets for step in observed]), np.repeat(np.arange(len(observed)), width)
        live = mass > 0
        length = np.bincount(step[live], minlength=len(observed))
        at = np.concatenate([self.at, np.array([step.state for step in observed], dtype=np.int64)])
        lengths = np.concatenate([np.diff(self.ends, prepend=0), length])
        targets = np.concatenate([self.targets, targets[live]])
        log_mass = np.concatenate([self.log_mass, np.log(mass[live])])
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
        moved, log_v = largest_change(log_v, new), new
        if moved < SETTLED:
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


@final
@dataclass(frozen=True)
class LearnedFrom:
    """The origin of learned values, which say nothing about another model, output type or distribution."""

    model: str | None  # Fingerprints; `None` for a model that is not known, as in a logits processor
    vocabulary: str
    guide: str
    settings: str  # The settings that define `p`, as a call would write them. The budget is no part of it

    @classmethod
    def of(cls, lm: LanguageModel | None, table: Table, settings: SamplingSettings) -> LearnedFrom:
        """Return the subject of a call."""
        model = None if lm is None else lm.fingerprint()
        return cls(model, table.vocabulary.fingerprint, table.guide.fingerprint(), written_out(settings))

    def joined(self, other: LearnedFrom) -> LearnedFrom:
        """Return the union of this subject and ``other``, that of a call; raise where they differ, with the difference."""
        words = {
            "model": "another model (its architecture or its weights)",
            "vocabulary": "another vocabulary",
            "guide": "another output type",
            "settings": f"other settings ({self.settings}; the call has {other.settings})",
        }
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in words}
        differ = [
            words[name] for name, (mine, theirs) in pairs.items() if mine != theirs and None not in (mine, theirs)
        ]
        if differ:
            raise UnsupportedError(
                f"These StateValues were learned of {' and '.join(differ)}. Give each model, output type and setting values of its "
                "own: LearnedPhi(StateValues()), or phi='learned', which keeps them apart by itself."
            )
        return replace(self, model=self.model or other.model)


def written_out(settings: SamplingSettings) -> str:
    """Return everything that ``p`` depends on, as a call would write it."""
    names = [field.name for field in fields(settings) if field.name not in ("max_new_tokens", "seed")]
    return ", ".join(f"{name}={getattr(settings, name)!r}" for name in names)


@final
class StateValues:
    """The values of :class:`LearnedPhi`: estimates of future validity by state of an output type, for one model and its settings.

    Give one object to calls of one model, output type and temperature (top-k, ...), from as many threads as you like; every call
    adds its steps. A call with a seed starts from what was *given* (nothing, or what was loaded or copied), so that its result does
    not depend on what ran before; other calls start from all that is known.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.given = self._known = EMPTY  # calls with a seed start from what was given
        self._subject: LearnedFrom | None = None
        self._pending: list[Observed] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"given": self.given, "_known": self.known, "_subject": self._subject}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # a lock of its own
        vars(self).update(state)

    def __len__(self) -> int:
        """The number of states with a value."""
        return len(self.known.states)

    def __repr__(self) -> str:
        return f"StateValues({len(self)} states, {len(self.known.at)} steps)"

    @property
    def known(self) -> Knowledge:
        """All that is known by now."""
        with self._lock:
            pending, self._pending = self._pending, []
            self._known = self._known.after(pending)
            return self._known

    def lately(self, stale: int) -> Knowledge:
        """Return the knowledge of late, give or take ``stale`` steps, or a quarter of the known ones."""
        return self._known if len(self._pending) < max(stale, len(self._known.at) // 4) else self.known

    def add(self, step: Observed) -> None:
        """Take note of a step; values change when they are next read."""
        with self._lock:
            self._pending.append(step)
            if len(self._pending) >= PENDING:
                pending, self._pending = self._pending, []
                self._known = self._known.after(pending)

    def concern(self, subject: LearnedFrom) -> None:
        """Join the subject of a call; raises where the values were learned of another model, output type or distribution."""
        with self._lock:
            self._subject = subject if self._subject is None else self._subject.joined(subject)

    def copy(self) -> StateValues:
        """Return an object that is given all that this one knows: a start that does not move."""
        other, known = StateValues(), self.known
        other.given = other._known = known
        other._subject = self._subject
        return other

    def save(self, path: str | Path) -> None:
        """Write everything to a file that :meth:`load` reads, in this or another process.

        Raises
        ------
        UnsupportedError
            No call has used the values, so that there is nothing to save; or the file cannot be written.
        """
        known, subject = self.known, self._subject
        if subject is None:
            raise UnsupportedError(
                "StateValues.save() was asked for before any call used the values; draw first: generator.sample(prompt, n=64, "
                "phi=LearnedPhi(values))."
            )
        header = np.array(json.dumps({"format": FORMAT, **asdict(subject)}))
        try:
            path = Path(path)
            with replacing(path) as part, part.open("wb") as file:
                np.savez_compressed(file, header=header, **vars(known))
        except (OSError, TypeError, ValueError) as error:
            raise UnsupportedError(
                "Give StateValues.save() the path of a file in a folder that exists. It could not write to "
                f"{shown(Path(path) if isinstance(path, str) else path)}."
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> StateValues:
        """Load a file of :meth:`save`. The first call that uses it checks that it is about the same model, type and
        distribution.

        Raises
        ------
        UnsupportedError
            The file cannot be read, or is not one of these.
        """
        try:
            with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                header = json.loads(str(file["header"]))
                form = header.pop("format")
                subject = LearnedFrom(**header)
                known = Knowledge(**{field.name: file[field.name] for field in fields(Knowledge)})
            if form != FORMAT or not _sound(known):
                raise ValueError("another version, or damaged")
        except Exception as error:  # a damaged file may raise anything
            raise UnsupportedError(
                "Give a file that StateValues.save() of this version wrote, or start from nothing: LearnedPhi(StateValues()). "
                f"{shown(Path(path) if isinstance(path, str) else path)} could not be read as learned values."
            ) from error
        values = cls()
        values.given = values._known = known
        values._subject = subject
        return values


@final
class KeptValues:
    """The values that ``phi="learned"`` means. Those of an output type go when it is forgotten."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Table, Cache[Hashable, StateValues]] = WeakKeyDictionary()

    def of(self, lm: LanguageModel, table: Table, settings: SamplingSettings) -> StateValues:
        """Return the values of a distribution, from now on kept for later calls."""
        return self._of.setdefault(table, Cache(KEPT)).of((lm, lm.version(), written_out(settings)), StateValues)

    def clear(self) -> None:
        """Forget everything."""
        self._of.clear()


def _sound(known: Knowledge) -> bool:
    """Return True if arrays from a file fit one another."""
    for field in fields(Knowledge):
        array, expected = getattr(known, field.name), getattr(EMPTY, field.name)
        if array.dtype != expected.dtype or array.ndim != 1:
            return False
    lengths = np.diff(known.ends, prepend=0)
    return (
        len(known.states) == len(known.log_v)
        and len(known.at) == len(known.ends)
        and len(known.targets) == len(known.log_mass) == lengths.sum()
        and bool((lengths >= 0).all() and (np.diff(known.states) > 0).all() and np.isin(known.at, known.states).all())
        and not np.isnan(known.log_v).any()
        and not np.isnan(known.log_mass).any()
        and bool((known.log_v < np.inf).all() and (known.log_mass < 1e-3).all())
    )
