"""Keywords of a call under a correction: each is used, and the law follows it, or it is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np
import pytest
from transformers import GenerationConfig

import outlines_phi
from outlines_phi import ExactPhi, LocalPhi, OneStepPhi, SamplingSettings
from outlines_phi.cli.app import command
from outlines_phi.errors import UnsupportedError
from outlines_phi.plugin.call import CallOptions, resolve_phi
from outlines_phi.plugin.choices import MISFITS, OPTIONS, USED
from outlines_phi.plugin.generator import KEYWORDS
from outlines_phi.plugin.hosts.vllm_server.served_call import ServedCall

SETTINGS = {field.name for field in fields(SamplingSettings)}

READ: list[tuple[dict[str, Any], dict[str, Any], SamplingSettings, int]] = [
    # keywords, generation_config, settings, n
    ({}, {}, SamplingSettings(), 1),
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
]


@pytest.mark.parametrize(("keywords", "configured", "settings", "n"), READ, ids=lambda value: str(value)[:50])
def test_what_is_used(keywords: dict[str, Any], configured: dict[str, Any], settings: SamplingSettings, n: int) -> None:
    assert CallOptions.read(keywords, GenerationConfig(**configured)) == CallOptions(settings, n)


def test_a_model_without_a_generation_config_has_no_defaults() -> None:
    assert CallOptions.read({}, None) == CallOptions(SamplingSettings(), 1)


REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"max_length": 20},
        r"max_length cannot be used here \(give max_new_tokens=, which [^.]*\)\. With phi=None every keyword of [^.]*\.$",
    ),
    ({"max_tokens": 20}, r"max_tokens cannot be used here \(give max_new_tokens=\)\. With phi=None every keyword"),
    (
        {"stop_strings": ["a"], "foo": 1},
        r"foo, stop_strings cannot be used here \(stop_strings: write the end into.*expected any",
    ),
    ({"stop": "a"}, r"write the end into the format, such as outlines\.types\.regex\("),
    ({"n": 3}, r"n cannot be used here \(give num_return_sequences= in a call, or the argument n of sample\(\)\)"),
    ({"temprature": 3}, r"temprature cannot be used here \(did you mean temperature=\?\); expected"),
    ({"foo": 3}, "foo cannot be used here; expected any of temperature, top_k"),
    ({"do_sample": False}, r"phi=None for Hugging Face's step-by-step argmax.* do_sample=False was given"),
    ({"num_beams": 3}, "num_beams cannot be used here .beam search has no sampling distribution"),
    ({"temperature": 0}, "temperature=0 was given; expected a number of at least .*do_sample=False gives"),
    (
        {"stop_strings": ["a"]},
        r"^stop_strings cannot be used here \(write the end into the format[^,]*, [^,]*\)\. With phi=None",
    ),
    (
        {"logits_processor": []},
        r"^logits_processor cannot be used here \(give banned_phrases= or constraint= [^,]*, or keep",
    ),
    ({"tools": []}, r"^tools cannot be used here \(write them into the prompt, as tokenizer\.apply_chat_template"),
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
    with pytest.raises(UnsupportedError, match=message):
        CallOptions.read(keywords, GenerationConfig())


class TestTheOneTable:
    """The options of every door come from ``OPTIONS``, or is written here with what stands for it."""

    def test_generators(self) -> None:
        assert set(KEYWORDS) - {"phi", "backend"} <= set(USED)
        per_call = {*SETTINGS, "num_return_sequences", "do_sample", "progress"}
        assert set(USED) - set(KEYWORDS) == per_call

    def test_custom_generate(self) -> None:
        keywords = signature(outlines_phi.custom_generate).parameters
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
        said = json.loads(ServedCall(road="local", settings=SamplingSettings()).text())
        assert said["settings"].keys() == SETTINGS
        (misfit,) = MISFITS["a vLLM server"]
        carried = {*SETTINGS, "num_return_sequences", "banned_phrases", "do_sample"}
        assert set(USED) - set(misfit.names) - carried == {"draft_length", "open_at"}  # which go with draft and ends


class TestPhi:
    @pytest.mark.parametrize(
        ("phi", "expected"),
        [
            (None, None),
            ("exact", ExactPhi()),
            ("local", LocalPhi()),
            ("onestep", OneStepPhi()),
            (ExactPhi(tolerance=0.1), ExactPhi(tolerance=0.1)),
        ],
    )
    def test_what_it_may_be(self, phi: object, expected: object) -> None:
        assert resolve_phi(phi) == expected

    @pytest.mark.parametrize(
        "phi", ["banana", "", 5, True, ["exact"], {"exact"}, ExactPhi, object()], ids=lambda phi: type(phi).__name__
    )
    def test_what_it_may_not_be(self, phi: object) -> None:
        with pytest.raises(
            UnsupportedError, match="expected 'auto', 'exact', 'local', 'onestep', .*, an estimator such as ExactPhi"
        ):
            resolve_phi(phi)
