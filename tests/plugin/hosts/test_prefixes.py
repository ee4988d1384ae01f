"""The states of a loop's rows, whatever the order in which the loop asks."""

from __future__ import annotations

import math

import pytest
import torch

from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import DEAD, DONE
from outlines_phi.guides.table import Table
from outlines_phi.plugin.processor import Prefix, PrefixTree, Step
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import Vocabulary

END, A, B, C, PAD = range(5)
TABLE = Table(
    FSMGuide.from_automaton(compile_regex("(ab|c){1,3}"), Vocabulary.from_tokens(["<e>", "a", "b", "c", ""], 0))
)


def replayed(tokens: list[int]) -> int:
    state = TABLE.start
    for token in tokens:
        state = DONE if state == DONE else TABLE.guide.advance(state, token)
    return state


@pytest.fixture
def prefixes() -> PrefixTree:
    return PrefixTree(TABLE)


def visit(prefixes: PrefixTree, *rows: list[int]) -> list[Prefix]:
    return prefixes.visit(torch.tensor(rows))


def check(prefixes: PrefixTree, prompt: list[int], *rows: list[int]) -> None:
    found = visit(prefixes, *([*prompt, *row] for row in rows))
    assert [(node.state, node.length) for node in found] == [(replayed(row), len(row)) for row in rows]


def test_one_after_the_other(prefixes: PrefixTree) -> None:
    for rows in ([[], []], [[A], [C]], [[A, B], [C, C]], [[A, B, END], [C, C, A]], [[A, B, END, PAD], [C, C, A, B]]):
        check(prefixes, [7, 8], *rows)
    assert prefixes.in_order


def test_reordered_and_repeated(prefixes: PrefixTree) -> None:
    check(prefixes, [7], [], [])
    check(prefixes, [7], [A], [C])
    check(prefixes, [7], [C, A], [A, B])
    assert not prefixes.in_order
    check(prefixes, [7], [C, A, B], [C, A, C])
    assert visit(prefixes, [7, C, A], [7, C, A])[0] is visit(prefixes, [7, C, A], [7, C, A])[1]


def test_drafts_go_forth_and_back(prefixes: PrefixTree) -> None:
    for row in ([], [A], [A, B], [A], [A, B], [A, B, C], [A, B, A], [A, B, A, B]):
        check(prefixes, [7, 8, 9], row)


def test_several_tokens_at_once(prefixes: PrefixTree) -> None:
    """Some loops do not ask between tokens that they know already."""
    check(prefixes, [7], [], [])
    check(prefixes, [7], [A, B, C], [C, END, PAD])
    check(prefixes, [7], [A], [C])


@pytest.mark.parametrize(
    "second",
    [[7, 8], [1, 2], [9], [7, 8, A, B, END, 7, 8], [7, 8, A, B, 9, 9, 9], [7, 8, A, B, END, PAD, PAD]],
    ids=str,
)
def test_a_new_generation_is_told_by_its_rows(prefixes: PrefixTree, second: list[int]) -> None:
    first = visit(prefixes, [7, 8])[0]
    for row in ([A], [A, B]):
        check(prefixes, [7, 8], row)
    (node,) = visit(prefixes, second)
    assert node is not first and (node.state, node.length) == (TABLE.start, 0)
    check(prefixes, second, [C])


def test_what_nothing_tells_apart_takes_a_reset(prefixes: PrefixTree) -> None:
    visit(prefixes, [7, 8])
    check(prefixes, [7, 8], [A])
    assert visit(prefixes, [7, 8, A, 9])[0].state == DEAD
    prefixes.forget()
    check(prefixes, [7, 8, A, 9], [])


def test_rows_that_are_written_over(prefixes: PrefixTree) -> None:
    """Hosts may pass views of one buffer."""
    buffer = torch.tensor([[7, A, B, C]])
    for n in (1, 2, 3):
        prefixes.visit(buffer[:, :n])
    buffer[0, 1:] = torch.tensor([C, C, A])
    (node,) = prefixes.visit(buffer)
    assert node.state == replayed([C, C, A])


def test_weights_add_up_and_the_last_law_counts(prefixes: PrefixTree) -> None:
    def law(log_s: float) -> Step:
        return Step(log_s, torch.tensor([0.0, -0.5, -1.0, -0.25, -math.inf]))

    (root,) = visit(prefixes, [7])
    assert root.log_w == 0.0
    root.step = law(-9.0)  # a trial run's
    visit(prefixes, [7, A])
    (root,) = visit(prefixes, [7])
    root.step = law(-1.0)
    (a,) = visit(prefixes, [7, A])
    assert a.log_w == pytest.approx(-0.5)
    a.step = law(-2.0)
    (ab,) = visit(prefixes, [7, A, B])
    assert ab.log_w == pytest.approx(-1.5)
    (beyond,) = visit(prefixes, [7, A, B, C])
    assert math.isnan(beyond.log_w), "nobody asked for the law after ab"
    assert a.step.log_w(PAD) == -math.inf
