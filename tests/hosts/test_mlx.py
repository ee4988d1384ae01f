"""MLX: what is its own beside what every host promises. Run by `make test-mlx`."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Literal
from unittest.mock import Mock

import numpy as np
import outlines
import pytest
from outlines.types import regex

from outlines_phi import wrap
from outlines_phi.errors import ModelError
from outlines_phi.lm import bundled
from outlines_phi.plugin.processor import MaskLogitsProcessor
from outlines_phi.testing import check_language_model
from tests.hosts.test_hosts import QUESTION, Hours

mlx_lm = pytest.importorskip("mlx_lm")

import mlx.core as mx  # noqa: E402
from mlx_lm.sample_utils import make_sampler  # noqa: E402

from outlines_phi.lm import mlx_model as models  # noqa: E402
from outlines_phi.lm.mlx_model import MLXModel  # noqa: E402
from outlines_phi.plugin.hosts.mlx import PhiMLXLM  # noqa: E402
from tests.refusals import refused  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning", "ignore::DeprecationWarning")


def load(dtype: Any = mx.float32) -> Any:
    model, tokenizer = mlx_lm.load(str(Path(bundled.__file__).parent))
    model.set_dtype(dtype)
    return model, tokenizer


def lm_of(model: Any, tokenizer: Any) -> MLXModel:
    """Return the language model over the two that mlx-lm loads, whose tokenizer wraps that of Transformers."""
    return MLXModel(model, tokenizer._tokenizer)


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load()


@pytest.fixture(scope="module")
def model(loaded: Any) -> PhiMLXLM:
    return wrap(outlines.from_mlxlm(*loaded))


def tiny(kind: str, **options: Any) -> Any:
    """Return a random model of mlx-lm with the vocabulary of the bundled one."""
    module = importlib.import_module(f"mlx_lm.models.{kind}")
    usual = {
        "model_type": kind,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "vocab_size": 1280,
        "head_dim": 8,
        "rope_theta": 1e4,
        "max_position_embeddings": 64,
    }
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict(usual | options))
    model.set_dtype(mx.float32)
    return model


class TestLanguageModel:
    @pytest.mark.parametrize("sequences", [2, 3])
    def test_few_rows_are_enough(self, sequences: int, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(models, "SEQUENCES", sequences)
        assert check_language_model(lm_of(*loaded)).error < 1e-3

    @pytest.mark.parametrize("size", [1, 5])
    def test_small_batches(self, size: int, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """In some of which no logits are wanted."""
        monkeypatch.setattr(models.RowContext, "batch_size", size)
        assert check_language_model(lm_of(*loaded)).error < 1e-3

    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            ("llama", {"tie_word_embeddings": True}),
            ("gemma3_text", {"sliding_window": 4, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8}),
        ],
    )
    def test_other_architectures(self, kind: str, options: dict[str, Any], loaded: Any) -> None:
        """Windows, too: an answer about a sequence is that of a plain call."""
        other = tiny(kind, **options)
        plain = lambda sequence: np.array(other(mx.array([list(sequence)]))[0, -1])  # noqa: E731
        assert check_language_model(lm_of(other, loaded[1]), reference=plain).error < 1e-3

    def test_half_precision_is_within_its_rounding(self, loaded: Any) -> None:
        half, tokenizer = load(mx.float16)
        single = lm_of(loaded[0], tokenizer)
        found = check_language_model(
            lm_of(half, tokenizer),
            reference=lambda sequence: single.trees([sequence]).roots().logits[0],
            tolerance=models.FAR,
        )
        assert found.error > 1e-4

    def test_a_recurrent_model_is_refused(self, loaded: Any) -> None:
        recurrent = tiny(
            "mamba",
            state_size=8,
            conv_kernel=4,
            use_bias=False,
            use_conv_bias=True,
            time_step_rank=4,
            intermediate_size=64,
        )
        refused("It keeps a ArraysCache", lm_of, recurrent, loaded[1])

    def test_a_model_that_does_not_take_rows_is_refused(self, loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Control of the trial: a wrong position is found."""
        right = models.RowContext.decode

        def shifted(self: Any, entries: Any) -> Any:
            self._lengths = [length + 1 for length in self._lengths]
            answer = right(self, entries)
            self._lengths = [length - 1 for length in self._lengths]
            return answer

        monkeypatch.setattr(models.RowContext, "decode", shifted)
        refused("rows have lengths of their own", lm_of, *loaded)

    def test_its_version_changes_with_its_weights(self) -> None:
        changed, tokenizer = load()
        lm = lm_of(changed, tokenizer)
        before, named = lm.version(), lm.fingerprint()
        assert lm.version() == before and lm.fingerprint() == named
        changed.model.norm.weight = changed.model.norm.weight * 2
        assert lm.version() != before and lm.fingerprint() != named

    def test_nan_is_an_error(self) -> None:
        spoiled, tokenizer = load()
        lm = lm_of(spoiled, tokenizer)
        spoiled.model.norm.weight = spoiled.model.norm.weight * float("nan")
        refused("NaN", lambda: lm.trees([[5, 6]]).roots(), error=ModelError)


