"""Guides that number states as they meet them: one that has met too many is replaced when a call begins, and forgotten."""

import gc
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from weakref import ref

import pytest
from outlines.types import CFG, Regex
from pydantic import BaseModel, Field

from outlines_phi import AutoPhi, Generator, PhiTransformers, Thinking, from_transformers
from outlines_phi.guides import Table, machine_guide
from outlines_phi.guides.grammar import cfg_guide
from outlines_phi.guides.phrases import ban_language
from outlines_phi.lm import bundled

PROMPT = "Names: "


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
def model() -> PhiTransformers:
    return from_transformers(*bundled.load())


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def bound() -> None:
        monkeypatch.setattr(machine_guide, "MOST_PLACES", 8)
        monkeypatch.setattr(cfg_guide, "MOST_STACKS", 6)
        monkeypatch.setattr(ban_language, "MOST_PAIRS", 40)

    return bound


def drawn(model: PhiTransformers, name: str) -> Iterator[tuple[list[str], Table]]:
    """Yield the texts of some seeded calls, and the table of the next one."""
    model.clear_cache()
    output_type, options = CASES[name]
    generator = Generator(model, output_type, phi="local", **options)
    for seed in range(4):
        yield generator.sample(PROMPT, 3, seed=seed, max_new_tokens=40).texts, generator.table.current


@cases
def test_draws_are_the_same(model: PhiTransformers, name: str, bounded: Callable[[], None]) -> None:
    before = [texts for texts, _ in drawn(model, name)]
    bounded()
    texts, tables = zip(*drawn(model, name), strict=True)
    assert list(texts) == before and len(set(tables)) > 2


@cases
def test_replaced_guides_are_forgotten(model: PhiTransformers, name: str, bounded: Callable[[], None]) -> None:
    """With their trees, which are kept between calls; the first guide is that of the generator."""
    bounded()
    output_type, options = CASES[name]
    generator = Generator(model, output_type, phi=AutoPhi(share=0, candidates=1), **options)
    met = []
    for _ in range(5):
        generator.sample(PROMPT, 2, max_new_tokens=40)
        met.append(ref(generator.table.current.guide))
    gc.collect()
    assert len({*met}) > 3 and sum(each() is not None for each in met) <= 2


def test_loops_of_hosts_begin_with_another_guide(model: PhiTransformers, bounded: Callable[[], None]) -> None:
    bounded()
    generator = Generator(model, Names, phi=None)
    tables = []
    for _ in range(3):
        Names.model_validate_json(generator(PROMPT, max_new_tokens=60, do_sample=True))
        tables.append(generator.table.current)
    assert len({*tables}) == 3
