"""The bundled model, read once in a process."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from outlines_phi.lm import bundled

if TYPE_CHECKING:
    import torch

read = cache(bundled.load)


def copied_model(dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Return a copy of the model and of its tokenizer that a test may change."""
    return copy.deepcopy(read(dtype))
