"""The commands of ``outlines-phi``, one file each, and how they end."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from .. import __version__
from ..errors import OutlinesPhiError
from .demo import demo

FAILURE = 2
"""The exit code of an error that the user can do something about, as for a wrong option."""

app = typer.Typer(
    help="Faithful constrained generation for Outlines.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.command()(demo)


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
    """Run the command that the arguments name; an error of this package is one red line and exit code 2."""
    try:
        app()
    except OutlinesPhiError as error:
        message = " ".join(str(error).split())
        Console(stderr=True).print(f"[bold red]Error:[/] {escape(message)}", soft_wrap=True, highlight=False)
        raise SystemExit(FAILURE) from None
