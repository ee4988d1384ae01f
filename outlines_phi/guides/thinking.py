"""Thoughts before answers: free text up to a marker, of a limited number of tokens, then a format."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..automata.thoughts import AFTER, LIMIT, TEXT, Scope, ThoughtMachine, ThoughtPlace, Thoughts
from ..errors import UnsupportedError
from ..vocabulary.classes import Partition
from ..vocabulary.special_tokens import MARK, reference_of, spelling
from ..vocabulary.vocabulary import Vocabulary
from .guide import DEAD, DONE, Guide, Row
from .machine_guide import MachineGuide

Marker: TypeAlias = str | tuple[str, str]
"""A string, or ``("special", token)``. A string that the tokenizer has as a special or added token is that token."""

_ROWS, _RESTS = 512, 2**12  # The rows, and the beginnings of answers inside of tokens, that are kept


@final
@dataclass(frozen=True)
class ThoughtFormat:
    """The format of thoughts: the markers around them, the most tokens, and the distribution of a thought with its answer.

    ``begin`` of ``None`` is the special token whose name is that of ``end`` without its slash, if the tokenizer has it; of an empty
    string, nothing.
    """

    end: Marker
    max_tokens: int
    begin: Marker | None
    scope: Scope

    def reference(self, marker: Marker | None, vocabulary: Vocabulary) -> str | None:
        """Return the reference to the special token that a marker is; ``None`` for a string."""
        if isinstance(marker, tuple):
            return marker[1]
        return marker if marker in (vocabulary.plain or vocabulary).special else None

    @property
    def partner(self) -> str:
        """The name of the marker at the end without its slash; nothing where it has none."""
        name = self.end if isinstance(self.end, str) else self.end[1]
        return name.replace("/", "", 1) if "/" in name else ""


@final
class ThinkingGuide(Guide):
    """A thought, free text of at most ``max_tokens`` tokens up to a marker, then an answer, a member of the guide ``answer``.

    The limit counts the tokens before the marker's first, those of the marker ``begin`` aside. A thought that has come to it
    goes on with the marker alone, in whatever tokens. A marker that is a string may end inside a token, of which the rest
    begins the answer. No special token but the markers stands in a thought.

    Parameters
    ----------
    answer
        The format of the answer.
    form
        Markers, limit and scope.

    Raises
    ------
    UnsupportedError
        No tokens write a marker; or, when it is met, the rest of a token behind it.
    VocabularyError
        A marker is no special token of the tokenizer.
    """

    def __init__(self, answer: Guide, form: ThoughtFormat) -> None:
        self.answer, self.form = answer, form
        vocabulary = answer.vocabulary.plain or answer.vocabulary
        spelled = () if answer.vocabulary.plain is None else answer.vocabulary.tokens
        inside = [reference_of(token) for token in spelled if token.startswith(MARK)]
        end, begin = form.reference(form.end, vocabulary), form.reference(form.begin, vocabulary)
        if form.begin is None:
            begin = form.reference(form.partner, vocabulary)
        self.vocabulary = vocabulary.with_special([*inside, *(one for one in (end, begin) if one is not None)])
        self.thoughts: Thoughts = Thoughts(
            begin=spelling(begin) if begin is not None else str(form.begin or "").encode(),
            end=spelling(end) if end is not None else str(form.end).encode(),
            opening=form.partner.encode() if form.begin is None and begin is None else b"",
            max_tokens=form.max_tokens,
            scope=form.scope,
        )
        self._walk = MachineGuide(ThoughtMachine(self.thoughts.end, self.thoughts.begin), self.vocabulary)
        self.blocks = answer.blocks
        self._lock = threading.RLock()
        self._pairs: list[tuple[int, int]] = []
        self._numbers: dict[tuple[int, int], int] = {}
        self._recent_row = lru_cache(_ROWS)(self._row)
        self._answer_after = lru_cache(_RESTS)(self._begun)
        self._open = self._state((TEXT, 0), 0)
        self.start = self._state(self._walk.place(self._walk.start), -1) if self.thoughts.begin else self._open
        self.row(self.start)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThinkingGuide, (self.answer, self.form)

    def in_thought(self, state: int) -> bool:
        return state > DEAD and state % 2 == 0

    def row(self, state: int) -> Row:
        if self.in_thought(state):
            with self._lock:
                return self._recent_row(state)
        row = self.answer.row(_inner(state))
        return Row(row.partition, _outer(row.targets))

    def partition_of(self, state: int) -> Partition:
        return self.row(state).partition if self.in_thought(state) else self.answer.partition_of(_inner(state))

    def advance(self, state: int, token: int) -> int:
        if self.in_thought(state):
            return super().advance(state, token)
        return int(_outer(np.array(self.answer.advance(_inner(state), token))))

    def min_tokens(self, state: int) -> int:
        if not self.in_thought(state):
            return self.answer.min_tokens(_inner(state))
        walked, _ = self._pairs[state // 2 - 1]
        return self._walk.min_tokens(walked) - 1 + self.answer.min_tokens(self.answer.start)

    def least_budget(self, state: int) -> int:
        """See :meth:`Guide.least_budget`: with a thought as long as it may be."""
        least = self.min_tokens(state)
        if not self.in_thought(state):
            return least
        markers = (self.thoughts.begin, self.thoughts.end)
        return least + self.form.max_tokens + sum(len(marker) for marker in markers if not marker.startswith(MARK))

    def distances_after(self, state: int) -> NDArray[np.int64]:
        if self.in_thought(state):
            return super().distances_after(state)
        return self.answer.distances_after(_inner(state))

    def live_classes(self, state: int, remaining: int) -> NDArray[np.bool_]:
        if self.in_thought(state):
            return super().live_classes(state, remaining)
        return self.answer.live_classes(_inner(state), remaining)

    def far_from_end(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        if any(map(self.in_thought, states.tolist())):
            return super().far_from_end(states)
        return self.answer.far_from_end(_inner(states))

    def shortest_text(self, state: int) -> bytes | None:
        return None if self.in_thought(state) else self.answer.shortest_text(_inner(state))

    def begins_block(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        if self.in_thought(state):
            return super().begins_block(state, tokens)
        return self.answer.begins_block(_inner(state), tokens)

    def between_blocks(self, state: int) -> bool:
        return not self.in_thought(state) and self.answer.between_blocks(_inner(state))

    def mask(self, state: int) -> NDArray[np.uint32]:
        return super().mask(state) if self.in_thought(state) else self.answer.mask(_inner(state))

    def start_after(self, prompt: bytes) -> int:
        """See :meth:`Guide.start_after`: inside a thought that the prompt has begun, by its last marker and blanks behind it."""
        before = prompt.rstrip(b" \t\r\n")
        if before.endswith(self.thoughts.end):
            shown = self.vocabulary.shown(before[-200:])[-40:].decode(errors="replace")
            raise UnsupportedError(
                "Let the chat template leave the thought to the model (enable_thinking=True), or give the answer's type alone, "
                f"without Thinking. The prompt ends a thought already: {shown!r}."
            )
        return self._open if before.endswith(self.thoughts.begin) else self.start

    def describe(self, state: int) -> str:
        if not self.in_thought(state):
            return self.answer.describe(_inner(state))
        walked, count = self._pairs[state // 2 - 1]
        return f"thought of {max(count, 0)} tokens, {self._walk.describe(walked)}"

    def _state(self, place: ThoughtPlace, count: int) -> int:
        """Return the state at a place after so many tokens; -1 before the thought. At the limit no more are counted."""
        if place[0] == TEXT and count >= self.form.max_tokens:
            place, count = (LIMIT, place[1], 0), self.form.max_tokens
        pair = self._walk.state(place), count
        with self._lock:
            number = self._numbers.setdefault(pair, len(self._pairs))
            if number == len(self._pairs):
                self._pairs.append(pair)
        return 2 * (number + 1)

    def _row(self, state: int) -> Row:
        walked, count = self._pairs[state // 2 - 1]
        row = self._walk.row(walked)
        return Row(row.partition, np.array([self._after(target, count) for target in row.targets.tolist()]))

    def _after(self, walked: int, count: int) -> int:
        if walked in (DEAD, DONE):
            return DEAD
        place = self._walk.place(walked)
        if place[0] == AFTER:
            return int(_outer(np.array(self._answer_after(place[1]))))
        return self._state(place, count + 1 if place[0] == TEXT else count)

    def _begun(self, rest: bytes) -> int:
        """Return the state of the answer after bytes that a token has written of it: after any tokens that write them."""
        states = {0: self.answer.start}
        for here in range(len(rest)):
            for there in range(here + 1, len(rest) + 1) if here in states else ():
                if (token := self._spellings.get(rest[here:there])) is not None:
                    states[there] = states.get(there) or self.answer.advance(states[here], token)
        if len(rest) not in states:
            raise UnsupportedError(
                "Use a vocabulary with a token for each byte, or a special token as the marker. A token ends the marker and goes "
                f"on with {rest!r:.40}, which no tokens write."
            )
        return states[len(rest)]

    @cached_property
    def _spellings(self) -> dict[bytes, int]:
        plain = self.vocabulary.plain or self.vocabulary
        return {token: v for v, token in enumerate(plain.tokens) if token}


def _outer(targets: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return states of the answer as states of the whole, where they are odd."""
    return np.maximum(2 * targets - 1, DEAD)


