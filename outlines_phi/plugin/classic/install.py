"""``phi=`` and the classic API under the names of Outlines itself, for applications that are not to be edited."""

from __future__ import annotations

import importlib.metadata
import inspect
import sys
import threading
from typing import Any

import outlines
import outlines.applications
import outlines.generator

from ...errors import UnsupportedError
from ...phi.estimator import Phi
from ..call import Ban, Correction
from ..generator import Generator as PhiGeneratorOf
from ..options import Unset
from . import generate, samplers

TESTED = ((1, 3), (2, 0))  # The versions of Outlines that `install` knows: from the first, below the second
PARAMETERS = ("model", "output_type", "backend", "processor")  # Those of `outlines.Generator`

HOLDERS = (outlines, outlines.generator, outlines.applications)
"""The modules that have ``Generator``; whoever imported the function itself before keeps the stock one."""

_LOCK = threading.RLock()
_STOCK = outlines.generator.Generator
_MODULES = {"generate": generate, "samplers": samplers}

NOTHING = Correction(inherited=True)
"""What a stock model says of its calls."""


def Generator(  # noqa: N802 - named as the host's own function
    model: Any,
    output_type: Any = None,
    backend: str | None = None,
    *,
    processor: Any = None,
    phi: str | Phi | Unset | None = Unset.UNSET,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    **options: Any,
) -> Any:
    """Return what the stock ``outlines.Generator`` does; with ``phi=`` or ``banned_phrases=``, what that of this package does.

    ``phi``, ``banned_phrases`` and the options are as for :func:`outlines_phi.Generator`; with banned phrases of no level, and no
    ``phi``, an output type is masked as ever, and free text is drawn with a look-ahead.
    """
    own = getattr(model, "correction", NOTHING)
    correction = own.replaced_by(phi, banned_phrases)
    if correction == own or (own == NOTHING and correction == Correction(None)):
        if unread := [
            f"{name}=" for name in ("constraint", "sampler", "tokenization", "draft", "draft_length") if name in options
        ]:
            raise UnsupportedError(
                "Give phi='auto' or phi='exact' (sampler= to the call of such a generator), or leave it out: "
                f"{', '.join(unread)} was given to outlines.Generator without phi=, where plain Outlines draws."
            )
        return _STOCK(model, output_type, backend, processor=processor, **options)
    if output_type is not None and processor is not None:
        raise UnsupportedError("Both output_type and processor were given; expected one of them.")
    language = processor if output_type is None else output_type
    if language is not None and isinstance(correction.said, Unset):
        phi = None  # a ban alone changes nothing else
    options["backend"] = backend if processor is None else None  # a processor has one already
    given = banned_phrases if isinstance(banned_phrases, Unset) else correction.ban  # read once, whatever yields them
    return PhiGeneratorOf(model, language, phi=phi, banned_phrases=given, **options)


def install() -> None:
    """Let ``outlines.Generator(model, T, phi=...)``, ``outlines.generate`` and ``outlines.samplers`` work.

    Stock models are wrapped where they are used with these, and stay as they are themselves, as all else of Outlines.
    Without ``phi=``, ``outlines.Generator`` does what it always did. Installing twice is installing once, and :func:`uninstall`
    takes all of it back. Call it before ``from outlines import Generator``, which binds whichever function is there at that time.
    Changes nothing and raises :class:`UnsupportedError` under a version of Outlines that this was not made for, or one that
    somebody else has patched.
    """
    with _LOCK:
        if _installed():
            return
        _check_version()
        taken = [name for name in _MODULES if f"outlines.{name}" in sys.modules or hasattr(outlines, name)]
        if taken or any(holder.Generator is not _STOCK for holder in HOLDERS):
            what = ", ".join(f"outlines.{name}" for name in taken) or "outlines.Generator"
            raise UnsupportedError(
                f"Undo what put {what} there, which install() would hide, or use outlines_phi.Generator and outlines_phi.generate, "
                "which need no installation: it is already something else."
            )
        for holder in HOLDERS:
            holder.Generator = Generator
        for name, module in _MODULES.items():
            sys.modules[f"outlines.{name}"] = module
            setattr(outlines, name, module)


def uninstall() -> None:
    """Take back what :func:`install` did; the very same objects are in their places again.

    Changes nothing and raises :class:`UnsupportedError` where somebody else has patched the same names since.
    """
    with _LOCK:
        if not any(holder.Generator is Generator for holder in HOLDERS):
            return
        if not _installed():
            raise UnsupportedError(
                "Undo what replaced something of what install() put into outlines, then call uninstall() again."
            )
        for holder in HOLDERS:
            holder.Generator = _STOCK
        for name in _MODULES:
            del sys.modules[f"outlines.{name}"]
            delattr(outlines, name)


def _installed() -> bool:
    return all(holder.Generator is Generator for holder in HOLDERS) and all(
        sys.modules.get(f"outlines.{name}") is module and getattr(outlines, name, None) is module
        for name, module in _MODULES.items()
    )


def _check_version() -> None:
    version = importlib.metadata.version("outlines")
    numbers = tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
    lowest, beyond = TESTED
    if not lowest <= numbers < beyond or tuple(inspect.signature(_STOCK).parameters) != PARAMETERS:
        raise UnsupportedError(
            "Use outlines_phi.Generator and outlines_phi.generate, which need no installation. install() knows outlines "
            f"{lowest[0]}.{lowest[1]} and later, below {beyond[0]}.{beyond[1]}, whose Generator takes {', '.join(PARAMETERS)}; "
            f"outlines {version} is installed."
        )
