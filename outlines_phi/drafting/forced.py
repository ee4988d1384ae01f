"""Drafts of the text that a guide forces, in the tokens that the tokenizer writes it in."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from ..guides.guide import DONE, UNREACHABLE, Guide
from ..vocabulary.trie import Trie, fewest_tokens
from .drafter import Draft, Drafter, Drafting, DraftRun, Site, SiteDrafting

BLANKS = b" \t\n\r"
"""Bytes that may be optional between the parts of a format."""

BLANK = BLANKS[0]
"""The blank that is written where one is."""

STATES_KEPT = 4096
"""States whose steps are kept."""

CONTEXT = 4
"""Tokens before the forced text that are encoded together with it: what the tokenizer writes depends on them."""

CONTINUATIONS = 16
"""Texts that may follow the forced one, on which it is tried out whether the tokenizer would merge them with it."""

BYTES = 16
"""Bytes of forced text that are followed for each token that is asked for."""

SEPARATORS = b",:"
"""Bytes that a space is written after, where it may be, until a text does otherwise: the habit of ``json.dumps``, and of prose."""

DRAFTS_KEPT = 4096
"""Drafts that are kept: the same places of a format come back in every text."""

BYTES_KEPT = 2**20
"""The memory that these take, about."""

Way = Literal["after", "ending"]
"""The method of :class:`ForcedTexts` that proposes a text after a state."""


@final
@dataclass(frozen=True)
class ForcedDrafter(Drafter):
    """Proposes the text that the guide forces: while there is one way on in bytes, but for blanks, it is followed.

    The guide allows many tokenizations of that text; the probable one is the tokenizer's own, of the text together with the
    last few tokens. Tokens at its end that the tokenizer would merge with most of what may follow are left out: of a word whose
    rest is free, the forced beginning is not what will be written. Optional blanks are written as the text has done so far.
    """

    name: ClassVar[str] = "forced"

    def begin(self, run: DraftRun) -> Drafting:
        return _encoded(run, "after")


@final
@dataclass(frozen=True)
class EndingDrafter(Drafter):
    """Proposes that the value that is being written ends here, and the text that is forced after it.

    Where a value may go on as it began or end in one way, as a string of JSON by its closing quotation mark, that way is taken.
    So the end of a short value costs no call of its own. In long texts the guess is seldom right: it belongs behind drafters
    that know more, inside an :class:`~outlines_phi.drafting.drafter.AdaptedLength`, which is where ``draft="forced"`` puts it.
    """

    name: ClassVar[str] = "ending"
    cheap: ClassVar[bool] = True

    def begin(self, run: DraftRun) -> Drafting:
        return _encoded(run, "ending")


def _encoded(run: DraftRun, way: Way) -> Drafting:
    """Return the drafter at work for a table; what it finds out, and encodes, is kept with the table."""
    return run.table.keep(
        ("forced", way, run.encode),
        run.table.start,
        lambda: SiteDrafting(_ForcedText(run, way).draft),
        lambda _: BYTES_KEPT,
    )


@final
class _ForcedText:
    """Proposes texts in the tokens that the tokenizer writes them in, after the last few tokens of what stands before.

    Tokens at the end of a text that the tokenizer would merge with most of what may follow are left out.
    """

    def __init__(self, run: DraftRun, way: Way) -> None:
        self._vocabulary, self._encode = run.vocabulary, run.encode
        self._texts = ForcedTexts(run.table.guide)
        self._propose = self._texts.after if way == "after" else self._texts.ending
        self._made, self._unsettled = lru_cache(DRAFTS_KEPT)(self._make), lru_cache(DRAFTS_KEPT)(self._count_unsettled)

    def draft(self, site: Site, length: int) -> Draft:
        return Draft(self._made(site.state, site.tokens[-CONTEXT:], self._habit(site), length))

    def _habit(self, site: Site) -> bytes:
        """Return the separators that the text, where it last had one, wrote a space after."""
        written = self._vocabulary.decode(site.tokens)
        ends = ((sign, written.rfind(sign, 0, -1) + 1) for sign in SEPARATORS)
        return bytes(sign for sign, end in ends if not end or written[end] == BLANK)

    def _make(self, state: int, before: tuple[int, ...], spaced: bytes, length: int) -> tuple[int, ...]:
        """Return the tokens of the text after ``state``, where the tokens ``before`` have been written."""
        text, end = self._propose(state, self._vocabulary.decode(before)[-1:], spaced, BYTES * (length + 1))
        if not text:
            return ()
        tokens = self._tokenize(before, text)
        return tokens[: len(tokens) - self._unsettled(text, end)][:length]

    def _count_unsettled(self, text: bytes, end: int) -> int:
        """Return the number of last tokens of ``text`` that change with most continuations of ``end``."""
        tokens = whole = self._tokenize((), text)
        longer = [self._tokenize((), text + more) for more in self._texts.continuations(end, CONTINUATIONS)]
        while tokens and 2 * sum(other[: len(tokens)] == tokens for other in longer) < len(longer):
            tokens = tokens[:-1]
        return len(whole) - len(tokens)

    def _tokenize(self, before: tuple[int, ...], text: bytes) -> tuple[int, ...]:
        """Return the tokens of ``text`` after ``before``: as both are encoded together, else as it is encoded by itself."""
        if self._encode is None or not text:
            return fewest_tokens(self._vocabulary, text)
        for context in (before, ()):
            written = _characters(self._vocabulary.decode(context) + text)
            ids = tuple(self._encode(written)) if written else ()
            if ids[: len(context)] == context:
                return ids[len(context) :]
        return ()


def _characters(text: bytes) -> str:
    """Return the characters that ``text`` begins with: none if it begins within one, all but the last if it ends within one."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()


