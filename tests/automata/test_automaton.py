"""The algebra of byte automata against sets of texts."""

from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.automata.automaton import DEAD, UNREACHABLE, ByteAutomaton, distances

fixed = settings(derandomize=True, deadline=None)

TEXTS = [bytes(text) for length in range(5) for text in product(b"ab\xff", repeat=length)]
"""Every text of up to four bytes; what other bytes do is what \\xff does not."""


def automaton(
    edges: list[tuple[int, int, int]], accepting: list[int], start: int = 1, states: int = 5
) -> ByteAutomaton:
    unique = {(source, byte): target for source, byte, target in edges}
    source, byte = np.array(list(unique), dtype=np.int32).reshape(-1, 2).T
    return ByteAutomaton.from_edges(
        source,
        byte,
        np.array(list(unique.values()), dtype=np.int32),
        start=start,
        accepting=np.isin(np.arange(states), accepting),
    )


automata = st.builds(
    automaton,
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from(b"ab\xff"), st.integers(1, 4)), max_size=12),
    st.lists(st.integers(1, 4), max_size=3),
    st.integers(0, 4),
)


def language(a: ByteAutomaton) -> set[bytes]:
    return {text for text in TEXTS if a.accepts(text)}


@fixed
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 255), st.integers(1, 4)), max_size=40))
def test_from_edges_keeps_every_edge(edges: list[tuple[int, int, int]]) -> None:
    a = automaton(edges, [2])
    expected = {(source, byte): target for source, byte, target in edges}
    for state, byte in product(range(5), range(256)):
        assert a.advance(state, bytes([byte])) == expected.get((state, byte), DEAD)
    columns = [a.targets[:, g].tolist() for g in range(a.targets.shape[1])]
    assert len({tuple(column) for column in columns}) == len(columns), "bytes that act alike share a column"


@fixed
@given(automata, automata)
def test_product_is_intersection(a: ByteAutomaton, b: ByteAutomaton) -> None:
    assert language(a & b) == language(a) & language(b)


@fixed
@given(automata)
def test_complement(a: ByteAutomaton) -> None:
    assert language(a.complement()) == set(TEXTS) - language(a)
    assert a.complement().accepts(b"c") != a.accepts(b"c")
    assert a.witness(a.complement().complement()) is None


@fixed
@given(automata)
def test_trim_keeps_the_language_and_only_useful_states(a: ByteAutomaton) -> None:
    trimmed = a.trim()
    assert language(trimmed) == language(a)
    reached = {trimmed.start}
    for text in TEXTS:
        reached.add(trimmed.advance(trimmed.start, text))
    assert set(range(1, len(trimmed))) <= reached
    assert (trimmed.distances[1:] != UNREACHABLE).all()
    assert trimmed.trim() is trimmed


@fixed
@given(automata, automata)
def test_witness_tells_languages_apart(a: ByteAutomaton, b: ByteAutomaton) -> None:
    text = a.witness(b)
    if text is None:
        assert language(a) == language(b)
    else:
        assert a.accepts(text) != b.accepts(text)
        assert all(a.accepts(shorter) == b.accepts(shorter) for shorter in TEXTS if len(shorter) < len(text))


@fixed
@given(automata)
def test_distances_are_the_lengths_of_shortest_texts(a: ByteAutomaton) -> None:
    for state in range(len(a)):
        lengths = [len(text) for text in TEXTS if a.accepting[a.advance(state, text)]]
        assert a.distances[state] == min(lengths, default=UNREACHABLE)


@fixed
@given(automata)
def test_members_come_in_order(a: ByteAutomaton) -> None:
    expected = sorted(language(a), key=lambda text: (len(text), text))
    members = [text for text in islice(a.members(), 2 * len(TEXTS)) if len(text) <= 4]
    assert members == expected
    assert a.is_empty == (not expected)
    if expected:
        assert a.shortest() == expected[0]
    else:
        with pytest.raises(ValueError, match="accepts nothing"):
            a.shortest()


@fixed
@given(automata, st.integers(0, 12))
def test_members_that_are_few(a: ByteAutomaton, most: int) -> None:
    first = list(islice(a.members(), most + 1))
    found = a.members_up_to(most, longest=100)
    assert found is None if len(first) > most else found is not None and sorted(found) == sorted(first)
    if first and len(first) <= most:
        longest = max(map(len, first))
        assert a.members_up_to(most, longest) == found and (not longest or a.members_up_to(most, longest - 1) is None)


@pytest.mark.parametrize(
    ("targets", "accepting"),
    [([[1], [0]], [False, True]), ([[0], [0]], [True, True]), ([[0], [0]], [False])],
    ids=["dead state moves", "dead state accepts", "lengths differ"],
)
def test_contradictions_are_refused(targets: list[list[int]], accepting: list[bool]) -> None:
    with pytest.raises(AssertionError):
        ByteAutomaton(np.array(targets, dtype=np.int32), np.zeros(256, dtype=np.uint8), 1, np.array(accepting))


def test_the_largest_alphabet_and_the_empty_one() -> None:
    every = automaton([(1, byte, 1 + byte % 2) for byte in range(256)], [2])
    assert every.targets.shape[1] == 2 and every.accepts(b"\x01") and not every.accepts(b"\x02")
    none = automaton([], [1])
    assert none.accepts(b"") and not none.accepts(b"a")


STATES = 7
edges = st.lists(st.tuples(st.integers(0, STATES - 1), st.integers(0, STATES - 1)), max_size=20)


@fixed
@given(edges, st.sets(st.integers(0, STATES - 1)))
def test_least_number_of_edges_to_a_goal(pairs: list[tuple[int, int]], goals: set[int]) -> None:
    source, target = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    expected = [0 if state in goals else UNREACHABLE for state in range(STATES)]
    for _ in range(STATES):
        for s, t in pairs:
            if expected[t] != UNREACHABLE:
                expected[s] = min(expected[s], expected[t] + 1)
    assert distances(source, target, np.array(sorted(goals), dtype=np.int64), STATES).tolist() == expected


def test_a_long_chain() -> None:
    chain = np.arange(70_000)
    result = distances(chain[:-1], chain[1:], chain[-1:], len(chain))
    assert np.array_equal(result, chain[::-1])
