"""Short languages: their usual tokenizations are expanded with the prompt, then the likeliest open prefixes (theory.md, section 5.2)."""

from __future__ import annotations

from collections.abc import Sequence

from ...guides.guide import DEAD, DONE
from ...guides.guide_texts import list_texts
from ...vocabulary.trie import merged_tokens
from .best_first import BestFirst
from .evaluator import Evaluator
from .tree import BoundsTree, Node

SHORT = 512  # A language is short where its texts have at most so many prefixes, in bytes
USUAL = 64  # Usual tokenizations of more prefixes than this are left to the walks

BESIDE = 8  # A model call of so many tokens more costs less than a second call
OPEN = 1 / 16  # What may stay undecided beside a walk, in shares of ``Lo``: few walks come to it


def expand_usual(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = USUAL) -> None:
    """Expand the :func:`usual_tokenizations` of trees of which nothing is known yet, in one call: of each at most ``limit`` prefixes.

    These decide nearly everything where the model was asked for the language: the other prefixes are mostly of tokenizations that
    no tokenizer writes.
    """
    wanted: list[tuple[BoundsTree, Node]] = []
    for tree in trees:
        tokenizations = () if tree.root.expanded else usual_tokenizations(tree) or ()
        # Counted before they become nodes: a node below one that stays unexpanded would have no probability.
        if (
            0
            < len({tokens[:end] for tokens in tokenizations for end in range(1, len(tokens) + 1)})
            <= min(limit, USUAL)
        ):
            wanted += ((tree, node) for node in _nodes(tree, tokenizations))
    evaluator.expand(wanted)


def expand_for_walks(trees: Sequence[BoundsTree], evaluator: Evaluator) -> None:
    """Expand as :func:`expand_usual`, and have a walk that comes to another prefix of a short language expand likely ones beside it.

    For walks alone, which find out by themselves what is expanded.
    """
    expand_usual(trees, evaluator)
    for tree in trees:
        if usual_tokenizations(tree) is not None:
            evaluator.expand_beside(tree, lambda tree=tree: BestFirst(tree, OPEN, BESIDE).advance())


def usual_tokenizations(tree: BoundsTree) -> tuple[tuple[int, ...], ...] | None:
    """Return the texts of a short language in the fewest tokens each; ``None`` where it is not short."""
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
