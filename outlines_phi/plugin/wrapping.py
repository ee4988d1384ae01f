"""Which models of Outlines take ``phi=`` once they are wrapped: where a host is registered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from outlines.models.llamacpp import LlamaCpp
from outlines.models.mlxlm import MLXLM
from outlines.models.transformers import Transformers
from outlines.models.vllm import VLLM, AsyncVLLM
from outlines.models.vllm_offline import VLLMOffline

from ..errors import UnsupportedError
from ..phi.estimator import Phi
from .call import Ban
from .hosts.guidance_models import is_transformers, over_guidance
from .hosts.transformers import PhiTransformers
from .mistakes import no_model
from .options import Unset
from .session import MAX_TREE_BYTES, PhiModel


def _host(module: str, name: str) -> Callable[..., PhiModel]:
    """Return what wraps the models of a host, whose library is imported when a model of it is wrapped."""
    return lambda model, **options: _class(module, name).over(model, **options)


def _class(module: str, name: str) -> Any:
    return getattr(import_module(f".hosts.{module}", __package__), name)


HOSTS: dict[type, Callable[..., PhiModel]] = {
    Transformers: PhiTransformers.over,
    LlamaCpp: _host("llamacpp", "PhiLlamaCpp"),
    MLXLM: _host("mlx", "PhiMLXLM"),
    VLLMOffline: _host("vllm_offline", "PhiVLLMOffline"),
    VLLM: _host("vllm_server.phi_vllm", "PhiVLLM"),
    AsyncVLLM: _host("vllm_server.phi_vllm", "PhiAsyncVLLM"),
}
"""By the class of a model of Outlines: what makes one that takes ``phi=`` of it, with the options of :class:`PhiModel`."""


def _maker(model: Any) -> Callable[..., PhiModel] | None:
    """Return what wraps a model of Outlines, of guidance, or one of ours; ``None`` for all others."""
    if is_transformers(model):
        return over_guidance
    return HOSTS.get(type(model), getattr(type(model), "over", None) if isinstance(model, PhiModel) else None)


_LOCK = threading.RLock()
_WRAPPED: WeakKeyDictionary[Any, PhiModel] = WeakKeyDictionary()
"""By the model of Outlines; kept, so that their trees are."""


def wrapped(model: Any, call: str = "wrap(model)", second: Any = None) -> PhiModel:
    """Return a model that takes ``phi=`` as it is, and the form of one of Outlines that does, always the same.

    Errors say what ``call`` expects, and whether ``second``, given after it, is the model.
    """
    if isinstance(model, PhiModel):
        return model
    if _maker(model) is None:
        raise no_model(model, call, second)
    with _LOCK:
        if model not in _WRAPPED:
            _WRAPPED[model] = wrap(model)
        return _WRAPPED[model]


def wrap(
    model: Any,
    *,
    phi: str | Phi | Unset | None = Unset.UNSET,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> PhiModel:
    """Return the ``phi=`` taking form of an existing Outlines model; the original is left as it is.

    The new model has trees of its own; where ``phi`` or ``banned_phrases`` is left out, a model that is wrapped already keeps its
    own. A model that cannot be corrected is wrapped all the same where neither is given: its calls are those of plain Outlines, and
    the first one that asks for more raises why it cannot be had.

    Raises
    ------
    UnsupportedError, VocabularyError
        Not a text model made by ``outlines.from_transformers``, ``from_llamacpp``, ``from_mlxlm`` or ``from_vllm_offline``, nor a
        ``guidance.models.Transformers`` without text; or, with ``phi`` or ``banned_phrases``, one that cannot be corrected.
    """
    make = _maker(model)
    if make is None:
        raise no_model(model, "wrap(model)")
    made = make(
        model,
        phi=getattr(model, "phi", None) if isinstance(phi, Unset) else phi,
        banned_phrases=getattr(model, "banned_phrases", None) if isinstance(banned_phrases, Unset) else banned_phrases,
        max_tree_bytes=max_tree_bytes,
    )
    if hasattr(model, "type_adapter"):  # which says whether texts are put into the chat template
        vars(made)["type_adapter"] = model.type_adapter
    return made


def from_vllm_offline(
    llm: Any,
    *,
    phi: str | Phi | None = None,
    banned_phrases: Ban | None = None,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> PhiModel:
    """Return an Outlines model that takes ``phi=``, from a ``vllm.LLM(model, **outlines_phi.vllm.ENGINE)``.

    The counterpart of ``outlines.from_vllm_offline``; the parameters are those of :class:`outlines_phi.PhiTransformers`. An engine
    that cannot be read is refused now, with or without ``phi``.

    Raises
    ------
    UnsupportedError, VocabularyError
        See :class:`outlines_phi.lm.vllm.vllm_model.VLLMModel`; or vLLM is not installed.
    """
    try:
        host = _class("vllm_offline", "PhiVLLMOffline")
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f'Install it, by pip install "outlines_phi[vllm]". The package {error.name} is not here.'
        ) from error
    made: PhiModel = host(llm, phi=phi, banned_phrases=banned_phrases, max_tree_bytes=max_tree_bytes)
    _ = made.lm  # raises why it cannot be corrected
    return made
