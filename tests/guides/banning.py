"""Small vocabularies, banned phrases, and what they leave, by brute force and by Python's own string search."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import numpy as np
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, Vocabulary
from outlines_phi.automata.automaton import ByteAutomaton
from outlines_phi.guides.guide import DEAD, DONE, Guide
from outlines_phi.guides.phrases.matcher import PhraseMatcher
from outlines_phi.testing.guide_conformance import reachable

MERGES = Vocabulary(
    (b"", b"a", b"b", b"c", b" ", b"ab", b"bc", b"abc", b" a", b"ca", b"ab", b"a b", b"", b"bca"),
    (0,),
    np.ones(14, dtype=bool),
)
"""Merges that straddle phrases or hold them whole, a leading space, a spelling twice, a special token."""

BYTES = Vocabulary.from_tokens(["<eos>", "s", "S", b"\xc3", b"\x9f", "ß", b"s\xc3", b"\x9fs", "_", " ", b"\xc5\xbf"], 0)
"""Pieces of characters, and characters that fold to ``s``."""

WORDS = Vocabulary.from_tokens(
    ["<eos>", "cat", "s", " cat", " ", "ca", "t", "é".encode()[:1], "é".encode()[1:], "-"], 0
)

CHARACTERS = "abs _ßSé"


def is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def holds(phrases: BannedPhrases, text: bytes, prompt: bytes = b"") -> bool:
    """Return True if an occurrence ends in ``text``, which is all there is after ``prompt``."""
    before = prompt if phrases.across_prompt else b""
    own = (before + text).decode(errors="surrogateescape")
    ends, at = [], 0
    for character in own:
        at += len(character.encode(errors="surrogateescape"))
        ends.append(at)
    for phrase in phrases.phrases:
        folds = phrases.ignore_case and isinstance(phrase, str)
        searched = [(f, end) for c, end in zip(own, ends, strict=True) for f in (c.casefold() if folds else c)]
        letters = "".join(f for f, _ in searched)
        for start, stop in spans(phrase, letters, phrases.ignore_case):
            whole = (start == 0 or not is_word(letters[start - 1])) and (
                stop == len(letters) or not is_word(letters[stop])
            )
            if searched[stop - 1][1] > len(before) and (whole or not phrases.whole_word):
                return True
    return False


def spans(phrase: str | re.Pattern[str], letters: str, ignore_case: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of ``phrase`` in ``letters``, folded if case is ignored; a byte that is no UTF-8 matches nothing."""
    if isinstance(phrase, str):
        wanted = phrase.casefold() if ignore_case else phrase
        yield from ((i, i + len(wanted)) for i in range(len(letters)) if letters[i : i + len(wanted)] == wanted)
        return
    flags = phrase.flags | (re.IGNORECASE if ignore_case else 0)
    for start in range(len(letters)):
        for stop in range(start + 1, len(letters) + 1):
            letters_only = not any("\udc80" <= letter <= "\udcff" for letter in letters[start:stop])
            if letters_only and re.fullmatch(phrase.pattern, letters[start:stop], flags):
                yield start, stop


def ended(guide: Guide, depth: int, start: int) -> set[tuple[int, ...]]:
    """The token sequences of at most ``depth`` tokens that a guide lets end, without the end of sequence; by ``advance``."""
    found, level = set(), [((), start)]
    eos, advance = guide.vocabulary.eos_ids[0], cache(guide.advance)
    for _ in range(depth + 1):
        found |= {ids for ids, state in level if advance(state, eos) == DONE}
        below = [((*ids, v), advance(state, v)) for ids, state in level for v in range(len(guide.vocabulary))]
        level = [(ids, state) for ids, state in below if state not in (DEAD, DONE)]
    return found


def sequences(vocabulary: Vocabulary, depth: int) -> Iterator[tuple[int, ...]]:
    """All sequences of at most ``depth`` tokens that write something."""
    spelled = [v for v, token in enumerate(vocabulary.tokens) if token]
    for length in range(depth + 1):
        yield from product(spelled, repeat=length)


