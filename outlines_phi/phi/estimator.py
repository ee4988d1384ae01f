"""Estimators of future validity: their interface, what they may read of a call, and those that look at most one step ahead."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final, get_args

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedError
from ..guides.phrases.phrase_guide import BanningGuide
from ..guides.table import LiveTokens, Table
from ..lm.model import LanguageModel
from ..numerics.checks import Checked, Share
from ..numerics.distributions import Exchange, Rows, add_rows, runs
from ..settings import SamplingSettings
from ..vocabulary.vocabulary import Partition
from .branches import Branches
from .state_values import KeptValues

Need = Literal["guide", "logits", "model"]


class Prefixes(NamedTuple):
    """The distinct prefixes of one step, in the order of the rows of their distributions."""

    rows: Sequence[int]  # The prompt of each, by its number
    nodes: Sequence[int]  # Their nodes in the run's branches
    states: Sequence[int]  # Their guide states
    remaining: Sequence[int]  # The tokens that each may still write
    tokens: Sequence[Sequence[int]]  # The tokens that each has written
    # Which of them stand on drafts, where there are any: whether a walk comes to one of these is found out after the
    # step, see `reached`.
    drafted: Sequence[bool] = ()


def doubling(total: int, first: int) -> list[int]:
    """Return the sizes of the rounds of ``total`` walks, between which a proposal learns: each as large as all before."""
    rounds: list[int] = []
    while (done := sum(rounds)) < total:
        rounds.append(min(max(first, done), total - done))
    return rounds


@final
@dataclass(frozen=True)
class SampledRun:
    """One call of a sampler, as an estimator sees it."""

    lm: LanguageModel
    table: Table
    settings: SamplingSettings
    prompts: Sequence[tuple[int, ...]]  # Token ids
    budgets: Sequence[int]  # The most tokens after each prompt
    branches: Branches  # The prefixes evaluated in this run
    # A random stream per prompt, for estimators that draw; keyed by the call's seed, apart from those of the draws
    stream: Callable[[int], np.random.Generator]

    def log_p(self, logits: Tensor, prefixes: Iterable[tuple[int, Sequence[int]]]) -> Tensor:
        """Return ``log p``, ``[n, V]``, of raw ``logits`` after ``(prompt number, written tokens)``."""
        contexts = ((*self.prompts[row], *tokens) for row, tokens in prefixes)
        return self.settings.log_p(logits, self.lm.vocabulary, contexts)


class Phi(ABC):
    """A choice of ``h``, the stand-in for future validity ``Phi`` (theory.md, section 3).

    Any ``h`` is a proposal, ``q_h(v|y) = p(v|y) h(yv) / S(y)``; fidelity comes from what corrects for it: the tree and its
    rejection, or weights.
    """

    name: ClassVar[str]  # Its name in a call: `phi="onestep"`
    # Its inputs. An estimator that needs only the guide and the current logits runs anywhere, also inside a logits
    # processor; one that needs the model runs in samplers of this package.
    needs: ClassVar[frozenset[Need]] = frozenset(get_args(Need))


class Estimate(ABC):
    """An estimator at work in one run; it may hold what it has found, and ask the model by the run's branches."""

    # Whether an answer depends on its step alone, so that steps whose answer is not needed may be left out
    stateless: ClassVar[bool] = False

    @abstractmethod
    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        """Return ``log p + log h`` of every next token, ``[B, V]``.

        ``log_p``: ``[B, V]`` log probabilities, one row per prefix, to be read and not written.

        The scores are ``-inf`` on tokens that cannot be completed within the budget; ``log h = 0`` at the end of sequence.
        """

    def step(self, prefixes: Prefixes, exchange: Exchange) -> Callable[[Tensor], Tensor]:
        """Return :meth:`scores` of a step as a function of ``log_p``; what the estimator sends and is told travels with the step.

        Where it is not overridden, an estimator that may learn from what it sees sees it when it is checked, by a read of its own.
        """

        def scores(log_p: Tensor) -> Tensor:
            if not self.stateless:
                exchange.answer.read()
            return self.scores(log_p, prefixes)

        return scores

    def reached(self, places: Sequence[int]) -> None:  # noqa: B027 - most estimators learn nothing
        """Take note that walks have come to some of the drafted prefixes of the last step; from the others nothing is learned."""

    def learn(self) -> None:  # noqa: B027 - most estimators learn nothing
        """Use the observations so far from now on; called between rounds of walks."""


