"""Texts and the chat template: put into it as Outlines does, once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import outlines
import pytest
from outlines.inputs import Chat
from outlines.types import regex

from outlines_phi import Generator, Thinking, UnsupportedError, audit, wrap
from outlines_phi.lm import bundled
from outlines_phi.plugin.session import PhiModel
from outlines_phi.rl import rollouts

YES_NO = regex("yes|no")
TEMPLATE = "{% for m in messages %}<|pad|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}<|pad|>assistant: "
ROOT = Path(__file__).parents[2]
QUESTION = "is it open?"
TEMPLATED = f"<|pad|>user: {QUESTION}\n<|pad|>assistant: "


def stock() -> Any:
    model, tokenizer = bundled.load()
    tokenizer.chat_template = TEMPLATE
    return outlines.from_transformers(model, tokenizer)


@pytest.fixture(scope="module")
def model() -> PhiModel:
    return wrap(stock())


def prompts(model: PhiModel, *texts: str) -> list[list[int]]:
    """Return the tokens that texts are read as."""
    return [list(ids) for ids in model.prompt_ids(texts)]


DOORS: dict[str, Callable[[PhiModel, Any], Any]] = {
    "a call": lambda model, prompt: model(prompt, YES_NO, phi="exact", seed=0),
    "a batch": lambda model, prompt: model.batch([QUESTION, prompt], YES_NO, phi="auto", seed=0),
    "masking": lambda model, prompt: model(prompt, YES_NO, phi="local", seed=0),
    "a stream": lambda model, prompt: list(model.stream(prompt, YES_NO, phi="exact", seed=0)),
    "free text": lambda model, prompt: model(prompt, banned_phrases=["no"], max_new_tokens=3, seed=0),
    "the mode": lambda model, prompt: Generator(model, YES_NO).mode(prompt),
    "probabilities": lambda model, prompt: Generator(model, YES_NO).probabilities(prompt),
    "an audit": lambda model, prompt: audit((model, YES_NO), prompt, 5, seed=0),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS))
def test_a_prompt_that_is_templated_already_is_refused(door: Callable[[PhiModel, Any], Any], model: PhiModel) -> None:
    with pytest.raises(
        UnsupportedError, match=r"^Give the messages, as an Outlines Chat .* which every text is put into\.$"
    ):
        door(model, TEMPLATED)
    door(model, QUESTION)
    door(model, Chat([{"role": "user", "content": QUESTION}]))


def test_a_text_is_the_message_of_a_user(model: PhiModel) -> None:
    """Special tokens that the template does not have are read as the tokenizer reads them."""
    for text in (QUESTION, f"a<|endoftext|>b {QUESTION}"):
        assert prompts(model, text) == [model.hf_tokenizer.encode(TEMPLATED.replace(QUESTION, text))]


def test_a_template_that_knows_thoughts_is_rendered_for_them() -> None:
    given = stock()
    given.hf_tokenizer.chat_template = TEMPLATE + "{% if not enable_thinking %}<|pad|></t>{% endif %}"
    model = wrap(given)
    thinking = Thinking(YES_NO, end="</t>", max_tokens=1)
    assert Generator(model, thinking, phi="local").sample(QUESTION, seed=1)[0].text in ("yes", "no")
    joint = Generator(model, Thinking(YES_NO, end="</t>", max_tokens=1, scope="joint"), phi="local")
    (found,) = rollouts(joint, [QUESTION], 1, seed=1)
    assert found.prompt_ids == tuple(given.hf_tokenizer.encode(TEMPLATED))
    given.hf_tokenizer.apply_chat_template = partial(given.hf_tokenizer.apply_chat_template, enable_thinking=False)
    with pytest.raises(UnsupportedError, match=r"enable_thinking=True.*The prompt ends a thought already"):
        Generator(model, thinking, phi="local").sample(QUESTION, seed=1)


def test_a_template_asks_for_what_it_likes() -> None:
    """A chat is rendered alone, and what the template raises says what it wants."""
    given = stock()
    given.hf_tokenizer.chat_template = (
        "{% if messages | length < 2 %}{{ raise_exception('alone') }}{% endif %}" + TEMPLATE
    )
    model, user = wrap(given), {"role": "user", "content": QUESTION}
    assert model(Chat([{"role": "system", "content": "s"}, user]), YES_NO, phi="exact", seed=0) in ("yes", "no")
    with pytest.raises(UnsupportedError, match="^Give a str .*an Outlines Chat.* cannot be read: alone"):
        model(QUESTION, YES_NO, phi="exact")


def test_texts_are_read_as_they_stand_where_outlines_is_told_so() -> None:
    """The switch is that of Outlines' model, whether it is set before the model is wrapped or after."""
    given = stock()
    raw = wrap(given)
    for _ in range(2):
        given.type_adapter.has_chat_template = False
        assert prompts(raw, TEMPLATED, QUESTION) == [raw.hf_tokenizer.encode(text) for text in (TEMPLATED, QUESTION)]
        assert raw(TEMPLATED, YES_NO, phi="exact", seed=0) in ("yes", "no")
        raw = wrap(given)


def test_without_phi_a_text_is_read_as_outlines_reads_it(model: PhiModel) -> None:
    def texts(model: Any) -> list[str]:
        return [model(TEMPLATED, T, max_new_tokens=8, do_sample=False) for T in (None, YES_NO)]

    assert texts(model) == texts(stock())


def test_pages_say_of_completion_prompts_that_they_are_that() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    shown = {page: text for page, text in pages.items() if 'JSON: "' in text}
    assert len(shown) > 5 and [page.name for page, text in shown.items() if "completion" not in text] == []
