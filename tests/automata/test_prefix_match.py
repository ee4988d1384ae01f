"""Longest match at the beginning of a text, against the definition, by brute force; alone and as a guide."""

import re
from functools import cache
from itertools import product

import pytest

from outlines_phi import EmptyLanguageError, UnsupportedError, Vocabulary
from outlines_phi.automata.prefix_match import PrefixMatch, boundary
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.guides.guide import DONE
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.testing import assert_guide

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c", "cc", "é", b"\xc3", b"\xa9", "ca", "abc"], 0)
CHARACTERS = "abcéèx"  # Representatives of all: two of two bytes, which begin alike
TAILS = [bytes(tail) for length in (1, 2, 3) for tail in product(b"abc\xc3\xa9", repeat=length)]

PATTERNS = ["a|abc|b", "a(ba)*", "a|ac|acb", "é|éa|c", "a*"]
AFTER = [None, "[^ab]", "[bé]"]


def follows(rest: bytes, after: str | None, *, ended: bool) -> bool:
    """Return True if a member may stand before ``rest``: the first character is known by its bytes to be one of ``after``."""
    if after is None or not rest:
        return after is None or ended
    ways = [[c for c in CHARACTERS if c.encode().startswith(rest[:end])] for end in (1, 2)]
    return any(way and all(re.fullmatch(after, c) for c in way) for way in ways)


@cache
def longest(pattern: str, after: str | None, text: bytes, *, ended: bool) -> bytes | None:
    """The longest member that a text begins with, by the definition."""
    found = None
    for end in range(len(text) + 1):
        member = text[:end].decode(errors="replace")
        if re.fullmatch(pattern, member) and follows(text[end:], after, ended=ended):
            found = text[:end]
    return found


def settled(pattern: str, after: str | None, text: bytes) -> bytes | None:
    """The same where nothing that follows changes it; ``None`` where it is not known yet."""
    found = longest(pattern, after, text, ended=False)
    return found if all(longest(pattern, after, text + tail, ended=False) == found for tail in TAILS) else None


def stopped(pattern: str, after: str | None, budget: int) -> dict[tuple[int, ...], bytes]:
    """Every token sequence that ends when its member is settled, or with the end of the text or of the budget."""
    found, level = dict[tuple[int, ...], bytes](), [()]
    for left in range(budget, 0, -1):
        below: list[tuple[int, ...]] = []
        for ids in level:
            if (member := longest(pattern, after, VOCABULARY.decode(ids), ended=True)) is not None:
                found[(*ids, 0)] = member
            for token in range(1, len(VOCABULARY)):
                text = VOCABULARY.decode((*ids, token))
                if (member := settled(pattern, after, text)) is not None:
                    found[(*ids, token)] = member
                elif left > 1:
                    below.append((*ids, token))
                elif (member := longest(pattern, after, text, ended=True)) is not None:
                    found[(*ids, token)] = member
        level = below
    return found


def walked(table: Table, budget: int) -> dict[tuple[int, ...], bytes]:
    """Return the members that the moves of a table lead to, and the text of each."""
    found, level = dict[tuple[int, ...], bytes](), [((), table.start)]
    for left in range(budget, 0, -1):
        below = []
        for ids, state in level:
            moves = table.moves(state, left)
            for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
                if target == DONE:
                    found[(*ids, token)] = table.guide.text((*ids, token))
                else:
                    below.append(((*ids, token), target))
        level = below
    return found


def guide(pattern: str, after: str | None = None) -> FSMGuide:
    return FSMGuide.from_match(PrefixMatch(compile_regex(pattern), after and boundary(after)), VOCABULARY)


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_guide_is_the_definition_and_what_is_certain_of_a_text_only_grows(pattern: str, after: str | None) -> None:
    made = guide(pattern, after)
    assert_guide(made)
    found = walked(Table(made), 3)
    assert found == stopped(pattern, after, 3) and made.match is not None
    marked = made.match.marked
    for ids, member in found.items():
        certain = [made.text(ids[:end], ended=False) for end in range(len(ids))] + [member]
        assert all(later.startswith(one) for one, later in zip(certain, certain[1:], strict=False)), (ids, certain)
        if ids[-1] != 0:  # where members end inside tokens: for all at once what the text of each says by itself
            before, token = VOCABULARY.decode(ids[:-1]), VOCABULARY.tokens[ids[-1]]
            cut = int(made.match.cuts(marked.advance(marked.start, before), VOCABULARY)[ids[-1]])
            whole = before.decode(errors="ignore").encode()
            assert member == {-1: certain[-2], 0: whole}.get(cut, before + token[:cut]), ids


def test_a_boundary_is_known_by_its_first_bytes() -> None:
    assert boundary("[^a-z]").advance(boundary("[^a-z]").start, b"\xe2") != 0
    assert boundary("[^a-z]").members_up_to(300, 9) == sorted(
        bytes([byte])
        for byte in range(256)
        if byte not in range(97, 123) and byte not in range(0x80, 0xC2) and byte < 0xF5
    )
    assert boundary("é").members_up_to(9, 9) == ["é".encode()]


@pytest.mark.parametrize("pattern", ["ab", "a?", "a*", "a|bc"])
def test_a_boundary_is_one_character(pattern: str) -> None:
    with pytest.raises(UnsupportedError, match="Give open_at= a regular expression of one character"):
        boundary(pattern)


def test_members_that_no_token_writes() -> None:
    with pytest.raises(EmptyLanguageError, match="Give members that tokens of this vocabulary can write"):
        guide("z")


def test_open_guides_are_told_from_others_and_not_multiplied() -> None:
    closed = FSMGuide.from_automaton(compile_regex("a|b"), VOCABULARY)
    assert (
        guide("a|b").fingerprint()
        != closed.fingerprint()
        == FSMGuide.from_automaton(compile_regex("a|b"), VOCABULARY).fingerprint()
    )
    with pytest.raises(UnsupportedError, match="only guides of byte automata"):
        guide("a|b") & closed
