"""Small languages to measure on: balanced brackets, and languages under some spellings by tokens only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from ..automata.automaton import ByteAutomaton
from ..errors import EmptyLanguageError
from ..guides.fsm import FSMGuide
from ..guides.guide import DEAD, DONE
from ..vocabulary.classes import EOS, NEVER, Partition
from ..vocabulary.vocabulary import Vocabulary

PAIRS = (("(", ")"), ("[", "]"), ("{", "}"), ("<", ">"))
"""The kinds of brackets, in the order in which they are used."""


def dyck(kinds: int, length: int, *, exactly: bool) -> ByteAutomaton:
    """Return the automaton of balanced words of ``kinds`` kinds of brackets, not empty.

    Parameters
    ----------
    kinds
        1 for Dyck-1, 2 for Dyck-2; at most 4.
    length
        How long a word is, in brackets; even.
    exactly
        Whether all words have that length, or at most that.
    """
    start = ("", length)
    number = {start: 1}
    edges: list[tuple[int, int, int]] = []
    for (stack, left), source in (queue := list(number.items())):
        for opening, closing in PAIRS[:kinds]:
            below = [(opening, (stack + closing, left - 1))] if len(stack) + 2 <= left else []
            below += [(closing, (stack[:-1], left - 1))] if stack.endswith(closing) else []
            for bracket, target in below:
                if target not in number:
                    number[target] = len(number) + 1
                    queue.append((target, number[target]))
                edges.append((source, ord(bracket), number[target]))
    accepting = np.zeros(len(number) + 1, dtype=bool)
    for (stack, left), state in number.items():
        accepting[state] = not stack and (left == 0 if exactly else left < length)
    source, byte, target = np.array(edges).transpose()
    return ByteAutomaton.from_edges(source, byte, target, start=1, accepting=accepting).trim()


def of_single_bytes(automaton: ByteAutomaton, vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of the texts of ``automaton`` written one byte to a token: one spelling per text.

    The model's law is as it is; other spellings are outside the language.
    """
    single = tuple(token if len(token) == 1 else b"" for token in vocabulary.tokens)
    guide = FSMGuide.from_automaton(automaton, replace(vocabulary, tokens=single))
    return replace(
        guide, vocabulary=vocabulary, automaton=None
    )  # of its tokens, the automaton knows too many spellings


def of_canonical(texts: Iterable[bytes], encode: Callable[[str], Sequence[int]], vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of ``texts`` as their tokenizer writes them: one spelling per text."""
    return of_sequences([tuple(encode(text.decode())) for text in texts], vocabulary)


def of_sequences(members: Iterable[Sequence[int]], vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of some token sequences, given without their end: the least automaton, a minimised trie.

    Raises
    ------
    EmptyLanguageError
        There are none.
    """
    trie = _Trie()
    for member in members:
        trie.add(member)
    if not trie.ends and not trie.below:
        raise EmptyLanguageError("A language of no token sequences was given; give at least one.")
    rows: dict[tuple[tuple[int, int], ...], int] = {}
    start = trie.intern(rows, vocabulary.eos_ids[0])
    used = sorted({token for row in rows for token, _ in row} - {vocabulary.eos_ids[0]})
    class_of = np.full(len(vocabulary), NEVER, dtype=np.int32)
    class_of[used] = np.arange(EOS + 1, EOS + 1 + len(used))
    class_of[vocabulary.eos_ids[0]] = EOS
    targets = np.full((DONE + 1 + len(rows), EOS + 1 + len(used)), DEAD, dtype=np.int32)
    for row, state in rows.items():
        for token, target in row:
            targets[state, class_of[token]] = target
    return FSMGuide.from_table(vocabulary, Partition(class_of, targets.shape[1]), targets, start)


@final
class _Trie:
    """A prefix of token sequences: what may follow, and whether it is one of them itself."""

    def __init__(self) -> None:
        self.below: dict[int, _Trie] = {}
        self.ends = False

    def add(self, member: Sequence[int]) -> None:
        node = self
        for token in member:
            node = node.below.setdefault(token, _Trie())
        node.ends = True

    def intern(self, rows: dict[tuple[tuple[int, int], ...], int], eos: int) -> int:
        """Return the state of this prefix among ``rows``: prefixes that are continued alike share one."""
        order = [self]
        for node in order:
            order.extend(node.below.values())
        state: dict[_Trie, int] = {}
        for node in reversed(order):
            row = sorted((token, state[child]) for token, child in node.below.items())
            row += [(eos, DONE)] if node.ends else []
            state[node] = rows.setdefault(tuple(row), DONE + 1 + len(rows))
        return state[self]
