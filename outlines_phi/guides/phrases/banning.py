"""Guides of texts without certain phrases: what a look-ahead reads of them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from ..guide import DONE, Guide
from .banned import BannedPhrases


class BanningGuide(Guide):
    """A guide that knows which phrases it keeps out, and how much of a text may still become the beginning of one.

    Attributes
    ----------
    phrases
        What is kept out.
    """

    phrases: BannedPhrases

    @abstractmethod
    def pending(self, state: int) -> int:
        """Return how many bytes at the end of the text may begin a phrase; 0 where nothing waits (theory.md, section 6.1)."""

    def pending_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return :meth:`pending` of every entry of ``states``; 0 for DEAD and DONE."""
        distinct, places = np.unique(states, return_inverse=True)
        waiting = [self.pending(state) if state > DONE else 0 for state in distinct.tolist()]
        return np.array(waiting, dtype=np.int64)[places]

    @abstractmethod
    def phrases_at(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return which phrase each of ``tokens`` would complete in ``state``, by its place in the list; -1 for none.

        Where a token completes several, the first to be complete. The end of sequence completes a whole word that waits for it.
        """
