"""Special tokens inside formats: their spelling in bytes that no text has, and the ids that references stand for.

A machine steps by bytes alone, so a special token is one more spelling: ``FF``, two continuation bytes for each byte of its name,
``FF``. No UTF-8 holds the byte ``FF``, so no text is a special token and no special token a text, in whatever tokens.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from ..errors import VocabularyError

MARK = b"\xff"
"""The first and the last byte of every spelling."""

SPELLING = re.compile(rb"\xff[\x80-\x8f]*\xff")

SPELLING_BYTES = frozenset([*MARK, *range(0x80, 0x90)])

MOST_IDS = 10_000
"""The most ids that one reference stands for."""

_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?")
_ID = re.compile(r"<\[(\d+)\]>")
_SHOWN = 8  # Names that an error lists


def spelling(reference: str) -> bytes:
    """Return the bytes of a special token in machines: ``reference`` is its name, or its id as ``<[5]>``."""
    digits = (half for byte in reference.encode() for half in divmod(byte, 16))
    return MARK + bytes(0x80 | digit for digit in digits) + MARK


def reference_of(spelled: bytes) -> str:
    """Invert :func:`spelling`."""
    digits = spelled[1:-1]
    return bytes(16 * (high & 15) + (low & 15) for high, low in zip(digits[::2], digits[1::2], strict=True)).decode()


def references(written: str) -> list[str]:
    """Return the references to single tokens in what is written: a name, or each id of ``<[5]>``, ``<[5-9]>``, ``<[5,7-9]>``.

    Raises :class:`VocabularyError` for brackets with anything else.
    """
    if not (written.startswith("<[") and written.endswith("]>")):
        return [written]
    found = set[int]()
    for part in written[2:-2].split(","):
        span = _RANGE.fullmatch(part)
        ids = range(int(span[1]), int(span[2] or span[1]) + 1) if span else range(0)
        if not 0 < len(ids) <= MOST_IDS:
            raise VocabularyError(
                f"Name the special tokens, or give at most {MOST_IDS:,} ids, as in <[5]>, <[5-9]> or <[5,7-9]>: {written} is not "
                "read. A negation or a wildcard would allow ordinary tokens, whatever they write; a regular expression says which "
                "texts are allowed."
            )
        found.update(ids)
    return [f"<[{v}]>" for v in sorted(found)]


def id_of(reference: str, names: Mapping[str, int]) -> int:
    """Return the id that a reference stands for; :class:`VocabularyError` where there is no such name."""
    if reference in names:
        return names[reference]
    if (found := _ID.fullmatch(reference)) is not None:
        return int(found[1])
    if not names:
        raise VocabularyError(
            f"Give the format without {reference!r}, or use a model whose tokenizer is at hand. No special token is known here, as "
            "in a client of a server."
        )
    near = difflib.get_close_matches(reference, names, _SHOWN, 0.5)
    listed = ", ".join(map(repr, near or list(names)[:_SHOWN]))
    raise VocabularyError(
        f"Name a special token of the tokenizer, or add it there (and resize the model's embeddings): {reference!r} is none. "
        f"{'Those like it' if near else 'It has'}: {listed}."
    )
