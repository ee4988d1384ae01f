"""Accounts of tokens through the doors of an application, on the bundled model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from outlines_phi import Draw, Generator, PhiTransformers, UnsupportedError
from outlines_phi.sampling import TokenAccount
from tests.plugin.loops import custom, inputs_of, pair

QUESTION = "Question: is the bakery open on Sunday? Answer: "
WORDS = Literal["yes", "no", "no, it is closed"]
PHIS = ["exact", "auto", "local", "onestep", "fields"]
TOLD = {"seed": 3, "tokens": True, "top": 5}


def sums(draw: Draw) -> float:
    return sum(account.log_p for account in draw.tokens if account.log_p is not None)


@pytest.mark.parametrize("phi", PHIS)
def test_accounts_are_those_of_the_model(phi: str, model: PhiTransformers) -> None:
    """Against one plain call of the model over the whole text, at a temperature."""
    for draw in Generator(model, WORDS, phi=phi).sample(QUESTION, n=3, temperature=0.7, **TOLD):
        prompt = inputs_of(model.hf_tokenizer, QUESTION)["input_ids"]
        with torch.no_grad():
            logits = model.model(torch.cat([prompt, torch.tensor([draw.token_ids])], 1)).logits[
                0, prompt.shape[1] - 1 :
            ]
        rows = zip(draw.tokens, torch.log_softmax(logits / 0.7, -1), strict=False)
        assert sums(draw) == pytest.approx(draw.log_p, abs=1e-4)
        for account, row in rows:
            assert account.log_p == pytest.approx(float(row[account.id]), abs=1e-3) and account.top is not None
            assert [each.log_p for each in account.top] == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)
            allowed = [each.id for each in account.top if each.allowed]
            assert account.id in allowed or account.log_p <= account.top[-1].log_p
        assert b"".join(account.bytes for account in draw.tokens).decode() == draw.text


@pytest.mark.parametrize("phi", PHIS)
@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_a_stream_yields_the_accounts_of_the_text(phi: str, model: PhiTransformers) -> None:
    generator = Generator(model, WORDS, phi=phi)
    written = generator(QUESTION, seed=3)
    accounts = list(generator.stream(QUESTION, **TOLD))
    assert all(isinstance(account, TokenAccount) for account in accounts)
    assert (
        b"".join(account.bytes for account in accounts).decode()
        == written
        == "".join(generator.stream(QUESTION, seed=3))
    )
    assert all(account.log_p is not None and len(account.top or ()) == 5 for account in accounts[:-1])

    async def told() -> list[TokenAccount]:
        return [account async for account in generator.astream(QUESTION, **TOLD)]

    assert asyncio.run(told()) == accounts


def test_free_texts_have_accounts(model: PhiTransformers) -> None:
    draws = Generator(model, banned_phrases=["it is"]).sample(QUESTION, n=20, max_new_tokens=8, **TOLD)
    for draw in draws:
        assert sums(draw) == pytest.approx(draw.log_p) and all(account.log_s is not None for account in draw.tokens)
    barred = [each.bytes for draw in draws for account in draw.tokens for each in account.top or () if not each.allowed]
    assert b" is" in barred


def test_custom_generate_hands_them_out_in_its_draws(model: PhiTransformers) -> None:
    options = {"output_type": WORDS, "phi": "local", "max_new_tokens": 20, "num_return_sequences": 4}
    found = custom(pair(model), QUESTION, return_dict_in_generate=True, **options, **TOLD)
    (draws,) = found.draws
    assert [sums(draw) for draw in draws] == pytest.approx(found.log_p.tolist())
    assert [sum(account.log_s for account in draw.tokens) for draw in draws] == pytest.approx(found.log_w.tolist())


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda g: g(QUESTION, tokens=True), r"^Give tokens= to sample\(\) or stream\(\).*to a call that returns texts"),
    (lambda g: g.batch([QUESTION], tokens=True, top=2), "to a call that returns texts"),
    (lambda g: g(QUESTION, phi=None, tokens=True), "tokens= was given without phi="),
    (lambda g: g.sample(QUESTION, top=3), r"^Give tokens=True beside top=, .*top=3 was given"),
    (lambda g: g.sample(QUESTION, tokens="yes"), "tokens='yes' was given; expected True for an account"),
    (lambda g: g.sample(QUESTION, tokens=True, top=0), "top=0 was given; expected a whole number from 1 to 100"),
    (lambda g: g.sample(QUESTION, tokens=True, top=101), "top=101 was given; expected a whole number from 1 to 100"),
    (lambda g: g(QUESTION, phi="exact", do_sample=False, tokens=True), "to a call that returns texts"),
    (lambda g: g.probabilities(QUESTION, tokens=True), r"^Leave tokens out of probabilities\(\)"),
    (lambda g: g.mode(QUESTION, tokens=True), r"^Leave tokens out of mode\(\)"),
    (lambda g: g.fit(QUESTION, tokens=4, top=3), r"^Leave top out of fit\(\)"),
    (lambda g: g.audit(QUESTION, tokens=True), r"^Give tokens= to sample\(\) with phi='local'"),
    (
        lambda g: custom(pair(g.model), QUESTION, output_type=WORDS, max_new_tokens=9, tokens=True),
        "return_dict_in_generate=True",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_has_no_room_for_accounts_says_so(call: Callable[[Any], Any], words: str, model: PhiTransformers) -> None:
    with pytest.raises(UnsupportedError, match=words):
        call(Generator(model, WORDS, phi="local"))
