"""The growth of the cost of draws: with draws of one prompt, prompts, the length of texts, and the vocabulary.

    python -m benchmarks.scaling [--python genlm/bin/python]

Processor time of one thread per draw, the model's own included, and model calls. The bundled model writes JSON where draws and
prompts grow, there also under genlm-control, where an environment has it (``benchmarks/peers/requirements.txt``): a particle of its
AWRS counts as a draw, its time is that of the clock, and its language is the expression that Outlines makes of the type. A tiny
model writes free text without a banned word, up to the limit, where length and vocabulary grow. The exponent of a sampler is the
slope of the log of its time over the log of what grows: 0 is the same cost per draw. Stock Outlines is called
once per draw, as it is used.
"""

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import numpy as np
import outlines
import torch
import typer
from outlines_core.json_schema import build_regex_from_schema

import outlines_phi
from benchmarks.draws import JOBS, NAMES, Person
from benchmarks.large_vocabulary import tiny
from benchmarks.peers.client import GenLM
from benchmarks.report import Report
from benchmarks.schemas import tekken_vocabulary
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.phi.estimator import LocalPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.phi_options import ExactPhi
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings
from outlines_phi.vocabulary.vocabulary import Vocabulary


class Made(NamedTuple):
    """The number of draws made, of their model calls, and their seconds where those of this process do not tell."""

    draws: int
    calls: int
    seconds: float | None = None


Run = Callable[[int], Made]
"""Makes draws at a size."""

END = -30.0  # Added to the logit of the end of sequence: texts reach their limit

BUDGET = 120
"""Tokens of a JSON text at most."""

STOCK = 16
"""Draws of stock Outlines at most: each costs what the one before it did."""


def plugin_runs(n_of: Callable[[int], int], prompts_of: Callable[[int], list[str]], python: str) -> dict[str, Run]:
    """Return exact, masked and stock draws of JSON on the bundled model, and those of genlm-control where there is one."""
    model, stock = outlines_phi.from_transformers(*bundled.load()), outlines.from_transformers(*bundled.load())
    plain = outlines.Generator(stock, Person)

    def ours(phi: str) -> Run:
        def run(size: int) -> Made:
            generator = outlines_phi.Generator(model, Person, phi=phi)
            draws = generator.sample_batch(prompts_of(size), n_of(size), seed=size, max_new_tokens=BUDGET)
            return Made(sum(map(len, draws)), draws[0].counts.calls)

        return run

    def masked(size: int) -> Made:
        prompts = (prompts_of(size) * n_of(size))[:STOCK]
        calls = [len(model.tokenizer.encode(plain(prompt, max_new_tokens=BUDGET))[0][0]) for prompt in prompts]
        return Made(len(prompts), sum(calls))

    runs = {"exact": ours("exact"), "local": ours("local"), "stock": masked}
    if python:
        runs["genlm-control"] = peer_runs(GenLM(python, model.lm.vocabulary.tokens), model, n_of, prompts_of)
    return runs


def peer_runs(peer: GenLM, model: Any, n_of: Callable[[int], int], prompts_of: Callable[[int], list[str]]) -> Run:
    """Return the particles of genlm-control, one request for each prompt."""
    pattern = build_regex_from_schema(json.dumps(Person.model_json_schema()))

    def run(size: int) -> Made:
        prompts = [model.tokenizer.encode(prompt)[0][0].tolist() for prompt in prompts_of(size)]
        answers = [peer.run(prompt, pattern, BUDGET, n_of(size), [1], size, cold=False) for prompt in prompts]
        calls, _, _, seconds = map(sum, zip(*(answer.costs[1] for answer in answers), strict=True))
        return Made(sum(len(answer.runs[0]) for answer in answers), int(calls), seconds)

    return run


