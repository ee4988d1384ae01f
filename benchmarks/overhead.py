"""The cost of a call beside the model: the work that grows with neither draws nor tokens nor prefixes nor kept trees.

    python -m benchmarks.overhead

Reading the options, reading the prompt, looking the tree up, one walk down to a draw, making the result. It is measured where
nothing else is left: a finite type whose tree is kept, so that a call makes no model call at all. Two columns give what the same
calls take when the model does answer: a cold tree, in which one model call evaluates the prompt and every live prefix (its
forward is timed on its own and subtracted), and plain calls beside those of stock Outlines. Processor time of the one thread in
which all of it runs, so that other work on the machine counts little.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import outlines
import torch
import typer
from pydantic import BaseModel

import outlines_phi
from benchmarks.report import Report
from outlines_phi.lm import bundled

PROMPT = "Question: is the bakery open on Monday? Answer: "


BLOCK = 10
"""Calls of a kind that follow one another, as those of an application do."""


class Vote(BaseModel):
    """A record of 235 live prefixes: spellings are many."""

    y: Literal[0, 1]


TYPES: dict[str, Any] = {
    "yes, no": Literal["yes", "no"],
    "four roles": Literal["ranger", "rogue", "wizard", "warrior"],
    "pydantic, one field": Vote,
}


class Clock:
    """The processor seconds that the model itself takes, by hooks around its forward."""

    def __init__(self, hf_model: Any) -> None:
        self.seconds = 0.0
        self._start = 0.0
        hf_model.register_forward_pre_hook(self._begin)
        hf_model.register_forward_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self._start = time.thread_time()

    def _end(self, *_: Any) -> None:
        self.seconds += time.thread_time() - self._start


def calls_of(model: Any, stock: Any, output_type: Any) -> dict[str, Callable[[], object]]:
    """Return the calls that are compared."""
    generator = outlines_phi.Generator(model, output_type, phi="exact")
    plain = outlines.Generator(stock, output_type)
    ids = torch.tensor([model._prompt_ids(PROMPT)])
    return {
        "forward": torch.inference_mode()(lambda: model.model(ids)),
        "kept": lambda: generator(PROMPT),
        "model": lambda: model(PROMPT, output_type, phi="exact"),
        "auto": lambda: generator(PROMPT, phi="auto"),
        "cold": lambda: generator(PROMPT, seed=1),
        "none": lambda: generator(PROMPT, phi=None, max_new_tokens=32),
        "stock": lambda: plain(PROMPT, max_new_tokens=32),
    }


def medians(
    works: dict[str, Callable[[], object]], clocks: list[Clock], repeats: int
) -> dict[str, tuple[float, float]]:
    """Return the median milliseconds of each work, outside of the model and inside; the works take turns, ten times each."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for repeat in range(repeats // BLOCK):
        for name, work in (work for work in works.items() for _ in range(BLOCK)):
            inside = sum(clock.seconds for clock in clocks)
            start = time.thread_time()
            work()
            total = time.thread_time() - start
            inside = sum(clock.seconds for clock in clocks) - inside
            if repeat:
                times[name].append((1e3 * (total - inside), 1e3 * inside))
    return {name: tuple(statistics.median(part) for part in zip(*found, strict=True)) for name, found in times.items()}


def main(
    repeats: Annotated[int, typer.Option(help="Calls of each kind, taken in turn.")] = 100,
    kept: Annotated[int, typer.Option(help="Trees of other prompts that are kept meanwhile.")] = 500,
) -> None:
    """Measure and write ``overhead.json``."""
    torch.set_num_threads(1)
    model = outlines_phi.from_transformers(*bundled.load())
    stock = outlines.from_transformers(*bundled.load())
    clocks = [Clock(model.model), Clock(stock.model)]
    report = Report(
        "overhead",
        "The fixed overhead of a call, ms of processor time (median) outside of the model",
        [
            "type",
            "forward of the prompt",
            "generator(p), kept tree",
            "model(p, T), kept tree",
            f"generator(p), {kept} other trees",
            "auto, kept tree",
            "generator(p), cold tree",
            "forward of prompt and tree",
            "generator(p, phi=None)",
            "stock Outlines",
        ],
    )

    for name, output_type in TYPES.items():
        calls = calls_of(model, stock, output_type)
        found = medians(calls, clocks, repeats)
        for i in range(0, kept, 100):
            model.batch([f"Question {i + j}: " for j in range(min(100, kept - i))], output_type, phi="exact")
        among = medians({"kept": calls["kept"], "forward": calls["forward"]}, clocks, repeats)["kept"][0]
        model.clear_cache()
        report.add(
            name,
            found["forward"][1],
            found["kept"][0],
            found["model"][0],
            among,
            found["auto"][0],
            *found["cold"],
            found["none"][0],
            found["stock"][0],
        )
    report.write(repeats=repeats, prompt=PROMPT)


if __name__ == "__main__":
    typer.run(main)
