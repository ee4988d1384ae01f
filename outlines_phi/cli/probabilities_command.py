"""``outlines-phi probabilities``: how probable each value of an output type is, with certified bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import BudgetError, OutlinesPhiError
from ..fidelity.page import write_atomically
from ..fidelity.probabilities import Probabilities
from ..fidelity.report_text import TextTable, jsonable
from ..numerics.checks import counted
from ..numerics.weights import bounds_text
from ..plugin.call import SEARCH_EFFORT, CallOptions
from ..plugin.choices import meant
from ..plugin.generator import Generator
from ..sampling.phi_options import Effort
from .app import FAILED, Debug, message, note, tell
from .batches import apart, refusal
from .command_options import (
    BanOptions,
    Ends,
    FormatOptions,
    ModelOptions,
    OpenAt,
    PromptOptions,
    SettingOptions,
    Tokenization,
    grouped,
    keywords,
)
from .inputs import Prompt, model_input
from .journal import Record, check_target, line, value_record
from .terminal import Quiet, bar, print_table

Found = Probabilities | OutlinesPhiError  # What became of a prompt; a BudgetError has the bounds that it came to


@grouped
def probabilities(
    inputs: PromptOptions,
    source: ModelOptions,
    form: FormatOptions,
    bans: BanOptions,
    sampling: SettingOptions,
    tokenization: Tokenization = None,
    ends: Ends = None,
    open_at: OpenAt = None,
    tolerance: Annotated[float, typer.Option(help="Width of an interval, at most; 0 enumerates everything.")] = 1e-3,
    effort: Annotated[int, typer.Option(min=1, help="Model tokens per prompt, at most.")] = SEARCH_EFFORT.tokens,
    seconds: Annotated[float | None, typer.Option(help="Seconds for a batch of prompts; by default no limit.")] = None,
    top: Annotated[int, typer.Option(min=1, help="Values of a table.")] = 20,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that share model calls.")] = 16,
    output: Annotated[
        Path | None, typer.Option(help="File of all values as lines of JSON; what stands there is replaced.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Rank the values of an output type by their probability, with certified bounds.

    Under the model's own distribution, conditioned on the format: a table for each prompt, and its values as lines of JSON.
    """
    given = inputs.read()
    banned = bans.read()
    _, output_type = form.read()
    settings = sampling.keywords() | keywords(tokenization=tokenization, ends=ends, open_at=open_at)
    CallOptions.read(settings, None)
    meant("tolerance", tolerance)
    limit = Effort(tokens=effort, seconds=seconds)
    if output is not None:
        check_target(output)
    loaded = source.load(given)
    generator = Generator(loaded, output_type, banned_phrases=banned, **keywords(ends=ends, open_at=open_at))
    options = CallOptions.read(settings, loaded.defaults)

    def refused(prompt: Prompt) -> OutlinesPhiError | None:
        return refusal(loaded, generator.table, prompt, options)

    def ranked(prompts: Sequence[Prompt]) -> Sequence[Found]:
        progress = shown_by.told(completed=False)
        try:
            asked = [model_input(prompt) for prompt in prompts]
            return list(
                generator.probabilities_batch(asked, tolerance=tolerance, effort=limit, progress=progress, **settings)
            )
        except BudgetError as error:
            return [_kept(error, found, tolerance) for found in error.partial]

    console, lines, failed = Console(highlight=False), list[Record](), 0
    with bar("prompts", len(given), shown=not quiet) as shown_by:
        for first in range(0, len(given), batch_size):
            rows = given[first : first + batch_size]
            for index, (prompt, found) in enumerate(zip(rows, apart(ranked, rows, refused), strict=True), first):
                failed += isinstance(found, OutlinesPhiError)
                _print(prompt, found, top, console)
                lines += _records({"prompt_index": index, "prompt": prompt}, found)
            shown_by.move(first + len(rows))
    if output is not None:
        write_atomically(output, b"".join(map(line, lines)))
        note(f"Probabilities: {output}")
    if failed:
        tell("Failed", "red", f"{failed} of {counted(len(given), 'prompt')}.")
        raise typer.Exit(FAILED)


def _kept(error: BudgetError, found: Probabilities, tolerance: float) -> Found:
    """Return the result for a prompt of a call whose effort ran out: an error where it fell short of the tolerance."""
    if found.tolerance <= tolerance:
        return found
    return BudgetError.of(
        "Give a larger --effort or --tolerance, or a lower --max-new-tokens",
        f"The effort ran out with intervals up to {found.tolerance:.3g} wide, short of --tolerance {tolerance:g}",
        "what is listed holds all the same",
        partial=[found],
    )


def _listed(found: Found) -> Probabilities | None:
    """Return the probabilities of a prompt, as far as they are known."""
    match found:
        case Probabilities():
            return found
        case BudgetError(partial=[known]):
            return known
    return None


def _print(prompt: Prompt, found: Found, top: int, console: Console) -> None:
    known = _listed(found)
    if known is not None:
        head, remark = ("value", "p", "at least", "at most"), f"log Phi {bounds_text(known.log_z_bounds)}"
        print_table(TextTable(head, known.rows(top), f"After {prompt!r}", remark), console, name_width=60)
    if isinstance(found, OutlinesPhiError):
        tell("Failed", "red", message(found))


def _records(prompt: Record, found: Found) -> Iterator[Record]:
    """Yield a record per value, the likeliest first, one for all that are not listed, and one for an error."""
    if (known := _listed(found)) is not None:
        for rank, entry in enumerate(known.entries):
            refused = entry.refused
            said = {"value": None, "value_error": " ".join(str(refused).split())}
            yield {
                "record": "value",
                **prompt,
                "rank": rank,
                "text": entry.text,
                **(value_record(partial(getattr, entry, "value")) if refused is None else said),
                "p": jsonable(entry.p),
                "p_bounds": [entry.lo, entry.hi],
                "texts": list(entry.texts),
                "spellings": entry.spellings,
            }
        yield {
            "record": "others",
            **prompt,
            "p_bounds": list(known.other),
            "log_z_bounds": jsonable(known.log_z_bounds),
        }
    if isinstance(found, OutlinesPhiError):
        yield {"record": "error", **prompt, "error": type(found).__name__, "message": message(found)}
