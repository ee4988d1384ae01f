"""Languages of bounded texts in a text: which of their members occur."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton
from .folding import LEAD, Reader
from .lazy import Machine


class Key(NamedTuple):
    """A state of :class:`BoundedLanguages`; what has been begun is a pair of where it is and how many bytes it has.

    Attributes
    ----------
    held
        The state of the reader.
    after_word
        Whether the character before is part of a word, so that nothing begins here.
    begun
        The states of the languages' automata that members begun are in, ascending, each with the bytes of the longest one.
    waiting
        The languages with a member that ends a word unless the next character goes on with it, likewise.
    completed
        Which languages had a member completed by the last byte.
    """

    held: int
    after_word: bool
    begun: tuple[tuple[int, int], ...]
    waiting: tuple[tuple[int, int], ...]
    completed: tuple[int, ...]


@final
class BoundedLanguages(Machine):
    """Occurrences of members of finite languages, such as those of regular expressions without unbounded repeats.

    At every character one more member may begin in each language; what has been begun moves on in the language's automaton, and
    those that meet in a state go on as one. The states are sets of states, as many as come up.

    Parameters
    ----------
    automata
        The languages: trimmed, bounded, without the empty text, their members UTF-8.
    names
        How to call each in a message.
    longest
        How many bytes a member has at most.
    whole_word
        What counts as an occurrence, as in ``BannedPhrases``.
    """

    def __init__(
        self, automata: Sequence[ByteAutomaton], names: Sequence[str], *, longest: int, whole_word: bool
    ) -> None:
        self.names = tuple(names)
        self._whole_word = whole_word
        self._reader = Reader.of((), ignore_case=False, whole_word=whole_word)
        readers = [self._reader.byte_class] if whole_word else []
        classes = np.stack([*(automaton.byte_class for automaton in automata), *readers])
        _, first, byte_class = np.unique(classes, axis=1, return_index=True, return_inverse=True)
        self.byte_class = byte_class.reshape(-1).astype(np.uint8)
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
        self.start = Key(0, False, (), (), ())

    def follow(self, keys: Sequence[Key], bytes: NDArray[np.uint8]) -> Sequence[Hashable]:
        read = self._read_word if self._whole_word else self._read
        return [read(key, byte) for key, byte in zip(keys, bytes.tolist(), strict=True)]

    def completed(self, key: Key) -> tuple[int, ...]:
        return key.completed

    def completed_at_end(self, key: Key) -> tuple[int, ...]:
        return tuple(language for language, _ in key.waiting)

    def pending(self, key: Key) -> int:
        return max((size for _, size in (*key.begun, *key.waiting)), default=0)

    def future(self, key: Key) -> Hashable:
        begun, waiting = (tuple(which for which, _ in pairs) for pairs in (key.begun, key.waiting))
        return key.held, key.after_word, begun, waiting

    def after_prompt(self, key: Key) -> Hashable:
        return key._replace(waiting=())

    def _read(self, key: Key, byte: int) -> Key:
        """Return the key after ``byte`` where every member counts."""
        begun, ended = self._moved(key, byte, begins=True)
        return Key(0, False, begun, (), tuple(language for language, _ in ended))

    def _read_word(self, key: Key, byte: int) -> Key:
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
        return Key(held, after_word, begun, waiting, completed)

    def _moved(
        self, key: Key, byte: int, *, begins: bool
    ) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """Return what has been begun after ``byte``, and the languages with a member that is complete."""
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
