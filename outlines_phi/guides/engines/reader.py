"""A matcher that goes from any text to any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedError
from ...numerics.cache import Cache
from ...vocabulary.vocabulary import Vocabulary
from .engine import Engine, Matcher, Source

_MASKS = 4096
"""How many masks are kept, a bit per token."""

Answer = TypeVar("Answer")


@final
class Reader:
    """What an engine says of token sequences, in whatever order it is asked: its matcher goes back to what they have in common.

    Parameters
    ----------
    engine, source
        What is asked, and what of.
    vocabulary
        The tokens.
    """

    def __init__(self, engine: Engine, source: Source, vocabulary: Vocabulary) -> None:
        self._engine, self._source, self._vocabulary = engine, source, vocabulary
        self._matcher = engine.matcher(source)
        self._read: tuple[int, ...] = ()
        self._silent = np.array([not token for token in vocabulary.tokens])
        self._silent[vocabulary.eos_ids[0]] = False
        self._masks: Cache[tuple[int, ...], NDArray[np.uint8]] = Cache(_MASKS)

    def allowed(self, tokens: tuple[int, ...]) -> NDArray[np.bool_]:
        """Return ``bool[V]``: what may follow ``tokens``, each of which was allowed; ids that write nothing never."""

        def ask() -> NDArray[np.uint8]:
            return np.packbits(self._ask(tokens, lambda matcher: matcher.allowed()) & ~self._silent)

        return np.unpackbits(self._masks.of(tokens, ask), count=len(self._vocabulary)).view(np.bool_)

    def ends_after(self, tokens: tuple[int, ...], nexts: NDArray[np.integer], more: Sequence[int]) -> NDArray[np.bool_]:
        """Return for each of ``nexts``, which may follow ``tokens``, whether they, it and ``more`` are a member."""
        return np.array(self._ask(tokens, lambda matcher: matcher.ends_after(nexts.tolist(), more)), dtype=bool)

    def _ask(self, tokens: tuple[int, ...], question: Callable[[Matcher], Answer]) -> Answer:
        try:
            if self._read != tokens:
                self._go(tokens)
            return question(self._matcher)
        except UnsupportedError:
            # An engine that gave up is of no more use; the next text has nothing to do with that.
            self._matcher, self._read = self._engine.matcher(self._source), ()
            raise

    def _go(self, tokens: tuple[int, ...]) -> None:
        pairs = zip(self._read, tokens, strict=False)
        common = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(self._read), len(tokens)))
        if common < len(self._read):
            self._matcher.back(len(self._read) - common)
        for token in tokens[common:]:
            self._matcher.read(token)
        self._read = tokens
