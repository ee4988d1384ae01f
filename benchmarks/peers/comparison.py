"""The tables of ``benchmarks.peers``, a language at a time."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.control import Distribution, Ours, doubling, estimate, mean, without
from benchmarks.report import Report
from outlines_phi.fidelity.findings import frequencies, noise_floor, total_variation

from .client import Cost, GenLM, Population
from .languages import Language
from .masks import Walk, compared
from .stock import BACKENDS, Pool, Stock

LEVELS = (100, 1000)
"""Model tokens at which total variations are compared."""

DRAWN = {
    "ours, exact": ("exact", {}),
    "ours, auto": ("auto", {}),
    "ours, exact, drafted": ("exact", {"draft": "forced"}),
}
"""The estimators of this package."""

ASSISTED, REJECTION, READ = "transformers, assisted", "plain rejection", "ours, probabilities"

COLUMNS = ["language", "Phi", "method", "compile, ms", "calls", "tokens", "ms", "TV of a draw", "floor", "draws"]
COLUMNS += [f"{what} at {level} tokens" for level in LEVELS for what in ("TV", "draws", "floor")]


class Step(NamedTuple):
    """A point of a curve: after so many draws, for so many model tokens, the total variation of the estimate."""

    draws: int
    tokens: float
    tv: float


class Sizes(NamedTuple):
    """The numbers of draws: of ours, of peers, one by one where a call writes one text, and in how many repeats."""

    draws: int = 256
    pool: int = 1024
    single: int = 24
    assisted: int = 96
    particles: int = 512
    repeats: int = 4


class Peers:
    """The comparison.

    Parameters
    ----------
    ours, stock, peer
        The sides; ``None`` where genlm-control is left out.
    particles
        Particles of its runs.
    sizes
        The numbers of draws.
    """

    def __init__(self, ours: Ours, stock: Stock, peer: GenLM | None, particles: Sequence[int], sizes: Sizes) -> None:
        self._ours, self._stock, self._peer, self._particles, self._sizes = ours, stock, peer, particles, sizes
        self.draw = Report("peers", "One draw by this package and by its peers, and what many are worth", COLUMNS)
        columns = ["language", "method", "draws", "tokens", "TV", "floor"]
        self.curves = Report("peers_curves", "Total variation after so many model tokens", columns)
        columns = [
            "language",
            "backend",
            "prefixes",
            "too few",
            "too many",
            "a token that is missing",
            "assisted decoding",
        ]
        self.masks = Report("peers_masks", "Masks of Outlines' backends against those of this package", columns)

    def add(self, language: Language) -> None:
        """Measure one language."""
        sizes = self._sizes
        compiling = time.process_time()
        table = language.generator(self._ours.model).logits_processor.table
        compiling = time.process_time() - compiling
        phi, mu = language.distribution(self._ours.model)
        row = Row(self, language, phi, mu)
        for name, (estimator, options) in DRAWN.items():
            runs, costs = self._ours.draw(language, estimator, 1, range(sizes.draws), **options)
            curve = [] if options else self._drawn(language, estimator, mu)
            row.add(name, compiling, mean(costs), estimate(runs), len(runs), curve)
        points = self._ours.distribution(language, mu, 1)
        row.add(READ, compiling, None, None, 0, [Step(0, point.cost.tokens, point.tv) for point in points])
        prompt = self._ours.prompt(language)
        for backend in BACKENDS:
            pool = self._stock.masked(language, backend, sizes.pool, sizes.single)
            row.add_pool(f"Outlines, {backend}", pool)
            self._add_masks(language, language.pattern, backend, backend, table, prompt)
        if "|" in language.pattern and "[" not in language.pattern:
            longest = "|".join(sorted(language.pattern.split("|"), key=len, reverse=True))
            self._add_masks(language, longest, BACKENDS[0], f"{BACKENDS[0]}, longest first", table, prompt)
        walk = Walk(table, language.budget, len(prompt), self._stock.tokenizer.eos_token_id)
        row.add_pool(ASSISTED, self._stock.assisted(language, walk, sizes.assisted))
        row.add_pool(REJECTION, self._stock.rejected(language, sizes.pool, sizes.single), accepted=phi)
        for n in self._particles if self._peer is not None else ():
            self._add_particles(row, self._peer, language, n, mu)

    def _drawn(self, language: Language, phi: str, mu: Distribution) -> list[Step]:
        checkpoints = doubling(self._sizes.pool)
        curve = self._ours.curve(language, mu, phi, checkpoints, self._sizes.repeats)
        return [Step(n, point.cost.tokens, point.tv) for n, point in zip(checkpoints, curve, strict=True)]

    def _add_masks(
        self, language: Language, pattern: str, backend: str, name: str, table: Any, prompt: Sequence[int]
    ) -> None:
        generator = language.generator(self._ours.model, phi="local")
        draws = generator.sample(language.prompt, self._sizes.draws, seed=0, max_new_tokens=language.budget)
        texts = sorted({draw.token_ids for draw in draws})
        processor, _ = self._stock.processor(pattern, backend)
        size = self._stock.model.config.vocab_size
        prefixes, differing, example = compared(table, language.budget, processor, prompt, texts, size)
        assisted = (
            self._stock.assisted_backend(language, backend, min(10, self._sizes.assisted)) if name == backend else ""
        )
        self.masks.add(language.name, name, prefixes, differing["fewer"], differing["more"], example, assisted)

    def _add_particles(self, row: Row, peer: GenLM, language: Language, n: int, mu: Distribution) -> None:
        prompt, sizes = self._ours.prompt(language), self._sizes
        request = (prompt, language.pattern, language.budget, n)
        checkpoints = doubling(max(4, sizes.particles // n // sizes.repeats))
        answers = [peer.run(*request, checkpoints, seed, cold=False) for seed in range(sizes.repeats)]
        cold = peer.run(*request, [sizes.single], sizes.repeats, cold=True)
        cost = without(mean(list(cold.costs.values())), len(prompt))
        runs = [run for answer in answers for run in answer.runs]
        curve = []
        for m in checkpoints:
            tokens = mean([answer.costs[m] for answer in answers]).tokens - len(prompt)
            curve.append(Step(m * n, tokens, min(readings([answer.runs[:m] for answer in answers], mu))))
        name = "genlm-control, AWRS" if n == 1 else f"genlm-control, AWRS and SMC, N = {n}"
        row.add(name, max(answer.compile for answer in answers), cost, estimate(runs), len(runs), curve)


def readings(repeats: Sequence[Sequence[Population]], mu: Distribution) -> Iterator[float]:
    """Yield the total variation of the mean of the populations, and of all particles by their weights; means over repeats."""
    yield statistics.mean(total_variation(estimate(runs), mu) for runs in repeats)
    pooled = ([[particle for run in runs for particle in run]] for runs in repeats)
    yield statistics.mean(total_variation(estimate(runs), mu) for runs in pooled)


def chunks(pool: Pool, mu: Distribution) -> list[Step]:
    """Return the curve of independent texts: means over as many disjoint parts as there are, 32 at most.

    Its draws are those that were accepted.
    """
    curve, accepted = [], sum(text is not None for text in pool.texts) / len(pool.texts)
    for n in doubling(len(pool.texts)):
        starts = range(0, len(pool.texts) - n + 1, n)
        parts = [[text for text in pool.texts[start : start + n] if text is not None] for start in starts[:32]]
        tvs = [total_variation(frequencies(part), mu) if part else 1.0 for part in parts]
        curve.append(Step(round(n * accepted), n * pool.cost.tokens, statistics.mean(tvs)))
    return curve


class Row:
    """The row of a method in each of the two tables of a language."""

    def __init__(self, peers: Peers, language: Language, phi: float, mu: Distribution) -> None:
        self._draw, self._curves = peers.draw, peers.curves
        self._name, self._phi, self._mu = language.name, phi, mu

    def add_pool(self, method: str, pool: Pool, accepted: float = 1.0) -> None:
        """Add independent texts; a draw is expected to cost what a text does over the probability that one is ``accepted``."""
        texts = [text for text in pool.texts if text is not None]
        law = frequencies(texts) if texts else None
        cost = Cost(*(spent / accepted for spent in pool.cost))
        self.add(method, pool.compile, cost, law, len(texts), chunks(pool, self._mu))

    def add(
        self,
        method: str,
        compiling: float,
        cost: Cost | None,
        law: Mapping[str, float] | None,
        draws: int,
        curve: Sequence[Step],
    ) -> None:
        """Add a method: what one draw costs and how it is distributed, and the curve of many."""
        for step in curve:
            self._curves.add(self._name, method, step.draws, step.tokens, step.tv, self._floor(step.draws))
        spent = ("", "", "") if cost is None else (cost.calls, cost.tokens, 1e3 * cost.processor)
        tv = "" if law is None else total_variation(law, self._mu)
        cells = itertools.chain.from_iterable(self._at(curve, level) for level in LEVELS)
        floor = self._floor(draws)
        self._draw.add(self._name, self._phi, method, 1e3 * compiling, *spent, tv, floor, draws, *cells)

    def _at(self, curve: Sequence[Step], level: int) -> tuple[Any, Any, Any]:
        """Return the last step for at most so many tokens."""
        steps = [step for step in curve if step.tokens <= level]
        return (steps[-1].tv, steps[-1].draws or "", self._floor(steps[-1].draws)) if steps else ("", "", "")

    def _floor(self, draws: int) -> float | str:
        return noise_floor(self._mu, draws) if draws else ""
