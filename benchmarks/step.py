"""One masked step: the work around the model, against stock Outlines' own processor, in one run.

    python -m benchmarks.step

Both walk the same texts over a 131k-token vocabulary; per batch size the median time of a step, and ratios.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import outlines_core
import torch
import typer
from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor

from benchmarks.report import Report
from benchmarks.schemas import SCHEMAS, pattern, tekken_vocabulary
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.guide import DONE, UNREACHABLE
from outlines_phi.guides.table import Table
from outlines_phi.phi.estimator import OneStepPhi
from outlines_phi.plugin.processor import MaskLogitsProcessor
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import Vocabulary

BATCHES = (1, 8, 32)


def stock_processor(vocabulary: Vocabulary, regex: str) -> OutlinesCoreLogitsProcessor:
    """Return stock Outlines' processor over the same tokens."""
    ids: dict[bytes, list[int]] = {}
    for token, spelling in enumerate(vocabulary.tokens):
        if spelling:
            ids.setdefault(spelling, []).append(token)
    core = outlines_core.Vocabulary(vocabulary.eos_ids[0], ids)
    return OutlinesCoreLogitsProcessor(outlines_core.Index(regex, core), "torch")


def texts(table: Table, count: int, steps: int, seed: int) -> torch.Tensor:
    """Return ``[count, steps]`` token ids of random walks that do not end."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    while len(rows) < count:
        state, row = table.start, []
        for _ in range(steps):
            moves = table.moves(state, UNREACHABLE - 1)
            open_ = moves.targets != DONE
            if not open_.any():
                break
            pick = int(torch.randint(int(open_.sum()), (), generator=generator))
            row.append(int(moves.tokens[open_][pick]))
            state = int(moves.targets[open_][pick])
        if len(row) == steps:
            rows.append(row)
    return torch.tensor(rows)


def per_step(
    step: Callable[[torch.Tensor, torch.Tensor], object], tokens: torch.Tensor, logits: torch.Tensor
) -> list[float]:
    """Return the seconds of each step along ``tokens``; what a processor is given is a fresh copy of ``logits``."""
    seconds = []
    for position in range(tokens.shape[1] + 1):
        scores = logits.clone()
        start = time.perf_counter()
        step(tokens[:, :position], scores)
        seconds.append(time.perf_counter() - start)
    return seconds


def main(
    steps: Annotated[int, typer.Option(help="Tokens per walk.")] = 16,
    repeats: Annotated[int, typer.Option(help="Walks per batch size, taken in turn.")] = 5,
    schema: Annotated[str, typer.Option(help="Which schema.")] = "nested, bounded",
) -> None:
    """Measure and write ``benchmarks/results/step.json``."""
    torch.manual_seed(0)
    vocabulary = tekken_vocabulary()
    regex = pattern(SCHEMAS[schema])
    table = Table(FSMGuide.from_automaton(compile_regex(regex), vocabulary))
    ours, stock = MaskLogitsProcessor(table), stock_processor(vocabulary, regex)
    onestep = OneStepPhi()
    report = Report(
        "step",
        "One masked step, ms (median)",
        ["batch", "stock Outlines", "ours", "ours / stock", "onestep", "onestep / ours"],
    )
    for batch in BATCHES:
        tokens = texts(table, batch, steps, seed=batch)
        logits = torch.randn(batch, len(vocabulary))
        times: dict[str, list[float]] = {"stock": [], "ours": [], "onestep": []}

        def correct(ids: torch.Tensor, scores: torch.Tensor) -> None:
            states = [prefix.state for prefix in ours._prefixes.visit(ids)]
            onestep.scores(scores, table, states, [UNREACHABLE - 1] * len(states))

        for repeat in range(repeats + 1):
            for name, step in (("stock", stock), ("ours", ours), ("onestep", correct)):
                (stock if name == "stock" else ours).reset()
                seconds = per_step(step, tokens, logits)
                if repeat:  # the first walk warms caches and compiles the stock kernel
                    times[name] += seconds
        median = {name: statistics.median(values) for name, values in times.items()}
        report.add(
            batch,
            1e3 * median["stock"],
            1e3 * median["ours"],
            median["ours"] / median["stock"],
            1e3 * median["onestep"],
            median["onestep"] / median["ours"],
        )
    report.write(vocabulary=len(vocabulary), schema=schema, steps=steps, repeats=repeats)


if __name__ == "__main__":
    typer.run(main)
