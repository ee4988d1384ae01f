"""The bundled model, read once in a process."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

from outlines_phi.lm import bundled

if TYPE_CHECKING:
    import torch

read = cache(bundled.load)


@cache
def tried(dtype: torch.dtype | None) -> dict[tuple[str, int], str | None]:
    """Return the verdicts of the model's trial."""
    from outlines_phi.lm.transformers import roads
    from outlines_phi.lm.transformers.transformers_model import TransformersModel

    model, tokenizer = read(dtype)
    assert TransformersModel.with_tokenizer(model, tokenizer).road == "packed"
    return {(name, border): verdict for (_, name, border), verdict in roads.VERDICTS[model].items()}


def copied_model(dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Return a copy of the model and of its tokenizer that a test may change; as it is, it needs no trial of its own."""
    from outlines_phi.lm.transformers import roads
    from outlines_phi.lm.transformers.forward import structure

    verdicts = tried(dtype)
    model, tokenizer = copy.deepcopy(read(dtype))
    roads.VERDICTS[model] = {(structure(model), *trial): verdict for trial, verdict in verdicts.items()}
    return model, tokenizer
