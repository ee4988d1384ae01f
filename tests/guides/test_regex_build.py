"""The engine as arrays, here and in another process."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from outlines_phi.guides import regex_build
from outlines_phi.guides.regex_build import Stopped


def test_transitions_of_a_literal() -> None:
    built = regex_build.build("ab")
    assert sorted(built.byte.tolist()) == [97, 98] and int(built.states) == 3
    (middle,) = set(built.source.tolist()) & set(built.target.tolist())
    assert built.target[built.byte == 97] == middle and built.source[built.byte == 97] == built.start
    assert built.target[built.byte == 98] == built.final


def test_what_the_engine_leaves_out_alone_and_not_at_the_end() -> None:
    """The two facts that `compile_regex` works around; if this fails, see whether it still must."""
    assert 98 not in regex_build.build("a(bc)?").byte
    assert regex_build.build("a|ab").byte.tolist() == [97]
    assert sorted(regex_build.build(r"a(bc)?\z").byte.tolist()) == [97, 98, 99]
    assert sorted(regex_build.build(r"(a|ab)\z").byte.tolist()) == [97, 98]


def test_the_same_in_another_process() -> None:
    here, apart = (
        regex_build.build("(é|b){2}c?"),
        regex_build.build_apart([(2, "(é|b){2}c?")], states=99, megabytes=2048),
    )
    assert regex_build.size("(é|b){2}c?") == int(here.states) == int(apart.states)
    for left, right in zip(here, apart, strict=True):
        # rows come in no particular order
        assert np.array_equal(np.sort(left, axis=None), np.sort(right, axis=None))


def test_refusals_come_back_from_another_process() -> None:
    with pytest.raises(ValueError, match="Failed to build DFA"):
        regex_build.build_apart([(1, "a(")], states=99, megabytes=2048)


def exponential(*caps: int) -> list[tuple[int, str]]:
    return [(cap, f"(a|b)*a(a|b){{{cap}}}\\z") for cap in caps]


def test_states_are_counted_from_version_to_version() -> None:
    with pytest.raises(Stopped, match="^more than 300 states: 512 where its repeats are cut to 8$"):
        regex_build.build_apart(exponential(*range(1, 9), 60), states=300, megabytes=2048)


def test_the_last_version_counts_too() -> None:
    with pytest.raises(Stopped, match="^512 states, more than 300$"):
        regex_build.build_apart(exponential(1, 2, 8), states=300, megabytes=2048)
    assert regex_build.build_apart(exponential(1, 2, 8), states=512, megabytes=2048).states == 512


def test_memory_is_bounded() -> None:
    with pytest.raises(Stopped, match="too much memory, of a bound of 50 MB"):
        regex_build.build_apart(exponential(24), states=10**9, megabytes=50)


def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(Stopped, match="another process, which could not be started"):
        regex_build.build_apart([(1, "a")], states=99, megabytes=2048)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"\d|[^\W0-8a-z]", set("0123456789_ABCDEFGHIJKLMNOPQRSTUVWXYZ")),
        ("é", set()),
        ("[a&&b]", set()),
        (r"[,\n]|é", {",", "\n"}),
        ("(", None),
    ],
)
def test_first_ascii(pattern: str, found: set[str] | None) -> None:
    assert regex_build.first_ascii(pattern) == found
