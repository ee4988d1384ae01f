"""Rules closed by the end of the text, without empty bodies; and shared stacks, taken apart along every way down."""

import pytest
from hypothesis import assume, given, settings

from outlines_phi.errors import EmptyLanguageError
from outlines_phi.guides.grammar.grammar import Grammar
from outlines_phi.guides.grammar.parsing.lr_tables import END, MOST_OPTIONAL, LRTables, augmented, without_empty_bodies
from outlines_phi.guides.grammar.parsing.parser import UNKNOWN, Parser, Stacks

from ..recognizer import grammar, grammars

fixed = settings(derandomize=True, deadline=None, max_examples=200)


def described(rules: Grammar) -> list[str]:
    return list(map(rules.describe, rules.productions))


def test_the_end_closes_the_start() -> None:
    own = grammar("S: a S | ")
    rules = augmented(own)
    assert described(rules) == ["$start: S $END", "S: a S", "S:"]
    assert rules.productions[0].body == (own.start, END) and rules.nullable == {own.start}


def test_variants_stand_for_empty_bodies() -> None:
    assert described(without_empty_bodies(augmented(grammar("S: A b A \n A: a | ")))) == [
        "$start: S $END",
        "S: A b A",
        "S: A b",
        "S: b A",
        "S: b",
        "A: a",
    ]


def test_the_empty_word_alone_is_left_to_the_start() -> None:
    assert described(without_empty_bodies(augmented(grammar("S: A A \n A: ")))) == ["$start: $END"]


def test_useless_rules_are_left_out() -> None:
    assert described(augmented(grammar("S: a | U \n U: U b"))) == ["$start: S $END", "S: a"]


def test_a_start_without_words_is_refused() -> None:
    with pytest.raises(EmptyLanguageError, match="the start rule 'S' derives no text"):
        augmented(grammar("S: U \n U: a U"))


def test_a_dot_and_a_line() -> None:
    rules = augmented(grammar("S: a S | "))
    assert [rules.describe(rules.productions[1], dot) for dot in range(3)] == ["S: • a S", "S: a • S", "S: a S •"]


@fixed
@given(grammars())
def test_rules_without_empty_bodies(grammar: Grammar) -> None:
    assume(grammar.start in grammar.productive)
    rules = without_empty_bodies(augmented(grammar))
    assert all(p.body and p.body != (p.head,) for p in rules.productions) and not rules.nullable
    assert len({(p.head, p.body) for p in rules.productions}) == len(rules.productions)
    assert all(p.head == rules.start for p in rules.productions[: len(rules.by_head[rules.start])])


def test_optional_symbols_do_not_multiply() -> None:
    optional = 40
    rules = without_empty_bodies(
        augmented(own := grammar("S: " + "A B " * (optional // 2) + " x \n A: a | \n B: b | "))
    )
    assert len(rules.productions) < 2 ** (MOST_OPTIONAL + 1) * (optional // MOST_OPTIONAL + 1) + 4
    assert rules.name(rules.start + 1) == "S…B"
    parser = Parser(own, LRTables.of(rules))
    x, a, b = map([terminal.name for terminal in rules.terminals].index, "xab")
    assert parser.read(parser.start, [a, b] * 20 + [a]) == parser.ERROR != parser.read(parser.start, [a, b] * 20 + [x])
    assert parser.read(parser.start, [b] * 20 + [x]) != parser.ERROR == parser.read(parser.start, [b] * 21)


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
