"""Languages without any probability: one verdict for draws, probabilities and the mode."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import EmptyLanguageError
from ..guides.guide import DONE
from ..settings import SamplingSettings
from .tree import BoundsTree


def refuse_impossible(trees: Sequence[BoundsTree], settings: SamplingSettings) -> None:
    """Raise where a tree leaves nothing of its language.

    Raises
    ------
    EmptyLanguageError
        Every prefix is decided and none is a member; or there are members, but their probability is too small for the bounds.
    """
    for index, tree in enumerate(trees):
        if tree.root.upper > 0:
            continue
        if any(node.state == DONE and node.log_p > -math.inf for node in tree.walk()):
            raise EmptyLanguageError(
                f"Prompt {index}: Phi is under 1e-308, which bounds cannot tell from 0, though the language has members. Draw with "
                "weights (phi='local'), whose log_z has no such limit, or move the prompt closer to the format."
            )
        cause = f" under {settings.truncation}" if settings.truncation else ""
        raise EmptyLanguageError(
            f"Prompt {index}: no member of the language has any probability{cause}; the tree of all live prefixes proves "
            "Phi = 0. Loosen the truncation, or check that the model gives the format any probability at all."
        )
