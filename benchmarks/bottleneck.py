"""A late bottleneck: what weighted draws are worth, at equal model tokens, of the tree's adaptive proposal and of estimators alone.

    python -m benchmarks.bottleneck

The language is a record whose last field the model never writes, after fields of high entropy; once small enough to enumerate (given names
and ages, canonical spellings), once with free strings. The adaptive proposal is what ``phi="auto"`` falls back to: its candidates, as
many as one call for ``n`` draws has, from an empty tree. All others make as many draws as cost the same model tokens, with the prefix
cache that all draws have.

The exact effective sample size of ``m`` draws is ``m (E w)^2 / E w^2``. ``E w = Phi`` is known by enumeration, or is the mean of all
adaptive weights. ``E w^2`` of a fixed proposal is ``sum_y p(y)^2 / q(y)`` by enumeration where the language allows it. Where not, that of
the mask is ``Phi E_mu*[p / q_mask]``, averaged over the adaptive draws by their weights: masked draws that never meet the heavy weights
know nothing of them, and would count as far better than they are. Of proposals that learn it is the mean of their own weights over all
seeds; ``mean w / Phi`` beside it says whether they have met the weights that matter (1 if they have).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.progress import track

import outlines_phi
from benchmarks.auto import PROMPT, Stalled
from benchmarks.report import Report
from outlines_phi.fidelity.languages import of_canonical
from outlines_phi.fidelity.reference import Reference, enumerate_language
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled
from outlines_phi.phi.estimator import ProposalPhi
from outlines_phi.phi.frontier import grow
from outlines_phi.phi.frozen import FrozenDPPhi
from outlines_phi.phi.learned import LearnedPhi
from outlines_phi.phi.local import LocalPhi
from outlines_phi.phi.onestep import OneStepPhi
from outlines_phi.phi.store import TreeStore
from outlines_phi.sampling.adaptive import AdaptiveTrajectories
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.exact import prepare
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings

FIXED: tuple[ProposalPhi, ...] = (LocalPhi(), OneStepPhi(), FrozenDPPhi())
LEARNING: tuple[ProposalPhi, ...] = (LearnedPhi(),)
CANDIDATES = outlines_phi.AutoPhi().candidates

Weights = NDArray[np.float64]


class Adaptive(NamedTuple):
    """Adaptive trajectories of one call: ``log_w``, the weight that masking would have given each, and model tokens."""

    log_w: Weights
    log_w_mask: Weights
    tokens: int


def small(model: Any, names: int, ages: int) -> Table:
    """Return the language of records with given names and ages, in canonical spelling."""
    given = ("Aria", "Bram", "Cleo", "Dara", "Edda", "Finn", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leo")[:names]
    records = [
        f'{{"name": "{name}", "age": {age}, "colour": "{colour}"}}'.encode()
        for name in given
        for age in range(20, 20 + ages)
        for colour in ("red", "green", "blue")
    ]
    return Table(of_canonical(records, model.hf_tokenizer.encode, model.lm.vocabulary))


def adaptive(request: Request, total: int) -> Adaptive:
    """Return ``total`` trajectories of the adaptive proposal, from an empty tree."""
    with TreeStore().lend(*request.law, request.prompts, request.budgets, None) as trees:
        evaluator = prepare(request, trees)
        found = AdaptiveTrajectories(trees[0], total, partial(request.stream, 0), max_bytes=2**30)
        grow([found], evaluator)
        kept = [(walk.log_w, walk.node) for walk in found.trajectories]
        log_p = np.array([-math.inf if node is None else node.log_p for _, node in kept])
        log_q_mask = np.array([walk.log_q_mask for walk in found.trajectories])
        return Adaptive(np.array([log_w for log_w, _ in kept]), log_p - log_q_mask, evaluator.counts.tokens)


def at_equal_tokens(phi: ProposalPhi, request: Request, tokens: int) -> outlines_phi.Draws:
    """Return draws that cost ``tokens`` model tokens, or a few more."""
    n = 16
    while True:
        again = Request(lm=request.lm, table=request.table, prompts=request.prompts, settings=request.settings, n=n)
        (draws,) = AncestralSampler(phi).sample(again)
        if draws.counts.tokens >= tokens:
            return draws
        n = math.ceil(n * min(2.0, max(1.02, 1.02 * tokens / draws.counts.tokens)))


def second_moment(reference: Reference, name: str) -> float:
    """Return ``log E w^2 = log sum_y p(y)^2 / q(y)``, exactly."""
    log_q = reference.log_q[name]
    return float(np.logaddexp.reduce([2 * log_p - log_q[ids] for ids, log_p in reference.log_p.items()]))


def log_mean(log_x: Weights) -> float:
    """Return the log of the mean of ``exp(log_x)``."""
    return float(np.logaddexp.reduce(log_x)) - math.log(len(log_x))


def weights(draws: Sequence[outlines_phi.Draws]) -> Weights:
    """Return the log weights of all trajectories, those that failed included."""
    found = [draw.log_w for one in draws for draw in one]
    return np.array(found + [-math.inf] * sum(one.failures for one in draws))


def main(
    n: Annotated[int, typer.Option(help="Draws of a call of auto; it has 16 candidates for each.")] = 16,
    seeds: Annotated[int, typer.Option(help="Calls of each kind.")] = 8,
    names: Annotated[int, typer.Option(help="Names in the small language.")] = 12,
    ages: Annotated[int, typer.Option(help="Ages in the small language.")] = 50,
) -> None:
    """Measure and write ``benchmarks/results/bottleneck.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load())
    report = Report(
        "bottleneck",
        "A late bottleneck: exact effective sample size at equal model tokens",
        [
            "language",
            "proposal",
            "Phi",
            "tokens",
            "draws",
            "mean w / Phi",
            "exact ESS",
            "times the mask's",
            "E w^2 from",
        ],
    )
    languages = (
        ("small", small(model, names, ages)),
        ("free strings", outlines_phi.Generator(model, Stalled).logits_processor.table),
    )
    for language, table in languages:
        prompt = tuple(model.hf_tokenizer.encode(PROMPT))
        requests = [
            Request(lm=model.lm, table=table, prompts=[prompt], settings=SamplingSettings(seed=seed))
            for seed in range(seeds)
        ]
        runs = [adaptive(request, n * CANDIDATES) for request in track(requests, description=f"{language}: adaptive")]
        log_w = np.concatenate([run.log_w for run in runs])
        tokens = round(sum(run.tokens for run in runs) / seeds)
        exact = None
        if language == "small":
            budget, settings = requests[0].budgets[0], SamplingSettings()
            estimators = {phi.name: phi for phi in FIXED}
            exact = enumerate_language(model.lm, table, prompt, settings, budget, estimators=estimators)
        log_phi = log_mean(log_w) if exact is None else exact.log_phi
        rows: list[tuple[str, int, float, float, str]] = [
            ("auto's adaptive", n * CANDIDATES, log_mean(log_w), log_mean(2 * log_w), "own draws")
        ]
        for phi in (*FIXED, *LEARNING):
            found = [
                at_equal_tokens(phi, request, tokens)
                for request in track(requests, description=f"{language}: {phi.name}")
            ]
            own = weights(found)
            source, moment = "own draws", log_mean(2 * own)
            if exact is not None and phi in FIXED:
                source, moment = "enumeration", second_moment(exact, phi.name)
            elif phi.name == LocalPhi.name:
                both = np.concatenate([run.log_w + run.log_w_mask for run in runs])
                source, moment = "adaptive draws", log_mean(both)
            rows.append((phi.name, round(len(own) / seeds), log_mean(own), moment, source))
        sizes = {name: draws * math.exp(2 * log_phi - moment) for name, draws, _, moment, _ in rows}
        for name, draws, first, _, source in rows:
            ratio = sizes[name] / sizes[LocalPhi.name]
            report.add(
                language, name, math.exp(log_phi), tokens, draws, math.exp(first - log_phi), sizes[name], ratio, source
            )
    report.write(n=n, candidates=CANDIDATES, seeds=seeds, prompt=PROMPT, **{"members of small": 3 * names * ages})


if __name__ == "__main__":
    typer.run(main)
