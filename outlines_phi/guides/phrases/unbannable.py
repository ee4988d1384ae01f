"""Regular expressions that cannot be banned, and what to write instead."""

from __future__ import annotations

import re

from ...errors import UnsupportedError, caret
from ..pattern import Pattern, Token


def refuse_unbannable(pattern: str) -> None:
    """Refuse a part of a regular expression that has no meaning where matches are looked for anywhere in a text.

    Raises
    ------
    UnsupportedError
        An anchor, a word boundary, look-around, or another feature that is not offered; says what to write instead, and points.
    """
    shape = Pattern.read(pattern)
    look = next((token for token in shape.tokens if token.kind == "look"), None)
    if look is not None:
        raise _refusal(pattern, look.start, _instead_of(shape, look))
    if shape.problem is not None and shape.problem.alternative:
        position, feature, alternative = shape.problem
        for start, instead in _INSTEAD:
            if start.match(pattern, position):
                raise _refusal(pattern, position, instead)
        raise _refusal(pattern, position, f"{feature}, which is not offered; {alternative}")


def unbounded(pattern: str) -> UnsupportedError:
    """Return the error for a regular expression whose matches can be of any length; it points at a repeat."""
    shape = Pattern.read(pattern)
    repeats = [token for token in shape.tokens if token.kind == "repeat"]
    message = (
        f"the banned regular expression {pattern!r} is unbounded: its matches can be of any length, so text could be held back "
        "without end. Give its repeats a bound"
    )
    for repeat in repeats:
        if endless := _ENDLESS.match(pattern, repeat.start):
            least = int(endless["least"] or endless[0] == "+")
            bounded = f"{{{least},{max(_BOUND, 2 * least)}}}"
            return UnsupportedError(f"{message}, as in {bounded} for {endless[0]}\n{caret(pattern, repeat.start)}")
    return UnsupportedError(f"{message}, as in {{1,{_BOUND}}}")


_BOUND = 20
"""What a message puts in place of no bound."""

_ENDLESS = re.compile(r"[*+]|\{\s*(?P<least>\d+)\s*,\s*\}")

_ANCHOR = "an anchor, and a phrase is banned wherever in a text it occurs; leave the anchor out"

_INSTEAD = (
    (
        re.compile(r"\(\?<?[=!]"),
        "look-around, which is not offered; make what it looks for part of the phrase: 'cats' for 'cat(?=s)', 'cat[^s]' for "
        "'cat(?!s)'",
    ),
    (re.compile(r"\\[ZG]"), _ANCHOR),
    (re.compile(r"\\K"), "a `\\K`, and a phrase is banned as a whole; leave it out"),
)


def _instead_of(shape: Pattern, look: Token) -> str:
    """Return what is wrong with an assertion, and what does what is likely meant by it."""
    text = shape.text[look.start : look.end]
    if text in ("^", "$", r"\A", r"\z"):
        return _ANCHOR
    if text.startswith(r"\B"):
        return "an assertion about the characters beside it; write those out, as part of the phrase"
    looks = [token for token in shape.tokens if token.kind == "look"]
    meant = "..."
    if shape.problem is None and {shape.text[token.start : token.end] for token in looks} == {r"\b"}:
        inner = "".join(shape.text[token.start : token.end] for token in shape.tokens if token.kind != "look")
        plain = all(token.kind != "repeat" for token in shape.tokens) and re.escape(inner) == inner
        meant = repr(inner) if plain else f"re.compile({inner!r})"
    return (
        f"a word boundary; give BannedPhrases([{meant}], whole_word=True), for which the characters on both sides count"
    )


def _refusal(pattern: str, position: int, what: str) -> UnsupportedError:
    return UnsupportedError(f"the banned regular expression {pattern!r} has {what}\n{caret(pattern, position)}")
