"""Marginals of fields: the bounds of enumeration hold the truth, and the intervals of draws do so as often as they say."""

import enum
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from outlines_phi import (
    Draw,
    Draws,
    EmptyLanguageError,
    Guarantee,
    LocalPhi,
    Marginals,
    Probabilities,
    UnsupportedError,
    ValueReadError,
)
from outlines_phi.numerics.marginals import frozen, leaves
from outlines_phi.sampling import Certificate
from tests.inner import AncestralSampler, BoundsTree, probabilities
from tests.languages import LANGUAGES, PROMPT, VOCABULARY, Language

languages = pytest.mark.parametrize("language", LANGUAGES, ids=str)


def record(text: str) -> dict[str, Any]:
    return {"first": text[0], "rest": {"length": len(text)}, "ends": [text[-1], text[-1] == "x"]}


def truth(language: Language) -> dict[tuple[str, Any], float]:
    """The probability of each value of each field, by enumeration."""
    found: dict[tuple[str, Any], float] = defaultdict(float)
    for ids, p in language.reference().mu.items():
        for path, value in leaves(record(VOCABULARY.decode(ids).decode())):
            found[path, value] += p
    return found


def bounded(language: Language, tolerance: float) -> Probabilities:
    tree = BoundsTree(language.table, language.budget)
    (result,) = probabilities(
        language.lm, language.settings(), [PROMPT], [tree], tolerance=tolerance, max_tokens=10**6, reader=record
    )
    return result


@languages
@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.0])
def test_certified_bounds_hold_the_truth(language: Language, tolerance: float) -> None:
    result = bounded(language, tolerance)
    marginals = result.marginals()
    assert marginals.certified and "log Phi" in str(marginals)
    for (path, value), p in truth(language).items():
        entry = marginals[path][value]
        assert entry.lo - 1e-9 <= p <= entry.hi + 1e-9
        assert entry.hi - entry.lo <= result.tolerance + 1e-9
        assert tolerance or entry.p == pytest.approx(p)


def covered(results: list[Draws], language: Language) -> float:
    """Return the rate at which the interval of a value holds its probability."""
    law = truth(language)
    found = [draws.marginals() for draws in results]
    return float(
        np.mean(
            [
                one[path][value].lo - 1e-9 <= p <= one[path][value].hi + 1e-9
                for one in found
                for (path, value), p in law.items()
            ]
        )
    )


def exact(language: Language, n: int, rows: int) -> list[Draws]:
    members, rng = list(language.reference().mu), np.random.default_rng(3)
    mu = np.array(list(language.reference().mu.values()))
    draw = partial(Draw.of, language.table.guide, log_p=0.0, log_w=0.0, guarantee=Guarantee.EXACT, reader=record)
    chosen = rng.choice(len(members), size=(rows, n), p=mu / mu.sum())
    return [Draws(items=tuple(draw(members[i]) for i in row), budget=language.budget) for row in chosen]


def masked(language: Language, n: int, rows: int) -> list[Draws]:
    draws = AncestralSampler(LocalPhi()).sample(language.request(n, seed=3, rows=rows))
    return [each.read_by(record) for each in draws]


@languages
def test_intervals_of_exact_draws_cover_as_they_say(language: Language) -> None:
    assert covered(exact(language, 50, 100), language) > 0.94


@pytest.mark.parametrize(("language", "least"), [(LANGUAGES[0], 0.93), (LANGUAGES[1], 0.8)], ids=["words", "loop"])
def test_intervals_of_weighted_draws_cover_and_without_the_weights_they_do_not(
    language: Language, least: float
) -> None:
    """Draws with heavy tails, as those of the second language, do not know all of them, and cover less than they say."""
    results = masked(language, 400, 20)
    assert covered(results, language) > least
    equal = [replace(draws, items=tuple(replace(one, log_w=0.0) for one in draws)) for draws in results]
    assert covered(equal, language) < 0.8


