"""The commands of ``outlines-phi``: each is imported when it runs, and ends with a line that says what to do, and an exit code."""

import errno
import importlib.util
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, final

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_command

from .. import __version__
from ..errors import BudgetError, GrammarError, ModelError, OutlinesPhiError, UnsupportedError

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes: work that failed, something given that cannot be used (as for a wrong option), Ctrl-C."""

DEBUG = "outlines_phi.debug"  # Where the context of a command keeps whether tracebacks were asked for


Debug = Annotated[
    bool,
    typer.Option(
        "--debug",
        callback=lambda context, asked: context.meta.update({DEBUG: asked}),
        help="Show the traceback of an error.",
    ),
]


def out_of_memory(error: BaseException) -> bool:
    """Return True if a device ran out of memory, without importing torch where no device was used."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)


def message(error: BaseException) -> str:
    """Format an error: one line, and under it the caret of an error that points into a text."""
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


def tell(kind: str, color: str, text: str) -> None:
    """Print a line to the terminal of messages (stderr), on however many rows it takes."""
    # Not as markup: a text may hold [this], which would be read as a style, or :this:, which would become an emoji.
    Console(stderr=True).print(Text.assemble((f"{kind}: ", f"bold {color}"), text), soft_wrap=True)


def note(text: str) -> None:
    """Print a line without a heading to the terminal of messages (stderr)."""
    Console(stderr=True).print(Text(text), soft_wrap=True)


OPTIONS = (
    "--logits-processors",
    "outlines_phi.vllm:PhiAttempts",
    "--no-enable-chunked-prefill",
    "--logprobs-mode",
    "processed_logits",
)
"""Requirements of a server, see ``docs/hosts.md``."""

OURS = (
    "--enable-chunked-prefill",
    *(option for option in OPTIONS if option.startswith("--")),
)  # Which nobody else gives


def command_of(model: str, port: int | None, extra: Sequence[str]) -> list[str]:
    """Return the command that starts the server. Raises :class:`UnsupportedError`: an option of ``extra`` would undo another."""
    for given in extra:
        name = given.partition("=")[0].replace("_", "-")
        if name in OURS:
            raise UnsupportedError(
                f"Leave {name} out, which serve gives: {' '.join(OPTIONS)}. A server with another one cannot draw under phi=."
            )
    start = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    return [*start, *([] if port is None else ["--port", str(port)]), *OPTIONS, *extra]


def serve(
    model: Annotated[str, typer.Argument(help="What vLLM loads: a folder, or a name on the Hugging Face hub.")],
    extra: Annotated[
        list[str] | None,
        typer.Argument(show_default=False, help="After --: further options of the server of vLLM, as they are."),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; by default that of vLLM, 8000.")] = None,
) -> None:
    """Start a vLLM server whose engine draws under phi="exact" and phi="local".

    The command is printed, and becomes the process: it ends as the server does. Calls are then made by
    outlines_phi.wrap(outlines.from_vllm(openai.OpenAI(base_url="http://localhost:8000/v1", api_key="-"), MODEL)).
    """
    command = command_of(model, port, extra or ())
    if importlib.util.find_spec("vllm") is None:
        raise UnsupportedError(
            "Install vLLM 0.32 in this environment: serve runs its server, and the package vllm is not here."
        )
    note(shlex.join(command))
    os.execvp(command[0], command)


OWN = {
    "demo": 'Show the bias of plain masking, and phi="exact" without it, on the bundled model.',
    "generate": "Draw outputs in a format, each with its weight and guarantee, as lines of JSON.",
    "audit": "Measure the distance of plain masking from the model's own distribution, conditioned on the format.",
    "probabilities": "Rank the values of an output type by their probability, with certified bounds.",
    "fit": "Measure the fit of output types to the model's own texts after each prompt, and advise.",
    "serve": 'Start a vLLM server whose engine draws under phi="exact" and phi="local".',
}
MODULES = {"demo": "demo_command", "serve": "app"}
"""The modules of the commands that are not in :mod:`~outlines_phi.cli.model_commands`."""

WORKBENCH = {
    "fidelity": "Measure the distance of every estimator and sampler from the model's own distribution, conditioned on a format.",
    "inspect": "Show the machine of an output type as a page, and step through texts token by token.",
    "verify": "Check the masks of a grammar against the definition.",
}
COMMANDS = OWN | WORKBENCH
"""The first lines of the commands' docstrings: help need not wait for torch, nor be without the workbench."""

GROUP = "outlines_phi.commands"  # Of the entry points by which the workbench offers its commands


def _function(name: str) -> Any:
    """Return the function of a command."""
    if name in OWN:
        return getattr(import_module(f"{__package__}.{MODULES.get(name, 'model_commands')}"), name)
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()
    raise UnsupportedError(
        f"Install the workbench: pip install outlines-phi-workbench=={__version__}. outlines-phi {name} is a command of it, and it "
        "is not installed here."
    )


def command(name: str) -> Any:
    """Return a command, with its options."""
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(_function(name))
    return get_command(alone)


@final
class Commands(TyperGroup):
    """A group that imports a command when it runs, and says its errors in one red line."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name, and what follows it."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and command(args[0]), rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the arguments name."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda warning, *_, **__: tell("Warning", "yellow", message(warning))
                return super().invoke(ctx)
        except KeyboardInterrupt:
            if ctx.meta.get(DEBUG):
                raise
            tell("Interrupted", "yellow", "before there was a result.")
            raise typer.Exit(INTERRUPTED) from None
        except (OutlinesPhiError, OSError, RuntimeError) as error:
            is_foreign = isinstance(error, RuntimeError) and not isinstance(error, OutlinesPhiError)
            if (
                (is_foreign and not out_of_memory(error))
                or getattr(error, "errno", None) == errno.EPIPE  # nobody reads any more
                or ctx.meta.get(DEBUG)
            ):
                raise
            tell("Error", "red", message(error))
            failed = isinstance(error, BudgetError | ModelError | OSError) or out_of_memory(error)
            raise typer.Exit(FAILED if failed else REFUSED) from None


app = typer.Typer(
    help="Faithful constrained generation for Outlines.",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for name, summary in COMMANDS.items():
    app.command(name, help=summary)(lambda: None)


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
