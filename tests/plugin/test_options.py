"""Options of a call: each keyword and each field of GenerationConfig is a part of the law, refused or known not to apply."""

import json
from dataclasses import fields
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from transformers import GenerationConfig

from outlines_phi import (
    SMC,
    AutoPhi,
    BannedPhrases,
    ExactPhi,
    Generator,
    LocalPhi,
    LookaheadPhi,
    OneStepPhi,
    PhiTransformers,
    SamplingSettings,
    custom_generate,
    wrap,
)
from outlines_phi.cli.app import command
from outlines_phi.plugin.hosts.vllm_server.served_call import ServedCall
from tests.inner import (
    DEFAULTS,
    FIELDS,
    INSTALLED,
    KEYWORDS,
    MISFITS,
    OPTIONS,
    USED,
    BanningGuide,
    Call,
    CallOptions,
    Correction,
    MaskLogitsProcessor,
    Role,
    bundled,
    refuse_misfits,
    resolve_phi,
    rows,
)
from tests.plugin.instruments import custom
from tests.refusals import refused

SETTINGS = {field.name for field in fields(SamplingSettings)}


@pytest.mark.parametrize(
    ("keywords", "configured", "settings", "n"),
    [
        # keywords, generation_config, settings, n
        ({}, {}, SamplingSettings(), 1),
        ({}, None, SamplingSettings(), 1),
        ({"temperature": 0.5}, {"temperature": 0.7}, SamplingSettings(temperature=0.5), 1),
        ({}, {"temperature": 0.7}, SamplingSettings(temperature=0.7), 1),
        ({"temperature": None}, {"temperature": 0.7}, SamplingSettings(temperature=0.7), 1),
        ({"top_k": 5, "top_p": 0.9, "min_p": 0.1}, {}, SamplingSettings(top_k=5, top_p=0.9, min_p=0.1), 1),
        ({"top_k": 0}, {}, SamplingSettings(), 1),
        ({}, {"top_k": 50, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9}, SamplingSettings(), 1),
        ({"max_new_tokens": 7, "seed": 3}, {"max_new_tokens": 9}, SamplingSettings(max_new_tokens=7, seed=3), 1),
        ({"temperature": np.float32(0.5), "top_k": np.int64(5)}, {}, SamplingSettings(temperature=0.5, top_k=5), 1),
        ({"num_return_sequences": 4}, {}, SamplingSettings(), 4),
        ({"num_return_sequences": None, "num_beams": None, "do_sample": None}, {}, SamplingSettings(), 1),
        ({"do_sample": True, "num_beams": 1}, {"do_sample": False, "num_beams": 4}, SamplingSettings(), 1),
        ({"repetition_penalty": 1.0}, {"repetition_penalty": 1.2}, SamplingSettings(), 1),
        ({}, {"repetition_penalty": 1.2}, SamplingSettings(repetition_penalty=1.2), 1),
        ({"bad_words_ids": None}, {"bad_words_ids": [[5]]}, SamplingSettings(), 1),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_used(keywords: dict[str, Any], configured: Any, settings: SamplingSettings, n: int) -> None:
    config = None if configured is None else GenerationConfig(**configured)
    assert CallOptions.read(keywords, config) == CallOptions(settings, n)


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"max_length": 20},
        r"max_length cannot be used here \(give max_new_tokens=, which [^.]*\)\. With phi=None every keyword of [^.]*\.$",
    ),
    ({"max_tokens": 20}, r"max_tokens cannot be used here \(give max_new_tokens=\)\. With phi=None every keyword"),
    ({"min_length": 3, "foo": 1}, r"foo, min_length cannot be used here \(min_length: write the least .*expected any"),
    ({"stop_at": "a"}, r"stop_at cannot be used here \(give stop=\['\.\.\.'\], or stop_strings="),
    ({"stop_token_ids": [5]}, r"give stop=\[outlines_phi\.Special\('<\[5\]>'\)\]"),
    ({"stop": ""}, "stop='' was given; expected a string of at least one character, outlines_phi.Special"),
    ({"stop_strings": ["a", 3]}, r"stop_strings=\['a', 3\] was given; expected a string"),
    ({"stop": "a", "stop_strings": ["b"]}, "Give stop= for strings that are not in the text, or stop_strings="),
    ({"stop": "a", "ends": "open"}, "ends='open' was given beside stop strings"),
    ({"stop": "a", "tokenization": "canonical"}, "tokenization='canonical' was given beside stop strings"),
    ({"stop": "a", "constraint": str.islower}, "constraint=.* was given beside stop strings"),
    ({"n": 3}, r"n cannot be used here \(give num_return_sequences= in a call, or the argument n of sample\(\)\)"),
    ({"temprature": 3}, r"temprature cannot be used here \(did you mean temperature=\?\); expected"),
    ({"phy": "exact"}, r"did you mean phi=\?"),
    ({"foo": 3}, "foo cannot be used here; expected any of temperature, top_k"),
    ({"do_sample": False}, r"phi=None for Hugging Face's step-by-step argmax.* do_sample=False was given"),
    ({"num_beams": 3}, "num_beams cannot be used here .beam search has no sampling distribution"),
    ({"temperature": 0}, "temperature=0 was given; expected a number of at least .*do_sample=False gives"),
    (
        {"logits_processor": []},
        r"^logits_processor cannot be used here \(give banned_phrases= or constraint= [^,]*, or keep",
    ),
    (
        {"tools": []},
        r"^tools cannot be used here \(give outlines_phi\.Tools\(tools, choice=\.\.\.\) as output type, .* tokenizer\.apply_",
    ),
    ({"typical_p": 0.9}, r"^typical_p cannot be used here \(give top_p= or min_p= to truncate\)\. With phi=None"),
    ({"generation_config": GenerationConfig()}, r"\(give its fields as keywords, such as temperature=\)\. With"),
    ({"temperature": "warm"}, "temperature='warm' was given"),
    ({"temperature": float("nan")}, "temperature=nan was given"),
    ({"top_p": 2}, r"top_p=2 was given; expected a number in \(0, 1\]"),
    ({"top_p": 0}, "top_p=0 was given"),
    ({"top_k": -1}, "top_k=-1 was given; expected a whole number of at least 1"),
    ({"top_k": 1.5}, "top_k=1.5 was given"),
    ({"min_p": -0.1}, "min_p=-0.1 was given"),
    ({"seed": -1}, "seed=-1 was given; expected a whole number of at least 0"),
    ({"seed": 1.5}, "seed=1.5 was given"),
    ({"seed": True}, "seed=True was given"),
    ({"max_new_tokens": 0}, "max_new_tokens=0 was given; expected a whole number of at least 1"),
    ({"num_return_sequences": 0}, "num_return_sequences=0 was given; expected a whole number of at least 1"),
    ({"num_return_sequences": "3"}, "num_return_sequences='3' was given"),
    ({"repetition_penalty": -1}, "repetition_penalty=-1 was given; expected a positive number"),
    (
        {"no_repeat_ngram_size": 2},
        r"^no_repeat_ngram_size cannot be used here \(it changes the distribution .* so leave it out\)",
    ),
]


