"""Guides made wrong on purpose: rows of any guide, and the automaton, the classes and the distances of a finite one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from random import Random
from typing import NamedTuple, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.automata.automaton import DEAD as NOWHERE
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from outlines_phi.vocabulary.classes import EOS, Partition

from ..exploration import Pair
from ..subject import Subject

Place = TypeVar("Place")


@final
@dataclass(frozen=True, eq=False)
class Met:
    """A right guide, and the places of its parts that texts lead to."""

    right: Subject

    @property
    def nodes(self) -> list[Pair]:
        """The pairs of states after which all tokens were tried."""
        return self.right.exploration.inner

    def text(self, node: Pair) -> bytes:
        """Return the text of a node's word."""
        return self.right.guide.vocabulary.decode(node.word)

    @cached_property
    def of_lexer_and_parser(self) -> list[tuple[int, int]]:
        """Of a grammar, the configurations of the parser with the states of the lexer."""
        places = (self.right.parts.after(self.text(node)) for node in self.nodes)
        return list(dict.fromkeys(place for place in places if place is not None))


class Mutation(NamedTuple):
    """A way to make a guide wrong; ``make`` returns such a guide, ``None`` where there is no place for the mistake."""

    name: str
    make: Callable[[Met, Random], Guide | None]


def chosen(rng: Random, places: Iterable[Place]) -> Place | None:
    """Return one of the places, each with the same chance; ``None`` where there is none."""
    several = list(dict.fromkeys(places))
    return rng.choice(several) if several else None


DISTANCES: dict[str, tuple[bool, Callable[[int], int | None]]] = {
    "too small": (True, lambda d: d - 1),
    "too large": (True, lambda d: d + 1),
    "infinite instead of finite": (True, lambda d: None),
    "finite instead of infinite": (False, lambda d: 1),
}
"""The kinds of wrong distances: True for finite ones, and the map to the wrong one; ``None`` for no way to the end."""


