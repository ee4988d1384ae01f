"""Finite guides: the lift of an automaton over bytes or characters to the tokens of a vocabulary, and indexes of outlines_core."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product, repeat
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from outlines_core import Index

from ..automata.automaton import DEAD as BYTES_DEAD
from ..automata.automaton import ByteAutomaton, distances, explored
from ..automata.lift import FIRST, Lift, Transformations, classes_of, lift
from ..automata.prefix_match import SETTLED, PrefixMatch
from ..errors import EmptyLanguageError, UnsupportedError, VocabularyError
from ..numerics.checks import check_kind
from ..regex.code_automaton import CodeAutomaton, characters, cut, others, union
from ..regex.spelling import spelled, utf8
from ..vocabulary.vocabulary import EOS, Partition, Vocabulary, check_vocabulary
from .guide import DEAD, DONE, UNREACHABLE, Guide, Match, Row
from .phrases.banned import BannedPhrases

_KEPT, _FEW = 1024, 64  # States whose moves are kept as dictionaries, and moves of each, at most: some MiB


@final
@dataclass(frozen=True, eq=False)
class FSMGuide(Guide):
    """A guide with finitely many states: those of a byte automaton, moved up by one to make room for :data:`DONE`.

    Its language is the token sequences whose bytes the automaton accepts, followed by the end of sequence; or, made by
    :meth:`from_index`, those that an index of outlines_core allows; or those of :meth:`from_match`. A state is live only if
    :data:`DONE` can be reached from it *with tokens of the vocabulary*; transitions into other states are :data:`DEAD`.
    """

    vocabulary: Vocabulary
    partition: Partition  # that of all states: tokens that every state treats alike
    # ``int64[S + 1]``, ``int32[E]``: the live transitions of state ``s`` are ``offsets[s]`` to ``offsets[s + 1]`` of the others.
    offsets: NDArray[np.int64]
    classes: NDArray[np.int32]
    successors: NDArray[np.int32]
    start: int  # the state before the first token
    automaton: ByteAutomaton | None = None  # the automaton this was lifted from, ``None`` if made otherwise
    phrases: BannedPhrases | None = None  # the phrases kept out of it
    match: Match | None = None  # of texts that begin with a member

    def __post_init__(self) -> None:
        object.__setattr__(self, "open", self.match is not None and self.match.open)

    @classmethod
    def from_automaton(cls, automaton: ByteAutomaton, vocabulary: Vocabulary) -> FSMGuide:
        """Return the guide of the token sequences whose bytes ``automaton`` accepts.

        Raises :class:`EmptyLanguageError` where it accepts nothing, or nothing that tokens of ``vocabulary`` can write.
        """
        where, expected = "FSMGuide.from_automaton", "a ByteAutomaton, as compile_regex returns"
        check_kind(where, "automaton", automaton, ByteAutomaton, expected)
        check_vocabulary(where, vocabulary)
        guide = None
        if automaton.start != BYTES_DEAD:
            partition, moves = lift(automaton.targets, automaton.byte_class, vocabulary)
            guide = cls.from_moves(vocabulary, partition, moves, automaton.accepting, automaton.start, automaton)
        if guide is None and automaton.is_empty:
            raise EmptyLanguageError(
                "the output type allows no text at all; see that its parts do not contradict each other"
            )
        if guide is None:
            raise EmptyLanguageError(
                "no text of the output type can be written with this vocabulary; the shortest one, "
                f"{automaton.shortest()!r}, needs bytes that no sequence of its tokens writes"
            )
        return guide

    @classmethod
    def from_match(cls, match: Match, vocabulary: Vocabulary) -> FSMGuide:
        """Return the guide of the token sequences that end as soon as it is settled which member their text begins with.

        The token that settles it is the last one, and may reach beyond the member. Where a member has been written, the end of
        sequence settles it, too, and of an open match that of the budget. An :class:`EmptyLanguageError` as for
        :meth:`from_automaton`.
        """
        machine, members = match.machine, match.members if isinstance(match, PrefixMatch) else None
        assert machine is not None
        partition, moves = lift(machine.targets, machine.byte_class, vocabulary)
        target = np.where(moves.target == SETTLED, BYTES_DEAD, moves.target)  # moved up by one, that is DONE
        moves = Transformations(moves.offsets, moves.source, target).where(moves.source != SETTLED)
        ends = machine.accepting & (np.arange(len(machine)) != SETTLED)
        guide = cls.from_moves(vocabulary, partition, moves, ends, machine.start, members, match)
        if guide is None:
            raise EmptyLanguageError(
                "Give members that tokens of this vocabulary can write: no text that begins with one can be written with it."
            )
        return guide

    @classmethod
    def from_index(cls, index: Index, vocabulary: Vocabulary) -> FSMGuide:
        """Return the guide of the token sequences that ``index``, built over the tokens of ``vocabulary``, allows.

        Exactly its transitions, losses included; only dead ends, which outlines_core keeps, are pruned. Takes time in proportion to
        the transitions: 10 ms for a JSON schema over 1,280 tokens, 3 s for one with two bounded strings over 131,072. Raises
        :class:`VocabularyError` for an index with ids that the vocabulary has not (it knows no tokens, so that these cannot be
        compared), :class:`EmptyLanguageError` for one without a path to an end.
        """
        check_kind("FSMGuide.from_index", "index", index, Index, "an Index of outlines_core")
        check_vocabulary("FSMGuide.from_index", vocabulary)
        moves, accepting, start = token_moves(index, vocabulary)
        partition, moves = _classes(moves, np.arange(len(vocabulary)), vocabulary)
        guide = cls.from_moves(vocabulary, partition, moves, accepting, start)
        if guide is None:
            raise EmptyLanguageError(
                "the index allows no text that ends: every path runs into a dead end, because tokens that the "
                "pattern needs are missing from its vocabulary"
            )
        return guide

    @classmethod
    def from_moves(
        cls,
        vocabulary: Vocabulary,
        partition: Partition,
        moves: Transformations,
        accepting: NDArray[np.bool_],
        start: int,
        automaton: ByteAutomaton | None = None,
        match: Match | None = None,
    ) -> FSMGuide | None:
        """Return the guide without moves into dead ends; ``None`` if its start is one."""
        final, states, trimmed = np.flatnonzero(accepting).astype(np.int32), len(accepting) + 1, False
        while True:
            # The end of sequence comes first among a state's classes, and stable sorting keeps the classes in order.
            state = np.concatenate([final, moves.source]) + 1
            spelled = np.repeat(np.arange(FIRST, FIRST + len(moves), dtype=np.int32), np.diff(moves.offsets))
            classes = np.concatenate([np.full(len(final), EOS, dtype=np.int32), spelled])
            successors = np.concatenate([np.full(len(final), DONE, dtype=np.int32), moves.target + 1])
            order = np.argsort(state.astype(np.min_scalar_type(states)), kind="stable")
            offsets = np.concatenate([[0], np.cumsum(np.bincount(state, minlength=states))])
            arrays = offsets, classes[order], successors[order]
            guide = cls(vocabulary, partition, *arrays, start + 1, automaton, match=match)
            alive = guide.distances != UNREACHABLE
            if not alive[guide.start]:
                return None
            if trimmed or alive[2:].all():
                return guide
            # Without moves into dead ends, classes may coincide or be dead everywhere.
            partition, moves = _classes(moves.where(alive[1:][moves.target]), partition.class_of - FIRST, vocabulary)
            trimmed = True

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __and__(self, other: FSMGuide) -> FSMGuide:
        """Return the guide of what both allow: the product of the byte automata, lifted.

        Dead ends of the product are trimmed exactly, so the intersection costs nothing per step.
        """
        if self.vocabulary.fingerprint != other.vocabulary.fingerprint:
            raise VocabularyError("guides of two vocabularies cannot be intersected; build both for the same model")
        if self.automaton is None or other.automaton is None or self.open or other.open:
            raise UnsupportedError(
                "only guides of byte automata can be intersected; this one was made from a token table"
            )
        product = self.automaton & other.automaton
        if product.is_empty:
            raise EmptyLanguageError("the intersection is empty: no text is allowed by both guides")
        return FSMGuide.from_automaton(product, self.vocabulary)

    @cached_property
    def distances(self) -> NDArray[np.int32]:
        """``int32[S]``: ``min_tokens`` of every state, by breadth-first search backwards from the ends."""
        state = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        # The text may end without the end of sequence where the guide is open.
        ends = state[self.classes == EOS] if self.open else []
        return distances(state, self.successors, np.array([DONE, *ends]), len(self))

    def row(self, state: int) -> Row:
        here = slice(self.offsets[state], self.offsets[state + 1])
        targets = np.full(self.partition.size, DEAD, dtype=np.int32)
        targets[self.classes[here]] = self.successors[here]
        return Row(self.partition, targets)

    def partition_of(self, state: int) -> Partition:
        """See :meth:`Guide.partition_of`: one for all states."""
        return self.partition

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`, without the whole row."""
        number = self.partition.class_of.item(token)
        if (moves := self._moves.get(state)) is not None:
            return moves.get(number, DEAD)
        here = slice(self.offsets[state], self.offsets[state + 1])
        classes, successors = self.classes[here], self.successors[here]
        if len(self._moves) < _KEPT and len(classes) <= _FEW:
            self._moves[state] = moves = dict(zip(classes.tolist(), successors.tolist(), strict=True))
            return moves.get(number, DEAD)
        (found,) = (classes == number).nonzero()
        return int(successors[found[0]]) if len(found) else DEAD

    @cached_property
    def _moves(self) -> dict[int, dict[int, int]]:
        """The first states that walks came to, and where their classes lead: read in a fraction of the time."""
        return {}

    @property
    def blocks(self) -> bool:  # type: ignore[override]
        """True where the automaton tells the parts of its texts."""
        return self._position is not None

    def begins_block(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See :meth:`Guide.begins_block`: where a later part of the automaton's texts is come to."""
        if self._position is None:
            return super().begins_block(state, tokens)
        after = self._position[self.row(state).targets[self.partition.class_of[tokens]]]
        return after // 2 > self._position[state] // 2

    def between_blocks(self, state: int) -> bool:
        """See :meth:`Guide.between_blocks`."""
        return self._position is not None and bool(self._position[state] % 2)

    @property
    def machine(self) -> ByteAutomaton | None:  # type: ignore[override]
        """The automaton of the texts, that of its match where it has one."""
        return self.automaton if self.match is None else self.match.machine

    def state(self, place: int) -> int:
        """See :meth:`Guide.state`."""
        return DONE if self.match is not None and place == SETTLED else place + 1

    @cached_property
    def _position(self) -> NDArray[np.int16] | None:
        """``int16[S]``: the position of every state, see :attr:`ByteAutomaton.positions`."""
        position = None if self.machine is None else self.machine.positions
        return None if position is None else np.append(position[:1], position)

    def min_tokens(self, state: int) -> int:
        """See :meth:`Guide.min_tokens`."""
        return int(self.distances[state])

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        return self.distances[states].astype(np.int64)

    def fingerprint(self) -> str:
        """See :meth:`Guide.fingerprint`: a digest of all transitions."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.blake2b(f"{self.start}{'open' * self.open}".encode(), digest_size=16)
        parts: list[NDArray[Any]] = [self.partition.class_of, self.offsets, self.classes, self.successors]
        for part in parts if self._position is None else [*parts, self._position]:
            digest.update(np.int64(len(part)).tobytes() + part.astype(np.int64).tobytes())
        return digest.hexdigest()

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: what may come next, and how far the end is."""
        if state in (DEAD, DONE):
            return "dead" if state == DEAD else "done"
        allowed = np.flatnonzero(self.row(state).targets[self.partition.class_of] != DEAD)
        names = ["<eos>" if v in self.vocabulary.eos_ids else repr(self.vocabulary.tokens[v]) for v in allowed[:6]]
        rest = f" and {len(allowed) - 6} more" if len(allowed) > 6 else ""
        return f"state {state} of {len(self)}: {self.min_tokens(state)} tokens to go, next {', '.join(names)}{rest}"


def _classes(moves: Transformations, move_of: NDArray[np.integer], vocabulary: Vocabulary) -> Lift:
    """Return the classes of ids that do the same, and what each class does.

    ``move_of[v]`` is the number of what id ``v`` does; a negative one is nothing.
    """
    distinct, number_of = moves.distinct()
    return classes_of(np.append(number_of, -1)[np.maximum(move_of, -1)] + 1, distinct, vocabulary)


class Alphabet(Protocol):
    """The characters that each transition is for; what is no text stands for all others."""

    by_transition: Mapping[Hashable, Collection[Any]]


@runtime_checkable
class CharacterFSM(Protocol):
    """A deterministic automaton over characters, as ``interegular.fsm.FSM``; a transition that is missing fails."""

    alphabet: Alphabet
    states: Collection[Hashable]
    initial: Hashable
    finals: Collection[Hashable]
    map: Mapping[Hashable, Mapping[Hashable, Hashable]]


def encoded(fsm: CharacterFSM) -> ByteAutomaton:
    """Return the automaton of the UTF-8 encodings of what an automaton over characters accepts."""
    groups = fsm.alphabet.by_transition
    listed = characters("".join(each for group in groups.values() for each in group if isinstance(each, str)))
    sets = []
    for group in groups.values():
        own = characters("".join(each for each in group if isinstance(each, str)))
        sets.append(own if all(isinstance(each, str) for each in group) else union([own, others(listed)]))
    bounds, classes, members = cut(sets)
    number = {state: place for place, state in enumerate(sorted(fsm.states, key=lambda state: state != fsm.initial))}
    targets = np.full((len(number) + 1, int(classes.max()) + 1), len(number), dtype=np.int32)  # the last state is dead
    for state, moves in fsm.map.items():
        for key, columns in zip(groups, members, strict=True):
            if key in moves:
                targets[number[state], columns] = number[moves[key]]
    accepting = np.zeros(len(targets), dtype=bool)
    accepting[[number[state] for state in fsm.finals]] = True
    return spelled(CodeAutomaton.of(bounds, classes, targets, accepting), utf8)


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
