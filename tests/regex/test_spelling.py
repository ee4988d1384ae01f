"""The progress of a string, beside the automaton of all spellings of a set."""

import random

import pytest

from outlines_phi.automata.automaton import DEAD
from outlines_phi.guides.json_schema.machine.scalars import begun, ended
from outlines_phi.guides.json_schema.strings import string_set
from outlines_phi.guides.json_schema.strings.quoting import RAW_ASCII, members, quoted, spelled_size
from outlines_phi.guides.json_schema.strings.string_set import StringSet
from outlines_phi.regex.patterns import compile_regex

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
    if strings.values is not None and not strings.without:
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
                assert (after is not None) == (target != DEAD)
                if after is not None:
                    ways.append((after, target))
    assert counted > 75


@pytest.mark.parametrize("name", SETS)
def test_members_come_by_their_sizes(name: str) -> None:
    found = []
    for text, size in members(SETS[name], ascii=False):
        assert SETS[name].contains(text) and size == spelled_size(text) + 1
        found.append((text, size))
        if len(found) == 200:
            break
    sizes = [size for _, size in found]
    assert sizes == sorted(sizes) and len(set(found)) == len(found)
    automaton = quoted(SETS[name])
    assert sizes[0] == automaton.distances[automaton.start]


def test_values_have_no_automaton() -> None:
    """Thousands of values are spelled without a state for each of their bytes."""
    strings = StringSet.of_values(f"name {i}" for i in range(20_000))
    one = begun(strings, ascii=False)
    for byte in b'name 19999"':
        following = one.after(byte)
        assert following is not None
        one = following
    assert ended(one) and strings.automaton is None


def test_delete_is_written_as_it_is_and_as_python_writes_it() -> None:
    for written in (b'a\x7f"', b'a\\u007f"', b'a\\u007F"'):
        one = begun(StringSet.of_values(["a\x7f", "b"]), ascii=False)
        for byte in written:
            following = one.after(byte)
            assert following is not None
            one = following
        assert ended(one)
