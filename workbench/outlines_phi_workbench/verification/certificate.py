"""A certificate of masks: a compiled grammar with masks of some texts, and why each token is allowed or forbidden.

A program that is extracted from a proof (``proofs/theories/certificate.v``) accepts it only if the lexer is longest match and
every mask is exact. What is written here is only looked for, and need not be trusted.
"""

from __future__ import annotations

import random
from functools import reduce
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi import UnsupportedError
from outlines_phi.automata.automaton import DEAD
from outlines_phi.guides import CFGGuide
from outlines_phi.guides.grammar.lexeme_automaton import NOTHING, LexemeAutomaton
from outlines_phi.guides.grammar.lexer import HELD, START, Lexer, Word
from outlines_phi.guides.guide import DEAD as NO_STATE
from outlines_phi.guides.guide import DONE
from outlines_phi.vocabulary.vocabulary import EOS

from .earley import ItemChart
from .lexing import START as BEGIN
from .lexing import EmittedWords, LongestMatch
from .subject import shown

MOST_ITEMS = 200_000  # A certificate has fewer items of Earley's algorithm, and arcs between places, than this
SAMPLES, LONGEST = 12, 16  # How many texts masks are shown of, and how many tokens a text has at most
_FORMAT = 1


def certificate(guide: CFGGuide, *, samples: int = SAMPLES, seed: int = 0) -> dict[str, Any]:
    """Return a certificate of ``guide``, as JSON has it: its tables, its masks after ``samples`` texts, and witnesses.

    Without ``samples`` it is one of the lexer alone, which is small for every grammar. An :class:`UnsupportedError` where some byte
    of the language is no token, so that masks leave out what the vocabulary cannot write; where the lexer gives a shorter lexeme up
    where the proven definition would go back (grammar-theory.md, section 2.3); or where more than :data:`MOST_ITEMS` are needed.
    """
    used = np.flatnonzero((guide.lexer.targets != DEAD).any(axis=0)[guide.lexer.byte_class]).tolist()
    if missing := [byte for byte in used if bytes([byte]) not in set(guide.vocabulary.tokens)]:
        raise UnsupportedError(
            "Give a vocabulary in which every byte is a token. Members with the byte "
            f"{shown(bytes(missing[:1]))} may be beyond its words, and certificates are of masks over all members."
        )
    texts = _texts(guide, samples, random.Random(seed))
    lexemes = LexemeAutomaton.of(guide.lexer.terminals)
    tokens = [number for number, token in enumerate(guide.vocabulary.tokens) if token]
    found = _Witnesses(guide)
    written = [found.sample(word, np.array(tokens)) for word in texts]
    return {
        "format": _FORMAT,
        "terminals": [terminal.name for terminal in guide.grammar.terminals],
        "token_ids": tokens,
        "tokens": [list(guide.vocabulary.tokens[number]) for number in tokens],
        "lexemes": {
            "byte_class": lexemes.byte_class.tolist(),
            "targets": lexemes.targets.tolist(),
            "labels": (lexemes.label + 1).tolist(),
            "start": lexemes.start,
        },
        "lexer": {
            "byte_class": guide.lexer.byte_class.tolist(),
            "targets": guide.lexer.targets.tolist(),
            "emits": guide.lexer.emits.tolist(),
            "words": [list(word) for word in guide.lexer.words],
            "ends": (guide.lexer.ends + 1).tolist(),
            "start": START,
            "stands_for": stands_for(guide.lexer, lexemes),
        },
        "grammar": {
            "ignored": _bits(terminal.ignored for terminal in guide.grammar.terminals),
            "rules": [[production.head, list(production.body)] for production in guide.grammar.productions],
            "start": guide.grammar.start,
        },
        "samples": written,
        "places": found.refutation(),
    }


def _bits(flags: Any) -> str:
    return "".join("01"[bool(flag)] for flag in flags)


def _texts(guide: CFGGuide, count: int, rng: random.Random) -> list[Word]:
    """Return words of tokens that lead to different states, the empty one first: walks by the masks, class by class."""
    found: dict[int, Word] = {guide.start: ()} if count else {}
    for _ in range(20 * count):
        state, word = guide.start, Word()
        for _ in range(rng.randrange(1, LONGEST + 1) if len(found) < count else 0):
            row = guide.row(state)
            live = [place for place in np.flatnonzero(row.targets != NO_STATE).tolist() if place != EOS]
            members = np.flatnonzero(row.partition.class_of == rng.choice(live)) if live else np.empty(0, np.int64)
            if not len(members):  # no token of the vocabulary
                break
            word = (*word, int(members[rng.randrange(len(members))]))
            state = guide.advance(state, word[-1])
        found.setdefault(state, word)
    return list(found.values())


