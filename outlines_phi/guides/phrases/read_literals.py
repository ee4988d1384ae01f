"""Literal phrases in what a text reads as: with case folded, as whole words, or both."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.aho_corasick import AhoCorasick
from .folding import BROKEN, FOREIGN, LEAD, NOTHING, SYMBOLS, TRAIL, Reader, marked
from .lazy import Machine

_WIDEST = 3
"""How many bytes a character has at most for each byte of its folding: K, the sign of kelvins, folds to ``k``."""

_CONTINUATION = range(0x80, 0xC0)
_NO_SYMBOL = -1


class Key(NamedTuple):
    """A state of :class:`ReadLiterals`.

    Attributes
    ----------
    held
        The state of the reader.
    node
        The longest end of what was read that begins a longer word.
    sizes
        Of each symbol of the node, as in :class:`Reading`; empty where each character has as many bytes as its folding.
    completed
        Which phrases the last byte completed.
    in_text
        False before the first character of a text after a prompt: it does not complete the words that wait for it.
    """

    held: int
    node: int
    sizes: tuple[int, ...] = ()
    completed: tuple[int, ...] = ()
    in_text: bool = True


@final
class ReadLiterals(Machine):
    """The automaton of Aho and Corasick over the symbols of a :class:`Reader`.

    A whole word is a word over symbols as well: a text is read as if a mark :data:`TRAIL` came before it and a mark :data:`LEAD`
    after it, both of no word character, so ``cat`` is that trail, its own characters between their marks, and that lead. So it
    waits for the next character, or for the end of the text.

    Parameters
    ----------
    literals
        The phrases.
    names
        How to call each in a message.
    ignore_case, whole_word
        What counts as an occurrence, as in ``BannedPhrases``.
    """

    def __init__(self, literals: Sequence[str], names: Sequence[str], *, ignore_case: bool, whole_word: bool) -> None:
        folded = [text.casefold() if ignore_case else text for text in literals]
        phrases: dict[str, list[int]] = {}
        for index, text in enumerate(folded):
            phrases.setdefault(text, []).append(index)
        self.names = tuple(names)
        self._phrases = tuple(phrases.values())  # which each word stands for
        self._reader = Reader.of(frozenset("".join(phrases)), ignore_case=ignore_case, whole_word=whole_word)
        self._words = AhoCorasick.build([_spelled(text, whole_word) for text in phrases], SYMBOLS)
        self._columns = _padded([self._words.symbol_class[list(reading.symbols)] for reading in self._reader.readings])
        # A character that is in no phrase can only end a word; all else before it is forgotten.
        self._waits = self._words.match[self._next(np.arange(len(self._words)), LEAD[False])] > 0
        self._only_ends = np.array([not choices for choices in self._reader.completions])
        self._only_ends[0] = False
        self.byte_class = self._reader.byte_class
        self.start = Key(0, int(self._next(0, TRAIL[False])))
        longest = max(len(text.encode()) for text in phrases)
        # Of the next character three bytes may be held; a whole word takes the characters before and after it.
        self.longest = longest * (_WIDEST if ignore_case else 1) + (8 if whole_word else 3)

    def follow(self, keys: Sequence[Key], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        before, column = np.array([key.held for key in keys]), self.byte_class[bytes]
        broken = np.where(self._reader.breaks[before, column], BROKEN, NOTHING)
        reading = self._reader.completes[before, column]
        held = self._reader.after[before, column]
        node, matched = self._run(np.array([key.node for key in keys]), broken)
        node, matched_after = self._run(node, reading)
        node = self._words.open[node]
        node[self._only_ends[held] & ~self._waits[node]] = 0
        found = list(map(Key, held.tolist(), node.tolist()))
        # Nearly all characters have as many bytes as their foldings and complete nothing.
        unusual = matched | matched_after | ~self._is_usual[reading]
        unusual |= np.array([bool(key.sizes) or not key.in_text for key in keys])
        for place in np.flatnonzero(unusual).tolist():
            found[place] = self._unusual(keys[place], (int(broken[place]), int(reading[place])), found[place])
        return found

    def completed(self, key: Key) -> tuple[int, ...]:
        return key.completed

    def completed_at_end(self, key: Key) -> tuple[int, ...]:
        if not key.in_text:
            return ()
        # Bytes that are held are no character then, so a word before them ends as well.
        return self._completed_by([int(self._next(key.node, LEAD[False]))])

    def pending(self, key: Key) -> int:
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

    def future(self, key: Key) -> Hashable:
        return key.held, key.node, key.in_text

    def after_prompt(self, key: Key) -> Hashable:
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

    def _unusual(self, key: Key, readings: Sequence[int], usual: Key) -> Key:
        """Return the key after ``readings``, of which ``usual`` is all but the sizes and what is completed."""
        node, visited = key.node, list[int]()
        for reading in readings:
            for symbol in self._reader.readings[reading].symbols:
                node = int(self._next(node, symbol))
                visited.append(node)
        kept: tuple[int, ...] = ()
        if key.sizes or not self._is_usual[list(readings)].all():
            sizes = (
                *self._sizes(key),
                *(size for reading in readings for size in self._reader.readings[reading].sizes),
            )
            kept = sizes[len(sizes) - int(self._words.depth[usual.node]) :]
            kept = () if kept == self._usual_sizes(usual.node) else kept
        completed = self._completed_by(visited if key.in_text else visited[1:])
        return usual._replace(sizes=kept, completed=completed, in_text=key.in_text or bool(visited))

    def _completed_by(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return the phrases of the words that end at any of ``nodes``."""
        return tuple(
            sorted({index for node in nodes for word in self._words.words(node) for index in self._phrases[word]})
        )

    def _goes_on(self, node: int, symbols: Sequence[int], in_text: bool) -> bool:
        """Return whether ``symbols`` go on with all of ``node``, to the end of a word or beyond themselves."""
        for place, symbol in enumerate(symbols):
            child = int(self._next(node, symbol))
            if self._words.parent[child] != node or child == 0:
                return False
            if self._words.word_at[child] >= 0 and (in_text or place):
                return True
            node = child
        return bool(self._words.is_inner[node])

    def _choices(self, held: int) -> list[tuple[int, ...]]:
        """Return what the bytes held may be read as, as far as it matters."""
        return [self._reader.readings[choice].symbols for choice in (BROKEN, *self._reader.completions[held])]

    @cached_property
    def _begins_in(self) -> NDArray[np.bool_]:
        """``bool[R]``: whether a phrase may begin with the character held, or inside its folding."""
        readings = np.arange(len(self._reader.readings))
        node, matched = self._run(np.zeros_like(readings), readings)
        begins = matched | (self._bytes[self._words.open[node]] > 0)
        return np.array([begins[list(choices)].any() for choices in self._reader.completions])

    def _sizes(self, key: Key) -> tuple[int, ...]:
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
    """Return the rows as one array, filled up with :data:`_NO_SYMBOL`."""
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
