"""The guess that a value ends here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from .drafter import Drafter, Drafting, DraftRun
from .forced_texts import ForcedTexts
from .spelled import spelled


@final
@dataclass(frozen=True)
class EndingDrafter(Drafter):
    """Proposes that the value that is being written ends here, and the text that is forced after it.

    Where a value may go on as it began or end in one way, as a string of JSON by its closing quotation mark, that way is taken. So
    the end of a short value costs no call of its own. In long texts the guess is seldom right: it belongs behind drafters that know
    more, inside an :class:`~outlines_phi.drafting.length.AdaptedLength`, which is where ``draft="forced"`` puts it.
    """

    name: ClassVar[str] = "ending"

    def begin(self, run: DraftRun) -> Drafting:
        """See :meth:`Drafter.begin`."""
        return spelled(run, _ending)


def _ending(texts: ForcedTexts, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
    return texts.ending(state, last, spaced, most)
