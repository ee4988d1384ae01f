"""Phrases whose states come up as texts lead there: with case folded, as whole words, and regular expressions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton, explored, joint_classes
from ...numerics.cache import kept
from ...regex.code_automaton import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE
from ...regex.spelling import NOWHERE, utf8
from .matcher import Facts, PhraseMachine

_BLOCK = 256


def is_word(character: str) -> bool:
    """Return True if ``character`` is part of a word: a letter, a number in any script, or ``_``."""
    return character.isalnum() or character == "_"


@cache
def word_characters() -> NDArray[np.bool_]:
    """``bool[CODE_POINTS]``: :func:`is_word` of every character."""
    found = np.zeros(CODE_POINTS, dtype=bool)
    for first in range(0, CODE_POINTS, _BLOCK):
        block = "".join(map(chr, range(first, first + _BLOCK)))
        # Most blocks are all letters or have none.
        found[first : first + _BLOCK] = True if block.isalnum() else [is_word(character) for character in block]
    found.flags.writeable = False
    return found


@cache
def foldings() -> dict[str, str]:
    """The full case folding of every character that has another than itself."""
    folded: dict[str, str] = {}
    for first in range(0, CODE_POINTS, _BLOCK):
        block = "".join(map(chr, range(first, first + _BLOCK)))
        if block.casefold() != block:
            folded |= {c: c.casefold() for c in block if c.casefold() != c}
    return folded


NOTHING = 0  # The reading of no character
BROKEN = 1  # The reading of a character that is no part of a word, and of bytes that are no character
WORD, LEADS, TRAILS = 2, 4, 8
"""Added to :data:`BROKEN`: the character is part of a word; the first character of its folding is, and the last one."""


@final
@dataclass(frozen=True, eq=False)
class CharacterReader:
    """A transducer from bytes to the readings of characters.

    A state is what of a character has been held back; state 0 is between characters. A byte that cannot continue the character
    breaks it: the bytes held are then no characters, each one that is no part of a word, and the byte is read in state 0. This is
    how Python decodes with ``errors="surrogateescape"``.
    """

    after: NDArray[np.int32]  # ``int32[R, C]``: the next state
    breaks: NDArray[np.bool_]  # ``bool[R, C]``: whether the bytes held are no character
    completes: NDArray[np.int32]  # ``int32[R, C]``: the reading of the character that this byte completes, or `NOTHING`
    byte_class: NDArray[np.uint8]  # ``uint8[256]``: the column of each byte

    @cached_property
    def moves(self) -> list[list[tuple[int, bool, int]]]:
        """``after``, ``breaks`` and ``completes`` of each state and column, as a walk of single bytes reads them."""
        parts = (part.tolist() for part in (self.after, self.breaks, self.completes))
        return [list(zip(*rows, strict=True)) for rows in zip(*parts, strict=True)]

    @classmethod
    @kept
    def of(cls, *, ignore_case: bool) -> CharacterReader:
        """Return the reader of characters and of their foldings; where case is not ignored, each folds to itself."""
        reading_of = BROKEN + (WORD + LEADS + TRAILS) * word_characters().astype(np.int32)
        for character, folded in foldings().items() if ignore_case else ():
            kinds = WORD * is_word(character) + LEADS * is_word(folded[0]) + TRAILS * is_word(folded[-1])
            reading_of[ord(character)] = BROKEN + kinds
        reading_of[FIRST_SURROGATE:AFTER_SURROGATES] = reading_of[FIRST_SURROGATE - 1]  # no run begins among those
        bounds = np.flatnonzero(np.diff(reading_of, prepend=-1))
        graph = utf8(bounds, reading_of[bounds])
        places, after = explored(
            [graph.root],
            lambda place: [to if to >= graph.classes else graph.root for to in graph.table[place].tolist()],
        )
        found = graph.table[list(places)]
        completes = np.where(found < graph.classes, found, NOTHING).astype(np.int32)
        # A byte that cannot go on is read between characters, where it is no character if none begins with it.
        breaks = found == NOWHERE
        completes[0, breaks[0]], breaks[0] = BROKEN, False
        completes, after = np.where(breaks, completes[0], completes), np.where(breaks, after[1], after[1:]) - 1
        columns = np.concatenate([after, breaks, completes])
        _, first, byte_class = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        return cls(after[:, first], breaks[:, first], completes[:, first], byte_class.reshape(-1).astype(np.uint8))


class PhraseTexts(ABC):
    """A machine over the bytes of occurrences of phrases, from the character that one begins in; a place is an ``int``.

    ``start`` is the place where a character begins, ``inner`` are those inside of the folding of one, where an occurrence may begin
    whatever comes before. An occurrence has at most ``longest`` bytes. ``completed`` and ``waiting`` have the phrases of the places
    where some end: for certain, and unless the next character makes another word of it. ``leads`` and ``trails`` say which readings
    go on with a word.
    """

    start: int
    inner: Sequence[int] = ()
    longest: int
    completed: dict[int, tuple[int, ...]]
    waiting: dict[int, tuple[int, ...]]
    byte_class: NDArray[np.uint8]
    leads: int
    trails: int

    @abstractmethod
    def after(self, place: int, byte: int) -> int | None:
        """Return the place after a byte; ``None`` where no phrase goes on so."""

    @abstractmethod
    def goes_on(self, place: int) -> bool:
        """Return True if a phrase goes on behind a place."""


@final
class PatternTexts(PhraseTexts):
    """The texts of a regular expression: a trimmed automaton without the empty one, its members of bounded length."""

    leads = trails = WORD

    def __init__(self, automaton: ByteAutomaton, longest: int, phrase: int, *, whole_word: bool) -> None:
        self.longest = longest
        self.start, self.byte_class = automaton.start, automaton.byte_class
        self._targets, self._column = automaton.targets.tolist(), automaton.byte_class.tolist()
        self._goes_on: list[bool] = (automaton.targets != DEAD).any(axis=1).tolist()
        ends: dict[int, tuple[int, ...]] = dict.fromkeys(np.flatnonzero(automaton.accepting).tolist(), (phrase,))
        self.completed, self.waiting = ({}, ends) if whole_word else (ends, {})

    def after(self, place: int, byte: int) -> int | None:
        return self._targets[place][self._column[byte]] or None

    def goes_on(self, place: int) -> bool:
        return self._goes_on[place]


_MOST_FOLDED = 3  # The most characters that one folds to
_WIDEST = 3  # The most bytes of a character for each byte of its folding: K, the sign of kelvins, folds to `k`
_WITHIN = -1  # The node of a place within a character, or behind one that ends phrases and goes on with none


@final
class LiteralTexts(PhraseTexts):
    """The texts in which literals occur, by a trie of these; a text is read as the foldings of its characters.

    The places are those between the characters of a text, at a node of the trie, and those within one; the edges of a node are made
    when a text leads there.
    """

    leads, trails = LEADS, TRAILS

    def __init__(self, phrases: Mapping[str, tuple[int, ...]], *, ignore_case: bool, whole_word: bool) -> None:
        self._whole_word = whole_word
        self._children: list[dict[str, int]] = [{}]
        self._ends: dict[int, tuple[int, ...]] = {}
        for text, indices in phrases.items():
            node = 0
            for character in text:
                node = self._children[node].setdefault(character, len(self._children))
                self._children += [{}] * (node == len(self._children))
            self._ends[node] = indices
        self.longest = max(len(text.encode()) for text in phrases) * (_WIDEST if ignore_case else 1)
        alphabet = frozenset("".join(phrases))
        folded = foldings() if ignore_case else {}
        self._folded = {c: folded.get(c, c) for c in alphabet}
        self._folded |= {c: letters for c, letters in folded.items() if not alphabet.isdisjoint(letters)}
        self._spelled_by: list[dict[str, list[str]]] = [{} for _ in range(_MOST_FOLDED)]
        for character, letters in self._folded.items():
            for skipped, letter in enumerate(letters):
                self._spelled_by[skipped].setdefault(letter, []).append(character)
        used = np.frombuffer("".join(self._folded).encode(), dtype=np.uint8)
        self.byte_class = np.zeros(256, dtype=np.uint8)
        self.byte_class[np.unique(used)] = np.arange(1, len(np.unique(used)) + 1)
        self.completed, self.waiting = {}, {}
        self._edges: list[dict[int, int]] = []  # of each place
        self._unread = set[int]()  # the places whose edges are not made yet
        self._at: list[tuple[int, int]] = []  # the node of each place, and the letters of a folding to skip
        self._number: dict[tuple[int, tuple[int, ...]], int] = {}
        self.start, *self.inner = [self._new(0, skipped) for skipped in range(_MOST_FOLDED)]

    def after(self, place: int, byte: int) -> int | None:
        if place in self._unread:
            self._unread.remove(place)
            self._expand(place, *self._at[place])
        return self._edges[place].get(byte)

    def goes_on(self, place: int) -> bool:
        return bool(self._children[self._at[place][0]] if place in self._unread else self._edges[place])

    def _expand(self, place: int, node: int, skipped: int) -> None:
        """Make the edges of a place between characters, and of those within the next one."""
        for letter in self._children[node]:
            for character in self._spelled_by[skipped].get(letter, ()):
                letters, (*begun, last) = self._folded[character], character.encode()
                if skipped and self._whole_word and is_word(letters[skipped - 1]):
                    continue
                target, here = self._read(node, letters[skipped:]), self._edges[place]
                if target is not None:
                    for byte in begun:
                        if byte not in here:
                            here[byte] = self._new(_WITHIN)
                        here = self._edges[here[byte]]
                    here[last] = target

    def _read(self, node: int, letters: str) -> int | None:
        """Return the place after the folding of a character; ``None`` where no phrase ends in it or goes on behind it."""
        ended: tuple[int, ...] = ()
        for letter, behind in zip(letters, (*letters[1:], None), strict=True):
            node = self._children[node].get(letter, _WITHIN)
            if node == _WITHIN:
                break
            if not self._whole_word or (behind is not None and not is_word(behind)):
                ended += self._ends.get(node, ())
        if node == _WITHIN and not ended:
            return None
        place = self._number.setdefault((node, ended), len(self._edges))
        if place == len(self._edges):
            self._new(node)
            if ended:
                self.completed[place] = ended
            if self._whole_word and node in self._ends:
                self.waiting[place] = self._ends[node]
        return place

    def _new(self, node: int, skipped: int = 0) -> int:
        place = len(self._edges)
        self._edges.append({})
        self._at.append((node, skipped))
        if node != _WITHIN:
            self._unread.add(place)
        return place


Begun = tuple[tuple[tuple[int, int], int], ...]
"""Occurrences that have begun: which of the machines, its place, and the bytes of the longest one; ascending."""

Waiting = tuple[tuple[tuple[int, int], int], ...]
"""Phrases that end unless the next character goes on with the word: the machine, the phrase, and the bytes of the longest one."""


class ThreadsKey(NamedTuple):
    """A state of :class:`PhraseThreads`.

    ``held`` is the state of the reader; ``last`` the reading of the character before. ``completed`` are the phrases of which the
    last byte completed an occurrence.
    """

    held: int
    last: int
    begun: Begun
    waiting: Waiting
    completed: tuple[int, ...]


@final
class PhraseThreads(PhraseMachine):
    """Occurrences in a text, which may begin at every character; what has begun moves on in the machine of its phrase.

    Those that meet in a place go on as one, with the bytes of the longest one.
    """

    def __init__(self, texts: Sequence[PhraseTexts], names: Sequence[str], reader: CharacterReader | None) -> None:
        self.names, self._texts, self._reader = tuple(names), tuple(texts), reader
        classes = [one.byte_class for one in texts] + ([] if reader is None else [reader.byte_class])
        self.byte_class, _ = joint_classes(classes)
        # A whole word takes the characters before and after it.
        self.longest = max(one.longest for one in texts) + (0 if reader is None else 8)
        self._after = [one.after for one in texts]
        self._alone: dict[Hashable, ThreadsKey] = {}
        self._begins: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self.start = ThreadsKey(0, BROKEN, (), (), ())

    def follow(self, keys: Sequence[ThreadsKey], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        return [self._read(key, byte) for key, byte in zip(keys, bytes.tolist(), strict=True)]

    def facts(self, key: ThreadsKey) -> Facts:
        begun, waiting = (tuple(which for which, _ in pairs) for pairs in (key.begun, key.waiting))
        pending = max((size for _, size in (*key.begun, *key.waiting)), default=0)
        at_end = tuple(sorted(phrase for _, phrase in waiting))
        return Facts(key.completed, at_end, pending, (key.held, key.last, begun, waiting))

    def after_prompt(self, key: ThreadsKey) -> Hashable:
        return key._replace(waiting=())

    def _read(self, key: ThreadsKey, byte: int) -> ThreadsKey:
        """Return the key after ``byte``; where nothing that has begun goes on, it is found once."""
        after = self._after
        begun = [(n, to, size + 1) for (n, at), size in key.begun if (to := after[n](at, byte)) is not None]
        if begun:
            return self._moved(key, byte, begun)
        alone = key.held, key.last, key.waiting, byte
        if alone not in self._alone:
            self._alone[alone] = self._moved(key, byte, [])
        return self._alone[alone]

    def _beginning(self, last: int, byte: int) -> list[tuple[int, int, int]]:
        """Return the occurrences that begin with a byte after a character of a reading, found once."""
        found = self._begins.get((last, byte))
        if found is None:
            starts = [(*one.inner, *[one.start] * (not last & one.trails)) for one in self._texts]
            ways = [(n, self._after[n](at, byte)) for n, places in enumerate(starts) for at in places]
            found = self._begins[last, byte] = [(n, to, 1) for n, to in ways if to is not None]
        return found

    def _moved(self, key: ThreadsKey, byte: int, moved: list[tuple[int, int, int]]) -> ThreadsKey:
        """Return the key after ``byte``: without a reader every occurrence counts, and nothing waits.

        ``moved`` is what had begun before, each with its machine, the place after the byte, and its bytes.
        """
        held, last, breaks, reading = 0, BROKEN, False, NOTHING
        waiting = key.waiting
        completed: set[int] = set()
        if self._reader is not None:
            held, breaks, reading = self._reader.moves[key.held][self._reader.byte_class.item(byte)]
            last = BROKEN if breaks else key.last
            if breaks:  # the bytes held are no part of a word
                completed, waiting = {phrase for (_, phrase), _ in waiting}, ()
        begun: dict[tuple[int, int], int] = {}
        ended: dict[tuple[int, int], int] = {}
        if breaks or not key.held:
            moved += self._beginning(last, byte)
        for number, target, size in moved:
            texts = self._texts[number]
            if texts.goes_on(target):
                begun[number, target] = max(begun.get((number, target), 0), size)
            completed.update(texts.completed.get(target, ()))
            for phrase in texts.waiting.get(target, ()):
                ended[number, phrase] = max(ended.get((number, phrase), 0), size)
        kept = {which: size + 1 for which, size in waiting}
        if reading:
            completed.update(phrase for number, phrase in kept if not reading & self._texts[number].leads)
            kept, last = ended, reading
        return ThreadsKey(
            held, last, tuple(sorted(begun.items())), tuple(sorted(kept.items())), tuple(sorted(completed))
        )
