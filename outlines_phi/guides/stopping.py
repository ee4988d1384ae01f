"""The guide of texts that stop strings end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from ..automata.byte_machine import ByteMachine
from ..automata.stops import ANYTHING, StoppedTexts
from ..errors import EmptyLanguageError, UnsupportedError
from ..vocabulary.special_tokens import SPELLING, reference_of, spelling
from ..vocabulary.vocabulary import Vocabulary
from .fsm import FSMGuide
from .guide import Guide
from .machine_guide import MachineGuide
from .phrases.ban_language import ProductGuide
from .phrases.phrase_guide import PhraseGuide
from .thinking import ThinkingGuide


@final
@dataclass(frozen=True)
class Stops:
    """Strings of which the first ends a text, in whatever tokens: ``kept`` in what is shown of it, or not.

    A string that is the name of a special token stands for the token, too. ``special`` are references to special tokens alone.
    """

    strings: tuple[str, ...]
    special: tuple[str, ...] = ()
    kept: bool = False

    def references(self, vocabulary: Vocabulary) -> list[str]:
        """Return the special tokens among them; those that end texts are left out, as these do so anyway."""
        named = [string for string in self.strings if string in vocabulary.special]
        return [*self.special, *(name for name in named if vocabulary.special[name] not in vocabulary.eos_ids)]


def stopped(guide: Guide | None, stops: Stops, vocabulary: Vocabulary) -> Guide:
    """Return the guide of the texts of ``guide``, ``None`` for free text, that stop strings end where they are.

    With the members ``T`` of the guide, a text is a member that holds no stop string, and ends with the end of sequence; or it
    comes to the first stop string, and what stands before it, or all up to its end, is a member::

        L = {y in T: no s in y} + {x s: s the first stop string in x s, and x in T or x s in T}

    The first one is the one that is complete first, of several complete at once the longest. The token that completes it is the
    last one, and counts as a whole, whatever it writes behind it. So the probability of a text is that of all token sequences
    by which a host that cuts texts at stop strings comes to it. Free text may end anywhere, the length limit included. Banned
    phrases do not occur in what the tokens write, which is no less than what is shown. A thought is a part of the text of its
    answer, in which a host stops, too: so none holds a stop string.

    Raises
    ------
    UnsupportedError
        The texts of the guide are not known byte by byte; it bans whole words; or a string reaches into the marker of thoughts.
    EmptyLanguageError
        No text is left.
    """
    references = stops.references(vocabulary)
    held = map(reference_of, filter(SPELLING.fullmatch, vocabulary.tokens if vocabulary.plain else ()))
    spelled = vocabulary.with_special([*held, *references])
    strings = dict.fromkeys([*(string.encode() for string in stops.strings), *map(spelling, references)])
    return _stopped(guide, [*strings], stops.kept, spelled)


def _stopped(
    guide: Guide | None, strings: Sequence[bytes], kept: bool, vocabulary: Vocabulary, before: bytes = b""
) -> Guide:
    phrases = None if guide is None else guide.phrases
    if phrases is not None and phrases.whole_word:
        raise UnsupportedError(
            "Give BannedPhrases(..., whole_word=False) beside stop strings, or leave these out. Whole words are banned, and "
            "whether a word is whole would be decided by what the last token writes behind a stop string, which is not shown."
        )
    match guide:
        case ProductGuide():
            left = _stopped(guide.left, strings, kept, vocabulary)
            return ProductGuide(left, PhraseGuide(left.vocabulary, guide.right.phrases))
        case ThinkingGuide(answer=answer, form=form):
            _, end = form.markers(vocabulary.plain or vocabulary)
            return ThinkingGuide(_stopped(answer, strings, kept, vocabulary, end), form, strings)
    if guide is None or isinstance(guide, PhraseGuide):
        members: ByteMachine[Any] | None = ANYTHING
    else:
        members = guide.machine if guide.match is None else None
    if members is None:
        raise UnsupportedError(
            "Give an output type beside stop strings, such as outlines.types.regex(pattern), without ends='open'. Which texts "
            f"this {type(guide).__name__} allows is known token by token, or they go on behind a member."
        )
    match = StoppedTexts(members, strings, kept=kept, before=before)
    if not match.is_live(match.start):
        raise EmptyLanguageError(
            "Give other stop strings. Each text of the output type holds one before its end, the shortest "
            f"{members.shortest().decode(errors='replace')!r:.80}."
        )
    found = MachineGuide(match, vocabulary, match) if match.machine is None else FSMGuide.from_match(match, vocabulary)
    return found if phrases is None else ProductGuide(found, PhraseGuide(vocabulary, phrases))
