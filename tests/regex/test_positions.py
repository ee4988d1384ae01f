"""Positions in named groups, and the progress of a string, against their definitions over all short texts."""

import itertools
import pickle
import random
from typing import Any

import numpy as np
import pytest
import regex

from outlines_phi import BannedPhrases, Vocabulary
from outlines_phi.automata.automaton import DEAD, ByteAutomaton
from outlines_phi.guides import FSMGuide
from outlines_phi.guides.json_schema import string_set
from outlines_phi.guides.json_schema.machine.scalars import begun, ended
from outlines_phi.guides.json_schema.string_set import RAW_ASCII, StringSet, members, spelled_size
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi.regex.patterns import compile_in_parts, compile_regex, searched
from outlines_phi.regex.spelling import Composed
from tests.guides.json_schema.schemas import quoted

Parts = tuple[str, ...]
"""The texts before each group and of the group, in turn, and the rest."""

CASES: dict[str, Parts] = {
    "literals": ("a", "[bc]+", ",b", "c{2}", "."),
    "no literals": ("", "[ab]{1,2}", "", "b?c", ""),
    "endless literals": ("", "a*", ",+", "[bc]+", ",*"),
    "ambiguous": ("", "[ab,]{1,3}", ",", "[ab]{2}", ""),
    "the next value may be passed": ("", "a", "(?:,|,bc)", "(?:c|b)?", ",", "c", ""),
    "alternatives": ("(?:a|ab)", "b?c", "(?:,|c,)", "a+|b", "b"),
    "optional": ("b?", "a?", ",?", "b?", ""),
    "three": ("", "a", "", "b*", ",", "a*", ""),
    "look-around": ("", "[abc]+(?!a)", r"\b,(?=[ab])", "[abc]{1,2}$", ""),
    "one": ("a?", "b{2}", "c"),
}
ALPHABET = "abc,."
LONGEST = 6

cases = pytest.mark.parametrize("parts", CASES.values(), ids=CASES)


def pattern(parts: Parts) -> str:
    return "".join(f"(?P<g{i}>{part})" if i % 2 else part for i, part in enumerate(parts))


def joined(parts: Parts) -> str:
    return "".join(f"(?:{part})" for part in parts)


def begins(text: str, parts: Parts) -> bool:
    return regex.fullmatch(joined(parts), text, partial=True) is not None


