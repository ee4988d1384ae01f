"""Thoughts before answers: free text of a limited number of tokens, up to a marker, and a format. Texts that stop strings end."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ..automata.automaton import ByteAutomaton
from ..automata.byte_machine import END, ByteMachine, Joined
from ..automata.stops import ANYTHING, Scope, StoppedTexts, StopPlace, Thoughts, ThoughtTexts
from ..errors import EmptyLanguageError, UnsupportedError
from ..numerics.cache import kept_of_states
from ..vocabulary.special_tokens import MARK, SPELLING, reference_of, spelling
from ..vocabulary.vocabulary import Vocabulary
from .fsm import FSMGuide
from .guide import DEAD, DONE, UNREACHABLE, Guide, Row
from .machine_guide import MachineGuide
from .phrases.ban_language import ProductGuide
from .phrases.phrase_guide import PhraseGuide


@final
@dataclass(frozen=True)
class Stops:
    """Strings of which the first ends a text, in whatever tokens: ``kept`` in what is shown of it, or not.

    A string that is the name of a special token stands for the token, too. ``special`` are references to special tokens alone.
    """

    strings: tuple[str, ...]
    special: tuple[str, ...] = ()
    kept: bool = False

    def references(self, vocabulary: Vocabulary) -> list[str]:
        """Return the special tokens among them; those that end texts are left out, as these do so anyway."""
        named = [string for string in self.strings if string in vocabulary.special]
        return [*self.special, *(name for name in named if vocabulary.special[name] not in vocabulary.eos_ids)]


def stopped(guide: Guide | None, stops: Stops, vocabulary: Vocabulary) -> Guide:
    """Return the guide of the texts of ``guide``, ``None`` for free text, that stop strings end where they are.

    With the members ``T`` of the guide, a text is a member that holds no stop string, and ends with the end of sequence; or it
    comes to the first stop string, and what stands before it, or all up to its end, is a member::

        L = {y in T: no s in y} + {x s: s the first stop string in x s, and x in T or x s in T}

    The first one is the one that is complete first, of several complete at once the longest. The token that completes it is the
    last one, and counts as a whole, whatever it writes behind it. So the probability of a text is that of all token sequences
    by which a host that cuts texts at stop strings comes to it. Free text may end anywhere, the length limit included. Banned
    phrases do not occur in what the tokens write, which is no less than what is shown. A thought is a part of the text of its
    answer, in which a host stops, too: so none holds a stop string.

    Raises
    ------
    UnsupportedError
        The texts of the guide are not known byte by byte; it bans whole words; or a string reaches into the marker of thoughts.
    EmptyLanguageError
        No text is left.
    """
    references = stops.references(vocabulary)
    held = map(reference_of, filter(SPELLING.fullmatch, vocabulary.tokens if vocabulary.plain else ()))
    spelled = vocabulary.with_special([*held, *references])
    strings = dict.fromkeys([*(string.encode() for string in stops.strings), *map(spelling, references)])
    return _stopped(guide, [*strings], stops.kept, spelled)


def _stopped(
    guide: Guide | None, strings: Sequence[bytes], kept: bool, vocabulary: Vocabulary, before: bytes = b""
) -> Guide:
    phrases = None if guide is None else guide.phrases
    if phrases is not None and phrases.whole_word:
        raise UnsupportedError(
            "Give BannedPhrases(..., whole_word=False) beside stop strings, or leave these out. Whole words are banned, and "
            "whether a word is whole would be decided by what the last token writes behind a stop string, which is not shown."
        )
    match guide:
        case ProductGuide():
            left = _stopped(guide.left, strings, kept, vocabulary)
            return ProductGuide(left, PhraseGuide(left.vocabulary, guide.right.phrases))
        case ThinkingGuide(answer=answer, form=form):
            _, end = form.markers(vocabulary.plain or vocabulary)
            return ThinkingGuide(_stopped(answer, strings, kept, vocabulary, end), form, strings)
    if guide is None or isinstance(guide, PhraseGuide):
        members: ByteMachine[Any] | None = ANYTHING
    else:
        members = guide.machine if guide.match is None else None
    if members is None:
        raise UnsupportedError(
            "Give an output type beside stop strings, such as outlines.types.regex(pattern), without ends='open'. Which texts "
            f"this {type(guide).__name__} allows is known token by token, or they go on behind a member."
        )
    match = StoppedTexts(members, strings, kept=kept, before=before)
    if not match.is_live(match.start):
        raise EmptyLanguageError(
            "Give other stop strings. Each text of the output type holds one before its end, the shortest "
            f"{members.shortest().decode(errors='replace')!r:.80}."
        )
    found = MachineGuide(match, vocabulary, match) if match.machine is None else FSMGuide.from_match(match, vocabulary)
    return found if phrases is None else ProductGuide(found, PhraseGuide(vocabulary, phrases))


Marker: TypeAlias = str | tuple[str, str]
"""A string, or ``("special", token)``. A string that the tokenizer has as a special or added token is that token."""

Result = TypeVar("Result")

_THOUGHT = 1 << 50
"""The states from here on are those of thoughts, before are those of answers."""


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

    def markers(self, vocabulary: Vocabulary) -> tuple[bytes, bytes]:
        """Return the bytes of the markers before and behind a thought."""
        begin = self.begin
        if begin is None:
            begin = self.partner if self.partner in vocabulary.special else ""
        told = [(marker, vocabulary) if isinstance(marker, str) else (marker[1], None) for marker in (begin, self.end)]
        before, behind = (
            spelling(name) if plain is None or name in plain.special else name.encode() for name, plain in told
        )
        return before, behind

    @property
    def partner(self) -> str:
        """The name of the marker at the end without its slash; nothing where it has none."""
        name = self.end if isinstance(self.end, str) else self.end[1]
        return name.replace("/", "", 1) if "/" in name else ""


def _in_thoughts(method: Callable[..., Result]) -> Callable[..., Result]:
    """Let a method answer for the states of thoughts, and that of the guide of the answers for theirs."""

    @wraps(method)
    def either(self: ThinkingGuide, state: int, *others: Any) -> Result:
        own = self.in_thought(state)
        return method(self, state, *others) if own else getattr(self.answer, method.__name__)(state, *others)

    return either


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
    strings
        Strings that stand neither in a thought nor in the marker before it.

    Raises
    ------
    UnsupportedError
        No tokens write a marker, or one of the strings reaches into the marker behind a thought.
    VocabularyError
        A marker is no special token of the tokenizer.
    """

    match: Thoughts
    thoughts: Thoughts

    def __init__(self, answer: Guide, form: ThoughtFormat, strings: Sequence[bytes] = ()) -> None:
        self.answer, self.form, self.strings = answer, form, tuple(strings)
        plain = answer.vocabulary.plain or answer.vocabulary
        begin, end = form.markers(plain)
        for one in self.strings:
            if one in end or any(one[at:].startswith(end) or end.startswith(one[at:]) for at in range(1, len(one))):
                shown = reference_of(end) if end.startswith(MARK) else end.decode()
                raise UnsupportedError(
                    f"Give other stop strings, or Thinking another marker. With {shown!r} each thought ends in one of them, "
                    "or may reach into one."
                )
        spelled = [begin, end, *(answer.vocabulary.tokens if answer.vocabulary.plain else ())]
        self.vocabulary = plain.with_special(reference_of(one) for one in spelled if one.startswith(MARK))
        opening = b"" if begin or form.begin is not None else form.partner.encode()
        texts, stops = ThoughtTexts(begin, end, self.strings), answer.match
        assert stops is None or isinstance(stops, StoppedTexts)
        self.match = self.thoughts = Thoughts(texts, begin, opening, form.max_tokens, form.scope, stops)
        behind = Joined((ByteAutomaton.of_texts([begin]), texts), frozenset([0]), (frozenset([1]), frozenset([END])))
        self._walk, self.blocks = MachineGuide(behind, self.vocabulary), answer.blocks
        self._open = self._state(texts.opened, 0)
        self.start = self._numbered(self._walk.start, -1) if begin else self._open
        self.row(self.start)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThinkingGuide, (self.answer, self.form, self.strings)

    @property
    def full(self) -> bool:  # type: ignore[override]
        """See :attr:`Guide.full`."""
        return self.answer.full or self._walk.full

    def in_thought(self, state: int) -> bool:
        return state >= _THOUGHT

    @_in_thoughts
    def row(self, state: int) -> Row:
        return self._row(state)

    @_in_thoughts
    def min_tokens(self, state: int) -> int:
        return self._walk.min_tokens(self._split(state)[0]) - 1 + self.answer.min_tokens(self.answer.start)

    @_in_thoughts
    def room(self, state: int) -> int:
        """See :meth:`Guide.room`: markers are written byte by byte, and the last token of one may begin a longer answer."""
        walked, count = self._split(state)
        markers = self.match.texts.strings if count >= 0 else (self.match.begin, *self.match.texts.strings)
        longest = self.form.max_tokens + sum(1 if one.startswith(MARK) else len(one) for one in markers)
        return longest + 1 - self._walk.min_tokens(walked) + self._longer

    @cached_property
    def _longer(self) -> int:
        """The most tokens by which an answer that the last token of a thought begins exceeds the shortest."""
        (end,), shortest = self.match.texts.strings, self.answer.min_tokens(self.answer.start)
        rests = {
            token[last.end() :]
            for token in (() if end.startswith(MARK) else self.vocabulary.tokens)  # a special token holds nothing else
            for last in re.finditer(re.escape(end[-1:]), token)
            if end.endswith(token[: last.end()]) or token[: last.end()].endswith(end)
        }
        least = [self.answer.min_tokens(state) for state in map(self._begun, rests) if state != DEAD]
        return max([shortest, *least]) - shortest

    @_in_thoughts
    def describe(self, state: int) -> str:
        walked, count = self._split(state)
        return f"thought of {max(count, 0)} tokens, {self._walk.describe(walked)}"

    advance, partition_of = _in_thoughts(Guide.advance), _in_thoughts(Guide.partition_of)
    mask = _in_thoughts(Guide.mask)
    distances_after, live_classes = _in_thoughts(Guide.distances_after), _in_thoughts(Guide.live_classes)
    slack, shortest_text = _in_thoughts(Guide.slack), _in_thoughts(Guide.shortest_text)
    begins_block, between_blocks = _in_thoughts(Guide.begins_block), _in_thoughts(Guide.between_blocks)

    def far_from_end(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        return self.answer.far_from_end(states) if (states < _THOUGHT).all() else super().far_from_end(states)

    def start_after(self, prompt: bytes) -> int:
        """See :meth:`Guide.start_after`: inside a thought that the prompt has begun, by its last marker and blanks behind it."""
        before = prompt.rstrip(b" \t\r\n")
        if before.endswith(self.match.texts.strings):
            shown = self.vocabulary.shown(before[-200:])[-40:].decode(errors="replace")
            raise UnsupportedError(
                "Let the chat template leave the thought to the model (enable_thinking=True), or give the answer's type alone, "
                f"without Thinking. The prompt ends a thought already: {shown!r}."
            )
        return self._open if before.endswith(self.match.begin) else self.start

    def _state(self, place: StopPlace, count: int) -> int:
        """Return the state at a place after so many tokens of a thought; at the limit no more are counted."""
        if count >= self.form.max_tokens and place.member is not None:
            place = self.match.texts.closed(place)
        return self._numbered(self._walk.state(frozenset([(1, place)])), min(count, self.form.max_tokens))

    def _numbered(self, walked: int, count: int) -> int:
        return _THOUGHT + walked * (self.form.max_tokens + 2) + count + 1

    def _split(self, state: int) -> tuple[int, int]:
        """Return the state of the markers and the thought, and its number of tokens: -1 before it."""
        walked, count = divmod(state - _THOUGHT, self.form.max_tokens + 2)
        return walked, count - 1

    @kept_of_states
    def _row(self, state: int) -> Row:
        walked, count = self._split(state)
        row = self._walk.row(walked)
        return Row(row.partition, np.array([self._after(target, count) for target in row.targets.tolist()]))

    def _after(self, walked: int, count: int) -> int:
        if walked in (DEAD, DONE):
            return DEAD
        place = dict(self._walk.place(walked)).get(1)
        if place is None:
            return self._numbered(walked, -1)
        return self._state(place, count + 1) if place.node >= 0 else self._begun(place.member or b"")

    def _begun(self, rest: bytes) -> int:
        """Return the state of the answer that the last token of a thought begins with."""
        assert self.answer.machine is not None
        place = self.answer.machine.read(rest)
        state = DEAD if place is None or not self.answer.machine.is_live(place) else self.answer.state(place)
        return state if self.answer.min_tokens(state) < UNREACHABLE else DEAD
