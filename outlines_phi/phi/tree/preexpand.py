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
FIRST = 16  # A draw comes to one of the shortest of them at least, and so many cost less than a second call

BESIDE = 4  # A model call of so many tokens more costs less than a second call
OPEN = 1 / 16  # What may stay undecided beside a walk, in shares of ``Lo``: few walks come to it


def expand_usual(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = SHORT, first: int = 0) -> None:
    """Expand the :func:`usual_prefixes` of trees of which nothing is known yet, in one call, where they are few enough.

    These decide nearly everything where the model was asked for the language: other prefixes are of tokenizations that no
    tokenizer writes. Few enough are at most ``limit`` prefixes of a tree; of more, the shortest, at most ``first``.
    """
    wanted: list[tuple[BoundsTree, Node]] = []
    for tree in trees:
        prefixes = () if tree.root.expanded else usual_prefixes(tree) or ()
        if len(prefixes) > limit:
            lengths = [len(tokens) for tokens in prefixes]
            # Whole lengths alone: a prefix has no probability before all that it begins with is expanded.
            prefixes = prefixes[: lengths.index(lengths[first])]
        if prefixes:
            wanted += ((tree, node) for node in _nodes(tree, prefixes))
    evaluator.expand(wanted)


def expand_for_walks(trees: Sequence[BoundsTree], evaluator: Evaluator) -> None:
    """Expand the likely nodes of walks over short languages: usual tokenizations, and likely prefixes beside any other one.

    For walks alone, which find out by themselves what is expanded.
    """
    expand_usual(trees, evaluator, USUAL, FIRST)
    for tree in trees:
        if usual_prefixes(tree) is not None:
            evaluator.expand_beside(tree, partial(likeliest, tree))


def likeliest(tree: BoundsTree) -> list[Node]:
    """Return the likeliest open prefixes, at most :data:`BESIDE`; none where little is open."""
    return BestFirst(tree, OPEN, BESIDE).advance()


def usual_prefixes(tree: BoundsTree) -> tuple[tuple[int, ...], ...] | None:
    """Return the prefixes of the texts of a short language in their :func:`merged_tokens`, by length; ``None`` for others.

    The first byte of each text is one as well: it begins what a model would write in its place, so its ``p(y)`` is far more than
    what comes of it, and bounds that do not know are far apart.
    """
    table, state, budget = tree.table, tree.root.state, min(tree.budget, SHORT)

    def build() -> tuple[tuple[int, ...], ...] | None:
        texts = list_texts(table, state, budget, SHORT)
        if texts is None:
            return None
        written = [merged_tokens(table.vocabulary, part) for text in texts for part in (text, text[:1])]
        prefixes = {tokens[:end] for tokens in written for end in range(1, len(tokens) + 1)}
        return tuple(sorted(prefixes, key=lambda tokens: (len(tokens), tokens)))

    return table.keep(("usual prefixes", budget), state, build, lambda found: 64 * sum(map(len, found or ())))


def _nodes(tree: BoundsTree, prefixes: Sequence[Sequence[int]]) -> list[Node]:
    """Return the nodes of some prefixes, the root first, as far as guide, budget and constraint go."""
    nodes: dict[Sequence[int], Node] = {(): tree.root}
    for tokens in prefixes:
        before = nodes.get(tokens[:-1])
        if before is not None and (target := tree.target(before, tokens[-1])) not in (DEAD, DONE):
            child = tree.child(before, tokens[-1], target)
            if child.state != DEAD:
                nodes[tokens] = child
    return list(nodes.values())
