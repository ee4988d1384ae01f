"""A call whose walks share one token tree for each prompt: what exact and automatic sampling have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import final

from ...errors import InterruptedDraws
from ...lm.watch import Progress
from ...phi.estimator import ProposalPhi
from ...phi.tree.best_first import TreeWalks, grow_trees
from ...phi.tree.evaluator import Evaluator, Foresight
from ...phi.tree.preexpand import expand_for_walks
from ...phi.tree.tree import BoundsTree, Node
from ..drafted_stepper import Prefetch, Prefetching
from ..draw import Draw
from ..draws import DrawCounts, Draws
from ..phi_options import Effort
from ..sampler import Request, Stream
from .attempts import Attempts

RECENT = 128
"""Drafted nodes of a prompt that tell whether further ones pay."""


@final
@dataclass(frozen=True, eq=False)
class TreeCall:
    """A request with the trees of its prompts."""

    request: Request
    trees: Sequence[BoundsTree]  # The tree of each prompt, in their order
    evaluator: Evaluator  # Expands the nodes of all trees
    foresight: Foresight | None  # The drafts of the walks; `None` without a drafter
    max_bytes: int  # Memory that each tree may take

    @classmethod
    def begin(
        cls,
        request: Request,
        trees: Sequence[BoundsTree],
        max_bytes: int,
        draft: Prefetch | None = None,
        frontier: ProposalPhi | None = None,
        expand: Callable[[Sequence[BoundsTree], Evaluator], None] = expand_for_walks,
        *,
        ahead: bool = False,
    ) -> TreeCall:
        """Return the call with the trees of short languages expanded by ``expand``.

        ``frontier`` is the estimator that is asked about every prefix that the trees meet. With ``ahead`` tokens may be drawn
        ahead in place of whole distributions: for attempts by rejection, which go down and look at nothing.
        """
        evaluator = Evaluator(
            request.lm,
            request.settings,
            request.prompts,
            trees,
            frontier=frontier,
            stream=partial(request.stream, number=Stream.ESTIMATE),
            ahead=partial(request.stream, number=Stream.AHEAD) if ahead else None,
        )
        drafted = partial(evaluator.drafted, latest=RECENT)
        foresight = None if draft is None else Prefetching(draft, request, drafted, trees).below
        expand(trees, evaluator)
        return cls(request, trees, evaluator, foresight, max_bytes)

    def attempts(
        self, kind: Callable[..., Attempts], row: int, *, width: int, effort: Effort, **options: int
    ) -> Attempts:
        """Return the attempts of the prompt ``row``, ready to be grown."""
        stream = partial(self.request.stream, row)
        limits = {"width": width, "effort": effort, "max_bytes": self.max_bytes}
        return kind(self.trees[row], self.request.n, stream, **limits, **options)

    def grow(self, rows: Sequence[TreeWalks]) -> None:
        """Take the walks of some prompts to their ends, in shared model calls."""
        grow_trees(rows, self.evaluator, self.foresight)

    def progress(self, draws: int, attempts: int) -> Progress:
        """Return the progress of the call."""
        return Progress.of(
            self.evaluator.counts,
            draws=draws,
            wanted=self.request.n * len(self.trees),
            attempts=attempts,
            log_bounds=[tree.log_bounds for tree in self.trees],
        )

    def draw(self, node: Node, **attributes: object) -> Draw:
        """Return the draw that ``node`` stands for, a finished text."""
        return Draw.of(self.request.table.guide, node.tokens(), log_p=node.log_p, **attributes)

    def counts(self, row: int, items: Sequence[Draw], *, turns: int, attempts: int) -> DrawCounts:
        """Return the cost of the draws of a prompt, whose walks have waited ``turns`` times for the model."""
        drafted = {}
        if self.foresight is not None:
            ahead, followed = self.evaluator.drafted(row)
            written = sum(len(item.token_ids) for item in items)
            drafted = {"drafted": ahead, "followed": followed, "written": written, "turns": turns}
        return DrawCounts(**vars(self.evaluator.counts), **drafted, attempts=attempts, accepted=len(items))

    @contextmanager
    def handing_over(self, draws: Callable[[], Sequence[Draws]]) -> Iterator[None]:
        """Let Ctrl-C carry the exact ``draws()`` that there are by then, if there are any."""
        try:
            yield
        except KeyboardInterrupt as error:
            if any(made := draws()):
                raise InterruptedDraws.of(made, self.request.n).with_traceback(error.__traceback__) from None
            raise
