"""Token trees of models whose forward pass changes with the length: sequences of different regions never share a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..forest import Forest, grown
from ..model import Evaluation, ModelCounts, TokenTrees
from .forward import Forward
from .selfcheck import ROADS, road


@final
class RegionTrees(TokenTrees):
    """Token trees over trees of their own for each region of lengths.

    A region ends at a border that separates (:class:`~outlines_phi.lm.transformers.borders.Borders`), and at one behind which
    another of :data:`~outlines_phi.lm.transformers.selfcheck.ROADS` is needed, which is tried when a sequence first comes to it. A
    node that crosses the end of a region is evaluated anew, with all that stands before it, as a prompt of new trees.
    """

    def __init__(self, forward: Forward, prompts: Sequence[Sequence[int]]) -> None:
        self.counts, self._forward = ModelCounts(), forward
        self._forest = Forest(prompts, forward.size, forward.max_length)
        self._parts: list[TokenTrees | None] = []
        self._region_of: list[int] = []  # of each part
        self._part = np.full(len(self._forest), -1, dtype=np.int64)  # per handle: its trees,
        self._inner = np.zeros(len(self._forest), dtype=np.int64)  # and its handle there
        self._ends: list[int] = []  # the lengths at which regions end,
        self._ahead = list(forward.borders.all)  # and those that no sequence has crossed yet
        self._roads = [road(forward, 0)]  # of each region

    @property
    def next_node(self) -> int:
        return len(self._forest)

    def roots(self, parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> Evaluation:
        nodes = self._forest.plant(parents, tokens)
        return Evaluation(nodes, self._evaluate(np.arange(nodes.stop)))

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
        nodes, parts = self._forest.add(parents, tokens), len(self._parts)
        if not nodes:
            empty = torch.empty(0, self._forward.size, dtype=self._forward.dtype, device=self._forward.device)
            return Evaluation(nodes, empty)
        try:
            return Evaluation(nodes, self._evaluate(np.arange(nodes.start, nodes.stop)))
        except BaseException:
            del self._parts[parts:], self._region_of[parts:]
            self._forest.withdraw(nodes)
            raise

    def compact(self, keep: Sequence[int]) -> None:
        live = self._forest.retain(keep)
        for index, part in enumerate(self._parts):
            mine = live[self._part[live] == index]
            if part is not None and len(mine):
                part.compact(self._inner[mine].tolist())
            else:
                self._parts[index] = None

    def _evaluate(self, nodes: NDArray[np.int64]) -> Tensor:
        """Evaluate new nodes (and prompts, the first time), each in the trees of its region; return their logits ``[n, V]``."""
        forest = self._forest
        lengths = forest.prompt_lengths[forest.row[nodes]] + forest.depth[nodes]
        regions = self._regions(lengths)
        self._part, self._inner = grown(self._part, len(forest)), grown(self._inner, len(forest))
        old, begun = len(self._parts), dict[int, int]()  # by region
        prompts: dict[int, list[int]] = {}
        grown_by: dict[int, list[int]] = {}
        for node, region in zip(nodes.tolist(), regions.tolist(), strict=True):
            parent = int(forest.parent[node])
            part = int(self._part[parent]) if parent >= 0 else -1
            if part >= 0 and self._region_of[part] == region:
                grown_by.setdefault(part, []).append(node)
            else:  # a prompt, or a node beyond the end of its parent's region
                if region not in begun:
                    begun[region] = len(self._region_of)
                    self._region_of.append(region)
                part = begun[region]
                prompts.setdefault(part, []).append(node)
            self._part[node] = part
        self._parts += [
            ROADS[self._roads[region]](self._forward, [forest.sequence(node) for node in prompts[part]])
            for region, part in begun.items()
        ]
        logits: Tensor | None = None
        for index in sorted(prompts.keys() | grown_by.keys()):
            trees = self._parts[index]
            assert trees is not None
            new = grown_by.get(index, [])
            answered = [*prompts.get(index, []), *new]
            first = 0 if index >= old else trees.next_node
            self._inner[answered] = first + np.arange(len(answered))
            before = replace(trees.counts)
            pairs = self._inner[forest.parent[new]].tolist(), forest.token[new].tolist()
            answer = (trees.roots(*pairs) if index >= old else trees.extend(*pairs)).logits
            # Generated tokens that are evaluated as those of a prompt count as generated.
            written = int(forest.depth[prompts.get(index, [])].sum())
            self.counts.calls += trees.counts.calls - before.calls
            self.counts.prompt_tokens += trees.counts.prompt_tokens - before.prompt_tokens - written
            self.counts.tokens += trees.counts.tokens - before.tokens + written
            if answered == nodes.tolist():
                return answer
            if logits is None:
                logits = answer.new_empty(len(nodes), answer.shape[1])
            places = np.searchsorted(nodes, answered)
            logits[torch.from_numpy(places).to(answer.device)] = answer
        assert logits is not None
        return logits

    def _regions(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the region of sequences of ``lengths`` tokens, after trials at the borders that are crossed for the first time."""
        while self._ahead and lengths.max() > self._ahead[0]:
            border = self._ahead[0]
            behind = road(self._forward, border + 1)
            self._ahead.pop(0)
            if border in self._forward.borders.separate or behind != self._roads[-1]:
                self._ends.append(border)
                self._roads.append(behind)
        return np.searchsorted(self._ends, lengths)
