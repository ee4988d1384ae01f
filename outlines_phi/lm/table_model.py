"""A function as a language model, for tests and measurements."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from ..errors import ModelError, UnsupportedError
from ..numerics.checks import check_counts, shown
from ..vocabulary.vocabulary import Vocabulary, check_vocabulary
from .model import LanguageModel, TokenTrees
from .sequences import SequenceTrees


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
        return SequenceTrees(
            lambda sequences: torch.from_numpy(np.stack(list(map(self.logits, sequences)))),
            prompts,
            len(self.vocabulary),
            self.max_length,
        )
