"""Draws on vLLM beside the engine's own generation and its own structured output: processor time and wall time, all in one run.

    python -m benchmarks.vllm_engine     (in the environment of make test-vllm)

The bundled model in single precision on one thread. Nodes of plain generation are its tokens; those of draws are what the engine
evaluated for them, drafts and failed attempts among them.
"""

from __future__ import annotations

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
from vllm import SamplingParams, TokensPrompt

import outlines_phi
from benchmarks.hosts import spent
from benchmarks.report import Report
from outlines_phi.lm.vllm import engine_calls, vllm_model
from tests.hosts.vllm_engine import engine

LENGTH = 40  # Tokens of a text
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
    llm = engine()
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

    given = [TokensPrompt(prompt_token_ids=list(model._prompt_ids(text))) for text in texts]
    plain = SamplingParams(min_tokens=LENGTH, max_tokens=LENGTH, detokenize=False)
    generate = lambda: llm.generate(given, plain, use_tqdm=False)  # noqa: E731
    free = outlines_phi.Generator(model, regex(f"(.|\\n){{{LENGTH},{8 * LENGTH}}}"))
    walk = lambda: free.sample_batch(texts, phi="local", seed=0, max_new_tokens=LENGTH + 1)  # noqa: E731
    generate(), walk()  # warm up, compile, fill the cache of prefixes
    own = add("plain generation", timed(generate, repeats), prompts * LENGTH)
    cost = timed(walk, repeats)
    add("walks in open requests", cost, cost[2][0].counts.tokens, own)
    with_requests = outlines_phi.from_vllm_offline(llm)
    with_requests.lm._sessions = vllm_model.Sessions(
        engine_calls.RequestCalls(llm), most=0, blocks=0, block_size=32, prefixes=True
    )
    again = outlines_phi.Generator(with_requests, free.output_type)
    cost = timed(lambda: again.sample_batch(texts, phi="local", seed=0, max_new_tokens=LENGTH + 1), repeats)
    add("walks in a request each token", cost, cost[2][0].counts.tokens, own)
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
    drawn = lambda: (model.clear_cache(), exact.sample(prompt, n=draws, phi="exact", seed=0))  # noqa: E731
    masked(), drawn()
    base = None
    for what, work in (("the engine's structured output, masked", masked), ("exact draws, nothing kept", drawn)):
        processor, wall, _ = timed(work, repeats)
        base = base or wall
        records.add(what, processor, wall, draws / wall, base / wall)
    records.write(draws=draws, repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
