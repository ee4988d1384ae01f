"""Evaluated texts that walks may stand on, return to, and share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..lm.model import ModelCounts
from .sampler import Request

WASTE = 512
"""Nodes that the model's cache may grow by, however short the texts, before those that no walk needs are given back."""


@final
class Stem:
    """A prompt and what was written after it, with its law once that is known.

    A stem holds those one token longer that were asked for, and none that is shorter: it lives as long as a walk may come back to
    it, and is freed by being forgotten.

    Attributes
    ----------
    parent, token
        The model's node of the text without its last token, and that token; -1 for a prompt.
    handle
        The model's node of the text; -1 before it is evaluated.
    log_p
        ``[V]``, the law of the next token; ``None`` before the text is evaluated.
    children
        The texts one token longer, by that token.
    """

    __slots__ = ("children", "handle", "log_p", "parent", "token")

    def __init__(self, parent: int, token: int, handle: int = -1, log_p: NDArray[np.floating] | None = None) -> None:
        self.parent, self.token, self.handle, self.log_p = parent, token, handle, log_p
        self.children: dict[int, Stem] = {}

    def child(self, token: int) -> Stem:
        """Return the text that is ``token`` longer."""
        if token not in self.children:
            self.children[token] = Stem(self.handle, token)
        return self.children[token]

    def walk(self) -> Iterator[Stem]:
        """Yield this text and all longer ones that it holds."""
        stack = [self]
        while stack:
            stem = stack.pop()
            yield stem
            stack.extend(stem.children.values())


@final
class Stems:
    """The texts of a call, each evaluated once while it is held.

    Parameters
    ----------
    request
        The call.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._trees = request.lm.trees(request.prompts)
        self._roots: list[NDArray[np.floating]] = []
        self._compacted = 0

    @property
    def counts(self) -> ModelCounts:
        """What the model calls have cost so far."""
        return self._trees.counts

    def root(self, row: int) -> Stem:
        """Return the prompt ``row``, which holds nothing longer; all prompts are evaluated in one call, the first time."""
        if not self._roots:
            self._roots = self._laws(self._trees.roots().logits, self._request.prompts)
        return Stem(-1, -1, row, self._roots[row])

    def evaluate(self, wanted: Mapping[Stem, Callable[[], Sequence[int]]]) -> None:
        """Give every wanted text its law, in one model call.

        Parameters
        ----------
        wanted
            Texts one token longer than evaluated ones, and what tells their token ids, prompt included; asked only where ``p``
            depends on them.
        """
        evaluation = self._trees.extend([stem.parent for stem in wanted], [stem.token for stem in wanted])
        laws = self._laws(evaluation.logits, (context() for context in wanted.values()))
        for stem, handle, log_p in zip(wanted, evaluation.nodes, laws, strict=True):
            stem.handle, stem.log_p = handle, log_p

    def tidy(self, held: Callable[[], Iterable[Stem]], size: int) -> None:
        """Give back what no walk needs where it may outweigh the rest: ``held`` texts and all above them, about ``size`` nodes."""
        if self._trees.next_node - self._compacted > max(WASTE, size):
            self._trees.compact([stem.parent if stem.log_p is None else stem.handle for stem in held()])
            self._compacted = self._trees.next_node

    def _laws(self, logits: Tensor, contexts: Iterable[Sequence[int]]) -> list[NDArray[np.floating]]:
        log_p = self._request.settings.log_p(logits, self._request.lm.vocabulary, contexts).cpu().numpy()
        # One by one: a row alone would hold the memory of all that were evaluated with it.
        return [row.copy() for row in log_p] if len(log_p) > 1 else list(log_p)
