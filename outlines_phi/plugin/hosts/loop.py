"""What Hugging Face's own loop does to the logits after a custom processor."""

from __future__ import annotations

from typing import Any

from ...errors import EmptyLanguageError, UnsupportedError, too_small
from ...guides.guide import UNREACHABLE
from ...guides.table import Table
from ...settings import SamplingSettings
from .generation_config import FIELDS, TRUNCATION, held

HOST_TOP_K = 50
"""What the loop's ``top_k`` is where neither the call nor the model's ``generation_config`` says."""

AFTER = [name for name in (*TRUNCATION, "watermarking_config") if name != "top_k"]
"""What else the loop may do after its processors."""


def loop_settings(given: dict[str, Any], generation_config: Any, max_new_tokens: int) -> SamplingSettings:
    """Return the law that a loop samples from when a processor of ours stands before its warpers.

    The temperature is undone by the loop, so any will do. Its top-k does nothing to what has been cut to the same k
    before. Every other truncation of ``p h`` is not one of ``p``, so the loop must have none.

    Parameters
    ----------
    given
        What the loop is said to have: ``temperature``, ``top_k``, ``top_p``, ``min_p``; ``None`` for what it has by itself.
    generation_config
        Where it takes the rest from; ``None`` where the host is not known.
    max_new_tokens
        The budget ``N``.

    Raises
    ------
    UnsupportedError
        A truncation after the processor, or an unknown one.
    """
    for name in AFTER:
        said = given.get(name)
        value = getattr(generation_config, name, None) if said is None else said
        if value not in FIELDS[name].neutral:
            where = "the model's generation_config" if said is None else "the call"
            raise UnsupportedError(
                f"{name}={value!r} in {where} would be applied by the loop after this processor, to p * h instead of p, "
                f"and that is another law. {_neutral(name)}, or let the law p itself have it: "
                "custom_generate=outlines_phi.custom_generate, or outlines_phi.Generator(model, T)."
            )
    top_k = given.get("top_k")
    if top_k is None and generation_config is not None:
        top_k = HOST_TOP_K if generation_config.top_k is None else generation_config.top_k
        if top_k:
            raise UnsupportedError(
                f"The loop keeps the top_k={top_k} likeliest tokens unless it is told otherwise, and it does so after "
                "this processor. Say what it will have: top_k=0 for none, here and in the call "
                f"(**processor.host_options has it), or top_k={top_k} to make that cut a part of the law."
            )
    temperature = held("temperature", given.get("temperature"), generation_config)
    return SamplingSettings(temperature=temperature, top_k=None if top_k == 0 else top_k, max_new_tokens=max_new_tokens)


def check_budget(table: Table, budget: int) -> None:
    """Raise :class:`EmptyLanguageError` where nothing that ``table`` allows is written within ``budget`` tokens."""
    least = table.guide.min_tokens(table.start)
    if least >= UNREACHABLE:
        raise EmptyLanguageError("The language is empty: nothing of this output type can be written.")
    if budget < least:
        raise too_small(budget, least)


def _neutral(name: str) -> str:
    if name in ("top_p", "min_p"):
        return f"Give {name}={FIELDS[name].neutral[-1]} here and in the call (**processor.host_options has it)"
    return f"Set model.generation_config.{name}={FIELDS[name].neutral[-1]}"
