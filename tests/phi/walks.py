"""Every path of a small language under an estimator, one prefix at a time; an estimator that asks the model by the run's trees."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outlines_phi.guides import Guide, Table
from outlines_phi.guides.table import Moves
from outlines_phi.phi import Estimate, Prefixes, ProposalPhi, SampledRun
from tests.inner import DEAD, DONE, EOS, NEVER, Branches, Need, Partition, Row
from tests.languages import PROMPT, VOCABULARY, Language

Ids = tuple[int, ...]


def states_of(guide: Guide, depth: int) -> list[int]:
    """Every state that at most ``depth`` tokens reach: of a regular language all, of a grammar those of its first texts."""
    found, level = [guide.start], [guide.start]
    for _ in range(depth):
        targets = {guide.advance(state, v) for state in level for v in range(len(VOCABULARY))}
        level = sorted(targets - {DEAD, DONE, *found})
        found += level
    return found


def with_part(language: Language, name: str, part: object) -> Language:
    """Return a language with another model, as ``lm``, or ``table``."""
    found = replace(language)
    object.__setattr__(found, name, part)
    return found


def run_of(
    language: Language, *, prompts: Sequence[Ids] = (PROMPT,), seed: int | None = 0, **options: object
) -> SampledRun:
    """A run whose prompts are evaluated."""
    run = SampledRun(
        lm=language.lm,
        table=language.table,
        settings=language.settings(seed, **options),
        prompts=list(prompts),
        budgets=[language.budget] * len(prompts),
        branches=Branches(language.lm, prompts),
        stream=lambda row: np.random.default_rng((seed or 0, row)),
    )
    run.branches.plant()
    return run


class Step(NamedTuple):
    """One prefix: its law and ``log h`` of its children."""

    ids: Ids
    state: int
    remaining: int
    log_p: Tensor
    log_h: Tensor


def steps(run: SampledRun, estimate: Estimate, row: int = 0) -> Iterator[Step]:
    """Ask an estimator at every prefix that has any probability, in the order of depth."""
    level = [((), run.table.start, row)]
    logits = run.branches.plant()[row : row + 1].whole()
    for remaining in range(run.budgets[row], 0, -1):
        if remaining < run.budgets[row]:
            first = run.branches.trees.next_node
            logits = run.branches.evaluate([(node, ids[-1]) for ids, _, node in level]).whole()
            level = [(ids, state, node) for node, (ids, state, _) in enumerate(level, first)]
        if not level:
            return
        ids, states, nodes = (list(column) for column in zip(*level, strict=True))
        here = Prefixes([row] * len(level), nodes, states, [remaining] * len(level), [list(each) for each in ids])
        log_p = run.log_p(logits, [(row, each) for each in ids])
        scores = estimate.scores(log_p, here)
        below = []
        for (written, state, node), law, score in zip(level, log_p, scores, strict=True):
            step = Step(written, state, remaining, law, score - law)
            yield step
            for token, target in children(run.table, step):
                if target != DONE:
                    below.append(((*written, token), target, node))
        level = below


def children(table: Table, step: Step) -> list[tuple[int, int]]:
    """Tokens that are live and have any probability, with their targets."""
    moves = table.moves(step.state, step.remaining)
    pairs = zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True)
    return [(token, target) for token, target in pairs if step.log_p[token] > -math.inf]


class Path(NamedTuple):
    """One member: ``log p(y)``, ``log q(y)``, and the sum of ``log S(y_t) - log h(y_{t+1})``."""

    ids: Ids
    log_p: float
    log_q: float
    log_w: float


def paths(language: Language, phi: ProposalPhi, **options: object) -> list[Path]:
    """Every member of a language with its law under an estimator."""
    run = run_of(language, **options)
    found, begun = [], {(): Path((), 0.0, 0.0, 0.0)}
    for step in steps(run, phi.begin(run)):
        path = begun.pop(step.ids)
        log_s = float(torch.logsumexp(step.log_p + step.log_h.nan_to_num(-math.inf, neginf=-math.inf), -1))
        for token, target in children(run.table, step):
            log_p, log_h = float(step.log_p[token]), float(step.log_h[token])
            # A child without h is never drawn, and no weight makes up for it.
            log_q = log_p + log_h - log_s if log_h > -math.inf else -math.inf
            log_w = path.log_w + log_s - log_h if log_h > -math.inf else -math.inf
            child = Path((*step.ids, token), path.log_p + log_p, path.log_q + log_q, log_w)
            if target == DONE:
                found.append(child)
            else:
                begun[child.ids] = child
    return found


def mean_weight(found: Sequence[Path]) -> float:
    """``E[w]``, summed over all paths."""
    return math.fsum(math.exp(path.log_q + path.log_w) for path in found if path.log_q > -math.inf)


def true_phi(language: Language, **options: object) -> Callable[[Ids, int, int], float]:
    """``Phi(y)`` by naive recursion over tokens, of what was written, its state and the tokens left."""
    settings = language.settings(**options)

    @cache
    def phi(ids: Ids, state: int, left: int) -> float:
        if state == DONE:
            return 1.0
        if state == DEAD or left == 0:
            return 0.0
        law = law_after(language, settings, ids)
        return sum(
            law[v] * phi((*ids, v), language.table.guide.advance(state, v), left - 1) for v in range(len(law)) if law[v]
        )

    return phi


def law_after(language: Language, settings, ids: Ids) -> list[float]:  # type: ignore[no-untyped-def]
    """``p(v | y)`` of every token."""
    logits = torch.from_numpy(language.lm.logits((*PROMPT, *ids)))[None]
    return settings.log_p(logits, VOCABULARY, [(*PROMPT, *ids)])[0].exp().tolist()


def no_floor(log_h: Tensor, floor: float, ends: Tensor, live: Tensor) -> Tensor:
    """Return ``log h`` without the floor of the estimators."""
    return torch.where(ends, 0.0, log_h).masked_fill(~live, -torch.inf)


class ManyPartitions(Guide):
    """The same language with two partitions that take turns: the guide's own, and every token by itself."""

    def __init__(self, guide: Guide) -> None:
        self.guide, self.vocabulary, self.start = guide, guide.vocabulary, guide.start
        class_of = np.full(len(self.vocabulary), NEVER, dtype=np.int32)
        eos = self.vocabulary.eos_ids[0]
        others = [v for v in range(len(self.vocabulary)) if v not in self.vocabulary.eos_ids]
        class_of[eos] = EOS
        class_of[others] = EOS + 1 + np.arange(len(others))
        self._fine, self._members = Partition(class_of, EOS + 1 + len(others)), others

    def row(self, state: int) -> Row:
        row = self.guide.row(state)
        if state % 2:
            return row
        targets = row.targets[row.partition.class_of]
        return Row(
            self._fine,
            np.concatenate([[DEAD, targets[self.vocabulary.eos_ids[0]]], targets[self._members]]).astype(np.int32),
        )

    def min_tokens(self, state: int) -> int:
        return self.guide.min_tokens(state)

    def describe(self, state: int) -> str:
        return self.guide.describe(state)


