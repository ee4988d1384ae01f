"""The distance of ways to ban phrases from the model's distribution without the phrases, and the rate of their leaks.

    python -m benchmarks.ban_distances

Every text within the budget is enumerated, so a method's distribution is known and TV and leak are exact. What this package
draws is compared with the distribution that its method should have, beside the limit under which 95 of 100 such sets of draws
of the distribution itself stay. The page of banned phrases shows the result: ``python -m benchmarks.ban_page``.
"""

import math
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from rich.progress import track

from benchmarks.bans import methods
from benchmarks.bans.cases import Case, random_case, roles, tactics
from benchmarks.bans.methods import Distribution
from benchmarks.report import Report
from outlines_phi.fidelity.findings import frequencies, noise_limit, total_variation
from outlines_phi.phi.estimator import LocalPhi
from outlines_phi.phi.tree.evaluator import TreeStore
from outlines_phi.sampling.draws import Draws
from outlines_phi.sampling.phi_options import ExactPhi, LookaheadPhi
from outlines_phi.sampling.resolve import sampler_for

CANDIDATES = 100
"""Weighted draws of which one is picked."""

REPEATS = 400
"""Sets of draws of a distribution by which its noise is measured."""

NOTHING, ONE_SPELLING, EVERY_SPELLING, MASK, REWIND, EARLY, WINDOWS, WEIGHTED, EXACT = (
    "nothing banned",
    "bad_words_ids, the tokenizer's own tokens",
    "bad_words_ids, every tokenization",
    "mask",
    "rewind and ban",
    'lookahead, release="early"',
    "lookahead",
    f"weighted, {CANDIDATES} draws",
    "exact",
)

OURS = {
    MASK: LocalPhi(),
    EARLY: LookaheadPhi(release="early"),
    WINDOWS: LookaheadPhi(),
    WEIGHTED: LookaheadPhi(weights=True),
    EXACT: ExactPhi(),
}
"""The estimators of this package."""

LEAKY = (ONE_SPELLING, EVERY_SPELLING)
COMPARED = (*LEAKY, MASK, REWIND, EARLY, WINDOWS, WEIGHTED)
"""Methods in the order of the tables; what bans nothing has the distance ``1 - Phi``, and ``exact`` none."""

COLUMNS = [
    "case",
    "Phi",
    "method",
    "TV to mu*",
    "leak",
    "stuck",
    "innocent texts",
    "of mu*",
    "TV of draws",
    "noise limit",
    "mean w / Phi",
]


class Checked(NamedTuple):
    """The statistics of draws: TV to the distribution they should have, the limit of noise, and ``mean(w) / Phi``, where known."""

    tv: float | str = ""
    limit: float | str = ""
    mean: float | str = ""


def distributions(case: Case) -> dict[str, Distribution]:
    """Return the distribution of each method."""
    root, size = case.texts, len(case.lm.vocabulary)
    windows, weights = methods.windows(root)
    return {
        NOTHING: methods.unconstrained(root),
        ONE_SPELLING: methods.bad_words(root, case.spellings, case.prompt, size),
        EVERY_SPELLING: methods.bad_words(root, case.every_spelling, case.prompt, size),
        MASK: methods.masked(root),
        REWIND: methods.rewound(root, case.phrases),
        EARLY: methods.early(root),
        WINDOWS: windows,
        WEIGHTED: methods.resampled(windows, weights, CANDIDATES),
        EXACT: methods.conditioned(root),
    }


def distance(distribution: Distribution, truth: Distribution) -> float:
    """Return the total variation; what a distribution lacks to 1 is an outcome of its own."""
    return total_variation(distribution, truth) + abs(1 - math.fsum(distribution.values())) / 2


