"""JSON pointers (RFC 6901)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]


def pointer_to(steps: Iterable[str | int], start: str = "#") -> str:
    """Return the pointer to what some steps lead to."""
    return "/".join([start, *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)])
