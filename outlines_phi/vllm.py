"""The classes that vLLM loads by name: ``vllm.LLM(model, **outlines_phi.vllm.ENGINE)``, and those of ``outlines-phi serve``.

``RowCapture`` and ``RowReader`` hand out the logits of an engine in the application; ``PhiAttempts`` draws inside the engine of a
server (``docs/hosts.md``). What a name stands for is imported when it is asked for, and needs vLLM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .lm.vllm.engine import RowCapture as RowCapture
    from .lm.vllm.engine import RowReader as RowReader
    from .lm.vllm.vllm_model import ENGINE as ENGINE
    from .plugin.hosts.vllm_server.phi_attempts import PhiAttempts as PhiAttempts

# A worker of vLLM that loads one of them has no use for the imports of the others.
NAMES = {
    "ENGINE": "lm.vllm.vllm_model",
    "RowCapture": "lm.vllm.engine",
    "RowReader": "lm.vllm.engine",
    "PhiAttempts": "plugin.hosts.vllm_server.phi_attempts",
}
"""By name: the module that has it."""


def __getattr__(name: str) -> object:
    if name in NAMES:
        return getattr(import_module(f".{NAMES[name]}", __package__), name)
    raise AttributeError(f"Use one of {', '.join(NAMES)}: outlines_phi.vllm has no {name}.")


def __dir__() -> list[str]:
    return [*NAMES]
