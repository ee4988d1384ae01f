"""``phi=`` and the classic API under the names of Outlines itself, for applications that are not to be edited."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import outlines

from ...errors import UnsupportedError
from ..call import Correction, Unset
from ..choices import refuse_unknown
from ..generator import Generator as PhiGeneratorOf
from ..types.tables import REGISTERED
from . import generate, samplers

TESTED = ((1, 3), (2, 0))  # The versions of Outlines that `install` knows: from the first, below the second
PARAMETERS = ("model", "output_type", "backend", "processor")  # Those of `outlines.Generator`
NOTHING = Correction(inherited=True)  # The correction of a stock model
LOCK = threading.RLock()
_STOCK = outlines.generator.Generator
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


Binding: TypeAlias = tuple[dict[str, Any], str, Any, Any]
"""A name that is bound: where, by which key, to what, and what it was before; ``None`` for nothing."""

_BINDINGS: list[Binding] = [
    *((vars(it), "Generator", Generator, _STOCK) for it in (outlines, outlines.generator, outlines.applications)),
    *((sys.modules, f"outlines.{name}", module, None) for name, module in _MODULES),
    *((vars(outlines), name, module, None) for name, module in _MODULES),
]

_HELD: dict[str, Sequence[Binding]] = {}  # By the door that has bound them


def bind(bindings: Sequence[Binding], function: Callable[..., Any], parameters: Sequence[str], door: str) -> None:
    """Put names of ours into Outlines, of which ``function``, one of them, is known to take ``parameters``.

    A version of Outlines that ``door`` was not made for is refused, and one that somebody else has patched.
    """
    version, (lowest, beyond) = importlib.metadata.version("outlines"), TESTED
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    instead = "use outlines_phi.Generator and outlines_phi.generate, which need no installation"
    with LOCK:
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


def uninstall() -> None:
    """Take back what :func:`install` and :func:`outlines_phi.register_backend` did.

    Raises :class:`UnsupportedError` where somebody else has patched the same names since.
    """
    with LOCK:
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
