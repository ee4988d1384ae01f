"""What vLLM loads by name, such as ``outlines_phi.vllm:PhiAttempts``.

A server of vLLM is given ``--logits-processors outlines_phi.vllm:PhiAttempts``, see ``docs/hosts.md``. What a name stands for is
imported when it is asked for, and needs vLLM.
"""

from __future__ import annotations

from importlib import import_module

NAMES = {
    "PhiAttempts": "plugin.hosts.vllm_server.phi_attempts",
}
"""By name: the module that has it."""


def __getattr__(name: str) -> object:
    """Return what vLLM asks for."""
    if name in NAMES:
        return getattr(import_module(f".{NAMES[name]}", __package__), name)
    raise AttributeError(f"Use one of {', '.join(NAMES)}: outlines_phi.vllm has no {name}.")


def __dir__() -> list[str]:
    return [*NAMES]
