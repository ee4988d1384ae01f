"""The commands of ``outlines-phi``, one file each."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from .audit import audit
from .demo import demo
from .ending import Commands
from .fidelity import fidelity
from .generate import generate
from .verify import verify

app = typer.Typer(
    help="Faithful constrained generation for Outlines.",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(demo)
app.command()(generate)
app.command()(audit)
app.command()(fidelity)
app.command()(verify)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"outlines-phi {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Faithful constrained generation for Outlines."""


def run() -> None:
    """Run the command that the arguments name."""
    app()
