"""The texts of a small finite language, listed from its guide."""

from __future__ import annotations

import heapq

from .guide import DONE
from .table import Table


def list_texts(table: Table, budget: int, limit: int) -> list[bytes] | None:
    """Return every text that the guide allows in ``budget`` tokens, end of sequence included, in the order of their bytes.

    All ways to write a text stand for one: prefixes are merged by what they have written and where they stand, so the work
    grows with the texts and not with their spellings.

    Returns
    -------
    list of bytes
        ``None`` where the prefixes of texts are more than ``limit``, or infinitely many.
    """
    start = (b"", table.start)
    # What may still be written after the prefix: the most over all of its spellings, which are all shorter and so done before.
    remaining = {start: budget}
    queue = [(0, *start)]
    texts: set[bytes] = set()
    while queue:
        _, text, state = heapq.heappop(queue)
        left = remaining[text, state]
        moves = table.moves(state, left)
        if len(remaining) + moves.tokens.size > 2 * limit:
            return None
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
