"""Model calls of one cold draw by `auto`, beside those of its two stages alone: exact, and all weighted.

    python -m benchmarks.auto_calls

Over the languages of the fidelity suite and the output types of ``docs/output-types.md``, each after a prompt that asks for it and
after one that asks for something else. Counts, not times: they are the same on every machine. ``--rewrite`` only writes the summary
in ``docs/auto.md`` anew, from the kept results; ``python -m benchmarks.table auto_calls`` prints all of them.
"""

import datetime
import enum
import json
import math
import statistics
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional, Union

import outlines.types
import torch
import typer
from genson import SchemaBuilder
from outlines.types import airports, countries
from pydantic import BaseModel, Field
from rich.progress import track
from typing_extensions import TypedDict

import outlines_phi
from benchmarks import report
from benchmarks.table import measured_by
from outlines_phi.errors import BudgetError, FidelityWarning
from outlines_phi.fidelity.report_text import TextTable
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled
from outlines_phi.plugin.call import CallOptions
from outlines_phi.plugin.hosts.transformers import PhiTransformers
from outlines_phi.sampling.phi_options import AutoPhi, Effort, ExactPhi
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Request
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.suite.languages import QUESTION, STORY, SUITE

PAGE = Path(__file__).parent.parent / "docs" / "auto.md"
COLUMNS = (
    "language", "prompt", "exact", "weighted", "auto", "ratio", "EXACT",
    "tokens weighted", "tokens auto", "ESS weighted", "ESS auto",
)  # fmt: skip
PROMPTS = {"on": "asks for the format", "off": "asks for something else"}
HEAD = "prompt", "an exact draw", "of", "ratio, middle", "ratio, most", "EXACT seeds"
"""Columns of the page."""

IN_FLIGHT = 4
"""Attempts at a single draw at once, at most: an exact draw of so many tokens per call ends in no fewer calls."""


NEW_PERSON, ORDERED, SIZE = (
    "New person: Nora. JSON: ",
    "Order: green tea for Nora. JSON: ",
    "Order: two small green tea. Size: ",
)


class Size(enum.Enum):
    """The sizes of an order."""

    small = "small"
    large = "large"


class Person(BaseModel):
    """A pydantic model with a free string."""

    name: str = Field(max_length=10)
    age: int


@dataclass
class Door:
    """A dataclass."""

    open: bool


class Payment(TypedDict):
    """A ``TypedDict``."""

    paid: bool
    count: int


def book(room: Literal["sea", "garden"], nights: Literal[1, 2, 3]) -> None:
    """Take the arguments that a model writes."""


def built() -> SchemaBuilder:
    """Return a schema that genson has read off an example."""
    builder = SchemaBuilder()
    builder.add_object({"count": 1, "paid": True})
    return builder


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
LISTS = 'start: "[" item ("," item)* "]"\nitem: "a" | "b" | start'
TYPES: dict[str, tuple[str, Any]] = {
    "Literal": ("Answer: ", Literal["yes", 3, True]),
    "Choice": (SIZE, outlines.types.Choice(["small", "medium", "extra large"])),
    "Enum": (SIZE, Size),
    "bool": ("Question: is the museum open on Monday? Answer: ", bool),
    "int": ("Level: ", int),
    "float": ("Price: ", float),
    "str": ("Name: ", str),
    "datetime.date": ("Date: ", datetime.date),
    "time": ("Time: ", datetime.time),
    "datetime": ("Date: ", datetime.datetime),
    "Optional": ("Date: ", Optional[datetime.date]),  # noqa: UP045
    "Union": ("Level: ", Union[int, Literal["none", "unknown"]]),  # noqa: UP007
    "list": ("Levels: ", list[int]),
    "tuple[S, T]": ("Values: ", tuple[int, bool]),
    "tuple[T, ...]": ("Values: ", tuple[bool, ...]),
    "dict[K, T]": ("JSON: ", dict[Literal["a", "b"], int]),
    "pydantic model": (NEW_PERSON, Person),
    "dataclass": ("New door. JSON: ", Door),
    "TypedDict": (ORDERED, Payment),
    "function": ("JSON: ", book),
    "json_schema": (NEW_PERSON, outlines.types.json_schema(SCHEMA)),
    "genson": (ORDERED, built()),
    "regex": ("Date: ", outlines.types.regex("[0-9]{4}-[0-9]{2}")),
    "email": ("Address: ", outlines.types.email),
    "uuid4": ("Number: ", outlines.types.uuid4),
    "ipv4": ("Address: ", outlines.types.ipv4),
    "CFG": ("List: ", outlines.types.CFG(LISTS)),
    "dict": (NEW_PERSON, dict),
    "IATA": ("City: ", airports.IATA),
    "Alpha2": ("Country: ", countries.Alpha2),
}
"""The output types of the page, each with a prompt that asks for it."""


class Case(NamedTuple):
    """A language and its prompt: one that asks for it (``on``), or for something else (``off``)."""

    name: str
    place: str
    prompt: Any
    table: Table
    budget: int | None


