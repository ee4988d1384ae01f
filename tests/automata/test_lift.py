"""Vocabulary classes against running every token from every state."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outlines_phi.automata import lift as lifting
from outlines_phi.automata.automaton import DEAD, ByteAutomaton
from outlines_phi.automata.lift import FIRST, lift
from outlines_phi.vocabulary.classes import EOS, NEVER
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.automata.test_automaton import automata

fixed = settings(derandomize=True, deadline=None)

vocabularies = st.lists(st.text("ab\xff", max_size=4).map(lambda t: t.encode("latin-1")), min_size=1, max_size=40).map(
    lambda tokens: Vocabulary.from_tokens([b"", *tokens, b"", "c"], 0)
)


def assert_lifted(automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
    partition, moves = lift(automaton.targets, automaton.byte_class, vocabulary)
    assert partition.class_of[0] == EOS and partition.size == FIRST + len(moves)
    states = range(len(automaton))
    by_action: dict[tuple[int, ...], int] = {}
    for v, token in enumerate(vocabulary.tokens[1:], start=1):
        action = tuple(automaton.advance(state, token) for state in states) if token else (DEAD,) * len(automaton)
        g = int(partition.class_of[v])
        if not any(action):
            assert g == NEVER
            continue
        assert by_action.setdefault(action, g) == g, "tokens that act alike share a class"
        here = slice(moves.offsets[g - FIRST], moves.offsets[g - FIRST + 1])
        pairs = dict(zip(moves.source[here].tolist(), moves.target[here].tolist(), strict=True))
        assert pairs == {state: target for state, target in zip(states, action, strict=True) if target != DEAD}
    # Classes are told apart, none is without a member, and they come in the order of their first tokens.
    assert list(by_action.values()) == list(range(FIRST, partition.size))


@fixed
@given(automata, vocabularies)
def test_classes_are_the_distinct_actions(automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
    assert_lifted(automaton, vocabulary)


@fixed
@given(automata, vocabularies)
def test_small_chunks_change_nothing(automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "CHUNK", 2)
        assert_lifted(automaton, vocabulary)


@fixed
@given(automata, vocabularies)
def test_hash_collisions_change_nothing(automaton: ByteAutomaton, vocabulary: Vocabulary) -> None:
    """The first three hashes tell lift apart by their numbers of pairs only, or not at all."""
    whole = lifting._weights

    def weak(seed: int, states: NDArray[np.int32]) -> NDArray[np.uint64]:
        return np.full(len(states), max(seed, ~seed), dtype=np.uint64) if -4 < seed < 3 else whole(seed, states)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifting, "_weights", weak)
        assert_lifted(automaton, vocabulary)


def test_nothing_below_a_dead_node_is_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A work bound instead of a timing: 1,000 tokens that start with a dead byte cost no composition."""
    composed = []
    whole = lifting.Transformations.then

    def counting(self: Any, chosen: Any, column: Any, columns: Any) -> Any:
        composed.append(len(chosen))
        return whole(self, chosen, column, columns)

    monkeypatch.setattr(lifting.Transformations, "then", counting)
    tokens = ["<eos>", "a", "aa", *(f"x{i:03d}" for i in range(1_000))]
    targets = np.array([[0, 0], [0, 1]], dtype=np.int32)
    byte_class = (np.arange(256) == ord("a")).astype(np.uint8)
    lift(targets, byte_class, Vocabulary.from_tokens(tokens, 0))
    assert composed == [2], "two byte classes at the root; below `a` is what was found there, below `x` is nothing"
