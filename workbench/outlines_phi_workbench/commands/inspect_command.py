"""``outlines-phi inspect``: the states of an output type as a page, with texts token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlines_phi import Vocabulary
from outlines_phi.cli.app import Debug, note
from outlines_phi.cli.command_options import BANS, Given, taking
from outlines_phi.cli.inputs import load_tokenizer
from outlines_phi.cli.terminal import Quiet, bar
from outlines_phi.numerics.checks import counted
from outlines_phi.plugin.types.tables import CompiledTypes

from ..inspection.inspected import Inspected
from ..inspection.pages import Inspection, build, check_folder
from ..verification.verification import verify
from . import SUBJECT
from .verify_command import read_subject

MOST = 20_000  # Pairs of states that are verified at most


@taking(SUBJECT, BANS)
def inspect(
    given: Given,
    text: Annotated[list[str] | None, typer.Option(help="Text to step through; may be given several times.")] = None,
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
    name, output_type = given.read_type()
    with bar("compiling", 1, shown=not quiet) as progress:
        read = load_tokenizer(given.tokenizer)
        vocabulary = Vocabulary.from_tokenizer(read)
        guide, verification = CompiledTypes(vocabulary).without(output_type, banned).guide, None
        if depth is not None:
            progress.move(description="verifying")
            verification = verify(read_subject(given, vocabulary, depth=depth, most=MOST)[1])
        inspected = Inspected(given.grammar or name, guide, max_new_tokens)
        inspection = Inspection(
            inspected, lambda text: read.encode(text, add_special_tokens=False), text or [], verification
        )
        files = build(inspection, output_dir, lambda name: progress.move(description=name))
    note(f"Page: {output_dir / 'index.html'} ({counted(files, 'file')})")
