"""Texts without banned phrases, drawn window by window (theory.md, section 6)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from ..errors import COST, BudgetError, UnsupportedError
from ..lm.model import ModelCounts
from ..lm.watch import Progress, follow
from ..phi.tree.window import Windows
from .ancestral import TOGETHER
from .committing_walk import Account, CommittingWalk
from .drafted_stepper import Prefetch
from .draw import Draw, Guarantee
from .draws import DrawCounts, Draws
from .phi_options import LookaheadPhi
from .sampler import Request, Sampler, Stream
from .stepper import Trajectory
from .window_walks import EvaluatedTexts

WALK_BYTES = 160
"""Measured footprint of a walk for every token of the vocabulary: the distributions of a window under way."""

AT_ONCE = 2**30
"""Memory that walks may take side by side; the others come after them."""


@final
@dataclass(frozen=True)
class LookaheadSampler(Sampler):
    """Draws windows, each by adaptive rejection from ``p(x | r) 1[no phrase] / Psi(r)``, and commits them.

    All windows of all draws of all prompts advance together, in one model call per step; a text is evaluated once while a walk
    may come back to it. A draw depends on the seed, its prompt's number and its own, and on nothing else of the call.
    """

    phi: LookaheadPhi
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
        run = Lookahead(self.phi, request, self.draft)
        for _ in run.steps():
            pass
        return run.draws()

    def steps(self, request: Request) -> Iterator[Sequence[Trajectory]]:
        """Draw as :meth:`sample` does, and yield the trajectories that have committed tokens, or failed, after every model call.

        A token is final when it is committed: a trajectory only ever grows, by several tokens at once where they were one window.
        """
        return Lookahead(self.phi, request, self.draft).steps()


@final
class Lookahead:
    """One call of a look-ahead.

    ``draft``: The drafts, evaluated ahead of the walks; ``None`` for none.
    Raises :class:`UnsupportedError`: a guide that bans no phrases, or a constraint beside it.
    """

    def __init__(self, phi: LookaheadPhi, request: Request, draft: Prefetch | None = None) -> None:
        if request.constraint is not None:
            raise UnsupportedError(
                f"{request.constraint} was given with phi='lookahead', which commits a text before a predicate has seen it whole. "
                "Give phi='local' or phi='exact', which ban the same phrases, or leave the constraint out."
            )
        self._phi, self._request, self._draft = phi, request, draft
        self._windows = Windows(request.table, phi.ending)
        self._texts = EvaluatedTexts(request, draft)
        self._accounts: list[Account] = []

    def steps(self) -> Iterator[Sequence[Trajectory]]:
        """Take all draws to their ends; yield the trajectories that have grown, or failed, after every model call.

        Raises :class:`BudgetError`: the effort ran out in a window of some draw; raised when the others have ended.
        """
        numbers = [(row, i) for row in range(len(self._request.prompts)) for i in range(self._request.n)]
        follow(lambda: self.progress(len(numbers), sum(one.trajectory.finished for one in self._accounts)))
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
            trajectory = Trajectory(row, i, request.stream(row, i), row, request.starts[row], request.budgets[row])
            diagnostics = request.stream(row, Stream.DIAGNOSTIC + i)
            prompt = request.prompts[row]
            walks.append(CommittingWalk(self._windows, self._phi, trajectory, roots[row], prompt, diagnostics))
        self._accounts += [walk.account for walk in walks]
        return walks

    def _step(self, walks: Sequence[CommittingWalk]) -> Iterator[Sequence[Trajectory]]:
        """Take ``walks`` as far as known distributions lead, yield those that have grown or failed, and ask the model for the next
        distributions.

        Texts that none of them needs are given back now and then.
        """
        before = [len(walk.trajectory.tokens) for walk in walks]
        wanted = {text: ids for walk in walks for text, ids in walk.advance().items()}
        grown = [
            walk.trajectory
            for walk, length in zip(walks, before, strict=True)
            if len(walk.trajectory.tokens) > length or walk.trajectory.failed
        ]
        if grown:
            yield grown
        if wanted:
            self._texts.evaluate(wanted)
        size = sum(len(walk.trajectory.tokens) for walk in walks)
        self._texts.tidy(lambda: (text for walk in walks for text in walk.held()), size)

    @property
    def counts(self) -> ModelCounts:
        """The cost of the model calls so far."""
        return self._texts.counts

    def progress(self, wanted: int, draws: int) -> Progress:
        """Return how far the call has come, with so many of the ``wanted`` draws."""
        attempts = sum(account.attempts for account in self._accounts)
        return Progress.of(self.counts, draws=draws, wanted=wanted, attempts=attempts)

    def _rejections(self, row: int) -> dict[str, int]:
        """Return how many attempts each phrase has cost the draws of a prompt, by its name."""
        rejected = sum((account.rejected for account in self._of(row)), Counter[int]())
        return {self._names[phrase]: count for phrase, count in sorted(rejected.items())}

    def _refuse_exhausted(self) -> None:
        """Raise a :class:`BudgetError` where the effort of a window ran out; it carries the draws that were completed."""
        account = next((account for account in self._accounts if account.exhausted), None)
        if account is None:
            return
        index, written = account.trajectory.row, len(account.trajectory.tokens)
        rejections = self._rejections(index)
        costly = sorted(rejections, key=lambda name: -rejections[name])[:3]
        named = f", mostly {', '.join(costly)}" if costly else ""
        raise BudgetError.of(
            "Mask last tokens instead (phi='local'), give a larger LookaheadPhi(effort=Effort(...)), or change the prompt",
            f"Prompt {index}: the effort ran out after {written} tokens of a draw, in a window where the model hardly writes "
            f"anything else than banned phrases{named}",
            f"the error's .draws holds the draws that were completed, and {COST}",
            draws=self.draws(),
        )

    @property
    def _names(self) -> Sequence[str]:
        return self._windows.guide.phrases.names

    def _of(self, row: int) -> list[Account]:
        return [account for account in self._accounts if account.trajectory.row == row]

    def _draws(self, row: int) -> Draws:
        accounts = self._of(row)
        items = [self._draw(one.trajectory) for one in accounts if not (one.exhausted or one.trajectory.failed)]
        return Draws(
            items=tuple(items),
            counts=DrawCounts(
                **vars(self.counts),
                attempts=sum(account.attempts for account in accounts),
                accepted=sum(account.committed for account in accounts),
                **self._drafted(row),
            ),
            budget=self._request.budgets[row],
            failures=sum(account.trajectory.failed for account in accounts),
            rejections=self._rejections(row),
        )

    def _drafted(self, row: int) -> dict[str, int]:
        if self._draft is None:
            return {}
        written = sum(len(account.trajectory.tokens) for account in self._of(row))
        turns = sum(account.turns for account in self._of(row))
        return {**vars(self._texts.tallies[row]), "written": written, "turns": turns}

    def _draw(self, walk: Trajectory) -> Draw:
        return Draw.of(
            self._request.table.vocabulary,
            walk.tokens,
            log_p=walk.log_p,
            log_w=walk.log_w if self._phi.weights else math.nan,
            guarantee=Guarantee.WEIGHTED if self._phi.weights else Guarantee.APPROXIMATE,
        )
