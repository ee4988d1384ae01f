"""Commands of the workbench, and the options that several of them take."""

from __future__ import annotations

from typing import Annotated

import typer

from outlines_phi.cli.command_options import FORMAT, Rows, option
from outlines_phi.cli.inputs import BUNDLED
from outlines_phi.guides.grammar.notation.reader import NAMES

SUBJECT: Rows = {
    **FORMAT,
    "grammar": Annotated[
        str | None,
        typer.Argument(
            show_default=False,
            help=f"File in Lark's dialect or in GBNF (.gbnf), or a grammar that is shipped: {', '.join(NAMES)}, dyck-n.",
        ),
    ],
    "tokenizer": (
        option(str, f"Folder or hub name of a tokenizer; {BUNDLED!r} for that of the small model.", "--tokenizer"),
        BUNDLED,
    ),
}
"""An output type, of which the grammar is an argument, and a tokenizer."""
