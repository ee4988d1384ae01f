"""Backends of Outlines by this package: ``outlines.Generator(model, T, backend="outlines_phi")``."""

from __future__ import annotations

from typing import Any, final

import outlines.backends
from outlines.backends.base import BaseBackend
from outlines.models.transformers import Transformers
from outlines.types.dsl import CFG, Regex

from ..errors import UnsupportedError
from ..numerics.checks import check_counts
from ..phi.estimator import Phi
from .ban import check_masked, masking
from .call import Ban, Correction, Unset
from .choices import refuse_unknown
from .classic.install import LOCK, Binding, bind
from .hosts.phi_processor import PhiLogitsProcessor, compiled_for, step_phi
from .processor import TableLogitsProcessor
from .session import PhiModel
from .types.output_types import to_json
from .types.tables import BACKENDS, REGISTERED

NAME = "outlines_phi"

OF_WEIGHTS = ("temperature", "top_k", "top_p", "min_p")
"""The options of a loop that are a part of the distribution whose weights a processor knows."""

_STOCK = outlines.backends._get_backend


@final
class PhiBackend(BaseBackend):
    """The backend whose logits processors allow what this package reads, byte for byte; options as of :func:`register_backend`."""

    def __init__(self, model: Any, **options: Any) -> None:
        if not isinstance(model, (Transformers, PhiModel)):
            raise UnsupportedError(
                f"Give outlines_phi.wrap(model) in its place. The loop of a stock {type(model).__name__} goes on without a mask "
                f"that raises, and backend={NAME!r} is for Transformers and for models of outlines_phi."
            )
        self._model, self._options = model, options

    def get_json_schema_logits_processor(
        self, json_schema: str, whitespace_pattern: str | None = None
    ) -> TableLogitsProcessor:
        """Return the processor of a JSON schema as it stands: objects that it does not close are open, those of pydantic, too."""
        return self._processor(to_json(json_schema, whitespace_pattern))

    def get_regex_logits_processor(self, regex: str) -> TableLogitsProcessor:
        """Return the processor of a regular expression."""
        return self._processor(Regex(regex))

    def get_cfg_logits_processor(self, grammar: str) -> TableLogitsProcessor:
        """Return the processor of a grammar in Lark's dialect."""
        return self._processor(CFG(grammar))

    def _processor(self, output_type: Any) -> TableLogitsProcessor:
        if "phi" not in self._options:
            ban, budget = self._options.get("banned_phrases"), self._options.get("max_new_tokens")
            return masking(compiled_for(self._model), output_type, ban, budget)
        library = getattr(self._model, "tensor_library_name", "torch")
        return PhiLogitsProcessor(self._model, output_type, tensor_library_name=library, **self._options)


def _get_backend(backend_name: str, model: Any) -> BaseBackend:
    options = REGISTERED.get(backend_name)
    return _STOCK(backend_name, model) if options is None else PhiBackend(model, **options)


_BINDINGS: list[Binding] = [(vars(outlines.backends), "_get_backend", _get_backend, _STOCK)]


def register_backend(
    name: str = NAME,
    *,
    phi: str | Phi | None = None,
    banned_phrases: Ban | None = None,
    max_new_tokens: int | None = None,
    **loop: float | None,
) -> None:
    """Let Outlines know a backend of this package, by a ``name`` that ``outlines.Generator(model, T, backend=name)`` then takes.

    It masks in the loop that the application keeps. Nothing else of Outlines changes, and :func:`outlines_phi.uninstall` takes it
    back. A name that is registered already gets the new options.

    Parameters
    ----------
    phi
        ``"local"``, ``"onestep"``, ``"learned"`` or an estimator, for weights, ``generator.logits_processor.log_w()``; ``None``
        for plain masks. With it ``loop`` may give ``temperature``, ``top_k``, ``top_p`` and ``min_p``: see
        :class:`outlines_phi.PhiLogitsProcessor`.
    banned_phrases
        The phrases never to write: a list, or a :class:`outlines_phi.BannedPhrases` of level ``"mask"``.
    max_new_tokens
        The length limit of the loop, within which texts can be completed. Weights and whole words need it.

    Raises
    ------
    UnsupportedError
        A name that Outlines has, an option that cannot be honoured, or a version of Outlines that this was not made for.
    """
    if not isinstance(name, str) or not name or name in BACKENDS:
        raise UnsupportedError(f"Give the backend a name of its own, such as {NAME!r}. name={name!r:.80} was given.")
    known = () if phi is None else OF_WEIGHTS
    refuse_unknown(loop, known, dict.fromkeys(OF_WEIGHTS, "give phi='local' beside it, or to the calls alone"))
    if phi is not None or max_new_tokens is not None:
        check_counts("register_backend()", ", as in the loop", max_new_tokens=max_new_tokens)
    correction = Correction().replaced_by(Unset.UNSET if phi is None else phi, banned_phrases)
    options: dict[str, Any] = {"banned_phrases": correction.ban, "max_new_tokens": max_new_tokens}
    if phi is not None:
        options |= {"phi": step_phi(correction.estimator()), **loop}
    elif correction.ban is not None:
        check_masked(correction.ban, max_new_tokens, "register_backend()")
    with LOCK:
        bind(_BINDINGS, _STOCK, ("backend_name", "model"), "register_backend()")
        REGISTERED[name] = options
