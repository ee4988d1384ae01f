"""How many tokens it takes to complete a lexeme, from any state of a lexer."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ....format_limits import current_limits
from ...guide import UNREACHABLE
from .lexer import NOTHING, Word
from .spanner import Spanner

SILENT = -2  # The end of the text completes nothing that counts


class LookaheadStates(NamedTuple):
    """The states of a lexer, and beside each that holds terminals back the guesses that the longer lexeme fails.

    A *guess* about a state takes some terminals as emitted before they are; there may be several, for the longer lexeme may fail in
    several ways, one behind the other. What is emitted along a path of guesses is what the lexer emits along it, so each lexeme
    that ends is one step, however late the lexer tells. States have the first numbers, in their order, and guess nothing.
    """

    emitted: tuple[Word, ...]  # for each number what it takes as emitted beyond what is
    of_state: dict[int, tuple[int, ...]]  # the guesses about the states that hold terminals back
    # ``int32[E]``: steps on single tokens, with the one terminal that they emit or :data:`NOTHING`.
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    terminal: NDArray[np.int32]
    # ``int32[X]``: the terminal of the lexeme that is pending and complete, if it counts; else :data:`NOTHING`.
    complete: NDArray[np.int32]
    # ``int32[X]``: the terminal that the end of the text completes, :data:`SILENT` for none, :data:`NOTHING` where it may not end.
    end: NDArray[np.int32]

    @classmethod
    def of(cls, spanner: Spanner) -> LookaheadStates:
        """Return the guesses about a lexer, and the steps on the tokens of a vocabulary."""
        lexer, edges = spanner.lexer, spanner.edges()
        emitted: list[Word] = [()] * len(lexer)
        state, pending = list(range(len(lexer))), list(range(len(lexer)))
        of_state: dict[int, tuple[int, ...]] = {}
        for holding in np.flatnonzero(lexer.held).tolist():
            taken, at, first = cast("Word", ()), holding, len(emitted)
            while lexer.held[at]:
                taken += lexer.counted(lexer.words[lexer.held[at]])
                at = int(lexer.fallback[at])
                emitted.append(taken)
                state.append(holding)
                pending.append(at)
            of_state[holding] = tuple(range(first, len(emitted)))
        lengths = np.array([len(word) for word in spanner.words])
        only = np.array([word[0] if word else NOTHING for word in spanner.words])
        holds = lexer.held != 0
        plain = ~(holds[edges.source] | holds[edges.target])
        kept = plain & (lengths[edges.word] <= 1)
        steps = [np.stack([edges.source[kept], edges.target[kept], only[edges.word[kept]]], axis=1)]
        for source, target, word in np.stack(edges, axis=1)[~plain].tolist():
            for before in (source, *of_state.get(source, ())):
                for after in (target, *of_state.get(target, ())):
                    total, known = spanner.words[word] + emitted[after], emitted[before]
                    rest = total[len(known) :]
                    if total[: len(known)] == known and len(rest) <= 1:
                        steps.append(np.array([[before, after, rest[0] if rest else NOTHING]]))
        flushed = [lexer.flush(at) for at in state]
        end = [
            NOTHING if word is None else _last(lexer.counted(word), taken)
            for word, taken in zip(flushed, emitted, strict=True)
        ]
        source, target, terminal = np.concatenate(steps).astype(np.int32).T
        label = lexer.label[pending]
        ignored = np.array([each.ignored for each in lexer.terminals])
        complete = np.where((label != NOTHING) & ~ignored[label], label, NOTHING)
        return cls(tuple(emitted), of_state, source, target, terminal, complete, np.array(end, dtype=np.int32))


def _last(word: Word, taken: Word) -> int:
    """Return what is left of ``word`` behind ``taken``: a terminal, :data:`SILENT`; :data:`NOTHING` where it is something else."""
    if word[: len(taken)] != taken or len(word) > len(taken) + 1:
        return NOTHING
    return word[-1] if len(word) > len(taken) else SILENT


_CHUNK = 1 << 24  # How many entries are looked at together: it bounds the memory, not the result


FAR = np.int32(UNREACHABLE // 4)  # No way; a sum of three does not overflow

Distances: TypeAlias = NDArray[np.int32]


class LexemeDistances(NamedTuple):
    """The distances to the ends of lexemes, from rows that are lookahead states and then contexts.

    ``to_end_of``, ``int32[R, J]``, are the tokens to where a lexeme of ``terminal[j]`` is complete in ``context[j]``, one of
    ``contexts``; ``end``, ``int32[R]``, those to the end of the text where nothing more may count. A *context* is all states in
    which a lexeme is complete and after which tokens lead to the same places (grammar-theory.md, section 6.2).
    """

    to_end_of: Distances
    terminal: NDArray[np.int64]
    context: NDArray[np.int64]
    contexts: int
    end: Distances

    @classmethod
    def of(cls, states: LookaheadStates) -> LexemeDistances:
        """Return those of the lookahead states of a lexer."""
        size = len(states.emitted)
        # Where tokens that end just this lexeme lead, from the states in which one is complete.
        ends = (states.terminal != NOTHING) & (states.terminal == states.complete[states.source])
        counts = np.flatnonzero(states.complete != NOTHING)
        landing: list[set[int]] = [set() for _ in range(size)]
        for at, there in zip(states.source[ends].tolist(), states.target[ends].tolist(), strict=True):
            landing[at].add(there)
        number: dict[tuple[frozenset[int], bool], int] = {}
        is_last = (states.end == states.complete).tolist()
        found = (number.setdefault((frozenset(landing[at]), is_last[at]), len(number)) for at in counts.tolist())
        context = np.fromiter(found, np.int64, len(counts))
        groups, group = np.unique(np.stack([states.complete[counts], context]), axis=1, return_inverse=True)
        pairs = size * groups.shape[1]
        current_limits().check(
            "states", pairs // 1000, "The number of pairs of states and ends of lexemes, in thousands,"
        )
        goals = np.zeros((size, groups.shape[1] + 1), dtype=bool)
        goals[counts, group.reshape(-1)] = True
        goals[:, -1] = states.end == SILENT
        silent = states.terminal == NOTHING
        from_states = _levels(states.source[silent], states.target[silent], goals)
        from_contexts = np.full((len(number), goals.shape[1]), FAR, dtype=np.int32)
        for row, (after, _) in zip(from_contexts, number, strict=True):
            row[:] = from_states[list(after)].min(axis=0, initial=FAR)
        rows = np.minimum(np.concatenate([from_states, 1 + from_contexts]), FAR)
        end = np.minimum(rows[:, -1] + 1, FAR)
        end[size:] = [1 if last else FAR for _, last in number]
        return cls(rows[:, :-1], groups[0], groups[1], len(from_contexts), end.astype(np.int32))

    def distances(self, terminal: int) -> Distances:
        """Return ``g_T``, ``int32[R, K]``."""
        found = np.full((len(self.to_end_of), self.contexts), FAR, dtype=np.int32)
        mine = self.terminal == terminal
        found[:, self.context[mine]] = self.to_end_of[:, mine]
        return found


def _levels(source: NDArray[np.integer], target: NDArray[np.integer], goals: NDArray[np.bool_]) -> Distances:
    """Return ``int32[S, J]``: the length of a shortest path from each state to a goal ``j``, breadth-first from the goals."""
    source, target = np.unique(np.stack([source, target]), axis=1)
    starts, first = np.unique(source, return_index=True)
    distances = np.where(goals, np.int32(0), FAR)
    frontier, length = goals, 0
    while frontier.any() and len(starts):
        length += 1
        reached = np.zeros_like(frontier)
        for column in range(0, goals.shape[1], _CHUNK // len(target) + 1):
            here = slice(column, column + _CHUNK // len(target) + 1)
            reached[starts, here] = np.logical_or.reduceat(frontier[target, here], first)
        frontier = reached & (distances == FAR)
        distances[frontier] = length
    return distances


def then(left: Distances, right: Distances) -> Distances:
    """Return ``min over k of left[r, k] + right[k, j]``, the product of the tropical semiring, ``int32[R, J]``."""
    found = np.full((len(left), right.shape[1]), FAR, dtype=np.int32)
    for k in np.flatnonzero((left < FAR).any(axis=0)):
        np.minimum(found, left[:, k, None] + right[k], out=found)
    return found
