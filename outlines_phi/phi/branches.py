"""The prefixes that a run has evaluated: each once, while a walk may come back to it, drafted or not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from ..errors import ModelError
from ..lm.model import LanguageModel, TokenTrees, between_calls
from ..numerics.distributions import Rows

WASTE = 2048  # Nodes that a run may grow by, whatever its walks need, before the others are given back


@final
@dataclass
class DraftTally:
    """The number of prefixes after a prompt that a drafter foresaw, and of those that walks have come to."""

    drafted: int = 0
    followed: int = 0


@final
class Branch:
    """A prefix in the token trees: a prompt and what was written after it, with the model's answer once that is known.

    It holds those one token longer that were asked for, and none that is shorter: it lives as long as a walk may come back to
    it, and is freed by being forgotten.

    ``parent``, ``token``: The model's node of the prefix without its last token, and that token; -1 for a prompt.
    ``node``: The model's node of the prefix; -1 before it is evaluated.
    ``answer``: What is kept of the distribution of the next token, ``[V]``: logits, or ``log p``. ``None`` where nothing is; the
        prefix is evaluated then, for the first time or once more, where a walk comes to it.
    ``children``: The prefixes one token longer, by that token.
    ``ahead``: Where a drafter foresaw it and no walk has come to it since: who counts that.
    """

    __slots__ = ("ahead", "answer", "children", "node", "parent", "token")

    def __init__(self, parent: int, token: int, node: int = -1, answer: Any = None) -> None:
        self.parent, self.token, self.node, self.answer = parent, token, node, answer
        self.children: dict[int, Branch] = {}
        self.ahead: DraftTally | None = None

    @property
    def held(self) -> int:
        """The node that the model has to keep for it: its own, or its parent's where it is evaluated anew."""
        return self.parent if self.answer is None and self.token >= 0 else self.node

    def child(self, token: int) -> Branch:
        """Return the prefix that is ``token`` longer, which a walk has come to."""
        child = self.children.get(token) or self.foreseen(token)
        if child.ahead is not None:
            child.ahead.followed += 1
            child.ahead = None
        return child

    def foreseen(self, token: int) -> Branch:
        """Return the prefix that is ``token`` longer, which a walk may come to."""
        if token not in self.children:
            self.children[token] = Branch(self.node, token)
        return self.children[token]

    def along(self, tokens: Iterable[int]) -> Iterator[Branch]:
        """Yield this prefix and those that ``tokens`` lead to."""
        yield (prefix := self)
        for token in tokens:
            yield (prefix := prefix.foreseen(token))

    def walk(self) -> Iterator[Branch]:
        """Yield this prefix and all longer ones that it holds."""
        stack = [self]
        while stack:
            prefix = stack.pop()
            yield prefix
            stack.extend(prefix.children.values())


@final
class Branches:
    """Token trees of a model that walks grow, and give back; a model call before which they are stopped has added no node.

    ``roots``: The node of each prompt; equal prompts are one.
    ``planted``: True if the prompts have been evaluated.
    """

    def __init__(self, lm: LanguageModel, prompts: Sequence[Sequence[int]]) -> None:
        numbers = dict[tuple[int, ...], int]()
        self.roots = [numbers.setdefault(tuple(prompt), len(numbers)) for prompt in prompts]
        self._lm, self._distinct = lm, [*numbers]
        self.planted, self._compacted = False, 0
        self._prompts: Rows | None = None

    @cached_property
    def trees(self) -> TokenTrees:
        """The model's trees, made where the first prefix is asked for."""
        return self._lm.trees(self._distinct)

    def plant(self) -> Rows:
        """Return the ``[P, V]`` logits of the prompts, which are evaluated the first time."""
        if self._prompts is None:
            self.evaluate(())
        assert self._prompts is not None
        return self._prompts

    def reach(self, prefixes: Sequence[Branch]) -> Rows:
        """Return the ``[n, V]`` logits of distinct prefixes, each below an evaluated one or one that stands before it.

        One call evaluates those of which no answer is kept, and new prompts.
        """
        first, new = self.trees.next_node, dict[Branch, tuple[int, int]]()
        for prefix in prefixes:
            if prefix.answer is None and prefix.token >= 0:
                # Its parent as of now: one that stands behind it is evaluated once more, for a draft.
                new[prefix], prefix.node = (prefix.parent, prefix.token), first + len(new)
            for below in prefix.children.values():
                below.parent = prefix.node
        place, fresh = dict[Branch, int](), None  # what is evaluated now
        if new or not self.planted:
            fresh, before = self._grow(list(new.values()))
            place = {prefix: before + row for row, prefix in enumerate(new)}
            place |= {prefix: prefix.node for prefix in prefixes if prefix.token < 0 < before}
            if len(place) == len(prefixes):
                return Rows(fresh.matrix, fresh.within([place[prefix] for prefix in prefixes]), fresh.check)
        prompts, row = self.plant(), {node: row for row, node in enumerate(self.roots)}
        if all(prefix.token < 0 for prefix in prefixes):
            return Rows(prompts.matrix, prompts.within([row[prefix.node] for prefix in prefixes]), prompts.check)
        rest, roots, answer = [] if fresh is None else fresh.each(), prompts.each(), fresh or prompts
        known = (roots[row[prefix.node]] if prefix.token < 0 else prefix.answer for prefix in prefixes)
        pairs = zip(prefixes, known, strict=True)
        return answer.of([rest[place[prefix]] if prefix in place else logits for prefix, logits in pairs])

    def evaluate(self, pairs: Sequence[tuple[int, int]]) -> Rows:
        """Return the logits of new nodes, ``[n, V]``; the prompts are evaluated with the first ones."""
        rows, before = self._grow(pairs)
        return rows[before:]

    def _grow(self, pairs: Sequence[tuple[int, int]]) -> tuple[Rows, int]:
        """Return the logits of new nodes, and of prompts before them where these are evaluated now; and how many these are."""
        between_calls()
        parents, tokens = [parent for parent, _ in pairs], [token for _, token in pairs]
        if self.planted:
            return self.trees.extend(parents, tokens).rows.checked(_no_distribution), 0
        evaluation, self.planted = self.trees.roots(parents, tokens), True
        rows, prompts = evaluation.rows.checked(_no_distribution), len(evaluation.nodes) - len(pairs)
        kept = rows[:prompts]
        # A part alone would hold the memory of the whole.
        kept = kept.of(kept.each()) if pairs else kept
        self._prompts = Rows(kept.matrix, kept.within(self.roots), kept.check)
        return rows, prompts

    def compact(self, nodes: Iterable[int]) -> None:
        """Give back the memory of every node that is neither in ``nodes`` nor above one of these."""
        self.trees.compact([*nodes])
        self._compacted = self.trees.next_node

    def tidy(self, nodes: Iterable[int], size: int, waste: int | None = None) -> bool:
        """Compact once the nodes in vain may outweigh the paths to ``nodes``, about ``size`` nodes; return whether it was done."""
        waste = WASTE if waste is None else waste
        outweighed = self.trees.next_node - self._compacted > max(waste, size)
        if outweighed:
            self.compact(nodes)
        return outweighed


def _no_distribution() -> ModelError:
    return ModelError("Return logits below +inf, one of them finite. The model answered NaN, +inf or only -inf.")
