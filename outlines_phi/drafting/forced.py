"""The text that the guide forces, as the tokenizer writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from .drafter import Drafter, Drafting, DraftRun
from .forced_texts import ForcedTexts
from .spelled import spelled


@final
@dataclass(frozen=True)
class ForcedDrafter(Drafter):
    """Proposes the text that the guide forces: while there is one way on in bytes, but for blanks, it is followed.

    The guide allows many spellings of that text by tokens; the probable one is the tokenizer's own, of the text together with the
    last few tokens. Tokens at its end that the tokenizer would merge with most of what may follow are left out: of a word whose
    rest is free, the forced beginning is not what will be written. Optional blanks are written as the text has done so far.
    """

    name: ClassVar[str] = "forced"

    def begin(self, run: DraftRun) -> Drafting:
        """See :meth:`Drafter.begin`."""
        return spelled(run, _after)


def _after(texts: ForcedTexts, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
    return texts.after(state, last, spaced, most)
