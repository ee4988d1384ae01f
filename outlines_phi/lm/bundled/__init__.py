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
    """Return the folder that holds the weights, the tokenizer and the model card.

    Returns a folder that ``AutoModelForCausalLM.from_pretrained`` and ``AutoTokenizer.from_pretrained`` accept.
    """
    return pathlib.Path(__file__).resolve().parent


def load(dtype: torch.dtype | None = None) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerBase]:
    """Load the bundled model and its tokenizer, without any network access.

    ``dtype``: the type of the weights in memory; they are stored as float16. ``None``, the default, stands for ``torch.float32``,
        which every CPU computes quickly.

    Returns the model, in evaluation mode, and its tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = path()
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype if dtype is not None else torch.float32, local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), tokenizer