class TestTheLoopOfTheHost:
    def test_free_text_is_that_of_outlines(self, loaded: Any, model: PhiMLXLM) -> None:
        stock = outlines.from_mlxlm(*loaded)
        assert model(QUESTION, max_tokens=6) == stock(QUESTION, max_tokens=6)
        assert "".join(model.stream(QUESTION, max_tokens=6)) == stock(QUESTION, max_tokens=6)
        assert model.batch([QUESTION], max_tokens=6) == stock.batch([QUESTION], max_tokens=6)

    def test_types_are_masked(self, model: PhiMLXLM) -> None:
        for output_type, pattern in ((Literal["yes", "no"], "yes|no"), (regex("[a-z]{2,6}"), "[a-z]{2,6}")):
            options = {"max_tokens": 12, "sampler": make_sampler(temp=1.0)}
            assert all(re.fullmatch(pattern, model(QUESTION, output_type, **options)) for _ in range(3))
            assert re.fullmatch(pattern, "".join(model.stream(QUESTION, output_type, **options)))
        assert Hours.model_validate_json(model(QUESTION, Hours, max_tokens=60))

    def test_an_error_under_the_mask_is_raised(self, model: PhiMLXLM, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(MaskLogitsProcessor, "process_logits", Mock(side_effect=ModelError("spoiled")))
        refused("spoiled", model, QUESTION, Literal["yes", "no"], max_tokens=4, error=ModelError)

    def test_what_it_cannot_do_is_said(self, model: PhiMLXLM) -> None:
        refused("batch", model.batch, [QUESTION], Literal["yes", "no"], error=NotImplementedError)
        for words, options in (
            ("Give phi='local' with banned phrases", {"banned_phrases": ["no"], "phi": None}),
            ("mlx-lm's own loop has no use", {"draft": "forced"}),
            (
                r"^sampler=make_sampler\(\.\.\.\) of mlx-lm cannot be used here",
                {"sampler": make_sampler(temp=1.0), "phi": "exact"},
            ),
            (r"mlx\.core\.random\.seed", {"seed": 3}),
        ):
            refused(words, model, QUESTION, Literal["yes", "no"], **options)


@pytest.mark.parametrize("prompt", ["hi", " two words\n", "ünïcode €"])
def test_prompts_are_what_mlx_lm_completes(prompt: str, loaded: Any, model: PhiMLXLM, monkeypatch: Any) -> None:
    seen, steps = [], sys.modules["mlx_lm.generate"]
    step = steps.generate_step
    monkeypatch.setattr(
        steps,
        "generate_step",
        lambda ids, *given, **named: seen.append(tuple(ids.tolist())) or step(ids, *given, **named),
    )
    outlines.from_mlxlm(*loaded)(prompt, max_tokens=1)
    assert model._prompt_ids(prompt) == seen[0]
