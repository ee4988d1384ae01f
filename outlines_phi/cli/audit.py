"""``outlines-phi audit``: how biased plain masking is, with a model, a format and some prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from outlines.generator import SteerableGenerator
from rich.console import Console

from ..errors import OutlinesPhiError, UnsupportedError
from ..fidelity.audit_report import AuditReport
from ..plugin.auditing import audit as measure
from ..plugin.hosts.processor import MaskLogitsProcessor
from ..plugin.hosts.transformers import PhiTransformers
from ..plugin.options import CallOptions
from ..plugin.types.output_types import to_language
from .bar import Quiet, bar
from .ending import Debug, note
from .inputs.model import check_chats, load
from .inputs.options import (
    BanOptions,
    FormatOptions,
    ModelOptions,
    PromptOptions,
    Seed,
    SettingOptions,
    grouped,
    keywords,
)
from .inputs.prompts import Prompt, model_input
from .results.saved import audit_saved
from .tables import print_audit

SUFFIXES = (".md", ".html", ".json", ".png")
"""Formats of a report."""


@grouped
def audit(
    context: typer.Context,
    inputs: PromptOptions,
    source: ModelOptions,
    form: FormatOptions,
    bans: BanOptions,
    law: SettingOptions,
    n: Annotated[int, typer.Option("--n", min=2, help="Draws per prompt.")] = 200,
    seed: Seed = None,
    confidence: Annotated[float, typer.Option(help="Of each interval by itself.")] = 0.95,
    bounds_tokens: Annotated[
        int, typer.Option("--bounds-tokens", min=0, help="Model tokens per prompt for bounds of Phi.")
    ] = 0,
    output: Annotated[
        list[Path] | None, typer.Option(help=f"File of the report: {', '.join(SUFFIXES)}; may be given several times.")
    ] = None,
    saved: Annotated[
        Path | None, typer.Option("--from", help="Audit the draws of a file that generate --phi local wrote; no model.")
    ] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure how far plain masking is from the model's own distribution, conditioned on the format.

    From masked draws with weights: the distance with an interval, the fields where it arises, the values that it distorts.
    """
    if saved is not None:
        _check_alone(context)
        audit_saved(saved, confidence, Console(highlight=False))
        return
    given = inputs.read()
    banned = bans.read()
    _, output_type = form.read(free=banned is not None)
    settings = law.keywords() | keywords(seed=seed)
    CallOptions.read(settings, None)
    if output_type is not None:
        to_language(output_type)
    targets = output or []
    for target in targets:
        _check_target(target)
    loaded = load(source.model, source.device, source.dtype)
    check_chats(loaded, given)
    processor = MaskLogitsProcessor(loaded.table(output_type, banned), ban=banned)
    _check_prompts(loaded, processor, given, settings)
    application = SteerableGenerator.from_processor(loaded, processor)
    report = _measured(application, given, n, confidence, bounds_tokens, settings, quiet)
    print_audit(report, Console(highlight=False))
    for target in targets:
        note(f"Report: {report.save(target)}")


def _check_alone(context: typer.Context) -> None:
    """Raise UnsupportedError where options were given that a file of draws has no use for."""
    useless = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in ("saved", "confidence", "quiet", "debug")
        and getattr(context.get_parameter_source(str(parameter.name)), "name", "") == "COMMANDLINE"
    ]
    if useless:
        raise UnsupportedError(
            f"Leave it out, or audit the model itself: {', '.join(useless)} cannot be given together with --from. The file says "
            "what was drawn, and its weights alone do not tell where mass is lost, so there is no report to save."
        )


def _measured(
    application: SteerableGenerator,
    prompts: list[Prompt],
    n: int,
    confidence: float,
    bounds_tokens: int,
    settings: dict[str, Any],
    quiet: bool,
) -> AuditReport:
    with bar("draws", n * len(prompts), shown=not quiet) as progress:
        return measure(
            application,
            [model_input(prompt) for prompt in prompts],
            n,
            confidence=confidence,
            bounds_tokens=bounds_tokens,
            progress=progress.told(completed=True),
            **settings,
        )


def _check_target(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise UnsupportedError(
            f"Give one of the suffixes {', '.join(SUFFIXES)}, which name the format: --output {path} has none of them."
        )
    if not path.parent.is_dir() or path.is_dir():
        raise UnsupportedError(f"Give the path of a file in a folder that exists: --output {path} cannot be written.")


def _check_prompts(
    model: PhiTransformers, processor: MaskLogitsProcessor, prompts: list[Prompt], settings: dict[str, Any]
) -> None:
    """Raise the error of the first prompt that cannot be audited, with its number."""
    options = CallOptions.read(settings, model.model.generation_config)
    for index, prompt in enumerate(prompts):
        try:
            with model.asking([model_input(prompt)], processor, options):
                pass
        except OutlinesPhiError as error:
            error.args = (f"Prompt {index} (counted from 0): {error}", *error.args[1:])
            raise
