"""Regular expressions, in the dialect of Outlines, as byte automata."""

from __future__ import annotations

import math
import re
import warnings
from functools import lru_cache, partial

import numpy as np

from ..automaton import ByteAutomaton
from ..errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError, caret
from ..reachability import UNREACHABLE
from . import engine
from .engine import Transitions
from .pattern import Pattern

SMALL = 100_000
"""An automaton that is expected to have no more states than this is built in this process."""

_SHORT = 12
"""No pattern explodes beyond reason whose repeats are written out at most this many times."""

_GUARD_LENGTHS = (64, 512)
_GUARD = "".join(map(chr, (*range(128), *range(0x10F000, 0x10F000 + _GUARD_LENGTHS[1] - 128))))


@lru_cache(maxsize=128)
def compile_regex(pattern: str, *, seconds: float = 10.0, megabytes: int = 2048) -> ByteAutomaton:
    """Return the trimmed byte automaton of the texts that ``pattern`` matches as a whole, in the dialect of Outlines.

    The engine is ``outlines_core.Index`` over the 256 single bytes. It is given ``GUARD(?:pattern)\\z``, for three
    reasons:

    - It also builds the automaton of an *unanchored* search, which is exponentially large where the pattern's
      beginning can occur again inside a bounded repeat, as in ``[A-Z][^.\\n]{0,200}\\.``. Behind a literal that
      cannot occur inside the pattern no search begins again.
    - It resolves alternatives *leftmost first*: ``a|ab`` alone never gives ``ab``. With ``\\z`` nothing has matched
      before the end.
    - It drops a step from a final state into one that is not: ``a(bc)?`` alone gives ``a`` only, unless one token
      writes ``bc``. With ``\\z`` the engine sees no final state on the way.

    The states of the guard are dropped afterwards. So the language contains what Outlines can write with any
    vocabulary, and is equal to it where no member is the beginning of another, as with JSON objects.

    Parameters
    ----------
    pattern
        A regular expression in the syntax of the Rust crate ``regex``.
    seconds, megabytes
        What the engine is given when the automaton seems to grow exponentially with the pattern's repeats, as that of
        ``(a|b)*a(a|b){20}`` does. It then works in another process, because a native build cannot be interrupted in
        this one.

    Raises
    ------
    GrammarError
        The pattern cannot be read.
    UnsupportedError
        It uses a feature that Outlines does not offer, or its automaton is too large.
    EmptyLanguageError
        It, or a branch of it, matches nothing.
    """
    try:
        pattern.encode()
    except UnicodeEncodeError as error:
        readable = pattern.encode(errors="backslashreplace").decode()
        raise GrammarError("a lone surrogate cannot be written in UTF-8; remove it", readable, error.start) from None
    shape = Pattern.read(pattern)
    try:
        guard = _guard(shape)
        build = engine.build
        if _may_explode(shape, guard):
            build = partial(engine.build_apart, seconds=seconds, megabytes=megabytes)
        if shape.must_be_read_alone:
            build(pattern)
        try:
            built = build(_whole(pattern, guard))
        except ValueError:
            if not shape.verbose:
                raise
            # A comment at the end of a verbose pattern swallows what closes the group; a line break ends it.
            built = build(_whole(pattern + "\n", guard))
        return _automaton(built, len(guard.encode()))
    except ValueError as error:
        raise _explain(str(error), shape) from None
    except engine.Stopped as error:
        raise UnsupportedError(
            f"the automaton of the pattern {_short(pattern)} takes {error}, as if it grew exponentially with its "
            "repeats. Lower their bounds, make what follows a repeat differ from what it repeats, or raise `seconds` and "
            "`megabytes`"
        ) from None


def _guard(shape: Pattern) -> str:
    """Return a literal that cannot occur inside the pattern, or that is longer than what can hold it.

    One character that no piece of the pattern matches is enough, and nearly every pattern leaves one. Where none is
    left, a search that begins again needs as many repeats as the guard has characters, all different, before it can
    multiply.
    """
    least, most = _GUARD_LENGTHS
    if shape.problem or shape.verbose:
        return _GUARD[:most]
    free = set(engine.SEPARATORS).difference(shape.atoms)
    classes = "|".join(sorted(atom for atom in shape.atoms if len(atom) > 1 or atom == "."))
    if classes:
        # Flags may widen a class wherever they stand, so both readings count.
        taken = engine.first_separators(f"{classes}|(?is:{classes})" if shape.has_flags else classes)
        free = set() if taken is None else free - taken
    return min(free) if free else _GUARD[: min(max(least, shape.largest_repeat + 1), most)]


