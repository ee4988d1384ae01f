"""Few tokens that stand for a whole vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..vocabulary.classes import EOS, NEVER, Partition
from ..vocabulary.vocabulary import Vocabulary


class Collapse(NamedTuple):
    """Tokens that no state tells apart, one of each kind.

    Attributes
    ----------
    tokens
        ``int64[R]``: the representatives, the shortest of their kinds, short ones first.
    texts
        What they write.
    stands_for
        ``int64[V]``: the place among ``tokens`` of the one that stands for each id; -1 for ids that no state allows.
    """

    tokens: NDArray[np.int64]
    texts: tuple[bytes, ...]
    stands_for: NDArray[np.int64]

    @classmethod
    def of(cls, vocabulary: Vocabulary, partitions: Iterable[Partition]) -> Collapse:
        """Return one token for each combination of classes; tokens that are never in a class but :data:`NEVER` have none.

        Nothing is lost where a state's classes are tokens that lead to the same from it: masks are equal on equal rows.
        """
        kind = np.zeros(len(vocabulary), dtype=np.int64)
        useful = np.zeros(len(vocabulary), dtype=bool)
        for partition in partitions:
            kind = np.unique(kind * partition.size + partition.class_of, return_inverse=True)[1].reshape(-1)
            useful |= partition.class_of != NEVER
        lengths = np.fromiter(map(len, vocabulary.tokens), np.int64)
        useful &= lengths > 0
        order = np.lexsort([np.arange(len(vocabulary)), lengths])
        order = order[useful[order]]
        first = order[np.sort(np.unique(kind[order], return_index=True)[1])]
        place = np.full(int(kind.max(initial=0)) + 1, -1)
        place[kind[first]] = np.arange(len(first))
        texts = tuple(vocabulary.tokens[token] for token in first.tolist())
        return cls(first, texts, np.where(useful, place[kind], -1))

    def betrayed(self, of_token: Partition) -> NDArray[np.int64]:
        """Return the tokens that are in another class than what stands for them, or in one although nothing does."""
        class_of, stood_for = of_token.class_of, self.stands_for >= 0
        same = class_of == class_of[self.tokens[self.stands_for]] if len(self.tokens) else ~stood_for
        return np.flatnonzero(np.where(stood_for, ~same, (class_of != NEVER) & (class_of != EOS)))
