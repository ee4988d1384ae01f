"""The bridge between token trees and a language model: expand nodes of many trees in one model call. Trees kept between calls."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import partial, wraps
from itertools import chain, islice
from typing import ParamSpec, TypeAlias, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import BudgetError, EmptyLanguageError
from ...guides.table import Table
from ...lm.model import LanguageModel, ModelCounts
from ...numerics.checks import check_counts
from ...numerics.distributions import Exchange, Rows, add_rows, draw_ahead, together
from ...settings import SamplingSettings
from ..branches import Branch, Branches
from ..constraint import Constraint
from ..state_values import KeptValues
from .distribution import TokensAhead
from .tree import BoundsTree, Node

MANY = 4096
"""Of a node with more live tokens than this some are drawn ahead, where that will do: all others are never read from the device."""

AHEAD = 16
"""Tokens drawn ahead of a node. One whose tokens are used up is evaluated a second time, and then held whole."""


@final
class WideNodes:
    """Nodes of one model call whose distributions stay on the device.

    ``nodes``: The nodes, with the random numbers that the tokens drawn ahead of each take.
    ``rows``: The rows of the answer that are theirs.
    ``log_p``: ``log p``, ``[n, V]``, of the logits of some of the nodes.
    ``top``: How many of the likeliest tokens are read beside them.
    """

    def __init__(
        self,
        table: Table,
        nodes: Mapping[Node, NDArray[np.float64]],
        rows: Sequence[int],
        log_p: Callable[[Sequence[Node], Tensor], Tensor],
        exchange: Exchange,
        top: int,
    ) -> None:
        self.nodes, self._nodes, self._top = nodes, list(nodes), min(top, exchange.answer.matrix.shape[-1])
        self._table, self._log_p, self._logits = table, log_p, exchange.rows(rows)
        self._ends = [table.can_end(node.state, node.remaining) for node in self._nodes]
        # The tokens of each node whose probability is asked for by name: its children, and the end.
        eos, pairs = table.vocabulary.eos_ids[0], zip(self._nodes, self._ends, strict=True)
        self._named = [list(dict.fromkeys([*node.children, *([eos] if end else [])])) for node, end in pairs]
        self._few, size = together(exchange.answer.matrix), exchange.answer.matrix.shape[-1]
        at = [place % self._few * size + token for place, named in enumerate(self._named) for token in named]
        self._sent = exchange.send(np.array(at, dtype=np.int64), np.array([*nodes.values()]).reshape(-1, AHEAD))

    def draw(self) -> Tensor:
        """Return the scores to be read of the nodes, on the device."""
        if not self.nodes:
            return self._logits().new_empty(0, dtype=torch.float64)
        at, quantiles = self._sent()
        blocks = [slice(start, start + self._few) for start in range(0, len(self._nodes), self._few)]
        taken = at.split([sum(map(len, self._named[here])) for here in blocks])
        named, drawn, most = list[Tensor](), list[Tensor](), list[Tensor]()
        for here, where in zip(blocks, taken, strict=True):
            log_p = self._log_p(self._nodes[here], self._logits(here))
            if self._top:
                most.append(torch.cat([each.double() for each in log_p.topk(self._top)], -1).view(-1))
            scores = self._masked(here, log_p)
            named.append(scores.view(-1)[where].double())
            scores.view(-1)[where] = -math.inf
            drawn.append(draw_ahead(scores, quantiles[here]).view(-1))
        return torch.cat(named + drawn + most)

    def tokens(self, read: Sequence[float]) -> Iterator[TokensAhead]:
        """Yield the tokens drawn ahead of each node, given what was read of all of them."""
        log_named, drawn, k = iter(read), read[sum(map(len, self._named)) :], self._top
        most = drawn[len(self._nodes) * (2 * AHEAD + 1) :]
        for place, (node, end, named) in enumerate(zip(self._nodes, self._ends, self._named, strict=True)):
            row = drawn[place * (2 * AHEAD + 1) : (place + 1) * (2 * AHEAD + 1)]
            top = most[place * 2 * k : (place + 1) * 2 * k]
            yield TokensAhead(
                dict(zip(named, log_named, strict=False)),
                {int(token): x for token, x in zip(row[:AHEAD], row[AHEAD:-1], strict=True) if x > -math.inf},
                row[-1],
                can_end=end,
                ending=self._table.guide.open and node.remaining <= 1,
                top=dict(zip(map(int, top[k:]), top[:k], strict=True)) if k else None,
            )

    def _masked(self, part: slice, log_p: Tensor) -> Tensor:
        """Return ``log_p``, ``[n, V]``, with ``-inf`` where a token is not live."""
        biases = [self._table.bias(node.state, node.remaining, log_p.device) for node in self._nodes[part]]
        return add_rows(log_p, biases, out=log_p)


Pair: TypeAlias = tuple[BoundsTree, Node]

Foresight: TypeAlias = Callable[[Sequence[Pair]], Iterable[Pair]]
"""A guess of the nodes that walks will come to after those that they wait for: nodes below these, or elsewhere."""

MAX_CACHED = 8192
"""Tree nodes that may stay in the model's cache before it is compacted to the paths in use, or twice what these took then."""