@final
class ForcedTexts:
    """The text that a guide forces: what all live tokens of a state begin with, but for blanks.

    That is what is forced where every byte is a token, as in byte-level vocabularies. Where some tokenizations lead to texts that
    others cannot write, it may be more.

    Formats allow blanks that are never or always written, as ``[ ]?`` around the ``:`` of JSON. Where nothing but blanks may
    stand before the one byte to come, ``spaced`` decides: the bytes that a space is written after, if it may be.
    """

    def __init__(self, guide: Guide) -> None:
        self._held, self._tokens = ref(guide), guide.vocabulary.tokens  # what is kept with a table keeps no guide alive
        self._trie = Trie.of(guide.vocabulary)
        nodes = np.arange(len(self._trie))  # the node of the first byte, of every node
        for start, end in zip(self._trie.levels[2:-1], self._trie.levels[3:], strict=True):
            nodes[start:end] = nodes[self._trie.parent[start:end]]
        self._first = self._trie.byte[nodes[self._trie.node_of]]  # the first byte of every token
        self._step = lru_cache(STATES_KEPT)(self._one_step)

    @property
    def _guide(self) -> Guide:
        guide = self._held()
        assert guide is not None
        return guide

    def after(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        """Return the text that everything after ``state`` begins with, and the state after it.

        ``last`` is the byte before, if there is one. The text has about ``most`` bytes at most. The budget is not looked at: one
        that forces something is too short for drafts to save much.
        """
        text = b""
        while len(text) < most and (token := self._step(state, bool(last) and last in spaced)) >= 0:
            text, state = text + self._tokens[token], self._guide.advance(state, token)
            last = text[-1:]
        return text, state

    def ending(self, state: int, last: bytes, spaced: bytes, most: int) -> tuple[bytes, int]:
        """Return the one way out of a value and what is forced after it, as :meth:`after` does; nothing where no value has begun.

        A value has begun where its last byte may be repeated, and the way out is the one byte that leads nearest to an end.
        """
        row = self._guide.row(state)
        live = self._live(state)
        first, classes = self._first[live], row.partition.class_of[live]
        distances = self._guide.distances_after(state)
        nearest = distances[row.targets > DONE].min(initial=UNREACHABLE)
        ways = np.flatnonzero(_present(first[distances[classes] == nearest]))
        if not last or last in BLANKS or not (first == last[0]).any() or len(ways) != 1 or ways[0] == last[0]:
            return b"", state
        token = self._common(state, live[first == ways[0]])
        if token < 0:
            return b"", state
        way = self._tokens[token]
        text, end = self.after(self._guide.advance(state, token), way[-1:], spaced, most)
        return way + text, end

    def continuations(self, state: int, most: int) -> list[bytes]:
        """Return some of the texts that may be written after ``state``, ``most`` at most, spread over all of them."""
        live = self._live(state)
        if len(live) > most:
            live = live[np.linspace(0, len(live) - 1, most).astype(np.int64)]
        return [self._tokens[token] for token in live]

    def _one_step(self, state: int, spaced: bool) -> int:
        """Return the longest live token that all live ones begin with, if blanks are left out or put in; -1 for none."""
        if self._guide.advance(state, self._guide.vocabulary.eos_ids[0]) == DONE:
            return -1
        live = self._live(state)
        first = self._first[live]
        present = _present(first)
        ways = int(present.sum() - present[list(BLANKS)].sum())
        if spaced and present[BLANK]:
            spaces = live[first == BLANK]
            if ways == 1 or self._spaceable(state, self._common(state, spaces)):
                return self._common(state, spaces)
        if ways == 1:
            return self._common(state, live[~np.isin(first, list(BLANKS))])
        return self._common(state, live) if not ways and present.sum() == 1 else -1

    def _spaceable(self, state: int, blank: int) -> bool:
        """Return True if ``blank`` leads to another state with the same ways on, but for blanks."""
        after = self._guide.advance(state, blank) if blank >= 0 else state
        (here, targets), (there, others) = self._signs(state), self._signs(after)
        return after != state and np.array_equal(here, there) and np.array_equal(targets, others)

    def _signs(self, state: int) -> tuple[NDArray[np.int64], NDArray[np.integer]]:
        """Return the live tokens that do not begin with a blank, and where they lead."""
        live, row = self._live(state), self._guide.row(state)
        live = live[~np.isin(self._first[live], list(BLANKS))]
        return live, row.targets[row.partition.class_of[live]]

    def _common(self, state: int, tokens: NDArray[np.integer]) -> int:
        """Return the longest live token that all of ``tokens`` begin with; -1 for none."""
        node = self._trie.meet(self._trie.node_of[tokens])
        while node:
            for token in self._trie.ending(np.array([node]))[0].tolist():
                if self._guide.advance(state, token) > DONE:
                    return token
            node = int(self._trie.parent[node])
        return -1

    def _live(self, state: int) -> NDArray[np.int64]:
        row = self._guide.row(state)
        return np.flatnonzero((row.targets > DONE)[row.partition.class_of])


def _present(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return the bytes that occur, ``[256]``: sorting what is as long as the vocabulary would take a hundred times as long."""
    present = np.zeros(256, dtype=np.bool_)
    present[values] = True
    return present
