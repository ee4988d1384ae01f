"""Models for tests and measurements: a function as a model, and a model whose answers are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..errors import ModelError, UnsupportedError
from ..numerics.checks import check_counts, shown
from ..vocabulary.vocabulary import Vocabulary, check_vocabulary
from .forest import SequenceTrees
from .model import LanguageModel, TokenTrees, WrappedModel

TOGETHER = 256  # Prefixes that the recorded model is asked for in one call


@final
class TableModel(LanguageModel):
    """A language model given by a function, evaluated in float64 on the CPU.

    Everything about a small distribution (Phi, the conditioned one, the mode) can be enumerated exactly with it, so it stands
    beside every fast path in the tests; applications have tests too.

    ``next_logits``: maps the whole token sequence so far, prompt included, to ``V`` logits of the next token. Log probabilities
        are logits too; ``-inf`` marks what never happens. It must be a pure function.
    ``max_length``: the longest sequence that can be evaluated, prompt included; ``None`` for no limit.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        next_logits: Callable[[tuple[int, ...]], ArrayLike],
        *,
        max_length: int | None = None,
    ) -> None:
        check_vocabulary("TableModel", vocabulary)
        if not callable(next_logits):
            raise UnsupportedError(
                f"next_logits={shown(next_logits)} was given to TableModel; expected a function of a tuple of token ids that "
                "returns logits."
            )
        if max_length is not None:
            check_counts("TableModel", ", or None", max_length=max_length)
        self.vocabulary, self.next_logits, self.max_length = vocabulary, next_logits, max_length
        self.device = torch.device("cpu")

    @classmethod
    def random(
        cls,
        vocabulary: Vocabulary,
        *,
        seed: int = 0,
        order: int | None = None,
        scale: float = 1.0,
        max_length: int | None = None,
    ) -> TableModel:
        """Return a random distribution: independent normal logits of standard deviation ``scale`` in every context.

        A seed names one distribution in every process. ``order``: the last tokens it depends on (a Markov chain); ``None`` for all.
        """
        cache: dict[tuple[int, ...], NDArray[np.float64]] = {}

        def next_logits(sequence: tuple[int, ...]) -> NDArray[np.float64]:
            context = sequence if order is None else sequence[max(0, len(sequence) - order) :]
            if context not in cache:
                # The length is part of the key: SeedSequence takes (1,) and (1, 0) for the same entropy.
                stream = np.random.default_rng(np.random.SeedSequence([seed, len(context), *context]))
                cache[context] = scale * stream.standard_normal(len(vocabulary))
            return cache[context]

        return cls(vocabulary, next_logits, max_length=max_length)

    def logits(self, sequence: Sequence[int]) -> NDArray[np.float64]:
        """Return the ``[V]`` logits of the token that follows ``sequence``, prompt included."""
        logits = np.asarray(self.next_logits(tuple(sequence)), dtype=np.float64)
        if logits.shape != (len(self.vocabulary),):
            raise ModelError(
                f"next_logits= gave an array of shape {logits.shape} after {tuple(sequence)}; expected one logit "
                f"for each of the {len(self.vocabulary)} tokens of the vocabulary."
            )
        if not logits.max() < np.inf or logits.max() == -np.inf:
            raise ModelError(
                f"next_logits= gave NaN, +inf or only -inf after {tuple(sequence)}; expected logits below +inf, "
                "at least one of them finite."
            )
        return logits

    def fingerprint(self) -> str:
        """Return a digest of the logits after the first token: all that can be read of a function."""
        return hashlib.blake2b(self.logits((0,)).tobytes(), digest_size=16).hexdigest()

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        """See :meth:`LanguageModel.trees`; every node is evaluated from its whole sequence."""
        return SequenceTrees(self._stacked, prompts, len(self.vocabulary), self.max_length)

    def _stacked(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        rows = [self.logits(sequence) for sequence in sequences]
        return torch.from_numpy(np.stack(rows) if rows else np.empty((0, len(self.vocabulary))))


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
