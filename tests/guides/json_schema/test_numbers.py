"""Sets of numbers beside fractions; regular expressions over bytes and values; layouts that are chosen once."""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi.guides.json_schema.number_set import MAX_DIGITS, NumberSet
from outlines_phi.guides.json_schema.number_texts import MANY_REMAINDERS, Divisor, Multiples, most_states
from outlines_phi.regex.code_automaton import equivalent
from tests.guides.json_schema.schemas import machine
from tests.inner import ByteAutomaton, Machine, Schema, Template, compile_regex
from tests.inner import number_set as numbers
from tests.refusals import refused

fixed = settings(derandomize=True, deadline=None)

GRAMMAR = re.compile(r"-?(0|[1-9][0-9]*)(\.([0-9]|[0-9]*[1-9]))?([eE][+-]?[0-9]{1,3})?", re.ASCII)
SCIENTIFIC = re.compile(r"-?[1-9](\.([0-9]|[0-9]*[1-9]))?([eE][+-]?[0-9]{1,3})?", re.ASCII)

Member = Callable[[Fraction], bool]
Pair = tuple[NumberSet, Member]
"""A set, and what says of a number whether it is a member."""

decimals = st.builds(
    lambda digits, places: Decimal(digits).scaleb(-places), st.integers(-1300, 1300), st.integers(0, 3)
) | st.sampled_from([Decimal(text) for text in ("0", "0.1", "1e3", "-1e3", "99.99", "100", "12345", "-0.05", "10")])
divisors = st.sampled_from(
    [Decimal(text) for text in ("1", "2", "3", "7", "10", "12", "100", "0.5", "0.25", "0.01", "1.2")]
)

leaves: st.SearchStrategy[Pair] = st.one_of(
    st.just((NumberSet.all(), lambda x: True)),
    st.just((NumberSet.none(), lambda x: False)),
    st.just((NumberSet.integers(), lambda x: x.denominator == 1)),
    decimals.map(lambda b: (NumberSet.at_least(b), lambda x: x >= Fraction(b))),
    decimals.map(lambda b: (NumberSet.at_least(b, exclusive=True), lambda x: x > Fraction(b))),
    decimals.map(lambda b: (NumberSet.at_most(b), lambda x: x <= Fraction(b))),
    decimals.map(lambda b: (NumberSet.at_most(b, exclusive=True), lambda x: x < Fraction(b))),
    divisors.map(lambda q: (NumberSet.multiples_of(q), lambda x: (x / Fraction(q)).denominator == 1)),
    st.lists(decimals, max_size=4).map(lambda v: (NumberSet.of_values(v), lambda x: x in set(map(Fraction, v)))),
)