@final
class _Witnesses:
    """The evidence that tokens are allowed or forbidden. One set of items for all texts shows the forbidden ones."""

    def __init__(self, guide: CFGGuide) -> None:
        self._guide = guide
        self._places = emitted_words(guide.lexer)
        self._search = ItemChart(guide.grammar, self._places.arcs)
        self._refuting = emitted_words(guide.lexer)  # apart, so that what is allowed takes no place
        self._refuted: dict[int, None] = {}

    def sample(self, word: Word, tokens: NDArray[np.int64]) -> dict[str, Any]:
        """Return the mask of a guide after a word of tokens, with a verdict for each place that tokens lead to."""
        guide, text = self._guide, self._guide.vocabulary.decode(word)
        row = guide.row(reduce(guide.advance, word, guide.start))
        read = guide.lexer.lex(text)
        assert read is not None
        lexed, before = read[0], guide.lexer.counted(read[1])
        spans = guide.spanner.of_state(lexed)
        outcomes = []
        for place in np.unique(spans.partition.class_of[tokens]).tolist():
            if (target := int(spans.target[place])) != DEAD:
                emitted = guide.spanner.words[spans.word[place]]
                outcomes.append([target, list(emitted), self._verdict(before + emitted, target)])
        last, is_end = guide.lexer.flush(lexed), bool(row.targets[EOS] == DONE)
        end: Any = 0 if last is None else self._verdict(before + guide.lexer.counted(last), None)
        if is_end and not isinstance(end, list):  # the mask is wrong: what it says is written, and cannot be shown
            end = [[], []]
        return {
            "text": list(text),
            "mask": _bits(row.targets[row.partition.class_of[tokens]] != NO_STATE),
            "end": end,
            "outcomes": outcomes,
        }

    def refutation(self) -> dict[str, Any]:
        """Return the automaton of all that lexers may emit, and the items that show that what is forbidden leads nowhere."""
        places = self._refuting
        homes = [places.number((), state) for state in range(len(self._guide.lexer)) if self._refuted]
        chart = ItemChart(self._guide.grammar, places.arcs)
        for place in self._refuted:
            chart.begin(place)
            check_size(len(chart.reasons))
        arcs = [list(map(list, places.each(place))) for place, _ in enumerate(places.all)]  # it grows
        items: list[dict[tuple[int, Word, int], None]] = [{} for _ in places.all]
        completed: list[dict[tuple[int, int], None]] = [{} for _ in places.all]
        for item in chart.reasons:
            head, rest = chart.needs(item)
            items[item.here][head, rest, item.origin] = None
            if not rest:
                completed[item.origin][head, item.here] = None
        return {
            "places": [[list(word), state] for word, state in places.all],
            "arcs": arcs,
            "lasts": _bits(number in places.closing for number in range(len(places.all))),
            "homes": homes,
            "items": [[[head, list(rest), origin] for head, rest, origin in here] for here in items],
            "completed": [[list(pair) for pair in here] for here in completed],
            "root": chart.root,
        }

    def _verdict(self, word: Word, state: int | None) -> Any:
        """Return bytes that complete the text and a derivation, or the place from which nothing is derived."""
        places = self._places
        place = places.number(word, state)
        for complete in self._search.begin(place):
            places.arcs(complete.here)
            if complete.here in places.closing:
                steps, arcs = self._search.derivation(complete)
                text = b"".join(places.spelling.get(arc, b"") for arc in arcs)
                return [list(text + places.closing[complete.here]), steps[1:]]  # without the root's own
        check_size(len(self._search.reasons))
        refuted = self._refuting.number(word, state)
        self._refuted[refuted] = None
        return refuted


def emitted_words(lexer: Lexer) -> EmittedWords:
    """Return the words that a lexer may still emit, over one byte of each class; refused where there are too many arcs."""
    letters = {int(column): bytes([byte]) for byte, column in reversed(list(enumerate(lexer.byte_class)))}
    return EmittedWords(lexer, letters.values(), check_size)


def check_size(size: int) -> None:
    """Refuse more items or arcs than a certificate has."""
    if size > MOST_ITEMS:
        raise UnsupportedError(
            f"Give a smaller grammar. A certificate of the masks of this one has more than {MOST_ITEMS:,} items or arcs."
        )


def stands_for(lexer: Lexer, lexemes: LexemeAutomaton) -> list[list[Any]]:
    """Return, by state of the lexer, the states of the proven transducer that some text leads to beside it.

    Such a state is ``[]``, ``[q]``, or ``[q, word, state]`` where a word is held back.
    """
    transducer = _Transducer(lexemes)
    # Bytes that neither of them tells apart are one.
    distinct = np.unique(np.stack([lexer.byte_class, lexemes.byte_class]), axis=1, return_index=True)[1].tolist()
    found: list[dict[int, bytes]] = [{} for _ in range(len(lexer))]
    found[START][BEGIN] = b""
    for state, other in (pending := [(START, BEGIN)]):  # it grows
        text = found[state][other]
        for byte in distinct:
            moved, proven = lexer.lex(bytes([byte]), state), transducer.move(other, byte)
            differs = (moved and moved[1]) != (proven and proven.word)
            # A lexeme that is never given up leads the definition to ever new states, which hold more and more back.
            if differs or (proven and transducer.held(proven.state) > HELD) or len(pending) > HELD * len(lexer):
                raise UnsupportedError(
                    "Give a grammar whose lexemes are the longest without exception. After "
                    f"{shown(text + bytes([byte]))} the lexer does not go back as the proven definition does "
                    "(grammar-theory.md, section 2.3), so there is no certificate."
                )
            if moved and proven and proven.state not in found[moved[0]]:
                found[moved[0]][proven.state] = text + bytes([byte])
                pending.append((moved[0], proven.state))
    return [[transducer.listed(other) for other in others] for others in found]


@final
class _Transducer(LongestMatch):
    """Longest match with going back, as ``proofs/theories/lexing.v`` has it: ``step`` there."""

    def __init__(self, lexemes: LexemeAutomaton) -> None:
        super().__init__(lexemes.start)
        self._lexemes = lexemes

    def longer(self, reading: int, byte: int) -> int:
        return int(self._lexemes.targets[reading, self._lexemes.byte_class[byte]])

    def label(self, reading: int) -> Word:
        label = int(self._lexemes.label[reading])
        return () if label == NOTHING else (label,)

    def listed(self, state: int) -> list[Any]:
        """Return a state as certificates have it."""
        reading, fallback = self.residuals[state]
        held = [] if fallback is None else [list(fallback.word), self.listed(fallback.state)]
        return [] if state == BEGIN else [reading, *held]
