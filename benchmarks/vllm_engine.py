"""Draws on vLLM beside the engine's own generation and its own structured output: processor time and wall time, all in one run.

    PYTHONPATH=workbench python -m benchmarks.vllm_engine     (in the environment of make test-vllm)

The bundled model in single precision on one thread, the whole engine in one process. Plain generation writes as many tokens as
masked draws have.
"""

import os
import time
from collections.abc import Callable
from enum import Enum
from statistics import median
from typing import Annotated, Any

import outlines
import psutil
import typer
from outlines.types import regex
from pydantic import BaseModel
from vllm import SamplingParams

import outlines_phi
from benchmarks.hosts import spent
from benchmarks.report import Report
from outlines_phi.lm.vllm import vllm_model
from outlines_phi.vllm import ENGINE
from tests.hosts.vllm_engine import start

TEXT = regex("[a-z ,.]{80}")
STORY = 'New character: Hugo. JSON: {"name": "Hugo", "race": "elf", "role": "rogue"}\n' * 12


class Race(Enum):
    """A field of the record."""

    human, elf, dwarf, halfling = "human", "elf", "dwarf", "halfling"


class Role(Enum):
    """Another one."""

    wizard, rogue, healer, ranger = "wizard", "rogue", "healer", "ranger captain"


class Character(BaseModel):
    """A record of enums."""

    race: Race
    role: Role
    alive: bool


def timed(work: Callable[[], Any], repeats: int) -> tuple[float, float, Any]:
    """Return the median processor and wall seconds of a call, and what it gave last."""
    processor, wall, given = list[float](), list[float](), list[Any]()
    for _ in range(repeats):
        begin = time.perf_counter()
        processor.append(spent(lambda: given.append(work())))
        wall.append(time.perf_counter() - begin)
    return median(processor), median(wall), given[-1]


def main(
    prompts: Annotated[int, typer.Option(help="Prompts in one call.")] = 64,
    draws: Annotated[int, typer.Option(help="Records.")] = 128,
    repeats: Annotated[int, typer.Option(help="Of each, the median.")] = 5,
) -> None:
    """Measure and write ``vllm_engine.json``."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # processes that wait for each other take time, too
    llm = start(**ENGINE, distributed_executor_backend="uni")
    model = outlines_phi.wrap(outlines.from_vllm_offline(llm))
    texts = [f"{STORY}New character: number {i}. JSON: " for i in range(prompts)]
    report = Report(
        "vllm_engine",
        f"Draws on vLLM beside its own generation: {prompts} prompts of about {len(model._prompt_ids(texts[0]))} tokens",
        ["what", "CPU ms a node", "relative", "wall ms a node", "nodes"],
    )

    def add(what: str, cost: tuple[float, float, Any], nodes: int, own: float | None = None) -> float:
        processor, wall, _ = cost
        report.add(
            what, 1e3 * processor / nodes, processor / nodes / (own or processor / nodes), 1e3 * wall / nodes, nodes
        )
        return processor / nodes

    letters = outlines_phi.Generator(model, TEXT)
    walk = lambda: letters.sample_batch(texts, phi="local", seed=0)  # noqa: E731
    length = round(walk()[0].counts.tokens / prompts)  # compiles, and fills the cache of prefixes
    plain = SamplingParams(min_tokens=length, max_tokens=length)
    generate = lambda: llm.generate(texts, plain, use_tqdm=False)  # noqa: E731
    generate()
    own = add(f"plain generation of {length} tokens", timed(generate, repeats), prompts * length)

    def nodes() -> None:
        trees = model.lm.trees([model._prompt_ids(text) for text in texts])
        trees.roots()
        for step in range(length - 1):
            trees.extend(range(step * prompts, (step + 1) * prompts), [40 + step] * prompts)

    nodes()
    add("nodes in open requests, no sampler", timed(nodes, repeats), prompts * length, own)
    add("walks in open requests", timed(walk, repeats), prompts * length, own)
    with_requests = outlines_phi.from_vllm_offline(llm)
    with_requests.lm.sessions = vllm_model.Sessions(
        vllm_model.RequestCalls(llm), most=0, blocks=0, block_size=32, prefixes=True
    )
    again = outlines_phi.Generator(with_requests, TEXT)
    request = lambda: again.sample_batch(texts, phi="local", seed=0)  # noqa: E731
    add("walks in a request each token", timed(request, repeats), prompts * length, own)
    report.write(prompts=prompts, repeats=repeats, cores=psutil.cpu_count())

    prompt = "New character: Aria. JSON: "
    records = Report(
        "vllm_records",
        f"{draws} records of enums after one prompt",
        ["what", "CPU s", "wall s", "texts a wall second", "relative throughput"],
    )
    stock = outlines.from_vllm_offline(llm)
    usual = SamplingParams(max_tokens=60)
    exact = outlines_phi.Generator(model, Character)
    masked = lambda: stock.batch([prompt] * draws, Character, sampling_params=usual, use_tqdm=False)  # noqa: E731
    drawn = lambda: exact.sample(prompt, n=draws, phi="exact", seed=0)  # noqa: E731
    masked(), drawn()
    base = None
    for what, work in (("the engine's structured output, masked", masked), ("exact draws, from nothing", drawn)):
        processor, wall, _ = timed(work, repeats)
        base = base or wall
        records.add(what, processor, wall, draws / wall, base / wall)
    records.write(draws=draws, repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
