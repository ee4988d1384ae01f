"""A text of a guide with as few tokens as can be."""

from __future__ import annotations

from typing import final

import numpy as np

from ..vocabulary.classes import EOS
from .guide import DEAD, UNREACHABLE, Guide


@final
class ShortestTexts:
    """For each state of a guide, what one of its shortest token sequences writes, always the same.

    The sequences of two states are one from where they meet, so each state that they lead through costs one row.

    Parameters
    ----------
    guide
        What is allowed.
    """

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self._texts: dict[int, bytes] = {}

    def text(self, state: int) -> bytes:
        """Return the text for ``state``, from which an end can be reached."""
        known = self._guide.shortest_text(state)
        if known is not None:
            return known
        steps, here = list[tuple[int, bytes]](), state
        while here not in self._texts:
            if self._guide.min_tokens(here) == (0 if self._guide.open else 1):
                self._texts[here] = b""
                break
            token, target = self._next(here)
            steps.append((here, token))
            here = target
        for before, token in reversed(steps):
            self._texts[before] = token + self._texts[here]
            here = before
        return self._texts[state]

    def _next(self, state: int) -> tuple[bytes, int]:
        """Return a token that leads from ``state`` nearer to the end, and where it leads."""
        row = self._guide.row(state)
        least = self._guide.min_tokens_of(row.targets)
        least[(row.targets == DEAD) | (np.arange(len(least)) == EOS)] = UNREACHABLE
        nearest = int(least.argmin())
        token = int((row.partition.class_of == nearest).argmax())
        return self._guide.vocabulary.tokens[token], int(row.targets[nearest])
