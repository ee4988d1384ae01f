"""Sets of strings, their spellings in JSON, and formats, beside Python's own strings, `json` and the usual validators."""

import datetime
import json
import random
import uuid
from itertools import product

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.guides.json_schema.schemas import quoted
from tests.inner import FORMATS, UNREACHABLE, ByteAutomaton, StringSet, current_limits, format_strings, spelled, utf8
from tests.refusals import refused

fuzz = settings(derandomize=True, deadline=None, max_examples=100)

LETTERS = "aé𝕏"
TEXTS = ["".join(letters) for length in range(5) for letters in product(LETTERS, repeat=length)]
"""Every text of up to four letters of one, two and four bytes."""


def lengths() -> st.SearchStrategy[StringSet]:
    bounds = st.tuples(st.integers(0, 4), st.one_of(st.none(), st.integers(0, 4)))
    return bounds.map(lambda pair: StringSet.of_lengths(*pair))


def values() -> st.SearchStrategy[StringSet]:
    return st.lists(st.text(LETTERS + "z", max_size=3), max_size=4).map(StringSet.of_values)


def sets() -> st.SearchStrategy[StringSet]:
    found = st.sampled_from(["a", "^a", "é$", "^(aé)*$", "[^a]", "a.é", "^.{2}$"]).map(StringSet.matching)
    return st.recursive(
        st.one_of(lengths(), values(), found),
        lambda inner: st.one_of(
            inner.map(lambda strings: ~strings),
            st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        ),
        max_leaves=4,
    )


@fuzz
@given(sets(), sets())
def test_operations_are_those_of_sets(a: StringSet, b: StringSet) -> None:
    both, either, others = a & b, a | b, ~a
    for text in TEXTS:
        one, other = a.contains(text), b.contains(text)
        assert (both.contains(text), either.contains(text), others.contains(text)) == (
            one and other,
            one or other,
            not one,
        )


@fuzz
@given(st.one_of(lengths(), values()), st.one_of(lengths(), values()), sets())
def test_sets_of_lengths_and_values_are_equal_where_their_strings_are(a: StringSet, b: StringSet, c: StringSet) -> None:
    for left, right in [(a | (a & b), a), (~(a & b), ~a | ~b), (a & ~a, StringSet.none()), (c & c, c)]:
        assert left == right and hash(left) == hash(right)
    assert (~~c).code_automaton == c.code_automaton


@fuzz
@given(sets())
def test_the_bytes_are_those_of_the_members(a: StringSet) -> None:
    code = a.code_automaton
    in_utf8 = spelled(code, utf8)
    assert np.array_equal(code.useful, code.distances != UNREACHABLE)
    assert all(in_utf8.accepts(text.encode()) == a.contains(text) for text in TEXTS)
    assert not in_utf8.accepts(b"\xed\xa0\x80") and not in_utf8.accepts(b"\xc0\xaf")


@fuzz
@given(sets())
def test_the_shortest_and_longest_are_those_of_the_members(a: StringSet) -> None:
    found = [len(text) for text in TEXTS if a.contains(text)]
    if a.is_empty:
        assert not found
        refused("empty", lambda: a.shortest, error=ValueError)
    elif found:
        assert a.shortest <= min(found)
        assert a.longest is None or a.longest >= max(found)


def test_a_length_costs_nothing_where_it_need_not_be_counted() -> None:
    assert StringSet.matching(r"^[\s\S]{2,5}$") == StringSet.of_lengths(2, 5)
    assert StringSet.matching(r"^(?:[^][^])*$").lengths is None  # even lengths are no interval
    assert (StringSet.of_values([]), StringSet.of_values([""])) == (StringSet.none(), StringSet.of_lengths(0, 0))
    long = StringSet.of_lengths(3, 65_535) & StringSet.of_lengths(0, 10**9)
    assert (long.shortest, long.longest, (~long).lengths) == (3, 65_535, ((0, 2), (65_536, None)))
    assert long | StringSet.of_lengths(0, 2) == StringSet.of_lengths(0, 65_535)
    assert long.contains("aaa") and not long.contains("aa")
    uuid = StringSet.matching("^[0-9a-f]{8}$")
    assert uuid & StringSet.of_lengths(1, 10**9) is uuid and (uuid & StringSet.of_lengths(9, None)).is_empty
    words = StringSet.matching("^[a-z]+$") & StringSet.of_lengths(0, 500)
    assert words.longest == 500 and len(words.code_automaton) == 502
    words, short = StringSet.matching("^[a-z]+$"), StringSet.of_lengths(0, 1000 * current_limits().states)
    refused(r"^Lower the bounds .*\. .*states\.$", lambda: words & short)
    assert not StringSet.all().contains("\ud800") and not StringSet.matching("a").contains("a\udfff")
    assert StringSet.of_values(["a\ud800", "b"]) == StringSet.of_values(["b"])


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


