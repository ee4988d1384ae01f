"""Shared stacks: made once, taken apart along every way down, cut off."""

from __future__ import annotations

from outlines_phi.guides.grammar.parsing.parser import UNKNOWN, Stacks


def words(stacks: Stacks, stack: int) -> set[tuple[int, ...]]:
    """The states of every stack that a number stands for, top first."""
    below = stacks.below[stack]
    rest = {()} if not below or stack == UNKNOWN else {word for lower in below for word in words(stacks, lower)}
    return {(stacks.top[stack], *word) for word in rest}


def two_ways() -> tuple[Stacks, int]:
    """4 on 3 on (1 on 0, or 2 on 1 on 0)."""
    stacks = Stacks()
    one = stacks.push(1, [stacks.push(0, [])])
    return stacks, stacks.push(4, [stacks.push(3, [one, stacks.push(2, [one])])])


def test_equal_stacks_are_one() -> None:
    stacks, top = two_ways()
    size = len(stacks)
    (three,) = stacks.below[top]
    assert stacks.push(3, list(reversed(stacks.below[three]))) == three
    assert stacks.push(4, {three}) == top and len(stacks) == size


def test_taking_entries_off() -> None:
    stacks, top = two_ways()
    assert set(stacks.descend(top, 0)) == {top}
    assert {stacks.top[stack] for stack in stacks.descend(top, 2)} == {1, 2}
    assert {stacks.top[stack] for stack in stacks.descend(top, 3)} == {0, 1}
    assert set(stacks.descend(UNKNOWN, 9)) == {UNKNOWN}


def test_cutting() -> None:
    stacks, top = two_ways()
    assert words(stacks, top) == {(4, 3, 1, 0), (4, 3, 2, 1, 0)}
    for entries in range(7):
        (cut,) = stacks.cut([top], entries)
        assert words(stacks, cut) == {
            (*word[:entries], *([-1] if len(word) > entries else [])) for word in words(stacks, top)
        }
        assert stacks.cut([cut], entries) == {cut} and stacks.cut([cut], 1) == stacks.cut([top], min(entries, 1))
    assert stacks.cut([top], 5) == {top}


def test_cutting_far_below_the_bottom() -> None:
    stacks, top = two_ways()
    assert stacks.cut([top], 10**9) == {top}
    (cut,) = stacks.cut([top], 2)
    assert stacks.cut([cut, UNKNOWN], 10**9) == {cut, UNKNOWN}


def test_a_deep_stack_is_cut_without_recursion() -> None:
    stacks, stack = Stacks(), 0
    for _ in range(5000):
        stack = stacks.push(1, [stack] if stack else [])
    assert stacks.cut([stack], 4999) != {stack} == stacks.cut([stack], 5000)
