"""Draws for pydantic's types validate, or the type is refused or warned of."""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
import re
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, Optional, TypeVar

import annotated_types
import numpy as np
import outlines.types
import pydantic
import pytest
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    AnyUrl,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    FiniteFloat,
    JsonValue,
    RootModel,
    Secret,
    SecretStr,
    Strict,
    StrictInt,
    StringConstraints,
    Tag,
    TypeAdapter,
    WithJsonSchema,
    computed_field,
    condecimal,
    conint,
    conlist,
    constr,
    create_model,
    field_validator,
    model_validator,
)
from typing_extensions import NotRequired, Required, TypedDict

import outlines_phi
from outlines_phi.plugin.types.output_types import to_language
from tests.guides.walking import random_member
from tests.refusals import refused

T = TypeVar("T")


class Colour(Enum):
    RED = "r"
    TWO = 2


class Partly(Enum):
    READ = "read"
    UNREAD = (1, 2)


class Small(IntEnum):
    ONE = 1
    TWO = 2


class Word(StrEnum):
    A = "a"
    B = "b"


class Bits(Flag):
    A = 1
    B = 2


class Pair(NamedTuple):
    a: int
    b: str = "x"


class Typed(TypedDict, total=False):
    a: Required[int]
    b: str


class Optionals(TypedDict):
    a: int
    b: NotRequired[Colour]


class Open(TypedDict):
    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    a: int


@dataclasses.dataclass(kw_only=True, slots=True)
class Data:
    a: int
    b: list[int] = dataclasses.field(default_factory=list)
    fixed: ClassVar[int] = 1


@dataclasses.dataclass
class Derived:
    a: int
    b: int = dataclasses.field(init=False, default=1)


class Cat(BaseModel):
    model_config = ConfigDict(frozen=True)
    kind: Literal["cat"]
    n: int


class Dog(BaseModel):
    kind: Literal["dog", "hound"]
    n: str


class Box(BaseModel, Generic[T]):
    value: T


class Upper(BaseModel):
    model_config = ConfigDict(alias_generator=str.upper, populate_by_name=True)
    a_b: int


class ByName(BaseModel):
    model_config = ConfigDict(validate_by_alias=False, validate_by_name=True)
    a: int = Field(alias="A!")


class Choices(BaseModel):
    a: int = Field(validation_alias=AliasChoices("x", AliasPath("z", 0)), serialization_alias="y")


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    a: int


class Values(BaseModel):
    model_config = ConfigDict(use_enum_values=True, strict=True)
    a: Colour
    b: datetime.date
    c: tuple[int, ...]
    d: set[int]


class Computed(BaseModel):
    a: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def b(self) -> int:
        return 1


class Tree(BaseModel):
    n: int
    below: list[Tree] = Field(default=[], max_length=2)


class Rows(RootModel["list[Rows] | int"]):
    pass


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, str_min_length=2, str_max_length=4, str_to_upper=True)
    a: str


class Default(BaseModel):
    a: int = Field(default="x", validate_default=True)  # type: ignore[assignment]


class Described(BaseModel):
    model_config = ConfigDict(json_schema_extra={"examples": [{"a": 1}], "minProperties": 1})
    a: int