def combined(pairs: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def meet(a: Pair, b: Pair) -> Pair:
        return a[0] & b[0], lambda x: a[1](x) and b[1](x)

    def join(a: Pair, b: Pair) -> Pair:
        return a[0] | b[0], lambda x: a[1](x) or b[1](x)

    def negate(a: Pair) -> Pair:
        return ~a[0], lambda x: not a[1](x)

    return st.builds(meet, pairs, pairs) | st.builds(join, pairs, pairs) | st.builds(negate, pairs)


pairs = st.recursive(leaves, combined, max_leaves=4)

digits = st.text("0123456789", max_size=4)
texts = st.builds(
    lambda sign, whole, point, fraction, exponent: sign + whole + point + fraction + exponent,
    st.sampled_from(["", "", "", "-", "+"]),
    digits | st.sampled_from(["0", "10", "100", "1000", "12345", "00"]),
    st.sampled_from(["", ".", "."]),
    digits | st.sampled_from(["0", "00", "5", "50", "25"]),
    st.sampled_from(["", "", "", "e1", "E-2", "e+0", "e"]),
)
numerals = decimals.map(lambda x: f"{x:f}") | decimals.map(lambda x: f"{x:f}0" if "." in f"{x:f}" else f"{x:f}.00")


def is_minimal(automaton: ByteAutomaton) -> bool:
    """Return True if no two states are equivalent and all are of use."""
    number = equivalent(automaton.targets, automaton.accepting)
    return automaton.trim() is automaton and int(number.max()) + 1 == len(automaton)


@fixed
@given(pairs, st.lists(texts | numerals, min_size=10, max_size=40))
def test_texts_are_those_of_the_members(pair: Pair, candidates: list[str]) -> None:
    numbers, member = pair
    automaton = numbers.spellings
    for text in candidates:
        expected = bool(GRAMMAR.fullmatch(text)) and member(Fraction(text))
        if not numbers.is_all and "e" in text.lower():
            # 10000001.5 is a member of what excludes few numbers alone.
            expected = expected and bool(SCIENTIFIC.fullmatch(text)) and automaton.accepts(b"1.00000015e7")
        assert automaton.accepts(text.encode()) == expected, text
        if GRAMMAR.fullmatch(text):
            assert numbers.contains(Decimal(text)) == numbers.contains(Fraction(text)) == member(Fraction(text))


@fixed
@given(pairs)
def test_automata_have_no_useless_states(pair: Pair) -> None:
    automaton = pair[0].spellings
    assert automaton.trim() is automaton and automaton.is_empty == pair[0].is_empty


@fixed
@given(pairs, pairs, pairs)
def test_algebra(a: Pair, b: Pair, c: Pair) -> None:
    x, y, z = a[0], b[0], c[0]
    laws = [
        (x & y, y & x),
        (x | y, y | x),
        (x & (y | z), (x & y) | (x & z)),
        (~(x & y), ~x | ~y),
        (~~x, x),
        (x & ~x, NumberSet.none()),
        (x | ~x, NumberSet.all()),
        (x & (x | y), x),
        ((x & y) & z, x & (y & z)),
    ]
    assert all(left == right and hash(left) == hash(right) for left, right in laws)


@fixed
@given(pairs, pairs)
def test_equal_sets_have_equal_texts(a: Pair, b: Pair) -> None:
    x, y = a[0], b[0]
    assert (x == y) == (x.spellings.witness(y.spellings) is None)
    assert (x & y).spellings.witness(x.spellings & y.spellings) is None or x.is_all or y.is_all


def test_sets_that_are_written_differently_are_equal() -> None:
    whole = NumberSet.integers()
    left = whole & NumberSet.at_least(0, exclusive=True) & NumberSet.at_most(2, exclusive=True)
    right = whole & NumberSet.at_least(0.5) & NumberSet.at_most(1.5)
    ones = [NumberSet.of_values([one]) for one in (1, 1.0, Decimal("1.00"), Fraction(1))]
    assert {left, right, *ones} == {ones[0]} and NumberSet.of_values([-0.0]) == NumberSet.of_values([0])
    assert NumberSet.at_most(0) | NumberSet.at_least(1) | ~whole == NumberSet.all()
    assert NumberSet.multiples_of(4) & NumberSet.multiples_of(6) == NumberSet.multiples_of(12)
    assert NumberSet.multiples_of(Decimal("0.4")) & NumberSet.multiples_of(0.25) == NumberSet.multiples_of(2)
    assert whole != NumberSet.all() and whole != "whole" and left != NumberSet.of_values([2])


EVERY, SEVEN = NumberSet.all(), NumberSet.of_values([7])
FLOATS = [0.0, 1.0, -1.5, 0.1, 1e16, 1.5e-7, 5e-324, 1.7976931348623157e308, 123456789.125]
LISTED = [1e-7, -2.5e-5, 1e100, 1.25e16, 5e-324]
WRITTEN: list[tuple[NumberSet, list[str], list[str]]] = [
    *((each, ["1", "1.0", "1.5", "2.25", "10.0"], ["1.00", "1.50", "2.250", "10.00"])
      for each in (EVERY, ~SEVEN, NumberSet.at_least(1), NumberSet.multiples_of(0.25))),
    *((every, [json.dumps(number)], []) for number in FLOATS for every in (EVERY, ~SEVEN)),
    *((~NumberSet.of_values([7, number]), [], [json.dumps(number)]) for number in FLOATS),
    (NumberSet.of_values([Decimal("1e2")]), ["100"], []),
    (NumberSet.of_values([100]), [], ["1e2"]),
    (EVERY, ["-1.5E+300"], []),
    # With an exponent, where Python and JavaScript write one.
    *((NumberSet.of_values([n, 3]), [json.dumps(n), json.dumps(n).replace("e-0", "e-"), json.dumps(n).upper(), "3", "3.0"],
       [json.dumps(n) + "1", "3e0", "-" + json.dumps(n)]) for n in LISTED),
    (NumberSet.at_most(Decimal("1e400")), ["1" + "0" * 400], ["1" + "0" * 399 + "1"]),
    (NumberSet.at_least(-(2**63)), ["-9223372036854775808"], ["-9223372036854775808.0001"]),
    (NumberSet.multiples_of(MANY_REMAINDERS * 2 + 1), ["-513.0"], []),
    (~NumberSet.multiples_of(123456789) & NumberSet.at_least(0) & NumberSet.at_most(10**10), ["1"], ["123456789.0"]),
]  # fmt: skip
"""Sets, numbers as they are written, and others."""


@pytest.mark.parametrize(("numbers", "texts", "others"), WRITTEN, ids=lambda given: str(given)[:30])
def test_numbers_as_they_are_written(numbers: NumberSet, texts: list[str], others: list[str]) -> None:
    found = [numbers.spellings.accepts(text.encode()) for text in (*texts, *others)]
    assert found == [True] * len(texts) + [False] * len(others)


@pytest.mark.parametrize(("value", "texts"), [(1, [b"1", b"1.0"]), (-0.0, [b"0", b"-0", b"0.0", b"-0.0"])])
def test_all_texts_of_a_number(value: float, texts: list[bytes]) -> None:
    assert list(NumberSet.of_values([value]).spellings.members()) == texts


def test_values_are_exact() -> None:
    bound = NumberSet.at_least(0.1)  # the decimal, not the binary fraction that is a little more
    assert bound.contains(Decimal("0.1")) and not bound.contains(Decimal("0.0999999999999999999999999"))
    assert not EVERY.contains(Fraction(1, 3)) and not NumberSet.integers().contains(Fraction(1, 3))
    assert numbers.exact(Decimal("0e999999999")) == 0, "zero of any exponent is a number"


@pytest.mark.parametrize(
    ("numbers", "states"),
    [
        (NumberSet.none(), 1),
        (NumberSet.of_values([0]), 6),  # sign, 0, point, zeros
        (NumberSet.integers(), 7),
        (NumberSet.integers() & NumberSet.at_least(0), 7),
        (NumberSet.integers() & NumberSet.at_least(1), 5),
        (NumberSet.multiples_of(5) & NumberSet.at_least(0) & NumberSet.at_most(100), 10),
        (NumberSet.multiples_of(Decimal("0.01")), 8),
        (NumberSet.multiples_of(1e-8), 20),
        (NumberSet.multiples_of(1_000_000), 13),
        (NumberSet.at_most(12345), 18),
        (NumberSet.integers() & NumberSet.at_least(-(2**63)) & NumberSet.at_most(2**63 - 1), 60),
    ],
)
def test_sizes(numbers: NumberSet, states: int) -> None:
    automaton = numbers.spellings
    assert len(automaton) == states and is_minimal(automaton)


def test_few_multiples_with_many_remainders_are_listed() -> None:
    multiples = NumberSet.multiples_of(123456789) & NumberSet.at_least(-(10**9)) & NumberSet.at_most(10**10)
    members = {str(k * 123456789).encode() for k in range(-8, 82)} | {b"-0"}
    whole = (text for text in multiples.spellings.members() if b"." not in text)
    assert len(multiples.spellings) < 1000 and set(islice(whole, len(members))) == members


PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
LARGE, DIGITS = rf"Give a smaller multipleOf .* more than {most_states():,} states\.", f"at most {MAX_DIGITS:,} digits"
BOUNDED = NumberSet.at_least(0) & NumberSet.at_most(10**12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NumberSet.at_least(float("inf")), "Give finite numbers, .* Infinity is not"),
        (lambda: NumberSet.at_least(Decimal("nan")), "Give finite numbers"),
        (lambda: NumberSet.at_most(Decimal("1e999999999")), DIGITS),
        (lambda: NumberSet.of_values([Decimal("1e-999999999")]), DIGITS),
        (lambda: NumberSet.at_most(10**5000), DIGITS),
        (lambda: NumberSet.multiples_of(Fraction(1, 3)), "Give numbers that decimals can write. 1/3 has"),
        (lambda: NumberSet.multiples_of(0), "Give a multipleOf above 0. 0 has"),
        (lambda: NumberSet.multiples_of(-2.5), "Give a multipleOf above 0. -2.5 has"),
        (lambda: reduce(or_, map(NumberSet.multiples_of, PRIMES)), "Combine fewer different multipleOf"),
        (lambda: NumberSet.multiples_of(123456789).spellings, LARGE),
        (lambda: (NumberSet.multiples_of(123456789) & NumberSet.at_least(0)).spellings, LARGE),
        (lambda: (~NumberSet.multiples_of(10**40 + 1)).spellings, LARGE),
        (lambda: (NumberSet.multiples_of(30_011) & BOUNDED).spellings, LARGE),
        (
            lambda: (NumberSet.multiples_of(2999) & NumberSet.at_least(0) & NumberSet.at_most(10**18)).spellings,
            "closer bounds",
        ),
    ],
)
def test_what_is_no_number_of_a_schema_is_refused(make: Callable[[], object], message: str) -> None:
    refused(message, make)