@final
@dataclass
class _Rows(Guide):
    """A guide with other rows."""

    guide: Guide
    mutate: Callable[[Guide, int, NDArray[np.integer]], None]
    _rows: dict[int, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.vocabulary, self.start = self.guide.vocabulary, self.guide.start

    def row(self, state: int) -> Row:
        if state not in self._rows:
            row = self.guide.row(state)
            targets = row.targets.copy()
            self.mutate(self.guide, state, targets)
            self._rows[state] = Row(row.partition, targets)
        return self._rows[state]

    def min_tokens(self, state: int) -> int:
        return self.guide.min_tokens(state)

    def describe(self, state: int) -> str:
        return self.guide.describe(state)


def _ends_anywhere(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    targets[EOS] = DONE


def _never_ends_after_a_text(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    if state != guide.start:
        targets[EOS] = DEAD


def _forbids_what_is_rare(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    live = np.flatnonzero(targets[EOS + 1 :]) + EOS + 1
    targets[live[-1:]] = DEAD


def _allows_everything(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    live = targets[EOS + 1 :][targets[EOS + 1 :] != DEAD]
    if len(live):
        targets[EOS + 1 :][targets[EOS + 1 :] == DEAD] = live[0]


def _forbids_what_goes_on(guide: Guide, state: int, targets: NDArray[np.integer]) -> None:
    """Forbid every target farther from the end than the state."""
    far = guide.min_tokens_of(targets) > guide.min_tokens(state)
    targets[far & (targets != DEAD) & (targets != DONE)] = DEAD


def _rows(name: str, mutate: Callable[[Guide, int, NDArray[np.integer]], None]) -> Mutation:
    return Mutation(name, lambda met, rng: _Rows(met.right.guide, mutate))


ROWS = (
    _rows("ends anywhere", _ends_anywhere),
    _rows("never ends after a text", _never_ends_after_a_text),
    _rows("forbids one class of tokens", _forbids_what_is_rare),
    _rows("allows every class", _allows_everything),
    _rows("forbids what leads away from the end", _forbids_what_goes_on),
)
"""Wrong masks."""


def _automaton(name: str, change: Callable[[Met, ByteAutomaton, Random], ByteAutomaton | None]) -> Mutation:
    def make(met: Met, rng: Random) -> Guide | None:
        guide = cast("FSMGuide", met.right.guide)
        assert guide.automaton is not None
        found = change(met, guide.automaton, rng)
        return None if found is None else FSMGuide.from_automaton(found, guide.vocabulary)

    return Mutation(name, make)


def _states(met: Met, automaton: ByteAutomaton) -> list[int]:
    return [automaton.advance(automaton.start, met.text(node)) for node in met.nodes]


def _moved(met: Met, automaton: ByteAutomaton, rng: Random, *, onward: bool) -> ByteAutomaton | None:
    place = chosen(
        rng,
        (
            (state, column, other)
            for state in _states(met, automaton)
            for column in np.flatnonzero(automaton.targets[state]).tolist()
            for other in (range(1, len(automaton)) if onward else [NOWHERE])
            if other != automaton.targets[state, column]
        ),
    )
    if place is None:
        return None
    targets = automaton.targets.copy()
    targets[place[:2]] = place[2]
    return replace(automaton, targets=targets)


def _accepting(met: Met, automaton: ByteAutomaton, rng: Random, *, ends: bool) -> ByteAutomaton | None:
    state = chosen(rng, (state for state in _states(met, automaton) if automaton.accepting[state] != ends))
    if state is None:
        return None
    accepting = automaton.accepting.copy()
    accepting[state] = ends
    return replace(automaton, accepting=accepting)


def _merged(met: Met, rng: Random) -> Guide | None:
    guide = cast("FSMGuide", met.right.guide)
    spelled = range(EOS + 1, guide.partition.size)
    pair = chosen(rng, ((kind, other) for kind in spelled for other in spelled if kind != other))
    if pair is None:
        return None
    return replace(guide, partition=merged(guide.partition, *pair))


def merged(partition: Partition, kind: int, other: int) -> Partition:
    """Return it with the tokens of class ``other`` in class ``kind``."""
    return Partition(np.where(partition.class_of == other, kind, partition.class_of).astype(np.int32), partition.size)


def _successor(met: Met, rng: Random) -> Guide | None:
    guide = cast("FSMGuide", met.right.guide)
    steps = (
        (place, other)
        for node in met.nodes
        for place in range(guide.offsets[node.state], guide.offsets[node.state + 1])
        for other in range(DONE + 1, len(guide))
        if guide.classes[place] != EOS and guide.successors[place] != other
    )
    if (step := chosen(rng, steps)) is None:
        return None
    successors = guide.successors.copy()
    successors[step[0]] = step[1]
    return replace(guide, successors=successors)


def _distance(how: str) -> Mutation:
    finite, change = DISTANCES[how]

    def make(met: Met, rng: Random) -> Guide | None:
        guide = cast("FSMGuide", met.right.guide)
        met_or_dead = (node.state if finite else DEAD for node in met.nodes)
        state = chosen(rng, met_or_dead)
        assert state is not None
        distances = guide.distances.copy()
        after = change(int(distances[state]))
        distances[state] = UNREACHABLE if after is None else after
        wrong = replace(guide)
        vars(wrong)["distances"] = distances
        return wrong

    return Mutation(f"takes a distance for {how}", make)


LIFTED = (
    _automaton("has a byte that leads elsewhere", partial(_moved, onward=True)),
    _automaton("has a byte that leads nowhere", partial(_moved, onward=False)),
    _automaton("ends in one more state", partial(_accepting, ends=True)),
    _automaton("ends in one state less", partial(_accepting, ends=False)),
    Mutation("has two classes in one", _merged),
    Mutation("has a class that leads elsewhere", _successor),
    *map(_distance, DISTANCES),
)
"""Wrong parts of the guide of a finite automaton."""
