"""Free text, or an output type, minus the banned phrases: a byte automaton where the product is small, else made on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton
from ...errors import EmptyLanguageError
from ...regex.patterns import compile_regex
from ...vocabulary.vocabulary import Vocabulary
from ..fsm import FSMGuide
from ..guide import DONE, UNREACHABLE, Guide
from ..guide_texts import ShortestTexts
from .banned import BannedPhrases, smallest_conflict
from .matcher import PhraseMatcher
from .phrase_guide import PhraseGuide
from .product import ProductGuide

STATES, PAIRS = 1_000, 1 << 18
"""How many states that come up one by one, and how many pairs of runs, are looked at before the answer is yes."""

_BITS = 21  # How many bits of a code a state has


def least_context(phrases: BannedPhrases) -> int:
    """Return the state of the matcher after the prompt that rules out least: what is banned after it is banned after every prompt.

    It is the beginning of a text; but for whole words across the prompt, where a text may go on with a word, the inside of a long
    one.
    """
    across = phrases.across_prompt and phrases.whole_word
    return inside_word(phrases.matcher) if across else phrases.matcher.start


def inside_word(matcher: PhraseMatcher) -> int:
    """Return the state of a matcher of whole words inside a word that is longer than all of them."""
    return matcher.read(matcher.start, b"_" * (matcher.longest + 1))


def depends_on_prompt(automaton: ByteAutomaton, phrases: BannedPhrases) -> bool:
    """Return whether it depends on the prompt which texts of ``automaton`` hold a phrase; True where that takes too long to see.

    Runs the matcher from its start and from every other state at the same time, until the two runs complete the same from now on.
    """
    if not phrases.across_prompt:
        return False
    matcher = phrases.matcher
    after_prompts = _reached(matcher)
    if after_prompts is None:
        return True
    pair = automaton.byte_class.astype(np.int64) << 8 | matcher.byte_class
    bytes = np.unique(pair, return_index=True)[1].astype(np.uint8)
    # A state of the automaton, of the run after a prompt, and of the run that begins with the text.
    texts = np.full(len(after_prompts), automaton.start, dtype=np.int64)
    after, alone = after_prompts.astype(np.int64), np.full(len(after_prompts), matcher.start, dtype=np.int64)
    seen = np.zeros(0, dtype=np.int64)
    while True:
        ends = automaton.accepting[texts]
        if (matcher.completes_at_end(after[ends]) != matcher.completes_at_end(alone[ends])).any():
            return True
        apart = matcher.futures(after) != matcher.futures(alone)
        frontier = np.setdiff1d((texts[apart] << _BITS | after[apart]) << _BITS | alone[apart], seen)
        seen = np.union1d(seen, frontier)
        if not len(frontier):
            return False
        if len(seen) > PAIRS or max(after.max(), alone.max()) >> _BITS:
            return True
        read = np.tile(bytes, len(frontier))
        texts, after, alone = (
            np.repeat(frontier >> shift & (1 << _BITS) - 1, len(bytes)) for shift in (2 * _BITS, _BITS, 0)
        )
        texts = automaton.targets[texts, automaton.byte_class[read]].astype(np.int64)
        allowed = texts != DEAD
        texts = texts[allowed]
        after, alone = (matcher.step(states[allowed], read[allowed]).astype(np.int64) for states in (after, alone))
        complete = matcher.matches(alone)
        if (matcher.matches(after) != complete).any():
            return True
        texts, after, alone = texts[~complete], after[~complete], alone[~complete]


def _reached(matcher: PhraseMatcher) -> NDArray[np.integer] | None:
    """Return the states in which texts after prompts begin; ``None`` where there are more than :data:`STATES`."""
    if matcher.states is not None:
        return np.arange(matcher.states)
    bytes = np.unique(matcher.byte_class, return_index=True)[1].astype(np.uint8)
    reached = frontier = np.array([matcher.start], dtype=np.int32)
    while len(frontier):
        frontier = np.setdiff1d(matcher.step(frontier[:, None], bytes), reached)
        reached = np.union1d(reached, frontier)
        if len(reached) > STATES:
            return None
    return np.array([matcher.after_prompt(state) for state in reached.tolist()])


PRODUCT_STATES, OWN_STATES = 1_000, 20_000
"""The most states of a product byte by byte: with all phrases, and with those that the output type writes by itself."""

Step: TypeAlias = Callable[[NDArray[np.integer], NDArray[np.integer]], NDArray[np.integer]]
"""States and bytes to the states after them."""

_ROUNDS = 16  # How often the phrases are collected that an output type writes by itself


def free_text(vocabulary: Vocabulary, phrases: BannedPhrases) -> PhraseGuide:
    """Return the guide of free text without the phrases.

    An :class:`EmptyLanguageError` where no character can be written; it names phrases that do this alone, none too many of a few.
    """
    guide = PhraseGuide(vocabulary, phrases)
    if _writes(guide):
        return guide
    few = smallest_conflict(phrases, lambda some: not _writes(PhraseGuide(vocabulary, some)))
    raise EmptyLanguageError(
        f"the banned phrases leave no text but the empty one: tokens of the vocabulary write no character without {few.listed}. "
        "Ban less of them."
    )


def banned(left: Guide, phrases: BannedPhrases) -> Guide:
    """Return the guide of what ``left`` allows without the phrases.

    The machine of the phrases is multiplied in byte by byte where ``left`` is lifted from a byte automaton and the product stays
    small; dead ends are trimmed then, and a step costs nothing more. Where that is large, or a prompt may have begun a phrase that
    a text of ``left`` goes on with, the guide is a :class:`ProductGuide`, which makes its rows as they are asked for.

    An :class:`EmptyLanguageError` where nothing is left; it names phrases that do this alone, none too many of a few, and a text
    that they rule out. An :class:`UnsupportedError` where it is not known within a large effort whether anything is left.
    """
    guide = _without(left, phrases)
    if guide is not None:
        return guide
    few = smallest_conflict(phrases, lambda some: _without(left, some) is None)
    text = ShortestTexts(left).text(left.start)
    found = PhraseGuide(left.vocabulary, few).first_in(b"", text)
    verb, them = ("leaves", "it") if len(few) == 1 else ("leave", "one of them")
    raise EmptyLanguageError(
        f"the banned phrases leave nothing of the output type: {few.listed} alone {verb} no text of it. The shortest, "
        f"{text.decode(errors='replace')!r}, holds {found}. Take {them} off the list, or change the output type."
    )


def _without(left: Guide, phrases: BannedPhrases) -> Guide | None:
    """Return the guide of what is left; ``None`` for nothing."""
    automaton = left.automaton if isinstance(left, FSMGuide) else None
    if automaton is not None:
        origin = least_context(phrases)
        everywhere = _multiplied(automaton, phrases.matcher, phrases.matcher.step, origin, PRODUCT_STATES)
        rest = _without_own(automaton, phrases, origin) if everywhere is None else everywhere
        if rest.is_empty:
            return None
        try:
            left = FSMGuide.from_automaton(rest, left.vocabulary)
        except EmptyLanguageError:
            return None
        if everywhere is not None and not depends_on_prompt(automaton, phrases):
            return replace(left, phrases=phrases)
    product = ProductGuide(left, PhraseGuide(left.vocabulary, phrases))
    return product if product.min_tokens(product.start) < UNREACHABLE else None


def _multiplied(
    automaton: ByteAutomaton, matcher: PhraseMatcher, step: Step, origin: int, limit: int
) -> ByteAutomaton | None:
    """Return the texts of ``automaton`` that complete no phrase, read from ``origin``; ``None`` for over ``limit`` states.

    ``step`` is that of ``matcher``, or one that completes less.
    """
    columns, byte_class = np.unique(
        automaton.byte_class.astype(np.int64) << 8 | matcher.byte_class, return_inverse=True
    )
    bytes = np.array([int((byte_class == column).argmax()) for column in range(len(columns))], dtype=np.uint8)
    # A pair is known by its left state and the future of the other: one state of the matcher stands for all with that future.
    texts, reading = np.array([automaton.start]), np.array([origin])
    number = {DEAD: DEAD, _code(texts, matcher.futures(reading)).item(): 1}
    rows, accepting = [np.zeros((1, len(bytes)), dtype=np.int32)], [np.zeros(1, dtype=bool)]
    while len(texts):
        accepting.append(automaton.accepting[texts] & ~matcher.completes_at_end(reading))
        texts = automaton.targets[texts][:, automaton.byte_class[bytes]].astype(np.int64)
        reading = step(reading[:, None], bytes)
        codes = np.where((texts == DEAD) | matcher.matches(reading), DEAD, _code(texts, matcher.futures(reading)))
        found, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        before = len(number)
        numbers = np.array([number.setdefault(code, len(number)) for code in found.tolist()], dtype=np.int32)
        if len(number) > limit:
            return None
        rows.append(numbers[inverse.reshape(codes.shape)])
        # New pairs get their rows in the order of their numbers.
        fresh = first[numbers >= before]
        texts, reading = texts.ravel()[fresh], reading.ravel()[fresh]
    return ByteAutomaton(np.concatenate(rows), byte_class.astype(np.uint8), 1, np.concatenate(accepting)).trim()


def _in_ascii(matcher: PhraseMatcher) -> Step:
    """Return the step of a matcher of whole words that takes every byte beyond ASCII for one inside a word.

    It finds the words between ASCII characters, in far fewer states: which of all characters end a word takes hundreds.
    """
    inside = inside_word(matcher)

    def step(states: NDArray[np.integer], bytes: NDArray[np.integer]) -> NDArray[np.integer]:
        return np.where(bytes < 0x80, matcher.step(states, np.where(bytes < 0x80, bytes, 0)), inside)

    return step


def _code(texts: NDArray[np.integer], futures: NDArray[np.int32]) -> NDArray[np.int64]:
    return texts.astype(np.int64) << 32 | futures


def _without_own(automaton: ByteAutomaton, phrases: BannedPhrases, origin: int) -> ByteAutomaton:
    """Return the texts of ``automaton`` without the phrases that it writes by itself, on the shortest way to an end.

    These few make the dead ends: a member that must hold a phrase shows itself in the shortest text that leads through it.
    """
    rest, own = automaton, set[int]()
    for _ in range(_ROUNDS):
        new = _on_shortest_ways(rest, phrases.matcher, origin) - own
        if not new:
            break
        own |= new
        some = replace(phrases, phrases=tuple(phrases.phrases[i] for i in sorted(own)))
        step = _in_ascii(some.matcher) if some.whole_word else some.matcher.step
        product = _multiplied(automaton, some.matcher, step, least_context(some), OWN_STATES)
        if product is None:
            break
        rest = product
        if rest.is_empty:
            break
    return rest


def _on_shortest_ways(automaton: ByteAutomaton, matcher: PhraseMatcher, origin: int) -> set[int]:
    """Return which phrases a shortest text from any state to acceptance holds."""
    column = automaton.distances[automaton.targets].argmin(axis=1)
    byte = np.array([int((automaton.byte_class == g).argmax()) for g in range(automaton.targets.shape[1])])[column]
    after = automaton.targets[np.arange(len(automaton)), column]
    states = np.flatnonzero(automaton.distances < UNREACHABLE)
    reading = np.full(len(states), origin, dtype=np.int32)
    found = set[int]()
    while len(states):
        ended = automaton.distances[states] == 0
        for state in np.unique(reading[ended]).tolist():
            found.update(matcher.completed_at_end(state))
        states, reading = states[~ended], reading[~ended]
        reading = matcher.step(reading, byte[states])
        states = after[states]
        for state in np.unique(reading[matcher.matches(reading)]).tolist():
            found.update(matcher.completed(state))
    return found


def _writes(guide: PhraseGuide) -> bool:
    """Whether tokens can write a character at the start of a text; True where that takes too long to see."""
    row, tokens = guide.row(guide.start), guide.vocabulary.tokens
    allowed = np.flatnonzero(row.targets[row.partition.class_of] > DONE).tolist()
    if any(_is_text(tokens[token]) for token in allowed):
        return True  # nearly always, and seen at the first token
    if not allowed:
        return False
    # What is left begins with a part of a character; it is no text if none of them can be made whole.
    characters, matcher = compile_regex("(?s:.)+"), guide.phrases.matcher
    texts = _multiplied(characters, matcher, matcher.step, matcher.start, OWN_STATES)
    if texts is None or texts.is_empty:
        return texts is None
    return len(texts) > PRODUCT_STATES or _has_tokens(texts, guide.vocabulary)


def _has_tokens(automaton: ByteAutomaton, vocabulary: Vocabulary) -> bool:
    try:
        FSMGuide.from_automaton(automaton, vocabulary)
    except EmptyLanguageError:
        return False
    return True


def _is_text(token: bytes) -> bool:
    try:
        return bool(token.decode())
    except UnicodeDecodeError:
        return False
