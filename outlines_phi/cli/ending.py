"""How a command ends: nothing more than a line for an error that the user can do something about, and an exit code."""

from __future__ import annotations

import errno
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from ..errors import BudgetError, GrammarError, ModelError, OutlinesPhiError

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: work that failed, something given that cannot be used (as for a wrong option), Ctrl-C."""

DEBUG = "outlines_phi.debug"
"""Where the context of a command keeps whether tracebacks were asked for."""


def _set_debug(context: typer.Context, asked: bool) -> None:
    context.meta[DEBUG] = asked


Debug = Annotated[bool, typer.Option("--debug", callback=_set_debug, help="Show the traceback of an error.")]


class Commands(TyperGroup):
    """A group of commands that say their errors in one red line."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if ctx.meta.get(DEBUG):
                raise
            tell("Interrupted", "yellow", "before there was a result.")
            raise typer.Exit(INTERRUPTED) from None
        except (OutlinesPhiError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not (isinstance(error, OutlinesPhiError) or out_of_memory(error)):
                raise
            broken_pipe = isinstance(error, OSError) and error.errno == errno.EPIPE
            if ctx.meta.get(DEBUG) or broken_pipe:
                raise
            tell("Error", "red", message(error))
            raise typer.Exit(exit_code(error)) from None


def out_of_memory(error: BaseException) -> bool:
    """Return whether a device ran out of memory, without importing torch where no device was used."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)


def message(error: BaseException) -> str:
    """Return what an error says: one line, and under it the caret of an error that points into a text."""
    match error:
        case _ if out_of_memory(error):
            return (
                "The device ran out of memory. Give a smaller --batch-size, --n or --dtype; a file that was begun by --output "
                "goes on where it ended."
            )
        case GrammarError(position=int()):
            *said, place, line, mark = str(error).split("\n")
            return "\n".join([" ".join(" ".join(said).split()), place, line, mark])
    return " ".join(str(error).split())


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends by ``error``."""
    match error:
        case BudgetError() | ModelError() | OSError():
            return FAILED
        case _ if out_of_memory(error):
            return FAILED
    return REFUSED


def tell(kind: str, color: str, text: str) -> None:
    """Print a line to the terminal of messages (stderr), on however many rows it takes."""
    # Not as markup: a text may hold [this], which would be read as a style, or :this:, which would become an emoji.
    said = Text.assemble((f"{kind}: ", f"bold {color}"), text)
    Console(stderr=True).print(said, soft_wrap=True)


def note(text: str) -> None:
    """Print a line without a heading to the terminal of messages (stderr)."""
    Console(stderr=True).print(Text(text), soft_wrap=True)
