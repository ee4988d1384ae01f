"""A host of a few lines has every call that needs no loop of its own; what all hosts promise is in ``tests/hosts``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from outlines_phi import UnsupportedError, from_language_model
from outlines_phi.lm.table_model import TableModel
from outlines_phi.plugin.wrapping import OwnModel
from tests.languages import VOCABULARY

Answer = Literal["a", "ab", "ba", "cc"]
PROMPT = "x"


LM = TableModel.random(VOCABULARY, seed=3)


def encode(text: str) -> list[int]:
    """Write a prompt letter by letter."""
    return [VOCABULARY.tokens.index(letter.encode()) for letter in text]


@pytest.fixture(scope="module")
def host() -> OwnModel:
    return from_language_model(LM, encode)


def test_a_default_of_the_host_holds_in_its_calls() -> None:
    host = from_language_model(LM, encode, phi="exact", banned_phrases=["a"])
    assert {host(PROMPT, Answer, seed=seed) for seed in range(5)} == {"cc"}


def test_prompts_may_be_token_ids(host: OwnModel) -> None:
    assert from_language_model(LM)(encode(PROMPT), Answer, seed=1) == host(PROMPT, Answer, seed=1)


NO_LOOP, NO_PROMPT = (
    "Give phi='local' for plain masking. OwnModel has no loop of its own",
    "a text or a sequence of token ids",
)
REFUSED: list[tuple[Callable[[OwnModel], Any], str]] = [
    (lambda host: host(PROMPT, Answer, phi=None), NO_LOOP),
    (lambda host: host.stream(PROMPT, Answer, phi=None), NO_LOOP),
    *((lambda host, given=given: host(given, Answer), NO_PROMPT) for given in (3, None, [0.5], ["x"], [[1]], [True])),
    (lambda host: host("no such letters", Answer), "raised ValueError .* for the prompt 'no such letters'"),
    (lambda host: host(PROMPT, Answer, tokenization="canonical"), "tokenizer"),
    (lambda host: from_language_model(LM)(PROMPT, Answer), "Give encode= to from_language_model"),
    (lambda host: from_language_model(object()), "LanguageModel"),
    (lambda host: from_language_model(LM, "abc"), "a function"),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_is_refused(call: Callable[[OwnModel], Any], words: str, host: OwnModel) -> None:
    with pytest.raises(UnsupportedError, match=words):
        call(host)
