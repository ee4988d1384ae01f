"""Places within numbers and strings; strings that values tell are spelled without an automaton of these."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import DEAD, ByteAutomaton
from ....regex.code_automaton import Interval, is_within
from ....regex.spelling import Composed
from ....vocabulary.kernel import UNBOUNDED
from ..string_set import (
    BACKSLASH,
    NOT_RAW,
    QUOTE,
    RAW_ASCII,
    SHORT,
    StringSet,
    composed_of,
    free,
    spelled_size,
    spellings,
)
from .sizes import NEVER
from .states import ByteEdge, Maker, State

PLAIN = frozenset(map(ord, RAW_ASCII))
"""The bytes that are a character each."""

MOST_WORDS = 4096
"""Sets of strings that are kept."""

_NOT_PLAIN = frozenset('"\\/')
"""The characters of ASCII that have a short escape and are printable."""


@final
class Words:
    """The values of a set in order, by their beginnings: those with a common one are neighbours.

    Of a set that values do not tell, they are those that it leaves out: ``without`` them a member is written, of which
    ``automaton`` is that of the spellings, and else that of all strings.
    """

    def __init__(self, strings: StringSet, *, ascii: bool) -> None:
        self.without, self.ascii = strings.values is None, ascii
        texts = strings.but if strings.values is None else strings.values
        self.texts, self.is_free = sorted(texts), not self.without or strings.whole == StringSet.all()
        self.automaton = free(ascii=ascii) if self.is_free else composed_of(strings.whole, ascii=ascii)
        self._next: dict[tuple[int, int, int], dict[str, tuple[int, int]]] = {}
        self._sizes: dict[Listed, int] = {}
        self.paths: dict[Listed, dict[int, None]] = {}
        joined = "".join(texts)
        self.plain = joined.isascii() and joined.isprintable() and _NOT_PLAIN.isdisjoint(joined)

    @classmethod
    @lru_cache(maxsize=MOST_WORDS)
    def of(cls, strings: StringSet, *, ascii: bool) -> Words:
        """Return those of a set, made once."""
        return cls(strings, ascii=ascii)

    @cached_property
    def addresses(self) -> tuple[int, int]:
        """The addresses of the texts, each with a closing quote, and of where each begins, for compiled walks."""
        text = np.frombuffer("".join(text + '"' for text in self.texts).encode(), np.uint8)
        first = np.array([0, *accumulate(len(text) + 1 for text in self.texts)], dtype=np.int32)
        self._addressed = text, first  # kept
        return text.ctypes.data, first.ctypes.data

    def begun(self) -> Listed:
        """Return the state of a string after its opening quote."""
        return Listed(self, self.automaton.start, 0, len(self.texts), 0, b"")

    def following(self, low: int, high: int, depth: int) -> dict[str, tuple[int, int]]:
        """Return the characters that come next in some of the strings, and which strings these are."""
        key = low, high, depth
        if key not in self._next:
            found: dict[str, tuple[int, int]] = {}
            at = low + (low < high and len(self.texts[low]) == depth)
            while at < high:
                character = self.texts[at][depth]
                last = (
                    at + 1
                    if at + 1 == high
                    else bisect_right(self.texts, character, at, high, key=lambda text: text[depth])
                )
                found[character] = at, last
                at = last
            self._next[key] = found
        return self._next[key]

    def spellings(self, character: str) -> tuple[bytes, ...]:
        """Return the spellings of a character that are told apart: those of JSON's writers in one of the strings, else all.

        What a schema names or lists is written as it is. So its text is forced, and no probability goes to odd spellings.
        """
        every = spellings(character, ascii=self.ascii)
        as_is = character.isascii() and character.isprintable() and character not in NOT_RAW
        return every[:1] if as_is and not self.without else every

    def size(self, at: Listed) -> int:
        """Return the least number of bytes to the closing quote, itself included."""
        if at not in self._sizes:
            self._sizes[at] = self._without(at) if self.without else min(size for _, size in at.ways())
        return self._sizes[at]

    def _without(self, at: Listed) -> int:
        if self.is_free and not at.begun:
            if not at.whole:
                return 1
            if len(self.following(at.low, at.high, at.depth)) < len(RAW_ASCII):
                return 2  # some other character is one byte
        states = self.automaton.steps(np.full(256, at.state), np.arange(256))
        states[list(at.on_path)] = DEAD
        off = np.unique(states[states != DEAD]).tolist()
        least = min((1 + self.automaton.size(state) for state in off), default=NEVER)
        if least > self.automaton.size(at.state):
            for byte in at.on_path:
                after = at.after(byte)
                least = min(least, NEVER if after is None else 1 + after.size)
        return least


class Listed(NamedTuple):
    """Spelling of a string beside some strings, so far.

    Attributes
    ----------
    words
        The strings.
    state
        The state of the automaton of all spellings.
    low, high
        The range of those with this prefix: ``texts[low:high]``, empty where ``low == high``.
    depth
        The number of characters spelled.
    begun
        The bytes of the next one, hexadecimal digits in lower case.
    """

    words: Words
    state: int
    low: int
    high: int
    depth: int
    begun: bytes

    @property
    def automaton(self) -> Composed:
        """The spellings of all strings."""
        return self.words.automaton

    @property
    def beside(self) -> bool:
        """True if one of the strings has this prefix."""
        return self.low < self.high

    @property
    def whole(self) -> bool:
        """True if this is one of the strings, as far as whole characters are spelled."""
        return self.low < self.high and len(self.words.texts[self.low]) == self.depth and not self.begun

    def has(self, text: str) -> bool:
        """Return True if this may become one of the strings."""
        at = bisect_left(self.words.texts, text, self.low, self.high)
        return at < self.high and self.words.texts[at] == text

    @property
    def word(self) -> str:
        """The string that this is."""
        return self.words.texts[self.low]

    def ways(self) -> Iterator[tuple[str, int]]:
        """Yield the strings that begin like this, each with the least number of bytes to its closing quote, itself included."""
        ascii = self.words.ascii
        if self.whole:
            yield self.word, 1
        for character, (low, high) in self.words.following(self.low, self.high, self.depth).items():
            ways = [way for way in self.words.spellings(character) if way.startswith(self.begun)]
            if ways:
                size = len(ways[0]) - len(self.begun) + 1
                for text in self.words.texts[low:high]:
                    yield text, size + spelled_size(text[self.depth + 1 :], ascii=ascii)

    @property
    def on_path(self) -> dict[int, None]:
        """The bytes after which one of the strings still begins like this, or after which it is that string."""
        if self not in self.words.paths:
            self.words.paths[self] = self._find_path()
        return self.words.paths[self]

    def _find_path(self) -> dict[int, None]:
        found = {QUOTE: None} if self.whole else {}
        for character in self.words.following(self.low, self.high, self.depth):
            for way in self.words.spellings(character):
                if way.startswith(self.begun):
                    byte = way[len(self.begun)]
                    found[byte] = None
                    if way[0] == BACKSLASH and len(self.begun) > 1 and ord("a") <= byte <= ord("f"):
                        found[byte - 32] = None
        return found

    def after(self, byte: int) -> Listed | None:
        """Return the state after a byte; ``None`` where no member begins so."""
        automaton = self.words.automaton
        state = automaton.step(self.state, byte)
        if state == DEAD:
            return None
        if automaton.size(state) == 0:
            return self._replace(state=state) if self.whole != self.words.without else None
        if self.low == self.high:
            return self._replace(state=state)
        if not self.begun and byte in PLAIN:
            place = self.words.following(self.low, self.high, self.depth).get(chr(byte))
            return Listed(self.words, state, *place, self.depth + 1, b"")._possible if place else self.moved(state)
        low, high, depth, begun = self.low, self.high, self.depth, self.begun + bytes([byte])
        if begun[0] == BACKSLASH and len(begun) > 2:
            begun = begun.lower()
        following = self.words.following(low, high, depth)
        if not any(way.startswith(begun) for character in following for way in self.words.spellings(character)):
            low = high = 0
        elif automaton.begins(np.array(state)):
            low, high = following[_character(begun)]
            depth, begun = depth + 1, b""
        if low < high:
            return Listed(self.words, state, low, high, depth, begun)._possible
        return self.moved(state)

    @property
    def _possible(self) -> Listed | None:
        """The state itself; ``None`` where no member begins so."""
        return self if self.words.is_free or self.size < NEVER else None

    @property
    def reads_on(self) -> bool:
        """True if there are members off the paths of the strings."""
        return self.words.without

    @property
    def counts(self) -> bool:
        """False: characters do not matter."""
        return False

    def alive(self, states: NDArray[np.integer], characters: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return the mask of the states, behind so many characters off the paths of the strings, that members lead to."""
        return states != DEAD

    def closes(self, states: NDArray[np.integer], characters: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return the mask of the states behind the closing quote of a member, of so many characters."""
        return self.automaton.closed(states)

    def rest(self, most: int) -> tuple[int, int] | None:
        """Return the fewest and the most characters to come, as far as ``most`` may; ``None`` where this does not tell a member."""
        return 0, UNBOUNDED

    def moved(self, state: int, characters: int = 0) -> Listed | None:
        """Return the state after bytes that leave the prefixes of all listed strings."""
        return Listed(self.words, state, 0, 0, 0, b"") if self.words.without else None

    @property
    def size(self) -> int:
        """The least number of bytes to the closing quote, itself included."""
        if self.words.automaton.size(self.state) == 0:
            return 0
        return self.words.automaton.size(self.state) if self.low == self.high else self.words.size(self)


def _character(spelling: bytes) -> str:
    """Return the character that is spelled so."""
    if len(spelling) == 1:
        return chr(spelling[0])
    if spelling[0] != BACKSLASH:
        return spelling.decode()
    return SHORT[chr(spelling[1])] if len(spelling) == 2 else str(json.loads(b'"' + spelling + b'"'))


@final
class Number(State):
    """Within a number, or before it."""

    bytes = b"-0123456789.eE+"

    def __init__(self, machine: Maker, automata: tuple[ByteAutomaton, ...], at: tuple[int, ...]) -> None:
        super().__init__(machine)
        self._automata, self._at = automata, at

    @property
    def ends(self) -> int | None:
        for place, (automaton, at) in enumerate(zip(self._automata, self._at, strict=True)):
            if automaton.accepting[at]:
                return place
        return None

    @property
    def sizes(self) -> Sequence[int]:
        pairs = zip(self._automata, self._at, strict=True)
        return [min(NEVER, int(automaton.distances[at])) if at != DEAD else NEVER for automaton, at in pairs]

    def _edge(self, byte: int) -> ByteEdge | None:
        pairs = zip(self._automata, self._at, strict=True)
        at = tuple(automaton.step(at, byte) or DEAD for automaton, at in pairs)
        return ByteEdge(self._machine.made(Number, self._automata, at)) if any(at) else None


class Walked(NamedTuple):
    """Progress of a string as a member of a regular set, and of some lengths.

    Attributes
    ----------
    automaton, state
        The automaton of the spellings of the members, and its state.
    written
        The number of characters spelled, as far as that matters.
    lengths
        The lengths that it may have, beside those that the automaton tells.
    """

    automaton: Composed
    state: int
    written: int = 0
    lengths: tuple[Interval, ...] = ((0, None),)

    @property
    def reads_on(self) -> bool:
        """True: there is an automaton of its own."""
        return True

    @property
    def counts(self) -> bool:
        """True if characters still matter."""
        return self.written < self._most

    @property
    def _most(self) -> int:
        """The most characters that are counted: more make no difference, so free strings have one state."""
        low, high = self.lengths[-1]
        return max(self.automaton.most, low if high is None else high + 1)

    def alive(self, states: NDArray[np.integer], characters: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See :meth:`Listed.alive`; what is begun is one character."""
        if self.automaton.most:
            pairs = zip(states.tolist(), characters.tolist(), strict=True)
            return np.array([self.moved(state, count) is not None for state, count in pairs], dtype=bool)
        most = self.lengths[-1][1]
        begun = self.written + characters + (states != self.automaton.start)
        return (states != DEAD) & (begun <= (NEVER if most is None else most))

    def closes(self, states: NDArray[np.integer], characters: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See :meth:`Listed.closes`."""
        closed, count = self.automaton.closed(states), self.written + characters
        if self.automaton.most:
            return closed & self.alive(states, characters)
        fits = [(low <= count) & (count <= (NEVER if high is None else high)) for low, high in self.lengths]
        return closed & np.logical_or.reduce(fits)

    def rest(self, most: int) -> tuple[int, int] | None:
        """See :meth:`Listed.rest`."""
        if self.automaton.most or len(self.lengths) > 1:
            return None
        low, high = self.lengths[0]
        left = UNBOUNDED if high is None else high - self.written
        return min(max(low - self.written, 0), most + 1), left if left <= most else UNBOUNDED

    def after(self, byte: int) -> Walked | None:
        """Return the state after a byte; ``None`` where no member begins so."""
        state = self.automaton.step(self.state, byte)
        return self.moved(state, int(self.automaton.begins(np.array(state))))

    def moved(self, state: int, characters: int) -> Walked | None:
        """Return the state after bytes that complete so many characters; ``None`` where no member begins so."""
        found = self._replace(state=state, written=min(self.written + characters, self._most))
        return found if state != DEAD and found.size < NEVER else None

    @property
    def size(self) -> int:
        """The least number of bytes to the closing quote, itself included."""
        size = self.automaton.size(self.state, self.written)
        if not size:
            return 0 if is_within(self.written, self.lengths) else NEVER
        count = self.written + (self.state != self.automaton.start)
        fits = [max(low - count, 0) for low, high in self.lengths if high is None or count <= high]
        return size + min(fits, default=NEVER)


Spelled: TypeAlias = Listed | Walked
"""The progress of a string as a member of a set."""


def ended(one: Spelled) -> bool:
    """Return True if the closing quote was read."""
    return bool(one.automaton.closed(np.array(one.state)))


def on_path(spelled: Iterable[Spelled | None]) -> dict[int, None]:
    """Return the bytes after which one of the listed strings of some sets still begins like this, or is whole."""
    path: dict[int, None] = {}
    for one in spelled:
        if isinstance(one, Listed) and one.beside:
            path = path | one.on_path
    return path


def alone(spelled: Iterable[Spelled | None]) -> Listed | None:
    """Return the list of all texts that some sets list, where these are spelled as they are, and no other automaton reads on."""
    found = None
    for one in spelled:
        if one is None:
            continue
        if type(one) is not Listed or one.begun or not one.words.is_free or one.state != one.words.automaton.start:
            return None
        if one.low < one.high:
            if not one.words.plain or (found is not None and one.words.without == found.words.without):
                return None
            found = one if found is None or one.words.without else found
        elif one.words.without:
            return None
    return found


def begun(strings: StringSet, *, ascii: bool) -> Spelled:
    """Return the beginning of a member of a set, after the opening quote."""
    if strings.values is not None or strings.but:
        return Words.of(strings, ascii=ascii).begun()
    if strings.lengths is not None:
        automaton = free(ascii=ascii)
        return Walked(automaton, automaton.start, 0, strings.lengths)
    composed = composed_of(strings, ascii=ascii)
    return Walked(composed, composed.start)


@lru_cache
def _left(outcome: int) -> ByteEdge:
    return ByteEdge(None, outcome)


class Text(State):
    """Within a string, of one of some sets with each outcome."""

    def __init__(self, machine: Maker, spelled: tuple[Spelled | None, ...]) -> None:
        super().__init__(machine)
        self.spelled = spelled

    counts = False
    """True if what is written must be known, whatever it is."""

    @property
    def sizes(self) -> Sequence[int]:
        return [NEVER if one is None else one.size for one in self.spelled]

    @property
    def off_paths(self) -> State | None:
        """The state off the paths of all listed texts, where the automaton is as it is."""
        return self.later(tuple(None if one is None else one.moved(one.state, 0) for one in self.spelled))

    def closed(self, place: int, read: bytes = b"") -> ByteEdge:
        """Return the edge of the closing quote of a member of one of the sets, by its place; ``read`` is read here."""
        return _left(place)

    def closed_at(self, text: str) -> ByteEdge | None:
        """Return the edge of the closing quote of a listed text, whatever is spelled of it; ``None`` if it may not come."""
        for place, one in enumerate(self.spelled):
            if isinstance(one, Listed) and not one.words.without and one.has(text):
                return self.named(place, text)
        return None

    def named(self, place: int, text: str) -> ByteEdge:
        """Return the edge of the closing quote of a text of one of the sets, by its place."""
        return _left(place)

    def later(self, spelled: tuple[Spelled | None, ...], read: bytes | None = None) -> State | None:
        """Return the state in which the sets are spelled further, by some bytes or by any; ``None`` for those that are not."""
        return self._machine.made(Text, spelled) if any(spelled) else None

    def _edge(self, byte: int) -> ByteEdge | None:
        spelled, read = tuple(None if one is None else one.after(byte) for one in self.spelled), bytes([byte])
        for place, one in enumerate(spelled):
            if one is not None and ended(one):
                return self.closed(place, read)
        later = self.later(spelled, read)
        return None if later is None else ByteEdge(later)
