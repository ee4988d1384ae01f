"""Models of guidance: what they hold, for the host of their weights. guidance itself is not imported."""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedError
from .transformers import PhiTransformers

_MODULE = "guidance.models._transformers"


def is_transformers(model: Any) -> bool:
    """Return whether a model is a ``guidance.models.Transformers``."""
    return any(one.__module__ == _MODULE and one.__name__ == "Transformers" for one in type(model).__mro__)


def over_guidance(model: Any, **options: Any) -> PhiTransformers:
    """Return a model that takes ``phi=`` over the weights and the tokenizer that a ``guidance.models.Transformers`` holds.

    ``options`` are those of :class:`PhiTransformers`.

    Raises
    ------
    UnsupportedError
        The model holds text, or settings of sampling, already; or this version of guidance keeps its weights elsewhere.
    """
    engine = getattr(getattr(model, "_interpreter", None), "engine", None)
    hf_model, tokenizer = getattr(engine, "model_obj", None), getattr(engine, "_orig_tokenizer", None)
    if hf_model is None or tokenizer is None:
        raise UnsupportedError(
            "Give outlines_phi.from_transformers(hf_model, hf_tokenizer) the two that the model was made of. This version of "
            "guidance keeps them where they are not found."
        )
    if str(model):
        raise UnsupportedError(
            "Wrap the model before text is added to it, and give its text as the prompt, str(lm). This one holds "
            f"{str(model)!r:.60}."
        )
    said = {key: value for key, value in dict(getattr(model, "sampling_params", {})).items() if value is not None}
    if said:
        raise UnsupportedError(
            f"Wrap the model without sampling_params, and give these to the call: top_p=, top_k=, ... It holds {said}."
        )
    return PhiTransformers(hf_model, tokenizer, **options)
