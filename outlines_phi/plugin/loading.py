"""The two ways to an Outlines model that takes ``phi=``."""

from __future__ import annotations

from typing import Any

import torch
from outlines.models.transformers import Transformers

from ..phi.estimator import Phi
from .correction import Ban
from .mistakes import no_model
from .model import PhiTransformers
from .options import Unset


def from_transformers(
    model: Any,
    tokenizer: Any,
    *,
    device_dtype: torch.dtype | None = None,
    phi: str | Phi | None = None,
    banned_phrases: Ban | None = None,
    max_tree_bytes: int = 2**30,
) -> PhiTransformers:
    """Return an Outlines model that takes ``phi=``, from a Hugging Face model and tokenizer.

    The counterpart of ``outlines.from_transformers``; see :class:`PhiTransformers`. A model that cannot be corrected is refused
    now, with or without ``phi``.
    """
    made = PhiTransformers(
        model,
        tokenizer,
        device_dtype=device_dtype,
        phi=phi,
        banned_phrases=banned_phrases,
        max_tree_bytes=max_tree_bytes,
    )
    _ = made.lm  # raises why it cannot be corrected
    return made


def wrap(
    model: Any,
    *,
    phi: str | Phi | Unset | None = Unset.UNSET,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    max_tree_bytes: int = 2**30,
) -> PhiTransformers:
    """Return the ``phi=`` taking form of an existing Outlines model; the original is left as it is.

    The new model has the ``phi``, the ``banned_phrases`` and the memory bound given here, and trees of its own. Where one of the
    first two is left out, a model that is wrapped already keeps its own. A model that cannot be corrected (its tokens do not fit
    it, it is an encoder-decoder) is wrapped all the same where neither is given: its calls are those of plain Outlines, and the
    first one that asks for more raises why it cannot be had.

    Raises
    ------
    UnsupportedError
        Not a text model made by ``outlines.from_transformers``.
    UnsupportedError, VocabularyError
        With ``phi`` or ``banned_phrases``: the model cannot be corrected; says why.
    """
    if type(model) not in (Transformers, PhiTransformers):
        raise no_model(model, "wrap(model)")
    return PhiTransformers(
        model.model,
        model.hf_tokenizer,
        device_dtype=model.device_dtype,
        phi=getattr(model, "phi", None) if isinstance(phi, Unset) else phi,
        banned_phrases=getattr(model, "banned_phrases", None) if isinstance(banned_phrases, Unset) else banned_phrases,
        max_tree_bytes=max_tree_bytes,
    )