def text_runs(table_of: Callable[[int], tuple[Table, TransformersModel, int]], n: int) -> dict[str, Run]:
    """Return exact and masked draws of free text by a tiny model."""

    def run(sampler: ExactSampler | AncestralSampler) -> Run:
        def draws(size: int) -> Made:
            table, lm, length = table_of(size)
            settings = SamplingSettings(max_new_tokens=length, seed=size)
            found = sampler.sample(Request(lm=lm, table=table, prompts=[(5, 6, 7)], settings=settings, n=n))[0]
            return Made(len(found), found.counts.calls)

        return draws

    return {"exact": run(ExactSampler(ExactPhi())), "local": run(AncestralSampler(LocalPhi()))}


def first_tokens(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """Return an end of sequence and the first tokens that write something, some of them twice where there are too few."""
    written = [token for token in vocabulary.tokens if token]
    return Vocabulary((b"", *(written[i % len(written)] for i in range(size - 1))), (0,), np.ones(size, dtype=bool))


def sections(most: int, n: int, python: str) -> Iterator[tuple[str, list[int], dict[str, Run]]]:
    """Yield the name of each quantity that grows, its sizes, and the draws that are made at each."""
    whose = [f"{name}{initial}" for initial in ("", " A", " B") for name in NAMES]
    prompts = [f"Person: {name} is a {job}. JSON: " for name in whose for job in JOBS]
    draws, many = _up_to([1, 10, 100, 1000, 10_000], most), _up_to([1, 4, 16, 64, 256], most)
    yield "draws of a prompt", draws, plugin_runs(lambda n: n, lambda _: prompts[:1], python)
    yield "prompts", many, plugin_runs(lambda _: 4, lambda size: prompts[:size], python)
    tekken = tekken_vocabulary()
    small = first_tokens(tekken, 8192)
    lm, text = TransformersModel(tiny(small, 2.0, END), small), free_text(small)
    yield "tokens of a text", _up_to([10, 30, 100, 300, 1000], most), text_runs(lambda size: (text, lm, size), n)
    sizes = _up_to([1024, 8192, 32_768, 131_072, 151_936], most)

    def of_size(size: int) -> tuple[Table, TransformersModel, int]:
        vocabulary = first_tokens(tekken, size)
        return free_text(vocabulary), TransformersModel(tiny(vocabulary, 2.0, END), vocabulary), 32

    known = {size: of_size(size) for size in sizes}
    yield "tokens of the vocabulary", sizes, text_runs(lambda size: known[size], n)


def free_text(vocabulary: Vocabulary) -> Table:
    """Return free text without a word, which ends at the limit of length."""
    return Table(PhraseGuide(vocabulary, BannedPhrases([" the"])))


def _up_to(sizes: list[int], most: int) -> list[int]:
    return [size for size in sizes if size <= most] or sizes[:1]


def main(
    most: Annotated[int, typer.Option(help="The largest size of anything.")] = 200_000,
    n: Annotated[int, typer.Option(help="Draws where something else grows.")] = 16,
    python: Annotated[str, typer.Option(help="Interpreter of an environment that has genlm-control.")] = "",
) -> None:
    """Measure and write ``benchmarks/results/scaling.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    report = Report(
        "scaling",
        "How the cost of draws grows: ms of processor time per draw, and model calls",
        ["what grows", "size", "sampler", "draws", "model calls", "ms / draw", "exponent"],
    )
    for what, sizes, runs in sections(most, n, python):
        for name, run in runs.items():
            costs: list[float] = []
            for size in sizes:
                if size == sizes[0]:
                    run(size)  # compiles
                start = time.process_time()
                made, calls, seconds = run(size)
                seconds = time.process_time() - start if seconds is None else seconds
                costs.append(1e3 * seconds / max(1, made))
                slope: Any = slope_of(sizes[: len(costs)], costs) if size == sizes[-1] else ""
                report.add(what, size, name, made, calls, costs[-1], slope)
    report.write(n=n, most=most)


def slope_of(sizes: list[int], costs: list[float]) -> float | str:
    """Return the slope of ``log(cost)`` over ``log(size)``."""
    if len(sizes) < 2:
        return ""
    return float(np.polyfit([math.log(size) for size in sizes], [math.log(cost) for cost in costs], 1)[0])


if __name__ == "__main__":
    typer.run(main)
