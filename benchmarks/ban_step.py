"""One masked step under banned phrases: the work around the model, against stock Outlines' own processor, in one run.

    python -m benchmarks.ban_step

Outlines cannot ban phrases, and its regular expressions have no complement. So what stands beside is its processor of free text,
whose mask lets everything through, and its processor of a regular expression of records, whose masks differ from step to step. All
read texts over the same 131k tokens. Ours read texts that keep beginning phrases; a step is cold where its state has not been
visited before.
"""

import statistics
from typing import Annotated

import torch
import typer

from benchmarks.bans.lists import near, phrases
from benchmarks.report import Report
from benchmarks.schemas import SCHEMAS, pattern, tekken_vocabulary
from benchmarks.step import per_step, stock_processor, texts
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.guides.table import Table
from outlines_phi.plugin.processor import MaskLogitsProcessor
from outlines_phi.regex.patterns import compile_regex

FREE_TEXT = r"[\s\S]*"
MICRO = 1e6


def main(
    steps: Annotated[int, typer.Option(help="Tokens per text.")] = 32,
    repeats: Annotated[int, typer.Option(help="Texts, each read cold once and warm as often.")] = 20,
    counts: Annotated[str, typer.Option(help="Lengths of lists, by commas.")] = "1000,10000",
    schema: Annotated[str, typer.Option(help="The records of the second processor of Outlines.")] = "nested, bounded",
) -> None:
    """Measure and write ``benchmarks/results/ban_step.json``."""
    torch.manual_seed(0)
    vocabulary = tekken_vocabulary()
    logits = torch.randn(1, len(vocabulary))
    free, records = stock_processor(vocabulary, FREE_TEXT), stock_processor(vocabulary, pattern(SCHEMAS[schema]))
    walks = texts(
        Table(FSMGuide.from_automaton(compile_regex(pattern(SCHEMAS[schema])), vocabulary)), repeats, steps, seed=1
    )
    report = Report(
        "ban_step",
        "One masked step under banned phrases at batch 1, microseconds (median)",
        [
            "phrases of 5-40 bytes",
            "stock, free text",
            "stock, records",
            "ours, warm",
            "ours, cold",
            "ours, cold, 95th percentile",
            "warm - stock, free text",
            "warm - stock, records",
        ],
    )
    for count in map(int, counts.split(",")):
        banned = phrases(vocabulary, count)
        table = Table(PhraseGuide(vocabulary, BannedPhrases(banned)))
        ours = MaskLogitsProcessor(table)
        times: dict[str, list[float]] = {"free": [], "records": [], "warm": [], "cold": []}
        seen: set[int] = set()
        for number in range(repeats + 1):
            tokens = torch.tensor([near(vocabulary, banned, steps, seed=number)])
            record = walks[number % repeats : number % repeats + 1]
            fresh = first_visits(table, tokens[0].tolist(), seen)
            found: dict[str, list[float]] = {}
            for name, processor, read in (
                ("first", ours, tokens), ("free", free, tokens), ("records", records, record), ("warm", ours, tokens)
            ):  # fmt: skip
                processor.reset()
                found[name] = per_step(processor, read, logits)
            if number:  # the first text warms caches and compiles the stock kernel
                for name in ("free", "records", "warm"):
                    times[name] += found[name]
                times["cold"] += [found["first"][position] for position in fresh]
        median = {name: MICRO * statistics.median(values) for name, values in times.items()}
        most = MICRO * statistics.quantiles(times["cold"], n=20)[-1]
        warm = median["warm"]
        report.add(
            count,
            median["free"],
            median["records"],
            warm,
            median["cold"],
            most,
            warm - median["free"],
            warm - median["records"],
        )
    report.write(vocabulary=len(vocabulary), steps=steps, repeats=repeats, schema=schema)


def first_visits(table: Table, tokens: list[int], seen: set[int]) -> list[int]:
    """Return the steps of a text, 0 the one before its first token, whose states are not in ``seen``, and add those."""
    state, fresh = table.start, []
    for position, token in enumerate([None, *tokens]):
        if token is not None:
            state = table.guide.advance(state, token)
        if state not in seen:
            fresh.append(position)
            seen.add(state)
    return fresh


if __name__ == "__main__":
    typer.run(main)
