"""A text, token by token: where the machine stands, which tokens are live, and why others are masked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.guide import UNREACHABLE
from outlines_phi.guides.table import Moves

from .inspected import Inspected
from .machines.byte_names import text_name
from .refusals import SAMPLE, Refusal, RefusalGroup, TextPlace, grouped_refusals, why_masked

GROUPS = 12  # Groups of live tokens, and of masked ones, that a step shows


@final
@dataclass(frozen=True)
class TargetGroup:
    """Live tokens that lead to one state: how many, some of them, where, and how far from there to the end in tokens."""

    count: int
    sample: tuple[str, ...]
    label: str
    distance: int | None


@final
@dataclass(frozen=True)
class WalkStep:
    """A place between two tokens of a text.

    ``token`` is the next one, ``None`` behind the last; ``refusal`` says why it is masked, where it is. ``live`` of all ``tokens``
    are live, in ``live_classes`` of ``classes`` classes of tokens alike; they lead to ``targets`` states, of which ``groups`` are
    those of the most tokens. ``masked`` are groups of the others, less ``unlocated`` tokens, which lie deeper than was looked.
    ``distance`` is the fewest tokens to the end, ``left`` those that the limit leaves, ``None`` for no limit.
    """

    offset: int
    token: int | None
    text: str
    label: str
    nodes: tuple[tuple[str, str], ...]
    stack: tuple[str, ...]
    may_end: bool
    why_no_end: str
    live: int
    tokens: int
    classes: int
    live_classes: int
    targets: int
    groups: tuple[TargetGroup, ...]
    masked: tuple[RefusalGroup, ...]
    unlocated: int
    distance: int | None
    left: int | None
    refusal: Refusal | None = None


@final
@dataclass(frozen=True)
class TextWalk:
    """The steps of a text, as far as the language goes; ``ids`` are those of its tokens that were read."""

    text: str
    ids: tuple[int, ...]
    steps: tuple[WalkStep, ...]
    leaves: bool  # true if the last step's token is masked

    @property
    def fault(self) -> str:
        """The reason that the text leaves the language, a sentence; empty where it does not."""
        last = self.steps[-1]
        if last.refusal is None:
            return ""
        fault, read = last.refusal.fault, last.refusal.read
        return f"{fault.because}{f' Before it {read!r} of the token was read.' if read else ''}"


def walk(inspected: Inspected, ids: Sequence[int]) -> TextWalk:
    """Walk through the tokens ``ids``, up to the first that is masked."""
    vocabulary = inspected.vocabulary
    at, steps, offset = begin(inspected), list[WalkStep](), 0
    for token in ids:
        steps.append(_step(inspected, at, offset, int(token)))
        if steps[-1].refusal is not None:
            break
        offset += len(vocabulary.tokens[token])
        at = after(inspected, at, int(token))
    else:
        steps.append(_step(inspected, at, offset, None))
    leaves = steps[-1].refusal is not None
    read = tuple(map(int, ids[: len(steps) - 1]))
    return TextWalk(text_name(vocabulary.decode(map(int, ids))), read, tuple(steps), leaves)


def begin(inspected: Inspected) -> TextPlace:
    """Return the position of the empty text."""
    return TextPlace(inspected.start, inspected.machine.start, inspected.begun, inspected.remaining(0))


def after(inspected: Inspected, at: TextPlace, token: int) -> TextPlace:
    """Return the position after a live ``token``."""
    place = inspected.machine.follow(at.place, token, inspected.vocabulary.tokens[token])
    banned = at.banned if inspected.phrases is None else inspected.phrases.advance(at.banned, token)
    return TextPlace(inspected.guide.advance(at.state, token), place, banned, at.remaining - 1)


def label_after(inspected: Inspected, at: TextPlace, token: int) -> str:
    """Return the label of the place after a live ``token``."""
    if token == inspected.vocabulary.eos_ids[0]:
        return "the end"
    return inspected.machine.spot(after(inspected, at, token).place).label


def name_of(inspected: Inspected, token: int) -> str:
    """Return the display of a token."""
    return "<end>" if token in inspected.vocabulary.eos_ids else text_name(inspected.vocabulary.tokens[token])


def place_after(inspected: Inspected, ids: Sequence[int]) -> TextPlace:
    """Return the position after live tokens.

    Raises :class:`UnsupportedError` where one of them is masked.
    """
    at = begin(inspected)
    for number, token in enumerate(ids):
        if not 0 <= token < len(inspected.vocabulary) or not inspected.live(at.state, at.remaining)[0][token]:
            raise UnsupportedError(
                f"Give tokens that are live, each after those before it. Token {number}, id {token}, is masked."
            )
        at = after(inspected, at, token)
    return at


def tokens_of(inspected: Inspected, encode: Callable[[str], Sequence[int]], text: str) -> list[int]:
    """Return the tokens of a text, as the tokenizer writes it.

    Raises :class:`UnsupportedError` where these write other bytes.
    """
    wanted = bytes_of(text)
    ids = [int(token) for token in encode(text)]
    written = b"".join(inspected.vocabulary.tokens[token] for token in ids if token < len(inspected.vocabulary))
    if written != wanted:
        raise UnsupportedError(
            f"Give a text that the tokenizer writes as it is, or another tokenizer. It writes {text!r:.80} as {written!r:.80}."
        )
    return ids


def bytes_of(text: str) -> bytes:
    """Return a text in UTF-8. Raises :class:`UnsupportedError` where it holds half of a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedError(f"Give characters of Unicode. {text!r:.80} has none at {error.start}.") from None


