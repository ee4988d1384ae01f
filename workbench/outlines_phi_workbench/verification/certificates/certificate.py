"""A certificate of masks: a compiled grammar with masks of some texts, and why each token is allowed or forbidden.

A program that is extracted from a proof (``proofs/theories/certificate.v``) accepts it only if the lexer is longest match and
every mask is exact. What is written here is only looked for, and need not be trusted.
"""

from __future__ import annotations

import random
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.automata.automaton import DEAD
from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.grammar.lexing.lexeme_automaton import LexemeAutomaton
from outlines_phi.guides.grammar.lexing.lexer import START
from outlines_phi.guides.guide import DEAD as NO_STATE
from outlines_phi.guides.guide import DONE
from outlines_phi.vocabulary.classes import EOS

from ..subject import shown
from .emitted_words import EmittedWords, check_size
from .going_back import stands_for
from .item_chart import ItemChart

SAMPLES, LONGEST = 12, 16  # The number of texts whose masks are shown, and the most tokens of one
_FORMAT = 1

Word = tuple[int, ...]


def certificate(guide: CFGGuide, *, samples: int = SAMPLES, seed: int = 0) -> dict[str, Any]:
    """Return a certificate of ``guide``, as JSON has it: its tables, its masks after ``samples`` texts, and witnesses.

    Raises
    ------
    UnsupportedError
        Some byte of the language is no token (S5), so that masks leave out what the vocabulary cannot write, the lexer gives a
        shorter lexeme up where the proven definition would go back (grammar-theory.md, section 2.3), or more
        than :data:`MOST_ITEMS` items or arcs are needed.

    Notes
    -----
    Without ``samples`` it is one of the lexer alone, which is small for every grammar.
    """
    _check_bytes(guide)
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


def _check_bytes(guide: CFGGuide) -> None:
    used = np.flatnonzero((guide.lexer.targets != DEAD).any(axis=0)[guide.lexer.byte_class]).tolist()
    tokens = set(guide.vocabulary.tokens)
    if missing := [byte for byte in used if bytes([byte]) not in tokens]:
        raise UnsupportedError(
            "Give a vocabulary in which every byte is a token. Members with the byte "
            f"{shown(bytes(missing[:1]))} may be beyond its words, and certificates are of masks over all members."
        )


def _bits(flags: Any) -> str:
    return "".join("01"[bool(flag)] for flag in flags)


def _texts(guide: CFGGuide, count: int, rng: random.Random) -> list[Word]:
    """Return words of tokens that lead to different states, the empty one first: walks by the masks, class by class."""
    found: dict[int, Word] = {guide.start: ()} if count else {}
    for _ in range(20 * count):
        if len(found) == count:
            break
        state = guide.start
        word: Word = ()
        for _ in range(rng.randrange(1, LONGEST + 1)):
            row = guide.row(state)
            live = [place for place in np.flatnonzero(row.targets != NO_STATE).tolist() if place != EOS]
            if not live:
                break
            members = np.flatnonzero(row.partition.class_of == rng.choice(live))
            if not len(members):  # no token of the vocabulary
                break
            word = (*word, int(members[rng.randrange(len(members))]))
            state = guide.advance(state, word[-1])
        found.setdefault(state, word)
    return list(found.values())


@final
class _Witnesses:
    """The reasons that tokens are allowed or forbidden. A forbidden one is shown by one set of items for all texts."""

    def __init__(self, guide: CFGGuide) -> None:
        self._guide = guide
        self._places = EmittedWords(guide.lexer)
        self._search = ItemChart(guide.grammar, self._places.arcs)
        self._refuting = EmittedWords(guide.lexer)  # apart, so that what is allowed takes no place
        self._refuted: dict[int, None] = {}

    def sample(self, word: Word, tokens: NDArray[np.int64]) -> dict[str, Any]:
        """Return the mask of a guide after a word of tokens, with a verdict for each place that tokens lead to."""
        guide, text = self._guide, self._guide.vocabulary.decode(word)
        state = guide.start
        for token in word:
            state = guide.advance(state, token)
        row = guide.row(state)
        read = guide.lexer.lex(text)
        assert read is not None
        lexed, before = read[0], guide.lexer.counted(read[1])
        spans = guide.spanner.of_state(lexed)
        outcomes = []
        for place in np.unique(spans.partition.class_of[tokens]).tolist():
            if (target := int(spans.target[place])) != DEAD:
                emitted = guide.spanner.words[spans.word[place]]
                outcomes.append([target, list(emitted), self._verdict(before + emitted, target)])
        last = guide.lexer.flush(lexed)
        is_end = bool(row.targets[EOS] == DONE)
        end: Any = [[], []] if is_end else 0
        if last is not None:
            end = self._verdict(before + guide.lexer.counted(last), None)
        if isinstance(end, list) != is_end:  # the mask is wrong: what it says is written, and cannot be shown
            end = [[], []] if is_end else end
        return {
            "text": list(text),
            "mask": _bits(row.targets[row.partition.class_of[tokens]] != NO_STATE),
            "end": end,
            "outcomes": outcomes,
        }

    def refutation(self) -> dict[str, Any]:
        """Return the automaton of all that lexers may emit, and the items that show that what is forbidden leads nowhere."""
        places, grammar = self._refuting, self._guide.grammar
        homes = [places.number((), state) for state in range(len(self._guide.lexer)) if self._refuted]
        chart = ItemChart(grammar, places.arcs)
        for place in self._refuted:
            chart.begin(place)
            check_size(len(chart))
        place = 0
        while place < len(places.all):  # arcs may lead to new ones
            places.arcs(place)
            place += 1
        root = len(grammar.terminals) + len(grammar.nonterminals)
        items: list[dict[tuple[int, Word, int], None]] = [{} for _ in places.all]
        completed: list[dict[tuple[int, int], None]] = [{} for _ in places.all]
        for item in chart.reasons:
            head = root if chart.head(item) == ItemChart.ROOT else chart.head(item)
            items[item.here][head, chart.rest(item), item.origin] = None
            if not chart.rest(item):
                completed[item.origin][head, item.here] = None
        return {
            "places": [[list(word), state] for word, state in places.all],
            "arcs": [
                [[terminal, there] for terminal, several in places.arcs(number).items() for there in several]
                for number in range(len(places.all))
            ],
            "lasts": _bits(number in places.closing for number in range(len(places.all))),
            "homes": homes,
            "items": [[[head, list(rest), origin] for head, rest, origin in here] for here in items],
            "completed": [[list(pair) for pair in here] for here in completed],
            "root": root,
        }

    def _verdict(self, word: Word, state: int | None) -> Any:
        """Return bytes that complete the text and a derivation, or the place from which nothing is derived."""
        places = self._places
        place = places.number(word, state)
        for complete in self._search.begin(place):
            places.arcs(complete.here)
            if complete.here in places.closing:
                text = b"".join(places.spelling.get(arc, b"") for arc in self._search.arcs_of(complete))
                steps = self._search.leftmost(complete)[1:]  # without the root's own
                return [list(text + places.closing[complete.here]), steps]
        check_size(len(self._search))
        refuted = self._refuting.number(word, state)
        self._refuted[refuted] = None
        return refuted
