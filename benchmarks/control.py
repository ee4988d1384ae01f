"""Forward passes, model tokens and time to equal total variation, against genlm-control's AWRS and sequential Monte Carlo.

    python -m venv genlm && genlm/bin/pip install -r benchmarks/peers/requirements.txt
    python -m benchmarks.control --python genlm/bin/python

Both sides draw from the same small languages after the same prompts of the bundled model, at temperature 1 and with the same
budget, which no member of a language reaches. What is aimed at is ``mu*`` over texts, computed by enumeration to within 1e-6.
The model is counted by one hook on it, the same code for both sides; the prompt's tokens, which both evaluate once, are taken
off. The peer keeps keys and values of the prompt alone and evaluates a text anew from there: *distributions* are the prefixes
that it evaluates, what it would pay in tokens if it kept them all. Seconds do not include the building of guides and
conditions.

``control_draw.json``: **one draw of a prompt**, from empty caches. The distribution of a draw (of the peer: of one particle
picked by weight from N; the mean of the normalised populations of many runs, which has less noise than as many picks) against
``mu*``, and what a draw costs. The peer *reaches* ``mu*`` where its distance is one that as many exact draws stay under in 95 %
of all cases. Ratios: of ours to it.

``control_many.json``: **many draws of one prompt**, caches kept between the peer's runs. After 1, 2, 4, ... runs its estimate
of ``mu*`` is read from all of them in the better of two ways: the mean of the populations, and all particles by their weights,
which also weighs runs by their evidence. Ours makes 1, 2, 4, ... draws in one call with an empty tree; the estimate is their
weighted frequency. *distribution* is the package's own way to an estimate of ``mu*``, which draws nothing: ``probabilities`` to
a tolerance of 1/2, 1/4, 1/8, ..., each from an empty tree. Total variations hold the noise that a user would see; curves are
means over repeats. A row compares them where the peer reaches a total variation: the *best* of its curve (taken where the curve
first comes within 5 % of it, so that it does not pay for a flat tail), and 0.1. Of ours the first point counts that is at
most what the peer *has* there; nothing is interpolated in our favour. *Least* is the number of texts that hold all of ``mu*``
but that total variation: whether a text ends where it does is told by the distribution after it and by nothing else, so whoever
reads fewer distributions has more than that to guess.
"""

import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.progress import track

import outlines_phi
from benchmarks.peers.client import Cost, GenLM, Population
from benchmarks.peers.languages import LANGUAGES, Language
from benchmarks.peers.meter import Meter
from benchmarks.report import Report
from outlines_phi.fidelity.findings import frequencies, noise_limit, total_variation
from outlines_phi.lm import bundled

DRAWS, LAW = "exact", "distribution"
WAYS = (DRAWS, LAW)
TOLERANCES = [2.0**-k for k in range(1, 11)]
LEVELS = {"best": 0.0, "0.1": 0.1}

Distribution = Mapping[str, float]


class Point(NamedTuple):
    """The distance that a side has reached, and its cost for that: means over repeats."""

    tv: float
    cost: Cost


class Ours:
    """The package on the bundled model, with the meter on it."""

    def __init__(self) -> None:
        self.model = outlines_phi.from_transformers(*bundled.load())
        self.meter = Meter(self.model.model)

    def draw(
        self, language: Language, phi: str, n: int, seeds: Sequence[int], **options: Any
    ) -> tuple[list[Population], list[Cost]]:
        """Return ``n`` draws for each seed, each call with an empty tree, and what each call cost."""
        results, costs = self._measured(language, language.generator(self.model, phi=phi, **options).sample, seeds, n=n)
        return [[(draw.text, draw.log_w) for draw in draws] for draws in results], costs

    def distribution(self, language: Language, mu: Distribution, repeats: int) -> list[Point]:
        """Return the distance from ``mu*`` of the probabilities at each tolerance, and their cost."""
        generator, points = language.generator(self.model), []
        for tolerance in TOLERANCES:
            results, costs = self._measured(language, generator.probabilities, range(repeats), tolerance=tolerance)
            found = {text: entry.p for text, entry in results[0].items()}
            points.append(Point(total_variation(found, mu), mean(costs)))
        return points

    def _measured(
        self, language: Language, call: Callable[..., Any], seeds: Sequence[int], **options: Any
    ) -> tuple[list[Any], list[Cost]]:
        """Return the results of ``call`` for each seed, which has it begin with an empty tree, and the cost of each."""
        call(language.prompt, max_new_tokens=language.budget, seed=0)  # compiles, and checks the model
        prompt, results, costs = len(self.prompt(language)), [], []
        for seed in seeds:
            before, start, busy = self.meter.read(), time.perf_counter(), time.process_time()
            results.append(call(language.prompt, max_new_tokens=language.budget, seed=seed, **options))
            seconds, processor = time.perf_counter() - start, time.process_time() - busy
            calls, tokens, sequences = (b - a for a, b in zip(before, self.meter.read(), strict=True))
            costs.append(Cost(calls, tokens - prompt, sequences, seconds, processor))
        return results, costs

    def prompt(self, language: Language) -> list[int]:
        """Return the prompt's token ids."""
        return self.model.hf_tokenizer.encode(language.prompt)

    def curve(
        self, language: Language, mu: Distribution, phi: str, checkpoints: Sequence[int], repeats: int
    ) -> list[Point]:
        """Return the distances that 1, 2, 4, ... draws reach, and their costs."""
        points = []
        for n in checkpoints:
            runs, costs = self.draw(language, phi, n, range(repeats))
            points.append(Point(statistics.mean(total_variation(estimate([run]), mu) for run in runs), mean(costs)))
        return points


