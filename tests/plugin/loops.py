"""Hugging Face's own loop beside the calls of this package: seeded, and its rows read back as tokens and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from outlines_phi import PhiTransformers, custom_generate


def seeded(call: Callable[..., Any], *arguments: Any, seed: int = 5, **keywords: Any) -> Any:
    """Call under torch's seed; a stream is read to its end."""
    torch.manual_seed(seed)
    result = call(*arguments, **keywords)
    return list(result) if isinstance(result, Iterator) else result


def pair(model: PhiTransformers) -> tuple[Any, Any]:
    return model.model, model.hf_tokenizer


def inputs_of(tokenizer: Any, *prompts: str) -> Any:
    return tokenizer(list(prompts), return_tensors="pt", padding=True, padding_side="left")


def generate(hf: tuple[Any, Any], *prompts: str, **options: Any) -> Any:
    """Return the answer of ``generate`` of a Hugging Face model to prompts."""
    model, tokenizer = hf
    return model.generate(**inputs_of(tokenizer, *prompts), **options)


def custom(hf: tuple[Any, Any], *prompts: str, **options: Any) -> Any:
    """As :func:`generate` by ``custom_generate``; an option of ``...`` is left out."""
    given = {"custom_generate": custom_generate, "vocabulary": hf[1], **options}
    return generate(hf, *prompts, **{name: value for name, value in given.items() if value is not ...})


def written(hf: tuple[Any, Any], output: Any, *prompts: str) -> list[tuple[int, ...]]:
    """Return the tokens of each row up to its end of sequence, behind which is nothing but padding."""
    _, tokenizer = hf
    sequences = output if isinstance(output, torch.Tensor) else output.sequences
    rows = sequences[:, inputs_of(tokenizer, *prompts)["input_ids"].shape[1] :].tolist()
    ends = [row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row) for row in rows]
    assert all(set(row[end:]) <= {tokenizer.pad_token_id} for row, end in zip(rows, ends, strict=True))
    return [tuple(row[:end]) for row, end in zip(rows, ends, strict=True)]


def texts(hf: tuple[Any, Any], output: Any, *prompts: str) -> list[str]:
    return hf[1].batch_decode(written(hf, output, *prompts), skip_special_tokens=True)
