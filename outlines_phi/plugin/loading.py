"""The two ways to an Outlines model that takes ``phi=``."""

from __future__ import annotations

from typing import Any

import torch
from outlines.models.transformers import Transformers
from transformers import PreTrainedModel

from ..errors import UnsupportedError
from ..phi.estimator import Phi
from .mistakes import not_loaded
from .model import PhiTransformers
from .options import Unset, resolve_phi


def from_transformers(
    model: Any,
    tokenizer: Any,
    *,
    device_dtype: torch.dtype | None = None,
    phi: str | Phi | None = None,
    max_tree_bytes: int = 2**30,
) -> PhiTransformers:
    """Return an Outlines model that takes ``phi=``, from a Hugging Face model and tokenizer.

    The counterpart of ``outlines.from_transformers``; see :class:`PhiTransformers`.
    """
    return PhiTransformers(model, tokenizer, device_dtype=device_dtype, phi=phi, max_tree_bytes=max_tree_bytes)


def wrap(model: Any, *, phi: str | Phi | Unset | None = Unset.UNSET, max_tree_bytes: int = 2**30) -> PhiTransformers:
    """Return the ``phi=`` taking form of an existing Outlines model; the original is left as it is.

    The new model has the ``phi`` and the memory bound given here, and trees of its own. Where ``phi`` is left out, a model
    that is wrapped already keeps its own.

    Raises
    ------
    UnsupportedError
        Not a text model made by ``outlines.from_transformers``.
    """
    if isinstance(model, (str, PreTrainedModel)):
        raise not_loaded(model)
    if type(model) not in (Transformers, PhiTransformers):
        raise UnsupportedError(
            f"{type(model).__name__} was given to wrap(); expected a model made by outlines.from_transformers(model, "
            "tokenizer). Multimodal models, servers and other libraries cannot be corrected by this version."
        )
    own = getattr(model, "phi", None) if phi is Unset.UNSET else resolve_phi(phi)
    return PhiTransformers(
        model.model, model.hf_tokenizer, device_dtype=model.device_dtype, phi=own, max_tree_bytes=max_tree_bytes
    )
