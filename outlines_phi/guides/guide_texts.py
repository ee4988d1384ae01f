"""Texts of a guide: a shortest one from each state, and all texts of a small finite language."""

from __future__ import annotations

import heapq
from typing import final

import numpy as np

from ..vocabulary.classes import EOS
from .guide import DEAD, DONE, UNREACHABLE, Guide
from .table import Table


@final
class ShortestTexts:
    """For each state of a guide, what one of its shortest token sequences writes, always the same.

    The sequences of two states are one from where they meet, so each state that they lead through costs one row.
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


def list_texts(table: Table, state: int, budget: int, limit: int) -> list[bytes] | None:
    """Return every text of at most ``budget`` tokens from ``state`` on, end of sequence included, in the order of their bytes; all
    members where texts begin with one.

    Prefixes are merged by what they have written and where they stand, so the work grows with the texts and not with their
    tokenizations. ``None`` where the prefixes of texts are more than ``limit``, or infinitely many.
    """
    if table.guide.match is not None:
        members = table.guide.match.members.members_up_to(limit, limit)
        return members and sorted(members)
    start = (b"", state)
    # The budget left after the prefix: the most over all of its tokenizations, which are all shorter and so done before.
    remaining = {start: budget}
    queue = [(0, *start)]
    texts: set[bytes] = set()
    while queue:
        _, text, state = heapq.heappop(queue)
        left = remaining[text, state]
        if len(remaining) + table.live_count(state, left) > 2 * limit:
            return None
        moves = table.moves(state, left)
        for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
            if target == DONE:
                texts.add(text)
                continue
            below = (text + table.vocabulary.tokens[token], target)
            if below not in remaining:
                if len(remaining) >= limit:
                    return None
                heapq.heappush(queue, (len(below[0]), *below))
            remaining[below] = max(remaining.get(below, 0), left - 1)
    return sorted(texts)
