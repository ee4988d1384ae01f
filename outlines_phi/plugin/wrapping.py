"""Which models of Outlines take ``phi=`` once they are wrapped: where a host is registered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from outlines.models.transformers import Transformers

from ..phi.estimator import Phi
from .call import Ban
from .hosts.transformers import PhiTransformers
from .mistakes import no_model
from .options import Unset
from .session import MAX_TREE_BYTES, PhiModel

HOSTS: dict[type, Callable[..., PhiModel]] = {
    Transformers: PhiTransformers.over,
    PhiTransformers: PhiTransformers.over,
}
"""By the class of a model, Outlines' or ours: what makes one that takes ``phi=`` of it, with the options of :class:`PhiModel`."""


_LOCK = threading.RLock()
_WRAPPED: WeakKeyDictionary[Any, PhiModel] = WeakKeyDictionary()
"""By the model of Outlines; kept, so that their trees are."""


def wrapped(model: Any, call: str = "wrap(model)", second: Any = None) -> PhiModel:
    """Return a model that takes ``phi=`` as it is, and the form of one of Outlines that does, always the same.

    Errors say what ``call`` expects, and whether ``second``, given after it, is the model.
    """
    if isinstance(model, PhiModel):
        return model
    if type(model) not in HOSTS:
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
        Not a text model made by ``outlines.from_transformers``; or, with ``phi`` or ``banned_phrases``, one that cannot be
        corrected.
    """
    if type(model) not in HOSTS:
        raise no_model(model, "wrap(model)")
    return HOSTS[type(model)](
        model,
        phi=getattr(model, "phi", None) if isinstance(phi, Unset) else phi,
        banned_phrases=getattr(model, "banned_phrases", None) if isinstance(banned_phrases, Unset) else banned_phrases,
        max_tree_bytes=max_tree_bytes,
    )
