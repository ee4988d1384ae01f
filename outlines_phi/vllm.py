"""What vLLM loads by name: its engine is made with ``vllm.LLM(model, **outlines_phi.vllm.ENGINE)``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lm.vllm.row_capture import RowCapture, RowReader
    from .lm.vllm.vllm_model import ENGINE

__all__ = ["ENGINE", "RowCapture", "RowReader"]

# A worker of vLLM that loads one of them has no use for the imports of the others.
_FOUND_IN = {
    "ENGINE": ".lm.vllm.vllm_model",
    "RowCapture": ".lm.vllm.row_capture",
    "RowReader": ".lm.vllm.row_capture",
}


def __getattr__(name: str) -> Any:
    if name not in _FOUND_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_FOUND_IN[name], __package__), name)