def members(vocabulary: Vocabulary, depth: int, is_member: Callable[[bytes], bool]) -> set[tuple[int, ...]]:
    """The sequences whose text is a member; a text has many spellings."""
    known = cache(is_member)
    return {ids for ids in sequences(vocabulary, depth) if known(vocabulary.decode(ids))}


def assert_same(found: set[tuple[int, ...]], expected: set[tuple[int, ...]]) -> None:
    """Assert that two sets of sequences are one; of all that is wrong one is shown, as pytest takes minutes to compare big sets."""
    wrong = min(found ^ expected, default=None)
    assert wrong is None, f"{wrong} is {'found, and should not be' if wrong in found else 'not found'}"


def assert_rows(guide: Guide, *starts: int) -> None:
    """Assert that rows agree with ``advance`` in every state that tokens lead to."""
    for state in {*reachable(guide, limit=60), *starts}:
        row = guide.row(state)
        assert guide.partition_of(state) is row.partition
        by_row = row.targets[row.partition.class_of].tolist()
        assert by_row == [guide.advance(state, v) for v in range(len(guide.vocabulary))], guide.describe(state)


def least_tokens(everything: set[tuple[int, ...]]) -> dict[tuple[int, ...], int]:
    """Return the distance to the end of every prefix of ``everything``, in tokens of the shortest member."""
    to_go: dict[tuple[int, ...], int] = {}
    for ids in sorted(everything, key=len, reverse=True):
        to_go |= {ids[:end]: len(ids) - end for end in range(len(ids) + 1)}
    return to_go


phrase_texts = st.text(CHARACTERS, min_size=1, max_size=3)
patterns = st.sampled_from([r"[ab]{2}", r"s{2}", r"a(b|s)?_", r"\w ", r"(?:é|ß){1,2}", r"[^a]b"]).map(re.compile)


@st.composite
def bans(draw: st.DrawFn) -> BannedPhrases:
    """Random phrases with random options."""
    phrases = draw(st.lists(st.one_of(phrase_texts, phrase_texts, patterns), min_size=1, max_size=4))
    ignore_case, whole_word, across_prompt = (draw(st.booleans()) for _ in range(3))
    return BannedPhrases(phrases, ignore_case=ignore_case, whole_word=whole_word, across_prompt=across_prompt)


@st.composite
def vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Random pieces of text cut anywhere, so parts of characters and merges that straddle phrases among them."""
    text = draw(st.text(CHARACTERS, min_size=4, max_size=12)).encode()
    cuts = draw(st.lists(st.tuples(st.integers(0, len(text) - 1), st.integers(1, 4)), min_size=3, max_size=6))
    pieces = [text[start : start + length] for start, length in cuts]
    return Vocabulary.from_tokens([*pieces, b"", b"a", b"<eos>"], len(pieces) + 2)


def automaton_of(matcher: PhraseMatcher) -> ByteAutomaton:
    """The texts without a phrase: one state for all states of the matcher that have the same future."""
    reads = np.unique(matcher.byte_class, return_index=True)[1]
    found = {int(matcher.futures(np.array(matcher.start))): matcher.start}
    rows, alive, order = [], [], [matcher.start]
    for state in order:  # it grows
        after = matcher.step(np.array(state), reads)
        rows.append(matcher.futures(after).tolist())
        alive.append(~matcher.matches(after))
        for future, target in zip(rows[-1], after.tolist(), strict=True):
            if future not in found:
                found[future] = target
                order.append(target)
    number = {future: place for place, future in enumerate(found, 1)}
    inner = np.where(alive, [[number[future] for future in row] for row in rows], 0)
    targets = np.concatenate([np.zeros((1, len(reads)), dtype=np.int32), inner.astype(np.int32)])
    accepting = np.concatenate([[False], ~matcher.completes_at_end(np.array(order))])
    return ByteAutomaton(targets, matcher.byte_class, 1, accepting)
