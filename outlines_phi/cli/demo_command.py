"""``outlines-phi demo``: the bias of masking, and its removal, on the bundled model."""

import inspect
import json
import shlex
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, final

import outlines
import torch
import transformers
import typer
from pydantic import BaseModel
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from torch import Tensor

from ..fidelity.findings import WHOLE, Report, Sample, View, compare, label
from ..fidelity.plots import draw_reports, page
from ..fidelity.probabilities import probabilities
from ..fidelity.report_text import TextTable, certainty, cost_table, distance_table, number
from ..lm import bundled
from ..numerics.cache import make_folder, write_atomically
from ..phi.tree.tree import BoundsTree
from ..plugin.generator import Generator
from ..plugin.hosts.transformers import PhiTransformers, from_transformers
from ..settings import SamplingSettings
from .terminal import bar, print_table

BUDGET = 128  # More tokens than any text of the types below has, so that nothing is ever cut short


@final
@dataclass(frozen=True)
class Case:
    """One prompt and one output type with finitely many values."""

    title: str  # the title of the page
    # The prompt of the model, and the output type.
    prompt: str
    output_type: Any
    source: str  # the output type as an application would write it
    read: Callable[[str], Mapping[str, Hashable]]  # the fields of a text


class Character(BaseModel):
    """A character of a game."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


ANSWER = Case(
    title="A choice of two",
    prompt="Question: is the bakery open on Sunday? Answer: ",
    output_type=Literal["yes", "no"],
    source='Literal["yes", "no"]',
    read=lambda text: {"answer": text},
)
CHARACTER = Case(
    title="A pydantic model",
    prompt="New character: Aria. JSON: ",
    output_type=Character,
    source="\n".join(line for line in inspect.getsource(Character).splitlines() if line),
    read=json.loads,
)


ROWS = 12  # Values of a field that are listed
BAR = 17  # Width of the bar of the largest deviation
COLORS = ("red", "green")  # Of the two samples of a report
NAME = 24  # Width of the names of rows in a report


PLAIN, EXACT, SHARED = "plain Outlines", 'phi="exact"', "masking, prefixes shared"
"""Names of the demo's ways of sampling; the last one is there for its cost alone."""

WIDTH = 80
STAGES = 4  # Of a case: the truth, and each way of sampling


def demo(
    n: Annotated[int, typer.Option("--n", min=10, max=20_000, help="Draws of each sampler.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws.")] = 0,
    out: Annotated[Path, typer.Option("--out", "--output", help="Folder of the results.")] = Path("outlines-phi-demo"),
    prompt: Annotated[str, typer.Option(help="What the pydantic model is filled in after.")] = CHARACTER.prompt,
) -> None:
    """Show the bias of plain masking, and phi="exact" without it, on the bundled model.

    The truth beside them is computed: the model's own distribution, conditioned on the format, enumerated with a certificate.
    """
    started = time.perf_counter()
    console = Console(width=min(WIDTH, Console().width), highlight=False)
    make_folder(out, f"--out {out}")
    torch.set_num_threads(1)  # the bundled model is too small to gain from more, and suffers where cores are busy
    transformers.utils.logging.disable_progress_bar()
    model = from_transformers(*bundled.load())
    reports = []
    for case in (ANSWER, replace(CHARACTER, prompt=prompt)):
        reports.append(run_case(model, case, n, seed))
        print_report(reports[-1], console)
    draw_reports(reports, out / "demo.png")
    command = shlex.join(["outlines-phi", "demo", "--n", str(n), "--seed", str(seed), "--prompt", prompt])
    write_atomically(out / "index.html", page(reports, command=command).encode())
    console.print(f"Picture: {out / 'demo.png'}\nPage:    {out / 'index.html'}", soft_wrap=True, markup=False)
    console.print(f"{time.perf_counter() - started:.0f} seconds in all.", style="dim")


