"""The lengths at which a model's forward pass changes, as its configuration and its buffers name them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, final

WINDOWS = re.compile(r"(window|window_size|chunk_size|chunk_length|index_topk|original_max_position_embeddings)$")
"""Numbers of a configuration beyond which tokens no longer see each other, or see each other differently."""

SHORT = 10
"""Borders up to here lie within every trial."""

SLOTS = 2048
"""Windows and tables up to this size may be counted in slots of the cache; larger ones are masked by position."""


@final
class Borders:
    """The lengths, in tokens with the prompt, at which a model's forward pass may change.

    Attributes
    ----------
    separate
        Lengths beyond which *every* position is computed differently, that of the whole call deciding: LongRoPE takes its long
        factors where a call has a position past ``original_max_position_embeddings``. What lies on different sides of one can
        share neither a call nor a cache.
    all
        These, windows and the like, ascending, as far as the model's context reaches. Sequences of both sides of a window may share
        calls where a trial shows it.
    slots
        The largest of them, and of the model's square tables of positions, that may be counted in slots of the cache; 0 for none.
    """

    def __init__(self, model: Any, max_length: int | None) -> None:
        named = list(_numbers(model.config.to_dict()))
        separate = {length for rope, length in named if rope == "longrope"}
        crossed = {length for _, length in named if length > SHORT} - separate
        reached = [length for length in sorted(separate | crossed) if max_length is None or length < max_length]
        self.all = tuple(reached)
        self.separate = frozenset(separate)
        tables = [b.shape[-1] for b in model.buffers() if b.ndim >= 2 and b.shape[-2] == b.shape[-1] == max_length]
        self.slots = max((size for size in (*crossed, *tables) if size <= SLOTS), default=0)


def _numbers(config: dict[str, Any], rope: str | None = None) -> Iterator[tuple[str | None, int]]:
    """Yield the lengths that a configuration names, each with the kind of rotary embedding in whose settings it stands."""
    rope = config.get("rope_type", rope)
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value, rope)
        elif WINDOWS.search(str(name)) and isinstance(value, int) and not isinstance(value, bool):
            yield rope, value
