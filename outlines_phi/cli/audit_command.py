"""``outlines-phi audit``: how biased plain masking is, with a model, a format and some prompts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from outlines.generator import SteerableGenerator
from rich.console import Console
from rich.text import Text

from ..errors import EmptyLanguageError, UnsupportedError
from ..fidelity.audit_report import AuditReport, check
from ..fidelity.bias import TOLERANCE, AuditVerdict, measure
from ..fidelity.report_text import bias_section, sections, verdict, verdict_on
from ..guides.table import Table
from ..numerics.checks import counted
from ..phi.onestep import LocalPhi
from ..plugin import generator
from ..plugin.call import CallOptions
from ..plugin.processor import MaskLogitsProcessor
from ..plugin.session import PhiModel
from .app import Debug, note
from .batches import refusal
from .command_options import (
    BanOptions,
    FormatOptions,
    ModelOptions,
    PromptOptions,
    Seed,
    SettingOptions,
    grouped,
    keywords,
)
from .inputs import Prompt, model_input
from .journal import check_target, records
from .terminal import Quiet, bar, print_table

SUFFIXES = (".md", ".html", ".json", ".png")  # Formats of a report

VERDICTS = {AuditVerdict.NOT_BIASED: 0, AuditVerdict.BIASED: 3, AuditVerdict.UNDECIDED: 4}
"""Exit codes of an audit; 1 and 2 say that there is none."""


@grouped
def audit(
    context: typer.Context,
    inputs: PromptOptions,
    source: ModelOptions,
    form: FormatOptions,
    bans: BanOptions,
    sampling: SettingOptions,
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
    given = inputs.read()
    banned = bans.read()
    _, output_type = form.read(free=banned is not None)
    settings = sampling.keywords() | keywords(seed=seed)
    CallOptions.read(settings, None)
    for target in output or ():
        if target.suffix not in SUFFIXES:
            raise UnsupportedError(
                f"Give one of the suffixes {', '.join(SUFFIXES)}, which name the format: --output {target} has none of them."
            )
        check_target(target)
    loaded = source.load(given)
    processor = MaskLogitsProcessor(loaded.table(output_type, banned), ban=banned)
    _check_prompts(loaded, processor.table, given, settings)
    application = SteerableGenerator.from_processor(loaded, processor)
    with bar("draws", n * len(given), shown=not quiet) as progress:
        report = generator.audit(
            application,
            [model_input(prompt) for prompt in given],
            n,
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