class Base64(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64")
    a: bytes


class Hexadecimal(BaseModel):
    model_config = ConfigDict(val_json_bytes="hex")
    a: bytes


class PythonPatterns(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    a: Annotated[str, Field(pattern=r"\A(?P<one>[^]\s]){,2}\Z")]
    b: Annotated[str, Field(pattern=r"^(?!a$).\S$")]


class Named(BaseModel):
    format: Literal["path"]
    refused: list[int] = []
    const: ipaddress.IPv4Address = ipaddress.IPv4Address("1.2.3.4")
    inner: Annotated[Any, WithJsonSchema({"const": {"format": "path"}})]


class Level(IntEnum):
    LOW = 1
    HIGH = 12


PATTERNS = [
    r"\p{L}+",
    r"^\pL\P{Lu}$",
    r"^a\z",
    r"\A(?P<a>b)(?<c>.)$",
    r"^\x{41}\u{42}\U00000043\a$",
    "^[]a]$",
    "^[^]a]$",
    r"^[\d\s]\D$",
    r"\<a\>.\b{start}",
    "(?s)^a.$",
    "^a++$",
]

FIELDS: dict[str, Any] = {
    "ge, lt": Annotated[int, Field(ge=3, lt=10)],
    "gt, le of a float": Annotated[float, Field(gt=0, le=1.5)],
    "multiple_of": Annotated[int, Field(multiple_of=7)],
    "multiple_of a fraction": Annotated[float, Field(multiple_of=0.25)],
    "multiple_of a decimal": Annotated[Decimal, Field(multiple_of=Decimal("0.25"))],
    "OnErrorOmit": pydantic.OnErrorOmit[Literal[1, 2]],
    "any int": int,
    "stripped": constr(strip_whitespace=True, min_length=1, max_length=2),
    "pattern of none of some": Annotated[str, Field(pattern=r"^[^\d]$")],
    "bytes": Annotated[bytes, Field(min_length=1, max_length=2)],
    "strict int": StrictInt,
    "conint": conint(strict=True, gt=1),
    "finite float": FiniteFloat,
    "lengths": Annotated[str, Field(min_length=2, max_length=4)],
    "constr": constr(min_length=1, to_upper=True),
    "pattern": Annotated[str, Field(pattern=r"^[A-Z]{2}\d+$")],
    "pattern of classes in classes": Annotated[str, Field(pattern="^[[:alpha:]][a-d&&c-f]$")],
    "pattern within": Annotated[str, Field(pattern=r"b+")],
    "pattern of others": Annotated[str, Field(pattern=r"^\W\s\D\S$")],
    "conlist": conlist(int, min_length=1, max_length=3),
    "Decimal": Decimal,
    "condecimal": condecimal(max_digits=4, decimal_places=2, gt=Decimal(0)),
    "Decimal of a few digits": condecimal(max_digits=3),
    "UUID": uuid.UUID,
    "date": datetime.date,
    "time": datetime.time,
    "datetime": datetime.datetime,
    "aware": AwareDatetime,
    "timedelta": datetime.timedelta,
    "tagged union": Annotated[Cat | Dog, Field(discriminator="kind")],
    "IPv4Address": ipaddress.IPv4Address,
    "IPv6Address": ipaddress.IPv6Address,
    "AnyUrl": AnyUrl,
    "set": set[Literal[1, 2, 3]],
    "frozenset": frozenset[str],
    "tuple": tuple[int, str],
    "tuple of any length": tuple[bool, ...],
    "dict": dict[str, int],
    "dict of numbers": dict[int, float],
    "dict under a pattern": dict[constr(pattern=r"^\w", min_length=2), int],
    "dict of decimals": dict[Decimal, int],
    "dict of a union": dict[int | None, int],
    "dict of members": dict[Level, int],
    "Decimal of places alone": condecimal(max_digits=2, decimal_places=2),
    "Optional": Optional[int],  # noqa: UP045 - as users write it, too
    "Any": Any,
    "a term": outlines.types.regex("[a-c]{2}|x"),
    "email": outlines.types.email,
    "Literal of others": Literal["a", 1, None, True],
    "Enum": Colour,
    "RootModel": RootModel[Cat | Dog],
    "recursion": Tree,
    "alias": create_model("Renamed", n=(int, Field(alias="the/n"))),
    "extra keys": create_model("Kept", __config__=ConfigDict(extra="allow"), n=(int, ...)),
    **{
        name: getattr(pydantic, name)
        for name in dir(pydantic)
        if name.startswith(("Base64", "UUID")) and not name.endswith(("Encoder", "Str"))
    },
    **{name: getattr(ipaddress, name) for name in ("IPv4Interface", "IPv6Interface")},
    **{name: getattr(pydantic, name) for name in ("IPvAnyAddress", "IPvAnyInterface")},
    "SecretStr": SecretStr,
    "Secret": Secret[datetime.date],
    "ByteSize": ByteSize,
    "Path": Path,
    "Fraction": Annotated[Fraction, Field(gt=1)],
    "Enum in part": Partly,
    "IntEnum": Small,
    "StrEnum": Word,
    "Flag": Bits,
    "Literal": Literal[1, "1", True, None, "é"],
    "set of Any": set[Any],
    "set of models": set[Cat],
    "set of tuples": frozenset[tuple[int, str]],
    "deque": Annotated[deque[int], Field(max_length=2)],
    "Iterable": Annotated[Iterable[int], Field(min_length=2, max_length=3)],
    "Mapping": Annotated[Mapping[str, int], Field(max_length=1)],
    "defaultdict": defaultdict[str, int],
    "OrderedDict": OrderedDict[str, int],
    "Counter": Counter[str],
    "dict of dates": dict[datetime.date, int],
    "dict of paths": dict[Path, int],
    "dict of ints": Annotated[dict[int, int], Field(min_length=2)],
    "empty tuple": tuple[()],
    "bounds of decimals": Annotated[Decimal, Field(ge=3)] | Annotated[int, Field(ge=3)],
    "multiples of a fraction": Annotated[float, Field(multiple_of=0.3)],
    "multiples of a whole number": Annotated[float, Field(multiple_of=7)],
    "ASCII": Annotated[str, StringConstraints(ascii_only=True)],
    "strict": Annotated[uuid.UUID, Strict()],
    "JsonValue": JsonValue,
    "a part that is none of JSON": int | Callable[[], int],
    "generic": Box[list[Colour]],
    "compiled": Annotated[str, Field(pattern=re.compile(r"^\w\s$"))],
    "compiled, in any case": Annotated[str, Field(pattern=re.compile(r"^[^i][a-f]\b", re.IGNORECASE))],
    "in any case": Annotated[str, Field(pattern=r"(?i)^(yes|no|[k-n]é\p{Lu})$")],
    "dates": Annotated[datetime.date, Field(ge=datetime.date(1999, 12, 31), lt=datetime.date(2000, 3, 1))] | None,
    **{pattern: Annotated[str, Field(pattern=pattern)] for pattern in PATTERNS},
    **{
        kind.__name__: kind
        for kind in (Pair, Typed, Optionals, Open, Data, Derived, Upper, ByName, Choices, Extra, Values, Computed, Rows)
    },
    **{kind.__name__: kind for kind in (Stripped, Default, Described, Base64, Hexadecimal, PythonPatterns)},
}


def language_of(field: Any) -> Any:
    """Return the language of a model with one field, ``value``."""
    return to_language(create_model("Drawn", value=(field, ...)))


def accepts(field: Any, text: str) -> bool:
    return bool(language_of(field).machine.accepts(f'{{"value":{text}}}'.encode()))


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_that_is_drawn_validates(name: str) -> None:
    language, rng = language_of(FIELDS[name]), np.random.default_rng(1)
    assert (warned := bool(language.template.left_out)) == (name in ("AnyUrl", "multiples of a fraction"))
    # Multiples are rounded where they are large.
    texts = {random_member(language.machine, rng, 5 if warned else int(rng.choice([5, 15, 40]))) for _ in range(12)}
    for text in texts:
        create_model("Drawn", value=(FIELDS[name], ...)).model_validate_json(text)
    assert len(texts) > 1


@pytest.mark.parametrize(
    ("field", "texts"),
    [
        (ipaddress.IPv4Network, ['"10.2.0.0/15"', '"0.0.0.0/0"', '"1.2.3.4"']),
        (ipaddress.IPv6Interface, ['"::1/128"', '"2001:db8::/32"']),
        (pydantic.PostgresDsn, ['"postgresql+psycopg://user:pass@host.example:5432/db"']),
        (pydantic.HttpUrl, [f'"http://localhost:65535/a/b/c/d/e%20f?g=h&i#{"j" * 2040}"', '"https://a.example?b"']),
        (pydantic.KafkaDsn, ['"kafka://"', '"kafka://127.0.0.1/a"']),
        (AnyUrl, ['"mailto:one@host.example"', '"https://host.example/a/b.html"', '"file:///tmp"', '"a:b:c"']),
        (dict[int, float], ['{"12345678901234567890":1}']),
        (dict[Annotated[str, Field(pattern=r"^\w$")], int], ['{"λ":1,"a":2}']),
        (pydantic.Base64Str, ['"YWI="', '"YWJj"']),
        (pydantic.Base64Bytes, ['"/+8="']),
        (Annotated[str, Field(pattern=r"^.$")], ['"\\r"', '"é"']),
        (set[Any], ['[1, "a", null]']),
        (Annotated[str, Field(pattern="(?i)^(yes|no)$")], ['"yEs"', '"NO"']),
        (Annotated[str, Field(pattern=re.compile("^k[b-d]$", re.I))], ['"kB"', '"Kd"', '"\N{KELVIN SIGN}c"']),
    ],
)
def test_what_is_usual_is_not_left_out(field: Any, texts: list[str]) -> None:
    for text in texts:
        assert accepts(field, text), text
        TypeAdapter(field).validate_json(text)


STRANGE: list[tuple[Any, str, str]] = [
    (dict[Level, int], '{"12":3}', '{"2":3}'),
    (dict[str, int], '{"é":3}', '{"é":"3"}'),
    (condecimal(max_digits=4, decimal_places=2), "99.75", "100.0"),
    (condecimal(max_digits=2, decimal_places=2), "-0.25", "0"),
    (constr(strip_whitespace=True, min_length=1), '"a b"', '" a"'),
    (Annotated[str, Field(pattern=r"^\[[&-]\]$")], '"[&]"', '"[x]"'),
    (pydantic.HttpUrl, '"https://a.example/b?c"', '"mailto:a@b.example"'),
    (pydantic.HttpUrl, '"https://a.example/b?c"', '"https://a b"'),
    (Annotated[float, Field(multiple_of=7)], "9007199254740988", "74562902354100019168224291878138"),
    (Annotated[float, Field(multiple_of=0.25)], "9007199254740992.75", "0.3"),
    (Annotated[int, Field(json_schema_extra={"minimum": 3})], "3", "2"),
    (Annotated[int, WithJsonSchema({"enum": ["4"]})], '"4"', "4"),
    (Annotated[Callable[[], int], WithJsonSchema({"type": "string"})], '"a"', "1"),
    (Described, '{"a":1}', '{"b":1}'),
    (
        Named,
        '{"format":"path","const":"1.1.1.1","inner":{"format":"path"}}',
        '{"format":"path","inner":{"type":"string"}}',
    ),
    (Derived, '{"a":1}', '{"a":1,"b":2}'),
    (  # tags, which pydantic reads although they have defaults
        Annotated[
            create_model("P", tag=(Literal["p"], "p"), a=(int, 0))  # type: ignore[operator]
            | dataclasses.make_dataclass("Q", [("tag", Literal["q"], dataclasses.field(init=False, default="q"))]),
            Field(discriminator="tag"),
        ],
        '{"tag":"q"}',
        "{}",
    ),
    (
        Named,
        '{"format":"path","inner":{"format":"path"}}',
        '{"format":"path","const":"here","inner":{"format":"path"}}',
    ),
]
"""Types, what they hold, and what pydantic or their author refuses."""


@pytest.mark.parametrize(("field", "text", "other"), STRANGE)
def test_no_more_is_written_than_is_accepted(field: Any, text: str, other: str) -> None:
    assert accepts(field, text) and not accepts(field, other)


@pytest.mark.parametrize(
    "bounds",
    [
        {"ge": datetime.date(2019, 12, 31)},
        {"gt": datetime.date(2019, 12, 31)},
        {"le": datetime.date(2020, 2, 29)},
        {"lt": datetime.date(2000, 1, 1)},
        {"gt": datetime.date.min, "lt": datetime.date(1000, 10, 10)},
        {"ge": datetime.date.max},
        {"gt": datetime.date(2019, 12, 30), "le": datetime.date(2020, 1, 1)},
    ],
)
def test_a_date_is_written_where_it_is_within_its_bounds(bounds: dict[str, datetime.date]) -> None:
    field, last = Annotated[datetime.date, Field(**bounds)], datetime.date.max.toordinal()
    machine = language_of(field).machine
    near = {bound.toordinal() + n for bound in bounds.values() for n in (-366, -31, -1, 0, 1, 30, 366)}
    for day in {1, last, *near & set(range(1, last + 1)), *np.random.default_rng(1).integers(1, last, 200).tolist()}:
        text = datetime.date.fromordinal(day).isoformat()
        assert machine.accepts(f'{{"value":"{text}"}}'.encode()) == validates(field, text), text


def validates(field: Any, value: object) -> bool:
    try:
        TypeAdapter(field).validate_python(value)
    except pydantic.ValidationError:
        return False
    return True


def test_no_date_is_after_the_last() -> None:
    never = language_of(Annotated[datetime.date, Field(gt=datetime.date.max)])
    refused("#/properties/value", lambda: never.machine, error=outlines_phi.EmptyLanguageError)


def check(value: Any) -> Any:
    return value


class Checked(BaseModel):
    a: int

    @field_validator("a")
    @classmethod
    def is_even(cls, value: int) -> int:
        return value

    @model_validator(mode="after")
    def is_right(self) -> Checked:
        return self


class Extra(BaseModel, extra="allow"):
    __pydantic_extra__: dict[constr(max_length=2), int]


class Initialised(BaseModel):
    a: int

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)

    def model_post_init(self, context: Any) -> None:
        pass


@dataclasses.dataclass
class PostInit:
    a: int

    def __post_init__(self) -> None:
        pass


WARNED: list[tuple[Any, list[str]]] = [
    *(
        (
            getattr(pydantic, name),
            ["^#/properties/value/allOf/0/format: what a URL of pydantic checks is not asked of it$"],
        )
        for name in pydantic.networks.__all__
        if name.endswith(("Url", "Dsn"))
    ),
    (Annotated[SecretStr, Field(min_length=2)], ["what min_length_validator checks"]),
    (Annotated[int | float, Field(ge=3)], ["what greater_than_or_equal_validator checks"]),
    (ipaddress.IPv4Network, ["that the bits of a host are 0"]),
    (pydantic.IPvAnyNetwork, ["that the bits of a host are 0"]),
    (pydantic.Base64Str, ["what EncodedStr.decode_str checks"]),
    (Annotated[int, AfterValidator(check)], ["#/properties/value/allOf/0/format"]),
    (
        Annotated[int, BeforeValidator(check)],
        ["^#/properties/value/allOf/0/format: what check checks is not asked of it$"],
    ),
    (
        Checked,
        [
            r"#/\$defs/Checked/properties/a/.* what Checked.is_even checks",
            r"#/\$defs/Checked/allOf/0/.* what Checked.is_r",
        ],
    ),
    (Extra, ["what the type of the keys of __pydantic_extra__ checks"]),
    (Annotated[Literal["a"], BeforeValidator(str.strip)], ["what str.strip checks"]),
    (Initialised, ["Initialised.__init__ checks", "model_post_init checks"]),
    (PostInit, ["PostInit.__post_init__ checks"]),
    (Annotated[str, annotated_types.Predicate(str.islower)], ["#/properties/value/"]),
    (Annotated[str, annotated_types.Ge("m")], ["greater_than_or_equal_validator"]),
    (Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Discriminator(check)], ["what check checks"]),
    (Annotated[set[uuid.UUID], Field(min_length=2)], ["what min_length checks"]),
    (Annotated[pydantic.Base64Bytes, Field(min_length=3)], ["what min_length_validator checks"]),
    (Hashable, ["#/properties/value/"]),
    (Annotated[float, Field(multiple_of=0.1, ge=0)], ["what multiple_of, rounded beyond 1,048,576, checks"]),
]


