"""``outlines-phi inspect``: the machine of an output type as a page, with texts token by token."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from outlines_phi.cli.app import Debug, note
from outlines_phi.cli.command_options import (
    BanOptions,
    ModelOptions,
    RegexOption,
    Schema,
    SettingOptions,
    Type,
    grouped,
    one_of,
)
from outlines_phi.cli.inputs import BUNDLED, read_output_type
from outlines_phi.cli.terminal import Quiet, bar
from outlines_phi.errors import UnsupportedError
from outlines_phi.numerics.checks import counted
from outlines_phi.plugin.types.output_types import to_language

from ..inspection.loopback_server import LoopbackServer
from ..inspection.site import build, check_folder
from . import GrammarArgument
from .inspection_maker import InspectionMaker

ACTIONS = ("serve", "build")
EFFORT = 128  # Model tokens for the bounds of a step, where nothing else is asked for


@grouped
def inspect(
    action: Annotated[str, typer.Argument(**one_of("inspect", ACTIONS), help="A page on this machine, or a folder.")],
    source: ModelOptions,
    bans: BanOptions,
    sampling: SettingOptions,
    grammar: GrammarArgument = None,
    type_: Type = None,
    schema: Schema = None,
    regex: RegexOption = None,
    text: Annotated[
        list[str] | None,
        typer.Option(help="Text to step through, or the beginning of one; may be given several times."),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help=f"Folder or hub name of a tokenizer, where no model is asked; by default {BUNDLED!r}."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Ask --model about texts after this prompt: masses, and bounds on Phi.")
    ] = None,
    effort: Annotated[
        int | None,
        typer.Option(min=1, help=f"With --prompt: model tokens for the bounds of each step; by default {EFFORT}."),
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1, help="Verify, as outlines-phi verify does, words of at most so many tokens; by default not."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option("--output-dir", "--output", show_default=False, help="With build: folder of the page."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="With serve; by default a free one.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show the machine of an output type as a page, and step through texts token by token.

    serve is a page on this machine alone; build writes it into a folder, with the texts given by --text. See docs/inspect.md.
    """
    _check(action, output_dir, port, prompt, tokenizer, effort, source, sampling)
    banned, texts = bans.read(), text or []
    name, output_type = read_output_type(type_, schema, regex, grammar)
    name = grammar or name
    to_language(output_type)
    with bar("compiling", 1, shown=not quiet) as progress:
        made = InspectionMaker(output_type, banned)
        if prompt is None:
            inspection = made.without_model(name, tokenizer or BUNDLED, sampling.max_new_tokens)
        else:
            inspection = made.with_model(name, source, sampling, prompt, effort or EFFORT)
        if depth is not None:
            progress.move(description="verifying")
            inspection = made.verified(inspection, depth)
        progress.move(description="drawing")
        _ = inspection.inspected.machine
        if action == "build":
            assert output_dir is not None
            files = build(inspection, output_dir, texts, lambda key: progress.move(description=key))
    if action == "build":
        note(f"Page: {Path(str(output_dir)) / 'index.html'} ({counted(files, 'file')})")
        return
    with LoopbackServer(inspection, texts, port or 0) as server:
        typer.echo(server.address)
        note("Ctrl-C ends it.")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _check(
    action: str,
    output_dir: Path | None,
    port: int | None,
    prompt: str | None,
    tokenizer: str | None,
    effort: int | None,
    source: ModelOptions,
    sampling: SettingOptions,
) -> None:
    """Refuse missing options, and given ones of no use."""
    if action == "build":
        if output_dir is None:
            raise UnsupportedError("Give --output-dir FOLDER. build writes the page there, and none was given.")
        if port is not None:
            raise UnsupportedError(f"Leave --port out, or serve the page. --port {port} was given with build.")
        check_folder(output_dir)
    elif output_dir is not None:
        raise UnsupportedError(
            f"Leave --output-dir out, or build the page. --output-dir {output_dir} was given with serve."
        )
    if prompt is not None:
        if tokenizer is not None:
            raise UnsupportedError(
                f"Leave --tokenizer out. --prompt asks a model, which has its own, and --tokenizer {tokenizer} was given."
            )
        return
    given = {
        "--effort": effort,
        **{
            f"--{name.replace('_', '-')}": value
            for name, value in sampling.keywords().items()
            if name != "max_new_tokens"
        },
        **{f"--{name}": value for name, value in vars(source).items() if value not in (None, BUNDLED)},
    }
    if useless := [option for option, value in given.items() if value is not None]:
        raise UnsupportedError(
            f"Give --prompt TEXT, after which a model is asked, or leave it out: {', '.join(useless)} was given without --prompt."
        )
