"""Windows: the stretches of text that are drawn and committed at once (theory.md, sections 6.2 and 6.5)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ...errors import UnsupportedError
from ...guides.guide import DEAD, DONE
from ...guides.phrases.phrase_guide import BanningGuide
from ...guides.table import Moves, Table
from ...numerics.weights import log_sum
from .tree import BoundsTree, Node

CERTAIN_END = 4  # A renewal window ends after this many times its length, whatever waits

LEAST_SURVIVAL = 1 / 8
"""A renewal window ends where fewer walks than this share would have come so far without a phrase, whatever waits."""

ANYTHING = 2**31 - 1  # More bytes than ever wait
_PHRASES = 4096  # Ways to fail whose phrase is remembered


class Allowance(NamedTuple):
    """The number of bytes that may wait at the end of a window: ``base``, and the length of its last token with ``token``."""

    base: int
    token: bool


@final
@dataclass(frozen=True)
class Renewal:
    """A rule for the ends of windows: where nothing waits; all of a window is final.

    It reads a text and the distributions of its tokens, so that every end is a stopping time. The bytes that wait at the end of a
    text may begin a phrase, as many as :meth:`BanningGuide.pending` says.

    With hundreds of phrases nearly every letter may begin one. So after ``length`` tokens what waits may also lie strictly inside
    the last token. After ``4 * length`` tokens it may be anything, and so it may where seven walks in eight would have met a phrase
    on the way, for else a window might never be completed. What waits then is corrected from there on only. Nothing is forgotten,
    the guide's state still knows it.
    """

    length: int  # In tokens

    def allowance(self, written: Sequence[int], survival: float) -> Allowance:
        """Return the number of bytes that may wait if a window ends with its next token.

        ``written``: the lengths of the window's tokens so far.
        ``survival``: the product of the probabilities that the tokens so far, each at its turn, completed no phrase.
        """
        tokens = len(written) + 1
        if tokens >= CERTAIN_END * self.length or survival < LEAST_SURVIVAL:
            return Allowance(ANYTHING, token=False)
        return Allowance(-1, token=True) if tokens >= self.length else Allowance(0, token=False)

    def count_final(self, written: Sequence[int], pending: int) -> int:
        """Return the number of final tokens of an ended window, of the lengths ``written``, while ``pending`` bytes wait."""
        return len(written)


@final
@dataclass(frozen=True)
class Release:
    """A rule for the ends of windows: where nothing of the first token waits; the tokens before what waits are final."""

    def allowance(self, written: Sequence[int], survival: float) -> Allowance:
        """See :meth:`Renewal.allowance`."""
        return Allowance(sum(written[1:]), token=True) if written else Allowance(0, token=False)

    def count_final(self, written: Sequence[int], pending: int) -> int:
        """See :meth:`Renewal.count_final`."""
        after = np.cumsum(written[::-1])[::-1] - written  # bytes after each token
        return int((after >= pending).sum())


Ending: TypeAlias = Renewal | Release


class Windows(ABC):
    """Makes the token trees of windows: those of a table in which every end of a window is an end of the text.

    So ``Phi`` of a tree's root is ``Psi``, the probability that a window is completed, and all that is said of draws, bounds and
    normalisers of a tree is said of the window (theory.md, sections 5, 6.2 and 6.5).
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        # Attempts that fail often fail alike.
        self.phrase_at = lru_cache(_PHRASES)(self._phrase_at)

    def tree(self, state: int, remaining: int) -> BoundsTree:
        """Return the tree of the window that begins in ``state`` with ``remaining`` tokens to write."""
        return BoundsTree(self.table, remaining, start=state, moves=self._moves)

    @abstractmethod
    def _moves(self, node: Node) -> Moves:
        """Return the live tokens of a node; those after which the window ends lead to :data:`DONE`."""

    def ends_before(self, node: Node, log_p: NDArray[np.floating]) -> bool:
        """Return True if the window has ended at ``node``, given the distribution ``log_p[V]`` of the next token."""
        return False

    def count_final(self, tokens: Sequence[int], states: Sequence[int]) -> int:
        """Return the number of final tokens of a window that has ended, with the state after each."""
        return len(tokens)

    @property
    def names(self) -> Sequence[str]:
        """The names of the banned phrases."""
        return () if self.table.guide.phrases is None else self.table.guide.phrases.names

    def _phrase_at(self, state: int, token: int) -> int | None:
        """Return the phrase that rules ``token`` out in ``state``, by its place in the list; ``None`` where none does.

        The one that the token completes; or a whole word that waits after it, where the budget leaves no room to go on.
        """
        guide = self.table.guide
        if not isinstance(guide, BanningGuide):
            return None
        (phrase,) = guide.phrases_at(state, np.array([token]))
        after = DEAD if phrase >= 0 else guide.advance(state, token)
        if after not in (DEAD, DONE):
            (phrase,) = guide.phrases_at(after, np.array(self.table.vocabulary.eos_ids[:1]))
        return int(phrase) if phrase >= 0 else None


