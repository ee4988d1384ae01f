"""The typed value of every output type."""

import dataclasses
import enum
import functools
import pickle
from collections.abc import Callable
from datetime import date, datetime, time
from enum import Enum, IntEnum
from typing import Annotated, Any, Dict, Generic, List, Literal, NewType, Optional, Tuple, TypeVar, Union  # noqa: UP035
from unittest.mock import Mock

import numpy as np
import pytest
from genson import SchemaBuilder
from outlines import types
from outlines.types.dsl import Choice, JsonSchema, either
from pydantic import BaseModel, Field, RootModel, field_validator
from typing_extensions import NotRequired, TypeAliasType, TypedDict

from outlines_phi import (
    BudgetError,
    Draw,
    Effort,
    ExactPhi,
    Generator,
    Guarantee,
    OutlinesPhiError,
    PhiTransformers,
    ValueReadError,
)
from tests.guides.walking import machine_of, random_member
from tests.inner import JSONText, forget_parts, format_of, patterns, reader, to_language
from tests.refusals import refused

PROMPT = "A person as JSON: "
pytestmark = pytest.mark.filterwarnings("ignore:The function name could not be determined")  # Outlines, of a partial


class Colour(Enum):
    RED = "red"
    DARK = "dark, red"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Person(BaseModel):
    name: str
    size: Size
    born: date | None = None
    tags: Annotated[list[str], Field(max_length=2)] = []


class Adult(BaseModel):
    age: Annotated[int, Field(ge=18)]


class Word(BaseModel):
    word: str


