"""The likeliest way on among what is known of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from ..guides.guide import DEAD, DONE
from ..phi.tree.tree import BoundsTree, Node
from .drafter import Draft, Drafter, Drafting, DraftRun, Site
from .written import WrittenDrafting


@final
@dataclass(frozen=True)
class TreeDrafter(Drafter):
    """Proposes the likeliest path through the token trees of earlier calls, and of this one's earlier rounds.

    At every node the token of the highest ``p(v | y) U(yv)``, whether it has a node of its own or not. Samplers without trees of
    bounds follow the texts that have been written so far, the way that was taken most often. Where nothing is known it proposes
    nothing.
    """

    name: ClassVar[str] = "tree"

    def begin(self, run: DraftRun) -> Drafting:
        """See :meth:`Drafter.begin`."""
        return WrittenDrafting(run) if run.trees is None else _KnownPaths(run.trees)


@final
class _KnownPaths(Drafting):
    def __init__(self, trees: Sequence[BoundsTree]) -> None:
        self._trees = trees

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [
            Draft(_path(self._trees[site.row], site.tokens, length))
            for site, length in zip(sites, lengths, strict=True)
        ]


def _path(tree: BoundsTree, tokens: Sequence[int], length: int) -> tuple[int, ...]:
    """Return the likeliest path below the node of ``tokens``."""
    node: Node | None = tree.root
    for token in tokens:
        node = None if node is None else node.children.get(token)
    path: list[int] = []
    while node is not None and node.state not in (DEAD, DONE) and len(path) < length:
        likeliest = _likeliest(node)
        if likeliest is None:
            break
        path.append(likeliest)
        node = node.children.get(likeliest)
    return tuple(path)


def _likeliest(node: Node) -> int | None:
    """Return the likeliest token after an expanded node, ``None`` after others.

    Where the law was evicted, the children alone are left.
    """
    children = {child.token: child.p * child.upper for child in node.children.values()} if node.expanded else {}
    token = max(children, key=children.__getitem__, default=None)
    share = 0.0 if token is None else children[token]
    law = node.law
    if law is not None and law.free.size:
        free = int(law.free.argmax())
        if float(law.free[free]) * np.exp(law.log_scale) > share:
            return int(law.moves.tokens[free])
    return token if share > 0 else None
