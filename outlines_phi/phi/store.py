"""Token trees kept between calls, under one memory bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import final

from ..errors import UnsupportedError
from ..guides.table import Table
from .tree import BoundsTree


@final
class TreeStore:
    """The trees of earlier calls, by everything that their law depends on.

    A call without a seed starts from what is known; the bounds only save model calls, the law of the draws is the same.

    Parameters
    ----------
    max_bytes
        Bound on the memory of all trees; the least recently used goes first, and a single tree that is too large drops
        its least recently visited laws and subtrees.
    """

    def __init__(self, max_bytes: int = 2**30) -> None:
        if max_bytes < 0:
            raise UnsupportedError(f"A memory bound of {max_bytes} bytes was given; expected 0 or more.")
        self.max_bytes = max_bytes
        self._trees: OrderedDict[Hashable, BoundsTree] = OrderedDict()

    def __len__(self) -> int:
        return len(self._trees)

    @property
    def bytes(self) -> int:
        """Memory held by all trees and their tables, as counted."""
        tables = {tree.table for tree in self._trees.values()}
        return sum(tree.bytes for tree in self._trees.values()) + sum(table.bytes for table in tables)

    def tree(self, key: Hashable, table: Table, budget: int) -> BoundsTree:
        """Return the tree kept under ``key``, or a new one that is kept from now on."""
        if key not in self._trees:
            self._trees[key] = BoundsTree(table, budget)
        self._trees.move_to_end(key)
        return self._trees[key]

    def trim(self) -> None:
        """Bring the store under its bound: whole trees first, the least recently used one leading, then parts of the last."""
        while len(self._trees) > 1 and self.bytes > self.max_bytes:
            self._trees.popitem(last=False)
        for tree in self._trees.values():
            tree.evict(self.max_bytes)

    def discard(self, trees: Iterable[BoundsTree]) -> None:
        """Forget ``trees``, which an interrupted call may have left half updated."""
        dropped = set(trees)
        for key in [key for key, tree in self._trees.items() if tree in dropped]:
            del self._trees[key]

    def clear(self) -> None:
        """Forget every tree."""
        self._trees.clear()
