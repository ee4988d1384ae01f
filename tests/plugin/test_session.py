"""A host of a few lines has every call that needs no loop of its own: generators ask for nothing of Hugging Face."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

import outlines_phi
from outlines_phi import Generator, UnsupportedError, from_language_model, generate
from outlines_phi.fidelity.audit_report import AuditReport
from outlines_phi.lm.table_model import TableModel
from outlines_phi.plugin.classic.generate import ClassicGenerator
from outlines_phi.plugin.wrapping import OwnModel
from tests.languages import ALPHA, VOCABULARY, p_value

Answer = Literal["a", "ab", "ba", "cc"]
PROMPT = "x"


LM = TableModel.random(VOCABULARY, seed=3)


def encode(text: str) -> list[int]:
    """Write a prompt letter by letter."""
    return [VOCABULARY.tokens.index(letter.encode()) for letter in text]


@pytest.fixture(scope="module")
def host() -> OwnModel:
    return from_language_model(LM, encode)


def fit(host: OwnModel, texts: list[str]) -> float:
    """Return the p-value of "the texts have the conditioned distribution", which is enumerated."""
    law = Generator(host, Answer).probabilities(PROMPT, tolerance=0).distribution
    return p_value([tuple(text.encode()) for text in texts], {tuple(text.encode()): p for text, p in law.items()})


def test_exact_draws_have_the_conditioned_distribution_and_masking_has_not(host: OwnModel) -> None:
    generator = Generator(host, Answer)
    assert fit(host, generator.sample(PROMPT, n=2_000, phi="exact", seed=0).texts) > ALPHA
    assert fit(host, generator.sample(PROMPT, n=2_000, phi="local", seed=0).texts) < ALPHA


@pytest.mark.parametrize("phi", ["auto", "exact", "local", "onestep", "learned"])
def test_calls_of_the_model_and_of_its_generators(phi: str, host: OwnModel) -> None:
    texts = [
        host(PROMPT, Answer, phi=phi, seed=1),
        *host.batch([PROMPT], Answer, phi=phi, seed=1),
        "".join(host.stream(PROMPT, Answer, phi=phi, seed=1)),
        asyncio.run(host.agenerate(PROMPT, Answer, phi=phi, seed=1)),
        Generator(host, Answer, phi=phi)(PROMPT, seed=1),
        generate.format(host, Answer, phi=phi)(PROMPT, seed=1),
    ]
    assert texts == texts[:1] * len(texts)


def test_what_else_a_generator_has(host: OwnModel) -> None:
    generator = Generator(host, Answer)
    law = generator.probabilities(PROMPT, tolerance=0).distribution
    assert sum(law.values()) == pytest.approx(1)
    assert generator.mode(PROMPT).texts[0] in law
    assert isinstance(outlines_phi.audit(generator, PROMPT, n=50, seed=0), AuditReport)
    assert isinstance(outlines_phi.audit((host, Answer), PROMPT, n=50, seed=0), AuditReport)
    banned = outlines_phi.ban(generator, ["ab"])
    assert set(banned.sample(PROMPT, n=50, seed=0).texts) <= law.keys() - {"ab"}
    classic = outlines_phi.ban(generate.format(host, Answer), ["ab"])
    assert isinstance(classic, ClassicGenerator)
    assert classic(PROMPT, seed=0) in law.keys() - {"ab"}


def test_a_default_of_the_host_holds_in_its_calls() -> None:
    host = from_language_model(LM, encode, phi="exact", banned_phrases=["a"])
    assert {host(PROMPT, Answer, seed=seed) for seed in range(5)} == {"cc"}


@pytest.mark.parametrize("call", ["__call__", "stream"])
def test_a_loop_of_its_own_is_not_needed_and_is_said_to_be_missing(call: str, host: OwnModel) -> None:
    with pytest.raises(UnsupportedError, match="Give phi='local' for plain masking. OwnModel has no loop of its own"):
        getattr(host, call)(PROMPT, Answer, phi=None)


def test_prompts_may_be_token_ids(host: OwnModel) -> None:
    bare = from_language_model(LM)
    assert bare(encode(PROMPT), Answer, seed=1) == host(PROMPT, Answer, seed=1)
    with pytest.raises(UnsupportedError, match="Give encode= to from_language_model"):
        bare(PROMPT, Answer)


@pytest.mark.parametrize("prompt", [3, None, [0.5], ["x"], [[1]], [True]])
def test_a_prompt_that_is_none_is_refused(prompt: Any, host: OwnModel) -> None:
    with pytest.raises(UnsupportedError, match="a text or a sequence of token ids"):
        host(prompt, Answer)


def test_an_error_of_encode_names_the_prompt(host: OwnModel) -> None:
    with pytest.raises(UnsupportedError, match=r"raised ValueError .* for the prompt 'no such letters'"):
        host("no such letters", Answer)


@pytest.mark.parametrize(("lm", "encode", "words"), [(object(), None, "LanguageModel"), (LM, "abc", "a function")])
def test_what_is_no_language_model_is_refused(lm: Any, encode: Any, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        from_language_model(lm, encode)


def test_canonical_tokenization_needs_a_tokenizer(host: OwnModel) -> None:
    with pytest.raises(UnsupportedError, match="tokenizer"):
        host(PROMPT, Answer, tokenization="canonical")