def made(*values: Any, **attributes: Any) -> Draws:
    """Return exact draws of values."""
    draw = partial(Draw, token_ids=(0,), log_p=0.0, log_w=0.0, guarantee=Guarantee.EXACT)
    read = lambda text: values[int(text)]  # noqa: E731
    return Draws(items=tuple(draw(text=str(i), reader=read) for i in range(len(values))), budget=1, **attributes)


class Size(enum.Enum):
    small = "small"


class Item(BaseModel):
    name: str
    size: Size | None = None


@dataclass
class Order:
    items: list[Item]
    paid: bool


def test_fields_have_dotted_paths() -> None:
    order = Order([Item(name="tea"), Item(name="jam", size=Size.small)], paid=True)
    assert dict(leaves(order)) == {
        "items.0.name": "tea",
        "items.0.size": None,
        "items.1.name": "jam",
        "items.1.size": Size.small,
        "paid": True,
    }
    assert dict(leaves(Order([], paid=False))) == {"items": [], "paid": False}
    assert dict(leaves("yes")) == {"": "yes"}


def test_values_that_python_calls_equal_are_kept_apart_and_refused_texts_have_no_field() -> None:
    marginals = made({"a": True}, {"a": 1}, {"a": 1.0}, {}).marginals()
    assert [(entry.value, entry.p) for entry in marginals["a"]] == [(1, 0.5), (True, 0.25)]
    assert marginals[""][{}].p == 0.25 and len(marginals) == 2

    def refuse(text: str) -> Any:
        raise ValueReadError("no", text=text)

    draws = made("yes", "no")
    refused = replace(draws, items=(draws[0], replace(draws[1], reader=refuse)))
    assert [(entry.value, entry.p) for entry in refused.marginals()[""]] == [("yes", 0.5)]


@dataclass(frozen=True)
class Frozen:
    a: Any


@dataclass(eq=False)
class Apart:
    a: Any


class Open(BaseModel, extra="allow"):
    a: Any


@pytest.mark.parametrize("record", [Frozen, Apart, Open])
def test_records_are_told_apart_by_their_fields(record: type) -> None:
    """Those whose class compares them otherwise as well."""
    assert frozen(record(a=True)) == frozen(record(a=True)) != frozen(record(a=1))
    assert [entry.p for entry in made(record(a=True), record(a=True), record(a=1)).marginals()["a"]] == [2 / 3, 1 / 3]


def test_fields_beyond_those_of_a_class_are_fields() -> None:
    assert dict(leaves(Open(a=1, b=2))) == {"a": 1, "b": 2} and frozen(Open(a=1, b=2)) != frozen(Open(a=1, b=3))


def test_a_value_that_was_not_drawn_has_an_interval() -> None:
    marginal = made(*["yes"] * 100).marginals()[""]
    entry = marginal["no"]
    assert (entry.p, entry.lo) == (0, 0) and entry.hi == pytest.approx(0.037, abs=1e-3) == 1 - marginal["yes"].lo


def test_a_certificate_widens_the_intervals() -> None:
    values = ["yes"] * 60 + ["no"] * 40
    near, far = (made(*values, certificate=Certificate(total_variation=tv)).marginals()[""]["yes"] for tv in (0.0, 0.1))
    assert far.lo == pytest.approx(near.lo - 0.1) and far.hi == pytest.approx(near.hi + 0.1)


def test_a_table_says_where_it_comes_from() -> None:
    table = str(made(*range(20)).marginals(confidence=0.9))
    assert "... 12 more" in table and "90% intervals; <20 draws, EXACT" in table and "log Phi" in table


@pytest.mark.parametrize("confidence", [0, 1, 1.5, math.nan, "much", True])
def test_a_confidence_is_between_0_and_1(confidence: Any) -> None:
    with pytest.raises(UnsupportedError, match="confidence="):
        made("yes").marginals(confidence)


def test_no_draw_is_an_error() -> None:
    with pytest.raises(EmptyLanguageError, match="no draw"):
        Draws(items=(), budget=1, failures=2).marginals()


def test_marginals_are_a_mapping() -> None:
    marginals = made({"a": 1, "b": 2}).marginals()
    assert isinstance(marginals, Marginals) and list(marginals) == ["a", "b"] and "c" not in marginals
