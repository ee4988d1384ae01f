"""The bridge between token trees and a language model: expand nodes of many trees in one model call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..lm.model import Evaluation, LanguageModel, ModelCounts
from ..settings import SamplingSettings
from .branches import Branches
from .estimator import Estimate, ProposalPhi
from .law import UNKNOWN
from .run import Prefixes, Run
from .tree import BoundsTree, Node


@final
class Evaluator:
    """Expands the nodes that walks wait for, whatever prompt they belong to, in one model call.

    The bounds of a tree outlive the model's cache: where an ancestor of a wanted node is not in the cache (a tree kept from an
    earlier call, a compacted cache), its path is evaluated again inside the same call.

    Parameters
    ----------
    lm
        What is likely.
    settings
        What the user asked for; makes ``p`` of logits.
    prompts
        Token ids, one prompt per tree.
    trees
        The trees, in the order of the prompts.
    max_cached
        Tree nodes that may stay in the model's cache before it is compacted to the paths in use.
    frontier
        What is asked about the next tokens of every node that gets its law; ``None`` for nobody.
    stream
        A random stream per prompt, for a frontier that draws.
    """

    def __init__(
        self,
        lm: LanguageModel,
        settings: SamplingSettings,
        prompts: Sequence[Sequence[int]],
        trees: Sequence[BoundsTree],
        *,
        max_cached: int = 8192,
        frontier: ProposalPhi | None = None,
        stream: Callable[[int], np.random.Generator] = np.random.default_rng,
    ) -> None:
        self._lm, self._settings, self._prompts = lm, settings, prompts
        self.trees = trees
        self._max_cached = max_cached
        self._forest = lm.trees(prompts)
        self._row = {tree.root: row for row, tree in enumerate(trees)}
        self._handles = dict(self._row)
        self._planted = False
        self._branches = Branches(self._forest)
        self._looked_at = 0  # nodes that an estimator has asked for
        self._estimate: Estimate | None = None
        if frontier is not None and trees:
            self._estimate = frontier.begin(
                Run(
                    lm=lm,
                    table=trees[0].table,
                    settings=settings,
                    prompts=[tuple(prompt) for prompt in prompts],
                    budgets=[tree.budget for tree in trees],
                    branches=self._branches,
                    stream=stream,
                )
            )

    @property
    def counts(self) -> ModelCounts:
        """What the model calls have cost so far."""
        return self._forest.counts

    def expand(self, wanted: Iterable[tuple[BoundsTree, Node]]) -> None:
        """Give every wanted node its law and bring all bounds up to date.

        A node that is wanted below another wanted one (a plan made before its parent's law is known) is fine. The prompts
        themselves are evaluated in the first call.
        """
        pairs = list(dict.fromkeys(wanted))
        if not pairs:
            return
        if not self._planted:
            pairs = list(dict.fromkeys([*((tree, tree.root) for tree in self.trees), *pairs]))
        new = self._missing_paths([node for _, node in pairs])
        if new and self._compact(new):
            new = self._missing_paths([node for _, node in pairs])
        if new or not self._planted:
            self._evaluate(pairs, new)
        changed: dict[BoundsTree, list[Node]] = {}
        for tree, node in pairs:
            changed.setdefault(tree, []).append(node)
        for tree, nodes in changed.items():
            tree.propagate(nodes)

    def _evaluate(self, pairs: Sequence[tuple[BoundsTree, Node]], new: Sequence[Node]) -> None:
        """Evaluate the nodes ``new``, with the prompts where these are not in the cache yet, and learn what is wanted."""
        first = self._forest.next_node
        self._handles.update((node, first + i) for i, node in enumerate(new))
        parents = [self._handles[node.parent] for node in new if node.parent is not None]
        tokens = [node.token for node in new]
        evaluation = self._forest.extend(parents, tokens) if self._planted else self._forest.roots(parents, tokens)
        evaluated = new if self._planted else [*self._row, *new]
        self._planted = True
        self._learn(pairs, evaluation, {node: i for i, node in enumerate(evaluated)})

    def _learn(self, pairs: Iterable[tuple[BoundsTree, Node]], evaluation: Evaluation, index: dict[Node, int]) -> None:
        contexts = (self._context(node) for node in index)
        on_device = self._settings.log_p(evaluation.logits, self._lm.vocabulary, contexts)
        hopes = self._hopes(on_device, list(index))
        log_p = on_device.cpu().numpy()
        # Parents before children: a planned child learns its probability from its parent's law.
        for tree, node in sorted(pairs, key=lambda pair: -pair[1].remaining):
            if node.law is None and node in index:
                tree.expand(node, log_p[index[node]], hopes[index[node]])

    def _hopes(self, log_p: Tensor, nodes: Sequence[Node]) -> Sequence[NDArray[np.floating]]:
        """Return ``h`` of the next tokens of every node, as the frontier's estimator sees it."""
        if self._estimate is None:
            return [UNKNOWN] * len(nodes)
        paths = [node.path() for node in nodes]
        prefixes = Prefixes(
            rows=[self._prompt(node, path) for node, path in zip(nodes, paths, strict=True)],
            nodes=[self._handles[node] for node in nodes],
            states=[node.state for node in nodes],
            remaining=[node.remaining for node in nodes],
            tokens=[[below.token for below in path] for path in paths],
        )
        before = self._forest.next_node
        log_h = self._estimate.add_log_h(log_p.clone(), prefixes) - log_p
        self._looked_at += self._forest.next_node - before
        self._branches.prune(prefixes.nodes)
        # Where p is 0 so is what h would be multiplied by.
        return list(log_h.exp().nan_to_num(nan=0.0, posinf=0.0).cpu().numpy())

    def _prompt(self, node: Node, path: Sequence[Node]) -> int:
        root = path[0].parent if path else node
        assert root is not None
        return self._row[root]

    def _context(self, node: Node) -> tuple[int, ...]:
        path = node.path()
        return (*self._prompts[self._prompt(node, path)], *(below.token for below in path))

    def _missing_paths(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes to evaluate so that ``nodes`` have a law, ancestors first."""
        missing: dict[Node, None] = {}
        for node in nodes:
            if node.law is not None or (node in self._row and not self._planted):
                continue
            chain = [node]
            while chain[-1].parent is not None and chain[-1].parent not in self._handles:
                chain.append(chain[-1].parent)
            missing.update(dict.fromkeys(reversed(chain)))
        return list(missing)

    def _compact(self, new: Sequence[Node]) -> bool:
        """Give back what the paths to ``new`` do not need, where the cache would grow too large; return whether it was done."""
        if len(self._handles) + self._looked_at + len(new) <= self._max_cached:
            return False
        kept = {above for node in new for above in node.path() if above in self._handles} | set(self._row)
        self._forest.compact([self._handles[node] for node in kept])
        self._handles = {node: handle for node, handle in self._handles.items() if node in kept}
        self._looked_at = 0
        return True
