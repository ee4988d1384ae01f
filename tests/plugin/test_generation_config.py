"""Every field of transformers' GenerationConfig: a part of the law, refused, or known not to apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from transformers import GenerationConfig

import outlines_phi
from outlines_phi import SamplingSettings
from outlines_phi.errors import UnsupportedError
from outlines_phi.lm import bundled
from outlines_phi.plugin.call import CallOptions
from outlines_phi.plugin.choices import DEFAULTS, FIELDS, INSTALLED, USED, Role, rows

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")

SAYING: dict[str, Any] = {
    "temperature": 0.7,
    "repetition_penalty": 1.3,
    "eos_token_id": 5,
    "bad_words_ids": [[5]],
    "force_words_ids": [[5]],
    "constraints": ["a"],
    "sequence_bias": [[[5], -1.0]],
    "suppress_tokens": [5],
    "begin_suppress_tokens": [5],
    "exponential_decay_length_penalty": (5, 1.1),
    "stop_strings": ["a"],
    "use_cache": False,
    **dict.fromkeys(("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "top_p", "min_p"), 0.5),
}
"""Values that are not neutral; True or 2 for the others."""


def saying(name: str) -> Any:
    return SAYING.get(name, True if any(value is False for value in FIELDS[name].neutral) else 2)


def configured(name: str, value: Any) -> GenerationConfig:
    config = GenerationConfig()
    setattr(config, name, value)
    return config


def test_the_table_knows_every_field_of_the_installed_transformers() -> None:
    assert set(INSTALLED) - set(FIELDS) == set(), "say in FIELDS what a correction makes of these"


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_field_of_the_configuration_does(name: str) -> None:
    config = configured(name, saying(name))
    if FIELDS[name].role is Role.REFUSED:
        with pytest.raises(
            UnsupportedError, match=rf"^Give {name}=\S+ to the call .* {name}=.* generation_config changes"
        ):
            CallOptions.read({}, config)
    else:
        law = {name: saying(name)} if name in ("temperature", "repetition_penalty") else {}
        assert CallOptions.read({}, config).settings == SamplingSettings(**law)


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_keyword_of_a_call_does(name: str) -> None:
    """It is used, or refused with what to do instead; the neutral ones do nothing, and undo the configuration's."""
    config = configured(name, saying(name))
    if name not in USED:
        with pytest.raises(UnsupportedError, match=rf"^{name} cannot be used here \(\w[^;]+\)\. With phi=None"):
            CallOptions.read({name: saying(name)}, config)
        for value in FIELDS[name].neutral:
            assert CallOptions.read({name: value}, config) == CallOptions(SamplingSettings(), 1)
    elif name != "do_sample":
        read = CallOptions.read({name: saying(name)}, config)
        assert read.n == 2 if name == "num_return_sequences" else getattr(read.settings, name) == saying(name)


@pytest.mark.parametrize("name", FIELDS)
def test_a_value_that_transformers_fills_in_is_neutral(name: str) -> None:
    CallOptions.read({}, configured(name, DEFAULTS.get(name)))


def test_a_field_of_a_newer_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_phi.plugin.choices.ROWS", rows([*INSTALLED, "novel_penalty"]))
    with pytest.raises(
        UnsupportedError, match="novel_penalty=2 in the model's generation_config changes the model's distribution"
    ):
        CallOptions.read({}, configured("novel_penalty", 2))
    CallOptions.read({}, configured("novel_penalty", None))
    CallOptions.read({"novel_penalty": None}, configured("novel_penalty", 2))
    CallOptions.read({}, configured("chat_format", "chatml"))  # a model's own note, no field


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty"])
@pytest.mark.parametrize("value", [0.0, -1.0, "warm"])
def test_what_defines_no_law_is_no_default(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError, match=rf"^Give {name}=1\.0 to the call .* {name}={value!r} in the model's"):
        CallOptions.read({}, configured(name, value))
    assert CallOptions.read({name: 1.0}, configured(name, value)).settings == SamplingSettings()


def test_a_call_of_a_model_and_a_processor_say_the_same() -> None:
    hf_model, tokenizer = bundled.load()
    hf_model.generation_config.temperature = 0.0
    model = outlines_phi.from_transformers(hf_model, tokenizer)
    with pytest.raises(UnsupportedError, match=r"temperature=0\.0 in the model's generation_config"):
        model("red", Literal["a", "b"], phi="exact")
    with pytest.raises(UnsupportedError, match=r"temperature=0\.0 in the model's generation_config"):
        outlines_phi.PhiLogitsProcessor(model, Literal["a", "b"], phi="onestep", top_k=0, max_new_tokens=5)
    assert model("red", Literal["a", "b"], phi="exact", do_sample=False, temperature=1.0) in ("a", "b")


@pytest.mark.parametrize(
    ("name", "value"), [("top_h", 0.5), ("renormalize_logits", True), ("remove_invalid_values", True)]
)
def test_a_configuration_that_does_not_apply_lets_custom_generate_draw(name: str, value: Any) -> None:
    hf_model, tokenizer = bundled.load()
    ids = tokenizer("red", return_tensors="pt")
    call = {"custom_generate": outlines_phi.custom_generate, "vocabulary": tokenizer, "output_type": Literal["a", "b"]}
    plain = hf_model.generate(**ids, **call, do_sample=True, seed=3, max_new_tokens=5)
    setattr(hf_model.generation_config, name, value)
    assert hf_model.generate(**ids, **call, do_sample=True, seed=3, max_new_tokens=5).equal(plain)


def test_the_page_names_every_field() -> None:
    assert [name for name in FIELDS if f"`{name}`" not in PAGE] == []
