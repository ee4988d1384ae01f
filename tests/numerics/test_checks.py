"""Arguments of the wrong type or size are refused by name, with what was expected; never deep inside."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import outlines_phi
from outlines_phi import (
    SMC,
    AutoPhi,
    BigramDPPhi,
    Effort,
    ExactPhi,
    FieldsPhi,
    LearnedPhi,
    LocalPhi,
    LookaheadPhi,
    OneStepPhi,
    OutlinesPhiError,
    PhiTransformers,
    SamplingSettings,
    TextConstraint,
    UnsupportedError,
    Vocabulary,
)
from outlines_phi.guides import CFGGuide, FSMGuide, Table, read_grammar
from outlines_phi.lm import TableModel
from outlines_phi.numerics.checks import is_count, is_number, shown
from tests.inner import bundled, compile_regex

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers() | st.sampled_from([10**400, -(10**5000), 2**63]),
    st.floats(),
    st.text(st.characters(), max_size=3) | st.just("\ud800"),
    st.binary(max_size=3),
    st.sampled_from([object(), int, len]),
)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.tuples() | st.tuples(SCALARS) | st.just({})
"""Values of all types, most of them wrong wherever they are given."""

TWO = Vocabulary((b"a", b""), (1,), np.ones(2, dtype=bool))


def is_text(value: Any) -> bool:
    return isinstance(value, str | bytes)


TAKES: dict[str, tuple[Callable[[Any], object], Callable[[Any], bool]]] = {
    "tokens": (lambda x: Vocabulary(x, (1,), np.ones(2, dtype=bool)), lambda x: False),
    "eos_ids": (lambda x: Vocabulary((b"a", b""), x, np.ones(2, dtype=bool)), lambda x: x in ((0,), (1,))),
    "real": (lambda x: Vocabulary((b"a", b""), (1,), x), lambda x: False),
    "tokens, listed": (lambda x: Vocabulary.from_tokens(x, 0), lambda x: all(map(is_text, x))),
    "a token": (lambda x: Vocabulary.from_tokens([b"a", x], 0), is_text),
    "eos": (lambda x: Vocabulary.from_tokens([b"a"], x), lambda x: x in (0, (0,), [0])),
    "tokenizer": (Vocabulary.from_tokenizer, lambda x: False),
    "grammar": (lambda x: CFGGuide.of(x, TWO), lambda x: False),
    "vocabulary of a grammar": (lambda x: CFGGuide.of(read_grammar('start: "a"'), x), lambda x: False),
    "parts of a grammar's guide": (lambda x: CFGGuide(x, x), lambda x: False),
    "automaton": (lambda x: FSMGuide.from_automaton(x, TWO), lambda x: False),
    "vocabulary of an automaton": (lambda x: FSMGuide.from_automaton(compile_regex("a"), x), lambda x: False),
    "index": (lambda x: FSMGuide.from_index(x, TWO), lambda x: False),
    "guide of a table": (Table, lambda x: False),
    "vocabulary of a model": (lambda x: TableModel(x, lambda ids: [0.0, 0.0]), lambda x: False),
    "law of a model": (lambda x: TableModel(TWO, x), callable),
}


@given(st.sampled_from(sorted(TAKES)), VALUES)
@settings(max_examples=600, deadline=None, derandomize=True)
def test_what_is_taken_is_of_the_right_type(name: str, value: Any) -> None:
    make, right = TAKES[name]
    try:
        make(value)
    except OutlinesPhiError as error:
        assert len(str(error)) < 500
    else:
        assert right(value)


OPTIONS = [
    AutoPhi, BigramDPPhi, Effort, ExactPhi, FieldsPhi, LearnedPhi, LocalPhi, LookaheadPhi, OneStepPhi, SamplingSettings, SMC
]  # fmt: skip
FIELDS = [
    (each, field.name, get_type_hints(each)[field.name])
    for each in OPTIONS
    for field in fields(each)
    if field.name[0] != "_"
]
KINDS: dict[object, Callable[[Any], bool]] = {
    int: is_count,
    float: is_number,
    bool: lambda x: isinstance(x, bool),
    type(None): lambda x: x is None,
    tuple[int, ...]: lambda x: isinstance(x, list | tuple) and all(map(is_count, x)),
}
"""The values of a field's type, by its annotation; of all other types none of the wrong values is."""


@given(st.sampled_from(FIELDS), VALUES)
@settings(max_examples=600, deadline=None, derandomize=True)
def test_options_of_another_type_are_refused_by_name(field: tuple[type, str, Any], value: Any) -> None:
    options, name, kind = field
    try:
        options(**{name: value})
    except UnsupportedError as error:
        assert f"{name}=" in str(error)
    else:
        assert any(KINDS[part](value) for part in (kind, *get_args(kind)) if part in KINDS)


