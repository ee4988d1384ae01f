"""Banned phrases: the list, an occurrence of one, and a smallest part of the list that leaves nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, final

import numpy as np

from ...automata.automaton import DEAD, ByteAutomaton
from ...errors import EmptyLanguageError, UnsupportedError, caret
from ...format_limits import current_limits
from ...numerics.checks import shown
from ...regex.pattern_reader import Mark, RefusedFeature, marks
from ...regex.patterns import compile_regex
from ...regex.syntax_tree import RUST
from .machines import CharacterReader, LiteralTexts, PatternTexts, PhraseThreads
from .matcher import Literals, PhraseMachine, PhraseMatcher, SideBySide

Phrase: TypeAlias = str | bytes | re.Pattern[str]
"""A text, its UTF-8 bytes, or a regular expression whose matches are bounded in length."""

_Phrases: TypeAlias = tuple[str | re.Pattern[str], ...]

LEVELS = (None, "mask", "lookahead", "weighted", "exact")
"""The levels of correction for banned phrases, from none to the model's distribution given that none occurs."""

MOST_STATES = 80_000
"""The most states of the automata of all regular expressions of a list: a few seconds of work, and half a gigabyte."""

_SHOWN = 5  # The number of phrases that a message names


@final
@dataclass(frozen=True, init=False)
class BannedPhrases:
    """Phrases that must not occur in a text, in any tokenization (theory.md, section 6.1).

    A text is searched for the bytes of each phrase. With ``ignore_case`` both are case-folded first, by the full folding of Unicode
    (``str.casefold``): "STRASSE" occurs in "straße". A text that is not UTF-8 everywhere, because tokens cut characters, is folded
    where it is.

    Parameters
    ----------
    phrases
        Texts, UTF-8 bytes, or compiled regular expressions, kept each once, bytes decoded. A regular expression is banned where any
        of its matches occurs. It is read in the dialect of :func:`compile_regex`, and its matches must be bounded in length:
        ``a{1,20}``, not ``a+``. What it matches are characters: a byte that is not UTF-8 is none, not even for ``.`` or ``[^a]``.
    ignore_case
        True if case is folded. Regular expressions are compiled with the flag ``i`` instead.
    whole_word
        True if an occurrence counts only if the characters before and after it, where there are any, are no word characters: none
        for which ``str.isalnum()`` holds, and not ``_``. (With ``ignore_case``: of the folded text. For a regular expression: of
        the text.) A byte that is not UTF-8 is none.
    across_prompt
        True if an occurrence that begins in the prompt and ends in the output counts.
    level
        The correction of draws: ``"mask"``, ``"lookahead"``, ``"weighted"`` or ``"exact"``; ``None`` for that of the call.

    Raises
    ------
    UnsupportedError
        A phrase that is empty, not UTF-8 or of another type; no phrases; an option with another value than these; a regular
        expression that matches the empty text, that is unbounded, or that has flags other than ``re.IGNORECASE``.
    GrammarError
        A regular expression that cannot be read.
    """

    phrases: _Phrases
    ignore_case: bool
    whole_word: bool
    across_prompt: bool
    level: str | None
    _members: ClassVar[
        tuple[tuple[ByteAutomaton, int], ...]
    ]  # of each regular expression, with the longest one's bytes

    def __init__(
        self,
        phrases: Iterable[Phrase],
        ignore_case: bool = False,
        whole_word: bool = False,
        across_prompt: bool = True,
        level: str | None = None,
    ) -> None:
        options = {"ignore_case": ignore_case, "whole_word": whole_word, "across_prompt": across_prompt}
        for name, value in options.items():
            if not isinstance(value, bool):
                raise UnsupportedError(f"{name}={value!r} was given; expected True or False.")
        if level not in LEVELS:
            expected = ", ".join(map(repr, LEVELS[1:]))
            raise UnsupportedError(
                f"level={level!r} was given for banned phrases; expected one of {expected}, or None."
            )
        distinct = _distinct(phrases)
        length = sum(len(phrase.encode() if isinstance(phrase, str) else phrase.pattern) for phrase in distinct)
        current_limits().check("phrases", length, "The number of bytes of the banned phrases")
        for name, given in {"phrases": distinct, **options, "level": level}.items():
            object.__setattr__(self, name, given)
        # Regular expressions are refused here and not when the matcher is built.
        object.__setattr__(self, "_members", self._compiled_patterns())

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], **options: Any) -> BannedPhrases:
        """Return the phrases of a UTF-8 file, one on each line; blank lines are left out, spaces beside a phrase are part of it.

        ``options`` are those of the class.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            raise UnsupportedError(
                f"{os.fspath(path)} is not UTF-8: byte {error.object[error.start]:#04x} on line {line}. Save it as UTF-8, one "
                "phrase on each line."
            ) from None
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        return cls([line for line in lines if line.strip()], **options)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each phrase in messages."""
        return tuple(map(_name, self.phrases))

    @property
    def listed(self) -> str:
        """The first few of them, in a message."""
        rest = len(self) - _SHOWN
        return ", ".join(self.names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")

    @cached_property
    def matcher(self) -> PhraseMatcher:
        """The matcher of the phrases in a text, byte by byte; built once."""
        literals: dict[str, tuple[int, ...]] = {}
        patterns = list[int]()
        for place, phrase in enumerate(self.phrases):
            if isinstance(phrase, re.Pattern):
                patterns.append(place)
            else:
                text = phrase.casefold() if self.ignore_case else phrase
                literals[text] = (*literals.get(text, ()), place)
        options = {"ignore_case": self.ignore_case, "whole_word": self.whole_word}
        reader = CharacterReader.of(ignore_case=self.ignore_case) if self.whole_word else None
        machines = list[PhraseMachine]()
        if literals and not (self.ignore_case or self.whole_word):
            machines.append(Literals({text.encode(): place for text, (place,) in literals.items()}, self.names))
        elif literals:
            machines.append(PhraseThreads([LiteralTexts(literals, **options)], self.names, reader))
        if patterns:
            texts = [
                PatternTexts(*members, place, whole_word=self.whole_word)
                for place, members in zip(patterns, self._members, strict=True)
            ]
            machines.append(PhraseThreads(texts, self.names, reader))
        matchers = list(map(PhraseMatcher, machines))
        return matchers[0] if len(matchers) == 1 else PhraseMatcher(SideBySide(matchers))

    def _compiled_patterns(self) -> tuple[tuple[ByteAutomaton, int], ...]:
        """Return the texts that each regular expression bans, in order, with the length of the longest one."""
        patterns = [phrase for phrase in self.phrases if isinstance(phrase, re.Pattern)]
        automata, lengths = list[ByteAutomaton](), list[int]()
        states = 0
        for pattern in patterns:
            automata.append(_compiled(pattern, self.ignore_case))
            lengths.append(_longest(automata[-1], pattern))
            states += len(automata[-1])
            if states > MOST_STATES:
                largest = max(range(len(automata)), key=lambda i: len(automata[i]))
                raise UnsupportedError(
                    f"the automata of the first {len(automata):,} of {len(patterns):,} banned regular expressions have "
                    f"{states:,} states, more than {MOST_STATES:,}; the largest, {_name(patterns[largest]):.80}, has "
                    f"{len(automata[largest]):,}. Lower the bounds of their repeats, write [A-Za-z0-9_] for "
                    "\\w, or ban texts as str, which take no automaton."
                )
        return tuple(zip(automata, lengths, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        # A matcher stays where it was built.
        return type(self), (self.phrases, self.ignore_case, self.whole_word, self.across_prompt, self.level)

    def __len__(self) -> int:
        return len(self.phrases)


def _distinct(phrases: Any) -> _Phrases:
    """Return each of ``phrases`` once, checked."""
    if isinstance(phrases, str | bytes | re.Pattern):
        raise UnsupportedError(f"banned_phrases={phrases!r} is one phrase; expected a list of phrases: [{phrases!r}].")
    try:
        given = list(phrases)
    except TypeError:
        raise UnsupportedError(f"banned_phrases={phrases!r} was given; expected a list of phrases.") from None
    if not given:
        raise UnsupportedError("the list of banned phrases is empty; leave it out, or name a phrase.")
    return tuple(dict.fromkeys(map(_checked, given)))


def _checked(phrase: Any) -> str | re.Pattern[str]:
    if isinstance(phrase, re.Pattern):
        return _checked_pattern(phrase)
    if not isinstance(phrase, str | bytes):
        raise UnsupportedError(
            f"the banned phrase {shown(phrase)} is of type {type(phrase).__name__}; expected a str, bytes or a compiled regular "
            "expression (re.compile)."
        )
    if not phrase:
        raise UnsupportedError("a banned phrase is empty, and the empty text is everywhere; leave it out.")
    try:
        return phrase.decode() if isinstance(phrase, bytes) else phrase.encode().decode()
    except UnicodeError as error:
        raise UnsupportedError(
            f"the banned phrase {phrase!r} cannot be written in UTF-8 ({error}); leave out what is no text."
        ) from None


def _checked_pattern(pattern: re.Pattern[Any]) -> re.Pattern[str]:
    if not isinstance(pattern.pattern, str):
        raise UnsupportedError(
            f"the banned regular expression {pattern.pattern!r} is one for bytes; write it as a str: it is matched against UTF-8."
        )
    flags = re.RegexFlag(pattern.flags) & ~(re.IGNORECASE | re.UNICODE)
    if flags:
        raise UnsupportedError(
            f"the banned regular expression {pattern.pattern!r} has the flags {flags!r}; expected none, or re.IGNORECASE. Others "
            "are written in the pattern, around what they apply to: (?s:.)"
        )
    return pattern


def _name(phrase: str | re.Pattern[str]) -> str:
    if isinstance(phrase, str):
        return repr(phrase)
    # As the repr of a compiled one, which cuts it short.
    return f"re.compile({phrase.pattern!r}{', re.IGNORECASE' if phrase.flags & re.IGNORECASE else ''})"


def _compiled(pattern: re.Pattern[str], ignore_case: bool) -> ByteAutomaton:
    """Return the texts that are banned because of ``pattern``."""
    refuse_unbannable(pattern.pattern)
    try:
        automaton = compile_regex(pattern.pattern)  # first as it is, so that errors point into what was given
        if ignore_case or pattern.flags & re.IGNORECASE:
            automaton = compile_regex(f"(?i:{pattern.pattern})")
    except EmptyLanguageError:
        raise UnsupportedError(
            f"the banned regular expression {pattern.pattern!r} matches nothing at all; leave it out."
        ) from None
    if automaton.accepting[automaton.start]:
        raise UnsupportedError(
            f"the banned regular expression {pattern.pattern!r} matches the empty text, which is everywhere; write it so that it "
            "matches one character at least."
        )
    return automaton


def _longest(automaton: ByteAutomaton, pattern: re.Pattern[str]) -> int:
    """Return the length of the longest match, in bytes."""
    states, length = np.array([automaton.start]), -1
    while len(states):
        length += 1
        # A text that is longer than there are states goes round in a circle.
        if length >= len(automaton):
            raise unbounded(pattern.pattern)
        states = np.unique(automaton.targets[states])
        states = states[states != DEAD]
    return length


def refuse_unbannable(pattern: str) -> None:
    """Raise :class:`UnsupportedError` for an anchor, a word boundary, look-around or another feature that is not offered."""
    try:
        found = marks(pattern, RUST)
    except RefusedFeature as error:
        what = f"{error.feature}, which is not offered; {error.remedy[:1].lower()}{error.remedy[1:]}"
        raise _refusal(pattern, error.position, _ANCHOR if error.feature.endswith(r"\Z") else what) from None
    looks = [mark for mark in found if not mark.is_repeat]
    if looks:
        raise _refusal(pattern, looks[0].begin, _instead_of(pattern, found))


def unbounded(pattern: str) -> UnsupportedError:
    """Return the error for a regular expression whose matches can be of any length; it points at a repeat."""
    message = (
        f"the banned regular expression {pattern!r} is unbounded: its matches can be of any length, so text could be held back "
        "without end. Give its repeats a bound"
    )
    for repeat in filter(lambda mark: mark.is_repeat, marks(pattern, RUST)):
        if endless := _ENDLESS.match(pattern, repeat.begin):
            least = int(endless["least"] or endless[0] == "+")
            bounded = f"{{{least},{max(_BOUND, 2 * least)}}}"
            return UnsupportedError(f"{message}, as in {bounded} for {endless[0]}\n{caret(pattern, repeat.begin)}")
    return UnsupportedError(f"{message}, as in {{1,{_BOUND}}}")


_BOUND = 20  # The bound in the example of a message about an unbounded repeat

_ENDLESS = re.compile(r"[*+]|\{\s*(?P<least>\d+)\s*,\s*\}")

_ANCHOR = "an anchor, and a phrase is banned wherever in a text it occurs; leave the anchor out"

_LOOK = (
    "look-around, which is not offered; make what it looks for part of the phrase: 'cats' for 'cat(?=s)', 'cat[^s]' for "
    "'cat(?!s)'"
)


def _instead_of(pattern: str, found: Sequence[Mark]) -> str:
    """Return the fault of the first assertion, and its likely replacement."""
    looks = [mark for mark in found if not mark.is_repeat]
    written = [pattern[mark.begin : mark.end] for mark in looks]
    if written[0] in ("^", "$", r"\A", r"\z"):
        return _ANCHOR
    if written[0].startswith("("):
        return _LOOK
    if written[0] == r"\B":
        return "an assertion about the characters beside it; write those out, as part of the phrase"
    meant = "..."
    if set(written) == {r"\b"}:
        inner = "".join(
            character for at, character in enumerate(pattern) if all(at not in range(*mark[1:]) for mark in looks)
        )
        plain = len(looks) == len(found) and re.escape(inner) == inner
        meant = repr(inner) if plain else f"re.compile({inner!r})"
    return (
        f"a word boundary; give BannedPhrases([{meant}], whole_word=True), for which the characters on both sides count"
    )


def _refusal(pattern: str, position: int, what: str) -> UnsupportedError:
    return UnsupportedError(f"the banned regular expression {pattern!r} has {what}\n{caret(pattern, position)}")


QUESTIONS = 100
"""The most questions whether part of a list is at fault: enough to find a few phrases among many thousand."""


def smallest_conflict(phrases: BannedPhrases, at_fault: Callable[[BannedPhrases], bool]) -> BannedPhrases:
    """Return phrases of a list that are at fault together, none of which can be left out where they are few.

    QuickXplain (Junker 2004): halves the list again and again, so ``k`` of ``n`` phrases are found with about ``2 k log2(n / k)``
    questions; after :data:`QUESTIONS` what has not been asked about stays in. A list at fault stays so with more phrases.
    """
    questions = iter(range(QUESTIONS))

    def find(taken: _Phrases, rest: _Phrases, asked: bool) -> _Phrases:
        """Return the part of ``rest`` that is needed beside ``taken``; ``asked`` if ``taken`` alone is known not to do."""
        if not asked and taken:
            if next(questions, None) is None:
                return rest
            if at_fault(replace(phrases, phrases=taken)):
                return ()
        if len(rest) == 1:
            return rest
        left, right = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        needed = find(taken + left, right, False)
        return find(taken + needed, left, not needed) + needed

    return replace(phrases, phrases=find((), phrases.phrases, True))
