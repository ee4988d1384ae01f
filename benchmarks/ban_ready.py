"""From a list of phrases to the first mask over 131k tokens: processor time and memory, by the length of the list.

    python -m benchmarks.ban_ready

Each list is measured in a fresh process, once per repeat. The tokens' trie is in memory, as for every output type, and a list of
one phrase has been read.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import torch
import typer

from benchmarks.bans.lists import phrases
from benchmarks.compile import forget_peak, peak_megabytes
from benchmarks.report import Report
from benchmarks.tekken import tekken_vocabulary
from outlines_phi.guides.guide import UNREACHABLE
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.guides.table import Table
from outlines_phi.vocabulary.trie import Trie
from outlines_phi.vocabulary.vocabulary import Vocabulary

OPTIONS: dict[str, dict[str, bool]] = {
    "as given": {},
    "ignore_case": {"ignore_case": True},
    "whole_word": {"whole_word": True},
    "ignore_case, whole_word": {"ignore_case": True, "whole_word": True},
}


def ready(vocabulary: Vocabulary, banned: Sequence[str], options: dict[str, bool]) -> list[float]:
    """Return the processor time before and after the matcher is made, and when the first mask is there."""
    marks = [time.process_time()]
    ban = BannedPhrases(banned, **options)
    assert len(ban.matcher.names) == len(banned)
    marks.append(time.process_time())
    table = Table(PhraseGuide(vocabulary, ban))
    table.bias(table.start, UNREACHABLE - 1, torch.device("cpu"))
    return [*marks, time.process_time()]


def measure(count: int, options: str) -> dict[str, Any]:
    """Return the processor time of each stage and the memory grown, measured in this process."""
    vocabulary = tekken_vocabulary()
    banned = phrases(vocabulary, count)
    Trie.of(vocabulary)
    ready(vocabulary, ["warm-up"], OPTIONS[options])  # what a first call in a process loads is no part of a list
    forget_peak()
    before = peak_megabytes()
    marks = ready(vocabulary, banned, OPTIONS[options])
    grown = peak_megabytes() - before
    return {"matcher": marks[1] - marks[0], "mask": marks[2] - marks[1], "all": marks[2] - marks[0], "grown": grown}


def main(
    counts: Annotated[str, typer.Option(help="Lengths of lists, by commas.")] = "1000,10000",
    repeats: Annotated[int, typer.Option(help="Fresh processes per list.")] = 5,
    only: Annotated[
        str, typer.Option(hidden=True, help="Measure these options here, with one length, and print JSON.")
    ] = "",
) -> None:
    """Measure and write ``benchmarks/results/ban_ready.json``."""
    if only:
        print(json.dumps(measure(int(counts), only)))
        return
    report = Report(
        "ban_ready",
        "Banned phrases: from a list to the first mask over 131k tokens, seconds of processor time (median)",
        [
            "phrases of 5-40 bytes",
            "options",
            "ready",
            "of it the matcher",
            "of it guide and mask",
            "memory grown, MB (most)",
        ],
    )
    for count in map(int, counts.split(",")):
        for options in OPTIONS:
            command = [sys.executable, "-m", "benchmarks.ban_ready", "--counts", str(count), "--only", options]
            runs = [
                json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                for _ in range(repeats)
            ]
            seconds = (statistics.median(run[stage] for run in runs) for stage in ("all", "matcher", "mask"))
            report.add(count, options, *seconds, max(run["grown"] for run in runs))
    report.write(vocabulary=len(tekken_vocabulary()), repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
