"""Distances against repeated relaxation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.automata.reachability import UNREACHABLE, distances

fixed = settings(derandomize=True, deadline=None)

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
