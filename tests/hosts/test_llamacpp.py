"""llama.cpp: what is its own beside what every host promises. Run by `make test-llamacpp`."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, Literal
from unittest.mock import Mock

import numpy as np
import outlines
import pytest
import torch
from outlines.inputs import Chat
from outlines.types import regex

from outlines_phi import Generator, wrap
from outlines_phi.errors import ModelError
from outlines_phi.lm import TransformersModel
from outlines_phi.plugin.processor import MaskLogitsProcessor
from outlines_phi.testing import check_language_model
from tests.hosts.test_hosts import QUESTION, Hours

llama_cpp = pytest.importorskip("llama_cpp")
gguf = pytest.importorskip("gguf")

from outlines_phi.lm import llamacpp_model as models  # noqa: E402
from outlines_phi.lm.llamacpp_model import LlamaCppModel  # noqa: E402
from outlines_phi.plugin.hosts.llamacpp import PhiLlamaCpp  # noqa: E402
from tests.hosts.gguf_model import write, write_adapter  # noqa: E402
from tests.refusals import refused  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning", "ignore::DeprecationWarning")

SINGLE = {"type_k": 0, "type_v": 0}  # keys and values in single precision


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "bundled.gguf"
    write(path)
    return path


def load(path: Path, **options: Any) -> Any:
    return llama_cpp.Llama(str(path), **{"n_ctx": 512, "verbose": False, "n_threads": 1, **SINGLE, **options})


@pytest.fixture(scope="session")
def llama(path: Path) -> Any:
    return load(path)


@pytest.fixture(scope="session")
def model(llama: Any) -> PhiLlamaCpp:
    return wrap(outlines.from_llamacpp(llama, chat_mode=False))


@pytest.fixture(scope="session")
def lm(elsewhere: Any) -> TransformersModel:
    return elsewhere.lm


class TestLanguageModel:
    def test_the_vocabulary_is_that_of_the_tokenizer(self, llama: Any, lm: TransformersModel) -> None:
        found = models.vocabulary_of(llama)
        assert found.tokens == lm.vocabulary.tokens and found.eos_ids == lm.vocabulary.eos_ids
        assert (found.real == lm.vocabulary.real).all()

    @pytest.mark.parametrize(
        ("sequences", "options", "cells"),
        [
            (64, {}, None),
            (3, {}, None),
            (2, {"n_batch": 4, "n_ubatch": 2}, None),
            (64, {"n_batch": 4}, 256),
            (5, {"n_batch": 8}, 96),
        ],
    )
    def test_every_node_is_as_on_transformers(
        self, sequences: int, options: Any, cells: Any, path: Path, lm: TransformersModel, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr(models, "SEQUENCES", sequences)
        found = check_language_model(
            LlamaCppModel(load(path, n_ctx=256, **options), cells=cells),
            reference=lambda sequence: lm.trees([sequence]).roots().logits[0],
        )
        assert found.error < 1e-3

    def test_half_precision_is_within_its_rounding(self, path: Path, lm: TransformersModel) -> None:
        half = LlamaCppModel(load(path, n_ctx=128, type_k=None, type_v=None))
        reference = lambda sequence: lm.trees([sequence]).roots().logits[0]  # noqa: E731
        assert 1e-5 < check_language_model(half, reference=reference, tolerance=half.rounding).error

    def test_an_adapter_counts(self, path: Path, tmp_path: Path, llama: Any) -> None:
        adapter = tmp_path / "adapter.gguf"
        write_adapter(adapter)
        adapted = load(path, lora_path=str(adapter), logits_all=True)
        ids = tuple(adapted.tokenize(QUESTION.encode(), add_bos=False))
        adapted.eval(ids)
        expected = torch.from_numpy(np.array(adapted.scores[len(ids) - 1])).double().log_softmax(-1)
        found, plain = (
            LlamaCppModel(each).trees([ids]).roots().logits[0].double().log_softmax(-1) for each in (adapted, llama)
        )
        likely = expected > -9
        assert float((found - expected)[likely].abs().max()) < 1e-3 < float((plain - expected)[likely].abs().max())
        assert LlamaCppModel(adapted).fingerprint() != LlamaCppModel(llama).fingerprint()

    def test_contexts_are_used_again(self, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        made, make = [], models.SequenceContext
        monkeypatch.setattr(models, "SequenceContext", lambda *given: made.append(given) or make(*given))
        lm = LlamaCppModel(llama)
        for _ in range(20):
            lm.trees([[5, 6, 7]]).roots()
        assert len(made) == 1

    def test_a_model_that_is_closed_is_an_error_and_nothing_crashes(self, path: Path, tmp_path: Path) -> None:
        script = tmp_path / "closing.py"
        script.write_text(
            "import sys, llama_cpp\n"
            "from outlines_phi.errors import ModelError\n"
            "from outlines_phi.lm.llamacpp_model import LlamaCppModel\n"
            f"llama = llama_cpp.Llama({str(path)!r}, n_ctx=64, verbose=False)\n"
            "lm = LlamaCppModel(llama)\n"
            "kept = lm.trees([[5, 6, 7]]); kept.roots()\n"
            "lm.trees([[5, 6, 7]]).roots()\n"
            "llama.close()\n"
            "try:\n    lm.trees([[5, 6, 7]]).roots()\n"
            "except ModelError as error:\n    print(error)\n"
            "try:\n    kept.extend([0], [5])\n"
            "except ModelError as error:\n    print('kept', error)\n"
        )
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-500:]
        assert done.stdout.count("Load the model again") == 2

    def test_nan_is_an_error(self, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        pointer = llama_cpp.llama_get_logits

        def spoiled(context: Any) -> Any:
            found = pointer(context)
            found[3] = float("nan")
            return found

        monkeypatch.setattr(llama_cpp, "llama_get_logits", spoiled)
        refused("NaN", lambda: LlamaCppModel(llama).trees([[5, 6]]).roots(), error=ModelError)

    @pytest.mark.parametrize("kind", ["llama_model_is_recurrent", "llama_model_is_hybrid", "llama_model_has_encoder"])
    def test_models_without_keys_and_values_are_refused(self, kind: str, llama: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(llama_cpp, kind, lambda weights: True)
        model = wrap(outlines.from_llamacpp(llama, chat_mode=False))
        assert isinstance(model(QUESTION, max_tokens=2), str)  # the loop of llama.cpp needs nothing of ours
        refused("Run this model on Transformers", model, QUESTION, Literal["yes", "no"], phi="exact")


class TestTheLoopOfTheHost:
    OPTIONS: ClassVar = {"max_tokens": 6, "seed": 7, "temperature": 1.0}

    def test_free_text_is_that_of_outlines(self, llama: Any, model: PhiLlamaCpp) -> None:
        stock = outlines.from_llamacpp(llama, chat_mode=False)
        assert model(QUESTION, **self.OPTIONS) == stock(QUESTION, **self.OPTIONS)
        assert "".join(model.stream(QUESTION, **self.OPTIONS)) == stock(QUESTION, **self.OPTIONS)

    def test_types_are_masked(self, model: PhiLlamaCpp) -> None:
        """Stock Outlines needs numba here, and without it llama.cpp writes on unmasked."""
        for output_type, pattern in ((Literal["yes", "no"], "yes|no"), (regex("[a-z]{2,6}"), "[a-z]{2,6}")):
            for seed in range(5):
                options = {**self.OPTIONS, "max_tokens": 12, "seed": seed}
                text = model(QUESTION, output_type, **options)
                assert re.fullmatch(pattern, text)
                assert "".join(model.stream(QUESTION, output_type, **options)) == text

    def test_an_error_under_the_mask_is_raised(self, model: PhiLlamaCpp, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(MaskLogitsProcessor, "process_logits", Mock(side_effect=ModelError("spoiled")))
        refused("spoiled", model, QUESTION, Literal["yes", "no"], **self.OPTIONS, error=ModelError)
        refused("spoiled", lambda: list(model.stream(QUESTION, Literal["yes", "no"], **self.OPTIONS)), error=ModelError)

    def test_json_is_masked(self, model: PhiLlamaCpp) -> None:
        assert Hours.model_validate_json(model(QUESTION, Hours, max_tokens=60, temperature=1.0, seed=2))

    def test_what_it_cannot_do_is_said(self, model: PhiLlamaCpp) -> None:
        refused("batch", model.batch, [QUESTION], Literal["yes", "no"], error=NotImplementedError)
        for words, options in (
            ("Give phi='local' with banned phrases", {"banned_phrases": ["no"], "phi": None}),
            ("llama.cpp's own loop has no use", {"draft": "forced"}),
        ):
            refused(words, model, QUESTION, Literal["yes", "no"], **options)


class TestPrompts:
    @pytest.mark.parametrize("prompt", ["hi", " two words\n", "ünïcode €"])
    @pytest.mark.parametrize("chat", [True, False])
    def test_they_are_what_llama_cpp_completes(self, prompt: str, chat: bool, llama: Any, monkeypatch: Any) -> None:
        stock, seen = outlines.from_llamacpp(llama, chat_mode=chat), []
        generate = type(llama).generate
        with monkeypatch.context() as spied:
            spied.setattr(
                type(llama),
                "generate",
                lambda self, ids, *a, **k: seen.append(tuple(ids)) or generate(self, ids, *a, **k),
            )
            stock(prompt, max_tokens=1)
        assert wrap(stock)._prompt_ids(prompt) == seen[0]

    def test_a_chat(self, llama: Any) -> None:
        model = wrap(outlines.from_llamacpp(llama))
        chat = Chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "open?"}])
        assert len(model._prompt_ids(chat)) > len(model._prompt_ids("open?"))
        assert model(chat, Literal["yes", "no"], phi="exact", seed=0) in ("yes", "no")

    def test_a_prompt_beyond_the_context_is_refused(self, path: Path) -> None:
        short = wrap(outlines.from_llamacpp(load(path, n_ctx=32), chat_mode=False))
        words = "larger n_ctx= to Llama.*exceed context window"
        refused(words, short, QUESTION * 30, Literal["yes", "no"], phi="exact", error=ModelError)


def test_a_long_call_in_a_small_cache(path: Path, elsewhere: Any) -> None:
    """Texts are given up and read again, and are the same."""
    small = wrap(outlines.from_llamacpp(load(path, n_ctx=64), chat_mode=False))
    vars(small)["lm"] = LlamaCppModel(small.model, cells=96)
    texts = [
        Generator(each, regex("[a-z ]{8,20}")).sample(QUESTION, n=60, seed=5, phi="local", max_new_tokens=24).texts
        for each in (small, elsewhere)
    ]
    assert texts[0] == texts[1] and len(set(texts[0])) > 20


def test_the_object_of_the_application_is_left_as_it_is(llama: Any, model: PhiLlamaCpp) -> None:
    before = json.dumps({name: repr(value) for name, value in vars(llama).items() if name[0] != "_"}, sort_keys=True)
    text = llama(QUESTION, max_tokens=6, temperature=0.0)["choices"][0]["text"]
    model(QUESTION, Literal["yes", "no"], phi="exact", seed=0)
    assert llama(QUESTION, max_tokens=6, temperature=0.0)["choices"][0]["text"] == text
    kept = json.dumps({name: repr(value) for name, value in vars(llama).items() if name[0] != "_"}, sort_keys=True)
    assert {"n_tokens", "input_ids", "scores"} >= {
        name for name, value in json.loads(kept).items() if value != json.loads(before)[name]
    }
