"""Backward induction over guide states and last tokens, with the distribution after each single token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..guides.guide import DEAD, DONE, UNREACHABLE, Guide, Row
from ..numerics.checks import Checked, Count, Share
from ..numerics.distributions import Exchange, runs
from ..numerics.weights import largest_change
from ..vocabulary.vocabulary import EOS, NEVER, Partition, common_refinement
from .estimator import Estimate, Prefixes, ProposalPhi, SampledRun, add_by_class, floored, scores_alone

Key = tuple[tuple[int, ...], int]  # a prompt and its budget

NODES = 128
"""Single tokens that are evaluated at a time: their distributions over a large vocabulary are the most that is held in memory."""

SETTLED = 1e-9
"""Largest relative change of any value from one budget to the next at which larger budgets count as equal.

The recursion is monotone and linear, so the change of one step bounds that of every later one.
"""


@final
@dataclass(frozen=True)
class BigramDPPhi(Checked, ProposalPhi):
    """``h_t(s, u) = sum_v p(v | prompt, u) h_{t-1}(target(s, v), v)``: the distribution after a single token ``u`` for all later
    ones.

    Exact when the distribution depends on the last token only and all tokens that the language uses are evaluated. One batch of
    model calls per prompt, at the first step, and none after it. The best cheap ``h`` on recursive languages.

    Attributes
    ----------
    tokens
        Most single tokens that are evaluated per prompt: the likeliest member of each class that the language uses, then by
        probability. Any other token has the distribution of the evaluated ones of its class in the mean, or of all where there are
        none.
    states
        Most guide states that the induction runs over, the nearest to the start first. Of what goes beyond them nothing counts
        as completed, and prefixes that lie beyond them are masked.
    max_bytes
        Bound on the memory of the values of one prompt, for all budgets: where they would take more, neighbours share theirs.
    floor
        See :class:`~outlines_phi.phi.estimator.OneStepPhi`.
    """

    tokens: Count = 256
    states: Count = 2048
    max_bytes: Count = 64 * 2**20
    floor: Share = 1e-3
    name: ClassVar[str] = "dp-bigram"

    def begin(self, run: SampledRun) -> Estimate:
        return BigramEstimate(self, run)


@final
class BigramEstimate(Estimate):
    """The inductions of the prompts of a run, made when a prompt is first asked about.

    Samplers ask about all of them at once, so that the tokens of all prompts are evaluated together, below their prompts in the
    run's trees.
    """

    def __init__(self, phi: BigramDPPhi, run: SampledRun) -> None:
        self._phi, self._run = phi, run
        self._inductions: dict[Key, Induction] = {}  # rows with equal prompts share one

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        return scores_alone(self, log_p, prefixes)

    def step(self, prefixes: Prefixes, exchange: Exchange) -> Callable[[Tensor], Tensor]:
        keys = list(map(self._key, prefixes.rows))
        # The inductions of a new prompt need its distribution; what they say of the prefixes is sent after the rest.
        values = exchange.send(*self._log_h(keys, prefixes)) if self._inductions.keys() >= {*keys} else None

        def scores(log_p: Tensor) -> Tensor:
            if values is None:
                self._begin(keys, prefixes, log_p, exchange)
            sent = values or exchange.send(*self._log_h(keys, prefixes))
            scores = torch.empty_like(log_p)
            for (key, part), log_h in zip(runs(keys), sent(), strict=True):
                add_by_class(log_p[part], log_h, self._inductions[key].partition, None, out=scores[part])
            for place, (key, state) in enumerate(zip(keys, prefixes.states, strict=True)):
                if not self._inductions[key].knows(state):
                    scores[place] += self._run.table.bias(state, prefixes.remaining[place], log_p.device)
            return scores

        return scores

    def _log_h(self, keys: Sequence[Key], prefixes: Prefixes) -> list[NDArray[np.float64]]:
        """Return ``log h`` of each class of the next tokens of the prefixes, neighbours of one prompt together."""
        states, left, floor = prefixes.states, prefixes.remaining, self._phi.floor
        return [self._inductions[key].log_h(states[part], left[part], floor) for key, part in runs(keys)]

    def _key(self, row: int) -> Key:
        return self._run.prompts[row], self._run.budgets[row]

    def _begin(self, keys: Sequence[Key], prefixes: Prefixes, log_p: Tensor, exchange: Exchange) -> None:
        """Make the inductions of new prompts; the distributions after these help to choose their tokens."""
        run, phi = self._run, self._phi
        new: dict[Key, int] = {}
        for place, (key, tokens) in enumerate(zip(keys, prefixes.tokens, strict=True)):
            if key not in self._inductions and (key not in new or not tokens):
                new[key] = place

        def space(budget: int) -> StateSpace:
            depth = 1 << (budget - 1).bit_length()  # one for neighbouring budgets
            return run.table.keep(
                ("dp-bigram", phi.states, depth),
                run.table.start,
                lambda: StateSpace(run.table.guide, phi.states, depth),
                lambda space: sum(row.targets.nbytes for row in space.rows.values()) + space.partition.class_of.nbytes,
            )

        columns: dict[int, Columns] = {}
        after_prompts = exchange.answer.read(*(log_p[place] for place in new.values()))
        for place, after_prompt in zip(new.values(), after_prompts, strict=True):
            row = prefixes.rows[place]
            # With a budget of 1 nothing but the end can be written, and the model's context may have no room for more.
            limit = phi.tokens if run.budgets[row] > 1 else 0
            columns[row] = Columns.choose(space(run.budgets[row]), after_prompt.astype(np.float64), limit)
        first = run.branches.trees.next_node
        pairs = [(row, token) for row, chosen in columns.items() for token in chosen.tokens.tolist()]
        masses: dict[int, list[NDArray[np.float64]]] = {
            row: [np.zeros((0, chosen.partition.size))] for row, chosen in columns.items()
        }
        for start in range(0, len(pairs), NODES):
            part = pairs[start : start + NODES]
            answer = run.branches.evaluate([(run.branches.roots[row], token) for row, token in part])
            law = run.log_p(answer.unchecked(range(len(part))), [(row, (token,)) for row, token in part])
            of_row = list(runs(row for row, _ in part))
            found = answer.read(*(columns[row].partition.mass(law[same].double().exp()) for row, same in of_row))
            for (row, _), mass in zip(of_row, found, strict=True):
                masses[row].append(mass)
        if first <= max(run.branches.roots) + 1:  # no other node is held yet
            run.branches.compact(())
        for row, chosen in columns.items():
            known = np.concatenate(masses[row])
            budget = run.budgets[row]
            self._inductions[self._key(row)] = Induction(space(budget), chosen, known, budget, phi.max_bytes)


@final
class StateSpace:
    """The guide states that an induction runs over, with one partition of the vocabulary for all of them.

    ``rows``, ``number``: the transitions of the explored states, and the number of each.
    ``distance``: ``min_tokens`` of every state that one of them leads to.
    ``partition``: the coarsest common refinement of their partitions, of which a grammar has many.
    ``used``: ``bool[G]``: the class is live in some state, the end of sequence left out.
    """

    def __init__(self, guide: Guide, limit: int, depth: int | None = None) -> None:
        self.rows = explore(guide, limit, depth)
        self.number = {state: i for i, state in enumerate(self.rows)}
        met = np.unique(np.concatenate([row.targets for row in self.rows.values()]))
        self.distance = {state: guide.min_tokens(state) for state in met.tolist()}
        distinct = {id(row.partition): row.partition for row in self.rows.values()}
        self.partition = common_refinement(distinct.values())  # what some state never allows, another may
        representative = np.zeros(self.partition.size, dtype=np.int64)
        representative[self.partition.class_of] = np.arange(len(self.partition.class_of))
        self.used = (self.targets(representative) != DEAD).any(0)
        self.used[[NEVER, EOS]] = False

    def targets(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ``int64[S, n]``: where each of ``tokens`` leads from each state."""
        return np.stack([row.targets[row.partition.class_of[tokens]] for row in self.rows.values()]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Columns:
    """A partition of the vocabulary that tells evaluated tokens apart."""

    tokens: NDArray[np.int64]  # The evaluated tokens; token `i` is alone in class `EOS + 1 + i`
    partition: Partition  # Beside those, one class for the rest of each class that the language uses
    representative: NDArray[np.int64]  # A member of each class; that of `NEVER` means nothing
    # `[J, n]`: the distribution after a token of class `j` is the mean of those after the evaluated tokens with
    # these weights.
    weights: NDArray[np.float64]

    @classmethod
    def choose(cls, space: StateSpace, log_p: NDArray[np.float64], limit: int) -> Columns:
        """Choose at most ``limit`` tokens: the likeliest member of every class that is used, then by ``log_p``."""
        class_of = space.partition.class_of
        tokens = np.flatnonzero(space.used[class_of])
        tokens = tokens[np.argsort(-log_p[tokens], kind="stable")]
        leading = np.zeros(len(tokens), dtype=bool)
        leading[np.unique(class_of[tokens], return_index=True)[1]] = True
        chosen = np.concatenate([tokens[leading], tokens[~leading]])[:limit]
        rest = np.setdiff1d(tokens, chosen)
        classes, place = np.unique(class_of[rest], return_inverse=True)
        column_of = np.full(len(class_of), NEVER, dtype=np.int32)
        column_of[class_of == EOS] = EOS
        column_of[chosen] = EOS + 1 + np.arange(len(chosen))
        column_of[rest] = EOS + 1 + len(chosen) + place
        size = EOS + 1 + len(chosen) + len(classes)
        representative = np.zeros(size, dtype=np.int64)
        representative[column_of] = np.arange(len(column_of))
        p = np.exp(log_p[chosen])
        weights = np.zeros((size, len(chosen)))
        weights[EOS + 1 + np.arange(len(chosen)), np.arange(len(chosen))] = 1.0
        for i, g in enumerate(classes.tolist()):
            among = class_of[chosen] == g
            among = among if among.any() else np.ones_like(among)
            # All of them may be truncated.
            share = np.where(among, p, 0.0) if p[among].sum() > 0 else among.astype(float)
            weights[EOS + 1 + len(chosen) + i] = share / share.sum()
        return cls(chosen, Partition(column_of, size), representative, weights)


@final
class Induction:
    """The values of one prompt: ``log h`` of every state, last token and remaining budget.

    Only pairs of a state and a token that leads to it have a value. ``after[n, J]`` are the masses of the classes of ``columns``
    after each of its tokens.
    """

    def __init__(
        self, space: StateSpace, columns: Columns, after: NDArray[np.float64], budget: int, max_bytes: int
    ) -> None:
        self._space, self.partition = space, columns.partition
        targets = space.targets(columns.representative)  # [S, J]
        targets[:, NEVER] = DEAD
        self._targets = targets
        distinct, place = np.unique(targets, return_inverse=True)
        place = place.reshape(targets.shape)
        number = np.array([space.number.get(target, -1) for target in distinct.tolist()], dtype=np.int64)
        # An arrival is a state and the class of a token that leads to it: -inf is the value of what is dead or unexplored.
        inside = ((number >= 0) | (distinct == DONE))[place]
        key = place * columns.partition.size + np.arange(columns.partition.size)
        arrivals, where = np.unique(key[inside], return_inverse=True)
        self._arrival = np.full(targets.shape, len(arrivals), dtype=np.int64)
        self._arrival[inside] = where
        target, column = np.divmod(arrivals, columns.partition.size)
        self._done = distinct[target] == DONE
        self._at, self._column = number[target], column
        self._masses = np.ascontiguousarray((columns.weights @ after).T)  # [J, J]: mass of each class, after each class
        self.layers = Layers(np.where(self._done, 0.0, -np.inf), self._step, budget - 1, max_bytes)
        self._distance = np.array([space.distance[state] for state in distinct.tolist()], dtype=np.int64)[place]

    def _step(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        after = log_product(np.append(values, -np.inf)[self._arrival], self._masses)  # [S, J]
        return np.where(self._done, 0.0, after[self._at, self._column])

    def knows(self, state: int) -> bool:
        """Return True if the induction runs over a state."""
        return state in self._space.number

    def log_h(self, states: Sequence[int], remaining: Sequence[int], floor: float) -> NDArray[np.float64]:
        """Return ``[n, J]``: ``log h`` of each class of next tokens; 0 for states that are not explored."""
        number = self._space.number
        places = np.array([number.get(state, 0) for state in states], dtype=np.int64)
        left = np.array([left - 1 for left in remaining], dtype=np.int64)[:, None]
        layers = {budget: np.append(self.layers.at(budget), -np.inf) for budget in set(left[:, 0].tolist())}
        pairs = zip(left[:, 0].tolist(), self._arrival[places], strict=True)
        values = np.stack([layers[budget][arrival] for budget, arrival in pairs])
        ends, live = self._targets[places] == DONE, self._distance[places] <= left
        log_h = floored(torch.from_numpy(values), floor, torch.from_numpy(ends), torch.from_numpy(live)).numpy()
        log_h[[state not in number for state in states]] = 0.0
        return log_h


def explore(guide: Guide, limit: int, depth: int | None = None) -> dict[int, Row]:
    """Return the rows of the nearest live states to the start: of all that some number of steps reaches, ``limit`` at most.

    Of texts of ``depth`` tokens at most: a machine may have ever more states behind.
    """
    rows: dict[int, Row] = {}
    level = [guide.start]
    for _ in range(min(limit, depth or limit)):  # each level has a state
        if not level or (rows and len(rows) + len(level) > limit):
            break
        rows.update((state, guide.row(state)) for state in level)
        below = np.unique(np.concatenate([rows[state].targets for state in level])).tolist()
        level = [s for s in below if s not in (DEAD, DONE) and s not in rows and guide.min_tokens(s) < UNREACHABLE]
    return rows


@final
class Layers:
    """The values of a backward induction for every remaining budget, under a bound on memory.

    Budgets beyond the one where the values settle share its layer. Where the others take more than ``max_bytes``, every second
    of them is kept, every fourth, and so on; a budget in between has the values of the next larger one.
    ``first`` are the values at budget 0, in log space; ``step`` maps those of one budget to those of the next larger one.
    """

    def __init__(
        self,
        first: NDArray[np.float64],
        step: Callable[[NDArray[np.float64]], NDArray[np.float64]],
        budget: int,
        max_bytes: int,
    ) -> None:
        self._every, self.top, last = 1, 0, first
        self._kept = {0: first}
        while self.top < budget:
            values = step(last)
            if largest_change(last, values) <= SETTLED:
                break
            self.top += 1
            last = values
            if self.top % self._every == 0:
                self._kept[self.top] = values
            while len(self._kept) > 2 and len(self._kept) * first.nbytes > max_bytes:
                self._every *= 2
                self._kept = {left: kept for left, kept in self._kept.items() if left % self._every == 0}
        self._kept[self.top] = last

    def at(self, remaining: int) -> NDArray[np.float64]:
        """Return the values for ``remaining`` tokens."""
        return self._kept[min(self.top, -(-remaining // self._every) * self._every)]

    def __len__(self) -> int:
        return len(self._kept)


def log_product(log_x: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``log(exp(log_x) @ weights)`` for ``log_x[n, k]`` and ``weights[k, m]``, each row at a scale of its own."""
    top = log_x.max(-1, keepdims=True, initial=-np.inf)
    top[top == -np.inf] = 0.0
    with np.errstate(divide="ignore"):
        return np.log(np.exp(log_x - top) @ weights) + top