def check(case: Case, method: str, found: dict[str, Distribution], phi: float, n: int) -> Checked:
    """Draw ``n`` texts as ``method`` does here and compare them with its distribution; weighted draws with ``mu*``, by their
    weights.
    """
    if method not in OURS:
        return Checked()
    (draws,) = sampler_for(OURS[method], TreeStore()).sample(case.request(n, seed=1))
    ids = [draw.token_ids for draw in draws]
    if method == WEIGHTED:
        limit = noise_limit(found[EXACT], round(draws.ess), repeats=REPEATS)
        return Checked(total_variation(frequencies(ids, draws.weights), found[EXACT]), limit, mean_weight(draws) / phi)
    stuck = [()] * draws.failures  # no text has no tokens
    distribution = found[method] | {(): max(0.0, 1 - math.fsum(found[method].values()))}
    mean = mean_weight(draws) / phi if method == MASK else ""
    return Checked(
        total_variation(frequencies(ids + stuck), distribution),
        noise_limit(distribution, len(ids) + len(stuck), repeats=REPEATS),
        mean,
    )


def mean_weight(draws: Draws) -> float:
    """Return ``mean(w)``, draws that failed included."""
    return float(np.exp(draws.log_w).sum() / (len(draws) + draws.failures))


def rows(case: Case, n: int) -> Iterator[list[object]]:
    """Yield the row of each method."""
    ends = {text.ids: text for text in case.texts.walk() if text.over}
    found = distributions(case)
    phi = math.fsum(p for ids, p in found[NOTHING].items() if not ends[ids].banned)

    def innocent(distribution: Distribution) -> float | str:
        if not case.innocent:
            return ""
        return math.fsum(
            p
            for ids, p in distribution.items()
            if case.innocent in b"".join(ends[ids].spelled) and not ends[ids].banned
        )

    for method, distribution in found.items():
        leak = math.fsum(p for ids, p in distribution.items() if ends[ids].banned)
        stuck = max(0.0, 1 - math.fsum(distribution.values()))
        stuck = stuck if stuck > 1e-9 else 0.0  # what rounding leaves
        shares = innocent(distribution), innocent(found[EXACT])
        checked = check(case, method, found, phi, n) if n else Checked()
        yield [case.name, phi, method, distance(distribution, found[EXACT]), leak, stuck, *shares, *checked]


def random_row(case: Case) -> list[object]:
    """Return the row of a random distribution: the distance of each method, and the leaks of those that leak."""
    banned = {text.ids for text in case.texts.walk() if text.over and text.banned}
    found = distributions(case)
    leaks = {
        method: math.fsum(p for ids, p in distribution.items() if ids in banned)
        for method, distribution in found.items()
    }
    phrases = ", ".join(phrase.decode() for phrase in case.phrases)
    distances = [distance(found[method], found[EXACT]) for method in COMPARED]
    return [case.name, phrases, 1 - leaks[NOTHING], *distances, *(leaks[method] for method in LEAKY)]


def main(
    n: Annotated[int, typer.Option(help="Draws of each method of this package in each named case.")] = 10_000,
    distributions: Annotated[int, typer.Option(help="Random distributions.")] = 300,
    top_k: Annotated[int, typer.Option(help="Of the bundled model's tokens.")] = 8,
) -> None:
    """Enumerate and write ``ban_distances.json`` and ``ban_random_distances.json``."""
    torch.set_num_threads(1)
    report = Report(
        "ban_distances", "Ways to ban phrases: distance from the conditioned distribution, and leaks", COLUMNS
    )
    for case in track([tactics(9.0), tactics(1.2e10), roles(top_k)], description="named cases"):
        for row in rows(case, n):
            report.add(*row)
    report.write(n=n, top_k=top_k, candidates=CANDIDATES)
    columns = ["distribution", "phrases", "Phi", *COMPARED, *(f"leak of {method}" for method in LEAKY)]
    report = Report("ban_random_distances", "Random distributions: TV to mu*, and leaks", columns)
    for seed in track(range(distributions), description="random distributions"):
        report.add(*random_row(random_case(seed)))
    report.write(distributions=distributions, candidates=CANDIDATES)


if __name__ == "__main__":
    typer.run(main)