def estimate(runs: Sequence[Population]) -> dict[str, float]:
    """Return the mean of the populations of runs, each normalised; runs that failed altogether are left out."""
    pooled: dict[str, float] = {}
    kept = [run for run in runs if run]
    for run in kept:
        top = max(log_w for _, log_w in run)
        for outcome, share in frequencies([x for x, _ in run], [math.exp(log_w - top) for _, log_w in run]).items():
            pooled[outcome] = pooled.get(outcome, 0.0) + share / len(kept)
    return pooled


def mean(costs: Sequence[Cost]) -> Cost:
    """Return the mean cost."""
    return Cost(*(statistics.mean(column) for column in zip(*costs, strict=True)))


def without(cost: Cost, prompt: int) -> Cost:
    """Return the peer's cost without the prompt, which it evaluates in a call of its own."""
    return cost._replace(tokens=cost.tokens - prompt, sequences=cost.sequences - 1)


def doubling(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``most``."""
    return [2**k for k in range(most.bit_length())]


def first(curve: Sequence[Point], level: float) -> Point | None:
    """Return the first point at or below a total variation."""
    return next((point for point in curve if point.tv <= level), None)


def levels(curve: Sequence[Point]) -> Iterator[tuple[str, Point | None]]:
    """Yield each level with the first point of the peer's curve that reaches it, ``None`` where none does."""
    best = 1.05 * min(point.tv for point in curve)
    for name, level in LEVELS.items():
        yield name, first(curve, level or best)


def least(mu: Distribution, tv: float) -> int:
    """Return the least number of texts that hold all of ``mu`` but ``tv``."""
    return min(len(mu), 1 + sum(mass < 1 - tv for mass in itertools.accumulate(sorted(mu.values(), reverse=True))))


def ratios(ours: Cost, theirs: Cost) -> tuple[float, float, float, float]:
    """Return our calls, tokens (to tokens and to distributions) and time, each divided by the peer's."""
    return (
        ours.calls / theirs.calls,
        ours.tokens / theirs.tokens,
        ours.tokens / theirs.sequences,
        ours.seconds / theirs.seconds,
    )


class Comparison:
    """The two tables, a language at a time.

    Parameters
    ----------
    ours, peer
        The two sides.
    runs
        Runs of the peer, and cold draws of ours, that the distribution of one draw is read from.
    most
        Particles of all kept runs together at most, where that leaves 16 runs, and a quarter of our draws.
    repeats
        Repeats of a curve.
    """

    def __init__(self, ours: Ours, peer: GenLM, *, runs: int, most: int, repeats: int) -> None:
        self._ours, self._peer, self._runs, self._most, self._repeats = ours, peer, runs, most, repeats
        columns = [
            "language", "Phi", "sampler", "TV of a draw", "reached", "calls", "tokens", "distributions", "ms",
            "ours, calls / its", "tokens / its", "tokens / its distributions", "time / its",
        ]  # fmt: skip
        self.draw = Report("control_draw", "One draw of a prompt, against genlm-control", columns)
        compared = ("TV", "tokens / its", "tokens / its distributions", "time / its")
        columns = [
            "language", "N", "level", "TV of genlm-control", "least", "its tokens", "its distributions", "its ms",
            *(f"{way}, {what}" for way in WAYS for what in compared),
        ]  # fmt: skip
        self.many = Report("control_many", "Many draws of one prompt to equal TV, against genlm-control", columns)

    def add(self, language: Language, particles: Sequence[int]) -> None:
        """Measure one language."""
        phi, mu = language.distribution(self._ours.model)
        limit = noise_limit(mu, self._runs)
        runs, spent = self._ours.draw(language, DRAWS, 1, range(self._runs))
        ours = mean(spent)
        self._add_draw(language, phi, DRAWS, runs, mu, limit, ours, ["", "", "", ""])
        curves = {
            DRAWS: self._ours.curve(language, mu, DRAWS, doubling(4 * self._most), self._repeats),
            LAW: self._ours.distribution(language, mu, self._repeats),
        }
        prompt = self._ours.prompt(language)
        for n in track(particles, description=language.name):
            request = (prompt, language.pattern, language.budget, n)
            kept = max(16, self._most // n, math.ceil(self._runs / self._repeats))
            answers = [self._peer.run(*request, doubling(kept), seed, cold=False) for seed in range(self._repeats)]
            cold = self._peer.run(*request, [16], self._repeats, cold=True)
            cost = without(mean(list(cold.costs.values())), len(prompt))
            runs = [run for answer in answers for run in answer.runs]
            title = f"genlm-control, N = {n}"
            self._add_draw(language, phi, title, runs, mu, limit, cost, list(ratios(ours, cost)))
            curve = [
                self._point(
                    [answer.runs[:m] for answer in answers],
                    mu,
                    [without(answer.costs[m], len(prompt)) for answer in answers],
                )
                for m in doubling(kept)
            ]
            for level, point in levels(curve):
                self._add_many(language, n, level, point, curves, mu)

    @staticmethod
    def _point(repeats: Sequence[Sequence[Population]], mu: Distribution, costs: Sequence[Cost]) -> Point:
        """Return a point of the peer's curve, by the better of its two readings."""
        readings = (
            [estimate(runs) for runs in repeats],
            [estimate([[particle for run in runs for particle in run]]) for runs in repeats],
        )
        return Point(
            min(
                statistics.mean(total_variation(distribution, mu) for distribution in distributions)
                for distributions in readings
            ),
            mean(costs),
        )

    def _add_draw(
        self,
        language: Language,
        phi: float,
        name: str,
        runs: Sequence[Population],
        mu: Distribution,
        limit: float,
        cost: Cost,
        compared: list[Any],
    ) -> None:
        tv = total_variation(estimate(runs), mu)
        distributions = cost.tokens if name == DRAWS else cost.sequences
        row = (cost.calls, cost.tokens, distributions, 1e3 * cost.seconds)
        self.draw.add(language.name, phi, name, tv, "yes" if tv <= limit else f"no (> {limit:.2g})", *row, *compared)

    def _add_many(
        self,
        language: Language,
        n: int,
        level: str,
        point: Point | None,
        curves: Mapping[str, Sequence[Point]],
        mu: Distribution,
    ) -> None:
        if point is None:
            return self.many.add(language.name, n, level, "not reached", *[""] * (4 + 4 * len(WAYS)))
        row: list[Any] = [
            point.tv,
            least(mu, point.tv),
            point.cost.tokens,
            point.cost.sequences,
            1e3 * point.cost.seconds,
        ]
        for name in WAYS:
            mine = first(curves[name], point.tv)
            row += ["not reached", *[""] * 3] if mine is None else [mine.tv, *ratios(mine.cost, point.cost)[1:]]
        self.many.add(language.name, n, level, *row)


def main(
    python: Annotated[str, typer.Option(help="Interpreter of the environment that has genlm-control.")],
    particles: Annotated[str, typer.Option(help="Particles of a run, one table row for each.")] = "1 5 10 50",
    runs: Annotated[int, typer.Option(help="Runs that the distribution of one draw is read from.")] = 512,
    most: Annotated[int, typer.Option(help="Particles of all kept runs of a curve together, at most.")] = 1024,
    repeats: Annotated[int, typer.Option(help="Repeats of a curve, from empty caches.")] = 4,
    languages: Annotated[str, typer.Option(help="Only languages whose name contains this.")] = "",
) -> None:
    """Measure and write ``control_draw.json`` and ``control_many.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", outlines_phi.FidelityWarning)
    ours = Ours()
    peer = GenLM(python, ours.model.lm.vocabulary.tokens)
    comparison = Comparison(ours, peer, runs=runs, most=most, repeats=repeats)
    for language in LANGUAGES:
        if languages in language.name:
            comparison.add(language, [int(n) for n in particles.split()])
    peer.close()
    versions = {f"its {name}": version for name, version in peer.versions.items() if name != "genlm-control"}
    settings = {"genlm-control": peer.versions["genlm-control"], "runs": runs, "most": most, "repeats": repeats}
    comparison.draw.write(**settings, **versions)
    comparison.many.write(**settings, **versions)


if __name__ == "__main__":
    typer.run(main)
