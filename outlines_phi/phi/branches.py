"""Token trees of a run that evaluate every prefix once, drafted or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from ..lm.model import TokenTrees
from ..numerics.transfers import Rows

WASTE = 2048  # Nodes that a run may grow by, whatever its walks need, before the others are given back


@final
class Branches:
    """Token trees that walks grow; a prefix that was drafted for one walk, and that another then chooses, costs no second
    evaluation.
    """

    def __init__(self, trees: TokenTrees) -> None:
        self.trees = trees
        # Node and logits of what was drafted and not visited yet.
        self._seen: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self._compacted = 0
        self._planted: tuple[list[int], Rows] | None = None

    @property
    def planted(self) -> bool:
        """True if the prompts have been evaluated."""
        return self._planted is not None

    def plant(self) -> tuple[list[int], Rows]:
        """Return the nodes of the prompts and their ``[P, V]`` logits, evaluated the first time."""
        if self._planted is None:
            self.evaluate(())
        assert self._planted is not None
        return self._planted

    def reach(self, parents: Sequence[int], tokens: Sequence[int]) -> tuple[list[int], Rows]:
        """Return the nodes and the ``[n, V]`` logits of distinct pairs that walks have come to, and forget them.

        One call evaluates the new ones, and new prompts. ``parents`` are nodes, or ``~i`` for that of the ``i``-th pair, which
        stands before it: what lies below another pair counts as drafted, and is kept.
        """
        first, nodes, new = self.trees.next_node, list[int](), list[tuple[int, int]]()
        pairs, seen = list[tuple[int, int]](), dict[int, Tensor]()
        for i, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
            pairs.append((nodes[~parent] if parent < 0 else parent, token))
            if pairs[i] in self._seen:
                node, seen[i] = self._seen[pairs[i]]
            else:
                node = first + len(new)
                new.append(pairs[i])
            nodes.append(node)
        logits = self.evaluate(new) if new or self._planted is None else self.plant()[1][:0]
        if seen:
            rest = iter(logits.each())
            logits = logits.of([seen[i] if i in seen else next(rest) for i in range(len(pairs))])
        for i, parent in enumerate(parents):
            if parent < 0:
                self._seen[pairs[i]] = nodes[i], logits.matrix[logits.places[i]]
            else:
                self._seen.pop(pairs[i], None)
        return nodes, logits

    def evaluate(self, pairs: Sequence[tuple[int, int]]) -> Rows:
        """Return the logits of new nodes, ``[n, V]``; the prompts are evaluated with the first ones."""
        parents, tokens = [parent for parent, _ in pairs], [token for _, token in pairs]
        if self._planted is not None:
            return self.trees.extend(parents, tokens).rows
        evaluation = self.trees.roots(parents, tokens)
        prompts = len(evaluation.nodes) - len(pairs)
        kept = evaluation.rows[:prompts]
        # A part alone would hold the memory of the whole.
        self._planted = list(evaluation.nodes[:prompts]), kept.of(kept.each()) if pairs else kept
        return evaluation.rows[prompts:]

    def prune(self, nodes: Iterable[int], wanted: Iterable[tuple[int, int]] = ()) -> None:
        """Forget the drafts below ``nodes``, but for the pairs that the walk visits next."""
        below, visited = set(nodes), set(wanted)
        kept = [pair for pair in self._seen if pair[0] in below and pair in visited]
        # A row alone would hold the memory of all that was evaluated with it.
        logits = torch.stack([self._seen[pair][1] for pair in kept]) if kept else ()
        seen = {pair: entry for pair, entry in self._seen.items() if pair[0] not in below}
        self._seen = seen | {pair: (self._seen[pair][0], row) for pair, row in zip(kept, logits, strict=True)}

    def compact(self, nodes: Iterable[int]) -> None:
        """Give back the memory of every node that is neither in ``nodes``, waiting to be visited, nor above one of these."""
        self.trees.compact([*nodes, *(node for node, _ in self._seen.values())])
        self._compacted = self.trees.next_node

    def tidy(self, depths: Mapping[int, int]) -> None:
        """Compact once the drafts in vain outweigh the paths to the nodes, given with their depths."""
        if self.trees.next_node - self._compacted > max(WASTE, sum(depths.values())):
            self.compact(depths)
