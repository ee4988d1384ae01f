"""JSON schemas over 131k tokens, against llguidance and xgrammar in one run: what is accepted, and how long masks take.

    python -m benchmarks.maskbench --maskbench FOLDER --suite FOLDER

The data are not shipped. MaskBench (https://github.com/guidance-ai/jsonschemabench, its folder ``maskbench/data``) is a folder of
JSON files with ``schema`` and ``tests``, each of these with ``valid`` and ``data``; or their lines in one ``.jsonl.gz``. The
JSON-Schema-Test-Suite is its folder ``tests/draft2020-12``, or a ``.tar.gz`` of it; its optional tests are left out.

A schema passes where it is taken, every valid instance is accepted and every invalid one is not; an instance is written as
``json.dumps`` does, each of its tokens must be in the mask before it, and the end of sequence in the last. Every schema has a
process of its own, forked from one in which the engine has prepared the vocabulary and seen two schemas, with bounds on its
processor time and memory. Times are of the processor; each mask is of a state that this process has not seen.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.report import Report
from benchmarks.schema_engines import ENGINES
from benchmarks.schema_trials import SPELLINGS, Speller, Trial, tried
from benchmarks.tekken import tekken_vocabulary

VERDICTS = ("pass", "refused", "rejects valid", "accepts invalid", "timeout", "failed")
TEXTS = ("valid", "invalid", "unfinished")
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
"""What an engine sees before it is measured."""


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


def measure(engine_name: str, tasks: Sequence[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
    """Yield what one engine makes of each task, in forks of this process."""
    vocabulary = tekken_vocabulary()
    engine, spell = ENGINES[engine_name](vocabulary), Speller(vocabulary)
    timed, texts = options.pop("timed"), options.pop("texts")
    for task in WARM_UP:
        trial = Trial(engine, spell, task, texts=1, timed=True)
        for phase in (trial.ready, trial.instances, trial.random_texts):
            list(phase())
    for task in tasks:
        yield {"name": task["name"], "found": tried(Trial(engine, spell, task, texts=texts, timed=timed), **options)}


def verdict_of(task: dict[str, Any], found: Sequence[dict[str, Any]]) -> tuple[str, list[bool | None]]:
    """Return the verdict of a schema, and what became of each test; ``None`` is not known."""
    accepted: list[bool | None] = [None] * len(task["tests"])
    for one in found:
        if one.get("spelling") == "spaced":
            accepted[one["test"]] = one["accepted"]
    pairs = [(test["valid"], was) for test, was in zip(task["tests"], accepted, strict=True)]
    if any("refused" in one for one in found):
        return "refused", accepted
    if (False, True) in pairs:
        return "accepts invalid", accepted
    if (True, False) in pairs:
        return "rejects valid", accepted
    cut = next((one["cut"] for one in found if "cut" in one), "failed")
    return cut if None in accepted or not any("ready" in one for one in found) else "pass", accepted


def run(engine: str, tasks: Sequence[dict[str, Any]], arguments: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return what an engine makes of each task, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.maskbench", "--only", engine, *arguments]
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            one = json.loads(line)
            assert one["name"] == tasks[len(found)]["name"]
            found.append(one["found"])
            if len(found) % 25 == 0 or len(found) == len(tasks):
                print(f"{engine}: {len(found)} of {len(tasks)}", file=sys.stderr)
    if len(found) < len(tasks):
        raise SystemExit(f"{engine} ended after {len(found)} of {len(tasks)} schemas")
    return found


def report_schemas(
    tasks: Sequence[dict[str, Any]], results: dict[str, list[list[dict[str, Any]]]], settings: Any
) -> None:
    """Write what becomes of MaskBench's schemas, and how long masks take."""
    verdicts = Report(
        "maskbench",
        f"MaskBench: what becomes of {len(tasks)} JSON schemas, and of random texts of their masks",
        [
            "engine",
            *VERDICTS,
            *(f"valid instances read, {spelling}" for spelling in SPELLINGS),
            *(f"texts {t}" for t in TEXTS),
        ],
    )
    times = Report(
        "maskbench_times",
        "JSON schemas over 131k tokens: ms to the first mask, and microseconds of a mask along the instances",
        ["engine", "schemas", *(f"ready {_name(q)}" for q in QUANTILES), "masks"]
        + [*(f"mask {_name(q)}" for q in QUANTILES), "memory grown p50, MB", "memory grown max", "peak memory, MB"],
    )
    for engine, all_found in results.items():
        counts = Counter(verdict_of(task, found)[0] for task, found in zip(tasks, all_found, strict=True))
        spelled: Counter[str] = Counter()
        for task, found in zip(tasks, all_found, strict=True):
            spelled.update(
                one["spelling"] for one in found if one.get("accepted") and task["tests"][one["test"]]["valid"]
            )
        valid = sum(test["valid"] for task in tasks for test in task["tests"])
        texts = Counter(one["text"] for found in all_found for one in found if "text" in one)
        verdicts.add(
            engine,
            *(counts[verdict] for verdict in VERDICTS),
            *(f"{spelled[spelling]} of {valid}" for spelling in SPELLINGS),
            *(texts[kind] for kind in TEXTS),
        )
        ready = [MILLI * one["ready"] for found in all_found for one in found if "ready" in one]
        masks = [MICRO * seconds for found in all_found for one in found for seconds in one.get("masks", ())]
        peaks = [max((one["peak"] for one in found if "peak" in one), default=0.0) for found in all_found]
        grown = [max((one["grown"] for one in found if "grown" in one), default=0.0) for found in all_found]
        if ready and masks:
            quantiles = [[float(np.quantile(values, q)) for q in QUANTILES] for values in (ready, masks)]
            memory = float(np.median(grown)), max(grown), max(peaks)
            times.add(engine, len(ready), *quantiles[0], len(masks), *quantiles[1], *memory)
    verdicts.write(**settings)
    times.write(**settings)


