"""The lexing transducer: bytes in, the terminals of longest-match lexemes out (grammar-theory.md, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from ....automata.automaton import DEAD, UNREACHABLE, distances
from ..grammar import Terminal
from .lexeme_automaton import NOTHING as NOTHING
from .lexeme_automaton import LexemeAutomaton, blocks
from .transducer import START as START
from .transducer import Transducer

Word = tuple[int, ...]  # A sequence of terminals


@final
@dataclass(frozen=True, eq=False)
class Lexer:
    """A deterministic transducer that cuts a text into lexemes, each as long as possible (grammar-theory.md, sections 2 and 3).

    A state is what is known of the lexeme that is pending. A byte that prolongs it emits nothing; one that does not ends it, emits
    its terminal and begins the next lexeme, if it can. :meth:`flush` is what the end of the text emits.

    **Where a longer lexeme may fail.** In ``1else``, ``1`` is a number and ``1e`` begins a longer one that the next byte refutes.
    So the terminal is held back: the state knows which terminals the bytes since are if the longer lexeme fails, and then all are
    emitted at once. Where that would hold more than ``transducer.HELD`` terminals, as a comment ``/* ..`` that may not end does
    beside ``/`` and ``*``, the longer lexeme must be ignored or have a higher priority: what begins like it has to be one. Other
    such grammars are refused.
    """

    terminals: tuple[Terminal, ...]  # their numbers are what is emitted
    targets: NDArray[np.int32]  # ``int32[L, C]``: the next state. Row 0 is dead, row :data:`START` comes first
    # ``int32[L, C]``: what that step emits, an index into ``words``. At most one terminal, but where some were held back.
    emits: NDArray[np.int32]
    words: tuple[Word, ...]  # what steps and the end of a text emit; ``words[0]`` is ``()``
    byte_class: NDArray[np.uint8]  # ``uint8[256]``: the column of each byte
    label: NDArray[np.int32]  # ``int32[L]``: the terminal of which the pending bytes are a lexeme, or :data:`NOTHING`
    # ``int32[L]``: what the end of the text emits, an index into ``words``, or :data:`NOTHING` where it may not end.
    ends: NDArray[np.int32]
    # ``bool[L, T]``: the terminals that the pending lexeme may be of when it is complete, all bytes since the last emission
    # belonging to it.
    reaches: NDArray[np.bool_]
    # ``int32[L]``: where ``held``, an index into ``words``, is not 0, terminals are held back: if the longer lexeme fails, it is
    # as if they had been emitted and the lexer were in the state ``fallback``.
    held: NDArray[np.int32]
    fallback: NDArray[np.int32]

    @classmethod
    def of(cls, terminals: Sequence[Terminal]) -> Lexer:
        """Return the lexer of ``terminals``.

        A :class:`GrammarError` where a terminal is empty or matches the empty text, two match the same text and neither comes
        first, or no bounded number of bytes tells how a text is cut. The last two name the shortest such text.
        """
        automaton = LexemeAutomaton.of(terminals)
        made = Transducer.of(automaton, terminals)
        source, column = np.nonzero(made.targets)
        reached = distances(made.targets[source, column], source, np.array([START]), len(made.targets)) != UNREACHABLE
        reached[DEAD] = True
        # States that emit the same from now on are one; so are bytes that act alike.
        kind = np.unique(np.column_stack([reached, made.emits, made.ends]), axis=0, return_inverse=True)[1].reshape(-1)
        block = blocks(kind, made.targets)
        kept = np.unique(block[reached], return_index=True)[1]
        kept = np.flatnonzero(reached)[kept]
        number = np.zeros(block.max() + 1, dtype=np.int32)
        number[block[kept]] = np.arange(len(kept))
        targets, emits = number[block[made.targets[kept]]], made.emits[kept]
        _, first, merged = np.unique(np.concatenate([targets, emits]), axis=1, return_index=True, return_inverse=True)
        reaches = np.zeros((len(kept), len(terminals)), dtype=bool)
        reaches[:, : automaton.reaches.shape[1]] = automaton.reaches[made.lexeme[kept]]
        return cls(
            tuple(terminals),
            np.ascontiguousarray(targets[:, first]),
            np.ascontiguousarray(emits[:, first]),
            made.words,
            merged.reshape(-1)[automaton.byte_class].astype(np.uint8),
            np.where(kept == START, NOTHING, automaton.label[made.lexeme[kept]]).astype(np.int32),
            made.ends[kept],
            reaches,
            made.held[kept],
            number[block[made.fallback[kept]]],
        )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def can_end(self) -> NDArray[np.bool_]:
        """``bool[L]``: where the text may end, as far as the lexer is concerned."""
        return self.ends != NOTHING

    def flush(self, state: int) -> Word | None:
        """Return what the end of the text emits in ``state``; ``None`` where it cuts a lexeme short."""
        return self.words[self.ends[state]] if self.ends[state] != NOTHING else None

    def lex(self, text: bytes, state: int = START) -> tuple[int, Word] | None:
        """Return the state after ``text`` and what was emitted; ``None`` where it is no beginning of a text."""
        emitted: Word = ()
        for byte in text:
            column = self.byte_class[byte]
            emitted += self.words[self.emits[state, column]]
            state = int(self.targets[state, column])
            if state == DEAD:
                return None
        return state, emitted

    def counted(self, word: Word) -> Word:
        """Return a word without ignored terminals, as a parser reads it."""
        return tuple(terminal for terminal in word if not self.terminals[terminal].ignored)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``."""
        names = [self.terminals[t].name for t in np.flatnonzero(self.reaches[state])]
        if state == START:
            return "at the start"
        begun = self.terminals[self.label[state]].name if self.label[state] != NOTHING else "incomplete"
        held = " ".join(self.terminals[t].name for t in self.words[self.held[state]])
        return f"{begun} of {' | '.join(names)}" + (
            f", else {held} {self.describe(int(self.fallback[state]))}" if held else ""
        )
