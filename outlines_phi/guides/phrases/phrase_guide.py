"""The guide of free text without banned phrases, over the tokens of a vocabulary."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...automata.lift import FIRST
from ...numerics.cache import kept_of_states
from ...vocabulary.trie import Trie
from ...vocabulary.vocabulary import EOS, NEVER, Partition, Vocabulary
from ..guide import DEAD, DONE, UNREACHABLE, Guide, Row
from .banned import BannedPhrases


class BanningGuide(Guide):
    """A guide that keeps ``phrases`` out, and tells how much of a text may still become the beginning of one."""

    phrases: BannedPhrases

    def min_tokens(self, state: int) -> int:
        """Return the least number of tokens to where the text may end, the end of sequence included in a closed guide."""
        return int(self.min_tokens_of(np.array([state]))[0])

    @abstractmethod
    def pending(self, state: int) -> int:
        """Return the number of last bytes of the text that may begin a phrase; 0 where nothing waits (theory.md, section 6.1)."""

    def pending_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return :meth:`pending` of every entry of ``states``; 0 for DEAD and DONE."""
        distinct, places = np.unique(states, return_inverse=True)
        waiting = [self.pending(state) if state > DONE else 0 for state in distinct.tolist()]
        return np.array(waiting, dtype=np.int64)[places]

    @abstractmethod
    def phrases_at(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the phrase that each of ``tokens`` would complete in ``state``, by its place in the list; -1 for none.

        Where a token completes several, the first to be complete. The end of sequence completes a whole word that waits for it.
        """


NOWHERE = -1  # Where a token leads that completes a phrase, or that writes nothing


_SHIFT = DONE + 1  # A state of the guide is one of the matcher, moved up to make room for DEAD and DONE


class Changes(NamedTuple):
    """The transitions of a state as changes to others: ``tokens`` lead to ``targets[which]``, all others where they led."""

    tokens: NDArray[np.int32]
    which: NDArray[np.int64]
    targets: NDArray[np.int32]


class Base(NamedTuple):
    """Transitions that several rows share but for a few tokens.

    ``partition`` has the classes, ``counts``, ``int64[G]``, how many tokens each has, ``targets``, ``int32[G]``, where each leads.
    """

    partition: Partition
    counts: NDArray[np.int64]
    targets: NDArray[np.int32]

    @classmethod
    def of(cls, partition: Partition, targets: NDArray[np.int32]) -> Base:
        """Return these transitions."""
        return cls(partition, np.bincount(partition.class_of, minlength=partition.size), targets)

    def changed(self, changes: Changes, end: int) -> Row:
        """Return the row after some changes; the end of sequence leads to ``end``."""
        partition, (tokens, which, added) = self.partition, changes
        # Classes that all of their tokens have left lead nowhere.
        occupied = self.counts > np.bincount(partition.class_of[tokens], minlength=partition.size)
        targets = np.concatenate([np.where(occupied, self.targets, DEAD), added])
        targets[[NEVER, EOS]] = DEAD, end
        if len(tokens):
            classes = np.where(added[which] == DEAD, NEVER, partition.size + which).astype(np.int32)
            partition = Partition.changed(partition, [(tokens, classes)], len(targets))
        return Row(partition, targets)


@final
class PhraseGuide(BanningGuide):
    """Every text that holds no banned phrase, in any tokenization; an open guide (theory.md, section 6.1).

    A token is dead if its bytes complete a phrase. A text may end anywhere but where its end completes one: a whole word that waits
    for what follows it. The transitions of a state are those at the start of a text, which are kept for the whole vocabulary, but
    for the few tokens that go on with what is pending: another state costs a walk down the trie along the branches where its run
    still differs, seldom beyond the first byte. They are made when they are asked for, and a bounded number is kept; a pickled copy
    numbers its states anew.
    """

    open = True

    def __init__(self, vocabulary: Vocabulary, phrases: BannedPhrases) -> None:
        self.vocabulary, self.phrases = vocabulary, phrases
        self._matcher = phrases.matcher
        self.start = self._matcher.start + _SHIFT
        self._trie = Trie.of(vocabulary)
        self._at_node = np.full(len(self._trie), NOWHERE, dtype=np.int32)  # the states at the start of a text
        self._at_node[0] = self._matcher.start
        for low, high in pairwise(self._trie.levels[1:].tolist()):
            states = self._at_node[self._trie.parent[low:high]]
            self._at_node[low:high] = self._read(states, self._trie.byte[low:high])
        self._steps_to_end: dict[int, int] = {}  # of the states of the matcher where a word waits

    def __reduce__(self) -> tuple[Any, ...]:
        return PhraseGuide, (self.vocabulary, self.phrases)

    @cached_property
    def base(self) -> Base:
        """The transitions at the start of a text: tokens with equal targets share a class."""
        node_of = self._trie.node_of
        from_start = np.where(node_of > 0, self._at_node[node_of], NOWHERE)
        states, which = np.unique(from_start, return_inverse=True)
        class_of = np.where(states[which] == NOWHERE, NEVER, which + FIRST).astype(np.int32)
        class_of[self.vocabulary.eos_ids[0]] = EOS
        targets = np.concatenate([[DEAD] * FIRST, self._states(states)]).astype(np.int32)
        return Base.of(Partition(class_of, len(targets)), targets)

    @kept_of_states
    def row(self, state: int) -> Row:
        if state in (DEAD, DONE):
            return Row(self.base.partition, np.full(self.base.partition.size, DEAD, dtype=np.int32))
        return self.base.changed(self.changes(state), DONE if self.min_tokens(state) == 0 else DEAD)

    @kept_of_states
    def changes(self, state: int) -> Changes:
        """Return the transitions of ``state``, not DEAD or DONE, as changes to those at the start of a text."""
        levels = self._trie.walk(state - _SHIFT, self._read, lambda nodes, states: states != self._at_node[nodes])
        nodes, states = (np.concatenate(parts) for parts in zip(*levels, strict=True))
        tokens, counts = self._trie.ending(nodes)
        states = states.repeat(counts)
        distinct, which = np.unique(states, return_inverse=True)
        return Changes(tokens, which, self._states(distinct))

    @kept_of_states
    def min_tokens(self, state: int) -> int:
        return super().min_tokens(state)

    @kept_of_states
    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`, without the whole row."""
        if state in (DEAD, DONE):
            return DEAD
        if token == self.vocabulary.eos_ids[0]:
            return DONE if self.min_tokens(state) == 0 else DEAD
        after = lambda at, byte: self._matcher.read(at, bytes((byte,)))  # noqa: E731
        _, *states = accumulate(self.vocabulary.tokens[token], after, initial=state - _SHIFT)
        target = states[-1] if states and not self._matcher.matches(np.array(states)).any() else NOWHERE
        return int(self._states(np.array([target]))[0])

    def after_text(self, states: NDArray[np.integer], text: bytes) -> NDArray[np.int32]:
        """Return the state after ``text`` from each of ``states``, not DEAD or DONE; DEAD where it completes a phrase."""
        return self._states(self._read_text(states - _SHIFT, text))

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`Guide.min_tokens_of`: 0 where there is any text, but after a word that waits."""
        states = np.asarray(states, dtype=np.int64)
        least = np.where(states == DEAD, UNREACHABLE, 0).astype(np.int64)
        texts = states > DONE
        least[texts] = self._to_end(states[texts] - _SHIFT)
        return least

    def start_after(self, prompt: bytes) -> int:
        """Return the state in which a text after ``prompt`` begins: with what a phrase may have begun with, if that counts."""
        if not self.phrases.across_prompt:
            return self.start
        return self._matcher.after_prompt(self._matcher.advance(self._matcher.start, prompt)) + _SHIFT

    def first_in(self, prompt: bytes, text: bytes) -> str:
        """Return the name of the first phrase that ``text``, which holds one, completes after ``prompt``."""
        state = self.start_after(prompt) - _SHIFT
        first = self._first_completed(state, text)
        at_end = self._matcher.completed_at_end(self._matcher.read(state, text))
        return self.phrases.names[first if first >= 0 else at_end[0]]

    def pending(self, state: int) -> int:
        """See :meth:`BanningGuide.pending`."""
        return int(self._matcher.pending(np.array([state - _SHIFT]))[0]) if state > DONE else 0

    def phrases_at(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`BanningGuide.phrases_at`."""
        if state <= DONE:
            return np.full(len(tokens), -1)
        spelled = (self.vocabulary.tokens[token] for token in tokens.tolist())
        found = np.array([self._first_completed(state - _SHIFT, text) for text in spelled], dtype=np.int64)
        if self._matcher.completes_at_end(np.array([state - _SHIFT]))[0]:
            found[tokens == self.vocabulary.eos_ids[0]] = self._matcher.completed_at_end(state - _SHIFT)[0]
        return found

    def fingerprint(self) -> str:
        """See :meth:`Guide.fingerprint`; of phrases that are searched for as they are written."""
        if self._matcher.states is None:
            return super().fingerprint()
        content = repr((self.vocabulary.fingerprint, self.phrases.names, self.phrases.across_prompt))
        return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: what is pending, and which tokens would complete a phrase."""
        if state in (DEAD, DONE):
            return "dead" if state == DEAD else "done"
        row = self.row(state)
        dead = np.flatnonzero(row.targets[row.partition.class_of] == DEAD)
        dead = dead[dead != self.vocabulary.eos_ids[0]]
        found = zip(dead.tolist(), self.phrases_at(state, dead).tolist(), strict=True)
        pairs = [(token, phrase) for token, phrase in found if phrase >= 0]
        banned = ", ".join(f"{self.vocabulary.tokens[v]!r} of {self.phrases.names[i]}" for v, i in pairs[:6])
        rest = f" and {len(pairs) - 6} more" if len(pairs) > 6 else ""
        end = "may end" if row.targets[EOS] == DONE else "may not end"
        return f"state {state}: {self.pending(state)} bytes pending, {end}, dead are {banned or 'no tokens'}{rest}"

    def _states(self, after: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the states of the guide for states of the matcher: DEAD for NOWHERE, and for one that can never end."""
        states = np.where(after == NOWHERE, DEAD, after + _SHIFT)
        return np.where(self.min_tokens_of(states) < UNREACHABLE, states, DEAD).astype(np.int32)

    def _to_end(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return ``min_tokens`` for states of the matcher."""
        least = np.zeros(len(states), dtype=np.int64)
        waiting = self._matcher.completes_at_end(states)
        found = states[waiting].tolist()
        unknown = np.array(sorted(set(found) - self._steps_to_end.keys()), dtype=np.int64)
        # Almost always one letter does: it makes another word of the one that waits.
        for text in self._letters:
            if not len(unknown):
                break
            released = self._released(self._read_text(unknown, text))
            self._steps_to_end.update(dict.fromkeys(unknown[released].tolist(), 1))
            unknown = unknown[~released]
        for state in unknown.tolist():
            self._steps_to_end[state] = self._search(state)
        least[waiting] = [self._steps_to_end[state] for state in found]
        return least

    def _released(self, states: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return in which states no word waits; in none of those that are nowhere."""
        released = states != NOWHERE
        released[released] = ~self._matcher.completes_at_end(states[released])
        return released

    @cached_property
    def _letters(self) -> list[bytes]:
        return sorted({token for token in self.vocabulary.tokens if len(token) == 1 and token.isalnum()})

    def _search(self, state: int) -> int:
        """Return the least number of tokens after which no word waits, breadth first over the states where one does."""
        level, seen, steps = [state], {state}, 0
        while level:
            steps += 1
            found = set[int]()
            for after in chain.from_iterable(map(self._targets, level)):
                if self._released(after).any():
                    return steps
                found.update(after.tolist())
            level = sorted(found - seen)
            seen |= found
        return UNREACHABLE

    def _targets(self, state: int) -> Iterator[NDArray[np.int32]]:
        """Yield the states of the matcher that tokens lead to from ``state``, those of shorter tokens first."""
        for nodes, states in self._trie.walk(state, self._read, lambda _, states: states != NOWHERE):
            yield np.unique(states[self._trie.is_end[nodes]])

    def _first_completed(self, state: int, text: bytes) -> int:
        """Return the phrase that ``text`` is the first to complete in a state of the matcher, -1 where it completes none."""
        for byte in text:
            state = self._matcher.read(state, bytes((byte,)))
            if completed := self._matcher.completed(state):
                return completed[0]
        return -1

    def _read_text(self, states: NDArray[np.integer], text: bytes) -> NDArray[np.int32]:
        """Return the state of the matcher after ``text``, read in each of ``states``, or :data:`NOWHERE`."""
        after = np.asarray(states, dtype=np.int32)
        for byte in text:
            after = self._read(after, np.full(len(after), byte, dtype=np.uint8))
        return after

    def _read(self, states: NDArray[np.int32], read: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the states of the matcher after one byte; :data:`NOWHERE` where a phrase is complete or the state is nowhere."""
        reading = states != NOWHERE
        after = np.full(len(states), NOWHERE, dtype=np.int32)
        stepped = self._matcher.step(states[reading], read[reading])
        after[reading] = np.where(self._matcher.matches(stepped), NOWHERE, stepped)
        return after
