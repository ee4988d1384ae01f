"""The language of every output type is the one that stock Outlines compiles."""

from __future__ import annotations

import dataclasses
import json
from enum import Enum
from typing import Annotated, Any, Literal, Optional

import outlines
import outlines_core
import pytest
from outlines.types import regex
from outlines.types.dsl import (
    Choice,
    JsonSchema,
    at_least,
    at_most,
    between,
    either,
    exactly,
    one_or_more,
    optional,
    python_types_to_terms,
    to_regex,
    zero_or_more,
)
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import outlines_phi
from outlines_phi.automaton import DEAD, ByteAutomaton
from outlines_phi.guides.index import from_index
from outlines_phi.guides.regex import compile_regex
from outlines_phi.plugin.output_types import to_pattern


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Size(Enum):
    SMALL = 1
    LARGE = 2.5


class Address(BaseModel):
    city: Annotated[str, Field(max_length=5)]
    zip: Annotated[str, Field(pattern="^[0-9]{3}$")]


class Person(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=4)]
    colour: Colour
    kind: Literal["a", "b"]
    nick: Optional[str] = None  # noqa: UP045 - the spelling that applications still use
    addresses: Annotated[list[Address], Field(max_length=2)]


class Anything(BaseModel):
    yes: bool
    count: int
    share: float
    note: str
    tags: list[str]


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Order(TypedDict):
    item: Literal["tea", "cake"]
    amount: int


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", 2, None]}},
    "required": ["a"],
}

CASES: list[tuple[str, Any, list[str], list[str]]] = [
    # name, output type, members, strangers
    ("regex", regex("[ab]{2}|é+"), ["ab", "éé"], ["a", "abé", "e"]),
    ("regex of any character", regex(".."), ["x☃", "🦊é"], ["a", "a\n", "abc"]),
    ("regex with flags", regex("(?i)ab"), ["aB"], ["a"]),
    ("either", either("yes", "no"), ["yes", "no"], ["yesno", ""]),
    ("alternatives", "yes" | regex("[0-9]"), ["yes", "7"], ["yes7"]),
    ("sequence", "n=" + regex("[0-9]"), ["n=7"], ["7", "n="]),
    ("optional", optional("a") + "b", ["b", "ab"], ["a", "aab"]),
    ("exactly", exactly(2, "ab"), ["abab"], ["ab", "ababab"]),
    ("at least", at_least(2, "a"), ["aa", "aaaa"], ["a"]),
    ("at most", at_most(2, "a"), ["", "aa"], ["aaa"]),
    ("between", between(1, 2, either("a", "b")), ["b", "ab"], ["", "aab"]),
    ("zero or more", zero_or_more("ab"), ["", "abab"], ["aba"]),
    ("one or more", one_or_more("ab"), ["ab", "abab"], [""]),
    ("text that looks like a regex", either("a.c", "(x|y)*"), ["a.c", "(x|y)*"], ["abc", "x"]),
    ("Literal", Literal["red", "green", 3, True], ["red", "3", "True"], ["4", "true"]),
    ("Enum", Colour, ["red", "green"], ["RED", "redgreen"]),
    ("Enum of numbers", Size, ["1", "2.5"], ["2x5", "2"]),
    ("Choice", Choice(["red", 3]), ["red", "3"], ["red3"]),
    ("bool", bool, ["True", "False"], ["true", "1"]),
    ("int", int, ["0", "-12"], ["01", "1.5", ""]),
    ("float", float, ["1", "-0.25", "1e+3"], ["1.", ".5", "x"]),
    ("str", str, ['""', '"aé☃"'], ["a", '"']),
    ("Optional", Optional[int], ["3", "None"], ["null"]),  # noqa: UP045
    ("list", list[Literal["a", "b"]], ['["a"]', '["a", "b"]'], ["[]", '["a","b"]']),
    ("tuple", tuple[int, bool], ["(1, True)"], ["(1)"]),
    ("dict", dict[str, int], ['{"a":1}', "{}"], ['{"a": 1}', "{a:1}"]),
    (
        "pydantic",
        Person,
        [
            '{"name":"Ann","colour":"red","kind":"a","addresses":[]}',
            '{"name": "Ann", "colour": "red", "kind": "b", "nick": null, "addresses": [{"city": "", "zip": "123"}]}',
        ],
        ['{"name":"","colour":"red","kind":"a","addresses":[]}', '{"name":"Ann"}', "{}"],
    ),
    (
        "pydantic of every kind",
        Anything,
        ['{"yes":true,"count":-3,"share":0.5,"note":"\\"é","tags":["a", ""]}'],
        ['{"yes":True,"count":-3,"share":0.5,"note":"","tags":[]}'],
    ),
    ("dataclass", Point, ['{"x":1,"y":-2}'], ['{"y":1,"x":2}', '{"x":1}']),
    ("TypedDict", Order, ['{"item":"tea","amount":2}'], ['{"item":"ale","amount":2}']),
    ("JSON schema, dict", JsonSchema(SCHEMA), ['{"a":1}', '{"a": 1, "b": null}'], ['{"b":2}']),
    ("JSON schema, text", JsonSchema(json.dumps(SCHEMA)), ['{"a":1, "b":"x"}'], ['{"a":1,  "b":"x"}']),
    (
        "JSON schema, whitespace pattern",
        JsonSchema(SCHEMA, whitespace_pattern=r"[\n ]{0,2}"),
        ['{\n "a":1}', '{"a"  :1}'],
        ['{   "a":1}'],
    ),
    ("JSON schema, no whitespace", JsonSchema(SCHEMA, whitespace_pattern=""), ['{"a":1}'], ['{"a": 1}']),
]

