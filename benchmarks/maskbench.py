"""JSON schemas over 131k tokens, against llguidance and xgrammar in one run: what is accepted, and how long masks take.

    python -m benchmarks.maskbench --maskbench FOLDER --suite FOLDER

The data are not shipped. MaskBench (https://github.com/guidance-ai/jsonschemabench, its folder ``maskbench/data``) is a folder of
JSON files with ``schema`` and ``tests``, each of these with ``valid`` and ``data``; or their lines in one ``.jsonl.gz``. The
JSON-Schema-Test-Suite is its folder ``tests/draft2020-12``, or a ``.tar.gz`` of it; its optional tests are left out.

A schema passes where it is taken, every valid instance is accepted and every invalid one is not; an instance is written as
``json.dumps`` does, each of its tokens must be in the mask before it, and the end of sequence in the last. Every schema has a
process of its own, with bounds on its processor time and memory. It is forked from one in which the engine has prepared the
vocabulary and seen two schemas, and sees these once more. Times are of the processor. Engines are compared on what each of
them did: the schemas that all take, and of their masks those that none had made in this process.
"""

import gzip
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.report import Report
from benchmarks.schema_engines import ENGINES
from benchmarks.schema_trials import SPELLINGS, TEXTS, VERDICTS, Outcome, Speller, Trial, tried
from benchmarks.schemas import tekken_vocabulary

PEERS = ("llguidance", "xgrammar")
QUANTILES = (0.5, 0.9, 0.99, 1.0)
MILLI, MICRO = 1e3, 1e6

