"""The guide of texts whose lexemes may have few tokens: an automaton, and how many tokens the pending lexeme has a byte in."""

from __future__ import annotations

import numpy as np

from ...automata.lift import Transformations, lift
from ...errors import EmptyLanguageError, UnsupportedError
from ...vocabulary.vocabulary import Vocabulary
from ..fsm import FSMGuide
from ..json_schema.reading.template import END
from .longest_match import LexemeMatch, MatchState

MOST_MOVES = 30_000_000
"""Steps on classes of tokens, of all states with all counts."""


def counted(match: LexemeMatch, vocabulary: Vocabulary) -> FSMGuide:
    """Return the guide of a template without values, in which lexemes have at most their ``max_tokens``.

    A lexeme has the tokens that write a byte of it. A state is one of the byte automaton at the beginning of a token, with the
    number ``t`` of tokens so far that have a byte of the pending lexeme. The next one would be number ``t + 1``, so lexemes with
    ``max_tokens <= t`` go on with no byte of it, and may end before it. Behind a token, ``t + 1`` is the number if no lexeme has
    ended in it; else 1, or 0 at the beginning of a lexeme.

    Raises
    ------
    EmptyLanguageError
        No text is short enough.
    UnsupportedError
        There are too many states.
    """
    limits = [one.max_tokens for one in match.lexemes]
    most = max(limit for limit in limits if limit is not None)

    def tightest(state: MatchState) -> int:
        """The largest of the limits of the lexemes that are pending: more tokens change nothing."""
        kinds = {kind for kind, _ in state.pending}
        return max((limit for kind, limit in enumerate(limits) if limit is not None and kind in kinds), default=0)

    def begins(state: MatchState, count: int) -> MatchState:
        """The state at the beginning of a token, behind so many."""
        kinds = {kind for kind, _ in state.pending}
        spent = frozenset(kind for kind in kinds if (limit := limits[kind]) is not None and limit <= count)
        return state._replace(spent=spent, fresh=False)

    def tokens_end(state: MatchState) -> list[MatchState]:
        counts = {0, *(limit for kind, _ in state.pending if (limit := limits[kind]) is not None)}
        return [begins(state, count) for count in counts]

    explored = match.explored([match.start], tokens_end)
    partition, moves = lift(explored.targets, match.byte_class, vocabulary)
    by_source = np.argsort(moves.source, kind="stable")
    offsets = np.searchsorted(moves.source[by_source], np.arange(len(explored.states) + 2))
    class_of = np.repeat(np.arange(len(moves)), moves.counts)

    # Behind a byte state that a token ends in: the state without what was counted, and how to count on.
    ends = [MatchState(state.row, state.pending) for state in explored.states]
    keys: dict[tuple[MatchState, int], int] = {(MatchState(match.start.row), 0): 1}
    waiting = list(keys)
    sources, targets, classes = [], [], []
    made = 0
    for key in waiting:  # grows as it is walked
        state, count = key
        number = explored.number[begins(state, count)]
        pairs = by_source[offsets[number] : offsets[number + 1]]
        made += len(pairs)
        if made > MOST_MOVES:
            raise UnsupportedError(
                f"Lower `max_tokens`, or bound the regular expressions instead, as in [a-z]{{1,20}}. Counting tokens takes more "
                f"than {MOST_MOVES:,} steps."
            )
        found = np.empty(len(pairs), dtype=np.int32)
        distinct, inverse = np.unique(moves.target[pairs], return_inverse=True)
        for place, after in enumerate(distinct.tolist()):
            base, fresh = ends[after - 1], explored.states[after - 1].fresh
            counted_on = (1 if base.pending else 0) if fresh else count + 1
            then = (base, min(counted_on, tightest(base), most))
            if then not in keys:
                keys[then] = len(keys) + 1
                waiting.append(then)
            found[inverse == place] = keys[then]
        sources.append(np.full(len(pairs), keys[key], dtype=np.int32))
        targets.append(found)
        classes.append(class_of[pairs])
    order = np.lexsort((source := np.concatenate(sources), kinds := np.concatenate(classes)))
    widths = np.bincount(kinds, minlength=len(moves))
    product = Transformations(np.concatenate([[0], np.cumsum(widths)]), source[order], np.concatenate(targets)[order])
    accepting = np.array([False, *(END in match.rests(state) for state, _ in keys)])
    guide = FSMGuide.from_moves(vocabulary, partition, product, accepting, 1)
    if guide is None:
        raise EmptyLanguageError(
            "Raise `max_tokens`. No text of the grammar has so few tokens: a text that it would cut short is none of the grammar."
        )
    return guide
