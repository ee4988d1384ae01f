"""The reasons that tokens are masked: the first byte after which no member is left, and the part that refuses it."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.guide import DEAD
from outlines_phi.vocabulary.trie import Trie

from .inspected import Inspected
from .machines.byte_names import text_name
from .machines.reading_machine import Fault

LOOKED_AT = 1_000  # Nodes of the byte trie that are read at most to say why tokens of a step are masked
SAMPLE = 6  # Tokens of a group that are named


@final
@dataclass(frozen=True)
class Refusal:
    """The reason that a token is masked: ``fault`` at its byte ``offset``, behind ``read``, which is still a prefix of a member."""

    token: int
    text: str
    fault: Fault
    offset: int
    read: str


@final
@dataclass(frozen=True)
class RefusalGroup:
    """Masked tokens of a step that are refused for one reason: how many, and some of them."""

    kind: str
    what: str
    because: str
    count: int
    sample: tuple[str, ...]
    expected: tuple[str, ...]
    node: tuple[str, str] | None


@final
@dataclass(frozen=True)
class TextPlace:
    """The position of a text: the guide's state, the machine's place, the state of the banned phrases, and the tokens left."""

    state: int
    place: Any
    banned: int
    remaining: int


def why_masked(inspected: Inspected, at: TextPlace, token: int) -> Refusal | None:
    """Return the reason that ``token`` is masked; ``None`` where it is live.

    In this order: ids that write nothing; the end of the text; the byte after which the output type has no member left; a banned
    phrase; the limit of tokens; the vocabulary, where bytes would go on and no tokens do.
    """
    vocabulary, machine = inspected.vocabulary, inspected.machine
    mask, _ = inspected.live(at.state, at.remaining)
    if mask[token]:
        return None
    text = vocabulary.tokens[token]
    if token == vocabulary.eos_ids[0]:
        fault = machine.end(at.place) or _banned(inspected, at, token)
        return Refusal(token, "the end", fault or _too_long(inspected, at, token), 0, "")
    if not text:
        what = "another end of sequence" if token in vocabulary.eos_ids else "an id that writes nothing"
        because = "No guide allows an id without bytes; all ends of sequence count as the first one."
        return Refusal(token, f"<{token}>", Fault("vocabulary", what, because), 0, "")
    found, offset = machine.read_all(at.place, text)
    if not isinstance(found, Fault):
        found = _banned(inspected, at, token) or _too_long(inspected, at, token)
    return Refusal(token, text_name(text), found, offset, text_name(text[:offset]))


def grouped_refusals(
    inspected: Inspected, at: TextPlace, mask: NDArray[np.bool_]
) -> tuple[tuple[RefusalGroup, ...], int]:
    """Return the masked tokens by what refuses them, the largest group first, and how many of them were not looked at.

    The byte trie of the vocabulary is read from its root, nodes with the most masked tokens first, :data:`LOOKED_AT` at most: at a
    byte that is refused all tokens below have one reason. Where a node is live, a token that ends there is masked for another.
    """
    trie, vocabulary = Trie.of(inspected.vocabulary), inspected.vocabulary
    masked = ~mask & (trie.node_of > 0)
    below = np.bincount(trie.node_of[masked], minlength=len(trie))
    own = below.copy()
    for low, high in reversed(list(pairwise(trie.levels[1:].tolist()))):
        below += np.bincount(trie.parent[low:high], weights=below[low:high], minlength=len(trie)).astype(np.int64)
    found: dict[tuple[Any, ...], list[Any]] = {}
    queue: list[tuple[int, int, Any]] = [(-int(below[0]), 0, at.place)]
    looked_at, located = 0, 0

    def note(fault: Fault, count: int, node: int) -> None:
        nonlocal located
        entry = found.setdefault((fault.kind, fault.what, fault.node), [fault, 0, []])
        entry[1] += count
        entry[2] += _tokens_below(trie, node, masked, SAMPLE - len(entry[2]))
        located += count

    while queue and looked_at < LOOKED_AT:
        _, node, place = heapq.heappop(queue)
        children, _ = trie.below(np.array([node]))
        for child in children[below[children] > 0].tolist():
            looked_at += 1
            after = inspected.machine.read(place, int(trie.byte[child]))
            if isinstance(after, Fault):
                note(after, int(below[child]), child)
                continue
            if own[child]:
                token = int(trie.ending(np.array([child]))[0][0])
                note(_banned(inspected, at, token) or _too_long(inspected, at, token), int(own[child]), child)
            if below[child] > own[child]:
                heapq.heappush(queue, (-int(below[child]), child, after))
    groups = [
        RefusalGroup(
            fault.kind,
            fault.what,
            fault.because,
            count,
            tuple(text_name(vocabulary.tokens[t]) for t in sample),
            fault.expected,
            fault.node,
        )
        for fault, count, sample in found.values()
    ]
    groups.sort(key=lambda group: -group.count)
    return tuple(groups), int(below[0]) - located


def _tokens_below(trie: Trie, node: int, masked: NDArray[np.bool_], most: int) -> list[int]:
    """Return at most ``most`` masked tokens that end at ``node`` or below, the shortest first."""
    found: list[int] = []
    nodes = np.array([node])
    while len(nodes) and len(found) < most:
        ids = trie.ending(nodes)[0]
        found += ids[masked[ids]].tolist()
        nodes, _ = trie.below(nodes)
    return found[: max(most, 0)]


def _banned(inspected: Inspected, at: TextPlace, token: int) -> Fault | None:
    """Return the fault of a banned phrase; ``None`` where it is not what refuses."""
    phrases = inspected.phrases
    if phrases is None or inspected.plain is inspected.guide:
        return None
    number = int(phrases.phrases_at(at.banned, np.array([token]))[0])
    if number >= 0:
        name = phrases.phrases.names[number]
        return Fault("ban", name, f"It completes the banned phrase {name}.")
    if inspected.guide.advance(at.state, token) == DEAD:
        return Fault("ban", "banned phrases", "Every member that goes on with it holds a banned phrase.")
    return None


def _too_long(inspected: Inspected, at: TextPlace, token: int) -> Fault:
    """Return the fault of the limit of tokens, or of the vocabulary."""
    target = inspected.guide.advance(at.state, token)
    if target == DEAD:
        return Fault(
            "vocabulary", "the vocabulary", "Bytes go on to a member, and no tokens of this vocabulary write them."
        )
    least = inspected.guide.min_tokens(target)
    because = f"The shortest end after it takes {least} more tokens, and the limit of {inspected.budget} leaves {at.remaining - 1}."
    return Fault("budget", "the limit of tokens", because)