OUTSIDE: list[tuple[type, dict[str, Any], str]] = [
    *((BigramDPPhi, {"floor": floor}, f"floor={floor}") for floor in (0, 2)),
    *((BigramDPPhi, {name: 0}, f"{name}=0") for name in ("tokens", "states", "max_bytes")),
    (LearnedPhi, {"floor": 0}, "floor=0"),
    (LookaheadPhi, {"window": 0}, "window=0"),
    (LookaheadPhi, {"width": 0}, "width=0"),
    (LookaheadPhi, {"release": "late"}, "'window' or 'early'"),
    (LookaheadPhi, {"effort": 3}, r"Effort\("),
    (LookaheadPhi, {"effort": Effort(seconds=2)}, "Leave seconds out"),
    (LookaheadPhi, {"release": "early", "weights": True}, "release='window'"),
    (LookaheadPhi, {"release": "early", "window": 4}, "window="),
    (AutoPhi, {"candidates": 0}, "candidates=0"),
    (AutoPhi, {"share": -0.1}, "share=-0.1"),
    (Effort, {"seconds": 0}, "positive number"),
    *((FieldsPhi, {name: 0}, f"{name}=0") for name in ("attempts", "candidates", "width")),
    (FieldsPhi, {"least": 1.0}, "least=1.0"),
    *((ExactPhi, {"tolerance": 0.1, "confidence": wrong}, "between 0 and 1") for wrong in (0, 1.0, 95, True, "high")),
    (ExactPhi, {"confidence": 0.95}, "need no certificate"),
    (ExactPhi, {"tolerance": 1.0, "confidence": 0.9}, r"\[0, 1\)"),
    (SMC, {"particles": 0}, "particles=0"),
    (SMC, {"particles": 1, "resample": "ess"}, "cannot be replaced"),
    (SMC, {"resample": "always"}, "'never' or 'ess'"),
    (SMC, {"resample": "ess", "threshold": 1.5}, r"\(0, 1\]"),
    (SMC, {"threshold": 0.5}, "resample='ess'"),
    (TextConstraint, {}, "no predicate"),
    (TextConstraint, {"prefix": "abc"}, "function of a text"),
    (TextConstraint, {"complete": 3}, "complete=3"),
    (TextConstraint, {"prefix": str.isalpha, "further": 0}, "further=0"),
    (TextConstraint, {"prefix": str.isalpha, "memory": 1.5}, "memory=1.5"),
]


@pytest.mark.parametrize(("options", "given", "words"), OUTSIDE)
def test_options_out_of_range_or_without_effect_are_refused(options: type, given: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        options(**given)


def test_bytes_of_trees(model: PhiTransformers) -> None:
    for value in (None, "1", -1, True, 1.5, float("nan"), [1], {}, len, -(10**5000)):
        with pytest.raises(UnsupportedError, match="max_tree_bytes=.* of at least 0"):
            outlines_phi.from_transformers(model.model, model.hf_tokenizer, max_tree_bytes=value)
    for value in (0, np.int64(5), 2**40):
        outlines_phi.from_transformers(model.model, model.hf_tokenizer, max_tree_bytes=value)


HUGE = [2**63, 10**5000]
huge = pytest.mark.parametrize("n", HUGE, ids=["2**63", "10**5000"])
COUNTS: dict[str, Callable[[int], object]] = {
    "particles": lambda n: SMC(particles=n),
    "candidates": lambda n: AutoPhi(candidates=n),
    "width": lambda n: ExactPhi(width=n),
    "normalizers": lambda n: ExactPhi(normalizers=n),
    "attempts at once": lambda n: LookaheadPhi(width=n),
    "size": lambda n: Vocabulary.from_tokenizer(bundled.load()[1], size=n),
}


@huge
@pytest.mark.parametrize("name", COUNTS)
def test_counts_have_a_bound_by_memory(name: str, n: int) -> None:
    with pytest.raises(UnsupportedError, match=r"=(\d+|2\*\*\d+\.\.\.) was given, and [\d,]+ .* 16 GB of memory"):
        COUNTS[name](n)


@huge
@pytest.mark.parametrize("phi", ["exact", "auto", "local", "lookahead"])
def test_draws_have_a_bound_by_memory(phi: str, n: int, model: PhiTransformers) -> None:
    ban = {"banned_phrases": ["a"]} if phi == "lookahead" else {}
    expected = r"n=(\d+|2\*\*\d+\.\.\.) was given, and 16,777,216 draws, of all prompts together"
    with pytest.raises(UnsupportedError, match=expected):
        outlines_phi.Generator(model, bool, phi=phi, **ban).sample("Order: ", n)
    with pytest.raises(UnsupportedError, match=expected):
        model.batch(["Order: "], bool, phi=phi, num_return_sequences=n, **ban)


def test_the_bound_is_one_of_all_prompts_and_integers_that_no_float_holds_are_refused(model: PhiTransformers) -> None:
    generator = outlines_phi.Generator(model, Literal["a", "b"])
    large = 10**400
    for call, words in (
        (lambda: generator.sample_batch(["Order: "] * 2**10, 2**15), "Draw in several calls"),
        (lambda: generator.mode("Order: ", top=2**63), "16,777,216 members"),
        (lambda: generator.audit("Order: ", n=2**63), "16,777,216 draws"),
        (lambda: SamplingSettings(temperature=large), r"=2\*\*\d+\.\.\."),
        (lambda: generator.audit("Order: ", n=2, bounds_tokens=large), r"=2\*\*\d+\.\.\."),
        (lambda: generator.sample("Order: ", repetition_penalty=large), r"=2\*\*\d+\.\.\."),
    ):
        with pytest.raises(UnsupportedError, match=words):
            call()


def test_what_is_a_number() -> None:
    assert is_count(0) and is_count(np.int64(3), 3) and not is_count(2, 3) and not is_count(True) and not is_count(1.0)
    assert is_number(1) and is_number(0.5)
    assert not any(map(is_number, (True, float("nan"), float("inf"), 10**400, "1", None)))
    assert shown(-(2**300)) == "-2**300..." and shown("a" * 200) == "'" + "a" * 79
    assert Effort(tokens=2**63).tokens == 2**63
