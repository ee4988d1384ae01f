"""What followed the same tokens before: in the prompt, or in the text itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..guides.table import Table
from ..partition import EOS
from .drafter import NOTHING, Draft, Drafter, Drafting, DraftRun, Site


@final
@dataclass(frozen=True)
class PromptLookupDrafter(Drafter):
    """Proposes what followed the last tokens where they stood before (Saxena, "Prompt Lookup Decoding", 2023).

    Of the places in prompt and text where the last ``ngram`` tokens stood before, the latest after which the guide allows the
    token that followed there; if there is none, the same for ever fewer tokens, down to one. An output that takes values out of its
    prompt is written so, several tokens in a call.

    Attributes
    ----------
    ngram
        The most tokens that have to agree.

    Raises
    ------
    UnsupportedError
        ``ngram`` is not a positive whole number.
    """

    ngram: int = 3
    name: ClassVar[str] = "prompt_lookup"

    def __post_init__(self) -> None:
        if isinstance(self.ngram, bool) or not isinstance(self.ngram, int) or self.ngram < 1:
            raise UnsupportedError(
                f"PromptLookupDrafter(ngram={self.ngram!r}) was given; expected a whole number of at least 1."
            )

    def begin(self, run: DraftRun) -> Drafting:
        """See :meth:`Drafter.begin`."""
        return _PromptLookup(run.table, self.ngram)


@final
class _PromptLookup(Drafting):
    def __init__(self, table: Table, ngram: int) -> None:
        self._table, self._ngram = table, ngram

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [self._draft(site, length) for site, length in zip(sites, lengths, strict=True)]

    def _draft(self, site: Site, length: int) -> Draft:
        text = np.array(site.prompt + site.tokens, dtype=np.int64)
        place = self._place(text, self._live(site, text))
        return NOTHING if place is None else Draft(tuple(text[place : place + length].tolist()))

    def _live(self, site: Site, text: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which tokens of ``text`` may follow the site and do not end it. A prompt may hold ids that cannot be written."""
        live, class_of = (
            self._table.live_classes(site.state, site.remaining),
            self._table.partition(site.state).class_of,
        )
        live[EOS] = False
        known = text < len(class_of)
        return known & live[class_of[np.where(known, text, 0)]]

    def _place(self, text: NDArray[np.int64], live: NDArray[np.bool_]) -> int | None:
        """Return where the continuation begins: a live token after the longest, then latest, earlier end of the text."""
        agree = live.copy()  # [i]: the tokens before i are those before the end, as many as were compared
        agree[0] = False
        found = None
        for n in range(1, min(self._ngram, len(text) - 1) + 1):
            agree[n:] &= text[: len(text) - n] == text[-n]
            agree[:n] = False
            places = agree.nonzero()[0]
            if not len(places):
                break
            found = int(places[-1])
        return found
