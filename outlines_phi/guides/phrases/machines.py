"""Machines with too many states to list: literals under case folding or as whole words, and regular expressions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.aho_corasick import AhoCorasick
from ...automata.automaton import DEAD, ByteAutomaton, explored, joint_classes
from ...numerics.cache import kept
from ...regex.code_points import AFTER_SURROGATES, CODE_POINTS, FIRST_SURROGATE
from ...regex.spelling import NOWHERE, utf8
from .matcher import PhraseMachine

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


@cache
def uneven_foldings() -> frozenset[str]:
    """The characters whose folding is several, or one that is part of a word where they are not, or the other way round."""
    return frozenset(c for c, folded in foldings().items() if len(folded) > 1 or is_word(folded) != is_word(c))


FOREIGN = 256  # The symbol of a character that is in no phrase; those below are bytes
LEAD = (257, 258)  # The mark before a character that is no part of a word, and before one that is
TRAIL = (259, 260)  # The mark after one

SYMBOLS = 261

NOTHING = 0  # The reading of no character
BROKEN = 1  # The reading of a foreign character that is no part of a word, and of bytes that are no character


class CharacterReading(NamedTuple):
    """The symbols of a character: the bytes of each character of its folding, :data:`FOREIGN` for one that is in no phrase, between
    marks.

    ``sizes`` has, at the last symbol that is a byte, how many bytes the character itself has, and 0 elsewhere. So the sum over the
    last symbols of a text is how many bytes these reach back, in whole characters.
    """

    symbols: tuple[int, ...]
    sizes: tuple[int, ...]


@final
@dataclass(frozen=True, eq=False)
class CharacterReader:
    """A transducer from bytes to the readings of characters.

    A state is what of a character has been held back; state 0 is between characters. A byte that cannot continue the character
    breaks it: the bytes held are then no characters, each a foreign one that is no part of a word, and the byte is read in state
    0. This is how Python decodes with ``errors="surrogateescape"``.
    """

    after: NDArray[np.int32]  # ``int32[R, C]``: the next state
    breaks: NDArray[np.bool_]  # ``bool[R, C]``: whether the bytes held are no character
    # ``int32[R, C]``: the reading of the character that this byte completes, or :data:`NOTHING`.
    completes: NDArray[np.int32]
    byte_class: NDArray[np.uint8]  # ``uint8[256]``: the column of each byte
    # The readings of characters, each once; the first two are those of :data:`NOTHING` and :data:`BROKEN`.
    readings: tuple[CharacterReading, ...]
    held: NDArray[np.int32]  # ``int32[R]``: how many bytes are held back

    @classmethod
    @kept
    def of(cls, alphabet: Iterable[str], *, ignore_case: bool, whole_word: bool) -> CharacterReader:
        """Return the reader for phrases with the characters of ``alphabet``, which are folded already."""
        scribe = _Scribe(frozenset(alphabet), ignore_case, whole_word)
        reading_of = scribe.read_all()
        reading_of[FIRST_SURROGATE:AFTER_SURROGATES] = reading_of[FIRST_SURROGATE - 1]  # no run begins among those
        bounds = np.flatnonzero(np.diff(reading_of, prepend=-1))
        graph, root = utf8(tuple(bounds.tolist()), tuple(reading_of[bounds].tolist()))

        def steps(state: tuple[int, int]) -> list[tuple[int, int]]:
            place, held = state
            return [(to, held + 1) if to >= graph.classes else (root, 0) for to in graph.table[place].tolist()]

        states, after = explored([(root, 0)], steps)
        found = graph.table[[place for place, _ in states]]
        completes = np.where(found < graph.classes, found, NOTHING).astype(np.int32)
        # A byte that cannot go on is read between characters, where it is no character if none begins with it.
        breaks = found == NOWHERE
        completes[0, breaks[0]], breaks[0] = BROKEN, False
        completes, after = np.where(breaks, completes[0], completes), np.where(breaks, after[1], after[1:])
        columns = np.ascontiguousarray(np.concatenate([after, breaks, completes]).T)
        number: dict[bytes, int] = {}
        byte_class = np.array([number.setdefault(column.tobytes(), len(number)) for column in columns], dtype=np.uint8)
        first = np.unique(byte_class, return_index=True)[1]
        return cls(
            after[:, first] - 1,
            breaks[:, first],
            completes[:, first],
            byte_class,
            tuple(scribe.readings),
            np.array([held for _, held in states], dtype=np.int32),
        )

    @cached_property
    def is_foreign(self) -> NDArray[np.bool_]:
        """``bool[N]``: the readings without a character of a phrase."""
        return np.array([all(symbol >= FOREIGN for symbol in reading.symbols) for reading in self.readings])

    @cached_property
    def completions(self) -> tuple[tuple[int, ...], ...]:
        """For each state, which readings with characters of phrases the character held may still have."""
        may = np.zeros((len(self.held), len(self.readings)), dtype=bool)
        for state in np.argsort(-self.held, kind="stable").tolist():
            goes_on = ~self.breaks[state]
            may[state, self.completes[state, goes_on]] = True
            below = self.after[state, goes_on]
            may[state] |= may[below[self.held[below] > self.held[state]]].any(axis=0)
        may[:, self.is_foreign] = False
        return tuple(tuple(np.flatnonzero(row).tolist()) for row in may)


def marked(character: str, symbols: Sequence[int]) -> tuple[int, ...]:
    """Return the ``symbols`` of a character between its marks."""
    word = is_word(character)
    return (LEAD[word], *symbols, TRAIL[word])


class _Scribe:
    """Reads characters, and keeps each reading once."""

    def __init__(self, alphabet: frozenset[str], ignore_case: bool, whole_word: bool) -> None:
        self._alphabet, self._whole_word = alphabet, whole_word
        self._foldings = foldings() if ignore_case else {}
        self.readings = {CharacterReading((), ()): NOTHING}
        assert self._index("\x00", foreign=True) == BROKEN

    def read_all(self) -> NDArray[np.int32]:
        """Return ``int32[CODE_POINTS]``: the reading of every character."""
        reading_of = np.full(CODE_POINTS, BROKEN, dtype=np.int32)
        if self._whole_word:
            reading_of[word_characters()] = self._index("_", foreign=True)
        # All other characters read as one foreign character, as they would without their folding.
        folded = {c for c, folding in self._foldings.items() if not self._alphabet.isdisjoint(folding)}
        uneven = uneven_foldings().intersection(self._foldings) if self._whole_word else ()
        for character in self._alphabet.union(folded, uneven):
            reading_of[ord(character)] = self._index(character)
        return reading_of

    def _index(self, character: str, foreign: bool = False) -> int:
        symbols = list[int]()
        for folded in self._foldings.get(character, character):
            spelled = (FOREIGN,) if foreign or folded not in self._alphabet else tuple(folded.encode())
            symbols += marked(folded, spelled) if self._whole_word else spelled
        # How long a foreign character is matters nowhere, so all of them are one.
        last = max((place for place, symbol in enumerate(symbols) if symbol < FOREIGN), default=None)
        sizes = tuple(len(character.encode()) if place == last else 0 for place in range(len(symbols)))
        return self.readings.setdefault(CharacterReading(tuple(symbols), sizes), len(self.readings))


_WIDEST = 3  # How many bytes a character has at most for each byte of its folding: K, the sign of kelvins, folds to `k`

_CONTINUATION = range(0x80, 0xC0)
_NO_SYMBOL = -1


class FoldedKey(NamedTuple):
    """A state of :class:`FoldedLiterals`.

    ``held`` is the state of the reader, ``node`` the longest end of what was read that begins a longer word. ``sizes`` has those of
    the symbols of the node, as in :class:`CharacterReading`; empty where each character has as many bytes as its folding.
    ``completed`` are the phrases that the last byte completed. Before the first character of a text after a prompt ``in_text`` is
    false: it does not complete the words that wait for it.
    """

    held: int
    node: int
    sizes: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()
    in_text: bool = True


@final
class FoldedLiterals(PhraseMachine):
    """The automaton of Aho and Corasick over the symbols of a :class:`CharacterReader`: literals with case folded, as whole words,
    or both.

    A whole word is a word over symbols as well: a text is read as if a mark :data:`TRAIL` came before it and a mark :data:`LEAD`
    after it, both of no word character, so ``cat`` is that trail, its own characters between their marks, and that lead. So it
    waits for the next character, or for the end of the text.
    """

    def __init__(self, literals: Sequence[str], names: Sequence[str], *, ignore_case: bool, whole_word: bool) -> None:
        folded = [text.casefold() if ignore_case else text for text in literals]
        phrases: dict[str, list[int]] = {}
        for index, text in enumerate(folded):
            phrases.setdefault(text, []).append(index)
        self.names = tuple(names)
        self._phrases = tuple(phrases.values())  # the phrases that each word stands for
        self._reader = CharacterReader.of(frozenset("".join(phrases)), ignore_case=ignore_case, whole_word=whole_word)
        self._words = AhoCorasick.build([_spelled(text, whole_word) for text in phrases], SYMBOLS)
        self._columns = _padded([self._words.symbol_class[list(reading.symbols)] for reading in self._reader.readings])
        # A character that is in no phrase can only end a word; all else before it is forgotten.
        self._waits = self._words.match[self._next(np.arange(len(self._words)), LEAD[False])] > 0
        self._only_ends = np.array([not choices for choices in self._reader.completions])
        self._only_ends[0] = False
        self.byte_class = self._reader.byte_class
        self.start = FoldedKey(0, int(self._next(0, TRAIL[False])))
        longest = max(len(text.encode()) for text in phrases)
        # Of the next character three bytes may be held; a whole word takes the characters before and after it.
        self.longest = longest * (_WIDEST if ignore_case else 1) + (8 if whole_word else 3)

    def follow(self, keys: Sequence[FoldedKey], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        before, column = np.array([key.held for key in keys]), self.byte_class[bytes]
        broken = np.where(self._reader.breaks[before, column], BROKEN, NOTHING)
        reading = self._reader.completes[before, column]
        held = self._reader.after[before, column]
        node, matched = self._run(np.array([key.node for key in keys]), broken)
        node, matched_after = self._run(node, reading)
        node = self._words.open[node]
        node[self._only_ends[held] & ~self._waits[node]] = 0
        found = list(map(FoldedKey, held.tolist(), node.tolist()))
        # Nearly all characters have as many bytes as their foldings and complete nothing.
        unusual = matched | matched_after | ~self._is_usual[reading]
        unusual |= np.array([bool(key.sizes) or not key.in_text for key in keys])
        for place in np.flatnonzero(unusual).tolist():
            found[place] = self._unusual(keys[place], (int(broken[place]), int(reading[place])), found[place])
        return found

    def completed(self, key: FoldedKey) -> tuple[int, ...]:
        return key.completed

    def completed_at_end(self, key: FoldedKey) -> tuple[int, ...]:
        if not key.in_text:
            return ()
        # Bytes that are held are no character then, so a word before them ends as well.
        return self._completed_by([int(self._next(key.node, LEAD[False]))])

    def pending(self, key: FoldedKey) -> int:
        held = int(self._reader.held[key.held])
        if not held and key.in_text:
            return sum(key.sizes) if key.sizes else int(self._bytes[key.node])
        choices = self._choices(key.held) if held else [(LEAD[False],), (LEAD[True],)]
        sizes, node = self._sizes(key), key.node
        while node:
            if any(self._goes_on(node, symbols, key.in_text) for symbols in choices):
                return held + sum(sizes[len(sizes) - int(self._words.depth[node]) :])
            node = int(self._words.failure[node])
        return held if self._begins_in[key.held] else 0

    def future(self, key: FoldedKey) -> Hashable:
        return key.held, key.node, key.in_text

    def after_prompt(self, key: FoldedKey) -> Hashable:
        return key._replace(in_text=not self._waits[key.node])

    def _next(self, node: NDArray[np.integer] | int, symbol: int) -> NDArray[np.int32]:
        return self._words.after[node, self._words.symbol_class[symbol]]

    def _run(
        self, node: NDArray[np.integer], reading: NDArray[np.integer]
    ) -> tuple[NDArray[np.integer], NDArray[np.bool_]]:
        """Return the nodes after the readings beside them, and whether a word occurs on the way."""
        matched = np.zeros(len(node), dtype=bool)
        for column in self._columns[reading].T:
            reads = column != _NO_SYMBOL
            if not reads.any():
                break
            node = np.where(reads, self._words.after[node, column], node)
            matched |= reads & (self._words.match[node] > 0)
        return node, matched

    def _unusual(self, key: FoldedKey, readings: Sequence[int], usual: FoldedKey) -> FoldedKey:
        """Return the key after ``readings``, of which ``usual`` is all but the sizes and what is completed."""
        node, visited = key.node, list[int]()
        for reading in readings:
            for symbol in self._reader.readings[reading].symbols:
                node = int(self._next(node, symbol))
                visited.append(node)
        kept: tuple[int, ...] = ()
        if key.sizes or not self._is_usual[list(readings)].all():
            new = (size for reading in readings for size in self._reader.readings[reading].sizes)
            sizes = (*self._sizes(key), *new)
            kept = sizes[len(sizes) - int(self._words.depth[usual.node]) :]
            kept = () if kept == self._usual_sizes(usual.node) else kept
        completed = self._completed_by(visited if key.in_text else visited[1:])
        return usual._replace(sizes=kept, completed=completed, in_text=key.in_text or bool(visited))

    def _completed_by(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return the phrases of the words that end at any of ``nodes``."""
        words = (word for node in nodes for word in self._words.words(node))
        return tuple(sorted({index for word in words for index in self._phrases[word]}))

    def _goes_on(self, node: int, symbols: Sequence[int], in_text: bool) -> bool:
        """Return True if ``symbols`` go on with all of ``node``, to the end of a word or beyond themselves."""
        for place, symbol in enumerate(symbols):
            child = int(self._next(node, symbol))
            if self._words.parent[child] != node or child == 0:
                return False
            if self._words.word_at[child] >= 0 and (in_text or place):
                return True
            node = child
        return bool(self._words.is_inner[node])

    def _choices(self, held: int) -> list[tuple[int, ...]]:
        """Return the readings of the bytes held, as far as they matter."""
        return [self._reader.readings[choice].symbols for choice in (BROKEN, *self._reader.completions[held])]

    @cached_property
    def _begins_in(self) -> NDArray[np.bool_]:
        """``bool[R]``: whether a phrase may begin with the character held, or inside its folding."""
        readings = np.arange(len(self._reader.readings))
        node, matched = self._run(np.zeros_like(readings), readings)
        begins = matched | (self._bytes[self._words.open[node]] > 0)
        return np.array([begins[list(choices)].any() for choices in self._reader.completions])

    def _sizes(self, key: FoldedKey) -> tuple[int, ...]:
        return key.sizes or self._usual_sizes(key.node)

    def _usual_sizes(self, node: int) -> tuple[int, ...]:
        """Return the sizes of the symbols of ``node`` where each character has as many bytes as its folding."""
        symbols = list[int]()
        while node:
            symbols.append(int(self._words.symbol[node]))
            node = int(self._words.parent[node])
        return _usual_sizes(symbols[::-1])

    @cached_property
    def _bytes(self) -> NDArray[np.int32]:
        """``int32[N]``: how many symbols of each node are bytes."""
        count = (self._words.symbol < FOREIGN).astype(np.int32)
        count[0] = 0
        ends = np.flatnonzero(np.diff(self._words.depth)) + 1
        for nodes in np.split(np.arange(len(count)), ends)[1:]:
            count[nodes] += count[self._words.parent[nodes]]
        return count

    @cached_property
    def _is_usual(self) -> NDArray[np.bool_]:
        """``bool[N]``: the readings whose sizes are the usual ones, or do not matter."""
        usual = [_usual_sizes(reading.symbols) == reading.sizes for reading in self._reader.readings]
        return np.array(usual) | self._reader.is_foreign


