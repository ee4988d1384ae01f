"""Windows: the stretches of text that a look-ahead commits at once (theory.md, section 6.2)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, final

import numpy as np

from ...errors import UnsupportedError
from ...guides.guide import DEAD, DONE
from ...guides.phrases.phrase_guide import BanningGuide
from ...guides.table import Moves, Table
from .tree import BoundsTree, Node

CERTAIN_END = 4  # A renewal window ends after this many times its length, whatever waits

LEAST_SURVIVAL = 1 / 8
"""A renewal window ends where fewer walks than this share would have come so far without a phrase, whatever waits."""

ANYTHING = 2**31 - 1  # More bytes than ever wait
_PHRASES = 4096  # Ways to fail whose phrase is remembered


class Allowance(NamedTuple):
    """How many bytes may wait where a window ends: ``base``, and the length of its last token where ``token`` says so."""

    base: int
    token: bool


class Ending(ABC):
    """Where windows end: a rule that reads a text and the distributions of its tokens, so that every end is a stopping time.

    The bytes that wait at the end of a text may begin a phrase, as many as :meth:`BanningGuide.pending` says.
    """

    @abstractmethod
    def allowance(self, written: Sequence[int], survival: float) -> Allowance:
        """Return how many bytes may wait where a window ends with its next token.

        ``written``: the lengths of the window's tokens so far.
        ``survival``: the product of the probabilities that the tokens so far, each at its turn, completed no phrase.
        """

    @abstractmethod
    def released(self, written: Sequence[int], pending: int) -> int:
        """Return how many tokens of a window that has ended are final, of the lengths ``written``, while ``pending`` bytes wait."""


@final
@dataclass(frozen=True)
class Renewal(Ending):
    """A window ends where nothing waits, and all of it is final.

    With hundreds of phrases nearly every letter may begin one. So after ``length`` tokens what waits may also lie strictly inside
    the last token. After ``4 * length`` tokens it may be anything, and so it may where seven walks in eight would have met a phrase
    on the way, for else a window might never be completed. What waits then is corrected from there on only. Nothing is forgotten,
    the guide's state still knows it.
    """

    length: int  # In tokens

    def allowance(self, written: Sequence[int], survival: float) -> Allowance:
        tokens = len(written) + 1
        if tokens >= CERTAIN_END * self.length or survival < LEAST_SURVIVAL:
            return Allowance(ANYTHING, token=False)
        return Allowance(-1, token=True) if tokens >= self.length else Allowance(0, token=False)

    def released(self, written: Sequence[int], pending: int) -> int:
        return len(written)


@final
@dataclass(frozen=True)
class Release(Ending):
    """A window ends where nothing of its first token waits; the tokens before what waits are final."""

    def allowance(self, written: Sequence[int], survival: float) -> Allowance:
        return Allowance(sum(written[1:]), token=True) if written else Allowance(0, token=False)

    def released(self, written: Sequence[int], pending: int) -> int:
        after = np.cumsum(written[::-1])[::-1] - written  # bytes after each token
        return int((after >= pending).sum())


@final
class Windows:
    """Makes the token trees of windows: those of a table in which every end of a window is an end of the text.

    So ``Phi`` of a tree's root is ``Psi``, the probability that no phrase is complete before the window ends, and all that is said
    of draws, bounds and normalisers of a tree is said of the window (theory.md, sections 5 and 6.2).

    ``table``: the compiled guide, which knows phrases.
    ``ending``: where windows end.

    Raises :class:`UnsupportedError`: a guide that knows of no phrases.
    """

    def __init__(self, table: Table, ending: Ending) -> None:
        if not isinstance(table.guide, BanningGuide):
            raise UnsupportedError(
                f"phi='lookahead' was given for a {type(table.guide).__name__}, which bans no phrases, so there is nothing to look "
                "ahead for. Give banned_phrases=[...], or another phi, such as phi='exact'."
            )
        self.table, self.guide, self.ending = table, table.guide, ending
        self._lengths = np.array([len(token) for token in table.vocabulary.tokens], dtype=np.int64)
        # Attempts that fail often fail alike.
        self.phrase_at = lru_cache(_PHRASES)(self._phrase_at)

    def tree(self, state: int, remaining: int) -> BoundsTree:
        """Return the tree of the window that begins in ``state`` with ``remaining`` tokens to write."""
        return BoundsTree(self.table, remaining, start=state, moves=self._moves)

    def lengths(self, tokens: Sequence[int]) -> list[int]:
        """Return how many bytes each of ``tokens`` writes."""
        return self._lengths[list(tokens)].tolist()

    def _phrase_at(self, state: int, token: int) -> int | None:
        """Return which phrase rules ``token`` out in ``state``, by its place in the list; ``None`` where none does.

        The one that the token completes; or a whole word that waits after it, where the budget leaves no room to go on.
        """
        (phrase,) = self.guide.phrases_at(state, np.array([token]))
        after = DEAD if phrase >= 0 else self.guide.advance(state, token)
        if after not in (DEAD, DONE):
            (phrase,) = self.guide.phrases_at(after, np.array(self.table.vocabulary.eos_ids[:1]))
        return int(phrase) if phrase >= 0 else None

    def _moves(self, node: Node) -> Moves:
        path = node.path()
        survival = math.exp(math.fsum(below.parent.log_live for below in path if below.parent is not None))
        allowance = self.ending.allowance(self.lengths([below.token for below in path]), survival)

        def build(state: int, remaining: int) -> Moves:
            return self._ended(state, remaining, allowance)

        kind = f"window, {allowance}"
        return self.table.keep_within(kind, node.state, node.remaining, build, lambda moves: moves.leads.nbytes)

    def _ended(self, state: int, remaining: int, allowance: Allowance) -> Moves:
        """Return the live tokens of a state; those after which a window ends lead to :data:`DONE`."""
        moves = self.table.moves(state, remaining)
        waiting = self.guide.pending_of(moves.leads)
        if not allowance.token:
            return Moves(moves.tokens, moves.classes, np.where(waiting <= allowance.base, DONE, moves.leads))
        ended = waiting[moves.classes] <= allowance.base + self._lengths[moves.tokens]
        return Moves(moves.tokens, np.arange(len(moves.tokens)), np.where(ended, DONE, moves.targets))
