"""The most probable members of a language, with a certificate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from ..errors import BudgetError
from ..lm.model import ModelCounts, Progress, current, follow, limited
from ..numerics.checks import check_amounts, check_counts, check_fits, check_kind
from ..numerics.distributions import Exchange
from ..numerics.weights import bounds_text
from ..phi.branches import Branch, Branches
from ..phi.tree.best_first import USUAL, ModeSearch, expand_usual, grow_trees
from ..phi.tree.distribution import Beginnings
from ..phi.tree.evaluator import Evaluator, TreeStore, afresh
from ..phi.tree.tree import BoundsTree, refuse_impossible
from .draws import DrawCounts, TextSequence, WrittenText
from .phi_options import Effort
from .sampler import Request


@final
@dataclass(frozen=True, kw_only=True)
class Member(WrittenText):
    """A member of a language, found by a search."""


@final
@dataclass(frozen=True, kw_only=True)
class Ranking(TextSequence[Member]):
    """The most probable members of a language after one prompt, the likeliest first; ties by their token ids.

    A member is a sequence of tokens: the tokenizations of one text rank apart.

    Attributes
    ----------
    items
        The members.
    asked
        How many were asked for. There are fewer where fewer have any probability.
    log_p_bound
        No member that is not listed has a ``log p`` above this; ``-inf`` where all are listed.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi(prompt)``, in nats: ``mu*(y) = p(y) / Phi``.
    counts
        The cost of the search, for the whole batch.
    budget
        The ``N`` that the language depends on: the most tokens of a member.
    beginnings
        The likeliest first tokens of the model and of the format, where the search has read them.
    """

    items: tuple[Member, ...]
    asked: int
    log_p_bound: float
    log_z_bounds: tuple[float, float]
    counts: DrawCounts
    budget: int
    beginnings: Beginnings | None = field(default=None, compare=False, repr=False)

    @property
    def gap(self) -> float:
        """The excess in nats that ``log p`` of a missing member may have over that of the last listed; 0 for a proven ranking."""
        if self.log_p_bound == -math.inf:
            return 0.0
        last = self.items[self.asked - 1].log_p if len(self) >= self.asked else -math.inf
        return max(0.0, self.log_p_bound - last)

    @property
    def certified(self) -> int:
        """The number of first members that are proven to hold their places."""
        return sum(member.log_p >= self.log_p_bound for member in self.items)

    @property
    def complete(self) -> bool:
        """True if every member that has any probability is listed."""
        return self.log_p_bound == -math.inf

    def __str__(self) -> str:
        """Return a table of the members, and ``log Phi``."""
        lines = [f"{'log p':>10}  text"]
        lines += [f"{member.log_p:10.4f}  {member.text}" for member in self.items]
        lines.append("these are all" if self.complete else f"{self.log_p_bound:10.4f}  at most, all others")
        return "\n".join([*lines, f"log Phi {bounds_text(self.log_z_bounds)}"])


@afresh
def rank(
    request: Request,
    top: int,
    store: TreeStore,
    *,
    effort: Effort,
    tolerance: float = 0.0,
    reader: Callable[[str], Any] = str,
) -> list[Ranking]:
    """Return the ``top`` most probable members after each prompt of ``request``, searched for in shared model calls.

    ``effort``: Its ``tokens``, per prompt, and its ``seconds``: a search launches no attempts.
    ``tolerance``: Be content when no other member can have more than ``1 + tolerance`` times the probability of the last listed.
    Raises :class:`BudgetError`: the effort ran out; its ``partial`` has the rankings so far, each with the bound of what is
    missing.
    Raises :class:`EmptyLanguageError`: no member of the language has any probability.
    Raises :class:`UnsupportedError`: ``top`` or ``tolerance`` is out of range.
    """
    _check(top, tolerance, effort)
    with limited(effort.seconds), store.lend(*request.tree_key) as trees:
        evaluator = Evaluator(request.lm, request.settings, request.prompts, trees)
        begun, max_bytes = {tree: tree.expansions for tree in trees}, store.share(len(trees))

        def search(tree: BoundsTree) -> ModeSearch:
            left = effort.tokens - (tree.expansions - begun[tree])
            return ModeSearch(tree, top, tolerance=tolerance, max_tokens=left, max_bytes=max_bytes)

        expand_usual(trees, evaluator, min(USUAL, effort.tokens))
        searches = list(map(search, trees))
        follow(
            lambda: Progress.of(
                evaluator.counts,
                draws=sum(len(each.members) for each in searches),
                wanted=top * len(searches),
                log_bounds=[tree.log_bounds for tree in trees],
            )
        )
        grow_trees(searches, evaluator)
        results = [_ranking(each, top, evaluator.counts, reader) for each in searches]
        finished = [each.finished for each in searches]  # before the store makes room
        empty = [tree for tree, done, result in zip(trees, finished, results, strict=True) if done and not result]
        refuse_impossible(empty, request.settings)
        if not all(finished):
            raise _shortfall(finished.index(False), results, effort)
    return results


def _check(top: int, tolerance: float, effort: Effort) -> None:
    check_counts("a search", top=top)
    check_fits("top", top, each=1024, things="members")
    check_amounts("a search", tolerance=tolerance)
    check_kind("a search", "effort", effort, Effort, "Effort(tokens=..., seconds=...)")


def _ranking(search: ModeSearch, top: int, counts: ModelCounts, reader: Callable[[str], Any]) -> Ranking:
    tree = search.tree
    found = search.members
    return Ranking(
        items=tuple(Member.of(tree.table.guide, node.tokens(), log_p=node.log_p, reader=reader) for node in found),
        asked=top,
        log_p_bound=search.bound,
        log_z_bounds=tree.log_bounds,
        counts=DrawCounts(**vars(counts)),
        budget=tree.budget,
        beginnings=tree.beginnings,
    )


def _shortfall(row: int, results: Sequence[Ranking], effort: Effort) -> BudgetError:
    ranking = results[row]
    best = f"the best has log p {ranking[0].log_p:.4g}, and " if ranking.items else ""
    used = f"the search used its {effort.tokens} model tokens, or its memory,"
    return BudgetError.of(
        "Give a larger effort=Effort(tokens=...), a tolerance, or an output type with less free text; phi='exact' draws need no "
        "certificate",
        f"Prompt {row}: {current().end_of(used)} when {len(ranking)} of {ranking.asked} members were found, {ranking.certified} of "
        f"them proven; {best}what is missing has at most {ranking.log_p_bound:.4g}",
        "the error's .partial holds the rankings",
        partial=results,
        log_z_bounds=ranking.log_z_bounds,
    )


def greedy_lines(request: Request, most: int) -> list[str]:
    """Return the line that the likeliest token at every step writes after each prompt, of at most ``most`` tokens.

    It ends with the end of sequence or the first newline after a character, and knows nothing of the table of ``request``.
    """
    decode = request.lm.vocabulary.decode
    written = greedy_tokens(request, lambda row, ids: len(ids) < most and b"\n" not in decode(ids).lstrip())
    return [decode(ids).decode(errors="replace").strip().partition("\n")[0] for ids in written]


def greedy_tokens(request: Request, goes_on: Callable[[int, Sequence[int]], bool]) -> list[list[int]]:
    """Return the likeliest token at every step after each prompt, the end of sequence included, as long as a row ``goes_on``."""
    lm, branches = request.lm, Branches(request.lm, request.prompts)
    written: list[list[int]] = [[] for _ in request.prompts]
    standing = {row: Branch(-1, -1, root) for row, root in enumerate(branches.roots)}
    while standing:
        exchange = Exchange(branches.reach(list(standing.values())))
        contexts = [(*request.prompts[row], *written[row]) for row in standing]
        log_p = request.settings.log_p(exchange.rows(range(len(standing)))(), lm.vocabulary, contexts)
        (best,) = exchange.read(log_p.argmax(-1))
        for row, token, context in zip(list(standing), best.tolist(), contexts, strict=True):
            at = standing.pop(row)
            written[row].append(token)
            fits = lm.max_length is None or len(context) + 1 < lm.max_length
            if token not in lm.vocabulary.eos_ids and fits and goes_on(row, written[row]):
                standing[row] = at.child(token)
    return written
