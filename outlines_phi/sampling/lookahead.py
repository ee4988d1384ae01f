"""Texts drawn window by window: without banned phrases, or field by field (theory.md, section 6)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np

from ..drafting.drafter import Site
from ..errors import COST, BudgetError, UnsupportedError
from ..lm.model import Progress, follow
from ..numerics.weights import draw
from ..phi.branches import Branch
from ..phi.tree.evaluator import Evaluator
from ..phi.tree.tree import Node
from ..phi.tree.window import Windows
from .ancestral import TOGETHER
from .draws import Draw, DrawCounts, Draws
from .phi_options import FieldsPhi, LookaheadPhi
from .rejection.adaptive_proposal import AdaptiveTrajectories, Candidate, pick
from .sampler import Prefetch, Request, Sampler, Stream
from .stepper import Trajectory, path_accounts
from .window_walks import WINDOW_BYTES, EvaluatedTexts, NormalizerWalk, WindowAttempts, WindowTree

FAILING = 4
"""Failed attempts at a window after which nothing is drafted for further ones."""

MOST_CANDIDATES = 64
"""Candidates of a window are twice as many, up to these, where truncation has left none of them a text."""


@final
@dataclass(eq=False)
class WindowedText(Trajectory):
    """A draw in the making: its tokens are committed, and only ever grow. Kept when the walk itself is gone."""

    # Attempts at windows, and windows, so far
    attempts: int = 0
    committed: int = 0
    # How many attempts each phrase has cost, by its place in the list
    rejected: Counter[int] = field(default_factory=Counter)
    picked: int = 0  # Windows that were picked by weight
    exhausted: bool = False  # Whether the effort of a window ran out; the draw is given up then


@final
class CommittingWalk:
    """One draw in the making: what is committed, and the window under way.

    ``trajectory``: The draw, at the start of a text, after the token ids of ``prompt``.
    ``diagnostics``: A random stream for all that the draw itself does not depend on.
    ``top``: As of :class:`Request`.
    """

    def __init__(
        self,
        windows: Windows,
        phi: LookaheadPhi | FieldsPhi,
        trajectory: WindowedText,
        prompt: tuple[int, ...],
        diagnostics: np.random.Generator,
        top: int | None,
    ) -> None:
        self.trajectory, self._top = trajectory, top
        self._windows, self._phi, self._prompt, self._diagnostics = windows, phi, prompt, diagnostics
        self._normalizers: list[NormalizerWalk] = []
        self._begin(())

    @property
    def under_way(self) -> bool:
        """True if the walk waits for a distribution."""
        return bool(self._normalizers) or self._writing

    @property
    def _writing(self) -> bool:
        return not (self.trajectory.finished or self.trajectory.exhausted)

    def held(self) -> Iterator[Branch]:
        """Yield the texts that the walk may come back to."""
        for normalizer in self._normalizers:
            yield from normalizer.window.text.walk()
        yield from self._tree.text.walk()

    def advance(self) -> dict[Branch, Site]:
        """Go on as far as known distributions lead, and commit the windows that end; return the texts, with their places, whose
        distributions are wanted next.
        """
        waiting = []
        for normalizer in list(self._normalizers):
            if nodes := normalizer.window.grow(normalizer):
                waiting += [(normalizer.window, node) for node in nodes]
            else:
                self._normalizers.remove(normalizer)
                self.trajectory.log_w += normalizer.log_estimate
        while self._writing:
            if nodes := self._tree.grow(self._candidates or self._attempts):
                waiting += [(self._tree, node) for node in nodes]
                self.trajectory.turns += 1
                break
            self._settle()
        if not self._writing:
            self.trajectory.at = Branch(-1, -1)  # the draw outlives the texts that it was made from
        return {tree.text_of(node): self._site(tree, node) for tree, node in waiting}

    @property
    def failing(self) -> bool:
        """True if so many attempts at the window have failed that a draft for one is seldom walked."""
        return len(self._attempts.failed) >= FAILING

    def _site(self, tree: WindowTree, node: Node) -> Site:
        walk = self.trajectory
        return Site(walk.row, self._prompt, (*walk.tokens[: tree.written], *node.tokens()), node.state, node.remaining)

    def _begin(self, queue: Sequence[int]) -> None:
        """Begin a window at what is committed; its first attempt has drawn ``queue`` already."""
        walk = self.trajectory
        self._tree = WindowTree(self._windows, walk.state, walk.remaining, walk.at, len(walk.tokens))
        self._candidates: AdaptiveTrajectories | None = None
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
        """Take note of what the window has come to, now that its walks have ended."""
        if self._candidates is not None:
            self._pick(self._candidates.trajectories)
            return
        self.trajectory.attempts += self._attempts.read
        for node in self._attempts.failures():
            self._blame(node)
        if self._attempts.satisfied:
            if self._phi.weights:
                self._normalizers.append(NormalizerWalk(self._tree, self._diagnostics))
            self._commit(self._attempts.accepted[0])
        elif self._tree.tree.root.log_upper == -math.inf:
            self.trajectory.log_w = -math.inf
        elif self._phi.candidates:
            self._compare(self._phi.candidates)
        else:
            self.trajectory.exhausted = True

    def _compare(self, size: int) -> None:
        """Begin candidates to pick the window from."""
        rng = self.trajectory.rng
        self._candidates = AdaptiveTrajectories(self._tree.tree, [size], lambda number: rng, max_bytes=WINDOW_BYTES)

    def _pick(self, candidates: Sequence[Candidate]) -> None:
        """Commit one of the candidates of a window, picked by their weights, whose mean estimates ``Psi``."""
        self.trajectory.attempts += len(candidates)
        found = pick(candidates, self.trajectory.rng, chain=not self._phi.weights)
        if found is not None:
            self.trajectory.log_w += found.log_w
            self.trajectory.picked += 1
            self._commit(found.node)
        elif self._phi.weights:
            self.trajectory.log_w = -math.inf
        elif len(candidates) < MOST_CANDIDATES:
            self._compare(2 * len(candidates))  # the tree knows now where these met their ends
        else:
            self.trajectory.exhausted = True

    def _commit(self, end: Node) -> None:
        """Commit the final tokens of a completed window, and begin the next one with the rest."""
        self.trajectory.committed += 1
        tree, walk, path = self._tree, self.trajectory, end.path()
        tokens = [node.token for node in path]
        states = self._states(tokens)
        kept = self._windows.count_final(tokens, states)
        last = path[kept - 1]
        text = tree.text_of(last)
        walk.at, walk.state, walk.log_p = text, states[kept - 1], walk.log_p + last.log_p
        walk.tokens += tokens[:kept]
        if self._top is not None:
            walk.accounts += path_accounts(self._windows.table, path[:kept], self._top, tree.likeliest, whole=False)
        walk.remaining -= kept
        if not walk.finished:
            self._begin(tokens[kept:])

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
        log_p, windows = self._tree.text_of(node).answer, self._windows
        if log_p is None or not windows.names:
            return
        dead = np.exp(log_p, dtype=np.float64)
        dead[windows.table.moves(node.state, node.remaining).tokens] = 0.0
        if dead.any():
            phrase = windows.phrase_at(node.state, draw(dead, self._diagnostics))
            self.trajectory.rejected.update([] if phrase is None else [phrase])


WALK_BYTES = 160
"""Measured footprint of a walk for every token of the vocabulary: the distributions of a window under way."""

AT_ONCE = 2**30
"""Memory that walks may take side by side; the others come after them."""


@final
@dataclass(frozen=True)
class LookaheadSampler(Sampler):
    """Draws windows, each by adaptive rejection from ``p(x | r) 1[x in W(r)] / Psi(r)``, and commits them.

    ``W(r)`` are the windows that may follow the committed text ``r``: those without a banned phrase, or the blocks of the format.

    All windows of all draws of all prompts advance together, in one model call per step; a text is evaluated once while a walk
    may come back to it. A draw depends on the seed, its prompt's number and its own, and on nothing else of the call.
    """

    phi: LookaheadPhi | FieldsPhi
    # The drafts, evaluated ahead of the walks; `None` for none. Walks come to the same distributions by fewer calls, so the
    # draws of a seed are, token for token, those without a draft, as far as the model answers alike in calls of other sizes.
    # The noise of their weights may be another.
    draft: Prefetch | None = None

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`.

        Raises :class:`BudgetError`: the effort ran out in a window; carries what was drawn so far.
        Raises :class:`UnsupportedError`: a guide that bans no phrases, or a constraint beside it.
        Raises :class:`DraftError`: the drafter raised, or proposed what is no draft.
        """
        run = WindowedDraws(self.phi, request, self.draft)
        for _ in run.steps():
            pass
        return run.draws()

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that have committed tokens, or failed, after every model call.

        A token is final when it is committed: a trajectory only ever grows, by several tokens at once where they were one window.
        """
        return WindowedDraws(self.phi, request, self.draft).steps()


@final
class WindowedDraws:
    """The draws of a call, window by window: of every prompt, or the ``missing`` ones behind an ``evaluator``.

    ``first``: The number of the first random stream of each prompt.
    ``before``: Draws and attempts that there are already, for progress.

    Raises :class:`UnsupportedError`: a guide that bans no phrases, or a constraint beside it.
    """

    def __init__(
        self,
        phi: LookaheadPhi | FieldsPhi,
        request: Request,
        draft: Prefetch | None = None,
        evaluator: Evaluator | None = None,
        missing: Sequence[int] | None = None,
        first: int = 0,
        before: tuple[int, int] = (0, 0),
    ) -> None:
        if request.constraint is not None:
            raise UnsupportedError(
                f"Give phi='local' or phi='exact', which write the same texts, or leave it out. {request.constraint} was "
                f"given with phi={phi.name!r}, which commits a text before a predicate has seen it whole."
            )
        self._phi, self._request, self._draft = phi, request, draft
        self._windows = phi.windows(request.table)
        self._texts = EvaluatedTexts(request, draft, evaluator)
        self._missing = [request.n] * len(request.prompts) if missing is None else missing
        self._first, self._before = first, before
        self._begun: list[WindowedText] = []

    def steps(self) -> Iterator[Sequence[Trajectory]]:
        """Take all draws to their ends; yield the trajectories that have grown, or failed, after every model call.

        Raises :class:`BudgetError`: the effort ran out in a window of some draw; raised when the others have ended.
        """
        numbers = [(row, i) for row, missing in enumerate(self._missing) for i in range(missing)]
        follow(
            lambda: Progress.of(
                self._texts.counts,
                draws=self._before[0] + sum(text.finished for text in self._begun),
                wanted=self._before[0] + len(numbers),
                attempts=self._before[1] + sum(text.attempts for text in self._begun),
            )
        )
        at_once = max(1, min(TOGETHER, AT_ONCE // (WALK_BYTES * len(self._request.table.vocabulary))))
        for first in range(0, len(numbers), at_once):
            walks = self._launch(numbers[first : first + at_once])
            while walks:
                yield from self._step(walks)
                walks = [walk for walk in walks if walk.under_way]
        self._refuse_exhausted()

    def draws(self) -> list[Draws]:
        """Return the draws of every prompt."""
        return [self._draws(row) for row in range(len(self._request.prompts))]

    def _launch(self, numbers: Sequence[tuple[int, int]]) -> list[CommittingWalk]:
        """Return walks at the start, by the number of their prompt and their own; those of one prompt share what they evaluate."""
        request = self._request
        roots = {row: self._texts.root(row) for row, _ in numbers}
        walks = []
        for row, i in numbers:
            rng = request.stream(row, self._first + i)
            trajectory = WindowedText(row, i, rng, roots[row], request.starts[row], request.budgets[row])
            diagnostics = request.stream(row, Stream.DIAGNOSTIC + i)
            prompt = request.prompts[row]
            walks.append(CommittingWalk(self._windows, self._phi, trajectory, prompt, diagnostics, request.top))
        self._begun += [walk.trajectory for walk in walks]
        return walks

    def _step(self, walks: Sequence[CommittingWalk]) -> Iterator[Sequence[Trajectory]]:
        """Take ``walks`` as far as known distributions lead, yield those that have grown or failed, and ask the model for the next
        distributions.

        Texts that none of them needs are given back now and then.
        """
        before = [len(walk.trajectory.tokens) for walk in walks]
        sites = [(walk, walk.advance()) for walk in walks]
        wanted = {text: site for _, found in sites for text, site in found.items()}
        drafted = {text for walk, found in sites if not walk.failing for text in found}
        grown = [
            walk.trajectory
            for walk, length in zip(walks, before, strict=True)
            if len(walk.trajectory.tokens) > length or walk.trajectory.failed
        ]
        if grown:
            yield grown
        if wanted:
            self._texts.evaluate(wanted, drafted)
        size = sum(len(walk.trajectory.tokens) for walk in walks)
        self._texts.tidy((text for walk in walks for text in walk.held()), size)

    def _rejections(self, row: int) -> dict[str, int]:
        """Return the number of attempts that each phrase has cost the draws of a prompt, by its name."""
        rejected = sum((text.rejected for text in self._of(row)), Counter[int]())
        return {self._windows.names[phrase]: count for phrase, count in sorted(rejected.items())}

    def _refuse_exhausted(self) -> None:
        """Raise a :class:`BudgetError` where the effort of a window ran out; it carries the draws that were completed."""
        text = next((text for text in self._begun if text.exhausted), None)
        if text is None:
            return
        index, written = text.row, len(text.tokens)
        rejections = self._rejections(index)
        costly = sorted(rejections, key=lambda name: -rejections[name])[:3]
        named = f", mostly {', '.join(costly)}" if costly else ""
        wanted = (
            f"hardly writes anything else than banned phrases{named}"
            if self._windows.names
            else "writes nothing allowed"
        )
        raise BudgetError.of(
            f"Mask last tokens instead (phi='local'), give a larger effort ({type(self._phi).__name__}), or change the prompt",
            f"Prompt {index}: the effort ran out after {written} tokens of a draw, where the model {wanted}",
            f"the error's .draws holds the draws that were completed, and {COST}",
            draws=self.draws(),
        )

    def _of(self, row: int) -> list[WindowedText]:
        return [text for text in self._begun if text.row == row]

    def _draws(self, row: int) -> Draws:
        texts = self._of(row)
        items = [self._draw(one) for one in texts if not (one.exhausted or one.failed)]
        written = sum(len(text.tokens) for text in texts)
        turns = sum(text.turns for text in texts)
        drafted = {} if self._draft is None else {**vars(self._texts.tallies[row]), "written": written, "turns": turns}
        return Draws(
            items=tuple(items),
            counts=DrawCounts(
                **vars(self._texts.counts),
                attempts=sum(text.attempts for text in texts),
                accepted=sum(text.committed for text in texts),
                **drafted,
            ),
            budget=self._request.budgets[row],
            failures=sum(text.failed for text in texts),
            rejections=self._rejections(row),
        )

    def _draw(self, text: WindowedText) -> Draw:
        return Draw.of(
            self._request.table.guide,
            text.tokens,
            log_p=text.log_p,
            log_w=text.log_w if self._phi.weights else math.nan,
            guarantee=self._phi.guarantee(self._request.table, text.picked),
            blocks=text.committed,
            picked=text.picked,
            tokens=tuple(text.accounts),
        )
