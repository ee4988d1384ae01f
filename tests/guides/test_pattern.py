"""The shape of a pattern agrees with the engine, which alone decides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.guides import regex_build
from outlines_phi.guides.pattern import Pattern
from tests.guides.patterns import jumbles, patterns

fixed = settings(derandomize=True, deadline=None, max_examples=300)


def is_read(pattern: str) -> bool:
    return regex_build.first_ascii(pattern) is not None


@fixed
@given(st.one_of(jumbles(), patterns()))
def test_a_problem_is_one_for_the_engine_too(text: str) -> None:
    shape = Pattern.read(text)
    if shape.problem:
        assert not is_read(text)
        assert 0 <= shape.problem.position < len(text)


@fixed
@given(st.one_of(jumbles(), patterns()))
def test_tokens_are_the_text_in_order(text: str) -> None:
    shape = Pattern.read(text)
    ends = [0, *(token.end for token in shape.tokens)]
    assert [token.start for token in shape.tokens] == ends[:-1]
    if not shape.problem and not shape.verbose:
        assert ends[-1] == len(text)


@fixed
@given(st.one_of(jumbles(), patterns()))
def test_the_pieces_of_a_pattern_that_is_read_are_read(text: str) -> None:
    shape = Pattern.read(text)
    if is_read(text) and not shape.verbose:
        assert all(is_read(atom) for atom in shape.atoms)
        assert is_read(shape.with_repeats_at_most(1))


@pytest.mark.parametrize(
    ("text", "atoms"),
    [
        (r"a\.[^]b]", {"a", r"\.", "[^]b]"}),
        (r"[a[b]&&[^c]]d", {"[a[b]&&[^c]]", "d"}),
        (r"[A-[]x", {"[A-[]", "x"}),
        (r"[[:alpha:]-]", {"[[:alpha:]-]"}),
        (r"[--]]", {"[--]", "]"}),
        (r"\x{1F600}\p{Lu}\pN\u00e9", {r"\x{1F600}", r"\p{Lu}", r"\pN", r"\u00e9"}),
        (r"(?P<n>a)|(?i:b)", {"a", "b"}),
        ("}]", {"}", "]"}),
    ],
)
def test_atoms(text: str, atoms: set[str]) -> None:
    assert Pattern.read(text).atoms == atoms
    assert is_read(text)


@pytest.mark.parametrize(
    ("text", "length", "written_out", "bound"),
    [
        ("abc", 3, 3, 1),
        ("a*b+c?", 3, 3, 1),
        ("a{3}b{7}", 2, 10, 7),
        ("(a{3}b){4}", 2, 16, 4),
        ("(a{3}|(bc{2}){5}){2,}c", 4, 2 * (3 + 15) + 1, 5),
        ("a{2}{3}", 1, 6, 3),
        ("(a{3})b{4}", 2, 7, 4),
        ("a{ 2 , 9 }", 1, 9, 9),
        ("a{0}", 1, 1, 0),
        ("$|(){9}", 0, 0, 9),
    ],
)
def test_written_out(text: str, length: int, written_out: int, bound: int) -> None:
    shape = Pattern.read(text)
    assert (shape.length, shape.written_out, shape.largest_bound) == (length, written_out, bound)


def test_with_repeats_at_most() -> None:
    shape = Pattern.read(r"a{2,30}(b{ 7 }\{9}){10,}[{11}]")
    assert shape.with_repeats_at_most(5) == r"a{2,5}(b{ 5 }\{9}){5,}[{11}]"
    assert shape.with_repeats_at_most(30) == shape.text


@pytest.mark.parametrize(
    ("text", "looks", "flags", "verbose"),
    [
        ("ab$", False, False, False),
        (r"ab\z", False, False, False),
        ("^ab", True, False, False),
        (r"a\bb", True, False, False),
        ("[^ab]", False, False, False),
        (r"\^\\b", False, False, False),
        ("(?s)a", False, True, False),
        ("(?s:a)", False, True, False),
        ("(?:a)(?P<x>b)", False, False, False),
        ("(?ix)a b)", False, True, True),
        ("a(?-x: b", False, True, True),
    ],
)
def test_what_decides_how_a_pattern_is_built(text: str, looks: bool, flags: bool, verbose: bool) -> None:
    shape = Pattern.read(text)
    assert (shape.looks_behind, shape.has_flags, shape.verbose) == (looks, flags, verbose)