@final
class PhraseWindows(Windows):
    """Windows of a guide that knows phrases, which end where ``ending`` says.

    Raises :class:`UnsupportedError`: a guide that knows of no phrases.
    """

    def __init__(self, table: Table, ending: Ending) -> None:
        super().__init__(table)
        if not isinstance(table.guide, BanningGuide):
            raise UnsupportedError(
                f"phi='lookahead' was given for a {type(table.guide).__name__}, which bans no phrases, so there is nothing to look "
                "ahead for. Give banned_phrases=[...], or another phi, such as phi='exact'."
            )
        self.guide, self.ending = table.guide, ending
        self._lengths = np.array([len(token) for token in table.vocabulary.tokens], dtype=np.int64)

    def count_final(self, tokens: Sequence[int], states: Sequence[int]) -> int:
        """See :meth:`Windows.count_final`: those before what waits."""
        if states[-1] == DONE:
            return len(tokens)
        return self.ending.count_final(self._written(tokens), self.guide.pending(states[-1]))

    def _written(self, tokens: Sequence[int]) -> list[int]:
        """Return the number of bytes of each of ``tokens``."""
        return self._lengths[list(tokens)].tolist()

    def _moves(self, node: Node) -> Moves:
        path = node.path()
        survival = math.exp(math.fsum(below.parent.log_live for below in path if below.parent is not None))
        allowance = self.ending.allowance(self._written([below.token for below in path]), survival)

        def build(state: int, remaining: int) -> Moves:
            return self._ended(state, remaining, allowance)

        kind = f"window, {allowance}"
        return self.table.keep_within(kind, node.state, node.remaining, build, lambda moves: moves.leads.nbytes)

    def _ended(self, state: int, remaining: int, allowance: Allowance) -> Moves:
        moves = self.table.moves(state, remaining)
        waiting = self.guide.pending_of(moves.leads)
        if not allowance.token:
            return Moves(moves.tokens, moves.classes, np.where(waiting <= allowance.base, DONE, moves.leads))
        ended = waiting[moves.classes] <= allowance.base + self._lengths[moves.tokens]
        return Moves(moves.tokens, np.arange(len(moves.tokens)), np.where(ended, DONE, moves.targets))


@final
class BlockWindows(Windows):
    """Windows that are blocks of a format, see :meth:`~outlines_phi.guides.guide.Guide.begins_block` (theory.md, section 6.5).

    A block ends with the first token that introduces the next value: with its colon, or the comma before an item. Where something
    else has to come between two values than the model would write, which has a probability of less than ``least``, it ends before
    that. Both are stopping times.
    """

    def __init__(self, table: Table, least: float) -> None:
        super().__init__(table)
        self._least = math.log(least) if least > 0 else -math.inf

    def ends_before(self, node: Node, log_p: NDArray[np.floating]) -> bool:
        """See :meth:`Windows.ends_before`: between two values, before what is improbable."""
        between = self.table.guide.between_blocks
        if not between(node.state) or between(node.root.state):
            return False
        log_live = log_sum(log_p[self.table.moves(node.state, node.remaining).tokens].tolist())
        return -math.inf < log_live < self._least  # where nothing can follow, the block is not completed

    def _moves(self, node: Node) -> Moves:
        def build(state: int, remaining: int) -> Moves:
            moves = self.table.moves(state, remaining)
            begun = self.table.guide.begins_block(state, moves.tokens)
            return Moves(moves.tokens, np.arange(len(moves.tokens)), np.where(begun, DONE, moves.targets))

        return self.table.keep_within("block", node.state, node.remaining, build, lambda moves: moves.leads.nbytes)
