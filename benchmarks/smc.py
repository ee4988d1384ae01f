"""Sequential Monte Carlo with 50 particles on the bundled model: model calls per step, and what it adds to a step.

    python -m benchmarks.smc

A *step* takes all particles one token further: one model call, then the plain step that masked draws have too (the distribution of
each prefix, ``log p + log h``, one choice per particle). *Bookkeeping* is all the rest of a call: launching particles,
weights, when and whom to resample, copies, giving back the memory of prefixes that nobody stands on, and the populations at
the end. It is measured as the processor time of the call less that of its steps, within the same run.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from pydantic import BaseModel, Field
from rich.progress import track

import outlines_phi
from benchmarks.peers.meter import Meter
from benchmarks.report import Report
from outlines_phi.lm import bundled
from outlines_phi.phi.estimator import LocalPhi, OneStepPhi, ProposalPhi
from outlines_phi.sampling.ancestral import SMC, SMCSampler
from outlines_phi.sampling.sampler import Request
from outlines_phi.sampling.stepper import Stepper
from outlines_phi.settings import SamplingSettings

PROMPT = "Person: Nora is a baker. JSON: "
LIMIT = 0.1


class Person(BaseModel):
    """A record with free bounded strings."""

    name: str = Field(max_length=30)
    age: int
    city: str = Field(max_length=30)


OPTIONS: dict[str, Callable[[int], SMC]] = {
    "never": lambda particles: SMC(particles=particles),
    "ess, threshold 0.5": lambda particles: SMC(particles=particles, resample="ess"),
    "ess, after every step": lambda particles: SMC(particles=particles, resample="ess", threshold=1.0),
}
PROPOSALS: tuple[ProposalPhi, ...] = (LocalPhi(), OneStepPhi())


@contextmanager
def steps_timed() -> Iterator[list[float]]:
    """Yield a list that gets the seconds of every step, model call included."""
    seconds: list[float] = []

    def timed(method: Callable[..., None]) -> Callable[..., None]:
        def step(*args: Any) -> None:
            start = time.thread_time()
            method(*args)
            seconds.append(time.thread_time() - start)

        return step

    with mock.patch.multiple(Stepper, advance=timed(Stepper.advance)):
        yield seconds


def main(
    particles: Annotated[int, typer.Option(help="Particles of a run.")] = 50,
    repeats: Annotated[int, typer.Option(help="Calls of each kind.")] = 20,
) -> None:
    """Measure and write ``benchmarks/results/smc.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load())
    table = outlines_phi.Generator(model, Person).logits_processor.table
    prompt = tuple(model.hf_tokenizer.encode(PROMPT))
    assert model.lm.road == "packed"  # read before the meter runs: the model is tried out for it
    meter = Meter(model.model)
    report = Report(
        "smc",
        f"Sequential Monte Carlo with {particles} particles: what it adds to a step (medians)",
        [
            "resample",
            "proposal",
            "steps",
            "model calls per step",
            "step, ms",
            "bookkeeping, ms a step",
            "share of the step",
            "limit",
        ],
    )
    for name, options in OPTIONS.items():
        for phi in PROPOSALS:
            sampler = SMCSampler(phi, options(particles))
            rows = []
            for seed in track(range(repeats + 1), description=f"{name}, {phi.name}"):
                request = Request(lm=model.lm, table=table, prompts=[prompt], settings=SamplingSettings(seed=seed))
                calls = meter.calls
                with steps_timed() as seconds:
                    start = time.thread_time()
                    sampler.sample(request)
                    total = time.thread_time() - start
                assert meter.calls - calls == len(seconds), "a step makes one model call"
                rows.append((len(seconds), total / len(seconds), (total - sum(seconds)) / len(seconds)))
            steps, step, rest = (statistics.median(column) for column in zip(*rows[1:], strict=True))
            report.add(name, phi.name, steps, 1, 1e3 * step, 1e3 * rest, rest / step, LIMIT)
    report.write(type="name, age, city; strings of at most 30", prompt=PROMPT, repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
