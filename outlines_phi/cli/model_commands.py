"""``outlines-phi generate``, ``audit``, ``probabilities`` and ``fit``."""

import math
import sys
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from ..errors import BudgetError, EmptyLanguageError, OutlinesPhiError, UnsupportedError
from ..fidelity.audit_report import AuditReport, check
from ..fidelity.bias import TOLERANCE, AuditVerdict, measure
from ..fidelity.probabilities import Probabilities
from ..fidelity.report_text import TextTable, bias_section, jsonable, sections, verdict, verdict_on
from ..guides.table import Table
from ..numerics.cache import write_atomically
from ..numerics.checks import check_fits, counted
from ..numerics.weights import bounds_text
from ..phi.estimator import LocalPhi
from ..plugin import generator
from ..plugin.call import SEARCH_EFFORT, CallOptions
from ..plugin.choices import meant
from ..plugin.generator import LINE, Generator
from ..plugin.session import PhiModel
from ..sampling.phi_options import Effort
from .actors import Parts, draw_into
from .app import FAILED, Debug, message, note, tell
from .batches import Drawing, Task, Told, apart, refusal, run, told
from .command_options import (
    ACCOUNTS,
    BANS,
    CORRECTION,
    DRAFTS,
    FORMAT,
    MODEL,
    PROMPTS,
    RAY,
    SETTINGS,
    TEXTS,
    Given,
    Seed,
    taking,
)
from .inputs import COLUMN, Prompt, check_chats, load, model_input, read_output_type, read_rows
from .journal import Lines, Record, check_target, line, records, value_record
from .terminal import Bar, Quiet, bar, print_table


