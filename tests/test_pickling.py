"""Every public thing that holds data can be pickled and is the same afterwards; what holds a model says why not."""

import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import isabstract
from typing import Any, Literal

import outlines
import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

import outlines_phi
from outlines_phi import (
    SMC,
    BannedPhrases,
    BudgetError,
    Draws,
    EmptyLanguageError,
    ExactPhi,
    GrammarError,
    LearnedPhi,
    PhiTransformers,
    SamplingSettings,
    StateValues,
    TextConstraint,
    UnsupportedError,
    drafting,
    errors,
)
from outlines_phi.phi.estimator import Phi

PROMPT = "Order: green tea for Nora. JSON: "


class Paid(BaseModel):
    paid: bool


class Taken(TypedDict):
    taken: bool


@dataclass
class Pair:
    first: bool
    second: Literal["a", "b"]


def asked(sugar: bool) -> None: ...


def again(thing: Any) -> Any:
    assert type(copy.deepcopy(thing)) is type(thing)
    return pickle.loads(pickle.dumps(thing))


RAISED: list[Exception] = [
    *(
        kind("what is wrong")
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, (errors.OutlinesPhiError, Warning))
        and kind not in (errors.ValueReadError, errors.ConstraintError)
    ),
    errors.ValueReadError("what is wrong", text="a\ud800"),
    errors.ConstraintError("what is wrong", text="abc"),
    EmptyLanguageError("what is wrong", least_budget=3),
    GrammarError("what is wrong", "abc\ndef", 5),
    GrammarError("what is wrong", "abc", None),
    BudgetError("what is wrong", draws=[1], log_z_bounds=(-2.0, -1.0), partial=["some"]),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_errors(error: Exception) -> None:
    other = again(error)
    assert type(other) is type(error) and str(other) == str(error)
    assert other.args == error.args and vars(other) == vars(error)


OPTIONS: list[Any] = [
    SamplingSettings(top_p=0.5, seed=3),
    outlines_phi.Effort(attempts=3),
    ExactPhi(tolerance=0.1, confidence=0.9),
    outlines_phi.AutoPhi(share=0.5),
    *(
        kind()
        for kind in vars(outlines_phi).values()
        if isinstance(kind, type) and issubclass(kind, Phi) and not isabstract(kind)
    ),
    SMC(particles=7, resample="ess"),
    BannedPhrases(["a", re.compile("b{1,3}")], whole_word=True),
    TextConstraint(len),
    drafting.PromptLookupDrafter(ngram=2),
    drafting.AdaptedLength(drafting.PromptLookupDrafter()),
    drafting.FirstOf([drafting.ForcedDrafter(), drafting.PromptLookupDrafter()]),
]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: type(option).__name__)
def test_options(option: Any) -> None:
    other = again(option)
    assert repr(other) == repr(option)
    if not isinstance(option, LearnedPhi):  # compares its values by identity
        assert other == option or type(option).__eq__ is object.__eq__


TYPES = [bool, Paid, Taken, Pair, list[bool], Literal["yes", 3], asked, outlines.types.regex("a|b"), tuple[bool, bool]]


@pytest.mark.parametrize("output_type", TYPES, ids=lambda kind: getattr(kind, "__name__", str(kind)))
@pytest.mark.parametrize(
    "options", [{"phi": "exact"}, {"phi": "local", "sampler": SMC(particles=3)}], ids=["exact", "smc"]
)
def test_draws(output_type: Any, options: dict[str, Any], model: PhiTransformers) -> None:
    draws = outlines_phi.Generator(model, output_type).sample(PROMPT, 2, seed=1, max_new_tokens=40, **options)
    other: Draws = again(draws)
    assert other == draws and other.texts == draws.texts
    assert other.values == draws.values and other.ess == draws.ess and other.log_z == draws.log_z
    assert again(draws[0]) == draws[0] and again(draws[0]).value == draws[0].value


def test_what_else_a_generator_returns(model: PhiTransformers) -> None:
    generator = outlines_phi.Generator(model, bool)
    for found in (generator.probabilities(PROMPT), generator.mode(PROMPT), generator.audit(PROMPT, n=4)):
        assert repr(again(found)) == repr(found)


def test_what_was_learned(model: PhiTransformers) -> None:
    values = StateValues()
    outlines_phi.Generator(model, Literal["yes", "no"], phi=LearnedPhi(values)).sample(PROMPT, 8)
    other = again(LearnedPhi(values)).values
    assert len(other) == len(values) > 0 and other.known.log_v.tolist() == values.known.log_v.tolist()
    steps = len(values.known.at)
    outlines_phi.Generator(model, Literal["yes", "no"], phi=LearnedPhi(other)).sample(PROMPT, 2)
    assert len(values.known.at) == steps < len(other.known.at), "the copy goes on by itself"


@pytest.mark.parametrize("how", [pickle.dumps, copy.deepcopy])
def test_what_holds_a_model_says_why_not(how: Callable[[Any], Any], model: PhiTransformers) -> None:
    for thing in [model, outlines_phi.Generator(model, bool), outlines_phi.generate.choice(model, ["a", "b"])]:
        with pytest.raises(
            UnsupportedError, match=r"Build it in the other.*neither pickled nor copied: it holds a model"
        ):
            how(thing)
