"""Finite automata over characters, such as those of the package interegular, as automata over bytes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..automata.automaton import ByteAutomaton
from ..regex.code_automaton import CodeAutomaton
from ..regex.code_points import characters, cut, others, union
from ..regex.spelling import spelled, utf8


class Alphabet(Protocol):
    """The characters that each transition is for; what is no text stands for all others."""

    by_transition: Mapping[Hashable, Collection[Any]]


@runtime_checkable
class CharacterFSM(Protocol):
    """A deterministic automaton over characters, as ``interegular.fsm.FSM``; a transition that is missing fails."""

    alphabet: Alphabet
    states: Collection[Hashable]
    initial: Hashable
    finals: Collection[Hashable]
    map: Mapping[Hashable, Mapping[Hashable, Hashable]]


def encoded(fsm: CharacterFSM) -> ByteAutomaton:
    """Return the automaton of the UTF-8 encodings of what an automaton over characters accepts."""
    groups = fsm.alphabet.by_transition
    listed = characters("".join(each for group in groups.values() for each in group if isinstance(each, str)))
    sets = []
    for group in groups.values():
        own = characters("".join(each for each in group if isinstance(each, str)))
        sets.append(own if all(isinstance(each, str) for each in group) else union([own, others(listed)]))
    bounds, classes, members = cut(sets)
    number = {state: place for place, state in enumerate(sorted(fsm.states, key=lambda state: state != fsm.initial))}
    targets = np.full((len(number) + 1, int(classes.max()) + 1), len(number), dtype=np.int32)  # the last state is dead
    for state, moves in fsm.map.items():
        for key, columns in zip(groups, members, strict=True):
            if key in moves:
                targets[number[state], columns] = number[moves[key]]
    accepting = np.zeros(len(targets), dtype=bool)
    accepting[[number[state] for state in fsm.finals]] = True
    return spelled(CodeAutomaton.of(bounds, classes, targets, accepting), utf8)