def forest_of(branches: Branches) -> Any:
    """Return the tree of sequences in which the model holds the prefixes of a call."""
    return branches.trees._forest  # type: ignore[attr-defined]


@dataclass(frozen=True)
class LookingPhi(ProposalPhi):
    """``h(yv) = sum_w p(w | yv) 1[w live after yv]`` for the likeliest ``v``, held above ``floor``; ``floor`` for the others."""

    most: int = 2
    floor: float = 0.1
    name: ClassVar[str] = "looking"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def begin(self, run: SampledRun) -> Estimate:
        return LookingEstimate(self, run)


def looked_at(table: Table, state: int, remaining: int, law: Tensor, most: int) -> tuple[Moves, list[int]]:
    """The live tokens, and the places among them of those that are looked at."""
    moves = table.moves(state, remaining)
    inner = [i for i, v in enumerate(moves.tokens.tolist()) if moves.targets[i] != DONE and law[v] > -math.inf]
    return moves, sorted(inner, key=lambda i: -float(law[moves.tokens[i]]))[:most]


@dataclass(frozen=True)
class LookingEstimate(Estimate):
    phi: LookingPhi
    run: SampledRun

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        table, found, log_p = self.run.table, [], log_p.clone()
        for law, state, left in zip(log_p, prefixes.states, prefixes.remaining, strict=True):
            found.append(looked_at(table, state, left, law, self.phi.most))
        pairs = [(i, place) for i, (_, places) in enumerate(found) for place in places]
        tokens = [int(found[i][0].tokens[place]) for i, place in pairs]
        log_h = [
            torch.where(torch.from_numpy(moves.targets) == DONE, 0.0, math.log(self.phi.floor)) for moves, _ in found
        ]
        if pairs:
            nodes = [(prefixes.nodes[i], token) for (i, _), token in zip(pairs, tokens, strict=True)]
            for (i, place), token, raw in zip(pairs, tokens, self.run.branches.evaluate(nodes).whole(), strict=True):
                law = self.run.log_p(raw[None], [(prefixes.rows[i], (*prefixes.tokens[i], token))])[0]
                law = law + table.bias(int(found[i][0].targets[place]), prefixes.remaining[i] - 1, law.device)
                log_h[i][place] = max(math.log(self.phi.floor), float(law.logsumexp(-1)))
        for scores, (moves, _), h in zip(log_p, found, log_h, strict=True):
            live = torch.from_numpy(moves.tokens).to(scores.device)
            scores.copy_(torch.full_like(scores, -math.inf).index_copy_(0, live, scores[live] + h.to(scores)))
        return log_p