def test_sets_need_no_states_where_their_texts_need_too_many() -> None:
    assert not any(
        each.is_empty or each.is_all
        for each in (NumberSet.multiples_of(123456789), ~NumberSet.multiples_of(10**40 + 1))
    )


@fixed
@given(st.integers(1, 400), st.integers(0, 2))
def test_size_of_a_divisor_is_a_bound(p: int, e: int) -> None:
    divisor = Divisor.of(Fraction(p, 10**e))
    states = {divisor.start}
    frontier = list(states)
    while frontier:
        state = frontier.pop()
        more = {divisor.whole(state, digit) for digit in range(10)} - states
        states |= more
        frontier += more
    assert len(states) <= divisor.size


@fixed
@given(st.lists(divisors.map(Fraction), max_size=3), decimals.map(Fraction), st.integers(0, 300))
def test_members_between_two_numbers(factors: list[Fraction], low: Fraction, width: int) -> None:
    high = low + Fraction(width, 64)
    some = Multiples(0)
    for q in factors:
        some = ~(~some & ~Multiples(0, ((q, 1),)))
    finest = Fraction(1, 100)
    steps = (k * finest for k in range(int(low / finest) - 1, int(high / finest) + 2))
    expected = [x for x in steps if low < x < high and any((x / q).denominator == 1 for q in factors)]
    assert sorted(set(some.between(low, high))) == expected
    assert some.first_between(low, high) == (expected[0] if expected else None)
    assert some.most_between(low, high) >= len(expected)


