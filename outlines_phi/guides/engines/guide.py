"""What a grammar engine of another package allows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...errors import EmptyLanguageError
from ...vocabulary.vocabulary import Vocabulary
from ..guide import DONE, UNREACHABLE
from ..phrases.banned import BannedPhrases
from ..phrases.banning import BanningGuide
from ..phrases.guide import PhraseGuide
from .engine import Engine, Source
from .llguidance import LLGuidance
from .prefixes import PrefixGuide
from .reader import Reader
from .xgrammar import XGrammar

ENGINES: Mapping[str, type[Engine]] = {engine.package: engine for engine in (LLGuidance, XGrammar)}
"""The engines, by the names that Outlines gives to its backends; a package is imported when its engine is made."""

_READ = 65_536
"""How many prefixes are kept with what waits of a phrase there."""


@final
class EngineGuide(PrefixGuide):
    """The token sequences that a grammar engine allows; see :class:`PrefixGuide` for what that costs.

    Parameters
    ----------
    engine, source
        What says which tokens may follow.
    vocabulary
        The tokens, those of the engine.

    Raises
    ------
    GrammarError
        The engine refuses ``source``.
    EmptyLanguageError
        Nothing can be written.
    """

    def __init__(self, engine: Engine, source: Source, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.reader = Reader(engine, source, vocabulary)
        if self.min_tokens(self.start) >= UNREACHABLE:
            raise EmptyLanguageError(self.why_empty(b""))

    def allowed(self, state: int, more: tuple[int, ...] = ()) -> NDArray[np.bool_]:
        """See :meth:`PrefixGuide.allowed`."""
        return self.reader.allowed((*self.path(state)[1], *more))

    def ends_after(
        self, state: int, more: tuple[int, ...], nexts: NDArray[np.integer], way: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        """See :meth:`PrefixGuide.ends_after`."""
        return self.reader.ends_after((*self.path(state)[1], *more), nexts, way)

    def without(self, phrases: BannedPhrases) -> BannedEngineGuide:
        """Return what is left without ``phrases``."""
        return BannedEngineGuide(self, PhraseGuide(self.vocabulary, phrases))


@final
class BannedEngineGuide(PrefixGuide, BanningGuide):
    """The token sequences that a grammar engine allows and whose bytes hold no banned phrase.

    Parameters
    ----------
    left, right
        What is allowed, and free text without the phrases, over the same vocabulary.
    """

    def __init__(self, left: EngineGuide, right: PhraseGuide) -> None:
        super().__init__(left.vocabulary)
        self.left, self.right, self.phrases = left, right, right.phrases
        self._roots = {right.start: self.start}  # by what waits after the prompt
        self._waiting_after = {self.start: right.start}
        self._recent_waiting = lru_cache(_READ)(self._waiting)

    def allowed(self, state: int, more: tuple[int, ...] = ()) -> NDArray[np.bool_]:
        """See :meth:`PrefixGuide.allowed`."""
        row = self.right.row(self._waiting_after_more(state, more))
        return self.left.reader.allowed((*self.path(state)[1], *more)) & (row.targets[row.partition.class_of] != 0)

    def ends_after(
        self, state: int, more: tuple[int, ...], nexts: NDArray[np.integer], way: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        """See :meth:`PrefixGuide.ends_after`."""
        row = self.right.row(self._waiting_after_more(state, more))
        waiting, places = np.unique(row.targets[row.partition.class_of[nexts]], return_inverse=True)
        after = self.right.after_text(waiting, self.vocabulary.decode(way))
        ends = (self.right.min_tokens_of(after) == 0)[places]
        ends[ends] = self.left.reader.ends_after((*self.path(state)[1], *more), nexts[ends], way)
        return ends

    def start_after(self, prompt: bytes) -> int:
        """See :meth:`Guide.start_after`."""
        waiting = self.right.start_after(prompt)
        with self._lock:
            if waiting not in self._roots:
                self._roots[waiting] = self._numbering.root()
                self._waiting_after[self._roots[waiting]] = waiting
            return self._roots[waiting]

    def pending(self, state: int) -> int:
        """See :meth:`BanningGuide.pending`."""
        return self.right.pending(self._recent_waiting(state)) if state > DONE else 0

    def pending_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`BanningGuide.pending_of`: children of one prefix that are in one class of the right guide are alike."""
        states = np.asarray(states, dtype=np.int64)
        found, texts = np.zeros(len(states), dtype=np.int64), np.flatnonzero(states > DONE)
        with self._lock:
            parents, places = self._numbering.siblings(states[texts])
            for parent in np.unique(parents).tolist():
                here = texts[parents == parent]
                if parent < 0:
                    found[here] = [self.pending(state) for state in states[here].tolist()]
                    continue
                row = self.right.row(self._recent_waiting(parent))
                tokens = self._numbering.tokens(parent)[places[parents == parent]]
                found[here] = self.right.pending_of(row.targets)[row.partition.class_of[tokens]]
        return found

    def phrases_at(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`BanningGuide.phrases_at`; of tokens that the engine allows."""
        if state <= DONE:
            return np.full(len(tokens), -1)
        allowed = self.left.reader.allowed(self.path(state)[1])[tokens]
        return np.where(allowed, self.right.phrases_at(self._recent_waiting(state), tokens), -1)

    def _waiting_after_more(self, state: int, more: tuple[int, ...]) -> int:
        waiting = self._recent_waiting(state)
        for token in more:
            waiting = self.right.advance(waiting, token)
        return waiting

    def _waiting(self, state: int) -> int:
        """Return the state of the right guide after a prefix."""
        root, tokens = self.path(state)
        waiting = self._waiting_after[root]
        for token in tokens:
            waiting = self.right.advance(waiting, token)
        return waiting
