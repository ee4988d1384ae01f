"""Bans of phrases: what one draw costs and how far it is from the exact distribution, by look-ahead and by its rivals."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from benchmarks.bans import methods
from benchmarks.bans.cases import Case
from benchmarks.bans.methods import Distribution
from benchmarks.bans.texts import Ids
from benchmarks.control import estimate
from outlines_phi.fidelity.findings import noise_floor, total_variation
from outlines_phi.phi.estimator import LocalPhi, Phi
from outlines_phi.phi.tree.evaluator import TreeStore
from outlines_phi.sampling.phi_options import ExactPhi, LookaheadPhi
from outlines_phi.sampling.resolve import sampler_for

from .client import GenLM, Table

OURS: dict[str, tuple[Phi, int]] = {
    "ours, mask": (LocalPhi(), 1),
    "ours, look-ahead": (LookaheadPhi(), 1),
    "ours, look-ahead, 1 of 10 by weight": (LookaheadPhi(weights=True), 10),
    "ours, exact": (ExactPhi(), 1),
}
"""The estimators of this package, and the number of weighted draws that one is picked from."""

ATTEMPTS = 10_000
"""Texts after which plain rejection gives up."""

COLUMNS = ["case", "Phi", "method", "tokens a draw", "ms a draw", "TV of a draw", "floor", "leak", "no draw", "draws"]


class Found(NamedTuple):
    """Populations of texts with the log of their weights, a population a draw, and what a draw costs."""

    runs: Sequence[Sequence[tuple[Ids, float]]]
    tokens: float
    milliseconds: float | str


class Banning:
    """A case of a ban, every method on it from empty caches.

    Parameters
    ----------
    case
        A model, a prompt and phrases whose texts are all enumerated.
    n
        Draws of each method.
    """

    def __init__(self, case: Case, n: int) -> None:
        self._case, self._n = case, n
        self._root = case.texts
        self._banned = {text.ids: text.banned for text in self._root.walk() if text.over}

    @cached_property
    def mu(self) -> Distribution:
        """The distribution that is asked for."""
        return methods.conditioned(self._root)

    @cached_property
    def free(self) -> Distribution:
        """The distribution of the model itself."""
        return methods.unconstrained(self._root)

    @property
    def phi(self) -> float:
        """The probability that no phrase occurs."""
        return math.fsum(p for ids, p in self.free.items() if not self._banned[ids])

    def rows(self, peer: GenLM | None, particles: Sequence[int]) -> Iterator[list[object]]:
        """Yield the row of each method."""
        for name, (phi, candidates) in OURS.items():
            yield self._row(name, self._ours(phi, candidates))
        yield self._row("plain rejection", self._rejected())
        yield self._bad_words()
        for n in particles if peer is not None else ():
            for critic, title in ((True, "SMC, the ban as its critic"), (False, "AWRS and SMC")):
                yield self._row(f"genlm-control, {title}, N = {n}", self._particles(peer, n, critic))

    def _row(self, name: str, found: Found) -> list[object]:
        drawn = [run for run in found.runs if run]
        law = estimate(drawn)
        leak = math.fsum(p for ids, p in law.items() if self._banned[ids])
        tv: float | str = total_variation(law, self.mu) if drawn else ""
        floor: float | str = noise_floor(self.mu, len(drawn)) if drawn else ""
        none = 1 - len(drawn) / len(found.runs)
        cost = (found.tokens, found.milliseconds)
        return [self._case.name, self.phi, name, *cost, tv, floor, leak, none, len(found.runs)]

    def _ours(self, phi: Phi, candidates: int) -> Found:
        runs, tokens, start = [], [], time.process_time()
        for seed in range(self._n):
            (draws,) = sampler_for(phi, TreeStore()).sample(self._case.request(candidates, seed))
            runs.append([(draw.token_ids, math.log(w)) for draw, w in zip(draws, draws.weights, strict=True) if w > 0])
            tokens.append(draws.counts.tokens)
        return Found(runs, statistics.mean(tokens), 1e3 * (time.process_time() - start) / self._n)

    def _rejected(self) -> Found:
        """Draw texts of the model until one has no phrase; each evaluates its own tokens, the last left out."""
        outcomes = list(self.free)
        p = np.array([self.free[ids] for ids in outcomes])
        good = np.array([not self._banned[ids] for ids in outcomes])
        lengths = np.array([len(ids) - 1 for ids in outcomes])
        rng, runs, tokens = np.random.default_rng(0), [], []
        for _ in range(self._n if self.phi > 10 / ATTEMPTS else 20):
            tried = rng.choice(len(outcomes), size=min(ATTEMPTS, math.ceil(50 / self.phi)), p=p / p.sum())
            accepted = np.flatnonzero(good[tried])
            end = int(accepted[0]) if len(accepted) else len(tried) - 1
            runs.append([(outcomes[tried[end]], 0.0)] if len(accepted) else [])
            tokens.append(int(lengths[tried[: end + 1]].sum()))
        return Found(runs, statistics.mean(tokens), "")

    def _bad_words(self) -> list[object]:
        """Return the row of ``bad_words_ids``, whose distribution is summed over all texts: its processor runs as it is."""
        law = methods.bad_words(self._root, self._case.spellings, self._case.prompt, len(self._case.lm.vocabulary))
        leak = math.fsum(q for ids, q in law.items() if self._banned[ids])
        tokens = math.fsum(q * (len(ids) - 1) for ids, q in law.items())
        tv = total_variation(law, self.mu)
        return [self._case.name, self.phi, "transformers, bad_words_ids", tokens, "", tv, 0.0, leak, 0.0, "computed"]

    def _particles(self, peer: GenLM, n: int, critic: bool) -> Found:
        table, number = self._table
        answer = peer.banned(
            table, self._case.phrases, n, self._n if n == 1 else max(1, self._n // 5), 0, critic=critic
        )
        runs = [[(self._text(ids, number), log_w) for ids, log_w in run] for run in answer.runs]
        tokens = statistics.mean(cost.tokens for cost in answer.costs)
        return Found(runs, tokens, 1e3 * statistics.mean(cost.processor for cost in answer.costs))

    def _text(self, ids: Ids, number: Sequence[int]) -> Ids:
        """Return a text of the table in the tokens of the model, with the end where it has ended by itself."""
        own = tuple(number[token] for token in ids)
        return own if own in self._banned else (*own, self._eos)

    @property
    def _eos(self) -> int:
        (eos,) = self._case.lm.vocabulary.eos_ids
        return eos

    @cached_property
    def _table(self) -> tuple[Table, list[int]]:
        """The model as a table, and the token of the model that each of its tokens is."""
        texts = [text for text in self._root.walk() if not text.banned or text.longer]
        number = sorted({token for text in texts for token in text.ids} - {self._eos})
        place = {token: i for i, token in enumerate(number)}
        rows = []
        for text in texts:
            if text.ids[-1:] == (self._eos,):
                continue
            after = {place.get(longer.ids[-1], len(number)): longer.p for longer in text.longer} or {len(number): 1.0}
            rows.append(([place[token] for token in text.ids], list(after), list(after.values())))
        tokens = [self._case.lm.vocabulary.tokens[token] for token in number]
        budget = self._case.settings.max_new_tokens
        assert budget is not None
        return Table(tokens, rows, budget), number
