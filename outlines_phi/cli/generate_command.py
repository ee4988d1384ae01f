"""``outlines-phi generate``: draws of many prompts, as lines of JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UnsupportedError
from ..numerics.checks import check_fits
from ..plugin.call import CallOptions
from . import journal
from .actors import Parts, draw_into
from .app import Debug
from .batches import Summary, Task, Told, told, work
from .command_options import (
    BanOptions,
    CorrectionOptions,
    DraftingOptions,
    Ends,
    FormatOptions,
    ModelOptions,
    OpenAt,
    PromptOptions,
    RayOptions,
    Seed,
    SettingOptions,
    Tokenization,
    grouped,
    keywords,
)
from .inputs import COLUMN, check_chats, load
from .terminal import Bar, Quiet


@grouped
def generate(
    inputs: PromptOptions,
    source: ModelOptions,
    form: FormatOptions,
    bans: BanOptions,
    sampling: SettingOptions,
    drafting: DraftingOptions,
    correction: CorrectionOptions,
    actors: RayOptions,
    n: Annotated[int, typer.Option(min=1, help="Draws per prompt.")] = 1,
    tokenization: Tokenization = None,
    ends: Ends = None,
    open_at: OpenAt = None,
    seed: Seed = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that share model calls.")] = 16,
    output: Annotated[
        Path | None,
        typer.Option(help="File of the draws, gone on with where it ended; by default the standard output."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Begin the file anew.")] = False,
    token_ids: Annotated[bool, typer.Option("--token-ids", help="Write the token ids of every draw.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw outputs in a format, each with its weight and guarantee, as lines of JSON.

    The first line says what the draws depend on; then comes a line per draw, or one with the error of a prompt that has none.
    """
    if overwrite and output is None:
        raise UnsupportedError(
            "Leave --overwrite out: --overwrite was given without --output, so there is no file to begin anew."
        )
    check_fits(
        "n", n, count=n, each=1024, things="draws of a prompt", instead="Draw into several files, with a seed each"
    )
    chosen = actors.read(output, inputs.file)
    banned = bans.read(correction.ban_level)
    type_name, output_type = form.read(free=banned is not None)
    settings = sampling.keywords() | keywords(tokenization=tokenization, ends=ends, open_at=open_at)
    call = correction.call(output_type, banned, settings, drafting.read(correction.particles))
    CallOptions.read({**call.keywords, **keywords(seed=seed)}, None)
    task = Task(
        load=partial(load, source.model, source.device, source.dtype, source.host),
        model=source.model,
        output_type=output_type,
        call=call,
        type_name=type_name,
        n=n,
        seed=seed,
        told=(("tolerance", correction.tolerance), ("confidence", correction.confidence)),
    )
    if chosen is not None and output is not None:
        pool, form_of_parts = chosen
        column, rows = inputs.column or COLUMN, inputs.read_rows()
        parts = Parts(folder=output, form=form_of_parts, column=column, rows=rows, file=inputs.file)
        options = {"token_ids": token_ids, "overwrite": overwrite, "quiet": quiet}
        raise typer.Exit(draw_into(parts, task, pool, batch_size, **options))
    given = inputs.read()
    saved = None
    if output is not None:
        journal.check_target(output)
        saved = None if overwrite else journal.read(output, given)
    task = replace(task, seed=journal.seeded(seed, saved and saved.header))
    model = task.loaded()
    check_chats(model, given)
    header = task.header(model)
    if saved is not None:
        journal.check_same_run(saved.header, header, output)
    begin, end, errors = (0, 0, 0) if saved is None else (saved.prompts, saved.end, saved.errors)
    batches = task.batches(model)

    def drawn(progress: Bar) -> Iterator[Told]:
        told_by = {"progress": progress.told(completed=False)} if model.tells_progress else {}
        if saved is None:
            yield [header], Summary()
        drawing = replace(batches, keywords=batches.keywords | told_by)
        for outcomes in drawing.outcomes(given, batch_size, begin):
            yield told(outcomes, token_ids=token_ids)

    summary = Summary(prompts=begin, errors=Counter(earlier=errors))
    shown = not quiet and (output is not None or not sys.stdout.isatty())  # no lines run through the bar
    writing = journal.writing(output, end)
    raise typer.Exit(work(drawn, writing, summary, len(given), output, batches.generator.phi, shown=shown))
