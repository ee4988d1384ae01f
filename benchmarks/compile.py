"""From a pattern to a guide over 131k tokens, against building ``outlines_core.Index`` over the same tokens, in one run.

    python -m benchmarks.compile

Each pattern is measured in a fresh process. The tokens' trie is in memory, compiled patterns are forgotten before every
compilation, and the two sides take turns.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import outlines_core
import typer

from benchmarks.report import Report
from benchmarks.schemas import SCHEMAS, pattern, tekken_vocabulary
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.numerics.cache import forget_parts
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.trie import Trie

# Outlines does not come back from these (2^N in the number of repeats), so it has no column.
CLIFFS = {
    "capital, 200 bounded": r"[A-Z][^.\n]{0,200}\.",
    "A, 200 capitals": r"A[A-Z]{0,200}\.",
    "JSON string, 200 bounded": r'"([^"\\]|\\["\\]){0,200}"',
    "The, 200 letters": r"The [a-zA-Z ]{0,200}\.",
}
PATTERNS = {name: pattern(schema) for name, schema in SCHEMAS.items()} | CLIFFS


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_megabytes() -> float:
    """Return the most memory that this process has held since :func:`forget_peak`, or ever where that does nothing."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


def forget_peak() -> None:
    """Start the peak again from what is held now (Linux)."""
    path = Path("/proc/self/clear_refs")
    if path.exists():
        path.write_text("5")


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Return the medians of one pattern, measured in this process."""
    vocabulary, regex = tekken_vocabulary(), PATTERNS[name]
    Trie.of(vocabulary)

    def guide() -> FSMGuide:
        forget_parts()
        return FSMGuide.from_automaton(compile_regex(regex), vocabulary)

    forget_peak()
    before = peak_megabytes()
    built = guide()
    grown = peak_megabytes() - before
    ids: dict[bytes, list[int]] = {}
    for v, token in enumerate(vocabulary.tokens):
        if token:
            ids.setdefault(token, []).append(v)
    core = outlines_core.Vocabulary(vocabulary.eos_ids[0], ids)
    ours, regexes, theirs = [], [], []
    for _ in range(repeats):
        ours.append(seconds(guide))
        forget_parts()
        regexes.append(seconds(lambda: compile_regex(regex)))
        if name not in CLIFFS:
            theirs.append(seconds(lambda: outlines_core.Index(regex, core)))
    return {
        "states": len(built),
        "classes": built.partition.size,
        "ours": statistics.median(ours),
        "regex": statistics.median(regexes),
        "theirs": statistics.median(theirs) if theirs else None,
        "grown": grown,
    }


def main(
    repeats: Annotated[int, typer.Option(help="Compilations of each side.")] = 7,
    only: Annotated[str, typer.Option(hidden=True, help="Measure this pattern here and print JSON.")] = "",
) -> None:
    """Measure and write ``benchmarks/results/compile.json``."""
    if only:
        print(json.dumps(measure(only, repeats)))
        return
    report = Report(
        "compile",
        "From pattern to guide, 131k tokens, seconds (median)",
        [
            "pattern",
            "states",
            "classes",
            "outlines_core",
            "ours",
            "of it the regex",
            "times faster",
            "memory grown, MB",
        ],
    )
    for name in PATTERNS:
        command = [sys.executable, "-m", "benchmarks.compile", "--only", name, "--repeats", str(repeats)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        theirs, ours = result["theirs"], result["ours"]
        report.add(
            name,
            result["states"],
            result["classes"],
            theirs or "not run (grows as 2^N)",
            ours,
            result["regex"],
            theirs / ours if theirs else "",
            result["grown"],
        )
    report.write(vocabulary=len(tekken_vocabulary()), repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
