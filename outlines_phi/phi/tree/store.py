"""Token trees kept between calls, under one memory bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeAlias, TypeVar, final

from ...errors import BudgetError, EmptyLanguageError
from ...guides.table import Table
from ...lm.model import LanguageModel
from ...numerics.checks import check_counts
from ...settings import SamplingSettings
from ..constraint import Constraint
from ..state_values import KeptValues
from .tree import BoundsTree

TreeKey: TypeAlias = tuple[
    LanguageModel,
    SamplingSettings,
    Table,
    Sequence[tuple[int, ...]],
    Sequence[int],
    Constraint | None,
    Sequence[int],
]
"""The arguments of :meth:`TreeStore.lend`: all that the distributions of the trees of a call depend on."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@final
class TreeStore:
    """The trees of earlier calls, by everything that their distribution depends on.

    A call without a seed starts from what is known; the bounds only save model calls, the distribution of the draws is the same.

    ``max_bytes``: bound on the memory of all trees; the least recently used goes first, and a single tree that is too large drops
        its least recently visited distributions and subtrees.

    ``values``: the values that ``phi="learned"`` has learned in earlier calls, beside the trees.
    """

    def __init__(self, max_bytes: int = 2**30) -> None:
        check_counts("a model", " of bytes, such as 2**30 for 1 GB", least=0, max_tree_bytes=max_bytes)
        self.max_bytes = max_bytes
        self.values = KeptValues()
        self._trees: OrderedDict[Hashable, BoundsTree] = OrderedDict()
        # Sizes when last lent: a call looks at the trees that it was lent, however many are kept.
        self._sizes: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._trees)

    def __iter__(self) -> Iterator[BoundsTree]:
        return iter(self._trees.values())

    @property
    def bytes(self) -> int:
        """Memory held by all trees, as counted when they were last lent."""
        return sum(self._sizes.values())

    @contextmanager
    def lend(
        self,
        lm: LanguageModel,
        settings: SamplingSettings,
        table: Table,
        prompts: Sequence[tuple[int, ...]],
        budgets: Sequence[int],
        constraint: Constraint | None = None,
        starts: Sequence[int] = (),
    ) -> Iterator[list[BoundsTree]]:
        """Lend one tree per prompt: what is kept for it, or a fresh one where the call has a seed.

        ``starts`` are the guide states of the prompts. A prompt that stands in a batch twice has one tree. The store is
        trimmed at the end, and forgets trees that an interruption may have left between learning a distribution and updating the
        bounds above it.
        """
        distribution = (lm, lm.version(), table, settings.law_key, constraint)
        starts = starts or [table.start] * len(prompts)
        kept: dict[Hashable, BoundsTree] = self._trees if settings.seed is None else {}
        lent, trees = dict[Hashable, BoundsTree](), list[BoundsTree]()
        for prompt, start, budget in zip(prompts, starts, budgets, strict=True):
            key: Hashable = (distribution, prompt, start, budget)
            trees.append(kept.pop(key) if key in kept else BoundsTree(table, budget, constraint, start))
            lent.setdefault(key, trees[-1])
        kept |= lent  # the latest used last
        try:
            yield trees
        except (BudgetError, EmptyLanguageError):
            raise
        except BaseException:
            for key in lent:
                kept.pop(key, None)
            raise
        finally:
            self._sizes |= {key: tree.bytes for key, tree in lent.items() if kept is self._trees}
            if table.guide.full:  # further calls have another one, and would never find its trees
                self._trees = OrderedDict((key, tree) for key, tree in self._trees.items() if tree.table is not table)
            self.trim()

    def share(self, trees: int) -> int:
        """Return the memory that each of the trees of a call may take."""
        return self.max_bytes // max(1, trees)

    def trim(self) -> None:
        """Bring the store under its bound: whole trees first, the least recently used one leading, then parts of the last.

        The last one goes, too, where its root alone is over the bound.
        """
        self._sizes = {key: size for key, size in self._sizes.items() if key in self._trees}
        while len(self._trees) > 1 and self.bytes > self.max_bytes:
            oldest, _ = self._trees.popitem(last=False)
            self._sizes.pop(oldest, None)
        if self.bytes > self.max_bytes:
            ((key, tree),) = self._trees.items()
            tree.evict(self.max_bytes)
            self._sizes[key] = tree.bytes
            if self.bytes > self.max_bytes:
                del self._trees[key], self._sizes[key]

    def clear(self) -> None:
        """Forget every tree, and all learned values."""
        self.values.clear()
        self._trees.clear()
        self._sizes.clear()


class StaleTreesError(Exception):
    """A kept tree has another distribution at its prompt than the model has now; it never leaves the package."""


def afresh(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a call again where the trees that it was lent are stale; the store has forgotten them by then."""

    @wraps(call)
    def again(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except StaleTreesError:
            return call(*args, **kwargs)

    return again
