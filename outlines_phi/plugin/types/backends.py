"""The backends of Outlines: which of them has languages that can be read."""

from __future__ import annotations

from ...errors import UnsupportedError

OWN = "outlines_core"
"""The backend that is read as an automaton; the default of Outlines for regex and JSON."""

MASKING = ("llguidance", "xgrammar")
"""The backends that say which token may follow, and no more: left to Outlines, for calls without ``phi=`` and banned phrases."""

BACKENDS = (OWN, *MASKING)
"""The backends that Outlines has."""


def masks_only(backend: str | None) -> bool:
    """Return whether ``backend`` is one of :data:`MASKING`.

    Raises
    ------
    UnsupportedError
        No such backend.
    """
    if backend not in (None, *BACKENDS):
        raise UnsupportedError(f"backend={backend!r} was given; expected one of {', '.join(BACKENDS)}, or None.")
    return backend in MASKING


def check_readable(backend: str | None) -> None:
    """Raise :class:`UnsupportedError` for a backend whose language cannot be read."""
    if masks_only(backend):
        raise UnsupportedError(
            f"Leave backend={backend!r} out: outlines_phi reads JSON schemas, regular expressions and grammars in Lark's dialect "
            f"by itself. {backend} says which token may follow and no more, so only plain masking can use it: "
            "outlines.Generator(model, T, backend=...), or a call of the model without phi= and banned_phrases=."
        )
