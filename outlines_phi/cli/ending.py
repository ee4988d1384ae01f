"""How a command ends: nothing more than a line for an error that the user can do something about, and an exit code."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ..errors import BudgetError, GrammarError, ModelError

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: work that failed, something given that cannot be used (as for a wrong option), Ctrl-C."""

DEBUG = "outlines_phi.debug"  # Where the context of a command keeps whether tracebacks were asked for


def _set_debug(context: typer.Context, asked: bool) -> None:
    context.meta[DEBUG] = asked


Debug = Annotated[bool, typer.Option("--debug", callback=_set_debug, help="Show the traceback of an error.")]


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
    return FAILED if isinstance(error, BudgetError | ModelError | OSError) or out_of_memory(error) else REFUSED


def tell(kind: str, color: str, text: str) -> None:
    """Print a line to the terminal of messages (stderr), on however many rows it takes."""
    # Not as markup: a text may hold [this], which would be read as a style, or :this:, which would become an emoji.
    said = Text.assemble((f"{kind}: ", f"bold {color}"), text)
    Console(stderr=True).print(said, soft_wrap=True)


def note(text: str) -> None:
    """Print a line without a heading to the terminal of messages (stderr)."""
    Console(stderr=True).print(Text(text), soft_wrap=True)
