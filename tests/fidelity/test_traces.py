"""Fields of JSON, byte by byte."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_phi.fidelity.traces import byte_places, field_values
from tests.inner import END, ROOT

KEYS = st.text(alphabet='ab" \\.é', max_size=4)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6)
)
RECORDS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))


def scanned(text: str) -> list[str]:
    """The place before each byte of a text, and after the last."""
    return byte_places(text.encode())


def written(value: Any, place: str) -> list[tuple[str, str]]:
    """The characters of a value, each with the place that it belongs to: a second, independent way to know them."""
    match value:
        case dict():
            parts = [("{", place)]
            for i, (key, member) in enumerate(value.items()):
                name = key if key.isalpha() else json.dumps(key, ensure_ascii=False)
                inner = name if place == ROOT else f"{place}.{name}"
                parts += [(c, place) for c in (", " if i else "") + json.dumps(key) + ":"]
                parts += [(" ", inner), *written(member, inner)]
            return [*parts, ("}", place)]
        case list():
            parts, inner = [("[", place)], "[]" if place == ROOT else f"{place}[]"
            for i, member in enumerate(value):
                parts += [(",", place), (" ", inner)] if i else []
                parts += written(member, inner)
            return [*parts, ("]", inner if not value else place)]
        case _:
            return [(c, place) for c in json.dumps(value)]


@given(RECORDS)
def test_every_byte_has_its_place(record: Any) -> None:
    parts = written(record, ROOT)
    text = "".join(c for c, _ in parts)
    assert json.loads(text) == record
    found = scanned(text)[:-1]
    for i, ((c, place), here) in enumerate(zip(parts, found, strict=True)):
        # Where a number ends shows only in what follows: until then the text stands in the number.
        number_before = i > 0 and parts[i - 1][0] in "0123456789" and c in ",]}"
        assert here == (parts[i - 1][1] if number_before and found[i - 1] == parts[i - 1][1] != place else place)


@given(RECORDS, st.booleans(), st.randoms(use_true_random=False))
def test_a_place_does_not_depend_on_what_follows(record: Any, indented: bool, random: Random) -> None:
    text = json.dumps(record, ensure_ascii=False, indent=1 if indented else None).encode()
    places = byte_places(text)
    ends = random.sample(range(len(text)), min(len(text), 12))
    assert all(byte_places(text[:end]) == places[: end + 1] for end in ends)


def test_a_record_by_hand() -> None:
    text = '{"who": {"name": "Ann"}, "tags": ["x", 12]} '
    places = dict(zip(range(len(text) + 1), scanned(text), strict=True))
    assert {places[i] for i in (0, 1, text.index('"who"'), text.index(', "tags'))} == {ROOT}
    assert places[text.index("{", 1)] == "who" == places[text.index("name")]
    assert places[text.index("Ann")] == "who.name" == places[text.index('"}')]
    assert places[text.index("}")] == "who"
    assert places[text.index('["x')] == "tags" == places[text.index(", 12")]
    assert places[text.index("12")] == "tags[]" == places[text.index("]")]
    assert places[len(text)] == END


@given(st.binary(max_size=40))
def test_any_bytes_have_places(data: bytes) -> None:
    places = byte_places(data)
    assert len(places) == len(data) + 1 and all(places)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{"a": {"b c": 1, "d": []}, "e": "é"}', {'a."b c"': "1", "a.d": "[]", "e": '"é"'}),
        ("[1, {}]", {ROOT: "[1, {}]"}),
        ("{}", {ROOT: "{}"}),
        ("12", None),
        ('"yes"', None),
        ('{"a": 1', None),
        ("yes", None),
    ],
)
def test_values_of_fields(text: str, values: dict[str, str] | None) -> None:
    assert field_values(text) == values
