"""A walk that writes window by window."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import final

import numpy as np

from ..drafting.drafter import Site
from ..guides.guide import DONE
from ..numerics.weights import draw
from ..phi.tree.tree import Node
from ..phi.tree.window import Windows
from .phi_options import LookaheadPhi
from .stepper import Trajectory
from .window_walks import EvaluatedText, NormalizerWalk, WindowAttempts, WindowTree


@final
@dataclass(eq=False)
class Account:
    """The account of a walk, kept when the walk itself is gone."""

    trajectory: Trajectory  # The draw; what it holds is committed, and only ever grows
    # Attempts at windows, and windows, so far
    attempts: int = 0
    committed: int = 0
    # How many attempts each phrase has cost, by its place in the list
    rejected: Counter[int] = field(default_factory=Counter)
    exhausted: bool = False  # Whether the effort of a window ran out; the draw is given up then
    turns: int = 0  # How often the text has waited for the model


@final
class CommittingWalk:
    """One draw of a look-ahead in the making: what is committed, and the window under way.

    ``windows``: Makes the windows' trees.
    ``trajectory``: The draw, at the start.
    ``text``: The text of the prompt.
    ``prompt``: Its token ids.
    ``diagnostics``: A random stream for all that the draw itself does not depend on.
    ``account``: The account of the walk.
    """

    def __init__(
        self,
        windows: Windows,
        phi: LookaheadPhi,
        trajectory: Trajectory,
        text: EvaluatedText,
        prompt: tuple[int, ...],
        diagnostics: np.random.Generator,
    ) -> None:
        self.account = Account(trajectory)
        self._windows, self._phi, self._prompt, self._diagnostics = windows, phi, prompt, diagnostics
        self._normalizers: list[NormalizerWalk] = []
        self._begin(text, ())

    @property
    def trajectory(self) -> Trajectory:
        """The draw."""
        return self.account.trajectory

    @property
    def under_way(self) -> bool:
        """Whether the walk waits for a distribution."""
        return bool(self._normalizers) or self._writing

    @property
    def _writing(self) -> bool:
        return not (self.trajectory.finished or self.account.exhausted)

    def held(self) -> Iterator[EvaluatedText]:
        """Yield the texts that the walk may come back to."""
        for normalizer in self._normalizers:
            yield from normalizer.window.text.walk()
        yield from self._tree.text.walk()

    def advance(self) -> dict[EvaluatedText, Callable[[], Site]]:
        """Go on as far as known distributions lead, and commit the windows that end; return the texts whose distributions are
        wanted next.

        With each comes what tells where it stands.
        """
        waiting = []
        for normalizer in list(self._normalizers):
            if nodes := normalizer.window.grow(normalizer):
                waiting += [(normalizer.window, node) for node in nodes]
            else:
                self._normalizers.remove(normalizer)
                self.trajectory.log_w += normalizer.log_estimate
        while self._writing:
            if nodes := self._tree.grow(self._attempts):
                waiting += [(self._tree, node) for node in nodes]
                self.account.turns += 1
                break
            self._settle()
        return {tree.text_of(node): partial(self._site, tree, node) for tree, node in waiting}

    def _site(self, tree: WindowTree, node: Node) -> Site:
        walk = self.trajectory
        written = (*walk.tokens[: tree.written], *node.tokens())
        return Site(walk.row, self._prompt, written, node.state, node.remaining)

    def _begin(self, text: EvaluatedText, queue: Sequence[int]) -> None:
        """Begin a window at ``text``; its first attempt has drawn ``queue`` already."""
        walk = self.trajectory
        self._tree = WindowTree(self._windows.tree(walk.state, walk.remaining), text, len(walk.tokens))
        first = self._tree.plant(queue) if queue else None
        self._attempts = WindowAttempts(
            self._tree.tree,
            walk.rng,
            width=self._phi.width,
            effort=self._phi.effort,
            diagnostics=self._diagnostics,
            first=first,
        )

    def _settle(self) -> None:
        """Take note of what the window has come to, now that its attempts have ended."""
        self.account.attempts += self._attempts.read
        for node in self._attempts.failures():
            self._blame(node)
        if self._attempts.satisfied:
            self._commit(self._attempts.accepted[0])
        elif self._attempts.impossible:
            self.trajectory.log_w = -math.inf
        else:
            self.account.exhausted = True

    def _commit(self, end: Node) -> None:
        """Commit what is final of the accepted window, and begin the next one with the rest."""
        self.account.committed += 1
        tree, walk, path = self._tree, self.trajectory, end.path()
        states = self._states([node.token for node in path])
        lengths = self._windows.lengths([node.token for node in path])
        pending = 0 if states[-1] == DONE else self._windows.guide.pending(states[-1])
        kept = len(path) if states[-1] == DONE else self._windows.ending.released(lengths, pending)
        if self._phi.weights:
            self._normalizers.append(NormalizerWalk(tree, self._diagnostics))
        last = path[kept - 1]
        text = tree.text_of(last)
        walk.node, walk.state, walk.log_p = text.parent, states[kept - 1], walk.log_p + last.log_p
        walk.tokens += [node.token for node in path[:kept]]
        walk.remaining -= kept
        if not walk.finished:
            self._begin(text, [node.token for node in path[kept:]])

    def _states(self, tokens: Sequence[int]) -> list[int]:
        """Return the guide state after each of ``tokens``, which a window's tree does not tell where it ends."""
        state, states = self.trajectory.state, []
        for i, token in enumerate(tokens):
            state = self._windows.table.advance(state, token, self.trajectory.remaining - i)
            states.append(state)
        return states

    def _blame(self, node: Node) -> None:
        """Attribute a failed attempt at ``node`` to a phrase.

        An attempt fails where its next token would be a dead one: one is drawn in proportion to ``p``, and the phrase that it
        completes is counted.
        """
        log_p, windows = self._tree.text_of(node).log_p, self._windows
        if log_p is None:
            return
        dead = np.exp(log_p, dtype=np.float64)
        dead[windows.table.moves(node.state, node.remaining).tokens] = 0.0
        if dead.any():
            phrase = windows.phrase_at(node.state, draw(dead, self._diagnostics))
            self.account.rejected.update([] if phrase is None else [phrase])
