"""A late bottleneck: what weighted draws are worth, at equal model tokens, of the tree's adaptive proposal and of estimators
alone.

    python -m benchmarks.bottleneck

The language is a record whose last field the model never writes, after fields of high entropy; once small enough to enumerate
(given names and ages, canonical spellings), once with free strings. *auto* is the tree's adaptive proposal that
``phi="auto"`` falls back to: its candidates, as many as one call for ``n`` draws has, from an empty tree. Estimators alone make
as many draws as cost the model tokens of the first row, with the prefix cache that all draws have.

The exact effective sample size of ``m`` draws is ``m (E w)^2 / E w^2``. ``E w = Phi`` is known by enumeration, or is the mean
of all weights of *auto*. ``E w^2`` of a fixed proposal is ``sum_y p(y)^2 / q(y)`` by enumeration where the
language allows it. Where not, that of the mask is ``E w_mask w`` over the adaptive draws, because masked draws that never
meet the heavy weights know nothing of them, and would count as far better than they are. Of all others it is the mean of
their own squared weights over all seeds; ``mean w / Phi`` beside it says whether they have met the weights that matter, and
where it is below a half nothing is said.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from rich.progress import track

import outlines_phi
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from benchmarks.report import Report
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled
from outlines_phi.phi.estimator import LocalPhi, OneStepPhi, ProposalPhi, doubling
from outlines_phi.phi.learned import LearnedPhi
from outlines_phi.phi.tree.best_first import grow_trees
from outlines_phi.phi.tree.evaluator import TreeStore
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.rejection.adaptive_proposal import MASK, ROUND, AdaptiveTrajectories
from outlines_phi.sampling.rejection.exact_sampler import TreeCall
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.languages import canonical
from outlines_phi_workbench.suite.reference import Reference, enumerate_language

PROMPT = "Person: Nora is a teacher. JSON: "


class Stalled(BaseModel):
    """A record whose last field the model never writes: the improbable part comes late, after text that differs each time."""

    name: str = Field(max_length=20)
    age: int
    colour: Literal["red", "green", "blue"]


FIXED: tuple[ProposalPhi, ...] = (LocalPhi(), OneStepPhi(), FrozenDPPhi())
LEARNING: tuple[ProposalPhi, ...] = (LearnedPhi(),)
MET = 0.5
"""Share of Phi that a proposal's own weights must have met for their square to say anything."""

CANDIDATES = outlines_phi.AutoPhi().candidates

Weights = NDArray[np.float64]


class Adaptive(NamedTuple):
    """Adaptive trajectories of a call: ``log_w``, the log weight that masking would have given each, and model tokens."""

    log_w: Weights
    log_w_mask: Weights
    tokens: int


class Row(NamedTuple):
    """A proposal: what a call costs, its draws, the logs of ``E w`` and ``E w^2``, where the latter is from, that of masking."""

    name: str
    tokens: float
    draws: int
    log_mean: float
    log_square: float
    source: str
    log_square_of_mask: float = math.nan


def small(model: Any, names: int, ages: int) -> Table:
    """Return the language of records with given names and ages, in canonical spelling."""
    given = ("Aria", "Bram", "Cleo", "Dara", "Edda", "Finn", "Greta", "Hugo", "Ines", "Jonas", "Kaya", "Leo")[:names]
    records = [
        f'{{"name": "{name}", "age": {age}, "colour": "{colour}"}}'
        for name in given
        for age in range(20, 20 + ages)
        for colour in ("red", "green", "blue")
    ]
    return canonical(records, model)


def adaptive(request: Request, total: int) -> Adaptive:
    """Return ``total`` trajectories of the adaptive proposal, from an empty tree."""
    with TreeStore().lend(*request.tree_key) as trees:
        call = TreeCall(request, trees, 2**30)
        found = AdaptiveTrajectories(trees[0], doubling(total, ROUND), partial(request.stream, 0), max_bytes=2**30)
        grow_trees([found], call.evaluator, call.foresight)
        walks = [(walk, -math.inf if walk.node is None else walk.node.log_p) for walk in found.trajectories]
        log_w = np.array([walk.log_w for walk, _ in walks])
        return Adaptive(
            log_w, np.array([log_p - walk.log_q[MASK] for walk, log_p in walks]), call.evaluator.counts.tokens
        )


def at_equal_tokens(phi: ProposalPhi, request: Request, tokens: int, most: int) -> outlines_phi.Draws:
    """Return draws that cost ``tokens`` model tokens or a few more; ``most`` where equal prefixes make that many cheaper."""
    n = 16
    while True:
        again = Request(lm=request.lm, table=request.table, prompts=request.prompts, settings=request.settings, n=n)
        (draws,) = AncestralSampler(phi).sample(again)
        if draws.counts.tokens >= tokens or n >= most:
            return draws
        n = min(most, math.ceil(n * min(2.0, max(1.02, 1.02 * tokens / draws.counts.tokens))))


