"""Expansion of short languages: usual tokenizations with the prompt, then the likeliest prefixes (theory.md, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...guides.guide import DEAD, DONE
from ...guides.guide_texts import list_texts
from ...vocabulary.trie import merged_tokens
from .best_first import BestFirst
from .evaluator import Evaluator
from .tree import BoundsTree, Node

SHORT = 512  # A language is short where its texts have at most so many prefixes, in bytes
USUAL = 32  # Where usual tokenizations have more prefixes than this, a draw comes to few of them

BESIDE = 6  # A model call of so many tokens more costs less than a second call
OPEN = 1 / 16  # What may stay undecided beside a walk, in shares of ``Lo``: few walks come to it


def expand_usual(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = SHORT) -> None:
    """Expand the :func:`usual_tokenizations` of trees of which nothing is known yet, in one call, where they are few enough.

    These decide nearly everything where the model was asked for the language: other prefixes are of tokenizations that no
    tokenizer writes. Few enough are at most ``limit`` prefixes of a tree.
    """
    wanted: list[tuple[BoundsTree, Node]] = []
    for tree in trees:
        tokenizations = () if tree.root.expanded else usual_tokenizations(tree) or ()
        # Counted before they become nodes: a node below one that stays unexpanded would have no probability.
        prefixes = {tokens[:end] for tokens in tokenizations for end in range(1, len(tokens) + 1)}
        if 0 < len(prefixes) <= limit:
            wanted += ((tree, node) for node in _nodes(tree, tokenizations))
    evaluator.expand(wanted)


def expand_for_walks(trees: Sequence[BoundsTree], evaluator: Evaluator) -> None:
    """Expand the likely nodes of walks over short languages: usual tokenizations, and likely prefixes beside any other one.

    For walks alone, which find out by themselves what is expanded.
    """
    expand_usual(trees, evaluator, USUAL)
    for tree in trees:
        if usual_tokenizations(tree) is not None:
            evaluator.expand_beside(tree, partial(likeliest, tree))


def likeliest(tree: BoundsTree) -> list[Node]:
    """Return the likeliest open prefixes, at most :data:`BESIDE`; none where little is open."""
    return BestFirst(tree, OPEN, BESIDE).advance()


def usual_tokenizations(tree: BoundsTree) -> tuple[tuple[int, ...], ...] | None:
    """Return the texts of a short language in their :func:`merged_tokens`; ``None`` where it is not short."""
    table, state, budget = tree.table, tree.root.state, min(tree.budget, SHORT)

    def build() -> tuple[tuple[int, ...], ...] | None:
        texts = list_texts(table, state, budget, SHORT)
        return None if texts is None else tuple(merged_tokens(table.vocabulary, text) for text in texts)

    return table.keep(("usual tokenizations", budget), state, build, lambda found: 64 * sum(map(len, found or ())))


def _nodes(tree: BoundsTree, tokenizations: Sequence[Sequence[int]]) -> list[Node]:
    """Return the nodes of some tokenizations, the root first, as far as guide, budget and constraint go."""
    nodes = {tree.root: None}
    for tokens in tokenizations:
        node = tree.root
        for token in tokens:
            target = tree.target(node, token)
            if target in (DEAD, DONE) or (node := tree.child(node, token, target)).state == DEAD:
                break
            nodes[node] = None
    return list(nodes)
