"""``outlines-phi generate``: draws of many prompts, as lines of JSON."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UnsupportedError
from ..numerics.checks import check_fits, counted
from ..plugin.options import CallOptions
from ..plugin.types.output_types import to_language
from . import journal
from .batches import Batches, Summary
from .command_options import (
    BanOptions,
    CorrectionOptions,
    DraftingOptions,
    FormatOptions,
    ModelOptions,
    PromptOptions,
    RayOptions,
    Seed,
    SettingOptions,
    Tokenization,
    grouped,
    keywords,
)
from .ending import FAILED, INTERRUPTED, Debug, note, tell
from .inputs import COLUMN, Prompt
from .journal import Saved
from .loaded_model import check_chats, load
from .ray.folder_run import FolderRun
from .ray.parts import Parts
from .task import Task
from .terminal import Quiet, bar


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
    settings = sampling.keywords() | keywords(tokenization=tokenization)
    call = correction.call(output_type, banned, settings, drafting.read(correction.particles))
    CallOptions.read({**call.keywords, **keywords(seed=seed)}, None)
    if output_type is not None:
        to_language(output_type)
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
        parts = Parts(
            folder=output,
            form=form_of_parts,
            column=inputs.column or COLUMN,
            rows=inputs.read_rows(),
            file=inputs.file,
        )
        run = FolderRun(
            task=task,
            parts=parts,
            pool=pool,
            batch_size=batch_size,
            token_ids=token_ids,
            overwrite=overwrite,
            quiet=quiet,
        )
        raise typer.Exit(run.work())
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
    batches = task.batches(model)
    raise typer.Exit(_work(batches, given, batch_size, header, output, saved, token_ids, quiet))


def _work(
    batches: Batches,
    prompts: Sequence[Prompt],
    size: int,
    header: dict[str, Any],
    output: Path | None,
    saved: Saved | None,
    token_ids: bool,
    quiet: bool,
) -> int:
    """Draw what the file does not have yet; return the exit code."""
    begin, end, errors = (0, 0, 0) if saved is None else (saved.prompts, saved.end, saved.errors)
    asked = counted(len(prompts), "prompt")
    summary = Summary(prompts=begin, errors=Counter(earlier=errors))
    if begin:
        note(f"{output} has {begin} of {asked}; going on from there.")
    interrupted = False
    # No lines run through the bar.
    shown = not quiet and (output is not None or not sys.stdout.isatty())
    with (
        journal.writing(output, end) as write,
        bar("prompts", len(prompts), begin=begin, shown=shown) as progress,
    ):
        if batches.generator.model.tells_progress:
            batches = replace(batches, keywords={**batches.keywords, "progress": progress.told(completed=False)})
        try:
            if saved is None:
                write([header])
            for outcomes in batches.outcomes(prompts, size, begin):
                write([record for outcome in outcomes for record in journal.records_of(outcome, token_ids=token_ids)])
                summary.add(Summary.of(outcomes))
                progress.move(summary.prompts)
        except KeyboardInterrupt:
            interrupted = True
    if output is not None:
        summary.note_written(output, asked)
    summary.report(asked, batches.generator.phi)
    if interrupted:
        begun = "The same command, without --overwrite, goes on from there."
        resume = begun if output else "A run with --output FILE can go on where it ended."
        tell("Interrupted", "yellow", f"after {summary.prompts} of {asked}. {resume}")
        return INTERRUPTED
    return FAILED if summary.errors.total() else 0