@pytest.mark.parametrize(("field", "messages"), WARNED)
def test_what_a_function_checks_is_named(field: Any, messages: list[str]) -> None:
    left_out = language_of(field).template.left_out
    said = "; ".join(f"{pointer}: {why}".replace("the format '", "") for pointer, why in left_out)
    for message in messages:
        assert re.search(message, said), said


class Kept(BaseModel):
    kind: Literal[Colour.RED]


REFUSED: list[tuple[Any, str]] = [
    (Annotated[int, Field(validation_alias=AliasPath("a", "b"))], "one name as its alias"),
    (dict[conint(ge=3), int], "numbers without bounds"),
    (Annotated[str, Field(pattern=re.compile("^a b$", re.VERBOSE))], "what the flags mean .* re.VERBOSE"),
    (Annotated[datetime.time, Field(ge=datetime.time(3))], "bounds of a time by constraint="),
    (Annotated[datetime.timedelta, Field(lt=datetime.timedelta(1))], "bounds of a timedelta"),
    (Annotated[datetime.datetime, Field(gt=datetime.datetime(2020, 1, 1))], "bounds of a datetime"),
    (pydantic.NaiveDatetime, "Give datetime for NaiveDatetime"),
    (complex, "Give two floats"),
    (type[int], "Give a Literal of the names of the classes. At #/properties/value"),
    (Literal[b"x"], r"Give strings, numbers, bool or None as the values. At #/properties/value .* \['x'\]"),
    (Kept, r"Give strings, numbers, .* At #/\$defs/Kept/properties/kind"),
    (pydantic.ImportString, "Give a Literal of the names that may be imported"),
    (pydantic.FilePath, "Give Path"),
    (list[pydantic.NewPath], "Give Path.* At #/properties/value/items"),
    (re.Pattern, "Give str for a pattern"),
    (pydantic.PastDate, "Check the bounds of a date by constraint=.* At #/properties/value"),
    (pydantic.PastDatetime, "Check the bounds of a datetime by constraint=.* At #/properties/value"),
    (
        Annotated[datetime.timedelta, Field(ge=datetime.timedelta(1))],
        "Check the bounds of a timedelta.* At #/properties/value",
    ),
    (pydantic.Json[int], "Give the type within Json by itself. At #/properties/value"),
    (set[list[int]], "Give a list, or tuples and frozen models"),
    (set[Dog], "Give a list, or tuples and frozen models"),
    (Callable[[], int], "Give a type that is written as JSON"),
]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # Python's own, of classes within classes
@pytest.mark.parametrize(("field", "message"), REFUSED)
def test_what_no_schema_says_is_refused_by_its_pointer(field: Any, message: str) -> None:
    refused(message, lambda: language_of(field).template)