def position(text: str, parts: Parts) -> int:
    """A text is in the first group whose texts, with what stands before, begin with it, once what stands before may end."""
    groups = range(len(parts) // 2)
    k = next((k for k in groups if begins(text, parts[: 2 * k + 2])), None)
    if k is None:
        return 2 * len(groups) - 1
    left = 2 * k + 1
    begun = any(
        regex.fullmatch(joined(parts[:left]), text[:end]) and begins(text[end:], parts[left:])
        for end in range(len(text) + 1)
    )
    return 2 * k if k == 0 or begun else 2 * k - 1


def positions(automaton: ByteAutomaton) -> dict[str, int]:
    """The position of every short text that some member begins with."""
    assert automaton.positions is not None
    found = {}
    for text in ("".join(text) for n in range(LONGEST) for text in itertools.product(ALPHABET, repeat=n)):
        state = automaton.advance(automaton.start, text.encode())
        if state != DEAD:
            found[text] = int(automaton.positions[state])
    return found


@cases
def test_every_state_is_at_one_position_of_the_same_language(parts: Parts) -> None:
    named, plain = compile_regex(pattern(parts)), compile_regex(joined(parts))
    assert plain.positions is None and named.witness(plain) is None and len(named) >= len(plain)
    found = positions(named)
    if "(?" in pattern(parts).replace("(?P", "").replace("(?:", ""):  # looked at beyond a part of the pattern
        parts = tuple(regex.sub(r"\(\?[!=][^)]*\)|\\b|\$", "", part) for part in parts)
    assert found == {text: position(text, parts) for text in found}
    assert len(set(found.values())) > 1


@pytest.mark.parametrize(
    "pattern", ["(?P<a>x)+y", "(?P<a>x)|y", "(?:(?P<a>x)y|z)w", "(?=(?P<a>x))xy", "(a)(b)", "(?P<all>abc)"]
)
def test_no_position_is_told_without_groups_at_the_top(pattern: str) -> None:
    assert compile_regex(pattern).positions is None


@pytest.mark.parametrize(
    "pattern", ["(?:a(?i:(?P<x>b)))(,(?P<y>c))", "(?x) a (?P<x>b) , (?<y>c)", "a(?P<x>(?P<z>b)),(?P<y>c)"]
)
def test_groups_are_seen_through_groups_without_names_and_hold_those_inside(pattern: str) -> None:
    found = positions(compile_regex(pattern))
    assert [found["ab,c"[:n]] for n in range(5)] == [0, 0, 0, 2, 2]


def test_within_a_character_it_is_the_least_position_that_may_come() -> None:
    automaton = compile_regex("(?P<a>[xé]+)→?(?P<b>[è→])")
    assert automaton.positions is not None
    # What é and è share may be of the first group, what all arrows begin with may not.
    states = {
        text: automaton.advance(automaton.start, text) for text in (b"x\xc3", "xé".encode(), "xè".encode(), b"x\xe2")
    }
    assert [int(automaton.positions[state]) for state in states.values()] == [0, 0, 2, 2]


def test_positions_stay_through_products_and_pickling() -> None:
    parts = CASES["literals"]
    vocabulary = Vocabulary.from_tokens(["<eos>", *"abc,.", ",b"], 0)
    a, b, comma, both = 1, 2, 4, 6
    automaton = compile_regex(pattern(parts))
    guide = FSMGuide.from_automaton(automaton, vocabulary)
    free = banned(guide, BannedPhrases(["bb", "bcb"]))
    assert isinstance(free, FSMGuide)
    assert free.automaton is not None
    for other in (free.automaton, automaton & compile_regex(".{4,}"), pickle.loads(pickle.dumps(automaton))):
        found = positions(other)
        assert found == {text: position(text, parts) for text in found}
    for one in (guide, free):
        value = one.advance(one.advance(one.start, a), b)
        behind = one.advance(value, comma)
        assert one.begins_block(value, np.array([both, comma])).tolist() == [True, False]
        assert one.begins_block(behind, np.array([b])).tolist() == [True]
        assert [one.between_blocks(state) for state in (one.start, value, behind)] == [False, False, True]


def test_guides_that_differ_in_their_positions_have_fingerprints_of_their_own() -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", *"abc"], 0)
    patterns = ("(?P<x>a)b(?P<y>c)", "(?P<x>a)(?P<y>b)c", "abc")
    assert len({FSMGuide.from_automaton(compile_regex(one), vocabulary).fingerprint() for one in patterns}) == 3


def test_a_pattern_with_groups_is_made_whole_where_others_are_not() -> None:
    assert searched("(?P<x>a)b(?P<y>c)") == searched("abc")
    named = compile_in_parts(r"(?P<x>\w{1,60}), (?P<y>.{1,100})")
    assert isinstance(named, ByteAutomaton) and named.positions is not None
    assert isinstance(compile_in_parts(r"\w{1,60}, .{1,100}"), Composed)
    assert isinstance(compile_in_parts(r"(?P<x>\w{1,2000}), (?P<y>.)"), Composed)


NAMES = ["a", "ab", "abc", "b\\", 'q"', "/", "é", "éa", "è", "😀", "😁x", "\n", "\x00", "\ud7ff", "€", "", "Ab"]
SETS = {
    "all": StringSet.all(),
    "lengths": StringSet.of_lengths(2, 3),
    "two lengths": StringSet.of_lengths(0, 1) | StringSet.of_lengths(3, 4),
    "values": StringSet.of_values(NAMES),
    "one value": StringSet.of_values(["ab😀"]),
    "none of some": ~StringSet.of_values(NAMES),
    "no short one": ~StringSet.of_values(["", *RAW_ASCII]),
    "pattern and lengths": StringSet.matching("^(?:[aé😀]b?)*$") & StringSet.of_lengths(2, 400),
    "no such": StringSet.matching("^[^a]*$") & ~StringSet.of_values(["b", "é"]),
    "some left": StringSet.matching("^[aé]{2,3}$").without(["aa", "éé", "aéa", "aaa", "b"]),
    "one left": StringSet.matching("^[aé]{2}$").without(["aa", "éé", "aé"]),
    "short ones": StringSet.of_lengths(0, 3).without(["", "a", "é", "ab😀"]),
}


HEX = "[0-9a-fA-F]"
WRITTEN = rf'([^"\\]|\\["\\bfnrt]|\\u(00[0189a-fA-F]{HEX}|0022|005[cC]|007[fF]|0[1-9a-fA-F]{HEX}{{2}}|[1-9a-fA-F]{HEX}{{3}}))*"'
"""The spellings by writers of JSON, which escape no printable character of ASCII but the quotation mark and the backslash."""


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_bytes_are_those_of_the_automaton(name: str, ascii: bool) -> None:
    """The next bytes, the number needed, and the end of a string agree, on random ways."""
    strings, rng = SETS[name], random.Random(name)
    automaton = quoted(strings, ascii=ascii)
    if strings.values is not None:
        automaton = (automaton & compile_regex(WRITTEN)).trim()
    pieces = [b'"', b"\\", b"u", b"\\u00", b"e9", b"D83d", b"\\ude", b"00", b"ab", *(text.encode() for text in NAMES)]
    closed = 0
    for _ in range(60):
        one, state = begun(strings, ascii=ascii), automaton.start
        for _ in range(24):
            assert one.size == automaton.distances[state]
            assert ended(one) == automaton.accepting[state]
            after = [one.after(byte) for byte in range(256)]
            targets = automaton.targets[state, automaton.byte_class]
            assert [found is not None for found in after] == (targets != DEAD).tolist()
            live = [byte for byte in range(256) if targets[byte] != DEAD]
            if not live:
                break
            liked = [piece[0] for piece in pieces if piece and piece[0] in live] or live
            byte = rng.choice(liked if rng.random() < 0.7 else live)
            one, state = after[byte], int(targets[byte])
            assert one is not None
        closed += ended(one)
    assert closed


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    inner = random_pattern(rng, depth - 1) if depth else rng.choice(["a", "b", "é", "😀", "[^a]", ".", "ab", r"\\"])
    other = random_pattern(rng, depth - 1) if depth else "b"
    return rng.choice(
        [inner, inner + other, f"(?:{inner}|{other})", f"(?:{inner}){rng.choice(['*', '+', '?', '{2}'])}"]
    )


def test_lengths_beside_states_are_those_of_the_automaton_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next bytes, the number needed, and the end of a string agree, on random ways; of unions and complements as well."""
    rng, counted, pieces = random.Random(7), 0, [*b'"\\ub0 e96', *"aé😀".encode()]

    def of(parts: list[StringSet], kind: int) -> StringSet:
        both = parts[0] & parts[1]
        return [both, both | parts[2], both & parts[2], ~both & parts[3], both | parts[2] & parts[3]][kind]

    for _ in range(150):
        parts = [
            StringSet.matching(f"^{random_pattern(rng)}$"),
            StringSet.of_lengths(rng.randrange(4), rng.choice([None, *range(3, 8)])),
            StringSet.matching(random_pattern(rng, 1)),
            StringSet.of_lengths(rng.randrange(3), rng.randrange(2, 9)),
        ]
        kind = rng.randrange(5)
        monkeypatch.setattr(string_set, "MULTIPLIED", 0)
        strings = of(parts, kind)
        monkeypatch.setattr(string_set, "MULTIPLIED", 1 << 40)
        automaton = quoted(of(parts, kind))
        assert strings.is_empty == automaton.is_empty
        counted += bool(strings.cuts)
        ways = [] if strings.is_empty else [(begun(strings, ascii=False), automaton.start)]
        for _ in range(100 if ways else 0):
            one, state = rng.choice(ways)
            assert (one.size, ended(one)) == (automaton.distances[state], automaton.accepting[state])
            for byte in pieces:
                after, target = one.after(byte), automaton.step(state, byte)
                assert (after is None) == (target is None)
                if after is not None:
                    ways.append((after, target))
    assert counted > 75


@pytest.mark.parametrize("name", SETS)
def test_members_come_by_their_sizes(name: str) -> None:
    found = list(itertools.islice(members(SETS[name], ascii=False), 200))
    assert all(SETS[name].contains(text) and size == spelled_size(text) + 1 for text, size in found)
    sizes = [size for _, size in found]
    assert sizes == sorted(sizes) and len(set(found)) == len(found)
    automaton = quoted(SETS[name])
    assert sizes[0] == automaton.distances[automaton.start]


def is_spelled(strings: StringSet, written: bytes) -> bool:
    """Return True if the bytes after the opening quote spell a member."""
    one: Any = begun(strings, ascii=False)
    for byte in written:
        one = one.after(byte)
    return bool(ended(one))


def test_values_have_no_automaton() -> None:
    """Thousands of values are spelled without a state for each of their bytes."""
    strings = StringSet.of_values(f"name {i}" for i in range(20_000))
    assert is_spelled(strings, b'name 19999"') and strings.automaton is None


def test_delete_is_written_as_it_is_and_as_python_writes_it() -> None:
    strings = StringSet.of_values(["a\x7f", "b"])
    assert all(is_spelled(strings, written) for written in (b'a\x7f"', b'a\\u007f"', b'a\\u007F"'))