def _padded(rows: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    table = np.full((len(rows), max(map(len, rows))), _NO_SYMBOL, dtype=np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


def _spelled(text: str, whole_word: bool) -> Sequence[int]:
    """Return a folded phrase as the symbols that a text reads as where it occurs."""
    if not whole_word:
        return text.encode()
    inside = chain.from_iterable(marked(character, character.encode()) for character in text)
    return (TRAIL[False], *inside, LEAD[False])


def _usual_sizes(symbols: Sequence[int]) -> tuple[int, ...]:
    """Return, at the last byte of each character, how many it has; 0 elsewhere."""
    sizes, count = [0] * len(symbols), 0
    for place, symbol in enumerate(symbols):
        count += symbol < FOREIGN
        if symbol < FOREIGN and (symbols[place + 1 : place + 2] or (FOREIGN,))[0] not in _CONTINUATION:
            sizes[place], count = count, 0
    return tuple(sizes)


class BoundedKey(NamedTuple):
    """A state of :class:`BoundedLanguages`.

    ``held`` is the state of the reader; ``after_word``: the character before is part of a word, so nothing begins here. ``begun``
    are the states of the languages' automata that members begun are in, ascending, each with the bytes of the longest one;
    ``waiting`` the languages with a member that ends a word unless the next character goes on with it, likewise. ``completed`` are
    the languages that had a member completed by the last byte.
    """

    held: int
    after_word: bool
    begun: tuple[tuple[int, int], ...]
    waiting: tuple[tuple[int, int], ...]
    completed: tuple[int, ...]


@final
class BoundedLanguages(PhraseMachine):
    """Occurrences of members of finite languages, such as those of regular expressions without unbounded repeats.

    At every character one more member may begin in each language; what has been begun moves on in the language's automaton, and
    those that meet in a state go on as one. The ``automata`` are trimmed and without the empty text, their members UTF-8 of
    ``longest`` bytes at most.
    """

    def __init__(
        self, automata: Sequence[ByteAutomaton], names: Sequence[str], *, longest: int, whole_word: bool
    ) -> None:
        self.names = tuple(names)
        self._whole_word = whole_word
        self._reader = CharacterReader.of((), ignore_case=False, whole_word=whole_word)
        readers = [self._reader.byte_class] if whole_word else []
        self.byte_class, first = joint_classes([*(automaton.byte_class for automaton in automata), *readers])
        # The states of all languages in one table; they share the dead one.
        offsets = np.cumsum([0] + [len(automaton) - 1 for automaton in automata])
        tables = [a.targets[1:, a.byte_class] for a in automata]
        moved = [np.where(table == DEAD, DEAD, table + offset) for table, offset in zip(tables, offsets, strict=False)]
        self._targets = np.concatenate([np.full((1, 256), DEAD), *moved])[:, first].tolist()
        self._starts = [automaton.start + int(offset) for automaton, offset in zip(automata, offsets, strict=False)]
        self._accepting = np.concatenate([[False], *(automaton.accepting[1:] for automaton in automata)]).tolist()
        self._goes_on = [any(row) for row in self._targets]
        self._language = [0, *np.repeat(np.arange(len(automata)), np.diff(offsets)).tolist()]
        self.longest = longest + (8 if whole_word else 0)
        self.start = BoundedKey(0, False, (), (), ())

    def follow(self, keys: Sequence[BoundedKey], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        read = self._read_word if self._whole_word else self._read
        return [read(key, byte) for key, byte in zip(keys, bytes.tolist(), strict=True)]

    def completed(self, key: BoundedKey) -> tuple[int, ...]:
        return key.completed

    def completed_at_end(self, key: BoundedKey) -> tuple[int, ...]:
        return tuple(language for language, _ in key.waiting)

    def pending(self, key: BoundedKey) -> int:
        return max((size for _, size in (*key.begun, *key.waiting)), default=0)

    def future(self, key: BoundedKey) -> Hashable:
        begun, waiting = (tuple(which for which, _ in pairs) for pairs in (key.begun, key.waiting))
        return key.held, key.after_word, begun, waiting

    def after_prompt(self, key: BoundedKey) -> Hashable:
        return key._replace(waiting=())

    def _read(self, key: BoundedKey, byte: int) -> BoundedKey:
        """Return the key after ``byte`` where every member counts."""
        begun, ended = self._moved(key, byte, begins=True)
        return BoundedKey(0, False, begun, (), tuple(language for language, _ in ended))

    def _read_word(self, key: BoundedKey, byte: int) -> BoundedKey:
        """Return the key after ``byte`` where members count that are whole words."""
        column = self._reader.byte_class[byte]
        held, breaks = int(self._reader.after[key.held, column]), self._reader.breaks[key.held, column]
        read = self._reader.readings[self._reader.completes[key.held, column]]
        completed: tuple[int, ...] = ()
        waiting, after_word = tuple((language, size + 1) for language, size in key.waiting), key.after_word
        if breaks:  # the bytes held are no part of a word
            completed, waiting, after_word = self.completed_at_end(key), (), False
        begins = not after_word and (breaks or key.held == 0)
        begun, ended = self._moved(key, byte, begins=begins)
        if read.symbols:
            after_word = LEAD[True] in read.symbols
            if not after_word:
                completed = tuple(sorted({*completed, *(language for language, _ in waiting)}))
            waiting = ended
        return BoundedKey(held, after_word, begun, waiting, completed)

    def _moved(
        self, key: BoundedKey, byte: int, *, begins: bool
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """Return the members begun after ``byte``, and the languages with a member that is complete."""
        column = self.byte_class[byte]
        begun, ended = dict[int, int](), dict[int, int]()
        for state, size in (*key.begun, *((start, 0) for start in self._starts if begins)):
            target = self._targets[state][column]
            if self._goes_on[target]:
                begun[target] = max(begun.get(target, 0), size + 1)
            if self._accepting[target]:
                language = self._language[target]
                ended[language] = max(ended.get(language, 0), size + 1)
        return tuple(sorted(begun.items())), tuple(sorted(ended.items()))