def test_all_spellings_of_a_string_and_no_crossed_surrogates_are_in_a_small_automaton() -> None:
    spellings = quoted(StringSet.of_values(["/"])).members_up_to(100, 100)
    assert spellings is not None and sorted(spellings) == sorted([b'/"', b'\\/"', b'\\u002f"', b'\\u002F"'])
    everything = quoted(StringSet.all())
    for spelling in (r"\ud800", r"\udc00", r"\ud800a", r"\ud800\n", r"\udc00\ud800", r"\ud800\ud800", r"\uD800\u0061"):
        assert not everything.accepts(f'{spelling}"'.encode())
    assert len(quoted(StringSet.all())) == 22 and len(quoted(StringSet.of_lengths(0, 100))) < 21 * 101
    assert len(quoted(StringSet.of_values(["name"]))) < 50 and quoted(StringSet.none()).is_empty
    automaton = quoted(StringSet.of_lengths(0, 2))
    assert not automaton.targets[automaton.accepting].any() and automaton.trim() is automaton


CASES = {
    "date": (
        ["2024-02-29", "2000-02-29", "0001-12-31"],
        ["2023-02-29", "1900-02-29", "2024-04-31", "0000-01-01", "24-1-1", "２024-01-01"],
    ),
    "time": (
        ["00:00:00Z", "23:59:59.123+23:59", "08:30:06z"],
        ["24:00:00Z", "08:30:06", "08:30Z", "08:30:06+24:00", "08:30:60Z"],
    ),
    "date-time": (
        ["1963-06-19T08:30:06.28Z", "2024-02-29t00:00:00-08:00"],
        ["1963-06-19 08:30:06Z", "2023-02-29T00:00:00Z"],
    ),
    "duration": (
        ["P4DT12H30M5S", "P1Y", "PT36H", "P2W", "P1Y2M3D"],
        ["P", "PT", "P1YT", "P1Y2D", "P1D2H", "P1Y1W", "1D", "P1.5D"],
    ),
    "email": (
        ["a@b.co", "te~st@example.com", "a.b-c+d@x-y.example.org"],
        ["a", "@b.co", "a@b", ".a@b.co", "a..b@c.de", "a@-b.de", "a@b.local"],
    ),
    "idn-email": (["é@example.com", "한글@example.com"], ["é", "@example.com"]),
    "hostname": (
        ["a", "www.example.com", "a-b.c", "1.2", "a" * 63],
        ["", "-a", "a-", "a..b", "a.", "a_b", "xn--x", "ab--c", "a" * 64],
    ),
    "ipv4": (["0.0.0.0", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
    "ipv6": (
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1:2::7:8", "1:2:3:4:5:6:7::", "1:2:3:4:5:6::1"],
        [":::", "1::2::3", "12345::", "1:2:3:4:5:6:7", "::1%e", "1:2:3:4:5:6:7:8::", "1:2:3:4:5:6:7::1"],
    ),
    "uri": (
        ["http://a.b/c?d=e#f", "urn:x:y", "http://[::1]:80/", "a:"],
        ["/a", "a b:c", "http://a/<b>", "http://é", "http://a/%4", "1a:b"],
    ),
    "uri-reference": (["/a/b", "#x", "", "?q", "//h/p", "a/b:c"], ["\\a", "a b", "1:2"]),
    "uri-template": (["http://a/{b}{?c,d*}", "{+x:3}", ""], ["{", "{a", "a}", "{a b}", "{x:0}"]),
    "iri": (["http://é.com/λ?q=\ue000"], ["/λ", "http://a/\ue000", "λ"]),
    "iri-reference": (["/λ", "#λ"], ["\\λ", "λ a"]),
    "uuid": (
        ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
        ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638"],
    ),
    "uuid4": (["98d80576-482e-427f-8434-7f86890ab222"], ["99c17cbb-656f-164a-940f-1a4568f03487"]),
    "json-pointer": (["", "/a~1b/~0", "//"], ["a", "/~", "/~2", "#/a"]),
    "relative-json-pointer": (["0", "1/a", "12#"], ["-1", "01", "1#a", "/a"]),
}


def samples(automaton: ByteAutomaton, count: int, seed: int) -> list[str]:
    """Random members: a random walk that turns to the end after a random number of bytes."""
    rng, found = random.Random(seed), []
    for _ in range(count):
        state, text, patience = automaton.start, bytearray(), rng.choice([0, 10, 40, 200])
        while True:
            targets = automaton.targets[state, automaton.byte_class]
            live = np.flatnonzero(automaton.distances[targets] < UNREACHABLE)
            if automaton.accepting[state] and (not len(live) or len(text) >= patience or rng.random() < 0.1):
                break
            if len(text) >= patience:
                live = live[automaton.distances[targets[live]] == automaton.distances[targets[live]].min()]
            text.append(rng.choice(live.tolist()))
            state = int(targets[text[-1]])
        found.append(text.decode())
    return found


def of_format(name: str) -> StringSet:
    strings = format_strings(name)
    assert strings is not None and strings is format_strings(name), "a format is built once"
    return strings


@pytest.mark.parametrize("name", CASES)
def test_members_and_others_of_a_format(name: str) -> None:
    strings, (members, others) = of_format(name), CASES[name]
    assert list(map(strings.contains, [*members, *others])) == [True] * len(members) + [False] * len(others)
    assert "pointer" in name or not any(strings.contains(text + "\n") for text in members)


@pytest.mark.parametrize("name", FORMATS)
def test_the_kept_automaton_of_a_format_is_that_of_its_patterns(name: str) -> None:
    assert of_format(name) == FORMATS[name]()


def test_every_format_has_cases_and_others_are_none() -> None:
    assert {*FORMATS} <= {*CASES, *(f"uuid{version}" for version in range(1, 9))}
    assert format_strings("colour") is None and format_strings("regex") is None


CHECKER = jsonschema.Draft202012Validator.FORMAT_CHECKER
TYPES = {
    "date": datetime.date, "time": datetime.time, "date-time": datetime.datetime, "duration": datetime.timedelta, "uuid": uuid.UUID,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({*FORMATS} & {*CHECKER.checkers} | {*TYPES}))
def test_the_usual_validators_accept_what_is_accepted(name: str) -> None:
    texts = samples(spelled(of_format(name).code_automaton, utf8), 400, 0)
    assert [text for text in texts if not CHECKER.conforms(text, name)] == []
    for text in texts if name in TYPES else ():
        TypeAdapter(TYPES[name]).validate_python(text)


def test_every_calendar_day_is_a_date() -> None:
    for year, month, day in product((1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 9999), range(14), range(33)):
        text = f"{year:04}-{month:02}-{day:02}"
        try:
            datetime.date(year, month, day)
        except ValueError:
            assert not of_format("date").contains(text)
        else:
            assert of_format("date").contains(text)


@pytest.mark.parametrize(("name", "lead", "most"), [("email", "a@", 254), ("hostname", "", 253), ("uri", "a:", 2048)])
def test_a_length_beside_a_format_makes_no_states(name: str, lead: str, most: int) -> None:
    strings = of_format(name)
    for least in (0, 200):
        counted = strings & StringSet.of_lengths(least, most)
        assert counted.automaton is not None and len(counted.automaton) <= len(strings.code_automaton) + 1
        assert counted.shortest == max(least, strings.shortest)
        for size in (199, 200, most, most + 1):
            text = f"{lead}{'ab.' * (size // 3 - 1)}{'abcde'[: size % 3 + 3]}"[:size]
            assert counted.contains(text) == (strings.contains(text) and least <= len(text) <= most)