WARM_UP: list[dict[str, Any]] = [
    {
        "schema": {"type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "number"}}},
        "tests": [{"valid": True, "data": {"name": "a b", "count": 1.5, "other": [None, True, {"x": "y"}]}}],
    },
    {
        "schema": {"type": "array", "items": {"enum": ["a", 1]}, "maxItems": 2},
        "tests": [{"valid": True, "data": ["a", 1]}],
    },
]
"""The tasks that an engine sees before it is measured."""


def schemas_of(source: Path) -> Iterator[dict[str, Any]]:
    """Yield MaskBench's schemas with their tests, in the order of their names."""
    if source.is_dir():
        for path in sorted(source.rglob("*.json")):
            yield {"name": path.stem, **json.loads(path.read_text(encoding="utf-8"))}
        return
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        yield from sorted(map(json.loads, lines), key=lambda task: str(task.get("name")))


def suite_of(source: Path) -> Iterator[dict[str, Any]]:
    """Yield the schemas of the Test-Suite with their tests."""
    if source.is_dir():
        files = {str(path): path.read_text(encoding="utf-8") for path in source.rglob("*.json")}
    else:
        with tarfile.open(source) as archive:
            members = [member for member in archive.getmembers() if member.name.endswith(".json")]
            files = {member.name: archive.extractfile(member).read().decode() for member in members}  # type: ignore[union-attr]
    for name, text in sorted(files.items()):
        if "optional" not in Path(name).parts:
            for group in json.loads(text):
                yield {"name": f"{Path(name).stem}: {group['description']}", **group}


def measure(
    engine_name: str, tasks: Sequence[dict[str, Any]], *, texts: int, seconds: int, gigabytes: int
) -> Iterator[Outcome]:
    """Yield the outcome of each task under one engine, in forks of this process."""
    vocabulary = tekken_vocabulary()
    engine, spell = ENGINES[engine_name](vocabulary), Speller(vocabulary)

    def trial(task: dict[str, Any], texts: int, timed: bool) -> Trial:
        return Trial(engine, spell, task, texts=texts, timed=timed)

    for task in WARM_UP:
        for phase in trial(task, 1, timed=True).phases:
            phase()
    for task in tasks:
        timed = task["timed"]
        first = [trial(task, 0, timed=True) for task in WARM_UP]
        yield tried(trial(task, texts if timed else 0, timed), first, seconds=seconds, gigabytes=gigabytes)


def run(engine: str, tasks: Sequence[dict[str, Any]], arguments: Sequence[str]) -> list[Outcome]:
    """Return the outcome of each task under an engine, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.maskbench", "--only", engine, *arguments]
    outcomes = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            outcomes.append(Outcome(**json.loads(line)))
            if len(outcomes) % 25 == 0 or len(outcomes) == len(tasks):
                print(f"{engine}: {len(outcomes)} of {len(tasks)}", file=sys.stderr)
    if len(outcomes) < len(tasks):
        raise SystemExit(f"{engine} ended after {len(outcomes)} of {len(tasks)} schemas")
    return outcomes


Results = dict[str, list[tuple[dict[str, Any], Outcome]]]
"""For each engine, the tasks and what it made of them."""


def report_schemas(results: Results, settings: dict[str, Any]) -> None:
    """Report the verdicts on MaskBench's schemas, and on random texts."""
    report = Report(
        "maskbench",
        f"MaskBench: what becomes of {len(next(iter(results.values())))} JSON schemas, and of random texts of their masks",
        ["engine", *VERDICTS, *map("valid instances read, {}".format, SPELLINGS), *map("texts {}".format, TEXTS)],
    )
    for engine, pairs in results.items():
        verdicts = Counter(outcome.verdict(task) for task, outcome in pairs)
        texts = Counter(kind for _, outcome in pairs for kind in outcome.texts)
        valid = [(outcome, i) for task, outcome in pairs for i, test in enumerate(task["tests"]) if test["valid"]]
        read = Counter(
            spelling
            for outcome, i in valid
            if i < len(outcome.accepted)
            for spelling, accepted in outcome.accepted[i].items()
            if accepted
        )
        shares = [f"{read[spelling]} of {len(valid)}" for spelling in SPELLINGS]
        report.add(engine, *(verdicts[name] for name in VERDICTS), *shares, *(texts[kind] for kind in TEXTS))
    report.write(**settings)


def report_times(results: Results, settings: dict[str, Any]) -> None:
    """Report the times of masks."""
    names = ["max" if q == 1 else f"p{round(100 * q)}" for q in QUANTILES]
    report = Report(
        "maskbench_times",
        "JSON schemas over 131k tokens: ms to the first mask, microseconds of a mask along the instances, MB",
        ["engine", "schemas", *(f"ready {name}" for name in names), "masks", *(f"mask {name}" for name in names)]
        + ["memory grown, p50", "memory grown, max", "peak memory"],
    )
    trials = zip(*([outcome for _, outcome in pairs] for pairs in results.values()), strict=True)
    common = [trial for trial in trials if all(outcome.ready for outcome in trial)]
    places = [sorted(set.intersection(*(set(outcome.masks) for outcome in trial))) for trial in common]
    for engine, own in zip(results, zip(*common, strict=True), strict=False):
        ready = [MILLI * (outcome.ready or 0.0) for outcome in own]
        masks = [MICRO * outcome.masks[place] for outcome, asked in zip(own, places, strict=True) for place in asked]
        memory = np.array([(outcome.grown, outcome.peak) for outcome in own])
        if masks:
            first, later = ([float(np.quantile(values, q)) for q in QUANTILES] for values in (ready, masks))
            grown = float(np.median(memory[:, 0])), *memory.max(axis=0).tolist()
            report.add(engine, len(own), *first, len(masks), *later, *grown)
    report.write(**settings)


def report_suite(results: Results, settings: dict[str, Any]) -> None:
    """Report the verdicts on the tests of the Test-Suite."""
    report = Report(
        "schema_suite",
        "JSON-Schema-Test-Suite, draft 2020-12: what becomes of its required tests, "
        f"{sum(len(task['tests']) for task, _ in next(iter(results.values())))}",
        ["engine", "right", *VERDICTS[1:]],
    )
    for engine, pairs in results.items():
        verdicts = Counter(outcome.of_test(task, i) for task, outcome in pairs for i in range(len(task["tests"])))
        report.add(engine, *(verdicts[name] for name in VERDICTS))
    report.write(**settings)


def main(
    maskbench: Annotated[
        str, typer.Option(help="A folder of MaskBench's JSON files, or their lines as .jsonl.gz.")
    ] = "",
    suite: Annotated[
        str, typer.Option(help="tests/draft2020-12 of the JSON-Schema-Test-Suite, or a .tar.gz of it.")
    ] = "",
    engines: Annotated[str, typer.Option(help="Engines, by semicolons.")] = ";".join(ENGINES),
    step: Annotated[int, typer.Option(help="Take every so many-th schema, by name.")] = 1,
    limit: Annotated[int, typer.Option(help="Take at most so many schemas.")] = 1_000_000,
    texts: Annotated[int, typer.Option(help="Random texts of each schema.")] = 3,
    seconds: Annotated[
        int, typer.Option(help="Processor time of each phase: the first mask, the instances, the texts.")
    ] = 60,
    gigabytes: Annotated[int, typer.Option(help="Memory of a schema, beyond what the prepared engine holds.")] = 4,
    log: Annotated[str, typer.Option(help="Write what was found of each schema to this file, as lines of JSON.")] = "",
    only: Annotated[str, typer.Option(hidden=True, help="Measure this engine here, and print JSON.")] = "",
) -> None:
    """Measure and write ``benchmarks/results/maskbench.json``, ``maskbench_times.json`` and ``schema_suite.json``."""
    if not maskbench and not suite:
        raise SystemExit("give --maskbench FOLDER or --suite FOLDER: the data are not shipped")
    tasks = [{**task, "timed": True} for task in schemas_of(Path(maskbench))][::step][:limit] if maskbench else []
    tasks += [{**task, "timed": False} for task in suite_of(Path(suite))] if suite else []
    if only:
        for outcome in measure(only, tasks, texts=texts, seconds=seconds, gigabytes=gigabytes):
            print(json.dumps(asdict(outcome)), flush=True)
        os._exit(0)  # some engines complain at an ordinary end
    options = {"maskbench": maskbench, "suite": suite, "step": step, "limit": limit, "texts": texts}
    options |= {"seconds": seconds, "gigabytes": gigabytes}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    found = {engine: list(zip(tasks, run(engine, tasks, arguments), strict=True)) for engine in engines.split(";")}
    if log:
        with Path(log).open("w", encoding="utf-8") as lines:
            for engine, pairs in found.items():
                for task, outcome in pairs:
                    row = {"engine": engine, "name": task["name"], "verdict": outcome.verdict(task)}
                    lines.write(json.dumps(row | asdict(outcome)) + "\n")
    timed = {engine: [pair for pair in pairs if pair[0]["timed"]] for engine, pairs in found.items()}
    others = {engine: [pair for pair in pairs if not pair[0]["timed"]] for engine, pairs in found.items()}
    bounds: dict[str, Any] = {"CPU seconds": seconds, "GB": gigabytes}
    bounds |= {name: version(name) for name in PEERS if name in found}
    settings = {"schemas": f"every {step}th by name" if step > 1 else "all", "texts": texts, **bounds}
    if maskbench:
        report_schemas(timed, settings)
        report_times(timed, settings)
    if suite:
        report_suite(others, bounds)


if __name__ == "__main__":
    typer.run(main)
