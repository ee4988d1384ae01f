"""The occurrences of phrases in a text, found by Python itself: the oracle of every matcher."""

import codecs
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from tests.leaks import occurrences

SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")


def is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def characters(text: bytes, finished: bool) -> list[str]:
    """The characters of a text; what may still become one is left out unless the text is finished."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    own = decoder.decode(text, finished)
    held, _ = decoder.getstate()
    # Python also holds the beginning of a surrogate, which no byte can complete.
    return list(own + (decoder.decode(b"", True) if SURROGATE.match(held) else ""))


def width(character: str) -> int:
    return len(character.encode(errors="surrogateescape"))


@cache
def members_of(pattern: re.Pattern[str], alphabet: str) -> list[str]:
    """The matches of a pattern with at most five characters of the alphabet."""
    texts = ("".join(text) for length in range(1, 6) for text in product(alphabet, repeat=length))
    return [text for text in texts if pattern.fullmatch(text)]


@dataclass(frozen=True)
class Occurrences:
    """The occurrences of phrases with these options."""

    phrases: Sequence[str | re.Pattern[str]]
    ignore_case: bool = False
    whole_word: bool = False

    def of(self, text: bytes, finished: bool = False) -> set[tuple[int, int, int, int]]:
        """All occurrences that no continuation can undo: phrase, first byte, and where they begin and end in what is searched."""
        own, found = characters(text, finished), set()
        bytes_before = [sum(map(width, own[:place])) for place in range(len(own))]
        for index, phrase in enumerate(self.phrases):
            folds = self.ignore_case and isinstance(phrase, str)
            letters = [(f, place) for place, c in enumerate(own) for f in (c.casefold() if folds else c)]
            searched = "".join(f for f, _ in letters)
            found |= {
                (index, bytes_before[letters[start][1]], start, end)
                for start, end in occurrences(phrase, searched, self.ignore_case)
                if not self.whole_word or self._is_whole(searched, start, end, finished)
            }
        return found

    def completed(self, text: bytes) -> tuple[int, ...]:
        """Return the phrases that the last byte completes."""
        return tuple(sorted({index for index, *_ in self.of(text) - self.of(text[:-1])})) if text else ()

    def completed_at_end(self, text: bytes) -> tuple[int, ...]:
        """Return the phrases that the end of the text completes."""
        return tuple(sorted({index for index, *_ in self.of(text, True) - self.of(text)}))

    def pending(self, text: bytes, alphabet: Sequence[str]) -> int:
        """Return the length of the longest suffix that some continuation completes, in bytes."""
        now = self.of(text)
        completing = (self.of(text + more, True) - now for more in self._continuations(text, alphabet))
        starts = [first for found in completing for _, first, *_ in found]
        return max([len(text) - start for start in starts if start < len(text)], default=0)

    def _continuations(self, text: bytes, alphabet: Sequence[str]) -> Iterator[bytes]:
        held = text[sum(map(width, characters(text, False))) :]
        rests = [c.encode()[len(held) :] for c in alphabet if held and c.encode().startswith(held)]
        members = [member for phrase in self.phrases for member in self._members(phrase, "".join(alphabet))]
        suffixes = {member[place:].encode() for member in members for place in range(len(member) + 1)}
        return (first + suffix for first in [b"", *rests] for suffix in suffixes)

    def _members(self, phrase: str | re.Pattern[str], alphabet: str) -> list[str]:
        if isinstance(phrase, re.Pattern):
            return members_of(phrase, alphabet)
        return [phrase.casefold() if self.ignore_case else phrase]

    def _is_whole(self, searched: Sequence[str], start: int, end: int, finished: bool) -> bool:
        if start > 0 and is_word(searched[start - 1]):
            return False
        return finished if end == len(searched) else not is_word(searched[end])
