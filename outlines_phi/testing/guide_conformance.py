"""The conformance tests of a guide: assertions that hold of every one, and the reference of all guides, by definition.

They are slow and exact; use small vocabularies.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..automata.byte_machine import ByteMachine
from ..guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from ..vocabulary.classes import EOS, NEVER, Partition
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary


def assert_guide(guide: Guide, *, limit: int = 10_000, shortest: bool = True) -> None:
    """Assert the laws of every guide, whatever its language, in the states that tokens reach from its start.

    - DEAD and DONE lead nowhere; DEAD cannot be finished and DONE is finished.
    - DONE is reached by the end of sequence and, but where texts begin with a member, by nothing else.
    - Ids that write nothing are never allowed, except the first end-of-sequence id.
    - ``min_tokens`` is one more than the least of a state's targets, so no allowed token leads into a dead end; or no less
      where it is not ``shortest``. Where the text may end, it is 0 for an open guide.

    Parameters
    ----------
    guide
        The guide.
    limit
        The most states that are looked at.
    shortest
        True if ``min_tokens`` is promised to be the least number of tokens, not only an upper bound that some token lowers.

    Raises
    ------
    AssertionError
        A law that does not hold, with the state.
    """
    assert guide.min_tokens(DONE) == 0
    for state in (DEAD, DONE):
        assert not guide.row(state).targets.any(), f"state {state} must lead nowhere"
    for state in reachable(guide, limit=limit):
        row, here = guide.row(state), guide.describe(state)
        assert row.targets.shape == (row.partition.size,), here
        assert row.partition.class_of.shape == (len(guide.vocabulary),), here
        assert row.partition.members(EOS).tolist() == [guide.vocabulary.eos_ids[0]], here
        silent = [
            v for v, token in enumerate(guide.vocabulary.tokens) if not token and v != guide.vocabulary.eos_ids[0]
        ]
        assert not row.targets[row.partition.class_of[silent]].any(), f"an id that writes nothing is allowed: {here}"
        assert row.targets[NEVER] == DEAD, f"no state allows NEVER: {here}"
        assert row.targets[EOS] in (DEAD, DONE), f"the end of sequence only ends a text: {here}"
        ends = (guide.match is not None and guide.ends_by_tokens) or DONE not in row.targets[EOS + 1 :]
        assert ends, f"something else than the end of sequence ends a text: {here}"
        targets = {int(target) for target in row.targets} - {DEAD}
        assert targets, f"nothing is allowed: {here}"
        distances = [guide.min_tokens(target) for target in targets]
        assert max(distances) < UNREACHABLE, f"an allowed token leads into a dead end: {here}"
        ended = guide.open and row.targets[EOS] == DONE
        least = 0 if ended else 1 + min(distances)
        assert guide.min_tokens(state) == least or (not shortest and least < guide.min_tokens(state)), here


def assert_spells(
    guide: Guide,
    machine: ByteMachine[Any] | Guide,
    *,
    limit: int = 10_000,
    shortest: bool = True,
    start: int | None = None,
) -> None:
    """Assert that ``guide`` allows exactly the token sequences whose bytes ``machine`` allows.

    It is compared with a :class:`ReferenceGuide`, state by state: the allowed tokens, where they lead, and the fewest tokens to an
    end.

    Parameters
    ----------
    guide
        The guide.
    machine
        The language, or another guide that has it.
    limit
        The most pairs of states that are looked at.
    shortest
        True if ``min_tokens`` is promised to be the least number of tokens, not only an upper bound that some token lowers.
    start
        The state of the guide that texts begin in, which a prompt may decide.

    Raises
    ------
    AssertionError
        A token or a distance that differs, with the state.
    """
    reference = machine if isinstance(machine, Guide) else ReferenceGuide(machine, guide.vocabulary, open=guide.open)
    every = np.arange(len(guide.vocabulary))
    pairs = {(guide.start if start is None else start, reference.start)}
    queue = deque(pairs)
    while queue and len(pairs) < limit:
        state, place = queue.popleft()
        here = f"{guide.describe(state)}; {reference.describe(place)}"
        least, expected = guide.min_tokens(state), reference.min_tokens(place)
        assert least == expected or (not shortest and expected < least < UNREACHABLE), (
            f"{least}, not {expected}: {here}"
        )
        assert np.array_equal(guide.mask(state), reference.mask(place)), f"the mask: {here}"
        found, wanted = (row.targets[row.partition.class_of] for row in (guide.row(state), reference.row(place)))
        assert [guide.advance(state, token) for token in every.tolist()] == found.tolist(), here
        for token in np.flatnonzero((found != DEAD) != (wanted != DEAD)).tolist():
            raise AssertionError(f"token {token}, {guide.vocabulary.tokens[token]!r}: {here}")
        for pair in zip(found.tolist(), wanted.tolist(), strict=True):
            if min(pair) > DONE and pair not in pairs:
                pairs.add(pair)
                queue.append(pair)


def reachable(guide: Guide, *, limit: int = 10_000) -> list[int]:
    """Return the states that tokens reach from the start, at most ``limit``, without DEAD and DONE."""
    found = {guide.start}
    queue = deque(found)
    while queue and len(found) < limit:
        new = set(np.unique(guide.row(queue.popleft()).targets).tolist()) - found - {DEAD, DONE}
        found |= new
        queue.extend(sorted(new))
    return sorted(found)


MOST_STATES = 100_000
"""The most states in which an end is looked for."""


@final
class ReferenceGuide(Guide):
    """The token sequences whose bytes a machine allows, by a walk of the trie that steps each distinct place and byte once.

    ``min_tokens`` is the fewest tokens, breadth first; ``AssertionError`` where :data:`MOST_STATES` states do not tell. An end
    costs a token, but in an ``open`` guide.
    """

    machine: ByteMachine[Any]

    def __init__(self, machine: ByteMachine[Any], vocabulary: Vocabulary, *, open: bool = False) -> None:
        self.machine, self.vocabulary, self.open = machine, vocabulary, open
        self._trie = Trie.of(vocabulary)
        self._places: list[Any] = [None, None]
        self._number: dict[Any, int] = {None: DEAD}
        self._steps: dict[int, int] = {}
        self._targets: dict[int, NDArray[np.int64]] = {}
        self._fewest: dict[int, int] = {DEAD: UNREACHABLE, DONE: 0}
        self.start = self._state(machine.start)

    def row(self, state: int) -> Row:
        states, which = np.unique(self._walk(state), return_inverse=True)
        live = [target if self.min_tokens(target) < UNREACHABLE else DEAD for target in states.tolist()]
        class_of: NDArray[np.int32] = (which.reshape(-1) + EOS + 1).astype(np.int32)
        end = live[which.reshape(-1)[self.vocabulary.eos_ids[0]]]
        class_of[[not token for token in self.vocabulary.tokens]] = NEVER
        class_of[self.vocabulary.eos_ids[0]] = EOS
        return Row(Partition(class_of, EOS + 1 + len(live)), np.array([DEAD, end, *live]))

    def min_tokens(self, state: int) -> int:
        if state not in self._fewest:
            self._fewest[state] = self._search(state)
        return self._fewest[state]

    def describe(self, state: int) -> str:
        return self.machine.describe(self._places[state]) if state > DONE else ("dead", "done")[state]

    def _state(self, place: Any) -> int:
        number = self._number.setdefault(place, len(self._places))
        self._places += [place] * (number == len(self._places))
        return number

    def _step(self, key: int) -> int:
        """Return the state after a byte; both are one number, ``256 * state + byte``."""
        if key not in self._steps:
            state, byte = divmod(key, 256)
            self._steps[key] = self._state(self.machine.step(self._places[state], byte)) if state > DONE else DEAD
        return self._steps[key]

    def _walk(self, state: int) -> NDArray[np.int64]:
        """Return the target of each token, dead ends not told."""
        if state not in self._targets:
            trie, at = self._trie, np.full(len(self._trie), state)
            for low, high in pairwise(trie.levels[1:].tolist()):
                keys = at[trie.parent[low:high]] * 256 + trie.byte[low:high]
                distinct, which = np.unique(keys, return_inverse=True)
                at[low:high] = np.array(list(map(self._step, distinct.tolist())))[which]
            at[0] = DEAD
            targets = self._targets[state] = at[trie.node_of]
            ended = state > DONE and self.machine.ends(self._places[state])
            targets[self.vocabulary.eos_ids[0]] = DONE if ended else DEAD
        return self._targets[state]

    def _search(self, state: int) -> int:
        level, seen, tokens = {state}, {state}, 0
        while level:
            found = set[int]().union(*(self._walk(one).tolist() for one in level))
            tokens += 1
            if DONE in found:
                return tokens - self.open
            level = found - seen - {DEAD}
            seen |= level
            assert len(seen) < MOST_STATES, f"no end was found from here: {self.describe(state)}"
        return UNREACHABLE
