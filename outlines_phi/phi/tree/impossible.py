"""Trees that prove that nothing in the language has any probability."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...errors import EmptyLanguageError
from ...settings import SamplingSettings
from .tree import BoundsTree


def refuse_impossible(trees: Sequence[BoundsTree], settings: SamplingSettings) -> None:
    """Raise :class:`EmptyLanguageError` where no member of a tree has any probability."""
    for index, tree in enumerate(trees):
        if tree.root.log_upper > -math.inf:
            continue
        cause = f" under {settings.truncation}" if settings.truncation else ""
        remedy = "Loosen the truncation"
        if (phrases := tree.table.guide.phrases) is not None:
            cause += f" without the banned phrases {phrases.listed}"
            remedy += ", ban less"
        if tree.constraint is not None:
            raise EmptyLanguageError(
                f"Prompt {index}: {tree.constraint} leaves no member of the language any probability{cause}; it was asked about "
                f"{tree.nodes - 1} sequences of tokens, and what it refused proves Phi = 0. It is asked about unfinished texts "
                "too, and has to allow every beginning of what it allows."
            )
        raise EmptyLanguageError(
            f"Prompt {index}: no member of the language has any probability{cause}; the tree of all live prefixes proves "
            f"Phi = 0. {remedy}, or check that the model gives the format any probability at all."
        )
