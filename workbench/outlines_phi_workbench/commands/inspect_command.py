"""``outlines-phi inspect``: the states of an output type as a page, with texts token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlines_phi import Vocabulary
from outlines_phi.cli.app import Debug, note
from outlines_phi.cli.command_options import BANS, Given, RegexOption, Schema, Type, taking
from outlines_phi.cli.inputs import BUNDLED, load_tokenizer, read_output_type
from outlines_phi.cli.terminal import Quiet, bar
from outlines_phi.numerics.checks import counted
from outlines_phi.plugin.types.output_types import to_language
from outlines_phi.plugin.types.tables import CompiledTypes

from ..inspection.inspected import Inspected
from ..inspection.pages import Inspection, build, check_folder
from ..verification.verification import verify
from . import GrammarArgument
from .verify_command import read_subject

MOST = 20_000  # Pairs of states that are verified at most


@taking(BANS)
def inspect(
    given: Given,
    grammar: GrammarArgument = None,
    type_: Type = None,
    schema: Schema = None,
    regex: RegexOption = None,
    text: Annotated[list[str] | None, typer.Option(help="Text to step through; may be given several times.")] = None,
    tokenizer: Annotated[str, typer.Option(help="Folder or hub name of a tokenizer.")] = BUNDLED,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of a text, its end included.")] = None,
    depth: Annotated[int | None, typer.Option(min=1, help="Verify words of at most so many tokens.")] = None,
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "--output", help="Folder of the page, made where there is none.")
    ] = Path("outlines-phi-inspect"),
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show the machine of an output type as a page, and step through texts token by token.

    The page needs no server and no network. See docs/inspect.md.
    """
    check_folder(output_dir)
    banned = given.read_ban()
    name, output_type = read_output_type(type_, schema, regex, grammar)
    to_language(output_type)  # which refuses what cannot be one, before anything is loaded
    with bar("compiling", 1, shown=not quiet) as progress:
        read = load_tokenizer(tokenizer)
        vocabulary = Vocabulary.from_tokenizer(read)
        guide, verification = CompiledTypes(vocabulary).without(output_type, banned).guide, None
        if depth is not None:
            progress.move(description="verifying")
            verification = verify(read_subject(grammar, (type_, schema, regex), vocabulary, depth=depth, most=MOST)[1])
        inspected = Inspected(grammar or name, guide, max_new_tokens)
        inspection = Inspection(
            inspected, lambda text: read.encode(text, add_special_tokens=False), text or [], verification
        )
        files = build(inspection, output_dir, lambda name: progress.move(description=name))
    note(f"Page: {output_dir / 'index.html'} ({counted(files, 'file')})")