@final
class Evaluator:
    """Expands the nodes that walks wait for, whatever prompt they belong to, in one model call.

    The bounds of a tree outlive the model's cache: where an ancestor of a wanted node is not in the cache (a tree kept from an
    earlier call, a compacted cache), its path is evaluated again inside the same call.

    ``trees``: in the order of the prompts.
    ``ahead``: A random stream per prompt, for tokens drawn ahead of walks that need nothing else; ``None`` where every distribution
        is to be whole.
    ``top``: How many of the likeliest tokens of each distribution are kept for accounts.
    """

    def __init__(
        self,
        lm: LanguageModel,
        settings: SamplingSettings,
        prompts: Sequence[Sequence[int]],
        trees: Sequence[BoundsTree],
        *,
        ahead: Callable[[int], np.random.Generator] | None = None,
        top: int = 0,
    ) -> None:
        self._lm, self._settings, self._prompts, self._top = lm, settings, prompts, top
        self.trees = trees
        self._row = {tree.root: row for row, tree in enumerate(trees)}
        self.branches = Branches(lm, prompts)
        self._texts = self._roots()
        self._compacted, self._compacted_at = 0, 0  # nodes that the last compaction kept, and the node that came next
        self._streams = None if ahead is None else list(map(ahead, range(len(trees))))

    @property
    def counts(self) -> ModelCounts:
        """The cost of the model calls so far."""
        return self.branches.trees.counts if self.branches.planted else ModelCounts()

    def _roots(self) -> dict[Node, Branch]:
        return {root: Branch(-1, -1, self.branches.roots[row]) for root, row in self._row.items()}

    def _text_of(self, node: Node) -> Branch:
        """Return the prefix of ``node``, which is below one that is held."""
        if node not in self._texts:
            assert node.parent is not None
            self._texts[node] = self._text_of(node.parent).foreseen(node.token)
        return self._texts[node]

    def hand_over(self, most: int) -> dict[int, Branch]:
        """Give up the prefixes that the model holds; return those of the prompts, by row, where they have been evaluated.

        So have the ``most`` first ones of each tree, parents first: ``answer`` is ``log p[V]`` of the live tokens.
        """
        texts, self._texts = self._texts, self._roots()
        for tree in self.trees if self.branches.planted else ():
            held = (node for node in tree.walk() if node.distribution is not None and node in texts)
            for node in islice(held, most):
                assert node.distribution is not None
                row = np.full(len(tree.table.vocabulary), -np.inf, dtype=np.float32)
                for token, log_p in (node.distribution.top or {}).items():
                    row[token] = log_p
                free = node.distribution.log_free
                row[node.distribution.moves.tokens[: free.size]] = free + node.distribution.log_scale
                for child in node.children.values():
                    row[child.token] = child.log_step
                texts[node].answer = row
        return {row: texts[root] for root, row in self._row.items() if texts[root].answer is not None}

    def expand(self, wanted: Iterable[Pair], foresight: Foresight | None = None) -> None:
        """Give every wanted node its distribution and bring all bounds up to date.

        A node that is wanted below another wanted one (a plan made before its parent's distribution is known) is fine. The prompts
        themselves are evaluated in the first call.

        ``foresight`` has the nodes that it tells of expanded in the same call. A walk that then chooses by random numbers of its
        own, of which foresight knows nothing, and finds itself at one of them needs no further call. Those that no walk comes to
        are expanded nodes like others, and bounds may be refreshed at any time where walks have a coin for it (theory.md, sections
        5.3 and 7.4). It is for walks alone: a search that keeps a list of what is open has to be told of every node that is
        expanded.
        """
        pairs = list(dict.fromkeys(wanted))
        if not pairs:
            return
        asked_for = set(pairs)
        ahead = [pair for pair in dict.fromkeys(foresight(pairs) if foresight else ()) if pair not in asked_for]
        if not self.branches.planted:
            pairs = list(dict.fromkeys([*((tree, tree.root) for tree in self.trees), *pairs]))
        pairs += ahead
        new = self._missing_paths([node for _, node in pairs])
        if new and self._compact(new):
            new = self._missing_paths([node for _, node in pairs])
        if new or not self.branches.planted:
            self._evaluate(pairs, new, {node for _, node in ahead})
        changed: dict[BoundsTree, list[Node]] = {}
        for tree, node in pairs:
            changed.setdefault(tree, []).append(node)
        for tree, nodes in changed.items():
            tree.propagate(nodes)

    def confirm(self) -> None:
        """Evaluate the prompts of trees that earlier calls have grown, if an opaque model was not asked yet: they may be stale."""
        if (
            not self.branches.planted
            and self._lm.opaque
            and any(tree.root.distribution is not None for tree in self.trees)
        ):
            self._evaluate((), (), frozenset())

    def _evaluate(self, pairs: Sequence[tuple[BoundsTree, Node]], new: Sequence[Node], ahead: Set[Node]) -> None:
        """Evaluate the nodes ``new``, with the prompts where these are not in the cache yet, and learn what is wanted."""
        evaluated = [*(() if self.branches.planted else self._row), *new]
        rows = self.branches.reach([self._text_of(node) for node in evaluated])
        self._learn(pairs, rows, {node: i for i, node in enumerate(evaluated)}, ahead)

    def _learn(
        self,
        pairs: Iterable[tuple[BoundsTree, Node]],
        rows: Rows,
        index: dict[Node, int],
        ahead: Set[Node],
    ) -> None:
        # Parents before children: a planned child learns its probability from its parent's distribution. Neighbours of one state
        # are treated together.
        wanted = sorted(pairs, key=lambda pair: (-pair[1].remaining, pair[1].state))
        wanted = [pair for pair in wanted if pair[1].distribution is None and pair[1] in index]
        exchange = Exchange(rows)
        wide = self._wide([node for _, node in wanted], index, exchange)
        # In the first call: trees of earlier calls have the distribution of their prompt.
        known = [node for node in index.keys() & self._row.keys() if node.distribution is not None]
        whole = [node for _, node in wanted if node not in wide.nodes]
        logits_of_known = exchange.rows([index[node] for node in known])
        logits_of = exchange.rows([index[node] for node in whole])

        def distributions(part: slice) -> Tensor:
            """Return ``log p`` of the next tokens of some nodes."""
            return self._log_p(whole[part], logits_of(part))

        few = together(rows.matrix)
        first, *later = [slice(start, start + few) for start in range(0, max(1, len(whole)), few)]
        # All that a call reads is read at once, but for distributions beyond what memory holds at a time.
        exchange.tell(partial(self._compare, known), self._log_p(known, logits_of_known()))
        drawn_ahead, found = exchange.read(wide.draw(), distributions(first))
        drawn = dict(zip(wide.nodes, wide.tokens(drawn_ahead.tolist()), strict=True))
        unread = chain(found, chain.from_iterable(exchange.read(distributions(part))[0] for part in later))
        for tree, node in wanted:
            if node in drawn:
                tree.learn(node, drawn[node], ahead=node in ahead)
            else:
                tree.expand(node, next(unread), ahead=node in ahead, top=self._top)

    def _compare(self, roots: Sequence[Node], found: NDArray[np.floating]) -> None:
        """Refuse kept trees with other distributions at their prompts than those found."""
        for root, log_p in zip(roots, found, strict=True):
            if self.trees[self._row[root]].drift(log_p) > self._lm.rounding:
                raise StaleTreesError

    def _wide(self, nodes: Sequence[Node], index: dict[Node, int], exchange: Exchange) -> WideNodes:
        """Return those of ``nodes`` of which tokens are drawn ahead, neighbours of one state together."""
        table, uniforms = self.trees[0].table, dict[Node, NDArray[np.float64]]()
        if self._streams is not None:
            # New nodes but the prompts; random numbers follow the order of the call.
            new = [node for node in nodes if node.parent is not None and not node.expanded]
            for node in sorted(new, key=index.__getitem__):
                if table.live_count(node.state, node.remaining) > MANY:
                    uniforms[node] = self._streams[self._row[node.root]].random(AHEAD)
        wide = {node: uniforms[node] for node in sorted(uniforms, key=lambda node: (node.state, node.remaining))}
        return WideNodes(table, wide, [index[node] for node in wide], self._log_p, exchange, self._top)

    def _log_p(self, nodes: Sequence[Node], logits: Tensor) -> Tensor:
        if not nodes:
            return logits.float()
        contexts = ((*self._prompts[self._row[node.root]], *node.tokens()) for node in nodes)
        return self._settings.log_p(logits, self._lm.vocabulary, contexts)

    def _missing_paths(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the nodes to evaluate so that ``nodes`` have a distribution, ancestors first."""
        missing: dict[Node, None] = {}
        for node in nodes:
            if node.distribution is not None or (node in self._row and not self.branches.planted):
                continue
            chain = [node]
            while chain[-1].parent is not None and chain[-1].parent not in self._texts:
                chain.append(chain[-1].parent)
            missing.update(dict.fromkeys(reversed(chain)))
        return list(missing)

    def _compact(self, new: Sequence[Node]) -> bool:
        """Give back what the paths to ``new`` do not need, where the cache would grow too large; return whether it was done."""
        held = self._compacted + self.branches.trees.next_node - self._compacted_at
        if held + len(new) <= max(MAX_CACHED, 2 * self._compacted):
            return False
        kept = {above for node in new for above in node.path() if above in self._texts} | set(self._row)
        self._texts = {node: text for node, text in self._texts.items() if node in kept}
        self.branches.compact(text.node for text in self._texts.values())
        self._compacted, self._compacted_at = len(kept), self.branches.trees.next_node
        return True


TreeKey: TypeAlias = tuple[
    LanguageModel,
    SamplingSettings,
    Table,
    Sequence[tuple[int, ...]],
    Sequence[int],
    Constraint | None,
    Sequence[int],
]
"""The arguments of :meth:`TreeStore.lend`: all that the distributions of the trees of a call depend on."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@final
class TreeStore:
    """The trees of earlier calls, by everything that their distribution depends on.

    A call without a seed starts from what is known; the bounds only save model calls, the distribution of the draws is the same.

    ``max_bytes``: bound on the memory of all trees; the least recently used goes first, and a single tree that is too large drops
        its least recently visited distributions and subtrees.

    ``values``: the values that ``phi="learned"`` has learned in earlier calls, beside the trees.
    """

    def __init__(self, max_bytes: int = 2**30) -> None:
        check_counts("a model", " of bytes, such as 2**30 for 1 GB", least=0, max_tree_bytes=max_bytes)
        self.max_bytes = max_bytes
        self.values = KeptValues()
        self._trees: OrderedDict[Hashable, BoundsTree] = OrderedDict()
        # Sizes when last lent: a call looks at the trees that it was lent, however many are kept.
        self._sizes: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def __iter__(self) -> Iterator[BoundsTree]:
        return iter(self._trees.values())

    @property
    def bytes(self) -> int:
        """Memory held by all trees, as counted when they were last lent."""
        return sum(self._sizes.values())

    @contextmanager
    def lend(
        self,
        lm: LanguageModel,
        settings: SamplingSettings,
        table: Table,
        prompts: Sequence[tuple[int, ...]],
        budgets: Sequence[int],
        constraint: Constraint | None = None,
        starts: Sequence[int] = (),
    ) -> Iterator[list[BoundsTree]]:
        """Lend one tree per prompt: what is kept for it, or a fresh one where the call has a seed.

        ``starts`` are the guide states of the prompts. A prompt that stands in a batch twice has one tree. The store is
        trimmed at the end, and forgets trees that an interruption may have left between learning a distribution and updating the
        bounds above it.
        """
        distribution = (lm, lm.version(), table, settings.law_key, constraint)
        starts = starts or [table.start] * len(prompts)
        kept: dict[Hashable, BoundsTree] = self._trees if settings.seed is None else {}
        lent, trees = dict[Hashable, BoundsTree](), list[BoundsTree]()
        for prompt, start, budget in zip(prompts, starts, budgets, strict=True):
            key: Hashable = (distribution, prompt, start, budget)
            trees.append(kept.pop(key) if key in kept else BoundsTree(table, budget, constraint, start))
            lent.setdefault(key, trees[-1])
        kept |= lent  # the latest used last
        try:
            yield trees
        except (BudgetError, EmptyLanguageError):
            raise
        except BaseException:
            for key in lent:
                kept.pop(key, None)
            raise
        finally:
            self._sizes |= {key: tree.bytes for key, tree in lent.items() if kept is self._trees}
            if table.guide.full:  # further calls have another one, and would never find its trees
                self._trees = OrderedDict((key, tree) for key, tree in self._trees.items() if tree.table is not table)
            self.trim()

    def share(self, trees: int) -> int:
        """Return the memory that each of the trees of a call may take."""
        return self.max_bytes // max(1, trees)

    def trim(self) -> None:
        """Bring the store under its bound: whole trees first, the least recently used one leading, then parts of the last.

        The last one goes, too, where its root alone is over the bound.
        """
        self._sizes = {key: size for key, size in self._sizes.items() if key in self._trees}
        while len(self._trees) > 1 and self.bytes > self.max_bytes:
            oldest, _ = self._trees.popitem(last=False)
            self._sizes.pop(oldest, None)
        if self.bytes > self.max_bytes:
            ((key, tree),) = self._trees.items()
            tree.evict(self.max_bytes)
            self._sizes[key] = tree.bytes
            if self.bytes > self.max_bytes:
                del self._trees[key], self._sizes[key]

    def clear(self) -> None:
        """Forget every tree, and all learned values."""
        self.values.clear()
        self._trees.clear()
        self._sizes.clear()


class StaleTreesError(Exception):
    """A kept tree has another distribution at its prompt than the model has now; it never leaves the package."""


def afresh(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a call again where the trees that it was lent are stale; the store has forgotten them by then."""

    @wraps(call)
    def again(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except StaleTreesError:
            return call(*args, **kwargs)

    return again
