"""The drafts of a command."""

from __future__ import annotations

from ...errors import UnsupportedError
from ...plugin.drafts import DraftOptions, resolve_draft
from ...sampling.resolve import SamplerOptions


def read_draft(names: list[str] | None, length: int | None, sampler: SamplerOptions | None) -> DraftOptions | None:
    """Return what ``--draft`` and ``--draft-length`` mean; ``None`` for no drafts.

    Raises
    ------
    UnsupportedError
        An unknown name, a length without a draft, or a draft for particles.
    """
    if not names:
        if length is not None:
            raise UnsupportedError(
                f"--draft-length {length} was given without --draft: there is nothing to draft with. Give --draft forced, or leave "
                "it out."
            )
        return None
    if sampler is not None:
        raise UnsupportedError(
            "--draft was given with --particles, which are compared token by token. Leave one of the two out."
        )
    return resolve_draft(names, length)