def report_suite(
    tasks: Sequence[dict[str, Any]], results: dict[str, list[list[dict[str, Any]]]], settings: Any
) -> None:
    """Write what becomes of the tests of the Test-Suite."""
    count = sum(len(task["tests"]) for task in tasks)
    report = Report(
        "schema_suite",
        f"JSON-Schema-Test-Suite, draft 2020-12: what becomes of its {count} required tests",
        ["engine", "right", *VERDICTS[1:]],
    )
    for engine, all_found in results.items():
        counts: Counter[str] = Counter()
        for task, found in zip(tasks, all_found, strict=True):
            verdict, accepted = verdict_of(task, found)
            for test, was in zip(task["tests"], accepted, strict=True):
                wrong = "accepts invalid" if was else "rejects valid"
                cut = next((one["cut"] for one in found if "cut" in one), "failed")
                counts[
                    ("refused" if verdict == "refused" else cut)
                    if was is None
                    else "right"
                    if was == test["valid"]
                    else wrong
                ] += 1
        report.add(engine, *(counts[kind] for kind in ("right", *VERDICTS[1:])))
    report.write(**settings)


def _name(quantile: float) -> str:
    return "max" if quantile == 1 else f"p{round(100 * quantile)}"


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
    sample = f"every {step}th schema by name" if step > 1 else "all"
    settings = {"schemas": sample, "texts": texts, "CPU seconds": seconds, "GB": gigabytes}
    bounds = {"step": step, "limit": limit, "seconds": seconds, "gigabytes": gigabytes}
    for option, source, read, report in (
        ("--maskbench", maskbench, schemas_of, report_schemas),
        ("--suite", suite, suite_of, report_suite),
    ):
        if not source:
            continue
        timed, drawn = (True, texts) if option == "--maskbench" else (False, 0)
        whole = list(read(Path(source)))
        tasks = whole[::step][:limit] if timed else whole
        if only:
            for found in measure(only, tasks, timed=timed, texts=drawn, seconds=seconds, gigabytes=gigabytes):
                print(json.dumps(found), flush=True)
            os._exit(0)  # some engines complain at an ordinary end
        arguments = [
            option,
            source,
            "--texts",
            str(drawn),
            *(part for name, value in bounds.items() for part in (f"--{name}", str(value))),
        ]
        results = {engine: run(engine, tasks, arguments) for engine in engines.split(";")}
        if log:
            with Path(log).open("a", encoding="utf-8") as lines:
                for engine, all_found in results.items():
                    for task, found in zip(tasks, all_found, strict=True):
                        verdict, _ = verdict_of(task, found)
                        kept = [{k: v for k, v in one.items() if k != "masks"} for one in found]
                        lines.write(
                            json.dumps({"engine": engine, "name": task["name"], "verdict": verdict, "found": kept})
                            + "\n"
                        )
        report(tasks, results, settings if timed else {"CPU seconds": seconds, "GB": gigabytes})


if __name__ == "__main__":
    typer.run(main)
