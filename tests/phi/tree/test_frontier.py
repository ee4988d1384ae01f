"""Open prefixes: all of them, the likeliest first, whatever the tree has been through."""

from __future__ import annotations

import math

import pytest

from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.regex import compile_regex
from outlines_phi.guides.table import Table
from outlines_phi.lm.table_model import TableModel
from outlines_phi.phi.tree import frontier as module
from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.frontier import Frontier
from outlines_phi.phi.tree.tree import BoundsTree
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary

LETTERS = [chr(0x4E00 + i) for i in range(900)]
WIDE = Vocabulary.from_tokens(["<eos>", *LETTERS], 0)


@pytest.fixture(params=[1.0, 6.0], ids=["flat", "peaked"])
def root(request: pytest.FixtureRequest) -> BoundsTree:
    """A tree of two letters out of 900, whose root and likeliest child are expanded."""
    table = Table(FSMGuide.from_automaton(compile_regex(f"[{LETTERS[0]}-{LETTERS[-1]}]{{2}}"), WIDE))
    tree = BoundsTree(table, 3)
    evaluator = Evaluator(TableModel.random(WIDE, seed=1, scale=request.param), SamplingSettings(), [(1,)], [tree])
    evaluator.expand([(tree, tree.root)])
    assert tree.root.law is not None
    token = int(tree.root.law.moves.tokens[tree.root.law.free.argmax()])
    evaluator.expand([(tree, tree.child(tree.root, token, tree.root.law.target(token)))])
    return tree


def open_prefixes(tree: BoundsTree) -> list[float]:
    """``log p`` of every prefix that could be expanded next, by brute force."""
    found = []
    for node in tree.walk():
        if node.law is not None:
            shares = node.law.free[node.law.free > 0].tolist()
            found += [node.log_p + node.law.log_scale + math.log(share) for share in shares]
        elif not node.expanded:
            found.append(node.log_p)
    return sorted(found, reverse=True)


def drained(frontier: Frontier) -> list[float]:
    found = []
    while (node := frontier.pop()) is not None:
        assert not node.expanded
        found.append(node.log_p)
    return found


@pytest.mark.parametrize(("short", "share"), [(256, 1e-3), (3, 0.5), (256, 1.0)])
def test_every_open_prefix_comes_once_and_in_order(
    root: BoundsTree, short: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORT_LIST", short)
    monkeypatch.setattr(module, "NEXT", share)
    expected = open_prefixes(root)
    frontier = Frontier(root)
    assert frontier.log_p == pytest.approx(expected[0], abs=1e-12)
    assert drained(frontier) == pytest.approx(expected, abs=1e-12)
    assert frontier.log_p == -math.inf and frontier.pop() is None


def test_what_others_have_taken_is_left_out(root: BoundsTree) -> None:
    frontier = Frontier(root)
    taken = [frontier.pop() for _ in range(5)]
    law = root.root.law
    assert law is not None
    best = int(law.moves.tokens[law.free.argmax()])
    other = root.child(root.root, best, law.target(best))  # a walk makes a node of it
    rest = drained(frontier)
    assert other.log_p not in rest and all(node is not None and node.log_p not in rest for node in taken)
    frontier.offer(other)
    assert frontier.pop() is other


def test_nodes_can_be_made_of_all_that_matters(root: BoundsTree) -> None:
    expected = open_prefixes(root)
    frontier = Frontier(root)
    least = expected[40]
    frontier.make_nodes(least)
    root.drop_laws(0)
    assert sum(node.law is not None for node in root.walk()) == 1  # the root keeps its own
    assert frontier.log_p == pytest.approx(expected[0], abs=1e-12)
    assert drained(frontier) == pytest.approx(expected[:41], abs=1e-12)
    assert frontier.log_p == pytest.approx(expected[41], abs=1e-12)  # given up, and still a bound
