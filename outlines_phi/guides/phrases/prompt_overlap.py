"""Whether a prompt can have begun what a text goes on with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, ByteAutomaton
from .banned import BannedPhrases
from .matcher import PhraseMatcher

STATES, PAIRS = 1_000, 1 << 18
"""How many states that come up one by one, and how many pairs of runs, are looked at before the answer is yes."""

_BITS = 21
"""How many bits of a code a state has."""


def least_context(phrases: BannedPhrases) -> int:
    """Return the state of the matcher after a prompt that rules out least, of all that may come before a text.

    Whatever is banned after it is banned after every prompt. It is the beginning of a text; but for whole words across the prompt,
    where a text may go on with a word, it is the inside of a long one.
    """
    across = phrases.across_prompt and phrases.whole_word
    return inside_word(phrases.matcher) if across else phrases.matcher.start


def inside_word(matcher: PhraseMatcher) -> int:
    """Return the state of a matcher of whole words inside a word that is longer than all of them."""
    return matcher.read(matcher.start, b"_" * (matcher.longest + 1))


def depends_on_prompt(automaton: ByteAutomaton, phrases: BannedPhrases) -> bool:
    """Return whether it depends on the prompt which texts of ``automaton`` hold a phrase; True where that takes too long to see.

    Runs the matcher on all of its texts from its start and from every other state at the same time, until the two runs can
    complete no other phrases any more.
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
