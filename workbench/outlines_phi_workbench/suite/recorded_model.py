"""A language model whose answers are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from outlines_phi.lm import LanguageModel, SequenceTrees, TokenTrees
from outlines_phi.lm.model import WrappedModel

TOGETHER = 256  # Prefixes that the model is asked for in one call


@final
class RecordedModel(WrappedModel):
    """The distribution of another model, each prefix of which is evaluated once: for thousands of draws from one small language.

    The counts of its trees are those of a model that remembers nothing between calls. A prefix keeps the logits of its first
    evaluation, so that all draws are from one distribution; they are float64, so that rounding is not measured.

    ``max_bytes`` bounds the logits that are kept; ``evaluated`` counts the prefixes that the model was asked for.
    """

    def __init__(self, lm: LanguageModel, *, max_bytes: int = 2**30) -> None:
        super().__init__(lm)
        self.evaluated = 0
        self._max_bytes, self._bytes = max_bytes, 0
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(self.logits, prompts, len(self.vocabulary), self.max_length)

    def logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Return ``[n, V]`` float64: the logits after each sequence, prompt included."""
        new = list(dict.fromkeys(sequence for sequence in sequences if sequence not in self._kept))
        found: dict[tuple[int, ...], Tensor] = {}
        for start in range(0, len(new), TOGETHER):
            part = new[start : start + TOGETHER]
            answer = self.lm.trees(part).roots().logits
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
