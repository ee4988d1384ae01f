"""The accounts of the tokens of draws, from what walks and trees have read: no model call is made for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat

from ..guides.guide import DEAD
from ..guides.table import Table
from ..phi.tree.tree import Node
from ..vocabulary.vocabulary import Vocabulary
from .draws import Alternative, TokenAccount


def alternatives(vocabulary: Vocabulary, found: Iterable[tuple[int, float, bool]]) -> tuple[Alternative, ...]:
    """Return the tokens ``(id, log p, allowed)`` that have a probability, the likeliest first, ties by their ids."""
    order = sorted((each for each in found if each[1] > -math.inf), key=lambda each: (-each[1], each[0]))
    return tuple(Alternative(token, vocabulary.text_of(token), log_p, allowed) for token, log_p, allowed in order)


def path_accounts(
    table: Table,
    path: Sequence[Node],
    top: int,
    likeliest: Callable[[Node, int], dict[int, float] | None],
    log_q: Iterable[float | None] = repeat(None),
    *,
    whole: bool = True,
) -> Iterator[TokenAccount]:
    """Yield the account of the last token of each node of a path.

    ``likeliest`` returns ``log p`` of the likeliest tokens after a prefix, ``None`` where they are not known any more. The lower
    bounds of a tree that is not of ``whole`` texts, but of windows, say nothing of them.
    """
    for node, proposed in zip(path, log_q, strict=False):
        above = node.parent
        assert above is not None
        log_s = above.log_live
        yield TokenAccount(
            node.token,
            table.vocabulary.text_of(node.token),
            node.log_step,
            proposed,
            log_s if log_s > -math.inf else None,
            above.log_lower if whole else -math.inf,
            min(0.0, above.log_upper),
            _alternatives(table, above, likeliest(above, top)) if top else (),
        )


def _alternatives(table: Table, node: Node, known: dict[int, float] | None) -> tuple[Alternative, ...] | None:
    """Return the tokens after ``node`` of which ``log p`` is known; ``None`` where that of none is."""
    if known is None:
        return None
    moves = table.moves(node.state, node.remaining)
    found = ((token, log_p, moves.target(token) != DEAD) for token, log_p in known.items())
    return alternatives(table.vocabulary, found)
