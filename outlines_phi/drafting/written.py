"""What has been written after a prompt, as far as later rounds and calls have seen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import final

import numpy as np

from ..numerics.cache import Cache
from .drafter import Draft, Drafting, DraftRun, Site

PLACES = 2**11
"""Places that are kept of a prompt; where they are full, nothing new is taken note of."""

PROMPTS = 16
"""Prompts that are kept of a table, those of the latest calls."""

BYTES_KEPT = 400 * PLACES * PROMPTS
"""The memory that these take at most, about."""


@final
@dataclass(eq=False, slots=True)
class Place:
    """A text, and what has been written after it.

    Attributes
    ----------
    visits
        How often a text that was to be continued had come this way.
    below
        The texts that are one token longer.
    """

    visits: int = 0
    below: dict[int, Place] = field(default_factory=dict)


@final
class Written:
    """The texts that were written after one prompt."""

    def __init__(self) -> None:
        self._start = Place()
        self._places = 0

    def take_note(self, tokens: Sequence[int]) -> None:
        """Take note of a text that is to be continued."""
        place = self._start
        for token in tokens:
            if token not in place.below:
                if self._places >= PLACES:
                    return
                place.below[token] = Place()
                self._places += 1
            place = place.below[token]
            place.visits += 1

    def after(self, tokens: Sequence[int], length: int) -> tuple[int, ...]:
        """Return the way on that was taken most often, of at most ``length`` tokens."""
        place: Place | None = self._start
        for token in tokens:
            place = None if place is None else place.below.get(token)
        path: list[int] = []
        while place is not None and place.below and len(path) < length:
            # A copy, because a call in another thread may take note meanwhile.
            token, place = max(list(place.below.items()), key=lambda item: item[1].visits)
            path.append(token)
        return tuple(path)


@final
class LatestPrompts:
    """What was written after the prompts of the latest calls."""

    def __init__(self) -> None:
        self._written: Cache[tuple[int, ...], Written] = Cache(PROMPTS)
        self._lock = Lock()  # a stream of the host's loop runs in a thread of its own, beside other calls

    def written(self, prompt: tuple[int, ...]) -> Written:
        """Return what was written after ``prompt``."""
        with self._lock:
            return self._written.of(prompt, Written)


@final
class WrittenDrafting(Drafting):
    """Proposes what was written after the same text before: in this call, and in earlier ones of a table.

    A call with a seed knows nothing of others: what it returns does not depend on them, where drafts beside these are drawn.
    """

    def __init__(self, run: DraftRun) -> None:
        if run.settings.seed is not None:
            self._written = [Written() for _ in run.prompts]
            return
        kept = run.table.keep("written", run.table.start, LatestPrompts, lambda _: BYTES_KEPT)
        self._written = [kept.written(prompt) for prompt in run.prompts]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        for site in sites:
            self._written[site.row].take_note(site.tokens)
        return [
            Draft(self._written[site.row].after(site.tokens, length))
            for site, length in zip(sites, lengths, strict=True)
        ]
