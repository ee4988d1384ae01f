"""Thinking on the bundled model with an added ``</think>``: draws, streams, prompts that begin a thought, what is refused."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Literal

import pytest
import torch
from outlines.types import CFG, regex
from pydantic import BaseModel

from outlines_phi import (
    Generator,
    Guarantee,
    PhiLogitsProcessor,
    PhiTransformers,
    Special,
    Thinking,
    UnsupportedError,
    custom_generate,
    from_transformers,
)
from outlines_phi.errors import VocabularyError
from outlines_phi.lm import bundled
from outlines_phi.sampling import ThoughtText

PROMPT = "Question: is the bakery open on Sunday? "
Answer = Literal["yes", "no", "not now"]


N = 1_000


class Order(BaseModel):
    item: Literal["tea", "cake"]
    count: Literal[1, 2]


@pytest.fixture(scope="module")
def model() -> PhiTransformers:
    hf_model, tokenizer = bundled.load()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>", "<think>"]})
    hf_model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():  # as likely as the end of sequence
        weights = hf_model.get_output_embeddings().weight
        for name in ("</think>", "<think>"):
            weights[tokenizer.convert_tokens_to_ids(name)] = weights[tokenizer.eos_token_id]
    return from_transformers(hf_model, tokenizer)


def thinking(answer: Any, **options: Any) -> Thinking:
    return Thinking(answer, **{"max_tokens": 4, "begin": "", **options})


def test_answers_given_a_thought_have_the_conditioned_law(model: PhiTransformers) -> None:
    """Beside certified probabilities after the same thought; masked answers are far from them."""
    draws = Generator(model, thinking(Answer, max_tokens=0), phi="exact").sample(PROMPT, N, seed=1)
    law = Generator(model, Answer).probabilities(PROMPT + "</think>", tolerance=1e-6)
    frequencies = Counter(draws.texts)
    assert draws.guarantee is Guarantee.FIELDWISE and {draw.thought.answer for draw in draws} == {Guarantee.EXACT}
    expected = {text: law[text].p for text in ("yes", "no", "not now")}
    chi_square = sum((frequencies[text] - N * p) ** 2 / (N * p) for text, p in expected.items())
    assert chi_square < 13.8  # 0.1 % of two degrees of freedom
    masked = Counter(Generator(model, thinking(Answer, max_tokens=0), phi="local").sample(PROMPT, N, seed=1).texts)
    assert sum((masked[text] - N * p) ** 2 / (N * p) for text, p in expected.items()) > 100


TYPES: dict[str, Any] = {
    "pydantic": Order,
    "literal": Answer,
    "regex": regex("[0-9]{1,2}"),
    "grammar": CFG('start: "(" start ")" | "x"'),
    "text and grammar": regex("a?") + CFG('start: "a" start "b" | "1"'),
    "guidance": CFG('%llguidance {}\nstart: /a+/ | "b"'),
    "special": regex("[ab]") + Special("<think>"),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("end", ["</think>", ". "])
def test_every_output_type_stands_behind_a_thought(model: PhiTransformers, name: str, end: str) -> None:
    generator = Generator(model, thinking(TYPES[name], end=end), phi="local")
    for draw in generator.sample(PROMPT, 20, seed=1, max_new_tokens=60):
        assert draw.thought is not None and draw.value is not None
        assert end not in draw.thought.text and len(draw.thought.token_ids) <= 4 + len(end)
        assert len(draw.thought.token_ids) <= 5 or end != "</think>"
        assert math.isfinite(draw.thought.log_p) and draw.thought.log_w <= 0
        assert isinstance(draw.value, Order) == (name == "pydantic")
    assert generator(PROMPT, seed=1, max_new_tokens=60) == generator.sample(PROMPT, seed=1, max_new_tokens=60)[0].text


STREAMS = [("local", "answer"), ("exact", "answer"), ("fields", "answer"), ("auto", "answer"), ("local", "joint")]


@pytest.mark.parametrize(("phi", "scope"), [*STREAMS, ("fields", "joint")])
@pytest.mark.parametrize("end", ["</think>", ". "])
@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_streams_tell_the_thought_from_the_answer(model: PhiTransformers, phi: str, scope: str, end: str) -> None:
    answer = Answer if scope == "answer" else regex("(?s:.){0,9}")
    generator = Generator(model, thinking(answer, end=end, scope=scope, max_tokens=3), phi=phi)
    (draw,) = generator.sample(PROMPT, seed=2, max_new_tokens=20)
    pieces = list(generator.stream(PROMPT, seed=2, max_new_tokens=20))
    kinds = [isinstance(piece, ThoughtText) for piece in pieces]
    assert kinds == sorted(kinds, reverse=True)
    assert "".join(piece for piece in pieces if not isinstance(piece, ThoughtText)) == draw.text
    assert draw.thought is not None
    assert "".join(piece for piece in pieces if isinstance(piece, ThoughtText)) == draw.thought.text
    accounts = list(generator.stream(PROMPT, seed=2, max_new_tokens=20, tokens=True))
    assert [account.id for account in accounts] == list(draw.token_ids)


def test_a_thought_that_the_prompt_has_begun_goes_on(model: PhiTransformers) -> None:
    think = model.hf_tokenizer.convert_tokens_to_ids("<think>")
    generator = Generator(model, Thinking(Answer, max_tokens=2), phi="exact")
    for prompt in (PROMPT, PROMPT + "<think>", PROMPT + "<think>\n\n"):
        for draw in generator.sample(prompt, 5, seed=1):
            assert draw.thought is not None and (draw.token_ids[0] == think) == (prompt == PROMPT)
            assert think not in draw.token_ids[1:] and "think" not in draw.thought.text
    with pytest.raises(UnsupportedError, match=r"enable_thinking=True.*The prompt ends a thought already"):
        generator(PROMPT + "<think>\n\n</think>\n\n")
    named = Generator(
        model, Thinking(Answer, begin=Special("<think>"), end=Special("</think>"), max_tokens=2), phi="exact"
    )
    assert named(PROMPT, seed=1) == generator(PROMPT, seed=1)
    with pytest.raises(VocabularyError, match="Those like it"):
        Generator(model, Thinking(Answer, end=Special("</thnk>")))


@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_bans_and_drafts_work_in_the_thought(model: PhiTransformers) -> None:
    generator = Generator(model, thinking(regex("[a-z ]{1,9}"), max_tokens=8), phi="auto", banned_phrases=["e", "1"])
    for draw in generator.sample(PROMPT, 20, seed=1):
        assert draw.thought is not None and not set("e1") & set(draw.thought.text + draw.text)
    plain = Generator(model, thinking(Answer, max_tokens=8), phi="exact")
    prompt = "The bakery is open. The bakery is open. The bakery is"
    drafted = plain.sample(prompt, 3, seed=1, draft=["prompt_lookup"])
    assert [d.thought.text for d in drafted] == [d.thought.text for d in plain.sample(prompt, 3, seed=1, draft=[])]
    assert drafted.counts.drafted > 0


def test_what_cannot_tell_thoughts_from_answers_refuses_them(model: PhiTransformers) -> None:
    generator = Generator(model, thinking(Answer), phi="exact")
    with pytest.raises(UnsupportedError, match="Give phi='auto'"):
        model(PROMPT, thinking(Answer))
    with pytest.raises(UnsupportedError, match="Give phi='auto'"):
        generator(PROMPT, phi=None)
    for asked in (generator.mode, generator.probabilities, generator.audit, generator.fit, generator.marginals):
        with pytest.raises(UnsupportedError, match=r"scope='joint'"):
            asked(PROMPT)
    with pytest.raises(UnsupportedError, match="open"):
        Generator(model, thinking(Answer), ends="open")
    with pytest.raises(UnsupportedError, match="Write the rule into the type"):
        generator(PROMPT, tokenization="canonical")
    with pytest.raises(UnsupportedError, match=r"scope='joint'"):
        PhiLogitsProcessor(model, thinking(Answer), max_new_tokens=50)
    assert Generator(model, thinking(Answer, scope="joint", max_tokens=0)).mode(PROMPT)[0].text in (
        "yes",
        "no",
        "not now",
    )


@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_batches_have_the_same_draws(model: PhiTransformers) -> None:
    generator = Generator(model, thinking(Order), phi="auto")
    first, second = generator.sample_batch([PROMPT, "Order: "], 2, seed=3)
    assert [draw.token_ids for draw in generator.sample(PROMPT, 2, seed=3)] == [draw.token_ids for draw in first]
    assert all(isinstance(value, Order) for value in [*first.values, *second.values])


async def test_a_call_may_be_awaited(model: PhiTransformers) -> None:
    generator = Generator(model, thinking(Answer), phi="exact")
    assert await generator.agenerate(PROMPT, seed=1) == generator(PROMPT, seed=1)
    pieces = [piece async for piece in generator.astream(PROMPT, seed=1)]
    assert any(isinstance(piece, ThoughtText) for piece in pieces)


def test_custom_generate_returns_thought_and_answer(model: PhiTransformers) -> None:
    ids = model.hf_tokenizer(PROMPT, return_tensors="pt").input_ids
    found = model.model.generate(
        ids, custom_generate=custom_generate, output_type=thinking(Answer), vocabulary=model.hf_tokenizer,
        phi="exact", seed=1, max_new_tokens=40,
    )  # fmt: skip
    assert (
        tuple(found[0, ids.shape[1] :].tolist())
        == Generator(model, thinking(Answer), phi="exact").sample(PROMPT, seed=1, max_new_tokens=40)[0].token_ids
    )
