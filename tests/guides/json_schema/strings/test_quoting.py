"""The spellings of a string are exactly those that `json.loads` reads as it."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.guides.json_schema.strings.string_set import StringSet

from .byte_spellings import quoted

fuzz = settings(derandomize=True, deadline=None, max_examples=400)

SETS = [
    StringSet.all(),
    StringSet.none(),
    StringSet.of_lengths(1, 3),
    StringSet.of_values(["", 'a"b', "\\", "/", "é\n", "😀", "\x00\x1f", "😀😁"]),
    ~StringSet.of_values(["a", "é", "😀", "\uffff", "\ud7ff", "\ue000"]),
    StringSet.matching(r"^\p{L}+$"),
    StringSet.matching("^[^😀]{1,2}$"),
]

PIECES = ["a", "é", "😀", "\uffff", '"', "\\", "\n", "/", "0", "\x7f", "\\x", "\\u12", "\\ud83d", "\\uDE00"]
ESCAPES = [
    '\\"',
    "\\\\",
    "\\/",
    "\\b",
    "\\f",
    "\\n",
    "\\r",
    "\\t",
    "\\u0061",
    "\\u00E9",
    "\\ud83d\\ude00",
    "\\uD83D\\uDe01",
]
PIECES += [*ESCAPES, *ESCAPES, "\\u0000", "\\ud7ff", "\\uE000", "\\udbff\\udfff", "\\uFFFF"]


def meant(spelling: str) -> str | None:
    """Return the string of a spelling in Python, without its opening quote; `None` for nothing, or for no string of characters."""
    try:
        value = json.loads(f'"{spelling}')
        value.encode()
    except ValueError:
        return None
    return value


@fuzz
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.characters().map(str)), max_size=5).map("".join))
def test_a_spelling_is_accepted_where_python_reads_a_member(spelling: str) -> None:
    for text in (spelling, spelling + '"', spelling + '""'):
        try:
            written, value = text.encode(), meant(text)
        except UnicodeEncodeError:
            continue  # a raw surrogate has no bytes
        for strings in SETS:
            assert quoted(strings).accepts(written) == (value is not None and strings.contains(value))


@fuzz
@given(st.text(max_size=6), st.booleans(), st.randoms(use_true_random=False))
def test_every_character_may_be_spelled_by_its_code(text: str, is_member: bool, random) -> None:
    codes = text.encode("utf-16-be")
    digits = [f"{codes[at] << 8 | codes[at + 1]:04x}" for at in range(0, len(codes), 2)]
    spelled = "".join("\\u" + "".join(random.choice([d.lower(), d.upper()]) for d in four) for four in digits)
    strings = StringSet.of_values([text]) if is_member else ~StringSet.of_values([text])
    assert quoted(strings).accepts(f'{spelled}"'.encode()) == is_member


def test_all_spellings_of_a_string_are_there() -> None:
    spellings = quoted(StringSet.of_values(["/"])).members_up_to(100, 100)
    assert spellings is not None and sorted(spellings) == sorted([b'/"', b'\\/"', b'\\u002f"', b'\\u002F"'])


def test_lone_and_crossed_surrogates_are_no_characters() -> None:
    everything = quoted(StringSet.all())
    for spelling in (r"\ud800", r"\udc00", r"\ud800a", r"\ud800\n", r"\udc00\ud800", r"\ud800\ud800", r"\uD800\u0061"):
        assert not everything.accepts(f'{spelling}"'.encode())


def test_the_automaton_stays_small() -> None:
    assert len(quoted(StringSet.all())) == 22
    assert len(quoted(StringSet.of_lengths(0, 100))) < 21 * 101
    assert len(quoted(StringSet.of_values(["name"]))) < 50
    assert quoted(StringSet.none()).is_empty


def test_the_automaton_ends_with_the_closing_quote() -> None:
    automaton = quoted(StringSet.of_lengths(0, 2))
    assert not automaton.targets[automaton.accepting].any()
    assert automaton.trim() is automaton