def second_moment(reference: Reference, name: str) -> float:
    """Return ``log E w^2 = log sum_y p(y)^2 / q(y)``, exactly."""
    log_q = reference.log_q[name]
    return float(np.logaddexp.reduce([2 * log_p - log_q[ids] for ids, log_p in reference.log_p.items()]))


def log_mean(log_x: Weights) -> float:
    """Return the log of the mean of ``exp(log_x)``."""
    return float(np.logaddexp.reduce(log_x)) - math.log(len(log_x))


def weights(draws: Sequence[outlines_phi.Draws]) -> Weights:
    """Return the log weights of all trajectories, those that failed included."""
    return np.array([draw.log_w for one in draws for draw in one] + [-math.inf] * sum(one.failures for one in draws))


def adaptive_row(requests: Sequence[Request], total: int) -> Row:
    """Return the row of the adaptive proposal."""
    runs = [adaptive(request, total) for request in requests]
    log_w = np.concatenate([run.log_w for run in runs])
    both = np.concatenate([run.log_w + run.log_w_mask for run in runs])
    tokens = sum(run.tokens for run in runs) / len(runs)
    return Row("auto", tokens, total, log_mean(log_w), log_mean(2 * log_w), "own draws", log_mean(both))


def proposal_row(requests: Sequence[Request], phi: ProposalPhi, beside: Row, exact: Reference | None) -> Row:
    """Return the row of an estimator alone, at the tokens of ``beside``."""
    found = [at_equal_tokens(phi, request, round(beside.tokens), 8 * beside.draws) for request in requests]
    log_w = weights(found)
    tokens = sum(draws.counts.tokens for draws in found) / len(found)
    source, log_square = "own draws", log_mean(2 * log_w)
    if exact is not None:
        source, log_square = "enumeration", second_moment(exact, phi.name)
    elif phi.name == LocalPhi.name:
        source, log_square = "draws of auto", beside.log_square_of_mask
    return Row(phi.name, tokens, len(log_w) // len(found), log_mean(log_w), log_square, source)


def main(
    n: Annotated[int, typer.Option(help="Draws of a call of auto; it has 16 candidates for each.")] = 16,
    seeds: Annotated[int, typer.Option(help="Calls of each kind.")] = 8,
    names: Annotated[int, typer.Option(help="Names in the small language.")] = 12,
    ages: Annotated[int, typer.Option(help="Ages in the small language.")] = 50,
    languages: Annotated[str, typer.Option(help="Only the language whose name contains this.")] = "",
) -> None:
    """Measure and write ``benchmarks/results/bottleneck.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load())
    report = Report(
        "bottleneck",
        "A late bottleneck: exact effective sample size, against that of masked draws at equal model tokens",
        [
            "language",
            "Phi",
            "proposal",
            "tokens",
            "draws",
            "mean w / Phi",
            "exact ESS",
            "times the mask's, per token",
            "E w^2 from",
        ],
    )
    tables = (
        ("small", small(model, names, ages)),
        ("free strings", outlines_phi.Generator(model, Stalled).logits_processor.table),
    )
    prompt = tuple(model.hf_tokenizer.encode(PROMPT))
    for language, table in tables:
        if languages not in language:
            continue
        requests = [
            Request(lm=model.lm, table=table, prompts=[prompt], settings=SamplingSettings(seed=seed))
            for seed in range(seeds)
        ]
        rows = [adaptive_row(requests, n * CANDIDATES)]
        exact = None
        if language == "small":
            estimators = {phi.name: phi for phi in FIXED}
            budget, settings = requests[0].budgets[0], SamplingSettings()
            exact = enumerate_language(model.lm, table, prompt, settings, budget, estimators=estimators)
        log_phi = rows[0].log_mean if exact is None else exact.log_phi
        for phi in track((*FIXED, *LEARNING), description=f"{language}: proposals"):
            rows.append(proposal_row(requests, phi, rows[0], exact if phi in FIXED else None))
        worth = {row.name: row.draws * math.exp(2 * log_phi - row.log_square) for row in rows}
        masked = next(worth[row.name] / row.tokens for row in rows if row.name == LocalPhi.name)
        for row in rows:
            met, size = math.exp(row.log_mean - log_phi), worth[row.name]
            known = row.source != "own draws" or met >= MET
            sizes = (size, size / row.tokens / masked) if known else ("not known", "not known")
            report.add(language, math.exp(log_phi), row.name, round(row.tokens), row.draws, met, *sizes, row.source)
    report.write(n=n, candidates=CANDIDATES, seeds=seeds, prompt=PROMPT, **{"members of small": 3 * names * ages})


if __name__ == "__main__":
    typer.run(main)
