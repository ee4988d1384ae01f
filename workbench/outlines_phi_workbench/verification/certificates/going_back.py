"""The proven transducer of longest match with going back, beside a lexer (``proofs/theories/lexing.v``)."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from outlines_phi.automata.automaton import DEAD
from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.lexing.lexeme_automaton import NOTHING, LexemeAutomaton
from outlines_phi.guides.grammar.lexing.lexer import HELD, START, Lexer, Word

from ..subject import shown

Hold = tuple[Any, ...]
"""A state of the proven transducer: ``()``, ``(q,)``, or ``(q, word, hold)`` where a word is held back."""


def stands_for(lexer: Lexer, lexemes: LexemeAutomaton) -> list[list[Any]]:
    """Return, by state of the lexer, the states of the proven transducer that some text leads to beside it."""
    transducer = _Transducer(lexemes)
    # Bytes that neither of them tells apart are one.
    distinct = np.unique(np.stack([lexer.byte_class, lexemes.byte_class]), axis=1, return_index=True)[1].tolist()
    found: list[dict[Hold, bytes]] = [{} for _ in range(len(lexer))]
    begin: Hold = ()
    found[START][begin] = b""
    pending = [(START, begin)]
    for state, hold in pending:  # it grows
        text = found[state][hold]
        for byte in distinct:
            moved, proven = lexer.lex(bytes([byte]), state), transducer.step(hold, byte)
            differs = (moved and moved[1]) != (proven and proven[1])
            # A lexeme that is never given up leads the definition to ever new states, which hold more and more back.
            if differs or (proven and _held(proven[0]) > HELD) or len(pending) > HELD * len(lexer):
                raise UnsupportedError(
                    "Give a grammar whose lexemes are the longest without exception. After "
                    f"{shown(text + bytes([byte]))} the lexer does not go back as the proven definition does "
                    "(grammar-theory.md, section 2.3), so there is no certificate."
                )
            if moved and proven and proven[0] not in found[moved[0]]:
                found[moved[0]][proven[0]] = text + bytes([byte])
                pending.append((moved[0], proven[0]))
    return [[_listed(hold) for hold in holds] for holds in found]


def _held(hold: Hold) -> int:
    return len(hold[1]) + _held(hold[2]) if len(hold) == 3 else 0


def _listed(hold: Hold) -> list[Any]:
    return [hold[0], list(hold[1]), _listed(hold[2])] if len(hold) == 3 else list(hold)


@final
class _Transducer:
    """Longest match with going back, as ``proofs/theories/lexing.v`` has it: ``step`` there."""

    def __init__(self, lexemes: LexemeAutomaton) -> None:
        self._lexemes = lexemes

    def step(self, hold: Hold, byte: int) -> tuple[Hold, Word] | None:
        """Return the state after a byte and what is emitted, or ``None``."""
        match hold:
            case ():
                return self._fresh(byte, ())
            case (state,):
                label = int(self._lexemes.label[state])
                back = None if label == NOTHING else self._fresh(byte, (label,))
            case (state, word, rest):
                moved = self.step(rest, byte)
                back = None if moved is None else (moved[0], (*word, *moved[1]))
        after = self._after(state, byte)
        if after == DEAD:
            return back
        if back is None or self._lexemes.label[after] != NOTHING:
            return (after,), ()
        return (after, back[1], back[0]), ()

    def _fresh(self, byte: int, word: Word) -> tuple[Hold, Word] | None:
        after = self._after(self._lexemes.start, byte)
        return None if after == DEAD else ((after,), word)

    def _after(self, state: int, byte: int) -> int:
        return int(self._lexemes.targets[state, self._lexemes.byte_class[byte]])