class Strict(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def check(cls, value: str) -> str:
        raise KeyError(value)


Content = TypeVar("Content")


class Box(BaseModel, Generic[Content]):
    inside: Content


class Numbers(RootModel[list[int]]):
    pass


@dataclasses.dataclass
class Point:
    x: int
    at: time = time(12)


class Order(TypedDict):
    item: Literal["tea", "cake"]
    amount: NotRequired[int]


def book(person: Person, day: date, seats: int = 1) -> None: ...


# Outlines reads annotations as they are; as names, which the line at the top of this file makes of them, it knows few.
book.__annotations__ = {"person": Person, "day": date, "seats": int}


def one(a: int) -> None: ...


# Python 3.13 wants to be told that a partial is a member; 3.10 has no way to say so.
member_of_enum = getattr(enum, "member", lambda value: value)


class Tool(Enum):
    BOOK = member_of_enum(functools.partial(book, seats=2))
    ONE = one
    OTHER = "other"


Age = NewType("Age", int)

BUILDER = SchemaBuilder()
BUILDER.add_object({"a": 1})

ANN = Person(name="Ann", size=Size.LARGE, born=date(2001, 2, 3), tags=["x"])
ANN_TEXT = '{"name":"Ann","size":2,"born":"2001-02-03","tags":["x"]}'

CASES: list[tuple[str, Any, str, Any]] = [
    # name, output type, text, value
    ("Literal, text", Literal["a", 3, True], "a", "a"),
    ("Literal, number", Literal["a", 3, True], "3", 3),
    ("Literal, bool", Literal["a", 3, True], "True", True),
    ("Literal, two of one spelling", Literal["3", 3], "3", "3"),
    ("Choice takes the first, text", Choice(["3", 3, 4, "4", int]), "3", "3"),
    ("Choice takes the first, number", Choice(["3", 3, 4, "4", int]), "4", 4),
    ("Choice takes one that fits", Choice(["3", 3, 4, "4", int]), "5", 5),
    ("Union of Literals", Union[Literal["1"], int, Literal["2"]], "2", 2),  # noqa: UP007
    ("Literal of a member", Literal[Size.LARGE], "2", Size.LARGE),
    ("Enum", Colour, "dark, red", Colour.DARK),
    ("Enum of numbers", Size, "2", Size.LARGE),
    ("Enum with a function", Tool, '{"a":3}', {"a": 3}),
    ("Enum with functions and texts", Tool, "other", Tool.OTHER),
    ("Enum with a partial", Tool, '{"person":' + ANN_TEXT + ',"day":"2001-02-04"}', None),
    ("Choice", Choice(["red", 3, bool]), "3", 3),
    ("Choice of types", Choice(["red", 3, bool]), "False", False),
    ("True", bool, "True", True),
    ("False", bool, "False", False),
    ("int", int, "-12", -12),
    ("int, annotated", Annotated[int, "years"], "12", 12),
    ("alias", Optional[TypeAliasType("Answer", Literal["x", "y"])], "x", "x"),  # noqa: UP045
    ("new type", Age, "12", 12),
    ("float", float, "1e3", 1000.0),
    ("str", str, '"a\\n☃"', "a\\n☃"),
    ("date", date, "2024-02-29", date(2024, 2, 29)),
    ("date in other digits", date, "٢٠٢٤-02-29", date(2024, 2, 29)),
    ("time", time, "23:59:01", time(23, 59, 1)),
    ("datetime", datetime, "2024-02-29 23:59:01", datetime(2024, 2, 29, 23, 59, 1)),
    ("Optional", Optional[int], "3", 3),  # noqa: UP045
    ("Optional, None", Optional[int], "None", None),  # noqa: UP045
    ("Union takes the first", Union[int, float, str], "3", 3),  # noqa: UP007
    ("Union takes one that fits", int | float | Literal["x"], "3.5", 3.5),
    ("Union of models", Union[Adult, Point], '{"x":1}', Point(1)),  # noqa: UP007
    ("Union takes one that accepts", Union[Strict, Word], '{"word":"x"}', Word(word="x")),  # noqa: UP007
    ("None of a Literal", Optional[Literal["None"]], "None", "None"),  # noqa: UP045
    ("list", List[int], "[1, -2, 30]", [1, -2, 30]),  # noqa: UP006
    ("list of texts", list[str], '["a, b", ""]', ["a, b", ""]),
    ("list of choices", list[Literal["a", 1] | None], '["a", 1, None]', ["a", 1, None]),
    ("list of members", list[Colour], '["dark, red", "red"]', [Colour.DARK, Colour.RED]),
    ("list of lists", list[list[date]], "[[2024-01-01, 2024-01-02], [2024-01-03]]", None),
    ("list of models", list[Point], '[{"x":1}, {"x":2,"at":"01:02:03Z"}]', None),
    ("list of a regex, shortest", list[types.regex("[ab, ]*")], "[a, b]", ["a", "b"]),  # type: ignore[misc]
    ("list of a regex, empty", list[types.regex("a*")], "[]", [""]),  # type: ignore[misc]
    ("list of two terms", list[either("a", types.digit)], '["a", 7]', ["a", "7"]),  # type: ignore[misc]
    ("list that has to be cut again", list[types.regex("a(, b)?c?")], "[a, bc, a]", ["a, bc", "a"]),  # type: ignore[misc]
    ("tuple", Tuple[int, str, bool], '(1, "a, b", False)', (1, "a, b", False)),  # noqa: UP006
    ("tuple of one", tuple[int], "(1)", (1,)),
    ("tuple of any length", tuple[int, ...], "(1, 2)", (1, 2)),
    ("empty tuple", tuple[()], "()", ()),
    ("dict", Dict[str, int], '{"a:1, ":1, "b":-2}', {"a:1, ": 1, "b": -2}),  # noqa: UP006
    ("dict, empty", dict[str, int], "{}", {}),
    ("dict of dates", dict[date, Colour], '{"2024-01-01":"red"}', {date(2024, 1, 1): Colour.RED}),
    ("dict of numbers", dict[Literal[1, "a"] | None, bool], '{"1":True, "a":False, "None":True}', None),
    ("dict of members", dict[Size, tuple[int, int]], '{"2":(1, 2)}', {Size.LARGE: (1, 2)}),
    ("pydantic", Person, ANN_TEXT, ANN),
    ("pydantic, generic", Box[date], '{"inside":"2024-01-01"}', Box[date](inside=date(2024, 1, 1))),
    ("pydantic, root", Numbers, "[1,2]", Numbers([1, 2])),
    ("dataclass", Point, '{"x": 1, "at": "01:02:03Z"}', None),
    ("TypedDict", Order, '{"item":"tea"}', {"item": "tea"}),
    ("function", book, '{"person":' + ANN_TEXT + ',"day":"2024-01-01"}', {"person": ANN, "day": date(2024, 1, 1)}),
    ("genson", BUILDER, '{"a":3}', {"a": 3}),
    ("JSON schema", JsonSchema({"type": "integer"}), "3", 3),
    ("JSON schema of a model", JsonSchema(Adult), '{"age":30}', {"age": 30}),
    ("regex", types.regex("[0-9]+"), "12", "12"),
    ("named regex", types.integer, "12", "12"),
    ("term", "n=" + types.digit, "n=1", "n=1"),
    ("text", either("a", "b"), "a", "a"),
]
COMPUTED = {
    "Enum with a partial": {"person": ANN, "day": date(2001, 2, 4)},
    "list of lists": [[date(2024, 1, 1), date(2024, 1, 2)], [date(2024, 1, 3)]],
    "dict of numbers": {1: True, "a": False, None: True},
}
OF_TYPE = pytest.mark.parametrize("output_type", [case[1] for case in CASES], ids=[case[0] for case in CASES])


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: ``1 == True`` and ``Size.SMALL == 1``."""
    return one == other and repr(one) == repr(other)


@pytest.mark.parametrize(("label", "output_type", "text", "value"), CASES, ids=[case[0] for case in CASES])
def test_value(label: str, output_type: Any, text: str, value: Any) -> None:
    assert machine_of(output_type).accepts(text.encode()), "the case is not in the format"
    found = reader(output_type)(text)
    if value is None and label in COMPUTED:
        value = COMPUTED[label]
    if value is None and "at" in text:
        late = Point(2 if "2," in text else 1, found[1].at if isinstance(found, list) else found.at)
        assert late.at.replace(tzinfo=None) == time(1, 2, 3)
        value = [Point(1), late] if isinstance(found, list) else late
    assert same(found, value)


@OF_TYPE
def test_every_member_is_read_or_refused_by_its_type(output_type: Any) -> None:
    """The format that is read is the one that is written."""
    language, machine, rng, read = (
        to_language(output_type),
        machine_of(output_type),
        np.random.default_rng(3),
        reader(output_type),
    )
    form = format_of(output_type)
    for _ in range(15):
        text = random_member(machine, rng, 40)
        assert form.holds(text)
        try:
            read(text)
        except ValueReadError as error:
            assert error.text == text and isinstance(error.__cause__, ValueError)
            assert not isinstance(language, JSONText), text  # what a schema says is what is written
        at = int(rng.integers(len(text) + 1))
        for changed in (text[:at] + text[at + 1 :], text[:at] + "x" + text[at:], text + text, text[:at]):
            assert form.holds(changed) == machine.accepts(changed.encode())


REFUSED: list[tuple[str, Any, str, str]] = [
    ("validator of any kind", Strict, '{"word":"x"}', "Strict refuses .*'x'"),
    ("30th of February", date, "2024-02-30", "date refuses '2024-02-30'.*day is out of range"),
    ("year 0", datetime, "0000-01-01 00:00:00", "year 0 is out of range"),
    ("item", list[Strict], '[{"word":"x"}]', "'x'"),
    ("every alternative", Union[Strict, date], '{"word":"x"}', "'x'"),  # noqa: UP007
    ("endless number", int, "1" * 5000, "int refuses .*digits"),
]


@pytest.mark.parametrize(("output_type", "text", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_a_text_that_its_type_refuses(output_type: Any, text: str, message: str) -> None:
    assert machine_of(output_type).accepts(text.encode())
    caught = refused("(?s)" + message, reader(output_type), text, error=ValueReadError)
    assert caught.value.text == text
    assert isinstance(caught.value, OutlinesPhiError) and isinstance(caught.value, ValueError)


def test_annotations_that_are_names() -> None:
    namespace: dict[str, Any] = {"Person": Person}
    exec("from __future__ import annotations\ndef late(person: Unknown, n: int): ...", namespace)
    assert callable(reader(one))
    refused("Define the types .* 'Unknown' of 'person'", to_language, namespace["late"])


@pytest.mark.parametrize(
    ("label", "make"),
    [
        ("Choice", Choice),
        ("Choice, with a type before and after", lambda texts: Choice([int, *texts, types.regex("[a-z]{9}")])),
        ("list of a Choice", lambda texts: list[Choice(texts)]),  # type: ignore[misc]
        ("Union of Literals", lambda texts: Union[tuple(Literal[text] for text in texts)]),  # noqa: UP007
        ("Union of regular expressions", lambda texts: either(*map(types.regex, texts))),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_many_values_are_read_in_no_time(
    label: str, make: Callable[[list[str]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No alternative is compiled again for another text, however many there are; those of a Choice are never compiled."""
    texts = [f"Rome {i}" for i in range(300)]
    read = reader(make(texts))
    written = [f"[{text}, {text}]" for text in texts] if "list" in label else texts
    built: list[str] = []
    build = patterns.automaton_of
    monkeypatch.setattr(patterns, "automaton_of", lambda *given, **more: built.append(given) or build(*given, **more))
    forget_parts()
    assert [read(text) for text in written] == ([[text, text] for text in texts] if "list" in label else texts)
    assert len(built) <= (300 if "regular" in label else 1)
    refused(None, read, "[Rome 300]" if "list" in label else "Rome 300", error=ValueReadError)


def test_a_reader_pickles_with_its_type() -> None:
    for output_type, text in ((Person, ANN_TEXT), (list[Colour], '["red"]'), (Literal["a", 3], "3")):
        assert same(pickle.loads(pickle.dumps(reader(output_type)))(text), reader(output_type)(text))
    assert repr(reader(Person)) == "reader(Person)"


def test_values_of_draws_are_read_when_they_are_asked_for(model: PhiTransformers) -> None:
    generator = Generator(model, Literal["yes", 3])
    draws = generator.sample(PROMPT, 5, seed=1)
    assert draws.values == [{"yes": "yes", "3": 3}[text] for text in draws.texts]
    assert isinstance(generator(PROMPT, seed=1), str)
    length = Mock(side_effect=len)
    counted = draws.read_by(length)
    assert counted.texts == draws.texts and counted == draws and length.call_count == 0
    assert counted[0].value == counted[0].value == len(draws[0].text) and length.call_count == 1
    bare = Draw(text="3", token_ids=(1,), log_p=0.0, log_w=0.0, guarantee=Guarantee.EXACT)
    assert bare.value == "3" and "reader" not in repr(bare)
    refusing = draws.read_by(reader(date))
    refused("date refuses", lambda: refusing.values, error=ValueReadError)
    assert refusing.texts == draws.texts


def test_draws_of_an_error_have_values_too(model: PhiTransformers) -> None:
    generator = Generator(model, date, phi=ExactPhi(effort=Effort(attempts=1)))
    caught = refused(None, generator.sample_batch, ["Date: ", "no"], 50, seed=1, error=BudgetError)
    assert [draws.values for draws in caught.value.draws] == [
        [generator.reader(text) for text in draws.texts] for draws in caught.value.draws
    ]
