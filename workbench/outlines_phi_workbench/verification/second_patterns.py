"""Terminals' patterns as Lark has them, in Python's dialect, for the oracle: which are read, and which match the same."""

from __future__ import annotations

import importlib
import re
import sys
import warnings
from typing import Any

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.grammar import Terminal

from .lexemes import Lexemes

_PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

_STRING = re.compile(r"""(["'])\.\*\?\(\?<!\\\\\)\(\\\\\\\\\)\*\?\1""")
"""The strings of Lark's own library, between quotation marks of one kind: they end behind an even number of backslashes."""

_MOST_PAIRS = 2_000  # Of how many pairs of readings it is looked at whether two patterns match the same


def tree(pattern: str) -> str:
    """Return Python's tree of a pattern in its own dialect or in the engine's, as text; the pattern where there is none."""
    try:
        return str(_parsed(re.sub(r"\\x\{([0-9A-Fa-f]{1,6})\}", lambda found: f"\\U{int(found[1], 16):08x}", pattern)))
    except re.error:
        return pattern


def lexemes_of(terminal: Terminal) -> Lexemes:
    """Return the lexemes of a terminal; raise :class:`UnsupportedError` where its pattern is not read."""
    pattern, shortest = read_by_the_oracle(terminal)
    if pattern is None:
        raise UnsupportedError(
            f"the pattern {terminal.pattern!r:.80} is not read alike everywhere, so nothing can be checked; write it without "
            "assertions and the classes of digits and letters, and with one lazy quantifier at most"
        )
    return Lexemes(pattern, shortest)


def read_by_the_oracle(terminal: Terminal) -> tuple[str | None, bool]:
    """Return :func:`for_the_oracle` of the pattern of a terminal, in whichever dialect that is."""
    return for_the_oracle(terminal.pattern) if terminal.dialect == "python" else (terminal.pattern, terminal.shortest)


def match_the_same(one: Terminal, other: Terminal) -> bool:
    """Return True if two terminals have the same lexemes; false if that is not found out."""
    try:
        first, second = lexemes_of(one), lexemes_of(other)
    except UnsupportedError:
        return False
    found = {(first.start, second.start)}
    pending = list(found)
    while pending and len(found) < _MOST_PAIRS:
        here, there = pending.pop()
        if first.matches(here) != second.matches(there):
            return False
        for byte in range(256):
            after, beside = first.step(here, byte), second.step(there, byte)
            if (after is None) != (beside is None):
                return False
            if after is not None and beside is not None and (after, beside) not in found:
                found.add((after, beside))
                pending.append((after, beside))
    return not pending


def _parsed(pattern: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of `[[`, which Python may read in another way one day
        return _PARSER.parse(pattern)


def for_the_oracle(pattern: str) -> tuple[str | None, bool]:
    """Return a pattern that :class:`Lexemes` reads, and whether its lexemes end where they first match.

    There is none, ``None``, where it has what is not read, or a lazy quantifier of which that is not clear.
    """
    pattern = _STRING.sub(r"\1(?:[^\1\\\\\n]|\\\\.)*\1", pattern)
    try:
        spelled = _spelled_out(pattern) if re.search(r"\\[dswDSW]", pattern) else pattern
        if spelled is None:
            return None, False
        pattern = spelled
        shortest = _ends_first(_parsed(pattern))
        Lexemes(pattern, bool(shortest))
    except (UnsupportedError, re.error, OverflowError, RecursionError):
        return None, False
    return (None, False) if shortest is None else (pattern, shortest)


def _ends_first(parsed: Any) -> bool | None:
    """Return True if a lazy quantifier ends the lexemes where they first match; ``None`` where it is not clear which these are."""
    if "MIN_REPEAT" not in str(parsed):
        return False
    nodes = list(parsed)
    if len(nodes) == 1 and str(nodes[0][0]) == "SUBPATTERN":
        return _ends_first(nodes[0][1][3])
    lazy = [place for place, (kind, _) in enumerate(nodes) if str(kind) == "MIN_REPEAT"]
    if len(lazy) != 1 or str(parsed).count("MIN_REPEAT") != 1:
        return None
    for rest in (nodes[: lazy[0]], nodes[lazy[0] + 1 :]):
        least, most = _PARSER.SubPattern(parsed.state, rest).getwidth()
        if least != most:
            return None
    return True


def _spelled_out(pattern: str) -> str | None:
    """Return a pattern with the blanks of Python, four more than :class:`Lexemes` has; ``None`` where it has other categories.

    Which digits and letters there are depends on the version of Unicode.
    """
    written, inside, at = [], False, 0
    pieces = re.compile(r"\\.|\[\^?\]?|.", re.DOTALL), re.compile(r"\\.|.", re.DOTALL)
    while at < len(pattern):
        found = pieces[inside].match(pattern, at)
        assert found is not None
        at, text = found.end(), found[0]
        if text in (r"\d", r"\D", r"\w", r"\W") or (text == r"\S" and inside) or "(?a" in pattern:
            return None
        if text in (r"\s", r"\S"):
            blanks = rf"{text.lower()}\x1c-\x1f"
            text = blanks if inside else f"[{'^' * text.isupper()}{blanks}]"
        elif not inside:
            inside = text[0] == "["
        elif text == "]":
            inside = False
        written.append(text)
    return "".join(written)
