"""The token tree: bounds, laws, eviction."""

import math

import numpy as np
import pytest
import torch

from outlines_phi.phi.tree import evaluator
from tests.inner import DONE, BoundsTree, Evaluator, TreeStore, best_first, enumerate_together, log_sum
from tests.languages import AND_OPEN, LANGUAGES, PROMPT, Language

WORDS, LOOP = LANGUAGES[:2]
FAVOURITES = Language("favourites", "[abcx]{6}", 8, seed=4, scale=14.0)
"""A law that gives nearly everything to a few of many texts, as language models do."""


def planted(language: Language = WORDS) -> tuple[BoundsTree, Evaluator]:
    """Return a fresh tree and its evaluator."""
    tree = BoundsTree(language.table, language.budget)
    return tree, Evaluator(language.lm, language.settings(), [PROMPT], [tree])


def expand_all(tree: BoundsTree, evaluator: Evaluator) -> None:
    """Expand every live prefix in one call: all of them are known from the guide."""
    nodes = [tree.root]
    for node in nodes:
        moves = tree.table.moves(node.state, node.remaining)
        steps = zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True)
        nodes += (tree.child(node, token, target) for token, target in steps if target != DONE)
    evaluator.expand((tree, node) for node in nodes)


@pytest.mark.parametrize("language", AND_OPEN, ids=str)
def test_a_finite_language_ends_with_equal_bounds(language: Language) -> None:
    tree, evaluator = planted(language)
    expand_all(tree, evaluator)
    lower, upper = tuple(map(math.exp, tree.log_bounds))
    phi = math.exp(language.reference().log_phi)
    assert lower == pytest.approx(phi, rel=1e-12) and upper == pytest.approx(phi, rel=1e-12)
    assert evaluator.counts.calls == 1


def test_bounds_are_what_the_recursion_says() -> None:
    """U(y) = sum p(v|y) U(yv) over all live tokens, by brute force over the vocabulary, at every node."""
    tree, evaluator = planted()
    rng = np.random.default_rng(0)
    for _ in range(12):
        node = tree.root
        while node.distribution is not None and node.state != DONE:
            node = tree.choose(node, lambda child: 0.0, rng)
        if node.state != DONE:
            evaluator.expand([(tree, node)])
    settings = WORDS.settings()
    for node in tree.walk():
        if node.distribution is None:
            assert (math.exp(node.log_upper), math.exp(node.log_lower)) == (1.0, float(node.state == DONE))
            continue
        logits = WORDS.lm.logits(PROMPT + node.tokens())
        p = settings.log_p(torch.from_numpy(logits)[None], WORDS.table.vocabulary, ())[0].exp().numpy()
        upper = lower = 0.0
        for token in WORDS.table.moves(node.state, node.remaining).tokens.tolist():
            child = node.children.get(token)
            upper += p[token] * (1.0 if child is None else math.exp(child.log_upper))
            lower += 0.0 if child is None else p[token] * math.exp(child.log_lower)
        assert math.exp(node.log_upper) == pytest.approx(upper, rel=1e-12)
        assert math.exp(node.log_lower) == pytest.approx(lower, rel=1e-12)


def test_a_forgotten_subtree_resets_its_bounds_up_to_the_root() -> None:
    tree, evaluator = planted()
    expand_all(tree, evaluator)
    log_phi = tree.root.log_upper
    nodes = tree.nodes
    tree.evict(0)
    below = [node for node in tree.root.children.values() if node.state != DONE]
    assert all(
        (node.log_upper, node.log_lower, node.expanded, node.children) == (0.0, -math.inf, False, {}) for node in below
    )
    children = tree.root.children.values()
    assert tree.root.log_upper == pytest.approx(log_sum(child.log_step + child.log_upper for child in children))
    assert tree.root.log_upper > log_phi
    assert tree.nodes == 1 + len(tree.root.children) < nodes
    assert tree.nodes == sum(1 for _ in tree.walk())
    assert tree.log_bounds[1] == pytest.approx(log_phi)  # what was reported once stays true


def test_pinned_paths_survive_eviction() -> None:
    tree, evaluator = planted()
    expand_all(tree, evaluator)
    deepest = max(tree.walk(), key=lambda node: len(node.tokens()))
    tree.evict(0, pinned=[deepest])
    assert deepest in set(tree.walk())


@pytest.mark.parametrize("tolerance", [0.3, 0.03, 0.003])
@pytest.mark.parametrize("language", [*AND_OPEN, FAVOURITES], ids=str)
def test_enumeration_takes_no_more_than_it_needs(
    language: Language, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few prefixes decide; to take all that a call has room for costs tokens and saves few calls."""
    spent = {}
    for left in (best_first.LEFT, 0.0):
        monkeypatch.setattr(best_first, "LEFT", left)
        tree, evaluator = planted(language)
        assert enumerate_together([tree], evaluator, tolerance, max_tokens=10_000) == [True]
        lower, upper = tuple(map(math.exp, tree.log_bounds))
        assert upper - lower <= tolerance * lower
        assert lower <= math.exp(language.reference().log_phi) * (1 + 1e-12) <= upper * (1 + 2e-12)
        spent[left] = evaluator.counts
    few, many = spent.values()
    assert few.calls <= many.calls + 2 and few.tokens <= 1.15 * many.tokens
    assert few.tokens < many.tokens or language is not FAVOURITES


def test_a_compacted_cache_is_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds outlive the model's cache: paths are evaluated again, in the same call, and the result is the same."""
    small = BoundsTree(LOOP.table, LOOP.budget)
    tight = Evaluator(LOOP.lm, LOOP.settings(), [PROMPT], [small])
    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "MAX_CACHED", 4)
        assert enumerate_together([small], tight, 0.0, max_tokens=100_000, width=2) == [True]
    roomy_tree, roomy = planted(LOOP)
    assert enumerate_together([roomy_tree], roomy, 0.0, max_tokens=100_000, width=2) == [True]
    assert tight.counts.tokens > roomy.counts.tokens
    assert math.exp(small.root.log_upper) == pytest.approx(math.exp(roomy_tree.root.log_upper), rel=1e-12)


def test_a_store_keeps_trees_under_its_bound() -> None:
    store = TreeStore(max_bytes=400_000)
    for i in range(12):
        tree = store.tree(i, WORDS.table, WORDS.budget)
        expand_all(tree, Evaluator(WORDS.lm, WORDS.settings(), [(1, 2, i % 5 + 1)], [tree]))
        store.trim()
        assert store.bytes <= store.max_bytes
    assert 0 < len(store) < 12
    assert store.tree(11, WORDS.table, WORDS.budget) is tree
    store.clear()
    assert len(store) == 0
