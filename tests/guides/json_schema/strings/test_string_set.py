"""Sets of strings obey the laws of sets, and equal sets are equal values."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.errors import UnsupportedError
from outlines_phi.format_limits import current_limits
from outlines_phi.guides.json_schema.strings.string_set import StringSet
from outlines_phi.regex.spelling import spelled, utf8

fuzz = settings(derandomize=True, deadline=None, max_examples=100)

LETTERS = "aé𝕏"
TEXTS = ["".join(letters) for length in range(5) for letters in product(LETTERS, repeat=length)]
"""Every text of up to four letters of one, two and four bytes."""


def lengths() -> st.SearchStrategy[StringSet]:
    bounds = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 4)))
    return bounds.map(lambda pair: StringSet.of_lengths(*pair))


def values() -> st.SearchStrategy[StringSet]:
    return st.lists(st.text(LETTERS + "z", max_size=3), max_size=4).map(StringSet.of_values)


def sets() -> st.SearchStrategy[StringSet]:
    found = st.sampled_from(["a", "^a", "é$", "^(aé)*$", "[^a]", "a.é", "^.{2}$"]).map(StringSet.matching)
    return st.recursive(
        st.one_of(lengths(), values(), found),
        lambda inner: st.one_of(
            inner.map(lambda strings: ~strings),
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        ),
        max_leaves=4,
    )


@fuzz
@given(sets(), sets())
def test_operations_are_those_of_sets(a: StringSet, b: StringSet) -> None:
    both, either, others = a & b, a | b, ~a
    for text in TEXTS:
        assert both.contains(text) == (a.contains(text) and b.contains(text))
        assert either.contains(text) == (a.contains(text) or b.contains(text))
        assert others.contains(text) != a.contains(text)


@fuzz
@given(sets(), sets(), sets())
def test_equal_sets_are_equal_values(a: StringSet, b: StringSet, c: StringSet) -> None:
    for left, right in [
        (~~a, a),
        (a & a, a),
        (a & b, b & a),
        (a | (b & c), (a | b) & (a | c)),
        (~(a & b), ~a | ~b),
        (a & ~a, StringSet.none()),
        (a | ~a, StringSet.all()),
    ]:
        assert left == right and hash(left) == hash(right)


@fuzz
@given(sets())
def test_the_bytes_are_those_of_the_members(a: StringSet) -> None:
    in_utf8 = spelled(a.code_automaton, utf8)
    assert all(in_utf8.accepts(text.encode()) == a.contains(text) for text in TEXTS)
    assert not in_utf8.accepts(b"\xed\xa0\x80") and not in_utf8.accepts(b"\xc0\xaf")


@fuzz
@given(sets())
def test_the_shortest_and_longest_are_those_of_the_members(a: StringSet) -> None:
    found = [len(text) for text in TEXTS if a.contains(text)]
    if a.is_empty:
        assert not found
        with pytest.raises(ValueError, match="empty"):
            _ = a.shortest
    elif found:
        assert a.shortest <= min(found)
        assert a.longest is None or a.longest >= max(found)


def test_only_length_tells_the_strings_of_a_pattern_that_takes_any_character() -> None:
    assert StringSet.matching(r"^[\s\S]{2,5}$") == StringSet.of_lengths(2, 5)
    assert StringSet.matching(r"^(?:[^][^])*$").lengths is None  # even lengths are no interval
    assert StringSet.of_values([]) == StringSet.none()
    assert StringSet.of_values([""]) == StringSet.of_lengths(0, 0)


def test_a_length_alone_costs_nothing() -> None:
    long = StringSet.of_lengths(3, 65_535) & StringSet.of_lengths(0, 10**9)
    assert (long.shortest, long.longest) == (3, 65_535)
    assert (~long).lengths == ((0, 2), (65_536, None))
    assert long | StringSet.of_lengths(0, 2) == StringSet.of_lengths(0, 65_535)
    assert long.contains("aaa") and not long.contains("aa")


def test_a_length_that_the_strings_have_anyway_costs_nothing() -> None:
    uuid = StringSet.matching("^[0-9a-f]{8}$")
    assert uuid & StringSet.of_lengths(1, 10**9) is uuid
    assert (uuid & StringSet.of_lengths(9, None)).is_empty


def test_a_length_that_must_be_counted_is_counted_or_refused() -> None:
    words = StringSet.matching("^[a-z]+$") & StringSet.of_lengths(0, 500)
    assert words.longest == 500 and len(words.code_automaton) == 502
    with pytest.raises(UnsupportedError, match=r"^Lower the bounds .*\. .*states\.$"):
        StringSet.matching("^[a-z]+$") & StringSet.of_lengths(0, 1000 * current_limits().states)


def test_a_lone_surrogate_is_no_string() -> None:
    assert not StringSet.all().contains("\ud800")
    assert not StringSet.matching("a").contains("a\udfff")
    assert StringSet.of_values(["a\ud800", "b"]) == StringSet.of_values(["b"])