def run_case(model: PhiTransformers, case: Case, n: int, seed: int) -> Report:
    """Return the truth of a case, beside ``n`` draws of plain Outlines and of ``phi="exact"``."""
    sampled: list[Sample] = []
    with bar("truth, by enumeration", STAGES) as progress:
        ids = tuple(model.tokenizer.encode(case.prompt)[0][0].tolist())
        tree = BoundsTree(model.table(case.output_type), BUDGET)  # of its own: what it costs is told
        (truth,) = probabilities(model.lm, SamplingSettings(), [ids], [tree], tolerance=1e-3, max_tokens=100_000)
        for name, draw in ((PLAIN, _plain), (EXACT, partial(_ours, "exact")), (SHARED, partial(_ours, "local"))):
            progress.move(len(sampled) + 1, description=f"{name}, {n} draws")
            started = time.perf_counter()
            texts, calls, tokens = draw(model, case, n, seed)
            seconds = time.perf_counter() - started
            sampled.append(Sample(name=name, texts=texts, calls=calls, tokens=tokens, seconds=seconds))
    return compare(case.title, case.prompt, case.source, truth, sampled[:2], case.read, costs=sampled[2:])


def _plain(model: PhiTransformers, case: Case, n: int, seed: int) -> tuple[list[str], int, int]:
    """Draw as an Outlines application does today: Hugging Face's loop under a mask, temperature 1, no truncation.

    Return the texts, the model calls, and the tokens that the loop evaluates in them, prompts left out.
    """
    generator, read = outlines.Generator(model, case.output_type), list[Tensor]()
    hook = model.model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"]), with_kwargs=True
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        texts: list[str] = generator(
            case.prompt,
            num_return_sequences=n,
            max_new_tokens=BUDGET,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
    hook.remove()
    config = model.model.generation_config
    unread = torch.tensor([config.eos_token_id, config.pad_token_id]).flatten()
    tokens = sum(
        int((~torch.isin(ids, unread)).sum()) for ids in read if ids.shape[1] == 1
    )  # a longer one is the prompt
    return texts, len(read), tokens


def _ours(phi: str, model: PhiTransformers, case: Case, n: int, seed: int) -> tuple[list[str], int, int]:
    draws = Generator(model, case.output_type, phi=phi).sample(case.prompt, n, seed=seed, max_new_tokens=BUDGET)
    return draws.texts, draws.counts.calls, draws.counts.tokens


def print_report(report: Report, console: Console) -> None:
    """Print the fields of a report, then how far each of its two samples is from the truth and what it cost."""
    asked = Table.grid("", "", padding=(0, 2))
    asked.add_row(Text("prompt", "dim"), Text(repr(report.prompt)))
    asked.add_row(Text("type", "dim"), Text(report.output_type))
    console.print(Panel(asked, title=report.title, title_align="left", border_style="cyan"))
    fields = [view for view in report.views if view.name != WHOLE]
    scale = max(abs(_excess(report, view, value)) for view in fields for value in view.values)
    for view in fields:
        names = [sample.name for sample in report.samples]
        more = len(view.values) - ROWS
        table = TextTable(
            (view.name, "truth", *names, "excess", ""),
            list(_shares(report, view, scale)),
            remark=f"... {more} more" if more > 0 else "",
        )
        print_table(table, console, styles=("", "bold", *COLORS), name_width=16, wrap=False)
    print_table(distance_table(report), console, styles=("", *COLORS), name_width=NAME)
    print_table(cost_table(report), console, name_width=NAME)
    console.print(
        f"{certainty(report)} Excess: the share of {report.samples[0].name} minus the truth, in percent. The noise floor is the "
        f"mean TV of {report.n:,} draws from the truth; the last column is what 95 of 100 such samples stay under.",
        "",
        style="dim",
    )


def _excess(report: Report, view: View, value: object) -> float:
    """Return the excess of the frequency of ``value`` in the first sample over its probability."""
    return view.frequencies[report.samples[0].name].get(value, 0.0) - view.truth.get(value, 0.0)


def _shares(report: Report, view: View, scale: float) -> Iterator[Sequence[str]]:
    for value in view.values[:ROWS]:
        shares = (view.truth, *(view.frequencies[sample.name] for sample in report.samples))
        excess = _excess(report, view, value)
        bar = "█" * (round(BAR * abs(excess) / scale) if scale else 0)
        percent = (f"{100 * share.get(value, 0.0):.1f}%" for share in shares)
        yield (label(value), *percent, number(100 * excess, "+.1f"), bar)
