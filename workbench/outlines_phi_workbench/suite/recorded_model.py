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

    The counts of its trees are those of a model that remembers nothing. All draws are from one distribution, in float64, so that
    rounding is not measured. ``max_bytes`` bounds the logits that are kept; ``evaluated`` counts the prefixes that were asked for.
    """

    def __init__(self, lm: LanguageModel, *, max_bytes: int = 2**30) -> None:
        super().__init__(lm)
        self.evaluated, self._left = 0, max_bytes
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(self.logits, prompts, len(self.vocabulary), self.max_length)

    def logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        """Return ``[n, V]`` float64: the logits after each sequence, prompt included."""
        new = list(dict.fromkeys(sequence for sequence in sequences if sequence not in self._kept))
        found: dict[tuple[int, ...], Tensor] = {}
        for start in range(0, len(new), TOGETHER):
            part = new[start : start + TOGETHER]
            found.update(zip(part, self.lm.trees(part).roots().logits, strict=True))
        self.evaluated += len(new)
        rows = [self._kept[sequence] if sequence in self._kept else found[sequence] for sequence in sequences]
        for sequence, row in found.items():
            if row.nbytes <= self._left:
                self._left -= row.nbytes
                self._kept[sequence] = row.clone()  # a view would keep the whole answer
        nothing = torch.empty(0, len(self.vocabulary), dtype=torch.float64, device=self.device)
        return torch.stack(rows).double() if rows else nothing
