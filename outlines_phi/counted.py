"""A number with its noun."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return ``1 draw``, ``2 draws``, ``1,000 draws``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
