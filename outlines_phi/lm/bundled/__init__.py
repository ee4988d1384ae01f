"""The bundled model: a small Qwen3-architecture language model that ships inside the package.

It was trained from scratch by ``examples/train_bundled_model.py`` on text which that script
generates, so that demos and tests run offline, in seconds, on one CPU core. ``README.md`` beside
this file is its model card.
"""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase, Qwen3ForCausalLM

__all__ = ["load", "path"]


def path() -> pathlib.Path:
    """Return the folder of the weights, the tokenizer and the model card, as ``from_pretrained`` takes it."""
    return pathlib.Path(__file__).resolve().parent


def load(dtype: torch.dtype | None = None) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerBase]:
    """Return the bundled model, in evaluation mode, and its tokenizer, without any network access.

    ``dtype`` is that of the weights in memory: ``torch.float32`` by default, which every CPU computes quickly.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = path()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype if dtype is not None else torch.float32, local_files_only=True
    )
    return model.eval(), AutoTokenizer.from_pretrained(folder, local_files_only=True)