def _step(inspected: Inspected, at: TextPlace, offset: int, token: int | None) -> WalkStep:
    guide, machine, vocabulary = inspected.guide, inspected.machine, inspected.vocabulary
    partition = guide.partition_of(at.state)
    classes = guide.live_classes(at.state, at.remaining)
    mask, moves = inspected.live(at.state, at.remaining)
    spot, distance = machine.spot(at.place), guide.min_tokens(at.state)
    groups, targets = _targets(inspected, at, moves)
    masked, unlocated = grouped_refusals(inspected, at, mask)
    may_end = bool(mask[vocabulary.eos_ids[0]])
    refused_end = None if may_end else why_masked(inspected, at, vocabulary.eos_ids[0])
    return WalkStep(
        offset=offset,
        token=token,
        text="" if token is None else text_name(vocabulary.tokens[token]) or f"<{token}>",
        label=spot.label,
        nodes=spot.nodes,
        stack=spot.stack,
        may_end=may_end,
        why_no_end="" if refused_end is None else refused_end.fault.because,
        live=int(mask.sum()),
        tokens=len(vocabulary),
        classes=partition.size,
        live_classes=int(classes.sum()),
        targets=targets,
        groups=groups,
        masked=masked[:GROUPS],
        unlocated=unlocated + sum(group.count for group in masked[GROUPS:]),
        distance=None if distance >= UNREACHABLE else distance,
        left=None if inspected.budget is None else at.remaining,
        refusal=None if token is None else why_masked(inspected, at, token),
    )


def _targets(inspected: Inspected, at: TextPlace, moves: Moves) -> tuple[tuple[TargetGroup, ...], int]:
    """Return the groups of live tokens by where they lead, those of the most tokens, and how many groups there are."""
    guide = inspected.guide
    states, which, counts = np.unique(moves.targets, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:GROUPS]
    found = []
    for number in order.tolist():
        members: list[Any] = moves.tokens[which == number][:SAMPLE].tolist()
        label = label_after(inspected, at, members[0])
        names = [name_of(inspected, token) for token in members]
        distance = guide.min_tokens(int(states[number]))
        found.append(
            TargetGroup(int(counts[number]), tuple(names), label, None if distance >= UNREACHABLE else distance)
        )
    return tuple(found), len(states)
