"""outlines_core indexes: those over bytes as byte automata, those over a real vocabulary as what each token does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import product, repeat
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index

from ..automata.automaton import ByteAutomaton, explored
from ..automata.lift import Transformations
from ..errors import VocabularyError
from ..vocabulary.vocabulary import Vocabulary

State = int | frozenset[tuple[int, int]]
"""A state of outlines_core, or one between the two bytes of a pair: known by its transitions."""

END = 2**31 - 1  # The id of the end of sequence in an index that is to be read; no real vocabulary reaches it


def _pairs() -> Iterator[bytes]:
    ascii_, leads, continuations = range(0x80), range(0xC2, 0xF5), range(0x80, 0xC0)
    for firsts, seconds in ((ascii_, (*ascii_, *leads)), (leads, continuations)):
        yield from map(bytes, product(firsts, seconds))


TOKENS: tuple[bytes, ...] = (*(bytes([byte]) for byte in range(256)), *_pairs())
"""The vocabulary of an index that is to be read, by id: the 256 bytes, and the pairs of bytes with which valid UTF-8
may go on after a whole character."""


def is_byte_level(index: Index) -> bool:
    """Return True if ``index`` was built over :data:`TOKENS` and :data:`END`."""
    final = min(index.get_final_states(), default=None)
    return final is not None and END in (index.get_allowed_tokens(final) or ())


def from_index(index: Index) -> ByteAutomaton:
    """Return the trimmed byte automaton of the texts that ``index``, over :data:`TOKENS`, lets some vocabulary write.

    The single bytes alone would not do: outlines_core leaves out a token that ends one byte after a member and is not a member
    itself, such as the ``.`` of ``1.5`` after ``1`` (its automaton reports the match one byte late). Two bytes after a member it
    never does, so the state in between is recovered from the pairs that pass through it. What no vocabulary can write is not in the
    index: alternatives are tried in their order, and ``a|ab`` alone never gives ``ab``;
    :func:`outlines_phi.regex.patterns.compile_regex` has it.
    """
    start, final = index.get_initial_state(), index.get_final_states()

    def steps(state: State) -> list[State | None]:
        if isinstance(state, frozenset):
            row: dict[int, State] = dict(state)
        else:
            row = {b: t for b in range(256) if (t := index.get_next_state(state, b)) is not None}
            row |= _left_out(index, state, row) if state in final else {}
        return [row.get(byte) for byte in range(256)]

    states, targets = explored([start], steps)
    return ByteAutomaton.from_table(targets, np.array([False, *(state in final for state in states)])).trim()


def _left_out(index: Index, state: int, row: dict[int, State]) -> dict[int, State]:
    """Return the bytes after a final state that outlines_core left out, each with the state that it leads to."""
    between: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for token in index.get_allowed_tokens(state) or ():
        if 256 <= token < len(TOKENS) and TOKENS[token][0] not in row:
            first, second = TOKENS[token]
            between[first].append((second, index.get_next_state(state, token)))
    return {first: frozenset(between[first]) for first in sorted(between)}


@final
class TokenMoves(NamedTuple):
    """The transitions of an index over a real vocabulary; its states are numbered from 1, and 0 is the dead one.

    ``moves`` has one transformation per id, none for the ends of sequence; ``accepting``, ``bool[S]``, is where the end is allowed.
    """

    moves: Transformations
    accepting: NDArray[np.bool_]
    start: int


def token_moves(index: Index, vocabulary: Vocabulary) -> TokenMoves:
    """Return exactly the transitions that ``index`` has, from the states that its start reaches, in 0.1 microseconds each.

    It is asked state by state: a copy of all its transitions would take a gigabyte for bounded strings and a large vocabulary.
    Raises :class:`VocabularyError` where it names ids that ``vocabulary`` does not have, or ends with one that is none of its ends.
    """
    start, final = index.get_initial_state(), index.get_final_states()
    rows: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        if state not in rows:
            rows[state] = _row(index, state, vocabulary)
            waiting.extend(np.unique(rows[state][1]).tolist())
    # In the order of the ids of the index, so that equal indexes give equal moves.
    states = np.array(sorted(rows))
    tokens, targets = (np.concatenate([rows[state][i] for state in states.tolist()]) for i in (0, 1))
    source = np.repeat(
        np.arange(1, len(states) + 1, dtype=np.int32), [len(rows[state][0]) for state in states.tolist()]
    )
    target = (np.searchsorted(states, targets) + 1).astype(np.int32)
    order = np.argsort(tokens, kind="stable")  # sources ascend inside a token
    offsets = np.concatenate([[0], np.cumsum(np.bincount(tokens, minlength=len(vocabulary)))])
    accepting = np.array([False, *(state in final for state in states.tolist())])
    number = int(np.searchsorted(states, start)) + 1
    return TokenMoves(Transformations(offsets, source[order], target[order]), accepting, number)


def _row(index: Index, state: int, vocabulary: Vocabulary) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens that are allowed in ``state``, the ends left out, and where each leads."""
    tokens = np.array(index.get_allowed_tokens(state) or (), dtype=np.int64)
    tokens = np.sort(tokens[~np.isin(tokens, vocabulary.eos_ids)])
    beyond = tokens[-1] if len(tokens) and tokens[-1] >= len(vocabulary) else None
    try:
        targets = np.fromiter(map(index.get_next_state, repeat(state), tokens.tolist()), np.int64, len(tokens))
    except TypeError:  # None: outlines_core does not move by its end of sequence
        beyond = next(v for v in tokens.tolist() if index.get_next_state(state, v) is None)
    if beyond is not None:
        raise VocabularyError(
            f"the index allows the id {beyond}, which this vocabulary of {len(vocabulary)} ids, with ends "
            f"{list(vocabulary.eos_ids)}, does not have or does not end with; it was built for another model. Build it "
            "with this model's tokenizer"
        )
    return tokens, targets
