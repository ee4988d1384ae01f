"""Regular expressions, in the dialect of Outlines, as byte automata."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..automata.automaton import UNREACHABLE, ByteAutomaton
from ..errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError, caret
from ..format_limits import current_limits
from ..numerics.cache import kept
from . import regex_build
from .pattern import Pattern
from .regex_build import Transitions

SMALL = 100_000  # An automaton that is expected to have no more states than this is built in this process,
STATES = (
    10  # One that is expected to have more is built apart; so many states of bytes take as much as one of the limit's
)

SHORT_WORK = 10_000_000
"""if there are not too many for the length of the pattern either: a state is a set of places in the pattern."""

_SHORT = 12  # No pattern explodes beyond reason that is longer by this at most when its repeats are written out

_GUARD_LENGTHS = (64, 512)
_PRIVATE = "".join(map(chr, range(0x10F000, 0x10F000 + _GUARD_LENGTHS[1])))
"""Characters of a private plane, for guards longer than ASCII."""


@kept
def compile_regex(pattern: str, *, states: int | None = None, megabytes: int = 2048) -> ByteAutomaton:
    """Return the trimmed byte automaton of the texts that ``pattern`` matches as a whole, in the dialect of Outlines.

    It is built by ``outlines_core.Index`` over the 256 single bytes from ``GUARD(?:pattern)\\z``, for three reasons:

    - It also builds the automaton of an *unanchored* search, which is exponentially large where the pattern's
      beginning can occur again inside a bounded repeat, as in ``[A-Z][^.\\n]{0,200}\\.``. Behind a literal that cannot occur inside
      the pattern no search begins again.
    - It resolves alternatives *leftmost first*: ``a|ab`` alone never gives ``ab``. With ``\\z`` nothing has matched
      before the end.
    - It drops a step from a final state into one that is not: ``a(bc)?`` alone gives ``a`` only, unless one token
      writes ``bc``. With ``\\z`` it sees no final state on the way.

    The states of the guard are dropped afterwards. So the language contains what Outlines can write with any vocabulary, and is
    equal to it where no member is the beginning of another, as with JSON objects.

    The syntax is that of the Rust crate ``regex``. ``states``, by default ten times those of the limits of formats, and
    ``megabytes`` are what the automaton may take when it seems to grow exponentially with the pattern's repeats, as that of
    ``(a|b)*a(a|b){20}`` does. It is built in another process then, because a native build cannot be interrupted in this one.

    A :class:`GrammarError` where the pattern cannot be read, an :class:`UnsupportedError` where it uses a feature that Outlines
    does not offer or its automaton is too large, an :class:`EmptyLanguageError` where it, or a branch of it, matches nothing.
    """
    try:
        pattern.encode()
    except UnicodeEncodeError as error:
        readable = pattern.encode(errors="backslashreplace").decode()
        raise GrammarError("a lone surrogate cannot be written in UTF-8; remove it", readable, error.start) from None
    bounds = current_limits()
    bounds.check("source", len(pattern), "The length of the regular expression")
    shape = Pattern.read(pattern)
    bounds.check("nesting", shape.nesting, "The number of groups inside each other in the regular expression")
    states = states or STATES * bounds.states
    try:
        guard = _guard(shape)
        apart = _may_explode(shape, guard)

        def build(before: Callable[[str], str] = str) -> Transitions:
            if not apart:
                return regex_build.build(before(pattern))
            versions = [(cap, before(shape.with_repeats_at_most(cap))) for cap in _caps(shape.largest_bound)]
            versions.append((shape.largest_bound, before(pattern)))
            return regex_build.build_apart(versions, states=states, megabytes=megabytes)

        if shape.must_be_read_alone:
            build()
        try:
            built = build(guard.before)
        except ValueError:
            if not shape.verbose:
                raise
            # A comment at the end of a verbose pattern swallows what closes the group; a line break ends it.
            built = build(lambda text: guard.before(text + "\n"))
        return _automaton(built, guard.text.encode())
    except ValueError as error:
        raise _explain(str(error), shape) from None
    except regex_build.Stopped as error:
        raise UnsupportedError(
            "Lower the bounds of the repeats, or make what follows one differ from what it repeats, as in `[^<]{0,1000}<`; or use "
            "an unbounded `[\\s\\S]*` with max_new_tokens=, or the `pattern` of a JSON schema, which counts characters. "
            f"The automaton of the pattern {_short(pattern)} takes {error}."
        ) from None


class Guard(NamedTuple):
    """A pattern that comes before another one, and a text that it matches.

    A guard is ``firm`` if no character class of the pattern matches how it begins.
    """

    pattern: str
    text: str
    firm: bool = True

    @classmethod
    def literal(cls, text: str, firm: bool = True) -> Guard:
        """Return the guard that matches ``text`` only."""
        return cls("".join(f"\\x{{{ord(character):X}}}" for character in text), text, firm)

    def before(self, pattern: str) -> str:
        """Return ``pattern`` behind the guard, up to the end of the text."""
        return f"{self.pattern}(?:{pattern})\\z"


def _guard(shape: Pattern) -> Guard:
    """Return what keeps the search for the pattern from beginning again at some places and not at others.

    One character that no piece of the pattern matches is enough, and nearly every pattern leaves one. If all pieces match
    everything, so may the guard. Otherwise a literal that is longer than what could hold it, of different characters, first those
    of fewest classes.
    """
    least, most = _GUARD_LENGTHS
    classes = sorted(atom for atom in shape.atoms if len(atom) > 1 or atom == ".")
    # Flags may widen a class wherever they stand, so both readings count.
    matched = [regex_build.first_ascii(f"{atom}|(?is:{atom})" if shape.has_flags else atom) for atom in classes]
    if shape.problem or shape.verbose or None in matched:
        return Guard.literal(_PRIVATE[:least], firm=False)
    matches = Counter(chain.from_iterable(filter(None, matched)))
    ordered = sorted(regex_build.ASCII, key=lambda character: (matches[character], character.isalpha()))
    # Where flags are set, case folding could bring letters back.
    free = [c for c in ordered if not matches[c] and c not in shape.atoms and not (shape.has_flags and c.isalpha())]
    if free:
        return Guard.literal(free[0])
    if len(classes) == len(shape.atoms) and all(matches[c] == len(classes) for c in ordered):
        return Guard("(?s:.)", "a")
    text = ("".join(ordered) + _PRIVATE)[: min(max(least, shape.written_out + 1), most)]
    return Guard.literal(text, firm=not matches[text[0]])


def _caps(bound: int) -> list[int]:
    """Return the bounds below ``bound`` that repeats are cut to, one by one at first and then by a tenth."""
    caps = [1]
    while caps[-1] < bound:
        caps.append(max(caps[-1] + 1, caps[-1] * 11 // 10))
    return [cap for cap in caps if cap < bound]


def _may_explode(shape: Pattern, guard: Guard) -> bool:
    """Return whether the automaton may be too large to be built where it cannot be stopped.

    Told from smaller versions of the pattern, with bounds cut to 3, 6 and 9: a polynomial number of states is extrapolated, a
    degree that rises from one pair to the next is exponential growth. A false alarm costs a fraction of a second. What is written
    out a dozen times, instead of repeated, is not seen.
    """
    if shape.verbose:
        return "{" in shape.text
    if shape.problem or shape.written_out - shape.length <= _SHORT:
        return False
    if shape.looks_behind or (not guard.firm and shape.written_out > _GUARD_LENGTHS[0]):
        return True
    caps, sizes = (3, 6, 9), list[int]()
    for cap in caps:
        sizes.append(regex_build.size(guard.before(shape.with_repeats_at_most(cap))))
        if sizes[-1] > SMALL // 4 or sizes[-1] > 11 * sizes[max(0, len(sizes) - 2)]:
            return True
    early, late = math.log2(sizes[1] / sizes[0]), math.log(sizes[2] / sizes[1], 1.5)
    states = sizes[2] * max(shape.largest_bound / caps[-1], 1) ** late
    return (late > 1.5 and late > 1.3 * early) or states > SMALL or states * shape.written_out > SHORT_WORK


def _automaton(built: Transitions, skipped: bytes = b"") -> ByteAutomaton:
    """Return the trimmed automaton of what comes after ``skipped``."""
    order = np.argsort(built.source, kind="stable")
    source, byte, target = built.source[order], built.byte[order], built.target[order]
    start, before, only = int(built.start), [], True
    for read in skipped:
        low, high = np.searchsorted(source, [start, start + 1])
        only = only and high == low + 1
        before.append(start)
        start = int(target[low:high][byte[low:high] == read].item())
    kept = np.ones(int(built.states) + 1, dtype=bool)
    kept[before] = False
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
    # All states are reachable where the guard had one text, but not all lead to a member: `x*[a&&b]|c` has one that
    # reads x for ever.
    dead_ends = np.count_nonzero(automaton.distances == UNREACHABLE) > 1
    return automaton.trim() if dead_ends or not only else automaton


def _explain(refusal: str, shape: Pattern) -> OutlinesPhiError:
    """Return the error for what outlines_core said, with the position that it does not give."""
    text = shape.text
    if "incompatible" in refusal:
        return EmptyLanguageError(f"the pattern {_short(text)}, or a branch of it, matches nothing at all")
    if "exceeds" in refusal:
        return UnsupportedError(
            f"the automaton of the pattern {_short(text)} is too large; lower the bounds of its repeats"
        )
    if "start state" in refusal or "word boundar" in refusal:
        looks = [t for t in shape.tokens if t.kind == "look"]
        # `$` and `\z` at an end are read; outlines_core stumbles over another.
        look = next((t for t in looks if text[t.start : t.end] not in ("$", r"\z")), looks[0] if looks else None)
        boundary = look is not None and text[look.start : look.end] not in ("^", "$", r"\A", r"\z")
        how = (
            "write the characters around the word boundary out"
            if boundary
            else "leave out `^` and `$`: the whole output is matched"
        )
        return UnsupportedError(
            f"this assertion is not offered in a regular expression for generation; {how}\n{caret(text, look.start if look else 0)}"
        )
    if shape.problem:
        position, message, alternative = shape.problem
        if alternative:
            return UnsupportedError(
                f"{message} is not offered in a regular expression for generation; {alternative}\n{caret(text, position)}"
            )
        return GrammarError(message, text, position)
    for token in shape.tokens:
        if token.kind == "atom" and regex_build.first_ascii(text[token.start : token.end]) is None:
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
