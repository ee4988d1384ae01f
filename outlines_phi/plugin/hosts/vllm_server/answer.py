"""What the processor in the engine tells the client: numbers in the place of the log probabilities that the server returns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, final

from torch import Tensor

from .engine_walks import WalkAccount, WalkEnd

NUMBERS = 5
"""How many numbers come with the last token of a draw."""

SHOWN = (
    NUMBERS + 1
)  # Tokens of a step that the server is to return: the one that is written, and those that carry numbers

MARK = 128.0
"""The logit of the token to write is this and its outcome; a sampler gives tokens that far below no probability at all."""

SCALE = 2.0**-13
"""Numbers are written by this scale, which loses nothing: the server returns none below -9999."""

LEAST = -9999.0

PREFIX = "token_id:"  # How the server writes an id


@final
@dataclass(frozen=True)
class Answer:
    """The end of one draw: its tokens, what became of it, the length limit that it had, and its place in the launch order.

    Where the limit is too small, ``budget`` is the least that would do.
    """

    tokens: tuple[int, ...]
    text: str | None
    outcome: WalkEnd
    account: WalkAccount
    budget: int
    launch: int


def carriers(token: int) -> Iterator[int]:
    """Yield the ids whose logits carry numbers beside a token to write: the lowest others."""
    return islice((other for other in count() if other != token), NUMBERS)


def force(row: Tensor, token: int, outcome: WalkEnd, account: WalkAccount, budget: int, launch: int) -> None:
    """Let a row of logits, ``[V]``, write ``token`` and carry the numbers, none of which is positive."""
    row.fill_(-math.inf)
    row[token] = MARK + outcome
    for carrier, number in zip(carriers(token), (*account, -budget, -launch), strict=True):
        row[carrier] = number * SCALE


def read(choice: Any) -> Answer | None:
    """Return what a choice of the server's response says; ``None`` where no processor of ours wrote it."""
    tokens: list[int] = []
    for step in getattr(choice.logprobs, "content", None) or ():
        mark = step.logprob - MARK
        if not step.token.startswith(PREFIX) or mark not in tuple(WalkEnd):
            return None
        tokens.append(int(step.token.removeprefix(PREFIX)))
        if (outcome := WalkEnd(int(mark))) is not WalkEnd.UNDER_WAY:
            found = {int(other.token.removeprefix(PREFIX)): other.logprob for other in step.top_logprobs}
            numbers = [found.get(carrier, LEAST) for carrier in carriers(tokens[-1])]
            *account, budget, launch = (x / SCALE if x > LEAST else -math.inf for x in numbers)
            return Answer(
                tuple(tokens), choice.message.content, outcome, WalkAccount(*account), -int(budget), -int(launch)
            )
    return None
