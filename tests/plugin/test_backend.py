"""``outlines.Generator(model, T, backend="outlines_phi")``: masks, bans and weights of this package in Outlines' own loop."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import outlines
import outlines.backends
import pytest
from outlines.models.transformers import Transformers
from outlines.types import cfg, regex
from pydantic import BaseModel

from outlines_phi import (
    BannedPhrases,
    Generator,
    PhiTransformers,
    SchemaWarning,
    UnsupportedError,
    install,
    register_backend,
    uninstall,
)
from outlines_phi.plugin.install import PhiBackend
from outlines_phi.plugin.processor import MaskLogitsProcessor
from tests.leaks import leaks
from tests.plugin.loops import seeded
from tests.precision import named

ROOT = Path(__file__).parents[2]
PROMPT = "Question: is the bakery open on Sunday? Answer: "
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 16}
STOCK = outlines.backends._get_backend
WORDS = Literal["yes", "no", "not on Sunday"]


class Record(BaseModel, extra="forbid"):
    name: Literal["Ada", "Bob"]
    age: Literal[1, 2, 33]


@pytest.fixture(autouse=True)
def _taken_back() -> Iterator[None]:
    yield
    uninstall()
    assert outlines.backends._get_backend is STOCK


@pytest.mark.parametrize("output_type", [WORDS, regex("[a-z]é{2}"), Record, cfg('start: "(" start? ")"')], ids=named)
def test_its_masks_are_those_of_this_package(output_type: Any, stock: Transformers, model: PhiTransformers) -> None:
    register_backend()
    generator = outlines.Generator(stock, output_type, backend="outlines_phi")
    texts = seeded(generator, PROMPT, num_return_sequences=8, **SAMPLED)
    ours = Generator(model, output_type, phi=None)
    assert texts == seeded(ours, PROMPT, num_return_sequences=8, **SAMPLED)
    assert texts == seeded(stock, PROMPT, output_type, "outlines_phi", num_return_sequences=8, **SAMPLED)
    assert isinstance(generator.logits_processor, MaskLogitsProcessor)


def test_what_is_banned_is_never_written(stock: Transformers) -> None:
    form, ban = regex("[a-z]{1,4}( [a-z]{1,4}){0,2}"), BannedPhrases(["e", "no"])
    register_backend("without", banned_phrases=ban, max_new_tokens=16)
    register_backend()
    written = {
        name: seeded(outlines.Generator(stock, form, name), PROMPT, num_return_sequences=60, **SAMPLED)
        for name in ("without", "outlines_phi")
    }
    found = {name: [leak for text in texts for leak in leaks(ban, text.encode())] for name, texts in written.items()}
    assert not found["without"] and found["outlines_phi"]


def test_weights_lead_to_the_conditioned_distribution(stock: Transformers, model: PhiTransformers) -> None:
    """Phi is the mean weight, and shares by weight are the probabilities; those of masked texts by themselves are not."""
    register_backend("weighted", phi="local", max_new_tokens=8, top_k=0)
    generator = outlines.Generator(stock, WORDS, backend="weighted")
    law = Generator(model, WORDS).probabilities(PROMPT, tolerance=1e-6, max_new_tokens=8)
    options = generator.logits_processor.host_options
    texts = seeded(generator, PROMPT, num_return_sequences=600, **options)
    weights = np.exp(generator.logits_processor.log_w())
    error = weights.std() / len(weights) ** 0.5
    assert weights.mean() == pytest.approx(np.exp(law.log_z_bounds[0]), abs=4 * error)
    exact = {value: found.p for value, found in law.items()}
    shares = Counter[str]()
    for text, weight in zip(texts, weights, strict=True):
        shares[text] += weight
    far = {text: abs(texts.count(text) / len(texts) - p) for text, p in exact.items()}
    near = {text: abs(shares[text] / shares.total() - p) for text, p in exact.items()}
    assert max(near.values()) < 0.05 < 0.1 < max(far.values())


def test_models_of_this_package_take_it_in_every_call(model: PhiTransformers) -> None:
    register_backend("short", banned_phrases=["not on"], max_new_tokens=16)
    generator = outlines.Generator(model, WORDS, backend="short")
    many = {"phi": "exact", "seed": 1, "num_return_sequences": 30}
    texts = model(PROMPT, WORDS, backend="short", **many)
    assert texts == generator(PROMPT, **many) and set(texts) == {"yes", "no"}
    assert seeded(model, PROMPT, WORDS, backend="short", **SAMPLED) == seeded(generator, PROMPT, **SAMPLED)
    assert model.batch([PROMPT], WORDS, backend="short", **many) == [texts]
    with pytest.raises(UnsupportedError, match="expected one of outlines_core, llguidance, xgrammar, short, or None"):
        model(PROMPT, WORDS, backend="shorter")


def test_a_schema_that_is_not_honoured_is_warned_of(stock: Transformers) -> None:
    register_backend()
    with pytest.warns(SchemaWarning, match="format"):
        outlines.Generator(stock, outlines.types.json_schema({"type": "string", "format": "x"}), "outlines_phi")


def test_names_are_replaced_and_taken_back(stock: Transformers) -> None:
    install()
    register_backend("b", banned_phrases=["yes"])
    register_backend("b", banned_phrases=["no"])
    assert outlines.Generator(stock, WORDS, backend="b").logits_processor.ban == BannedPhrases(["no"])
    assert outlines.Generator(stock, WORDS, backend="outlines_core").logits_processor.index
    uninstall()
    with pytest.raises(ValueError, match="Backend b not supported"):
        outlines.Generator(stock, WORDS, backend="b")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({"name": name}, "name of its own") for name in ("outlines_core", "", 3)),
        ({"temperature": 0.5}, "temperature cannot be used here.*give phi='local' beside it"),
        ({"phi": "local", "max_new_tokens": 9, "top_p": 0.5}, "top_p=0.5"),
        ({"phi": "local"}, "max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"phi": "exact", "max_new_tokens": 9}, "Draw with a sampler"),
        ({"banned_phrases": BannedPhrases(["a"], level="exact")}, "level='exact' was given to register_backend"),
        (
            {"banned_phrases": BannedPhrases(["a"], whole_word=True)},
            r"Give register_backend\(\.\.\., max_new_tokens=N\)",
        ),
    ],
    ids=named,
)
def test_refused(given: dict[str, Any], words: str, stock: Transformers) -> None:
    with pytest.raises(UnsupportedError, match=words):
        register_backend(**given)
        outlines.Generator(stock, WORDS, backend="outlines_phi")


def test_loops_that_go_on_without_a_mask_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"Give outlines_phi\.wrap\(model\) in its place. .* stock SimpleModel"):
        PhiBackend(type("SimpleModel", (), {})())


def test_another_version_and_another_patch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines.backends, "_get_backend", len)
    with pytest.raises(UnsupportedError, match=r"Undo what put outlines\._get_backend there, which register_backend"):
        register_backend()
    monkeypatch.undo()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "2.0")
    with pytest.raises(UnsupportedError, match=r"register_backend\(\) knows outlines 1\.3.*whose _get_backend takes"):
        register_backend()


class TestTheProposal:
    """``docs/proposals/outlines-backends.patch``: an entry-point group for backends, in Outlines itself."""

    @pytest.fixture
    def patched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        """The module of Outlines, patched in a copy of the folder of backends."""
        patch = ROOT / "docs/proposals/outlines-backends.patch"
        assert len(patch.read_text().splitlines()) <= 100
        shutil.copytree(Path(outlines.backends.__file__).parent, tmp_path / "outlines/backends")
        subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
        path = tmp_path / "outlines/backends/__init__.py"
        spec = importlib.util.spec_from_file_location("outlines.backends", path, submodule_search_locations=[])
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "outlines.backends", module)
        spec.loader.exec_module(module)
        return module

    def test_its_own_test_passes(self, patched: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(tmp_path / "tests/backends"))
        module = importlib.import_module("test_entry_points")
        (tmp_path / "metadata").mkdir()
        module.other_package.__wrapped__(tmp_path / "metadata", monkeypatch)
        module.test_backend_of_another_package(None)
        module.test_unknown_backend(None)
        with pytest.raises(ValueError, match="not supported"):  # the control: Outlines as it is
            STOCK("other", None)

    def test_it_finds_the_backend_of_this_package(
        self, patched: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stock: Transformers
    ) -> None:
        group = f'[project.entry-points."{patched.ENTRY_POINT_GROUP}"]'
        declared = (ROOT / "pyproject.toml").read_text().split(group)[1].split("[")[0].replace('"', "")
        metadata = tmp_path / "declared-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Name: declared\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{patched.ENTRY_POINT_GROUP}]{declared}")
        monkeypatch.syspath_prepend(str(tmp_path))
        processor = patched.get_regex_logits_processor("outlines_phi", stock, "[0-9]{2}")
        assert re.fullmatch("[0-9]{2}", seeded(outlines.Generator(stock, processor=processor), PROMPT, **SAMPLED))
