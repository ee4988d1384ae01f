"""The conformance tests of a guide: assertions that hold of every one. They are slow and exact; use small vocabularies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from ..automata.automaton import ByteAutomaton
from ..guides.guide import DEAD, DONE, UNREACHABLE, Guide
from ..vocabulary.classes import EOS, NEVER
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
        ends = guide.match is not None or DONE not in row.targets[EOS + 1 :]
        assert ends, f"something else than the end of sequence ends a text: {here}"
        targets = {int(target) for target in row.targets} - {DEAD}
        assert targets, f"nothing is allowed: {here}"
        distances = [guide.min_tokens(target) for target in targets]
        assert max(distances) < UNREACHABLE, f"an allowed token leads into a dead end: {here}"
        ended = guide.open and row.targets[EOS] == DONE
        least = 0 if ended else 1 + min(distances)
        assert guide.min_tokens(state) == least or (not shortest and least < guide.min_tokens(state)), here


def assert_spells(guide: Guide, automaton: ByteAutomaton, *, limit: int = 10_000) -> None:
    """Assert that ``guide`` allows exactly the token sequences whose bytes ``automaton`` accepts.

    In every state that tokens reach, each token is tried by itself: it is allowed if and only if the automaton, run
    on its bytes, stays in a state from which tokens can complete a member, and ``min_tokens`` is the least number of
    tokens that does; the end of sequence is one of them, but for an open guide.

    Parameters
    ----------
    guide
        The guide.
    automaton
        The language, as an automaton over bytes.
    limit
        The most pairs of states that are looked at.

    Raises
    ------
    AssertionError
        A token or a distance that differs, with the state.
    """
    tokens_to_go = _tokens_to_go(automaton, guide.vocabulary)
    pairs = {(guide.start, automaton.start)}
    queue = deque(pairs)
    while queue and len(pairs) < limit:
        state, bytes_state = queue.popleft()
        here = guide.describe(state)
        assert guide.min_tokens(state) + int(guide.open) == tokens_to_go(bytes_state) < UNREACHABLE, here
        assert guide.partition_of(state) is guide.row(state).partition, here
        for v, token in enumerate(guide.vocabulary.tokens):
            target = guide.advance(state, v)
            if not token:
                ends = v == guide.vocabulary.eos_ids[0] and automaton.accepting[bytes_state]
                assert target == (DONE if ends else DEAD), f"id {v}, which writes nothing: {here}"
                continue
            after = automaton.advance(bytes_state, token)
            can_be_completed = tokens_to_go(after) < UNREACHABLE
            assert (target != DEAD) == can_be_completed, f"token {v}, {token!r}: {here}"
            pair = (target, after)
            if can_be_completed and pair not in pairs:
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


def _tokens_to_go(automaton: ByteAutomaton, vocabulary: Vocabulary) -> Callable[[int], int]:
    """Return the least number of tokens, the end included, from a state of ``automaton`` on, by value iteration."""
    spelled = [token for token in vocabulary.tokens if token]
    after = [[automaton.advance(state, token) for token in spelled] for state in range(len(automaton))]
    to_go = {state: 1 for state in range(len(automaton)) if automaton.accepting[state]}
    while True:
        better = {
            state: 1 + min(to_go[target] for target in targets if target in to_go)
            for state, targets in enumerate(after)
            if any(target in to_go for target in targets) and not automaton.accepting[state]
        }
        if all(to_go.get(state) == steps for state, steps in better.items()):
            return lambda state: to_go.get(state, UNREACHABLE)
        to_go |= better