def _whole(pattern: str, guard: str) -> str:
    """Return the pattern behind the guard, up to the end of the text."""
    literal = "".join(f"\\x{{{ord(character):X}}}" for character in guard)
    return f"{literal}(?:{pattern})\\z"


def _may_explode(shape: Pattern, guard: str) -> bool:
    """Return whether the automaton may be too large to be built where it cannot be stopped.

    Told from smaller versions of the pattern, with bounds cut to 3, 6 and 9: a polynomial number of states is
    extrapolated, a degree that rises from one pair to the next is exponential growth. A false alarm costs a fraction
    of a second. What is written out a dozen times, instead of repeated, is not seen.
    """
    if shape.verbose:
        return "{" in shape.text
    if shape.problem or shape.largest_repeat <= _SHORT:
        return False
    if shape.looks_behind or shape.largest_repeat >= _GUARD_LENGTHS[1] <= len(guard):
        return True
    sizes: list[int] = []
    for cap in (3, 6, 9):
        sizes.append(engine.size(_whole(shape.with_repeats_at_most(cap), guard)))
        if sizes[-1] > SMALL // 4 or sizes[-1] > 11 * sizes[max(0, len(sizes) - 2)]:
            return True
    early, late = math.log2(sizes[1] / sizes[0]), math.log(sizes[2] / sizes[1], 1.5)
    return (late > 1.5 and late > 1.3 * early) or sizes[2] * (shape.largest_bound / 9) ** late > SMALL


def _automaton(built: Transitions, skipped: int) -> ByteAutomaton:
    """Return the automaton after the first ``skipped`` bytes, each of which is the only transition of its state."""
    order = np.argsort(built.source, kind="stable")
    source, byte, target = built.source[order], built.byte[order], built.target[order]
    start, prefix = int(built.start), []
    for _ in range(skipped):
        prefix.append(start)
        start = int(target[np.searchsorted(source, start)])
    kept = np.ones(int(built.states) + 1, dtype=bool)
    kept[prefix] = False
    number = np.cumsum(kept) - 1
    accepting = np.zeros(int(built.states) + 1, dtype=bool)
    accepting[built.final] = True
    inside = kept[source]
    automaton = ByteAutomaton.from_edges(
        number[source[inside]],
        byte[inside],
        number[target[inside]],
        start=int(number[start]),
        accepting=accepting[kept],
    )
    # All states are reachable, but not all lead to a member: `x*[a&&b]|c` has one that reads x for ever.
    dead_ends = np.count_nonzero(automaton.distances == UNREACHABLE) > 1
    return automaton.trim() if dead_ends else automaton


def _explain(refusal: str, shape: Pattern) -> OutlinesPhiError:
    """Return the error for what the engine said, with the position that it does not give."""
    text = shape.text
    if "incompatible" in refusal:
        return EmptyLanguageError(f"the pattern {_short(text)}, or a branch of it, matches nothing at all")
    if "exceeds" in refusal:
        return UnsupportedError(
            f"the automaton of the pattern {_short(text)} is too large; lower the bounds of its repeats"
        )
    look = next((t for t in shape.tokens if t.kind == "look"), None)
    if "start state" in refusal or "word boundar" in refusal:
        at = look.start if look else 0
        return UnsupportedError(
            "this assertion is not offered in a regular expression for generation; a match always covers the whole "
            "output, so `^` and `$` can be left out, and a word boundary can be written as the characters around it\n"
            f"{caret(text, at)}"
        )
    if shape.problem:
        position, message, alternative = shape.problem
        if alternative:
            return UnsupportedError(f"{message}; {alternative}\n{caret(text, position)}")
        return GrammarError(message, text, position)
    for token in shape.tokens:
        if token.kind == "atom" and engine.first_separators(text[token.start : token.end]) is None:
            return GrammarError("this escape or character class is not known", text, token.start)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(text)
    except (re.error, OverflowError) as error:
        return GrammarError(str(getattr(error, "msg", error)), text, getattr(error, "pos", None))
    return GrammarError(f"the regular expression {_short(text)} cannot be read: {refusal}", text)


def _short(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 80 else pattern[:77] + "...")
