"""The command ``outlines-phi serve``: start a vLLM server that takes ``phi=``."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ..errors import UnsupportedError
from .app import note

OPTIONS = (
    "--logits-processors",
    "outlines_phi.vllm:PhiAttempts",
    "--no-enable-chunked-prefill",
    "--logprobs-mode",
    "processed_logits",
)
"""Requirements of a server, see ``docs/hosts.md``."""

VARIABLES = {"VLLM_USE_V2_MODEL_RUNNER": "0"}  # The environment that it needs

OURS = (
    "--enable-chunked-prefill",
    *(option for option in OPTIONS if option.startswith("--")),
)  # Nobody else gives these


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
    note(" ".join([*(f"{name}={value}" for name, value in VARIABLES.items()), shlex.join(command)]))
    os.execvpe(command[0], command, {**os.environ, **VARIABLES})
