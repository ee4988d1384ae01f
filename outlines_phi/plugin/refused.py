"""Outlines models that cannot be corrected: why, and the way out."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedError


def loading(name: str) -> str:
    """Return the line that loads a model of that name; ``name`` is as in code."""
    return (
        f"outlines_phi.from_transformers(AutoModelForCausalLM.from_pretrained({name}), "
        f"AutoTokenizer.from_pretrained({name})), both of transformers"
    )


_WEIGHTS = f"Load its weights by {loading('name')}"
_OPEN = f"Load a model whose weights are public by {loading('name')}"
_SERVER = "hands the output type to a server that decodes by itself"
_SERVICE = "hands the output type to a service that decodes by itself"

REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("VLLM", "AsyncVLLM", "SGLang", "AsyncSGLang", "TGI", "AsyncTGI"), (_WEIGHTS, _SERVER)),
    **dict.fromkeys(("Ollama", "AsyncOllama", "LMStudio", "AsyncLMStudio"), (_WEIGHTS, _SERVER)),
    **dict.fromkeys(("OpenAI", "AsyncOpenAI", "Anthropic", "Gemini", "Mistral", "AsyncMistral"), (_OPEN, _SERVICE)),
    **dict.fromkeys(("Dottxt", "AsyncDottxt"), (_OPEN, _SERVICE)),
    "VLLMOffline": (_WEIGHTS, "hands the output type to vLLM, which decodes by itself"),
    "MLXLM": (_WEIGHTS, "decodes in the loop of mlx-lm, over which there are no token trees"),
    "LlamaCpp": (
        f"{_WEIGHTS}, or give its own loop a processor: outlines.Generator(model, processor=outlines_phi.PhiLogitsProcessor("
        "hf_tokenizer, T, tensor_library_name='numpy', top_k=0, max_new_tokens=N))",
        "decodes in the loop of llama.cpp, over which there are no token trees",
    ),
    "TransformersMultiModal": (
        f"Load a text-only version by {loading('name')}",
        "takes images, audio or video beside text",
    ),
}
"""By the name of the class: what to do instead, and why there is nothing to correct."""


def refusal(given: Any) -> UnsupportedError | None:
    """Return the error for an Outlines model that cannot be corrected; ``None`` for everything else."""
    for kind in type(given).__mro__:
        if kind.__module__.startswith("outlines.") and kind.__name__ in REFUSED:
            instead, why = REFUSED[kind.__name__]
            return UnsupportedError(f"{instead}. {type(given).__name__} {why}, so phi= cannot correct it.")
    return None
