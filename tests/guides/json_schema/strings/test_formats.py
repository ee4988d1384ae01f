"""Members of a format are accepted by the usual validators; texts that its standard forbids are not."""

from __future__ import annotations

import datetime
import random
import uuid

import jsonschema
import numpy as np
import pytest
from pydantic import TypeAdapter

from outlines_phi.automata.automaton import UNREACHABLE, ByteAutomaton
from outlines_phi.guides.json_schema.strings.formats import FORMATS, format_strings
from outlines_phi.guides.json_schema.strings.string_set import StringSet
from outlines_phi.regex.spelling import spelled, utf8

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
        ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1:2::7:8"],
        [":::", "1::2::3", "12345::", "1:2:3:4:5:6:7", "::1%e"],
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


@pytest.mark.parametrize("name", CASES)
def test_members_and_others(name: str) -> None:
    strings = format_strings(name)
    members, others = CASES[name]
    assert strings is not None
    assert [text for text in members if not strings.contains(text)] == []
    assert [text for text in others if strings.contains(text)] == []
    if "pointer" not in name:
        assert not any(strings.contains(text + "\n") for text in members)


def test_every_format_has_cases() -> None:
    assert set(FORMATS) - {f"uuid{version}" for version in range(1, 9)} <= set(CASES)


@pytest.mark.parametrize("name", sorted(set(FORMATS) & set(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)))
def test_jsonschema_accepts_what_is_accepted(name: str) -> None:
    strings = format_strings(name)
    assert strings is not None
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    assert [
        text for text in samples(spelled(strings.code_automaton, utf8), 300, 0) if not checker.conforms(text, name)
    ] == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("date", datetime.date),
        ("time", datetime.time),
        ("date-time", datetime.datetime),
        ("duration", datetime.timedelta),
        ("uuid", uuid.UUID),
    ],
)
def test_pydantic_accepts_what_is_accepted(name: str, kind: type) -> None:
    strings = format_strings(name)
    assert strings is not None
    for text in samples(spelled(strings.code_automaton, utf8), 500, 1):
        TypeAdapter(kind).validate_python(text)


def test_every_calendar_day_is_a_date() -> None:
    dates = format_strings("date")
    assert dates is not None
    for year in (1, 4, 100, 400, 1900, 1999, 2000, 2023, 2024, 9999):
        for month in range(14):
            for day in range(33):
                text = f"{year:04}-{month:02}-{day:02}"
                try:
                    datetime.date(year, month, day)
                except ValueError:
                    assert not dates.contains(text)
                else:
                    assert dates.contains(text)


def test_a_format_is_built_once_and_an_unknown_one_is_none() -> None:
    assert format_strings("uuid") is format_strings("uuid")
    assert format_strings("colour") is None and format_strings("regex") is None


def test_a_length_beside_a_format_makes_no_states() -> None:
    for name, most in (("email", 254), ("hostname", 253), ("uri", 2048)):
        strings = format_strings(name)
        assert strings is not None
        for least in (0, 200):
            counted = strings & StringSet.of_lengths(least, most)
            assert counted.automaton is not None and len(counted.automaton) <= len(strings.code_automaton) + 1
            assert counted.shortest == max(least, strings.shortest)
            texts = [f"{'ab.' * (size // 3 - 1)}{'abcde'[: size % 3 + 3]}" for size in (199, 200, most, most + 1)]
            lead = {"email": "a@", "uri": "a:", "hostname": ""}[name]
            for text in texts:
                written = (lead + text)[: len(text)]
                assert counted.contains(written) == (strings.contains(written) and least <= len(written) <= most)
