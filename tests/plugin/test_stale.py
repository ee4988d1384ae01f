"""Kept trees do not outlive the law that they were grown by, also where nothing tells that it changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from outlines.types import regex

import outlines_phi
from outlines_phi import PhiTransformers
from outlines_phi.lm import bundled
from outlines_phi.phi.tree.tree import BoundsTree
from tests.plugin.gate import trees
from tests.precision import near

QUESTION = "Question: is the bakery open on Sunday? Answer: "
ANSWER = Literal["yes", "no", "not now"]


def hooked(model: PhiTransformers) -> Callable[[], None]:
    """Scale the last hidden state by a factor, which the returned function changes."""
    factor = [1.0]

    def scale(module: Any, arguments: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * factor[0]
        return output

    model.model.get_decoder().register_forward_hook(scale)
    return partial(factor.__setitem__, 0, 0.25)


DOORS: dict[str, Callable[[Any], Any]] = {
    "exact draws": lambda generator: generator.sample(QUESTION, n=200, phi="exact"),
    "automatic draws": lambda generator: generator.sample(QUESTION, n=200, phi="auto"),
    "probabilities": lambda generator: generator.probabilities(QUESTION),
    "mode": lambda generator: generator.mode(QUESTION),
}


def share(generator: Any) -> float:
    return generator.probabilities(QUESTION)["yes"].p


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
def test_what_a_hook_does_may_change(fresh: PhiTransformers, door: Callable[[Any], Any]) -> None:
    change, generator = hooked(fresh), outlines_phi.Generator(fresh, ANSWER)
    before, version = share(generator), fresh.lm.version()
    change()
    assert fresh.lm.version() == version
    door(generator)
    after = share(generator)
    fresh.clear_cache()
    assert after == near(share(generator))
    assert abs(after - before) > 0.02


def test_draws_after_a_change_have_the_new_law(fresh: PhiTransformers) -> None:
    change, generator = hooked(fresh), outlines_phi.Generator(fresh, ANSWER)
    before = share(generator)
    generator.sample(QUESTION, n=50, phi="exact")
    change()
    found, after = generator.sample(QUESTION, n=2000, phi="exact").texts.count("yes") / 2000, share(generator)
    assert abs(found - after) < 5 * (after * (1 - after) / 2000) ** 0.5 < abs(before - after)


def test_without_the_comparison_the_old_law_is_served(fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the tests above tell the laws apart."""
    change, generator = hooked(fresh), outlines_phi.Generator(fresh, ANSWER)
    before = share(generator)
    monkeypatch.setattr(BoundsTree, "drift", lambda *_: 0.0)
    change()
    assert share(generator) == before


def test_a_write_that_no_version_tells(fresh: PhiTransformers) -> None:
    """Rows written through ``.data``, none of whose numbers are read: seen where the model is asked at all."""
    generator = outlines_phi.Generator(fresh, regex("yes|[a-z]{4,9}"), phi="exact")
    version = fresh.lm.version()
    generator.sample(QUESTION, n=1, max_new_tokens=12)
    (tree,) = trees(fresh)
    fresh.model.get_output_embeddings().weight.data[600:630].mul_(0.25)
    assert fresh.lm.version() == version
    assert generator.sample(QUESTION, n=100, temperature=1.0, max_new_tokens=12).counts.calls > 0
    assert tree not in trees(fresh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_change(dtype: torch.dtype) -> None:
    """A tree that was grown in other company is kept."""
    model = outlines_phi.from_transformers(*bundled.load(dtype))
    hooked(model)
    generator = outlines_phi.Generator(model, ANSWER, phi="exact")
    generator.sample_batch(["Question: ", QUESTION, "New character: Aria. JSON: " * 9], n=3)
    known = trees(model)
    assert generator.sample(QUESTION, n=50).counts.calls > 0
    assert trees(model) == [known[0], known[2], known[1]]
