"""Free text, or an output type, minus the banned phrases: a byte automaton where the product is small, else made on demand."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import ByteAutomaton, TooLarge, below, joint_classes
from ...automata.byte_machine import Both
from ...automata.prefix_match import whole_characters
from ...errors import EmptyLanguageError, UnsupportedError, VocabularyError
from ...numerics.cache import kept_of_states
from ...regex.patterns import compile_regex
from ...vocabulary.vocabulary import EOS, Partition, Refinement, Vocabulary, refine
from ..fsm import FSMGuide
from ..guide import DEAD, DONE, UNREACHABLE, Guide, Row
from ..guide_texts import ShortestTexts
from .banned import BannedPhrases, smallest_conflict
from .matcher import PhraseMatcher, WithoutPhrases
from .phrase_guide import BanningGuide, Base, Changes, PhraseGuide

SEARCHED, SHORT = 5_000, 20
"""The most pairs of states searched for an end from one pair, and the tokens to it behind which a pair counts for more than one."""

_UNKNOWN, _BLOCKED = -1, -2
"""``min_tokens`` of a pair not looked at yet, and of one for which a shortest sequence of the left guide holds a phrase."""

MOST_PAIRS = 1 << 18  # Pairs that a guide numbers, give or take one call

_SHOWN = 20  # The number of bytes of a prompt in messages


@final
class ProductGuide(BanningGuide):
    """The token sequences of a guide ``left`` whose bytes hold no banned phrase, whatever the size of both.

    A state is a pair, numbered when a row first leads to it, so memory grows with the pairs that were met. Of a row, all that does
    not depend on what is pending is shared by the pairs with the same left state. A pair is live if and only if an end can be
    reached from it, so dead ends that only tokens make are found too: ``min_tokens`` is the length of a shortest sequence. It is
    looked for along a shortest one of the left guide first, which nearly always holds no phrase, and else best first with the
    left guide's ``far_from_end`` as the bound (A*; Hart, Nilsson, Raphael 1968). A pickled copy numbers its states anew.

    Raises
    ------
    VocabularyError
        The two are of different vocabularies.
    UnsupportedError
        From what needs ``min_tokens``: :data:`SEARCHED` pairs, fewer behind long texts, did not tell whether one can be finished.
    """

    def __init__(self, left: Guide, right: PhraseGuide) -> None:
        if left.vocabulary.fingerprint != right.vocabulary.fingerprint:
            raise VocabularyError("guides of two vocabularies cannot be intersected; build both for the same model")
        self.left, self.right = left, right
        self.vocabulary, self.phrases, self.open = left.vocabulary, right.phrases, left.open
        self.blocks, self.match, self.thoughts = left.blocks, left.match, left.thoughts
        self._pairs = [(DEAD, DEAD), (DONE, DONE)]
        self._number = {(DONE, DONE): DONE}
        self._least = np.array([UNREACHABLE, 0], dtype=np.int64)  # `min_tokens` of the pairs, as far as it is known
        self._shortest = ShortestTexts(left)
        self._lock = threading.RLock()
        self.start = self._pair(left.start, right.start)

    def __reduce__(self) -> tuple[Any, ...]:
        return ProductGuide, (self.left, self.right)

    @property
    def full(self) -> bool:  # type: ignore[override]
        """See :attr:`Guide.full`."""
        return self.left.full or len(self._pairs) > MOST_PAIRS

    @kept_of_states
    def row(self, state: int) -> Row:
        if state in (DEAD, DONE):
            return Row(self.right.base.partition, np.full(self.right.base.partition.size, DEAD, dtype=np.int32))
        with self._lock:
            row = self._moves(state)
            return Row(row.partition, np.where(self.min_tokens_of(row.targets) < UNREACHABLE, row.targets, DEAD))

    @kept_of_states
    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`, without the whole row."""
        with self._lock:
            left, right = self._pairs[state]
            target = self._pair(self.left.advance(left, token), self.right.advance(right, token))
            return target if self.min_tokens(target) < UNREACHABLE else DEAD

    def min_tokens(self, state: int) -> int:
        known = self._least.item(state)
        return known if known >= 0 else super().min_tokens(state)

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        with self._lock:
            unknown = np.unique(states[self._least[states] < 0]).tolist()
            self._follow(unknown)
            for state in unknown:
                if self._least[state] == _BLOCKED:  # the search from another may have met it
                    self._search(state)
            return self._least[states]

    def start_after(self, prompt: bytes) -> int:
        with self._lock:
            return self._pair(self.left.start_after(prompt), self.right.start_after(prompt))

    def why_empty(self, prompt: bytes) -> str:
        """See :meth:`Guide.why_empty`; names a phrase."""
        left = self.left.start_after(prompt)
        if self.left.min_tokens(left) >= UNREACHABLE or self.min_tokens(self.start) >= UNREACHABLE:
            return self.left.why_empty(prompt)
        text = self._shortest.text(left)
        return (
            "the banned phrases leave nothing of the output type after a prompt that ends in "
            f"{prompt[-_SHOWN:].decode(errors='replace')!r}: with it, the shortest text, {text.decode(errors='replace')!r}, makes "
            f"{self.right.first_in(prompt, text)}, and no other one does without a phrase. Ban less, change the prompt, or give "
            "BannedPhrases(..., across_prompt=False), for which what the prompt begins does not count."
        )

    def pending(self, state: int) -> int:
        """See :meth:`BanningGuide.pending`."""
        return self.right.pending(self._pairs[state][1])

    def phrases_at(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`BanningGuide.phrases_at`; of tokens that the left guide allows."""
        left, right = self._pairs[state]
        row = self.left.row(left)
        allowed = row.targets[row.partition.class_of[tokens]] != DEAD
        return np.where(allowed, self.right.phrases_at(right, tokens), -1)

    def begins_block(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See :meth:`Guide.begins_block`: that of the left guide."""
        return self.left.begins_block(self._pairs[state][0], tokens)

    def between_blocks(self, state: int) -> bool:
        """See :meth:`Guide.between_blocks`: that of the left guide."""
        return self.left.between_blocks(self._pairs[state][0])

    def in_thought(self, state: int) -> bool:
        return self.left.in_thought(self._pairs[state][0])

    def room(self, state: int) -> int:
        return self.left.room(self._pairs[state][0])

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: that of both."""
        left, right = self._pairs[state]
        return f"{self.left.describe(left)} and {self.right.describe(right)}"

    def _moves(self, state: int) -> Row:
        """Return the transitions of a pair, those into dead ends as well, as changes to those of another with its left state."""
        left, right = self._pairs[state]
        base, row = self._base(left)
        tokens, which, after = self.right.changes(right)
        classes = row.partition.class_of[tokens].astype(np.int64)
        relevant = row.targets[classes] != DEAD
        both, places = np.unique(classes[relevant] * len(after) + which[relevant], return_inverse=True)
        on_left, on_right = np.divmod(both, len(after)) if len(both) else (both, both)
        changes = Changes(tokens[relevant], places, self._intern(row.targets[on_left], after[on_right]))
        return base.changed(changes, DONE if row.targets[EOS] == DONE and self.right.min_tokens(right) == 0 else DEAD)

    @kept_of_states
    def _base(self, left: int) -> tuple[Base, Row]:
        """Return the transitions of a left state beside the start of a text on the right, and its own."""
        row = self.left.row(left)
        partition, on_left, on_right = self._refined(row.partition)
        return Base.of(partition, self._intern(row.targets[on_left], self.right.base.targets[on_right])), row

    @kept_of_states
    def _refined(self, partition: Partition) -> Refinement:
        return refine(partition, self.right.base.partition)

    def _intern(self, left: NDArray[np.integer], right: NDArray[np.integer]) -> NDArray[np.int32]:
        """Return the numbers of pairs, see :meth:`_pair`."""
        states = np.full(len(left), DEAD, dtype=np.int32)
        live = np.flatnonzero((left != DEAD) & (right != DEAD))
        states[live] = list(map(self._pair, left[live].tolist(), right[live].tolist()))
        return states

    def _pair(self, left: int, right: int) -> int:
        """Return the number of a pair, DEAD where either is; a new one gets the next.

        A token that ends the text on the left may have gone on with it on the right, where no phrase waits for what comes.
        """
        if left == DONE and right > DONE and self.right.min_tokens(right) == 0:
            return DONE
        if DEAD in (left, right) or (left == DONE) != (right == DONE):
            return DEAD
        number = self._number.setdefault((left, right), len(self._pairs))
        if number == len(self._pairs):
            self._pairs.append((left, right))
            if number == len(self._least):
                self._least = np.concatenate([self._least, np.full_like(self._least, _UNKNOWN)])
        return number

    def _follow(self, states: Iterable[int]) -> None:
        """Set ``min_tokens`` of the pairs for which a shortest sequence of the left guide holds no phrase."""
        unknown: dict[int, list[int]] = {}
        for state in states:
            if self._least[state] == _UNKNOWN:
                unknown.setdefault(self._pairs[state][0], []).append(state)
        for left, here in unknown.items():
            least = self.left.min_tokens(left)
            # No row leads there, but a prompt may leave nothing of a guide that bans phrases itself.
            if least < UNREACHABLE:
                after = self.right.after_text(
                    np.array([self._pairs[state][1] for state in here]), self._shortest.text(left)
                )
                self._least[here] = np.where(self.right.min_tokens_of(after) == 0, least, _BLOCKED)
            else:
                self._least[here] = least

    def _search(self, state: int) -> None:
        """Set ``min_tokens`` of ``state`` and of the pairs on the way to the end, or of all met if there is none."""
        steps, before = {state: 0}, {state: DEAD}
        queue, met = [(0, 0, state)], set[int]()
        while queue:
            _, _, here = heapq.heappop(queue)
            if self._least[here] != _BLOCKED:
                bound = steps[here] + self._least.item(here)
                while here != DEAD:
                    self._least[here] = bound - steps[here]
                    here = before[here]
                return
            if here in met:
                continue
            met.add(here)
            if len(met) * (SHORT + self.left.min_tokens(self._pairs[here][0])) > SEARCHED * SHORT:
                shortest = self._shortest.text(self._pairs[state][0]).decode(errors="replace")
                raise UnsupportedError(
                    f"{len(met)} steps did not tell whether a text can be finished without the banned phrases: the shortest end, "
                    f"{shortest!r}, holds one, and so do all others that were tried. Ban less, or change the output type"
                )
            targets = np.unique(self._moves(here).targets).tolist()
            self._follow(targets)
            bounds = self.left.far_from_end(np.array([self._pairs[target][0] for target in targets])).tolist()
            for target, bound in zip(targets, bounds, strict=True):
                rest = bound if self._least[target] == _BLOCKED else self._least.item(target)
                if rest < UNREACHABLE and steps[here] + 1 < steps.get(target, UNREACHABLE):
                    steps[target], before[target] = steps[here] + 1, here
                    heapq.heappush(queue, (steps[target] + rest, -steps[target], target))
        self._least[list(met)] = UNREACHABLE


STATES, PAIRS = 1_000, 1 << 18
"""The most lazily built states, and the most pairs of runs, that are looked at before the answer is yes."""

_BITS = 21  # The number of bits of a state's code


def least_context(phrases: BannedPhrases) -> int:
    """Return the state of the matcher after the prompt that rules out least: what is banned after it is banned after every prompt.

    It is the beginning of a text; but for whole words across the prompt, where a text may go on with a word, the inside of a long
    one.
    """
    return inside_word(phrases.matcher) if phrases.across_prompt and phrases.whole_word else phrases.matcher.start


def inside_word(matcher: PhraseMatcher) -> int:
    """Return the state of a matcher of whole words inside a word that is longer than all of them."""
    return matcher.read(matcher.start, b"_" * (matcher.longest + 1))


def depends_on_prompt(automaton: ByteAutomaton, phrases: BannedPhrases) -> bool:
    """Return True if the prompt decides which texts of ``automaton`` hold a phrase; also where that takes too long to see.

    Runs the matcher from its start and from every other state at the same time, until the two runs complete the same from now on.
    """
    if not phrases.across_prompt:
        return False
    matcher = phrases.matcher
    after_prompts = _reached(matcher)
    if after_prompts is None:
        return True
    _, bytes = joint_classes([automaton.byte_class, matcher.byte_class])
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

_ROUNDS = 16  # The most rounds that collect the phrases that an output type writes by itself


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
        everywhere = _multiplied(automaton, phrases.matcher, origin, PRODUCT_STATES)
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
    automaton: ByteAutomaton, matcher: PhraseMatcher, origin: int, limit: int, beyond_ascii: int | None = None
) -> ByteAutomaton | None:
    """Return the texts of ``automaton`` that are :class:`WithoutPhrases`; ``None`` for over ``limit`` states."""
    byte_class, _ = joint_classes([automaton.byte_class, matcher.byte_class])
    try:
        return ByteAutomaton.of_machine(
            Both(automaton, WithoutPhrases(matcher, origin, beyond_ascii)), byte_class, below(limit)
        )
    except TooLarge:
        return None


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
        inside = inside_word(some.matcher) if some.whole_word else None
        product = _multiplied(automaton, some.matcher, least_context(some), OWN_STATES, inside)
        if product is None:
            break
        rest = product
        if rest.is_empty:
            break
    return rest


def _on_shortest_ways(automaton: ByteAutomaton, matcher: PhraseMatcher, origin: int) -> set[int]:
    """Return the phrases that a shortest text from any state to acceptance holds."""
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
    """Return True if tokens can write a character at the start of a text; also where that takes too long to see."""
    row, tokens = guide.row(guide.start), guide.vocabulary.tokens
    allowed = np.flatnonzero(row.targets[row.partition.class_of] > DONE).tolist()
    if any(token and whole_characters(token) == token for token in (tokens[number] for number in allowed)):
        return True  # nearly always, and seen at the first token
    if not allowed:
        return False
    # What is left begins with a part of a character; it is no text if none of them can be made whole.
    characters, matcher = compile_regex("(?s:.)+"), guide.phrases.matcher
    texts = _multiplied(characters, matcher, matcher.start, OWN_STATES)
    if texts is None or texts.is_empty:
        return texts is None
    if len(texts) <= PRODUCT_STATES:
        try:
            FSMGuide.from_automaton(texts, guide.vocabulary)
        except EmptyLanguageError:
            return False
    return True
