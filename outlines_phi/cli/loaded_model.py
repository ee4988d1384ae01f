"""The model of a command: loaded by its name, and told from other models by what it computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from ..errors import UnsupportedError
from ..lm import bundled
from ..plugin.hosts.transformers import PhiTransformers, from_transformers

BUNDLED = "bundled"  # The name of the model that ships with the package

DTYPES = ("float32", "bfloat16", "float16")  # The types that weights may be loaded as

PROBE = 'The quick brown fox: 1,234.5 {"a": [true]}\n\tGr\u00f6\u00dfe \u6f22\u5b57 \U0001f642'
"""A text whose tokens tell tokenizers of equal vocabularies apart."""


def load(name: str, device: str | None, dtype: str | None) -> PhiTransformers:
    """Return the model ``name``: what ``from_pretrained`` takes, or :data:`BUNDLED`.

    By default it runs on a GPU where there is one, with weights as they were saved (float32 for the bundled model).
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what is wrong with a prompt, its error says
    weights = None if dtype is None else getattr(torch, dtype)
    if name != BUNDLED and _is_path(name) and not Path(name).expanduser().is_dir():
        raise UnsupportedError(
            "Give a folder that save_pretrained wrote (with config.json, weights and tokenizer), a name on the Hugging Face hub, "
            f"or {BUNDLED!r}. --model {name}: there is no such folder."
        )
    with loading(f"--model {name}"):
        loaded, tokenizer = bundled.load(weights) if name == BUNDLED else _pretrained(name, weights)
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        loaded = loaded.to(torch.device(where))
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, AssertionError) as error:  # torch's ways to say that there is no such device
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(f"Give cpu, cuda or cuda:1. --device {where} cannot be used: {reason}") from error
    return from_transformers(loaded, tokenizer)


@contextmanager
def loading(given: str) -> Iterator[None]:
    """Say what to give instead of what cannot be loaded."""
    try:
        yield
    except Exception as error:  # loading runs the code of many libraries, which raise what they like
        reason = str(error).strip().split("\n")[0]
        raise UnsupportedError(
            "Give a folder that save_pretrained wrote, a name on the Hugging Face hub that this machine can reach, or "
            f"{BUNDLED!r} (--debug shows the whole error). {given} cannot be loaded: {type(error).__name__}: {reason}"
        ) from error


def _is_path(name: str) -> bool:
    return Path(name).is_absolute() or name.startswith((".", "~")) or name.count("/") > 1


def _pretrained(name: str, dtype: torch.dtype | None) -> tuple[Any, Any]:
    source = str(Path(name).expanduser()) if _is_path(name) else name
    options = {} if dtype is None else {"dtype": dtype}
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    return transformers.AutoModelForCausalLM.from_pretrained(source, **options).eval(), tokenizer


def identity(name: str, model: PhiTransformers) -> dict[str, str]:
    """Return what tells the distribution of a model from another's; ``name`` is there to be read, the rest to be compared."""
    return {
        "name": name,
        "weights": model.lm.fingerprint(),
        "dtype": str(model.model.dtype).removeprefix("torch."),
        "vocabulary": model.lm.vocabulary.fingerprint,
        "tokenizer": _tokenizer_fingerprint(model.hf_tokenizer),
    }


def _tokenizer_fingerprint(tokenizer: Any) -> str:
    read = [tokenizer.encode(PROBE), getattr(tokenizer, "chat_template", None)]
    return hashlib.blake2b(json.dumps(read, default=str).encode(), digest_size=16).hexdigest()


def check_chats(model: PhiTransformers, prompts: list[Any]) -> None:
    """Raise UnsupportedError where there are chats, and the model has no template for them."""
    chats = [index for index, prompt in enumerate(prompts) if not isinstance(prompt, str)]
    if chats and not model.type_adapter.has_chat_template:
        raise UnsupportedError(
            "Give plain texts, or an instruction-tuned model: the model's tokenizer has no chat template, and "
            f"Prompt {chats[0]} (counted from 0) is a list of chat messages."
        )