def text(pattern: str) -> Template:
    return Template.of_bytes(compile_regex(pattern))


def value(document: object, label: str = "") -> Template:
    return Template.of_value(Schema.read(document, label=label))


ONE, OTHER = value({"enum": [[1], []]}), value({"enum": [["a"], [1]]}, "1")
NUMBER = value({"enum": [1, 12]})

TEMPLATES: dict[str, tuple[Template, str]] = {
    "a value": (ONE, r"\[1\]|\[\]"),
    "a text before it": (Template.sequence([text("[^\\[]*"), ONE]), r"[^\[]*(\[1\]|\[\])"),
    "between texts": (Template.sequence([text("<"), NUMBER, text("<|b")]), "<(1|12)(<|b)"),
    "alternatives": (Template.one_of([text("a|b"), ONE, OTHER]), r'a|b|\[1\]|\[\]|\["a"\]'),
    "one of two, then what tells which": (
        Template.one_of([Template.sequence([ONE, text("a")]), Template.sequence([OTHER, text("b")])]),
        r'(\[1\]|\[\])a|(\["a"\]|\[1\])b',
    ),
    "repeated": (Template.sequence([ONE, text(", ")]).repeated(0, None), r"((\[1\]|\[\]), )*"),
    "once or more": (ONE.repeated(1, None), r"(\[1\]|\[\])+"),
    "two or three": (ONE.repeated(2, 3), r"(\[1\]|\[\]){2,3}"),
    "at most two": (Template.sequence([ONE.repeated(0, 2), text("a?")]), r"(\[1\]|\[\]){0,2}a?"),
    "none": (Template.sequence([text("ab"), ONE.repeated(0, 0)]), "ab"),
    "an empty piece between": (
        Template.sequence([ONE, text("a*"), text("b*"), OTHER]),
        r'(\[1\]|\[\])a*b*(\["a"\]|\[1\])',
    ),
    "values of no end": (Template.one_of([value({"not": {}}), text("a")]), "a"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_are_those_of_the_regular_expression(name: str) -> None:
    template, pattern = TEMPLATES[name]
    machine = Machine(template, blanks="")
    pieces = ["a", "b", "<", "[1]", "[]", '["a"]', ", ", "1", "12", "["]
    matched = 0
    for size in range(5):
        for parts in itertools.product(pieces, repeat=size):
            one = "".join(parts)
            expected = re.fullmatch(pattern, one) is not None
            matched += expected
            assert machine.accepts(one.encode()) == expected, one
    assert matched


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (Template.one_of([ONE, text(r"\[x\]")]), r"b'\[' is what a JSON value begins with"),
        (Template.sequence([text("[^a]*"), ONE]), "begins with"),
        (Template.sequence([value({"type": "integer"}), text("[0-9]")]), "a number may go on with"),
        (Template.sequence([value({"type": "number"}), value({"type": "number"}, "1")]), "a number may go on with"),
    ],
)
def test_a_byte_that_may_be_read_in_two_ways_is_refused(template: Template, said: str) -> None:
    refused(said, Machine, template)


