"""How many tokens it takes to complete a lexeme, from any view of a state of a lexer."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...guide import UNREACHABLE
from .lexer import NOTHING
from .views import SILENT, Views

FAR = np.int32(UNREACHABLE // 4)
"""No way; a sum of three does not overflow."""

Distances: TypeAlias = NDArray[np.int32]


class LexemeDistances(NamedTuple):
    """The distances to the ends of lexemes.

    Attributes
    ----------
    to_end_of
        ``int32[R, J]``: from each row, a view of a state or a context, to where a lexeme of terminal ``terminal[j]`` is complete in
        context ``context[j]``.
    terminal, context
        ``int[J]``.
    contexts
        ``K``.
    end
        ``int32[R]``: the tokens to the end of the text where nothing more may count.
    """

    to_end_of: Distances
    terminal: NDArray[np.int64]
    context: NDArray[np.int64]
    contexts: int
    end: Distances

    @classmethod
    def of(cls, views: Views) -> LexemeDistances:
        """Return those of the views of a lexer."""
        size = len(views.emitted)
        # Where tokens that end just this lexeme lead, from the views in which one is complete.
        ends = (views.terminal != NOTHING) & (views.terminal == views.complete[views.source])
        lands = np.zeros((size, size + 1), dtype=bool)
        lands[views.source[ends], views.target[ends]] = True
        lands[:, -1] = views.end == views.complete
        counts = np.flatnonzero(views.complete != NOTHING)
        after, context = np.unique(lands[counts], axis=0, return_inverse=True)
        groups, group = np.unique(np.stack([views.complete[counts], context.reshape(-1)]), axis=1, return_inverse=True)
        goals = np.zeros((size, groups.shape[1] + 1), dtype=bool)
        goals[counts, group.reshape(-1)] = True
        goals[:, -1] = views.end == SILENT
        silent = views.terminal == NOTHING
        from_views = _levels(views.source[silent], views.target[silent], goals)
        from_contexts = np.full((len(after), goals.shape[1]), FAR, dtype=np.int32)
        for row, landing in zip(from_contexts, after[:, :-1], strict=True):
            row[:] = from_views[landing].min(axis=0, initial=FAR)
        rows = np.minimum(np.concatenate([from_views, 1 + from_contexts]), FAR)
        end = np.minimum(rows[:, -1] + 1, FAR)
        end[size:] = np.where(after[:, -1], 1, FAR)
        return cls(rows[:, :-1], groups[0], groups[1], len(from_contexts), end.astype(np.int32))

    def distances(self, terminal: int) -> Distances:
        """Return ``g_T``, ``int32[R, K]``."""
        found = np.full((len(self.to_end_of), self.contexts), FAR, dtype=np.int32)
        mine = self.terminal == terminal
        found[:, self.context[mine]] = self.to_end_of[:, mine]
        return found


def _levels(source: NDArray[np.integer], target: NDArray[np.integer], goals: NDArray[np.bool_]) -> Distances:
    """Return ``int32[S, J]``: the length of a shortest path from each state to a goal ``j``, breadth-first from the goals."""
    steps = np.zeros((len(goals), len(goals)), dtype=np.float32)
    steps[source, target] = 1
    distances = np.where(goals, np.int32(0), FAR)
    frontier, length = goals, 0
    while frontier.any():
        length += 1
        frontier = (steps @ frontier.astype(np.float32) > 0) & (distances == FAR)
        distances[frontier] = length
    return distances


def then(left: Distances, right: Distances) -> Distances:
    """Return ``min over k of left[r, k] + right[k, j]``, the product of the tropical semiring, ``int32[R, J]``."""
    found = np.full((len(left), right.shape[1]), FAR, dtype=np.int32)
    for k in np.flatnonzero((left < FAR).any(axis=0)):
        np.minimum(found, left[:, k, None] + right[k], out=found)
    return found
