"""Finite automata over characters, such as those of the package interegular, as automata over bytes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..automata.automaton import DEAD, ByteAutomaton
from ..regex.patterns import compile_regex


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
    """Return the automaton of the UTF-8 encodings of what an automaton over characters accepts.

    Its states are pairs of a state and of how far a character is read, which is a state of the product of the automata of the
    classes of characters; the byte that ends a character of a class makes its transition.
    """
    groups = fsm.alphabet.by_transition
    listed = {character for group in groups.values() for character in group if isinstance(character, str)}
    classes = [_characters(group, listed) for group in groups.values()]
    number = {tuple(one.start for one in classes): 0}
    steps: list[tuple[int, int, int, int | None]] = []  # from, byte, to, the class that ends there
    for at in (waiting := list(number)):
        for byte in range(256):
            after = tuple(int(one.targets[state, one.byte_class[byte]]) for one, state in zip(classes, at, strict=True))
            if all(state == DEAD for state in after):
                continue
            ended = next((i for i, one in enumerate(classes) if one.accepting[after[i]]), None)
            if ended is None and after not in number:
                number[after] = len(number)
                waiting.append(after)
            steps.append((number[at], byte, number.get(after, 0), ended))
    places = {state: 1 + i * len(number) for i, state in enumerate(fsm.states)}  # behind the dead state
    keys = list(groups)
    edges = []
    for state, first in places.items():
        moves = fsm.map.get(state, {})
        for place, byte, after_place, ended in steps:
            if ended is None:
                edges.append((first + place, byte, first + after_place))
            elif keys[ended] in moves:
                edges.append((first + place, byte, places[moves[keys[ended]]]))
    source, read, target = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    accepting = np.zeros(1 + len(places) * len(number), dtype=bool)
    accepting[[places[state] for state in fsm.finals]] = True
    return ByteAutomaton.from_edges(source, read, target, start=places[fsm.initial], accepting=accepting).trim()


def _characters(group: Collection[Any], listed: Collection[str]) -> ByteAutomaton:
    """Return the automaton of one character of a group; ``listed`` are those of all groups."""
    others = any(not isinstance(character, str) for character in group)
    chosen = (set(listed) - {c for c in group if isinstance(c, str)}) if others else set(group)
    spelled = "".join(f"\\x{{{ord(character):x}}}" for character in sorted(chosen))
    return compile_regex(f"[{'^' * others}{spelled}]" if spelled else r"(?s:.)")