@taking(PROMPTS, MODEL, FORMAT, BANS, SETTINGS, TEXTS, DRAFTS, CORRECTION, ACCOUNTS, RAY)
def generate(
    given: Given,
    n: Annotated[int, typer.Option(min=1, help="Draws per prompt.")] = 1,
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
    chosen, banned = given.pool(output), given.read_ban(given.ban_level)
    type_name, output_type = given.read_type(free=banned is not None)
    call = given.call(output_type, banned)
    CallOptions.read({**call.keywords, "seed": seed}, None)
    task = Task(
        load=partial(load, given.model, given.device, given.dtype, given.host),
        model=given.model,
        output_type=output_type,
        call=call,
        type_name=type_name,
        n=n,
        seed=seed,
        told=(
            ("tolerance", given.tolerance),
            ("confidence", given.confidence),
            ("token_ids", token_ids or None),
        ),
    )
    if chosen is not None and output is not None:
        pool, form = chosen
        rows = read_rows(given.prompts or [], given.file, given.column)
        parts = Parts(path=output, form=form, column=given.column or COLUMN, rows=rows, file=given.file)
        raise typer.Exit(
            draw_into(parts, task, pool, batch_size, token_ids=token_ids, overwrite=overwrite, quiet=quiet)
        )
    prompts = given.read_prompts()

    def begun(task: Task) -> tuple[Record, Drawing]:
        model = task.loaded()
        check_chats(model, prompts)
        batches = task.batches(model)

        def drawn(finished: Container[int], progress: Bar) -> Iterator[Told]:
            told_by = {"progress": progress.told(completed=False)} if model.tells_progress else {}
            drawing = replace(batches, keywords=batches.keywords | told_by)
            for outcomes in drawing.outcomes(prompts, batch_size, finished):
                yield told(outcomes, token_ids=token_ids)

        return task.header(model), drawn

    shown = not quiet and (output is not None or not sys.stdout.isatty())  # no lines run through the bar
    raise typer.Exit(run(Lines(output, prompts), task, begun, len(prompts), overwrite=overwrite, shown=shown))


SUFFIXES = (".md", ".html", ".json", ".png")  # Formats of a report

VERDICTS = {AuditVerdict.NOT_BIASED: 0, AuditVerdict.BIASED: 3, AuditVerdict.UNDECIDED: 4}
"""Exit codes of an audit; 1 and 2 say that there is none."""


@taking(PROMPTS, MODEL, FORMAT, BANS, SETTINGS)
def audit(
    given: Given,
    context: typer.Context,
    n: Annotated[int, typer.Option(min=2, help="Draws per prompt.")] = 200,
    seed: Seed = None,
    confidence: Annotated[float, typer.Option(help="Of each interval by itself.")] = 0.95,
    tolerance: Annotated[
        float, typer.Option(help="Total variation up to which masking passes for not biased.")
    ] = TOLERANCE,
    bounds_tokens: Annotated[int, typer.Option(min=0, help="Model tokens per prompt for bounds of Phi.")] = 0,
    output: Annotated[
        list[Path] | None, typer.Option(help=f"File of the report: {', '.join(SUFFIXES)}; may be given several times.")
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--from", help="Audit the draws of a file that generate --phi local wrote; no model.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure the distance of plain masking from the model's own distribution, conditioned on the format.

    From masked draws with weights: the distance with an interval, the fields where it arises, the values that it distorts.
    Exit code: 0 not biased by more than --tolerance, 3 biased, 4 undecided.
    """
    if saved is not None:
        _check_alone(context)
        raise typer.Exit(VERDICTS[audit_saved(saved, confidence, tolerance, Console(highlight=False))])
    prompts, banned = given.read_prompts(), given.read_ban()
    _, output_type = given.read_type(free=banned is not None)
    settings = given.keywords(seed=seed)
    for target in output or ():
        if target.suffix not in SUFFIXES:
            raise UnsupportedError(
                f"Give one of the suffixes {', '.join(SUFFIXES)}, which name the format: --output {target} has none of them."
            )
        check_target(target)
    loaded = given.load(prompts)
    _check_prompts(loaded, loaded.table(output_type, banned), prompts, settings)
    with bar("draws", n * len(prompts), shown=not quiet) as progress:
        report = generator.audit(
            (loaded, output_type),
            [model_input(prompt) for prompt in prompts],
            n,
            banned_phrases=banned,
            confidence=confidence,
            tolerance=tolerance,
            bounds_tokens=bounds_tokens,
            progress=progress.told(completed=True),
            **settings,
        )
    print_audit(report, Console(highlight=False))
    for target in output or ():
        note(f"Report: {report.save(target)}")
    raise typer.Exit(VERDICTS[report.verdict])


def _check_alone(context: typer.Context) -> None:
    """Raise UnsupportedError where options were given that a file of draws has no use for."""
    useless = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in ("saved", "confidence", "tolerance", "quiet", "debug")
        and getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "COMMANDLINE"
    ]
    if useless:
        raise UnsupportedError(
            f"Leave it out, or audit the model itself: {', '.join(useless)} cannot be given together with --from. The file says "
            "what was drawn, and its weights alone do not tell where mass is lost, so there is no report to save."
        )


def _check_prompts(model: PhiModel, table: Table, prompts: list[Prompt], settings: dict[str, Any]) -> None:
    """Raise the error of the first prompt that cannot be audited, with its number."""
    options = CallOptions.read(settings, model.defaults)
    for index, prompt in enumerate(prompts):
        if (error := refusal(model, table, prompt, options)) is not None:
            error.args = (f"Prompt {index} (counted from 0): {error}", *error.args[1:])
            raise error


def audit_saved(path: Path, confidence: float, tolerance: float, console: Console) -> AuditVerdict:
    """Print the bias of the draws in the file at ``path``, and return the verdict."""
    header, log_w = read_weights(path)
    check(len(log_w), int(header["n"]), confidence, tolerance)
    if all(weight == -math.inf for weights in log_w for weight in weights):
        raise EmptyLanguageError(
            f"Loosen the truncation: None of the draws of {path} was completed, so nothing can be measured."
        )
    weights, certain = [np.array(weights) for weights in log_w], [(0.0, 1.0)] * len(log_w)
    bias, asked = measure(weights, certain, 1 - confidence, tolerance=tolerance), counted(len(log_w), "prompt")
    said = verdict_on(bias, confidence, f"on the average over {asked}")
    drawn = f"{path}: {header['n']} draws after each of {asked}, {header['output_type']['name']}."
    console.print(Text(drawn), "", Text(said, "bold"), "", sep="\n")
    print_table(bias_section(bias, confidence), console)
    return bias.verdict


def read_weights(path: Path) -> tuple[dict[str, Any], list[list[float]]]:
    """Return the first line of a file and the log weights of every finished prompt, ``-inf`` where a trajectory failed."""
    lines = [record for record, _ in records(path)]
    if not lines:
        raise UnsupportedError(f"Give a file of draws: {path} was not written by outlines-phi generate, or only begun.")
    header = lines[0]
    if header["phi"] != LocalPhi.name:
        raise UnsupportedError(
            "Draw with --phi local, or audit the model itself (outlines-phi audit --model ... PROMPTS): an audit reads the weights "
            f"of masked draws, and {path} holds draws of --phi {header['phi']}."
        )
    match header:
        case {"sampler": dict()}:
            raise UnsupportedError(
                "Draw with --phi local alone: an audit reads the weights of masked draws, and "
                f"{path} holds draws of --particles, which were picked by weight."
            )
        case {"ends": "open"}:
            raise UnsupportedError(
                f"Draw without --ends open to audit: the plain masking of applications ends with a member, and {path} has it."
            )
        case {"stop": _} | {"stop_strings": _}:
            raise UnsupportedError(
                f"Draw without stop strings to audit: the plain masking of applications ends with a member, and {path} has them."
            )
        case {"settings": {"tokenization": str(tokenization)}} if tokenization != "any":
            raise UnsupportedError(
                f"Draw without --tokenization {tokenization} to audit: plain masking does not know it, and {path} has it."
            )
    weights: dict[int, list[float]] = {}
    for record in lines[1:]:
        match record:
            case {"record": "draw", "prompt_index": int(index), "log_w": float() | int() | None as log_w}:
                weights.setdefault(index, []).append(-math.inf if log_w is None else min(0.0, float(log_w)))
    return header, [drawn for drawn in weights.values() if len(drawn) == header["n"]]


def print_audit(report: AuditReport, console: Console) -> None:
    """Print the findings of an audit."""
    console.print(Text(verdict(report), "bold"), "", sep="\n")
    for warning in report.warnings:
        console.print(Text.assemble(("Warning: ", "bold yellow"), warning), "", sep="\n")
    for section in sections(report):
        print_table(section, console)


Found = tuple[
    Probabilities | None, OutlinesPhiError | None
]  # The probabilities of a prompt, as far as known, and its error


@taking(PROMPTS, MODEL, FORMAT, BANS, SETTINGS, TEXTS)
def probabilities(
    given: Given,
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
    asked, banned = given.read_prompts(), given.read_ban()
    _, output_type = given.read_type()
    settings = given.keywords()
    meant("tolerance", tolerance)
    limit = Effort(tokens=effort, seconds=seconds)
    if output is not None:
        check_target(output)
    loaded = given.load(asked)
    ends = {"ends": given.ends or "text", "open_at": given.open_at}
    generator = Generator(loaded, output_type, banned_phrases=banned, **ends)
    options = CallOptions.read(settings, loaded.defaults)

    def refused(prompt: Prompt) -> OutlinesPhiError | None:
        return refusal(loaded, generator.table, prompt, options)

    def ranked(prompts: Sequence[Prompt]) -> Sequence[Found]:
        progress = shown_by.told(completed=False)
        try:
            inputs = [model_input(prompt) for prompt in prompts]
            known = generator.probabilities_batch(
                inputs, tolerance=tolerance, effort=limit, progress=progress, **settings
            )
            return [(found, None) for found in known]
        except BudgetError as error:
            return [_kept(found, tolerance) for found in error.partial]

    console, lines, failed = Console(highlight=False), list[Record](), 0
    with bar("prompts", len(asked), shown=not quiet) as shown_by:
        for first in range(0, len(asked), batch_size):
            rows = asked[first : first + batch_size]
            for index, (prompt, each) in enumerate(zip(rows, apart(ranked, rows, refused), strict=True), first):
                found = (None, each) if isinstance(each, OutlinesPhiError) else each
                failed += found[1] is not None
                _print(prompt, found, top, console)
                lines += _records({"prompt_index": index, "prompt": prompt}, found)
            shown_by.move(first + len(rows))
    if output is not None:
        write_atomically(output, b"".join(map(line, lines)))
        note(f"Probabilities: {output}")
    if failed:
        tell("Failed", "red", f"{failed} of {counted(len(asked), 'prompt')}.")
        raise typer.Exit(FAILED)


def _kept(found: Probabilities, tolerance: float) -> Found:
    """Return the result for a prompt of a call whose effort ran out: with an error where it fell short of the tolerance."""
    if found.tolerance <= tolerance:
        return found, None
    return found, BudgetError.of(
        "Give a larger --effort or --tolerance, or a lower --max-new-tokens",
        f"The effort ran out with intervals up to {found.tolerance:.3g} wide, short of --tolerance {tolerance:g}",
        "what is listed holds all the same",
    )


def _print(prompt: Prompt, found: Found, top: int, console: Console) -> None:
    known, error = found
    if known is not None:
        head, remark = ("value", "p", "at least", "at most"), f"log Phi {bounds_text(known.log_z_bounds)}"
        print_table(TextTable(head, known.rows(top), f"After {prompt!r}", remark), console, name_width=60)
    if error is not None:
        tell("Failed", "red", message(error))


def _records(prompt: Record, found: Found) -> Iterator[Record]:
    """Yield a record per value, the likeliest first, one for all that are not listed, and one for an error."""
    known, error = found
    if known is not None:
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
    if error is not None:
        yield {"record": "error", **prompt, "error": type(error).__name__, "message": message(error)}


@taking(PROMPTS, MODEL, SETTINGS, {"tokenization": TEXTS["tokenization"]})
def fit(
    given: Given,
    type_: Annotated[
        list[str] | None, typer.Option("--type", help="Output type, module:Class; again for each.")
    ] = None,
    schema: Annotated[list[Path] | None, typer.Option(help="File of a JSON schema; again for each.")] = None,
    regex: Annotated[list[str] | None, typer.Option(help="Regular expression; again for each.")] = None,
    grammar: Annotated[list[str] | None, typer.Option(help="Grammar, as generate takes it; again for each.")] = None,
    line: Annotated[
        int, typer.Option(min=1, help="Tokens of the line that the model writes by itself, at most.")
    ] = LINE,
    debug: Debug = False,
) -> None:
    """Measure the fit of output types to the model's own texts after each prompt, and advise.

    log Phi, the likeliest first tokens outside of each type and in it, and the line of greedy decoding without a type.
    """
    prompts = given.read_prompts()
    forms = [
        *(read_output_type(named, None, None) for named in type_ or ()),
        *(read_output_type(None, file, None) for file in schema or ()),
        *(read_output_type(None, None, pattern) for pattern in regex or ()),
        *(read_output_type(None, None, None, name) for name in grammar or ()),
    ]
    if not forms:
        raise UnsupportedError(
            "Give at least one of --type, --schema, --regex and --grammar, each as often as wanted: no output type was given."
        )
    settings = given.keywords()
    (_, first), *others = forms
    asked = [model_input(prompt) for prompt in prompts]
    typer.echo(Generator(given.load(prompts), first).fit(asked, [form for _, form in others], tokens=line, **settings))
