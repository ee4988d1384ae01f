"""Grammars as output types, at the doors of the package; guides that number states as they meet them, replaced and forgotten."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from weakref import ref

import pytest
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field

from outlines_phi import (
    SMC,
    AutoPhi,
    Generator,
    GrammarError,
    LearnedPhi,
    PhiTransformers,
    StateValues,
    Thinking,
    from_transformers,
    generate,
    samplers,
)
from outlines_phi.guides import CFGGuide, FSMGuide, Table, machine_guide, read_grammar
from tests.inner import ESTIMATORS, ban_language, bundled, cfg_guide, dyck
from tests.refusals import refused

PROMPT = "Brackets: "
BRACKETS = CFG(dyck(2))
JSON = "Person: Nora is a baker. JSON: "
BUDGET = 14


def balanced(text: str) -> bool:
    """Return True if nothing is left when pairs are taken out, innermost first."""
    while (inner := re.sub(r"\(\)|\[\]", "", text)) != text:
        text = inner
    return not text


@pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
@pytest.mark.parametrize("phi", [name for name in ESTIMATORS if name != "lookahead"])
def test_every_estimator_draws_of_a_grammar(phi: str, model: PhiTransformers) -> None:
    draws = Generator(model, BRACKETS, phi=phi).sample(PROMPT, n=20, max_new_tokens=BUDGET, seed=1)
    assert draws.failures == 0 and all(balanced(text) for text in draws.texts) and len(set(draws.texts)) > 5


def test_doors(model: PhiTransformers) -> None:
    limits: dict[str, Any] = {"max_new_tokens": BUDGET}
    written = [
        model(PROMPT, BRACKETS, phi="exact", **limits),
        model(PROMPT, BRACKETS, phi=None, banned_phrases=["[["], **limits),
        Generator(model, BRACKETS, phi=None)(PROMPT, **limits),
        Generator(model, CFGGuide.of(read_grammar(dyck(2)), model.lm.vocabulary))(PROMPT, **limits),
        *Generator(model, BRACKETS).batch([PROMPT, "Answer: "], **limits),
        "".join(model.stream(PROMPT, BRACKETS, phi="exact", **limits)),
        "".join(model.stream(PROMPT, BRACKETS, phi="local", **limits)),
        generate.cfg(model, dyck(2), phi="exact")(PROMPT, max_tokens=BUDGET),
        generate.cfg(model, BRACKETS, samplers.greedy(), phi="exact")(PROMPT, max_tokens=BUDGET),
        *generate.cfg(model, BRACKETS, SMC(particles=4), phi="local")([PROMPT] * 2, max_tokens=BUDGET),
        "".join(generate.cfg(model, BRACKETS, phi="auto").stream(PROMPT, max_tokens=BUDGET)),
    ]
    assert all(balanced(text) for text in written)


def test_grammars_that_were_read_are_output_types(model: PhiTransformers) -> None:
    """A grammar that is not regular is masked by its guide, a regular one by an automaton; ``phi=None`` is not left to Outlines."""
    pairs = read_grammar('root ::= pair+\npair ::= "(" pair* ")" | "[" pair* "]"', dialect="gbnf")
    limits: dict[str, Any] = {"max_new_tokens": BUDGET}
    written = [
        model(PROMPT, pairs, **limits),
        model(PROMPT, pairs, phi="exact", banned_phrases=["[["], **limits),
        *Generator(model, pairs, phi="local").batch([PROMPT, "Answer: "], **limits),
        "".join(model.stream(PROMPT, pairs, phi="exact", **limits)),
        generate.cfg(model, pairs, phi="exact")(PROMPT, max_tokens=BUDGET),
    ]
    assert all(text and balanced(text) for text in written)
    digits = read_grammar('root ::= d{2} ("-" d)?\nd ::= [0-9]', dialect="gbnf")
    draws = Generator(model, digits, phi="dp").sample(PROMPT, n=5, seed=0, **limits)
    assert all(re.fullmatch("[0-9]{2}(-[0-9])?", text) for text in draws.texts) and draws.values == draws.texts
    assert isinstance(model.table(digits).guide, FSMGuide) and isinstance(model.table(pairs).guide, CFGGuide)
    assert model.table(pairs) is model.table(
        read_grammar('root ::= pair+\npair ::= "(" pair* ")" | "[" pair* "]"', dialect="gbnf")
    )
    refused("reads .* grammars by itself", model, PROMPT, pairs, phi="exact", backend="xgrammar")
    refused("GBNF", model, PROMPT, CFG('root ::= "a"'), phi="exact", error=GrammarError)


def test_what_is_known_without_drawing(model: PhiTransformers) -> None:
    few = CFG('start: "(" middle ")" | "[" "]"\nmiddle: "[" "]" |')
    generator = Generator(model, few, phi="exact")
    shares = generator.probabilities(PROMPT, max_new_tokens=8)
    best = generator.mode(PROMPT, top=2, max_new_tokens=8)
    assert set(shares) == {"()", "[]", "([])"} and math.isclose(sum(shares[text].p for text in shares), 1, abs_tol=0.01)
    assert best.texts[0] == next(iter(shares)) == model(PROMPT, few, phi="exact", do_sample=False, max_new_tokens=8)


def test_what_is_learned_of_a_grammar_stays_with_the_model(model: PhiTransformers) -> None:
    """States are numbered as they are met, so their values mean nothing elsewhere."""
    refused(
        "A CFGGuide has no fingerprint.* phi='learned', which keeps it with this one",
        Generator(model, BRACKETS, phi=LearnedPhi(StateValues())).sample,
        PROMPT,
        max_new_tokens=BUDGET,
    )


NAMES = "Names: "


class Names(BaseModel):
    names: set[Annotated[str, Field(pattern="^[a-z]{1,3}$")]] = Field(min_length=2, max_length=3)


SUMS = CFG('start: NUMBER | "(" start "+" start ")"\nNUMBER: /[0-9]{1,2}/')
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "values that differ": (Names, {}),
    "grammar": (SUMS, {}),
    "grammar inside a type": (Regex("Sum: ") + SUMS, {}),
    "ban": (SUMS, {"banned_phrases": ["11", "7+"]}),
    "thought": (Thinking(Names, end="]", max_tokens=4), {}),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def own() -> PhiTransformers:
    return from_transformers(*bundled.load())


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def bound() -> None:
        monkeypatch.setattr(machine_guide, "MOST_PLACES", 8)
        monkeypatch.setattr(cfg_guide, "MOST_STACKS", 6)
        monkeypatch.setattr(ban_language, "MOST_PAIRS", 40)

    return bound


def drawn(own: PhiTransformers, name: str) -> Iterator[tuple[list[str], Table]]:
    """Yield the texts of some seeded calls, and the table of the next one."""
    own.clear_cache()
    output_type, options = CASES[name]
    generator = Generator(own, output_type, phi="local", **options)
    for seed in range(4):
        yield generator.sample(NAMES, 3, seed=seed, max_new_tokens=40).texts, generator.table.current


@cases
def test_draws_are_the_same(own: PhiTransformers, name: str, bounded: Callable[[], None]) -> None:
    before = [texts for texts, _ in drawn(own, name)]
    bounded()
    texts, tables = zip(*drawn(own, name), strict=True)
    assert list(texts) == before and len(set(tables)) > 2


@cases
def test_replaced_guides_are_forgotten(own: PhiTransformers, name: str, bounded: Callable[[], None]) -> None:
    """With their trees, which are kept between calls; the first guide is that of the generator."""
    bounded()
    output_type, options = CASES[name]
    generator = Generator(own, output_type, phi=AutoPhi(share=0, candidates=1), **options)
    met = []
    for _ in range(5):
        generator.sample(NAMES, 2, max_new_tokens=40)
        met.append(ref(generator.table.current.guide))
    gc.collect()
    assert len({*met}) > 3 and sum(each() is not None for each in met) <= 2


def test_loops_of_hosts_begin_with_another_guide(own: PhiTransformers, bounded: Callable[[], None]) -> None:
    bounded()
    generator = Generator(own, Names, phi=None)
    tables = []
    for _ in range(3):
        Names.model_validate_json(generator(NAMES, max_new_tokens=60, do_sample=True))
        tables.append(generator.table.current)
    assert len({*tables}) == 3