def test_parts_refer_to_their_own_documents() -> None:
    documents = [{"$ref": "#/$defs/x", "$defs": {"x": {"const": [text]}}} for text in ("a", "b")]
    machine = Machine(Template.sequence([value(document, str(place)) for place, document in enumerate(documents)]))
    assert machine.accepts(b'["a"]["b"]') and not machine.accepts(b'["a"]["a"]')


ANY = machine({})


def written(value: Any, step: int, width: int = 0) -> Iterator[str]:
    """Yield all texts of a value whose lines are indented by ``step`` more than those around them."""
    if not isinstance(value, list | dict) or not value:
        yield json.dumps(value)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    for blank in " ", "":
        for inner in members(value, step, width, blank):
            yield opening + f",{blank}".join(inner) + closing
    line = "\n" + (width + step) * " "
    for inner in members(value, step, width + step, " "):
        yield opening + line + f",{line}".join(inner) + "\n" + width * " " + closing


def members(value: Any, step: int, width: int, blank: str) -> Iterator[list[str]]:
    """Yield the texts of all members or items, by all choices of those within."""
    pairs = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    ways: list[list[str]] = [[]]
    for name, inner in pairs:
        before = "" if name is None else f"{json.dumps(name)}:{blank}"
        ways = [[*way, before + text] for way in ways for text in written(inner, step, width)]
    yield from ways


VALUES: list[Any] = [
    1,
    [],
    {},
    [1],
    [1, 2],
    {"a": 1},
    {"a": [1, 2], "b": 3},
    [[1, 2], [3, 4]],
    [{"a": 1}, {"b": [5]}],
    {"a": {"b": {"c": [1]}}, "d": {}},
    [[[1]], [[], [2, 3]]],
]


@pytest.mark.parametrize("value", VALUES, ids=str)
def test_the_texts_of_a_value_are_those_of_all_choices(value: Any) -> None:
    """And no other text of it that a blank or a line end, put in or taken out, makes of one of them."""
    texts = {text for step in (2, 4) for text in written(value, step)}
    assert all(ANY.accepts(text.encode()) for text in texts)
    rng = random.Random(0)
    for text in sorted(texts) if len(texts) < 60 else rng.sample(sorted(texts), 60):
        changed = {text[:i] + put + text[i:] for i in range(len(text) + 1) for put in (" ", "\n", "  ", "\n  ", "\t")}
        changed |= {
            text[:i] + text[i + n :] for i in range(len(text)) for n in (1, 2, 3) if not text[i : i + n].strip()
        }
        for other in changed:
            if not set(re.findall('"([^"]*)"', other)) - set("abcd"):  # blanks in names make other values
                assert ANY.accepts(other.encode()) == (other in texts), other


@pytest.mark.parametrize(
    "options", [{}, {"separators": (",", ":")}, {"indent": 2}, {"indent": 4}], ids=["spaced", "compact", "2", "4"]
)
def test_what_json_writes_is_read(options: Any) -> None:
    for value in [*VALUES, {"a": VALUES, "b": {"c": VALUES}}]:
        assert ANY.accepts(json.dumps(value, **options).encode())


def test_the_step_is_that_of_the_first_lines_of_the_document() -> None:
    first = '[{"a": [\n  1\n], "b": 2}, '
    assert ANY.accepts((first + "[\n  3\n]]").encode()) and not ANY.accepts((first + "[\n    3\n]]").encode())
    assert ANY.accepts(b'{\n    "a": [1, 2],\n    "b": [{\n        "c": 1\n    }]\n}')


def test_a_chosen_layout_leaves_one_way() -> None:
    """No byte but one may follow where blanks stand, once an array or object has chosen."""
    for text, following in [
        ('{"a": 1,', " "), ('{"a":1,', '"'), ('{\n  "a":', " "), ('{\n  "a": 1,', "\n"), ('{\n  "a": 1,\n  ', '"'),
        ('{\n    "a": [\n', " "), ('{\n    "a": [\n       ', " "), ('{"a": 1, "b":', " "),
    ]:  # fmt: skip
        at = ANY.read(text.encode())
        assert at is not None
        assert [byte for byte in range(256) if ANY.step(at, byte) is not None] == [ord(following)], text
