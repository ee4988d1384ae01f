"""Scale: thousands of schemas in one process, many clients of one server, and the requests to a model of eight billion parameters.

    python -m benchmarks.scale schemas --maskbench FILE
    python -m benchmarks.scale server                     (in the environment of make test-vllm)
    python -m benchmarks.scale counts

Each writes ``benchmarks/results/scale_*.json``, of which ``docs/scale.md`` tells. The schemas are MaskBench's (see
``benchmarks.maskbench``) and copies of them with other names of members. Linux only: resident memory is read from /proc.
"""

import json
import math
import random
import statistics
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import outlines
import psutil
import torch
import typer
from outlines.types import JsonSchema
from torch.overrides import TorchFunctionMode

import outlines_phi
from benchmarks.gpu import SAMPLERS, languages, shaped
from benchmarks.maskbench import schemas_of
from benchmarks.report import Report
from benchmarks.scaling import first_tokens
from benchmarks.schema_trials import Speller
from benchmarks.schemas import tekken_vocabulary
from outlines_phi.guides.guide import DEAD
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.numerics import distributions as transfers
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings

app = typer.Typer(add_completion=False, help=__doc__)


def resident(process: psutil.Process) -> float:
    """Return the megabytes that a process and its children hold in memory."""
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 2**20


def renamed(value: Any, end: str, names: frozenset[str]) -> Any:
    """Return a schema, or an instance, in which each of some names of members ends otherwise."""
    if isinstance(value, dict):
        parts = {name + end if name in names else name: renamed(part, end, names) for name, part in value.items()}
        if isinstance(needed := value.get("required"), list):
            parts["required"] = [name + end if isinstance(name, str) and name in names else name for name in needed]
        return parts
    return [renamed(part, end, names) for part in value] if isinstance(value, list) else value


def members(schema: Any) -> frozenset[str]:
    """Return the names of all members that a schema names, but for those that are words of JSON Schema."""
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    own = schema.get("properties") if isinstance(schema, dict) else None
    found = frozenset(own) - WORDS if isinstance(own, dict) else frozenset[str]()
    return found.union(*map(members, parts))


WORDS = frozenset(
    "$defs $id $ref $schema additionalProperties allOf anyOf const default definitions dependencies description enum "
    "format items maximum minimum maxItems minItems maxLength minLength not oneOf pattern patternProperties properties "
    "required title type".split()
)
"""The words of JSON Schema, which stay."""


@app.command()
def schemas(
    maskbench: Annotated[str, typer.Option(help="MaskBench's files, or their lines as .jsonl.gz.")],
    schemas: Annotated[int, typer.Option(help="Schemas: those of MaskBench, then copies with other names.")] = 3000,
    tokens: Annotated[int, typer.Option(help="Tokens of a valid instance that are masked, at most.")] = 16,
    rows: Annotated[int, typer.Option(help="At each so many-th of them, also what an exact draw reads.")] = 8,
    every: Annotated[int, typer.Option(help="Schemas between two looks.")] = 250,
) -> None:
    """Compile schemas in this process and mask along an instance of each; write ``scale_schemas.json``."""
    vocabulary = tekken_vocabulary()
    spell, types, device = Speller(vocabulary), CompiledTypes.of_vocabulary(vocabulary), torch.device("cpu")
    tasks = list(schemas_of(Path(maskbench)))
    warnings.simplefilter("ignore", outlines_phi.SchemaWarning)
    title = f"{len(vocabulary):,} tokens: schemas compiled in one process, and what it grew by in memory"
    report = Report("scale_schemas", title, ["schemas", "refused", "masks", "CPU s", "grown, MB", "tables kept"])
    process, refused, masks = psutil.Process(), 0, 0
    before, begun = resident(process), time.process_time()
    for number in range(schemas):
        task, end = tasks[number % len(tasks)], f"_{number // len(tasks)}" if number >= len(tasks) else ""
        names = members(task["schema"])
        try:
            table = types.of(JsonSchema(json.dumps(renamed(task["schema"], end, names))))
        except outlines_phi.errors.OutlinesPhiError:
            refused += 1
        else:
            valid = next((test["data"] for test in task["tests"] if test["valid"]), 0)
            state = table.start
            for place, token in enumerate(spell(json.dumps(renamed(valid, end, names)))[:tokens]):
                table.guide.mask(state)
                masks += 1
                if place % rows == 0:
                    table.bias(state, 1000, device), table.moves(state, 1000)
                if (state := table.guide.advance(state, token)) == DEAD:
                    break
        if not number or (number + 1) % every == 0:
            grown = resident(process) - before
            report.add(number + 1, refused, masks, time.process_time() - begun, grown, len(types._tables))
            report.write(tokens=tokens, rows=rows, **{"before, MB": round(before)})


