"""``outlines-phi inspect``: the states of an output type as a page, with texts token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from outlines_phi import UnsupportedError, Vocabulary
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
from outlines_phi.cli.inputs import BUNDLED, load, load_tokenizer, read_output_type
from outlines_phi.cli.terminal import Quiet, bar
from outlines_phi.numerics.checks import counted
from outlines_phi.plugin.call import CallOptions
from outlines_phi.plugin.types.output_types import to_language
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi.vocabulary.trie import fewest_tokens

from ..inspection.inspected import Inspected
from ..inspection.loopback_server import LoopbackServer
from ..inspection.model_masses import PromptedModel
from ..inspection.pages import Inspection, build, check_folder
from ..verification.verification import verify
from . import GrammarArgument
from .verify_command import read_subject

ACTIONS = ("serve", "build")
MOST = 20_000  # Pairs of states that are verified at most
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
    text: Annotated[list[str] | None, typer.Option(help="Text to step through; may be given several times.")] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help=f"Folder or hub name of a tokenizer, where no model is asked; by default {BUNDLED!r}."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Ask --model after this prompt: masses, and bounds on Phi.")
    ] = None,
    effort: Annotated[
        int | None,
        typer.Option(min=1, help=f"With --prompt: model tokens for the bounds of a step, {EFFORT} by default."),
    ] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Verify words of at most so many tokens.")] = None,
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
    _check(action, output_dir, port)
    if prompt is None:
        settings = {f"--{name.replace('_', '-')}": value for name, value in sampling.keywords().items()}
        models = {f"--{name}": value for name, value in vars(source).items() if value != BUNDLED}
        given = {"--effort": effort, **settings, **models, "--max-new-tokens": None}
        if useless := [option for option, value in given.items() if value is not None]:
            raise UnsupportedError(
                "Give --prompt TEXT, after which a model is asked, or leave it out: "
                f"{', '.join(useless)} was given without --prompt."
            )
    elif tokenizer is not None:
        raise UnsupportedError(
            f"Leave --tokenizer out. --prompt asks a model, which has its own, and --tokenizer {tokenizer} was given."
        )
    banned = bans.read()
    name, output_type = read_output_type(type_, schema, regex, grammar)
    to_language(output_type)  # which refuses what cannot be one, before anything is loaded
    with bar("compiling", 1, shown=not quiet) as progress:
        if prompt is None:
            read = load_tokenizer(tokenizer or BUNDLED)
            types = CompiledTypes(Vocabulary.from_tokenizer(read))
            guide, budget, before, prompted = (
                types.without(output_type, banned).guide,
                sampling.max_new_tokens,
                b"",
                None,
            )
        else:
            loaded = load(source.model, source.device, source.dtype, source.host)
            options, read = CallOptions.read(sampling.keywords(), loaded.defaults), loaded.hf_tokenizer
            types = CompiledTypes(loaded.lm.vocabulary)
            table = types.without(output_type, banned)
            with loaded.asking([prompt], table, options) as request:
                ids, budget = request.prompts[0], request.budgets[0]
            before = loaded.lm.vocabulary.decode(token for token in ids if token < len(loaded.lm.vocabulary))
            guide, prompted = table.guide, PromptedModel(loaded.lm, options.settings, ids, table, effort or EFFORT)
        inspected = Inspected(grammar or name, guide, budget, guide.start_after(before))
        inspection = Inspection(inspected, encoder(read, inspected.vocabulary), text or [], prompted, prompt or "")
        if depth is not None:
            progress.move(description="verifying")
            named = (type_, schema, regex)
            _, subject = read_subject(grammar, named, inspected.vocabulary, depth=depth, most=MOST)
            inspection = replace(inspection, verification=verify(subject))
        if output_dir is not None:
            files = build(inspection, output_dir, lambda name: progress.move(description=name))
            note(f"Page: {output_dir / 'index.html'} ({counted(files, 'file')})")
            return
    with LoopbackServer(inspection, port or 0) as server:
        typer.echo(server.address)
        note("Ctrl-C ends it.")
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def encoder(tokenizer: Any, vocabulary: Vocabulary) -> Callable[[str], Sequence[int]]:
    """Return ``encode(text)`` without special tokens; fewest tokens if there is no tokenizer."""
    if tokenizer is None:
        return lambda text: fewest_tokens(vocabulary, text.encode())
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))


def _check(action: str, output_dir: Path | None, port: int | None) -> None:
    """Raise what is missing, or given and of no use."""
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
