"""Texts of a guide: a shortest one from each state, its fewest tokens, and all texts of a small finite language."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import numpy as np

from ..automata.automaton import ByteAutomaton
from ..automata.prefix_match import PrefixMatch
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import EOS, Vocabulary
from .fsm import FSMGuide
from .guide import DEAD, DONE, UNREACHABLE, Guide
from .table import Table


@final
class ShortestTexts:
    """For each state of a guide, what one of its shortest token sequences writes, always the same.

    The sequences of two states are one from where they meet, so each state that they lead through costs one row.
    """

    def __init__(self, guide: Guide) -> None:
        self._guide = guide
        self._texts: dict[int, bytes] = {}

    def text(self, state: int) -> bytes:
        """Return the text for ``state``, from which an end can be reached."""
        known = self._guide.shortest_text(state)
        if known is not None:
            return known
        steps, here = list[tuple[int, bytes]](), state
        while here not in self._texts:
            nearest = self._guide.min_tokens(here) == (0 if self._guide.open else 1)
            if here == DONE or (nearest and self._guide.row(here).targets[EOS] == DONE):
                self._texts[here] = b""
                break
            token, target = self._next(here)
            steps.append((here, token))
            here = target
        for before, token in reversed(steps):
            self._texts[before] = token + self._texts[here]
            here = before
        return self._texts[state]

    def _next(self, state: int) -> tuple[bytes, int]:
        """Return a token that leads from ``state`` nearer to the end, and where it leads."""
        row = self._guide.row(state)
        least = self._guide.min_tokens_of(row.targets)
        least[(row.targets == DEAD) | (np.arange(len(least)) == EOS)] = UNREACHABLE
        nearest = int(least.argmin())
        token = int((row.partition.class_of == nearest).argmax())
        return self._guide.vocabulary.tokens[token], int(row.targets[nearest])


def list_texts(table: Table, state: int, budget: int, limit: int) -> list[bytes] | None:
    """Return every text of at most ``budget`` tokens from ``state`` on, end of sequence included, in the order of their bytes; all
    members where texts begin with one.

    The prefixes that are followed are told apart by their bytes, whatever tokens write them: an automaton over bytes lists its
    members by itself. ``None`` where the prefixes of texts are more than ``limit``, or infinitely many.
    """
    guide = table.guide
    if isinstance(guide.match, PrefixMatch):
        members = guide.match.members.members_up_to(limit, limit)
        return members and sorted(members)
    if isinstance(guide, FSMGuide) and guide.automaton is not None:
        return _members(guide.automaton, state - 1, guide.vocabulary, budget - 1, limit)
    start = (b"", state)
    # The budget left after the prefix: the most over all of its tokenizations, which are all shorter and so done before.
    remaining = {start: budget}
    queue = [(0, *start)]
    texts: set[bytes] = set()
    while queue:
        _, text, state = heapq.heappop(queue)
        left = remaining[text, state]
        if len(remaining) + table.live_count(state, left) > 2 * limit:
            return None
        moves = table.moves(state, left)
        for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
            if target == DONE:
                whole = text + table.vocabulary.tokens[token]
                texts.add(whole if guide.match is None or guide.thoughts else guide.match.member(whole))
                continue
            below = (text + table.vocabulary.tokens[token], target)
            if below not in remaining:
                if len(remaining) >= limit:
                    return None
                heapq.heappush(queue, (len(below[0]), *below))
            remaining[below] = max(remaining.get(below, 0), left - 1)
    return sorted(texts)


def _members(automaton: ByteAutomaton, state: int, vocabulary: Vocabulary, most: int, limit: int) -> list[bytes] | None:
    """Return the texts accepted from ``state`` on that ``most`` tokens can write, in order; ``None`` as for :func:`list_texts`."""
    trie = Trie.of(vocabulary)
    longest, texts, prefixes, written = len(trie.levels) - 2, list[bytes](), 0, 0
    # With each prefix: the fewest tokens that write it, and the tokens that it ends in, each with those before it.
    stack: list[tuple[bytes, int, float, list[tuple[int, float]]]] = [(b"", state, 0, [])]
    while stack:
        text, state, fewest, within = stack.pop()
        prefixes, written = prefixes + 1, written + (fewest <= most)
        if automaton.accepting[state] and fewest <= most:
            texts.append(text)
        targets = automaton.targets[state, automaton.byte_class]
        live = np.flatnonzero(automaton.distances[targets] < UNREACHABLE)[::-1].tolist()
        # Those that end within a token are bounded as well: their number grows with the length of tokens.
        if live and (written > limit or prefixes + len(stack) + len(live) > limit * longest):
            return None
        begun = [(trie.edges(node), before) for node, before in (*within, (0, fewest)) if before < most]
        for byte in live:
            below = [(edges[byte], before) for edges, before in begun if byte in edges]
            if below:
                tokens = min((before + 1 for node, before in below if trie.is_end[node]), default=math.inf)
                stack.append((text + bytes([byte]), int(targets[byte]), tokens, below))
    return texts


class FirstStep(NamedTuple):
    """The fewest tokens of a completion, its first byte, and the place behind that; ``None`` where it is looked at no further."""

    tokens: int
    byte: int = -1
    after: Any = None


@final
class Completions:
    """For each place of a machine one completion, always the same, and the fewest tokens that write it.

    The completion behind a byte of a completion is the rest of it, so the fewest tokens of a place are one more than those of the
    best place behind one token: at most as many as bytes, and an upper bound of the tokens that are needed.

    Parameters
    ----------
    trie
        The tokens.
    most
        Places of which the completion is kept.
    """

    def __init__(self, trie: Trie, most: int) -> None:
        self._trie, self._most = trie, most
        self._steps: dict[Any, FirstStep] = {}

    def fewest(self, place: Any, first: Callable[[Any], FirstStep]) -> int:
        """Return the fewest tokens of the completion; :data:`UNREACHABLE` or more where there are none.

        ``first`` finds the first step from a place, its tokens not counted yet; one with no place behind has its number of tokens.
        """
        if len(self._steps) > self._most:
            self._steps.clear()
        way, here = list[Any](), place
        while here is not None and here not in self._steps:
            way.append(here)
            step = self._steps[here] = first(here)
            here = step.after
        for one in reversed(way):
            if (step := self._steps[one]).after is not None:
                self._steps[one] = step._replace(tokens=self._tiled(step))
        return self._steps[place].tokens

    def _tiled(self, step: FirstStep) -> int:
        """Return the fewest tokens from a first step, those of all places behind being known."""
        node, fewest = 0, UNREACHABLE
        while step.after is not None:
            child = self._trie.edges(node).get(step.byte)
            if child is None:
                break
            node, step = child, self._steps[step.after]
            if step.tokens < fewest and self._trie.is_end[node]:
                fewest = step.tokens + 1
        return fewest
