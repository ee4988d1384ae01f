"""``backend="llguidance"`` and ``"xgrammar"``: left to Outlines where nothing is corrected, refused beside everything else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex

import outlines_phi
from outlines_phi.errors import UnsupportedError
from outlines_phi.plugin.types.tables import MASKING

ANSWER = Literal["yes", "no", "maybe"]

engines = pytest.mark.parametrize("backend", MASKING)

Door = Callable[[outlines_phi.PhiTransformers, str], Any]
DOORS: dict[str, Door] = {
    "call": lambda model, backend: model("Answer:", ANSWER, backend, phi="exact", max_new_tokens=8),
    "ban": lambda model, backend: model("Answer:", ANSWER, backend, banned_phrases=["no"], max_new_tokens=8),
    "batch": lambda model, backend: model.batch(["Answer:"], ANSWER, backend, phi="local", max_new_tokens=8),
    "stream": lambda model, backend: list(model.stream("Answer:", ANSWER, backend, phi="exact", max_new_tokens=8)),
    "default of the model": lambda model, backend: outlines_phi.wrap(model, phi="local")("Answer:", ANSWER, backend),
    "generator": lambda model, backend: outlines_phi.Generator(model, ANSWER, backend=backend),
    "masking generator": lambda model, backend: outlines_phi.Generator(model, ANSWER, phi=None, backend=backend),
    "table": lambda model, backend: model.table(ANSWER, backend=backend),
}


@engines
@pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS))
def test_refused_with_what_to_do(backend: str, door: Door, model: outlines_phi.PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match=f"^Leave backend='{backend}' out: .* only plain masking can use it"):
        door(model, backend)


@engines
def test_refused_by_the_installed_generator(backend: str, stock: outlines.models.Transformers) -> None:
    outlines_phi.install()
    try:
        with pytest.raises(UnsupportedError, match=f"^Leave backend='{backend}' out"):
            outlines.Generator(stock, ANSWER, backend, phi="exact")
    finally:
        outlines_phi.uninstall()


def test_left_to_outlines_without_a_correction(model: outlines_phi.PhiTransformers) -> None:
    pytest.importorskip("llguidance")
    assert model("Answer:", ANSWER, "llguidance", max_new_tokens=8) in ("yes", "no", "maybe")
    text = model("Once", regex("[a-z ]{1,30}"), "llguidance", phi=None, max_new_tokens=12)
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz ")


def test_the_own_backend_is_read(fresh: outlines_phi.PhiTransformers) -> None:
    assert fresh.table(ANSWER, backend="outlines_core") is fresh.table(ANSWER)


def test_an_unknown_name(model: outlines_phi.PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match="expected one of outlines_core, llguidance, xgrammar, or None"):
        outlines_phi.Generator(model, ANSWER, backend="regex")
