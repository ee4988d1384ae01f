"""Commands of the workbench, and the argument that several of them take."""

from __future__ import annotations

from typing import Annotated

import typer

from outlines_phi.guides.grammar.notation.reader import NAMES

GrammarArgument = Annotated[
    str | None,
    typer.Argument(
        show_default=False,
        help=f"File in Lark's dialect or in GBNF (.gbnf), or a grammar that is shipped: {', '.join(NAMES)}, dyck-n.",
    ),
]
