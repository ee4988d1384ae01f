"""Continuations that the model writes freely, and how many of them succeed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import UnsupportedError
from ...guides.guide import DONE
from ...lm.model import ModelCounts
from ...numerics.checks import check_amounts, check_counts, check_fits, check_shares
from ...numerics.inverse_cdf import columns_at
from ..branches import Branches
from ..estimator import Estimate, Need, Prefixes, ProposalPhi, SampledRun
from .candidates import Candidates

Ids = tuple[int, ...]

TOGETHER = 256
"""Continuations in flight at once, unless one prefix alone has more."""


@final
@dataclass(frozen=True)
class RolloutPhi(ProposalPhi):
    """``h(yv) = (successes + a) / (k + a + b)`` of ``k`` continuations of ``yv``, drawn from the model's own distribution.

    A continuation fails at its first token that cannot be completed within the budget. The mean of a Beta distribution: ``h`` is
    positive whatever happens, and tends to ``Phi`` as ``k`` grows. All continuations of a step advance together, one model call
    per token; a prefix keeps its values for the whole run, so walks that share it share them. They depend on the call's seed, the
    prompt's number and the prefix, and on nothing else.

    Attributes
    ----------
    k
        Continuations per child.
    a, b
        Successes and failures counted beforehand; ``a`` is positive.
    candidates, share
        Which children are continued: the likeliest, until they hold this share of the mass of all live ones, but no more than
        ``candidates``. The others have the mean of those that lead to the same guide state, or of all.
    """

    k: int = 4
    a: float = 0.5
    b: float = 0.5
    candidates: int = 8
    share: float = 0.99
    name: ClassVar[str] = "rollout"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def __post_init__(self) -> None:
        check_counts("RolloutPhi", k=self.k, candidates=self.candidates)
        check_fits("k", self.k, each=4096, things="continuations at once")
        check_shares("RolloutPhi", share=self.share)
        check_amounts("RolloutPhi", a=self.a, b=self.b)
        if self.a == 0:
            raise UnsupportedError("a=0 was given to RolloutPhi; expected a positive number.")

    def begin(self, run: SampledRun) -> Estimate:
        """See :meth:`ProposalPhi.begin`."""
        return RolloutEstimate(self, run)


@dataclass(eq=False)
class Continuation:
    """A continuation in flight.

    Attributes
    ----------
    prefix, number
        The prefix that it began at, and its number among those of the prefix: ``k`` in turn for each child.
    parent, token
        The node before its last token, and that token.
    state, remaining
        The guide state after it, and the tokens that may still be written.
    written
        What has been written, the prefix included.
    """

    prefix: int
    number: int
    parent: int
    token: int
    state: int
    remaining: int
    written: Ids


@final
class RolloutEstimate(Estimate):
    """Continuations at work in one run.

    They have token trees of their own, whose nodes beyond the current prefixes are given back after each step; what they cost is
    counted with the run.
    """

    def __init__(self, phi: RolloutPhi, run: SampledRun) -> None:
        self._phi, self._run = phi, run
        self._branches, self._counted = Branches(run.lm.trees(run.prompts)), ModelCounts()
        self._roots: dict[tuple[int, Ids], int] = {(row, ()): row for row in range(len(run.prompts))}
        self._nodes = dict(self._roots)
        self._seeds = [int(run.stream(row).integers(2**63)) for row in range(len(run.prompts))]
        self._known: dict[tuple[int, Ids], NDArray[np.float64]] = {}

    def add_log_h(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        """See :meth:`Estimate.add_log_h`."""
        phi = self._phi
        keys = [(row, tuple(tokens)) for row, tokens in zip(prefixes.rows, prefixes.tokens, strict=True)]
        chosen = [
            Candidates(self._run.table, state, left, law, most=phi.candidates, share=phi.share)
            for law, state, left in zip(log_p, prefixes.states, prefixes.remaining, strict=True)
        ]
        new = [i for i, key in enumerate(keys) if key not in self._known]
        for part in _parts(new, [phi.k * len(among) for among in chosen]):
            self._play({i: keys[i] for i in part}, chosen, prefixes.remaining)
        self._nodes = self._roots | {key: self._nodes[key] for key in keys if key in self._nodes}
        self._count()
        total = phi.k + phi.a + phi.b
        for scores, key, among in zip(log_p, keys, chosen, strict=True):
            # The floor holds already: no child has less than a of the total.
            among.add_to(scores, np.log((self._known[key] + phi.a) / total), phi.a / total)
        return log_p

    def _play(self, part: dict[int, tuple[int, Ids]], chosen: Sequence[Candidates], remaining: Sequence[int]) -> None:
        """Count how many continuations of each candidate of some prefixes succeed."""
        k, plan = self._phi.k, list[tuple[int, int]]()
        flying: list[Continuation] = []
        for i, (row, written) in part.items():
            self._known[row, written] = np.zeros(len(chosen[i]))
            if not len(chosen[i]):
                continue
            parent = self._planned(row, written, plan)
            for child, (token, target) in enumerate(zip(chosen[i].tokens, chosen[i].targets, strict=True)):
                for number in range(child * k, (child + 1) * k):
                    after = (*written, token)
                    flying.append(Continuation(i, number, parent, token, target, remaining[i] - 1, after))
        # A stream per prefix: neither the other prefixes nor the order of the walks changes what is drawn after it.
        streams = {i: np.random.default_rng((self._seeds[row], len(ids), *ids)) for i, (row, ids) in part.items()}
        while flying:
            pairs = list(dict.fromkeys([*plan, *((one.parent, one.token) for one in flying)]))
            first = self._branches.trees.next_node
            arrived = {pair: place for place, pair in enumerate(pairs)}
            laws = self._branches.evaluate(pairs)
            standing: dict[int, list[Continuation]] = defaultdict(list)
            for one in flying:
                standing[arrived[one.parent, one.token]].append(one)
            drawn = {one.prefix: streams[one.prefix] for one in flying}
            uniform = {i: rng.random(k * len(chosen[i])) for i, rng in drawn.items()}
            tokens = []
            for place, here in standing.items():
                law = self._run.log_p(laws[place][None], [(part[here[0].prefix][0], here[0].written)])[0]
                numbers = [uniform[one.prefix][one.number] for one in here]
                uniforms = torch.tensor(numbers, dtype=torch.float64, device=law.device)
                tokens.append(columns_at(law.double().exp().cumsum(-1), uniforms))
            going = [(first + place, one) for place, here in standing.items() for one in here]
            moved = torch.cat(tokens).tolist()
            advanced = (
                self._advanced(one, node, token, self._known[part[one.prefix]])
                for (node, one), token in zip(going, moved, strict=True)
            )
            flying, plan = [one for one in advanced if one is not None], []
        self._branches.trees.compact(list(self._nodes.values()))

    def _advanced(self, one: Continuation, node: int, token: int, wins: NDArray[np.float64]) -> Continuation | None:
        """Return a continuation one token further; ``None`` where that ends it, a success being counted."""
        table = self._run.table
        target, left = table.advance(one.state, token, one.remaining), one.remaining - 1
        if target == DONE:
            wins[one.number // self._phi.k] += 1
            return None
        if table.guide.min_tokens(target) > left:
            return None
        return Continuation(one.prefix, one.number, node, token, target, left, (*one.written, token))

    def _planned(self, row: int, written: Ids, plan: list[tuple[int, int]]) -> int:
        """Return the node of a prefix; the pairs that have to be evaluated first are added to ``plan``."""
        depth = len(written)
        while (row, written[:depth]) not in self._nodes:
            depth -= 1
        node = self._nodes[row, written[:depth]]
        for end in range(depth + 1, len(written) + 1):
            plan.append((node, written[end - 1]))
            node = self._nodes[row, written[:end]] = self._branches.trees.next_node + len(plan) - 1
        return node

    def _count(self) -> None:
        """Add what the continuations have cost since the last step to the counts of the run."""
        run, own, before = self._run.branches.trees.counts, self._branches.trees.counts, self._counted
        run.calls += own.calls - before.calls
        run.prompt_tokens += own.prompt_tokens - before.prompt_tokens
        run.tokens += own.tokens - before.tokens
        self._counted = replace(own)


def _parts(places: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Split ``places`` so that the sizes of a part add up to at most :data:`TOGETHER`, where one alone does not exceed it."""
    part: list[int] = []
    for place in places:
        if part and sum(sizes[i] for i in part) + sizes[place] > TOGETHER:
            yield part
            part = []
        part.append(place)
    if part:
        yield part