def _inner(state: Any) -> Any:
    """Invert :func:`_outer`."""
    return (state + 1) // 2


@final
class ThoughtGuide(Guide):
    """The thoughts of a guide ``whole`` of thoughts and answers, each up to the token that ends it, with the same live tokens."""

    def __init__(self, whole: Guide) -> None:
        self.whole, self.vocabulary, self.start, self.phrases = whole, whole.vocabulary, whole.start, whole.phrases

    def __reduce__(self) -> tuple[Any, ...]:
        return ThoughtGuide, (self.whole,)

    def in_thought(self, state: int) -> bool:
        return self.whole.in_thought(state)

    def row(self, state: int) -> Row:
        row = self.whole.row(state)
        return Row(row.partition, np.array([self._ended(target) for target in row.targets.tolist()]))

    def advance(self, state: int, token: int) -> int:
        return self._ended(self.whole.advance(state, token))

    def min_tokens(self, state: int) -> int:
        """See :meth:`Guide.min_tokens`: with those of an answer, for which a thought leaves room."""
        return 0 if state == DONE else self.whole.min_tokens(state)

    def least_budget(self, state: int) -> int:
        return self.whole.least_budget(state)

    def distances_after(self, state: int) -> NDArray[np.int64]:
        return self.whole.distances_after(state)

    def start_after(self, prompt: bytes) -> int:
        return self.whole.start_after(prompt)

    def why_empty(self, prompt: bytes) -> str:
        return self.whole.why_empty(prompt)

    def describe(self, state: int) -> str:
        return self.whole.describe(state)

    def _ended(self, target: int) -> int:
        return target if target == DEAD or self.whole.in_thought(target) else DONE
