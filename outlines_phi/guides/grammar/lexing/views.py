"""A lexer that never holds anything back: what it would emit later, it guesses."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .lexer import NOTHING, Word
from .spanner import Spanner

SILENT = -2
"""The end of the text completes nothing that counts."""


class Views(NamedTuple):
    """The states of a lexer, and beside each that holds terminals back the guesses that the longer lexeme fails.

    A *view* of a state takes some terminals as emitted before they are. The longer lexeme may fail in several ways, one behind the
    other, so there may be several views of one state; its first takes nothing as emitted. What is emitted along a path of views
    from a state to the end of the text is what the lexer emits along it. So each lexeme that ends is one step, however late the
    lexer tells.

    Attributes
    ----------
    emitted
        For each view what it takes as emitted beyond what is; the first views, of all states in turn, take nothing.
    of_state
        The further views of the states that hold terminals back.
    source, target
        ``int32[E]``: steps on single tokens that emit at most one terminal.
    terminal
        ``int32[E]``: what they emit, :data:`NOTHING` for nothing.
    complete
        ``int32[X]``: the terminal of the lexeme that is pending and complete, if it counts; else :data:`NOTHING`.
    end
        ``int32[X]``: the terminal that the end of the text completes, :data:`SILENT` for none, :data:`NOTHING` where it may not
        end.
    """

    emitted: tuple[Word, ...]
    of_state: dict[int, tuple[int, ...]]
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    terminal: NDArray[np.int32]
    complete: NDArray[np.int32]
    end: NDArray[np.int32]

    @classmethod
    def of(cls, spanner: Spanner) -> Views:
        """Return the views of a lexer and the steps on the tokens of a vocabulary."""
        lexer, edges = spanner.lexer, spanner.edges()

        def counted(word: Word) -> Word:
            return tuple(terminal for terminal in word if not lexer.terminals[terminal].ignored)

        emitted: list[Word] = [()] * len(lexer)
        state, pending = list(range(len(lexer))), list(range(len(lexer)))
        of_state: dict[int, tuple[int, ...]] = {}
        for holding in np.flatnonzero(lexer.held).tolist():
            taken, at, first = cast("Word", ()), holding, len(emitted)
            while lexer.held[at]:
                taken += counted(lexer.words[lexer.held[at]])
                at = int(lexer.fallback[at])
                emitted.append(taken)
                state.append(holding)
                pending.append(at)
            of_state[holding] = tuple(range(first, len(emitted)))
        lengths = np.array([len(word) for word in spanner.words])
        only = np.array([word[0] if word else NOTHING for word in spanner.words])
        holds = lexer.held != 0
        plain = ~(holds[edges.source] | holds[edges.target])
        kept = plain & (lengths[edges.word] <= 1)
        steps = [np.stack([edges.source[kept], edges.target[kept], only[edges.word[kept]]], axis=1)]
        for source, target, word in np.stack(edges, axis=1)[~plain].tolist():
            for before in (source, *of_state.get(source, ())):
                for after in (target, *of_state.get(target, ())):
                    total, known = spanner.words[word] + emitted[after], emitted[before]
                    rest = total[len(known) :]
                    if total[: len(known)] == known and len(rest) <= 1:
                        steps.append(np.array([[before, after, rest[0] if rest else NOTHING]]))
        flushed = [lexer.flush(at) for at in state]
        end = [
            NOTHING if word is None else _last(counted(word), taken)
            for word, taken in zip(flushed, emitted, strict=True)
        ]
        source, target, terminal = np.concatenate(steps).astype(np.int32).T
        label = lexer.label[pending]
        ignored = np.array([each.ignored for each in lexer.terminals])
        complete = np.where((label != NOTHING) & ~ignored[label], label, NOTHING)
        return cls(tuple(emitted), of_state, source, target, terminal, complete, np.array(end, dtype=np.int32))


def _last(word: Word, taken: Word) -> int:
    """Return what is left of ``word`` behind ``taken``: a terminal, :data:`SILENT`; :data:`NOTHING` where it is something else."""
    if word[: len(taken)] != taken or len(word) > len(taken) + 1:
        return NOTHING
    return word[-1] if len(word) > len(taken) else SILENT
