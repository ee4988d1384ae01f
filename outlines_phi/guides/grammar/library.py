"""The grammars that come with the package, as texts in Lark's dialect."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from ...errors import UnsupportedError

_FOLDER = Path(__file__).parent / "library"

NAMES = ("arithmetic", "c", "json", "lean", "sql")
"""The grammars that are files. There is also ``dyck-n``, for ``n`` kinds of brackets."""

BRACKETS = ("()", "[]", "{}", "<>", "⟨⟩", "⟦⟧", "⌈⌉", "⌊⌋", "«»", "‹›")
"""The kinds of brackets of :func:`dyck`, in the order in which they are used."""


def grammar_text(name: str) -> str:
    """Return the grammar that is called ``name``: one of :data:`NAMES`, or ``dyck-n``.

    Raises
    ------
    UnsupportedError
        There is no such grammar.
    """
    if found := re.fullmatch(r"dyck-([0-9]{1,3})", name):
        return dyck(int(found[1]))
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, n=1)
        raise UnsupportedError(
            f"there is no grammar {name!r}; {f'did you mean {close[0]!r}? ' if close else ''}"
            f"There are {', '.join(NAMES)} and dyck-n"
        )
    return (_FOLDER / f"{name}.lark").read_text(encoding="utf-8")


def dyck(kinds: int) -> str:
    """Return the grammar of the balanced words of ``kinds`` kinds of brackets, the empty word included.

    Without blanks: of length ``2n`` there are ``kinds**n`` times the ``n``-th Catalan number.
    """
    if not 1 <= kinds <= len(BRACKETS):
        raise UnsupportedError(f"Dyck words have 1 to {len(BRACKETS)} kinds of brackets, not {kinds}")
    pairs = "\n    | ".join(f'"{brackets[0]}" pair* "{brackets[1]}"' for brackets in BRACKETS[:kinds])
    return f"// Balanced brackets.\nstart: pair*\n\npair: {pairs}\n"
