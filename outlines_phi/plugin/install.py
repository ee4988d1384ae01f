"""``phi=``, the classic API and a backend under the names of Outlines itself, for applications that are not to be edited."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import outlines
from outlines.backends.base import BaseBackend
from outlines.models.transformers import Transformers
from outlines.types.dsl import CFG, Regex

from ..errors import UnsupportedError
from ..numerics.checks import check_counts
from ..phi.estimator import Phi
from .ban import check_masked, masking
from .call import Ban, Correction, Unset
from .choices import refuse_unknown
from .classic import generate, samplers
from .generator import Generator as PhiGeneratorOf
from .hosts.phi_processor import PhiLogitsProcessor, compiled_for, step_phi
from .processor import TableLogitsProcessor
from .session import PhiModel
from .types.output_types import to_json
from .types.tables import BACKENDS, REGISTERED

TESTED = ((1, 3), (2, 0))  # The versions of Outlines that `install` knows: from the first, below the second
PARAMETERS = ("model", "output_type", "backend", "processor")  # Those of `outlines.Generator`
NOTHING = Correction(inherited=True)  # The correction of a stock model
_LOCK = threading.RLock()
_STOCK, _STOCK_BACKEND = outlines.generator.Generator, outlines.backends._get_backend
_MODULES = (("generate", generate), ("samplers", samplers))


def Generator(  # noqa: N802 - named as the host's own function
    model: Any,
    output_type: Any = None,
    backend: str | None = None,
    *,
    processor: Any = None,
    phi: Any = Unset.UNSET,
    banned_phrases: Any = Unset.UNSET,
    **options: Any,
) -> Any:
    """Build the stock ``outlines.Generator``, or that of this package under ``phi`` or with banned phrases."""
    own = getattr(model, "correction", NOTHING)
    correction = own.replaced_by(phi, banned_phrases)
    both = output_type is not None and processor is not None  # which the stock one refuses
    if both or correction == own or (own == NOTHING and correction == Correction(None)):
        refuse_unknown(options, PARAMETERS, {}, "Give phi='auto' or phi='exact' beside it, or leave it out.")
        return _STOCK(model, output_type, backend, processor=processor, **options)
    language = processor if output_type is None else output_type
    if language is not None and correction.estimator(usual=None) is None:
        phi = None  # a ban alone changes nothing else
    options["backend"] = backend if processor is None else None  # a processor has one already
    given = banned_phrases if isinstance(banned_phrases, Unset) else correction.ban  # read once, whatever yields them
    return PhiGeneratorOf(model, language, phi=phi, banned_phrases=given, **options)


NAME = "outlines_phi"

OF_WEIGHTS = ("temperature", "top_k", "top_p", "min_p")
"""The options of a loop that are a part of the distribution whose weights a processor knows."""


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
    return _STOCK_BACKEND(backend_name, model) if options is None else PhiBackend(model, **options)


Binding: TypeAlias = tuple[dict[str, Any], str, Any, Any]
"""A name that is bound: where, by which key, to what, and what it was before; ``None`` for nothing."""

_BINDINGS: list[Binding] = [
    *((vars(it), "Generator", Generator, _STOCK) for it in (outlines, outlines.generator, outlines.applications)),
    *((sys.modules, f"outlines.{name}", module, None) for name, module in _MODULES),
    *((vars(outlines), name, module, None) for name, module in _MODULES),
]

_BACKEND: list[Binding] = [(vars(outlines.backends), "_get_backend", _get_backend, _STOCK_BACKEND)]

_HELD: dict[str, Sequence[Binding]] = {}  # By the door that has bound them


def bind(bindings: Sequence[Binding], function: Callable[..., Any], parameters: Sequence[str], door: str) -> None:
    """Put names of ours into Outlines, of which ``function``, one of them, is known to take ``parameters``.

    A version of Outlines that ``door`` was not made for is refused, and one that somebody else has patched.
    """
    version, (lowest, beyond) = importlib.metadata.version("outlines"), TESTED
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    instead = "use outlines_phi.Generator and outlines_phi.generate, which need no installation"
    with _LOCK:
        if all(space.get(key) is ours for space, key, ours, _ in bindings):
            return
        if not lowest <= numbers < beyond or tuple(inspect.signature(function).parameters) != tuple(parameters):
            raise UnsupportedError(
                f"U{instead[1:]}. {door} knows outlines {lowest[0]}.{lowest[1]} and later, below {beyond[0]}.{beyond[1]}, whose "
                f"{function.__name__} takes {', '.join(parameters)}; outlines {version} is installed."
            )
        if taken := [key for space, key, _, stock in bindings if space.get(key) is not stock]:
            raise UnsupportedError(
                f"Undo what put outlines.{taken[0].removeprefix('outlines.')} there, which {door} would hide, or {instead}."
            )
        for space, key, ours, _ in bindings:
            space[key] = ours
        _HELD[door] = bindings


def install() -> None:
    """Let ``outlines.Generator(model, T, phi=...)``, ``outlines.generate`` and ``outlines.samplers`` work.

    Call it before ``from outlines import Generator``, which binds the function that is there at that time. A version of Outlines
    that this was not made for is refused, and one that somebody else has patched.
    """
    bind(_BINDINGS, _STOCK, PARAMETERS, "install()")


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
    correction = Correction().replaced_by(Unset.UNSET if phi is None else phi, banned_phrases)
    options: dict[str, Any] = {"banned_phrases": correction.ban, "max_new_tokens": max_new_tokens}
    if phi is not None:
        step_phi(correction.estimator())
        options |= {"phi": phi, **loop}  # by its name, since one that learns is another one in each processor
    elif correction.ban is not None:
        check_masked(correction.ban, max_new_tokens, "register_backend()")
    if phi is not None or max_new_tokens is not None:
        check_counts("register_backend()", ", as in the loop", max_new_tokens=max_new_tokens)
    with _LOCK:
        bind(_BACKEND, _STOCK_BACKEND, ("backend_name", "model"), "register_backend()")
        REGISTERED[name] = options


def uninstall() -> None:
    """Take back what :func:`install` and :func:`outlines_phi.register_backend` did.

    Raises :class:`UnsupportedError` where somebody else has patched the same names since.
    """
    with _LOCK:
        for door, bindings in [*_HELD.items()]:
            held = [space.get(key) is ours for space, key, ours, _ in bindings]
            if any(held) and not all(held):
                raise UnsupportedError(
                    f"Undo what replaced something of what {door} put into outlines, then try again."
                )
            for space, key, _, stock in bindings if all(held) else ():
                space[key] = stock
                if stock is None:
                    del space[key]
            del _HELD[door]
        REGISTERED.clear()
