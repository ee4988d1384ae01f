"""A real vocabulary, its tokenizer, and guides over it."""

from __future__ import annotations

from outlines_phi import Vocabulary
from outlines_phi.guides import FSMGuide, Guide
from outlines_phi.vocabulary.canonical import CanonicalTokenization
from tests.drafting.runs import table_of
from tests.inner import Row, bundled

_, TOKENIZER = bundled.load()
REAL = Vocabulary.from_tokenizer(TOKENIZER)
CANONICAL = CanonicalTokenization(TOKENIZER, REAL)


class Unfolded(Guide):
    """A guide whose byte automaton nobody knows."""

    def __init__(self, guide: FSMGuide) -> None:
        self._guide, self.vocabulary, self.start = guide, guide.vocabulary, guide.start

    def row(self, state: int) -> Row:
        return self._guide.row(state)

    def min_tokens(self, state: int) -> int:
        return self._guide.min_tokens(state)

    def describe(self, state: int) -> str:
        return self._guide.describe(state)


def guides(pattern: str, vocabulary: Vocabulary = REAL) -> dict[str, Guide]:
    guide = table_of(pattern, vocabulary).guide
    assert isinstance(guide, FSMGuide)
    return {"bytes": guide, "tokens": Unfolded(guide)}
