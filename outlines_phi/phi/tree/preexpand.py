"""Expansion of short languages in one or two model calls (theory.md, section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from ...guides.fsm import FSMGuide
from ...guides.guide import DEAD, DONE
from ...guides.table import Table
from ...vocabulary.trie import fewest_tokens
from .best_first import FREE, is_decided
from .evaluator import Evaluator
from .tree import BoundsTree, Node

FINITE_PREFIXES = 512
"""A language of at most this many live prefixes is short: where its usual tokenizations are not enough, it is expanded whole."""

CHEAP = 64  # A call of so many tokens costs little more than one of `FREE` where the machine waits for memory, not for arithmetic
BYTES = 2048  # A language has few texts where all of them together have at most so many bytes


def is_short(table: Table, state: int, remaining: int, limit: int) -> bool:
    """Return whether at most ``limit`` live prefixes, ``state`` included, lead from it to members."""
    count, frontier = 1, [(state, remaining)]
    while frontier:
        below: list[tuple[int, int]] = []
        for at, left in frontier:
            targets = table.moves(at, left).targets
            inner = targets[targets != DONE]
            count += inner.size
            if count > limit:
                return False
            below.extend((int(target), left - 1) for target in inner)
        frontier = below
    return True


def live_prefixes(tree: BoundsTree, limit: int) -> list[Node] | None:
    """Return every live prefix that is not a member, planned as a node of ``tree``; ``None`` if there are more than ``limit``.

    The prefixes are known from the guide alone, so all of them fit one model call. The tree is untouched where there are too many.
    Below a node whose distribution was dropped there are those that it has: another child could not be given its probability.
    """
    table = tree.table
    if not is_short(table, tree.root.state, tree.root.remaining, limit):
        return None
    nodes = [tree.root]
    for node in nodes:
        if node.expanded and node.distribution is None:
            nodes += (child for child in node.children.values() if child.state not in (DEAD, DONE))
            continue
        moves = table.moves(node.state, node.remaining)
        for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
            if target != DONE and (child := tree.child(node, token, target)).state != DEAD:
                nodes.append(child)
    return nodes


def expand_finite(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = FINITE_PREFIXES) -> None:
    """Expand every tree of at most ``limit`` live prefixes whole, all in one call of ``evaluator``."""
    open_ = [
        (tree, live_prefixes(tree, limit)) for tree in trees if not tree.root.expanded or tree.root.log_gap > -math.inf
    ]
    evaluator.expand((tree, node) for tree, nodes in open_ for node in nodes or () if not node.expanded)


def expand_short(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = FINITE_PREFIXES) -> None:
    """Expand what walks over trees of short languages come to, in at most two calls: one now, and one if need be.

    A language of at most :data:`CHEAP` live prefixes is expanded whole. Of a longer one, :func:`usual_tokenizations` are, where
    there are such: nearly all that the model gives to the language, where it was asked for it. The other prefixes, mostly of
    tokenizations that no tokenizer writes, follow when a walk comes to one of them, all together where they are no more than
    ``limit``. Where no such tokenizations are known, a language of at most ``limit`` live prefixes is expanded whole.

    For walks alone, which find out by themselves what is expanded.
    """
    wanted: list[tuple[BoundsTree, Node]] = []
    begun = []
    for tree in trees:
        fresh, nodes = not tree.root.expanded, None
        if fresh:
            nodes = live_prefixes(tree, min(limit, CHEAP))
        if nodes is None and limit and (tokenizations := usual_tokenizations(tree.table, tree.root.state)):
            begun.append(tree)
            nodes = _nodes(tree, tokenizations) if fresh else []
        if nodes is None and fresh:
            nodes = live_prefixes(tree, limit)
        wanted += [(tree, node) for node in nodes or ()]
    evaluator.expand(wanted)
    for tree in begun:
        evaluator.expand_later(tree, partial(live_prefixes, tree, limit))


def expand_towards(
    trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = FINITE_PREFIXES, *, tolerance: float
) -> None:
    """Expand what an enumeration to ``tolerance`` begins with, in at most two calls.

    The :func:`usual_tokenizations` of languages that have some, where anything may stay undecided; then all prefixes of those
    languages that are not decided by them and have at most ``limit``.
    """
    if tolerance > 0:
        expand_usual(trees, evaluator, limit)
    expand_finite([tree for tree in trees if not is_decided(tree, tolerance)], evaluator, limit)


def expand_usual(trees: Sequence[BoundsTree], evaluator: Evaluator, limit: int = FINITE_PREFIXES) -> None:
    """Expand the :func:`usual_tokenizations` of trees of which nothing is known yet, all in one call.

    These decide nearly everything where the model was asked for the language. Left alone are languages of at most :data:`CHEAP`
    live prefixes, which are as well expanded whole, and those whose usual tokenizations have more than ``limit`` prefixes.
    """
    wanted: list[tuple[BoundsTree, Node]] = []
    for tree in trees:
        root = tree.root
        if not root.expanded and not is_short(tree.table, root.state, root.remaining, CHEAP):
            tokenizations = usual_tokenizations(tree.table, root.state)
            # Counted before they become nodes: a node below one that stays unexpanded would have no probability.
            if 0 < len(_prefixes(tokenizations)) <= limit:
                wanted += ((tree, node) for node in _nodes(tree, tokenizations))
    evaluator.expand(wanted)


def usual_tokenizations(table: Table, state: int) -> tuple[tuple[int, ...], ...]:
    """Return the texts of a language in the fewest tokens each, where these have few prefixes, else nothing.

    Few are :data:`FREE`, and :data:`CHEAP` where the language has at most :data:`FINITE_PREFIXES` live prefixes in all. Nothing
    is known where the guide has no byte automaton, or ``state`` is not the one that it begins in.
    """
    guide = table.guide
    if not isinstance(guide, FSMGuide) or guide.automaton is None or state != guide.start:
        return ()
    automaton = guide.automaton

    def build() -> tuple[tuple[int, ...], ...]:
        texts = automaton.members_up_to(CHEAP, BYTES) or []
        if sum(map(len, texts)) > BYTES:
            return ()
        tokenizations = tuple(fewest_tokens(table.vocabulary, text) for text in texts)
        longest = max(map(len, texts), default=0) + 1
        few = CHEAP if is_short(table, state, longest, FINITE_PREFIXES) else FREE
        return tokenizations if len(_prefixes(tokenizations)) <= few else ()

    return table.keep("usual tokenizations", state, build, lambda tokenizations: sum(map(len, tokenizations)) * 64)


def _prefixes(tokenizations: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {tokens[:end] for tokens in tokenizations for end in range(1, len(tokens) + 1)}


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