@app.command()
def server(
    clients: Annotated[int, typer.Option(help="Clients, each of which waits for its answer.")] = 64,
    prompts: Annotated[int, typer.Option(help="Prompts of each format.")] = 16,
    seconds: Annotated[float, typer.Option(help="Seconds for which they ask.")] = 600.0,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 30.0,
    tree_mb: Annotated[int, typer.Option(help="Bound on the trees of the engine, in MB.")] = 32,
) -> None:
    import openai

    from tests.hosts.test_vllm_server import FORMATS, end, start, wait

    warnings.simplefilter("ignore", outlines_phi.errors.FitWarning)
    bound = json.dumps({"outlines_phi_max_tree_bytes": tree_mb * 2**20})
    # Blocks of 64 requests of 512 tokens: memory that fills in any case is filled soon.
    process, url = start(None, "--additional-config", bound, "--num-gpu-blocks-override", "1024")
    taken, over = list[float](), math.inf

    def ask(number: int) -> None:
        rng, client = random.Random(number), openai.OpenAI(base_url=url, api_key="-")
        model = outlines_phi.wrap(outlines.from_vllm(client, "bundled"))
        while time.monotonic() < over:
            name, begin = rng.choice(list(FORMATS)), time.monotonic()
            output_type, prompt = FORMATS[name]
            # The bundled model writes the others so seldom that clients would wait for one exact draw all the time.
            phi = rng.choice(["exact", "local"]) if name == "regex" else "local"
            model(f"{rng.randrange(prompts)}. {prompt}", output_type, phi=phi)
            taken.append(time.monotonic() - begin)

    try:
        wait(process, url).close()
        title = f"{clients} clients of one server: answers, and resident memory of it and its engine"
        report = Report("scale_server", title, ["seconds", "answers", "p50, s", "p99, s", "resident, MB"])
        looked, begun = psutil.Process(process.pid), time.monotonic()
        over, done = begun + seconds, 0
        with ThreadPoolExecutor(clients) as pool:
            asking = [pool.submit(ask, number) for number in range(clients)]
            report.add(0, 0, "", "", resident(looked))
            while time.monotonic() < over:
                time.sleep(every)
                part, done = sorted(taken[done:]), len(taken)
                quantiles = (part[len(part) // 2], part[len(part) * 99 // 100]) if part else ("", "")
                report.add(round(time.monotonic() - begun), done, *quantiles, resident(looked))
    finally:
        end(process)
    later = [row for row in report.rows if row[0] >= seconds / 3]
    slope = statistics.linear_regression([row[1] for row in later], [row[-1] for row in later]).slope
    report.write(
        clients=clients,
        prompts=prompts,
        tree_mb=tree_mb,
        **{"answers": len(taken), "KB an answer after a third": round(1024 * slope, 2)},
    )
    for each in asking:
        each.result()  # an error of a client


class Readbacks(TorchFunctionMode):
    """Counts the copies from the device that this package asks for, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller = sys._getframe(1).f_code.co_filename
        if getattr(func, "__name__", "") in ("cpu", "tolist", "item", "nonzero") and PACKAGE in caller:
            self.reads, self.bytes = self.reads + 1, self.bytes + args[0].nbytes
        return func(*args, **(kwargs or {}))


PACKAGE = str(Path(outlines_phi.__file__).parent)
KEY_MB = 36 * 2 * 8 * 128 * 2 / 2**20
"""Keys and values of a position of Qwen3 8 B: layers, both, heads, width of a head, bytes of half precision."""


@app.command()
def counts(
    batches: Annotated[str, typer.Option(help="Draws of one prompt, by comma.")] = "1,16,64",
    length: Annotated[int, typer.Option(help="Tokens of a text, at most.")] = 64,
    sizes: Annotated[str, typer.Option(help="Tokens of the vocabulary, by comma.")] = "4096,16384",
) -> None:
    """Count the calls, tokens and bytes read back of samplers, which no width of the model changes; write ``scale_counts.json``."""
    transfers.HOST = frozenset()  # the processor stands for a device whose memory the host cannot read
    columns = ["vocabulary", "sampler", "draws", "model calls", "tokens", "tokens / call", "reads / call"]
    columns += ["KB read / call", "keys and values of 8 B, MB"]
    report = Report("scale_counts", "A model of random weights: what draws ask a model for, and read back", columns)
    for vocabulary in (first_tokens(tekken_vocabulary(), int(size)) for size in sizes.split(",")):
        lm = TransformersModel(shaped("tiny", vocabulary, torch.device("cpu")), vocabulary)
        tables = languages(vocabulary)
        for name, (build, language) in SAMPLERS.items():
            for n in map(int, batches.split(",")):
                settings = SamplingSettings(max_new_tokens=length, seed=1)
                request = Request(lm=lm, table=tables[language], prompts=[(5, 6, 7)], settings=settings, n=n)
                with Readbacks() as back:
                    done = build().sample(request)[0].counts
                per_call = done.tokens / done.calls, back.reads / done.calls, back.bytes / 1024 / done.calls
                report.add(len(vocabulary), name, n, done.calls, done.tokens, *per_call, done.tokens * KEY_MB)
        report.write(batches=batches, length=length)


if __name__ == "__main__":
    app()