def cases(model: PhiTransformers) -> Iterator[Case]:
    """Yield every language and output type, after its own prompt and after one that asks for something else."""
    for language in SUITE:
        table, other = language.table(model), STORY if language.prompt == QUESTION else QUESTION
        for place, prompt in (("on", language.prompt), ("off", other)):
            yield Case(language.name, place, prompt, table, language.budget)
    for name, (asking, output_type) in TYPES.items():
        table = model.table(output_type)
        for place, prompt in (("on", asking), ("off", STORY)):
            yield Case(name, place, prompt, table, None)


class Spent(NamedTuple):
    """The cost of a draw; ``calls`` is infinite where there is none."""

    calls: float
    tokens: float = math.nan
    exact: bool = False
    ess: float = math.nan


def spent(phi: AutoPhi | ExactPhi, request: Request) -> Spent:
    """Make one draw from a tree of its own."""
    sampler = AutoSampler(phi) if isinstance(phi, AutoPhi) else ExactSampler(phi)
    try:
        (draws,) = sampler.sample(request)
    except BudgetError:
        return Spent(math.inf)
    exact = draws.certificate is not None
    ess = draws[0].ess if len(draws) and not exact else math.nan
    return Spent(draws.counts.calls, draws.counts.tokens, exact, ess)


def measure(case: Case, request: Request, seed: int) -> list[Spent]:
    """Return the costs of an exact, a weighted and an ``auto`` draw; an exact one that is dearer than the weighted has no end."""
    request = replace(request, settings=replace(request.settings, seed=seed))
    weighted = spent(AutoPhi(share=0), request)
    effort = Effort(tokens=math.ceil(IN_FLIGHT * weighted.calls))
    return [spent(ExactPhi(effort=effort), request), weighted, spent(AutoPhi(), request)]


def median(values: Iterable[float]) -> float:
    """Return the median, 0 of nothing."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else 0.0


def row(model: PhiTransformers, case: Case, seeds: int) -> list[Any]:
    """Return the row of a case in the report."""
    settings = SamplingSettings(max_new_tokens=case.budget, seed=0)
    with model.asking([case.prompt], case.table, CallOptions(settings)) as request:
        kinds = list(zip(*(measure(case, request, seed) for seed in range(seeds)), strict=True))
    exact, weighted, auto = (median(one.calls for one in kind) for kind in kinds)
    return [
        case.name,
        case.place,
        exact if exact < math.inf else "dearer",
        weighted,
        auto,
        auto / min(exact, weighted),
        f"{sum(one.exact for one in kinds[2])} of {seeds}",
        *(round(median(one.tokens for one in kind)) for kind in kinds[1:]),
        *(median(one.ess for one in kind) or "exact" for kind in kinds[1:]),
    ]


def cost_of(row: dict[str, Any]) -> str:
    """Return the ratio of the cost of an exact draw to that of a weighted one."""
    if row["exact"] == "dearer":
        return "had not ended by then"
    return "cheaper than a weighted one" if row["exact"] < row["weighted"] else "as dear, or dearer"


def publish(kept: dict[str, Any]) -> None:
    """Write the summary between the markers of the page: a row per prompt and cost of an exact draw."""
    rows = [dict(zip(kept["columns"], row, strict=True)) for row in kept["rows"]]
    lines = []
    for place, asking in PROMPTS.items():
        total = [row for row in rows if row["prompt"] == place]
        for cost in sorted(set(map(cost_of, total))):
            found = [row for row in total if cost_of(row) == cost]
            exact = [int(row["EXACT"].split()[0]) for row in found]
            ratios = [row["ratio"] for row in found]
            middle, most = f"{statistics.median(ratios):.3g}", f"{max(ratios):.3g}"
            seeds = f"{min(exact)} to {max(exact)} of {kept['settings']['seeds']}"
            lines.append((asking, cost, f"{len(found)} of {len(total)}", middle, most, seeds))
    table = "\n".join(TextTable(HEAD, lines).markdown())
    report.rewrite(PAGE, "auto_calls", f"{table}\n\n{measured_by(kept)}.")


def main(
    seeds: Annotated[int, typer.Option(help="Draws of each kind.")] = 10,
    only: Annotated[str, typer.Option(help="Some of the languages, separated by commas.")] = "",
    rewrite: Annotated[bool, typer.Option(help="Measure nothing.")] = False,
) -> None:
    """Measure, write ``auto_calls.json`` and the summary of the page."""
    if not rewrite:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", FidelityWarning)
        model = outlines_phi.from_transformers(*bundled.load())
        table = report.Report(
            "auto_calls", "Model calls of one cold draw: exact, weighted, and by `auto`", list(COLUMNS)
        )
        for case in track([case for case in cases(model) if not only or case.name in only.split(",")]):
            table.add(*row(model, case, seeds))
        table.write(seeds=seeds)
    publish(json.loads((report.RESULTS / "auto_calls.json").read_text()))


if __name__ == "__main__":
    typer.run(main)