@pytest.mark.parametrize(("keywords", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_refused(keywords: dict[str, Any], message: str) -> None:
    refused(message, CallOptions.read, keywords, GenerationConfig())


class TestTheOneTable:
    """The options of every door come from ``OPTIONS``, or is written here with what stands for it."""

    def test_generators(self) -> None:
        assert set(KEYWORDS) - {"phi", "backend"} <= set(USED)
        per_call = {*SETTINGS, "num_return_sequences", "do_sample", "progress", "tokens", "top"}
        assert set(USED) - set(KEYWORDS) == per_call

    def test_custom_generate(self) -> None:
        keywords = signature(custom_generate).parameters
        assert set(USED) - keywords.keys() == {
            "max_new_tokens",
            "ends",
            "open_at",
        }  # the first is in its generation_config
        own = {"output_type", "vocabulary", "phi", "num_beams", "max_length"}
        of_transformers = {
            "model",
            "input_ids",
            "logits_processor",
            "stopping_criteria",
            "generation_config",
            "prepared",
        }
        assert keywords.keys() - set(USED) == own | of_transformers

    def test_the_command_line(self) -> None:
        named = {parameter.name for parameter in command("generate").params}
        spelled = {"num_return_sequences": "n", "sampler": "particles", "banned_phrases": "ban"}
        missing = {name for name in OPTIONS if spelled.get(name, name) not in named}
        assert missing == {"do_sample", "constraint", "progress", "effort"}  # of applications alone

    def test_a_vllm_server(self) -> None:
        assert json.loads(ServedCall(road="local", settings=SamplingSettings()).text())["settings"].keys() == SETTINGS
        (misfit,) = MISFITS["a vLLM server"]
        carried = {*SETTINGS, "num_return_sequences", "banned_phrases", "do_sample", "stop", "stop_strings"}
        assert set(USED) - set(misfit.names) - carried == {"draft_length", "open_at"}  # which go with draft and ends


@pytest.mark.parametrize(
    "phi", ["banana", "", 5, True, ["exact"], {"exact"}, ExactPhi, object()], ids=lambda phi: type(phi).__name__
)
def test_what_phi_may_not_be(phi: object) -> None:
    refused("expected 'auto', 'exact', .*, an estimator such as ExactPhi", resolve_phi, phi)


def test_what_phi_may_be_and_every_field_of_the_installed_transformers_is_known() -> None:
    names = {None: None, "exact": ExactPhi(), "local": LocalPhi(), "onestep": OneStepPhi()}
    assert {name: resolve_phi(name) for name in names} == names
    assert resolve_phi(ExactPhi(tolerance=0.1)) == ExactPhi(tolerance=0.1)
    assert set(INSTALLED) - set(FIELDS) == set(), "say in FIELDS what a correction makes of these"


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


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_field_of_the_configuration_does(name: str) -> None:
    """It is a part of the law, refused, or left out; and what transformers fills in is neutral."""
    config = configured(name, saying(name))
    if FIELDS[name].role is Role.REFUSED:
        refused(rf"^Give {name}=\S+ to the call .* {name}=.* generation_config changes", CallOptions.read, {}, config)
    else:
        law = {name: saying(name)} if name in ("temperature", "repetition_penalty") else {}
        assert CallOptions.read({}, config).settings == SamplingSettings(**law)
    CallOptions.read({}, configured(name, DEFAULTS.get(name)))


@pytest.mark.parametrize("name", FIELDS)
def test_what_a_keyword_of_a_call_does(name: str) -> None:
    """It is used, or refused with what to do instead; the neutral ones do nothing, and undo the configuration's."""
    config = configured(name, saying(name))
    if name not in USED:
        refused(
            rf"^{name} cannot be used here \(\w[^;]+\)\. With phi=None", CallOptions.read, {name: saying(name)}, config
        )
        for value in FIELDS[name].neutral:
            assert CallOptions.read({name: value}, config) == CallOptions(SamplingSettings(), 1)
    elif name != "do_sample":
        read = CallOptions.read({name: saying(name)}, config)
        law = {} if name in ("num_return_sequences", "stop_strings") else {name: saying(name)}
        assert read == CallOptions(SamplingSettings(**law), 2 if name == "num_return_sequences" else 1)


def test_a_field_of_a_newer_transformers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_phi.plugin.choices.ROWS", rows([*INSTALLED, "novel_penalty"]))
    refused(
        "novel_penalty=2 in the model's generation_config changes the model's distribution",
        CallOptions.read,
        {},
        configured("novel_penalty", 2),
    )
    CallOptions.read({}, configured("novel_penalty", None))
    CallOptions.read({"novel_penalty": None}, configured("novel_penalty", 2))
    CallOptions.read({}, configured("chat_format", "chatml"))  # a model's own note, no field


@pytest.mark.parametrize("name", ["temperature", "repetition_penalty"])
@pytest.mark.parametrize("value", [0.0, -1.0, "warm"])
def test_what_defines_no_law_is_no_default(name: str, value: Any) -> None:
    refused(
        rf"^Give {name}=1\.0 to the call .* {name}={value!r} in the model's",
        CallOptions.read,
        {},
        configured(name, value),
    )
    assert CallOptions.read({name: 1.0}, configured(name, value)).settings == SamplingSettings()


@pytest.mark.parametrize(
    ("name", "value"), [("top_h", 0.5), ("renormalize_logits", True), ("remove_invalid_values", True)]
)
def test_a_configuration_that_does_not_apply_lets_custom_generate_draw(name: str, value: Any) -> None:
    hf = bundled.load()
    draw = partial(custom, hf, "red", output_type=Literal["a", "b"], do_sample=True, seed=3, max_new_tokens=5)
    plain = draw()
    setattr(hf[0].generation_config, name, value)
    assert draw().equal(plain)


def test_the_page_names_every_field() -> None:
    assert [name for name in FIELDS if f"`{name}`" not in PAGE] == []


EXACT, LEVELLESS = BannedPhrases(["now"], level="exact"), BannedPhrases(["now"])
WORDS = Literal["open now", "closed", "open"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([], AutoPhi()),
        ([{"phi": None}], None),
        ([{"phi": "local"}], LocalPhi()),
        ([{"banned_phrases": EXACT}], ExactPhi()),
        ([{"phi": ExactPhi(width=7), "banned_phrases": EXACT}], ExactPhi(width=7)),
        ([{"phi": "local"}, {"banned_phrases": EXACT}], ExactPhi()),
        ([{"banned_phrases": EXACT}, {"phi": "local"}], LocalPhi()),
        ([{"phi": "local"}, {"banned_phrases": LEVELLESS}], LocalPhi()),
        ([{"phi": "local"}, {"banned_phrases": EXACT}, {"banned_phrases": None}], LocalPhi()),
    ],
)
def test_of_corrections_the_nearer_counts(said: list[dict[str, Any]], expected: Any) -> None:
    correction = Correction()
    for each in said:
        correction = correction.replaced_by(**each)
    assert correction.estimator() == expected


def test_nothing_said_is_one_correction_which_depends_on_what_is_drawn() -> None:
    correction = Correction().replaced_by("exact", ["now"])
    assert correction.replaced_by() is correction
    unsaid = Correction()
    assert (unsaid.estimator(), unsaid.estimator(free=True)) == (AutoPhi(), LookaheadPhi())
    assert unsaid.estimator(SMC(particles=5), free=True) == LocalPhi() and unsaid.estimator(usual=None) is None
    assert unsaid.replaced_by("exact").estimator(SMC(particles=5), free=True) == ExactPhi()


def test_free_text_has_nothing_to_correct() -> None:
    assert Call.of(Correction(), None, {}).phi is None
    assert Call.of(Correction(ExactPhi(), inherited=True), None, {}).phi is None
    assert Call.of(Correction(ExactPhi()), None, {}).phi == ExactPhi(), "a wish that is refused later"
    assert Call.of(Correction(ban=LEVELLESS), None, {}).phi == LookaheadPhi()


def test_a_look_ahead_is_told_what_is_pending(model: PhiTransformers) -> None:
    masking = MaskLogitsProcessor(model.table(WORDS, LEVELLESS), ban=LEVELLESS)
    assert not isinstance(masking.table.guide, BanningGuide)
    call = Call.of(Correction(LookaheadPhi()), masking, {})
    assert isinstance(call.table(model.compiled).guide, BanningGuide) and call.banned == LEVELLESS
    assert Call.of(Correction(LocalPhi()), masking, {}).table(model.compiled) is masking.table


def test_a_generator_keeps_the_options_of_the_model_beside_a_level(model: PhiTransformers) -> None:
    chosen = ExactPhi(width=7)
    assert Generator(wrap(model, phi=chosen, banned_phrases=EXACT), WORDS).phi == chosen


@pytest.mark.parametrize("door", MISFITS)
def test_what_asks_for_nothing_fits_everywhere(door: str) -> None:
    said = {"n": 2, "roads": "or another way"}
    for misfit in MISFITS[door]:
        for name in misfit.names:
            idle = OPTIONS[name].idle if name in OPTIONS else (None,)
            if not misfit.strict:
                for value in idle:
                    refuse_misfits(door, {name: value}, **said)
            caught = refused(r"^[^{]*\.$", refuse_misfits, door, {name: "something"}, **said)
            assert name in str(caught.value) or door in str(caught.value)
