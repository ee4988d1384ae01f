"""A language model whose answers are kept: to ask for the same prefix again costs nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import final

import torch
from torch import Tensor

from ..errors import ModelError
from .forest import Forest
from .model import Evaluation, LanguageModel, ModelCounts, TokenTrees

TOGETHER = 256
"""Prefixes that the recorded model is asked for in one call."""


@final
class RecordedModel(LanguageModel):
    """The law of another model, each prefix of which is evaluated once.

    For measurements that draw from the same small language thousands of times. The counts of its trees are those of a model that
    remembers nothing between calls. A prefix keeps the logits of its first evaluation, so that all draws are from one law, and they
    are given in float64, so that what is measured is that law and not the rounding of its arithmetic.

    Parameters
    ----------
    lm
        The model.
    max_bytes
        Logits that are kept; beyond it prefixes are evaluated every time.

    Attributes
    ----------
    evaluated
        Prefixes that the model has been asked for.
    """

    def __init__(self, lm: LanguageModel, *, max_bytes: int = 2**30) -> None:
        self.vocabulary, self.max_length, self.device = lm.vocabulary, lm.max_length, lm.device
        self.evaluated = 0
        self._lm, self._max_bytes, self._bytes = lm, max_bytes, 0
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def version(self) -> Hashable:
        """See :meth:`LanguageModel.version`."""
        return self._lm.version()

    @property
    def opaque(self) -> bool:
        """See :attr:`LanguageModel.opaque`."""
        return self._lm.opaque

    @property
    def rounding(self) -> float:
        """See :attr:`LanguageModel.rounding`."""
        return self._lm.rounding

    def fingerprint(self) -> str:
        """See :meth:`LanguageModel.fingerprint`."""
        return self._lm.fingerprint()

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        """See :meth:`LanguageModel.trees`."""
        return RecordedTrees(self, prompts)

    def logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Return ``[n, V]`` float64: the logits after each sequence, prompt included."""
        new = list(dict.fromkeys(sequence for sequence in sequences if sequence not in self._kept))
        found: dict[tuple[int, ...], Tensor] = {}
        for start in range(0, len(new), TOGETHER):
            part = new[start : start + TOGETHER]
            answer = self._lm.trees(part).roots().logits
            found.update(zip(part, answer, strict=True))
        self.evaluated += len(new)
        rows = [self._kept[sequence] if sequence in self._kept else found[sequence] for sequence in sequences]
        for sequence, row in found.items():
            if self._bytes + row.nbytes <= self._max_bytes:
                self._bytes += row.nbytes
                self._kept[sequence] = row.clone()  # a view would keep the whole answer
        if not rows:
            return torch.empty(0, len(self.vocabulary), dtype=torch.float64, device=self.device)
        return torch.stack(rows).double()


@final
class RecordedTrees(TokenTrees):
    """Token trees of a :class:`RecordedModel`."""

    def __init__(self, model: RecordedModel, prompts: Sequence[Sequence[int]]) -> None:
        self.counts, self._model = ModelCounts(), model
        self._forest = Forest(prompts, len(model.vocabulary), model.max_length)

    def roots(self, parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> Evaluation:
        """See :meth:`TokenTrees.roots`."""
        evaluation = self._evaluate(self._forest.plant(parents, tokens))
        self.counts.prompt_tokens += int(self._forest.prompt_lengths.sum())
        self.counts.tokens += len(parents)
        return evaluation

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
        """See :meth:`TokenTrees.extend`."""
        nodes = self._forest.add(parents, tokens)
        try:
            evaluation = self._evaluate(nodes)
        except ModelError:
            self._forest.withdraw(nodes)
            raise
        self.counts.tokens += len(nodes)
        return evaluation

    @property
    def next_node(self) -> int:
        """See :attr:`TokenTrees.next_node`."""
        return len(self._forest)

    def compact(self, keep: Sequence[int]) -> None:
        """See :meth:`TokenTrees.compact`."""
        self._forest.retain(keep)

    def _evaluate(self, nodes: range) -> Evaluation:
        logits = self._model.logits([self._forest.sequence(node) for node in nodes])
        self.counts.calls += bool(nodes)
        return Evaluation(nodes, logits)