BYTES = outlines_core.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})


class Reference:
    """outlines_core's own automaton of the texts that a pattern matches as a whole.

    Without the end anchor the engine drops members that begin with another member; the anchor needs a text before it.
    """

    def __init__(self, pattern: str) -> None:
        index = outlines_core.Index(f"#(?:{pattern})\\z", BYTES)
        self.start = index.get_next_state(index.get_initial_state(), ord("#"))
        self.final = set(index.get_final_states())
        self.rows = useful_transitions(index)


def useful_transitions(index: outlines_core.Index) -> dict[int, dict[int, int]]:
    """Return the byte transitions of an index between states from which a final state can be reached."""
    rows = {state: {b: t for b, t in row.items() if b < 256} for state, row in index.get_transitions().items()}
    useful = set(index.get_final_states())
    while new := {state for state, row in rows.items() if state not in useful and useful & set(row.values())}:
        useful |= new
    return {state: {b: t for b, t in row.items() if t in useful} for state, row in rows.items() if state in useful}


def first_difference(automaton: ByteAutomaton, reference: Reference) -> bytes | None:
    """Return a shortest text that is in one of two languages only, or begins members of one only; else ``None``."""
    pairs = [(automaton.start, reference.start, b"")]
    seen = {pairs[0][:2]}
    for ours, theirs, text in pairs:
        if bool(automaton.accepting[ours]) != (theirs in reference.final):
            return text
        for byte in range(256):
            after = int(automaton.targets[ours, automaton.byte_class[byte]])
            target = reference.rows.get(theirs, {}).get(byte)
            if (after == DEAD) != (target is None):
                return text + bytes([byte])
            if target is not None and (after, target) not in seen:
                seen.add((after, target))
                pairs.append((after, target, text + bytes([byte])))
    return None


@pytest.mark.parametrize(("output_type", "members", "strangers"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
class TestLanguage:
    def test_holds_what_it_should(self, output_type: Any, members: list[str], strangers: list[str]) -> None:
        automaton = compile_regex(to_pattern(output_type))
        assert [text for text in members if not automaton.accepts(text.encode())] == []
        assert [text for text in strangers if automaton.accepts(text.encode())] == []

    def test_is_that_of_outlines_core(self, output_type: Any, members: list[str], strangers: list[str]) -> None:
        reference = Reference(to_regex(python_types_to_terms(output_type)))
        assert first_difference(compile_regex(to_pattern(output_type)), reference) is None

    def test_is_read_from_a_stock_generator(
        self, output_type: Any, members: list[str], strangers: list[str], model: outlines_phi.PhiTransformers
    ) -> None:
        read = from_index(outlines.Generator(model, output_type).logits_processor.index)
        assert first_difference(read, Reference(to_regex(python_types_to_terms(output_type)))) is None


@pytest.mark.parametrize(
    ("one", "other", "witness"),
    [("[a-c]x?", "[a-c]x", b"a"), ("a{2,5}", "a{2,6}", b"aaaaaa"), ("é", "e", b"e"), ("a|b", "a", b"b")],
)
def test_the_comparison_sees_a_difference(one: str, other: str, witness: bytes) -> None:
    assert first_difference(compile_regex(one), Reference(other)) == witness


@pytest.mark.parametrize(
    ("pattern", "member"),
    [
        ("[0-9]+(\\.[0-9]+)?", "1.5"),
        ("(ab)*", "ab"),
        ("a(bc)?(de)?", "ade"),
        (".*", "é"),
        ("(é,)*(\\x01x)?", "é,\x01x"),
    ],
)
def test_members_that_go_on_after_a_member_are_read(
    pattern: str, member: str, model: outlines_phi.PhiTransformers
) -> None:
    index = outlines.Generator(model, regex(pattern)).logits_processor.index
    state = index.get_initial_state()
    for byte in member.encode():
        state = state if state is None else index.get_next_state(state, byte)
    assert state is None, "the engine itself loses this member over single bytes"
    assert from_index(index).accepts(member.encode())
    assert first_difference(from_index(index), Reference(pattern)) is None


def test_an_alternative_that_begins_with_an_earlier_one_is_lost_only_by_a_stock_generator(
    model: outlines_phi.PhiTransformers,
) -> None:
    output_type = Literal["no", "not yet"]
    read = from_index(outlines.Generator(model, output_type).logits_processor.index)
    assert (read.accepts(b"no"), read.accepts(b"not yet")) == (True, False)
    assert first_difference(compile_regex(to_pattern(output_type)), Reference("no|not yet")) is None


def test_members_of_an_enum_may_be_functions() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    class Tool(Enum):
        ADD = add

    assert compile_regex(to_pattern(Tool)).accepts(b'{"a":1,"b":2}')
