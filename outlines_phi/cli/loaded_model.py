"""The model of a command: loaded by its name, and told from other models by what it computes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from .. import vllm as engine
from ..errors import UnsupportedError
from ..lm import bundled
from ..plugin.hosts.transformers import PhiTransformers, from_transformers
from ..plugin.hosts.vllm_server.phi_vllm import ServedModel
from ..plugin.session import PhiModel
from ..plugin.wrapping import from_vllm_offline, wrap

BUNDLED = "bundled"  # The name of the model that ships with the package

DTYPES = ("float32", "bfloat16", "float16")  # The types that weights may be loaded as

PROBE = 'The quick brown fox: 1,234.5 {"a": [true]}\n\tGr\u00f6\u00dfe \u6f22\u5b57 \U0001f642'
"""A text whose tokens tell tokenizers of equal vocabularies apart."""


HOSTS = ("transformers", "llamacpp", "mlx", "vllm", "vllm-server")
"""Where a model may run."""


def load(name: str, device: str | None, dtype: str | None, host: str | None = None) -> PhiModel:
    """Return the model ``name``: what the loader of the host takes, or :data:`BUNDLED`; a GGUF file runs on llama.cpp.

    By default it runs on a GPU where there is one, with weights as they were saved (float32 for the bundled model).
    """
    host = host or ("llamacpp" if name.endswith(".gguf") else "transformers")
    if host != "transformers" and device is not None:
        raise UnsupportedError(
            f"Leave out --device, or --host {host}, which chooses it by itself. --device {device} was given."
        )
    if host == "transformers":
        return _on_transformers(name, device, dtype)
    with needing(host):
        return {"llamacpp": _on_llamacpp, "mlx": _on_mlx, "vllm": _on_vllm, "vllm-server": _on_server}[host](
            name, dtype
        )


@contextmanager
def needing(extra: str, given: str | None = None) -> Iterator[None]:
    """Say how to install the packages of an extra, which what was ``given`` needs; by default a host of that name."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f'Install it, by pip install "outlines_phi[{extra}]". {given or "--host " + extra} needs the package {error.name}, '
            "which is not here."
        ) from error


def _on_llamacpp(name: str, dtype: str | None) -> PhiModel:
    from llama_cpp import Llama
    from outlines.models.llamacpp import LlamaCpp

    if dtype is not None:
        raise UnsupportedError(f"Leave out --dtype: a GGUF file has types of its own. --dtype {dtype} was given.")
    path = Path(name).expanduser()
    if not path.is_file():
        raise UnsupportedError(f"Give a GGUF file, by --model FILE.gguf. --model {name}: there is no such file.")
    with loading(f"--model {name}"):
        llama = Llama(str(path), n_ctx=0, verbose=False)
    return wrap(LlamaCpp(llama, chat_mode="tokenizer.chat_template" in llama.metadata))


def _on_mlx(name: str, dtype: str | None) -> PhiModel:
    import mlx.core as mx
    import mlx_lm
    from outlines.models.mlxlm import MLXLM

    with loading(f"--model {name}"):
        loaded, tokenizer = mlx_lm.load(_source(name))
    if dtype is not None or name == BUNDLED:
        loaded.set_dtype(getattr(mx, dtype or "float32"))
    return wrap(MLXLM(loaded, tokenizer))


def _on_vllm(name: str, dtype: str | None) -> PhiModel:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # what vLLM tells of its start is not for a file of draws
    from vllm import LLM

    with loading(f"--model {name}"):
        llm = LLM(_source(name), dtype=dtype or ("float32" if name == BUNDLED else "auto"), **engine.ENGINE)
    return from_vllm_offline(llm)


def _on_server(name: str, dtype: str | None) -> PhiModel:
    import openai
    from outlines.models.vllm import VLLM

    if dtype is not None:
        raise UnsupportedError(
            f"Give --dtype to outlines-phi serve, which loads the weights. --dtype {dtype} was given."
        )
    if not name.startswith(("http://", "https://")):
        raise UnsupportedError(
            f"Give the address of a server that outlines-phi serve has started, --model http://localhost:8000/v1. --model {name} "
            "was given."
        )
    client = openai.OpenAI(base_url=name, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    try:
        (served, *_) = client.models.list().data
    except (openai.OpenAIError, ValueError) as error:
        raise UnsupportedError(
            f"Start the server with outlines-phi serve, or mend its address. --model {name} names no model: {error}"
        ) from error
    return wrap(VLLM(client, served.id))


def load_tokenizer(name: str) -> Any:
    """Return the tokenizer of ``--tokenizer``; an :class:`UnsupportedError` where it cannot be loaded."""
    _check_folder(name, "--tokenizer")
    with loading(f"--tokenizer {name}"):
        return transformers.AutoTokenizer.from_pretrained(_source(name))


def _source(name: str) -> str:
    """Return what the loaders of other libraries take: a folder, or a name on the hub."""
    return str(
        Path(bundled.__file__).parent if name == BUNDLED else Path(name).expanduser() if _is_path(name) else name
    )


def _on_transformers(name: str, device: str | None, dtype: str | None) -> PhiTransformers:
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # what is wrong with a prompt, its error says
    weights = None if dtype is None else getattr(torch, dtype)
    _check_folder(name, "--model")
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


def _check_folder(name: str, option: str) -> None:
    """Refuse a path that is none, for which loaders would ask the hub."""
    if name != BUNDLED and _is_path(name) and not Path(name).expanduser().is_dir():
        raise UnsupportedError(
            "Give a folder that save_pretrained wrote (with config.json, weights and tokenizer), a name on the Hugging Face hub, "
            f"or {BUNDLED!r}. {option} {name}: there is no such folder."
        )


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
    options = {} if dtype is None else {"dtype": dtype}
    tokenizer = transformers.AutoTokenizer.from_pretrained(_source(name))
    return transformers.AutoModelForCausalLM.from_pretrained(_source(name), **options).eval(), tokenizer


def identity(name: str, model: Any) -> dict[str, str]:
    """Return what tells the distribution of a model from another's; ``name`` is there to be read, the rest to be compared."""
    if isinstance(model, ServedModel):
        told = dict.fromkeys(("dtype", "vocabulary", "tokenizer"), "as served")
        return {"name": name, "weights": str(model.model_name), **told}
    return {
        "name": name,
        "weights": model.lm.fingerprint(),
        "dtype": str(getattr(model.model, "dtype", "as saved")).removeprefix("torch."),
        "vocabulary": model.lm.vocabulary.fingerprint,
        "tokenizer": _tokenizer_fingerprint(model.hf_tokenizer or model.tokenizer),
    }


def _tokenizer_fingerprint(tokenizer: Any) -> str:
    read = [tokenizer.encode(PROBE), getattr(tokenizer, "chat_template", None)]
    return hashlib.blake2b(json.dumps(read, default=str).encode(), digest_size=16).hexdigest()


def check_chats(model: Any, prompts: Sequence[Any]) -> None:
    """Raise UnsupportedError where there are chats, and the model has no template for them."""
    chats = [index for index, prompt in enumerate(prompts) if not isinstance(prompt, str)]
    if chats and not getattr(model.type_adapter, "has_chat_template", True):  # a server's is its own
        raise UnsupportedError(
            "Give plain texts, or an instruction-tuned model: the model's tokenizer has no chat template, and "
            f"Prompt {chats[0]} (counted from 0) is a list of chat messages."
        )
