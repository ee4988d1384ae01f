"""Paths of token trees: the likeliest of what is known, in the order of the exact law."""

from __future__ import annotations

import numpy as np
import pytest

from outlines_phi.drafting import TreeDrafter
from tests.drafting.runs import propose, run_of, site_of
from tests.inner import BoundsTree, Node
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, Language


def expand(tree: BoundsTree, language: Language, node: Node) -> None:
    logits = language.lm.logits((*PROMPT, *node.tokens()))
    tree.expand(node, logits - np.logaddexp.reduce(logits))
    tree.propagate([node])


def grown(language: Language, depth: int) -> BoundsTree:
    """Return a tree in which every live prefix of less than ``depth`` tokens is expanded."""
    tree = BoundsTree(language.table, language.budget)
    level = [tree.root]
    for _ in range(depth):
        for node in level:
            expand(tree, language, node)
        moves = [(node, language.table.moves(node.state, node.remaining)) for node in level]
        below = [
            tree.child(node, int(v), int(t))
            for node, live in moves
            for v, t in zip(live.tokens, live.targets, strict=True)
        ]
        level = [node for node in below if not node.expanded]
    return tree


def best(language: Language, tokens: tuple[int, ...], law: dict[tuple[int, ...], float]) -> int:
    """Return the token of the highest probability under the conditioned law, by enumeration."""
    shares: dict[int, float] = {}
    for member, p in law.items():
        if member[: len(tokens)] == tokens:
            shares[member[len(tokens)]] = shares.get(member[len(tokens)], 0.0) + p
    return max(shares, key=shares.__getitem__)


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_a_whole_tree_gives_the_step_by_step_mode(language: Language) -> None:
    tree, mu = grown(language, language.budget), language.reference().mu
    run = run_of(language.table, trees=[tree])
    expected: tuple[int, ...] = ()
    while len(expected) < language.budget - 1 and (token := best(language, expected, mu)) != 0:
        expected += (token,)
    site = site_of(run, budget=language.budget)
    assert propose(TreeDrafter(), run, [site], language.budget)[0].tokens == expected
    for start in range(len(expected)):
        site = site_of(run, expected[:start], budget=language.budget)
        assert propose(TreeDrafter(), run, [site], 2)[0].tokens == expected[start : start + 2]


def test_where_nothing_is_known_nothing_is_proposed() -> None:
    language = LANGUAGES[1]
    tree = BoundsTree(language.table, language.budget)
    run = run_of(language.table, trees=[tree])
    sites = [site_of(run, budget=6), site_of(run, (3,), budget=6)]
    assert [draft.tokens for draft in propose(TreeDrafter(), run, sites)] == [(), ()]
    expand(tree, language, tree.root)
    (first, second) = propose(TreeDrafter(), run, sites)
    assert len(first.tokens) == 1 and second.tokens == ()  # a token without a node of its own


def test_evicted_laws_leave_the_children() -> None:
    language = LANGUAGES[1]
    tree = grown(language, 3)
    run = run_of(language.table, trees=[tree])
    before = propose(TreeDrafter(), run, [site_of(run, budget=6)], 5)[0].tokens
    for node in tree.walk():
        node.distribution = None
    after = propose(TreeDrafter(), run, [site_of(run, budget=6)], 5)[0].tokens
    assert after == before[: len(after)] and len(after) >= 2


def test_dead_ends_are_not_drafted() -> None:
    """The likeliest token leads to a subtree that has turned out to hold nothing."""
    language = LANGUAGES[3]
    tree = grown(language, language.budget)
    token = best(language, (), language.reference().mu)
    tree.root.children[token].rule_out()
    tree.propagate([tree.root])
    run = run_of(language.table, trees=[tree])
    (draft,) = propose(TreeDrafter(), run, [site_of(run, budget=language.budget)], 5)
    assert draft.tokens and draft.tokens[0] != token