def scores_alone(estimate: Estimate, log_p: Tensor, prefixes: Prefixes) -> Tensor:
    """Return the scores of an estimator that overrides :meth:`Estimate.step`, with transfers of their own."""
    exchange = Exchange(Rows.all(log_p))
    scores = estimate.step(prefixes, exchange)(log_p)
    exchange.read()
    return scores


class ProposalPhi(Phi):
    """An estimator that a walk can follow token by token."""

    def keeping(self, values: KeptValues) -> ProposalPhi:
        """Return the estimator with what a model keeps for it between calls; itself where it learns nothing."""
        return self

    def rounds(self, n: int) -> Sequence[int]:
        """Return the number of ``n`` walks that begin together, round by round; more than one round where it learns from walks."""
        return (n,)

    @abstractmethod
    def begin(self, run: SampledRun) -> Estimate:
        """Return the estimator at work in ``run``."""


class StepPhi(ProposalPhi):
    """An estimator that answers for one step at a time, from the guide and the current logits.

    Its ``h`` depends on the class of a token only, so that it costs one gather per row.
    """

    def check(self, table: Table, settings: SamplingSettings) -> None:  # noqa: B027 - most estimators answer for everything
        """Raise :class:`UnsupportedError` where the estimator cannot answer for a guide and settings."""

    @abstractmethod
    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """Return ``log h`` of each class of the partition of ``state``: ``[n, G]`` float, or ``[G]`` where all rows have the same.

        ``log_p``: ``[n, V]`` log probabilities, each row summing to 1.
        ``state``, ``remaining``: the guide state of all of them, and the tokens that may still be written.

        The values are ``-inf`` on classes that cannot be completed within the budget, 0 at the end of sequence.
        """

    def scores(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        """Return ``log p + log h``, ``[B, V]``; see :meth:`Estimate.scores`. Neighbours of one state are treated together."""
        scores = torch.empty_like(log_p)
        for (state, left), part in runs(zip(states, remaining, strict=True)):
            log_h, few = self.log_h(log_p[part], table, state, left), table.few_live(state, left, log_p.device)
            add_by_class(log_p[part], log_h, table.partition(state), few, out=scores[part])
        return scores

    def begin(self, run: SampledRun) -> Estimate:
        self.check(run.table, run.settings)
        return StepEstimate(self, run.table)


@final
@dataclass(frozen=True)
class StepEstimate(Estimate):
    """A step estimator in a run: it holds nothing."""

    phi: StepPhi
    table: Table
    stateless: ClassVar[bool] = True

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        return self.phi.scores(log_p, self.table, prefixes.states, prefixes.remaining)


def add_by_class(log_p: Tensor, log_h: Tensor, partition: Partition, few: LiveTokens | None, out: Tensor) -> None:
    """Write ``log_p``, ``[n, V]``, plus ``log_h`` of the class of each token, ``[n, G]`` or ``[G]``, to ``out``.

    ``log_h`` is ``-inf`` on dead classes.
    """
    log_h = log_h.to(log_p.dtype)
    if few is None:
        torch.add(log_p, partition.spread(log_h), out=out)
    else:
        kept = log_p.index_select(-1, few.tokens) + log_h.index_select(-1, few.classes)
        out.fill_(-torch.inf).index_copy_(-1, few.tokens, kept)


def live_mass(log_p: Tensor, partition: Partition, few: LiveTokens | None) -> Tensor:
    """Return the probability of each live class, ``[n, G]``, under ``log_p``, ``[n, V]``; that of a dead class means nothing."""
    if few is None:
        return partition.mass(log_p.softmax(-1))  # half the time of exp on a CPU
    p = log_p.index_select(-1, few.tokens).exp()
    return p.new_zeros(len(p), partition.size).index_add_(-1, few.classes, p)


def floored(log_h: Tensor, floor: float, ends: Tensor, live: Tensor) -> Tensor:
    """Return ``log h`` of live classes, held above ``floor`` times the largest among them; 0 at ends, ``-inf`` where dead.

    An ``h`` of 0 where ``Phi`` is not would lose mass: ``E[w] < Phi`` (theory.md, section 3.1). The floor is relative to the
    siblings, because all of them may be tiny, and only their proportions matter to a step. Where none has any value all have 1.
    """
    dead = ~live
    inner = log_h.masked_fill(ends | dead, -torch.inf)
    least = (inner.amax(-1, keepdim=True) + math.log(floor)).nan_to_num(neginf=0.0)
    return torch.maximum(inner, least).masked_fill_(ends, 0.0).masked_fill_(dead, -torch.inf)


@final
@dataclass(frozen=True)
class LocalPhi(StepPhi):
    """``h(yv) = 1[yv can be completed]``: the distribution of plain masking, ``mu_proj``, with weights.

    Exact when at every reachable prefix all live next tokens have equal ``Phi``.
    """

    name: ClassVar[str] = "local"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """Return 0 for live classes; see :meth:`StepPhi.log_h`."""
        live = torch.from_numpy(table.live_classes(state, remaining)).to(log_p.device)
        return torch.zeros(live.shape, device=log_p.device).masked_fill(~live, -torch.inf)

    def scores(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        """Return ``log p`` of live tokens, by the cached bias row of each state; see :meth:`StepPhi.scores`."""
        bias = [table.bias(state, left, log_p.device) for state, left in zip(states, remaining, strict=True)]
        return add_rows(log_p, bias, out=torch.empty_like(log_p))


@final
@dataclass(frozen=True)
class OneStepPhi(Checked, StepPhi):
    """``h(yv) = sum_w p(w | y) 1[w live after yv]``: the current distribution stands in for the next one, at no model call.

    Exact when the distribution does not depend on its context and validity is decided in one step. As a proposal without weights it
    is often *worse* than plain masking (14 of 21 measured languages): current logits rate only the next slot, so
    tokenizations that split a token look good. Use its weights.

    Attributes
    ----------
    floor
        ``h`` of a live token is at least this share of the largest among its siblings, so that ``h`` is positive wherever ``Phi``
        is. Where no token ends the text, no choice multiplies a weight by more than its inverse (theory.md, section 3.1).
    """

    floor: Share = 1e-3
    name: ClassVar[str] = "onestep"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits"})

    def check(self, table: Table, settings: SamplingSettings) -> None:
        """See :meth:`StepPhi.check`: the classes of a state have to be those of the next one, too."""
        if isinstance(table.guide, BanningGuide):
            raise UnsupportedError(
                f"phi={self.name!r} was given with banned phrases, beside which each state has vocabulary classes of its own, and "
                "one step cannot be looked ahead by classes. Give phi='local', 'learned' or another proposal, or 'lookahead'."
            )

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """See :meth:`StepPhi.log_h`. One segmented sum and one small product; logits do as well as log probabilities."""
        step = table.one_step(state, remaining, log_p.device)
        p = log_p.softmax(-1)
        after = [group.partition.mass(p).double() @ group.live.T for group in step.groups]
        log_h = torch.cat(after, -1).log().index_select(-1, step.places)  # [n, T], one per target, then [n, G]
        return floored(log_h, self.floor, step.ends, step.live)
