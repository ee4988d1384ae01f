"""What a guide forces to be written, in bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..automata.automaton import DEAD, ByteAutomaton
from ..guides.fsm import FSMGuide
from ..guides.guide import DONE, UNREACHABLE, Guide
from ..vocabulary.trie import Trie

BLANKS = b" \t\n\r"
"""What may be optional between the parts of a format."""

BLANK = BLANKS[0]
"""The blank that is written where one is."""

AHEAD = 16
"""Bytes of forced text that a continuation goes on with after its first byte."""

KEPT = 4096
"""States of a guide without a byte automaton whose steps are kept."""


class ForcedTexts(ABC):
    """What a guide forces to be written, state by state: the one way on in bytes, but for blanks.

    Formats allow blanks where nobody or everybody writes them, as ``[ ]?`` around the ``:`` of JSON. Where nothing but blanks may
    stand before the one byte to come, ``spaced`` decides: the bytes that a space is written after, if it may be.
    """

    @abstractmethod
    def after(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        """Return the text that everything after ``state`` begins with, and the state after it.

        ``last`` is the byte before, if there is one. The text has about ``most`` bytes at most. The budget is not looked at: one
        that forces something is too short for drafts to save much.
        """

    @abstractmethod
    def ending(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        """Return the one way out of a value and what is forced after it, as :meth:`after` does; nothing where no value has begun.

        A value has begun where its last byte may be repeated, and the way out is the one byte that leads nearest to an end.
        """

    @abstractmethod
    def continuations(self, state: int, spaced: bytes, most: int) -> list[bytes]:
        """Return some of the texts that may be written after ``state``, ``most`` at most, spread over all of them."""


def forced_texts(guide: Guide) -> ForcedTexts:
    """Return what ``guide`` forces, by its byte automaton where it has one."""
    automaton = guide.automaton if isinstance(guide, FSMGuide) else None
    return _ByTokens(guide) if automaton is None else _ByBytes(automaton)


@final
class _ByBytes(ForcedTexts):
    """Follows the states of a byte automaton that have one way on. Those of its guide are one higher."""

    def __init__(self, automaton: ByteAutomaton) -> None:
        self._automaton = automaton
        byte_class, live = automaton.byte_class, automaton.targets != DEAD
        signs = np.setdiff1d(np.arange(256), list(BLANKS))
        one, one_sign = _only(live, byte_class, np.arange(256)), _only(live, byte_class, signs)
        self._byte = np.where(automaton.accepting, -1, np.where(one >= 0, one, one_sign))
        # A space changes nothing where it leads to another state with the same ways on, but for blanks.
        spaced, columns = automaton.targets[:, byte_class[BLANK]], np.unique(byte_class[signs])
        same = (automaton.targets[spaced][:, columns] == automaton.targets[:, columns]).all(axis=1)
        optional = (self._byte >= 0) | (same & (spaced != np.arange(len(automaton))))
        self._spaceable = (spaced != DEAD) & optional

    def after(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        text, at = self._follow(state - 1, last, spaced, most)
        return text, at + 1

    def ending(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        targets = self._automaton.targets[state - 1, self._automaton.byte_class]
        distances = self._automaton.distances[targets]
        ways = np.flatnonzero(distances == distances.min())
        if not last or last in BLANKS or targets[last[0]] == DEAD or len(ways) != 1 or ways[0] == last[0]:
            return b"", state
        way = bytes([int(ways[0])])
        text, at = self._follow(int(targets[ways[0]]), way, spaced, most)
        return way + text, at + 1

    def continuations(self, state: int, spaced: bytes, most: int) -> list[bytes]:
        targets = self._automaton.targets[state - 1, self._automaton.byte_class]
        # Where only bytes of longer characters follow, there is no character to try out yet.
        ways = [(bytes([byte]), int(targets[byte])) for byte in _spread(np.flatnonzero(targets[:128] != DEAD), most)]
        return [byte + self._follow(target, byte, spaced, AHEAD)[0] for byte, target in ways]

    def _follow(self, at: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        text = bytearray()
        while len(text) < most:
            byte = BLANK if self._spaceable[at] and last and last in spaced else int(self._byte[at])
            if byte < 0:
                break
            last = bytes([byte])
            text += last
            at = int(self._automaton.targets[at, self._automaton.byte_class[last[0]]])
        return bytes(text), at


@final
class _ByTokens(ForcedTexts):
    """Follows what all live tokens of a state begin with, for guides without a byte automaton.

    That is what is forced where every byte is a token, as in byte-level vocabularies. Where some spellings lead to texts that
    others cannot write, it may be more.
    """

    def __init__(self, guide: Guide) -> None:
        self._guide, self._tokens = guide, guide.vocabulary.tokens
        self._trie = Trie.of(guide.vocabulary)
        self._first = np.arange(len(self._trie))  # the node of the first byte, of every node
        for start, end in zip(self._trie.levels[2:-1], self._trie.levels[3:], strict=True):
            self._first[start:end] = self._first[self._trie.parent[start:end]]
        self._step = lru_cache(KEPT)(self._one_step)

    def after(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        text = b""
        while len(text) < most and (token := self._step(state, bool(last) and last in spaced)) >= 0:
            text, state = text + self._tokens[token], self._guide.advance(state, token)
            last = text[-1:]
        return text, state

    def ending(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        live = self._live(state)
        row = self._guide.row(state)
        distances = self._guide.min_tokens_of(row.targets[row.partition.class_of[live]])
        bytes_of = self._trie.byte[self._first[self._trie.node_of[live]]]
        ways = np.unique(bytes_of[distances == distances.min(initial=UNREACHABLE)])
        if not last or last in BLANKS or last[0] not in bytes_of or len(ways) != 1 or ways[0] == last[0]:
            return b"", state
        token = self._common(state, np.unique(self._trie.node_of[live[bytes_of == ways[0]]]))
        if token < 0:
            return b"", state
        way = self._tokens[token]
        text, end = self.after(self._guide.advance(state, token), way[-1:], spaced, most)
        return way + text, end

    def continuations(self, state: int, spaced: bytes, most: int) -> list[bytes]:
        return [self._tokens[token] for token in _spread(self._live(state), most)]

    def _one_step(self, state: int, spaced: bool) -> int:
        """Return the longest live token that all live ones begin with, if blanks are left out or put in; -1 for none."""
        if self._guide.advance(state, self._guide.vocabulary.eos_ids[0]) == DONE:
            return -1
        nodes = np.unique(self._trie.node_of[self._live(state)])
        first = self._trie.byte[self._first[nodes]]
        blank, space = np.isin(first, list(BLANKS)), first == BLANK
        ways = len(np.unique(first[~blank]))
        if spaced and space.any() and (ways == 1 or self._spaceable(state, self._common(state, nodes[space]))):
            return self._common(state, nodes[space])
        if ways == 1 or (not ways and len(np.unique(first)) == 1):
            return self._common(state, nodes[~blank] if ways else nodes)
        return -1

    def _spaceable(self, state: int, blank: int) -> bool:
        """Return whether ``blank`` leads to another state with the same ways on, but for blanks."""
        after = self._guide.advance(state, blank) if blank >= 0 else state
        (here, targets), (there, others) = self._signs(state), self._signs(after)
        return after != state and np.array_equal(here, there) and np.array_equal(targets, others)

    def _signs(self, state: int) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
        """Return the live tokens that do not begin with a blank, and where they lead."""
        live, row = self._live(state), self._guide.row(state)
        live = live[~np.isin(self._trie.byte[self._first[self._trie.node_of[live]]], list(BLANKS))]
        return live, row.targets[row.partition.class_of[live]]

    def _common(self, state: int, nodes: NDArray[np.integer]) -> int:
        """Return the longest live token that the tokens of ``nodes`` all begin with."""
        for start in self._trie.levels[-2:0:-1]:
            if len(nodes) == 1:
                break
            nodes = np.unique(np.where(nodes >= start, self._trie.parent[nodes], nodes))
        while nodes[0]:
            for token in self._trie.ending(nodes)[0].tolist():
                if self._guide.advance(state, token) > DONE:
                    return token
            nodes = self._trie.parent[nodes]
        return -1

    def _live(self, state: int) -> NDArray[np.int64]:
        row = self._guide.row(state)
        return np.flatnonzero((row.targets > DONE)[row.partition.class_of])


def _only(live: NDArray[np.bool_], byte_class: NDArray[np.uint8], allowed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the one byte of ``allowed`` on a live way on of each state, ``live[S, C]``; -1 where there is none, or several."""
    width = np.bincount(byte_class[allowed], minlength=live.shape[1])
    byte_of = np.zeros(len(width), dtype=np.int64)
    byte_of[byte_class[allowed]] = allowed
    return np.where(live @ width == 1, byte_of[(live & (width > 0)).argmax(axis=1)], -1)


def _spread(items: NDArray[np.int64], most: int) -> list[int]:
    """Return at most ``most`` of ``items``, evenly spread."""
    if len(items) > most:
        items = items[np.linspace(0, len(items) - 1, most).astype(np.int64)]
    return items.tolist()
