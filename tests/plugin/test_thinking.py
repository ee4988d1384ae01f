"""Texts around an answer on the bundled model: thoughts, special tokens of formats, and the chat template."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.inputs import Chat
from outlines.types import CFG, JsonSchema, Regex, regex
from pydantic import BaseModel

from outlines_phi import (
    Generator,
    Guarantee,
    PhiLogitsProcessor,
    PhiTransformers,
    Special,
    Thinking,
    audit,
    custom_generate,
    from_transformers,
    structural_tag,
    wrap,
)
from outlines_phi.errors import VocabularyError
from outlines_phi.lm import bundled
from outlines_phi.plugin.session import PhiModel
from outlines_phi.rl import rollouts
from outlines_phi.sampling import ThoughtText
from tests.languages import p_value
from tests.refusals import refused

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
    assert draws.guarantee is Guarantee.FIELDWISE and {draw.thought.answer for draw in draws} == {Guarantee.EXACT}
    expected = {text: law[text].p for text in ("yes", "no", "not now")}
    masked = Generator(model, thinking(Answer, max_tokens=0), phi="local").sample(PROMPT, N, seed=1)
    assert p_value(draws.texts, expected) > 1e-3 > 1e-21 > p_value(masked.texts, expected)


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
    refused(r"enable_thinking=True.*The prompt ends a thought already", generator, PROMPT + "<think>\n\n</think>\n\n")
    named = Generator(
        model, Thinking(Answer, begin=Special("<think>"), end=Special("</think>"), max_tokens=2), phi="exact"
    )
    assert named(PROMPT, seed=1) == generator(PROMPT, seed=1)
    refused("Those like it", Generator, model, Thinking(Answer, end=Special("</thnk>")), error=VocabularyError)


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
    refused("Give phi='auto'", model, PROMPT, thinking(Answer))
    refused("Give phi='auto'", generator, PROMPT, phi=None)
    for asked in (generator.mode, generator.probabilities, generator.audit, generator.fit, generator.marginals):
        refused(r"scope='joint'", asked, PROMPT)
    refused("open", Generator, model, thinking(Answer), ends="open")
    refused("Write the rule into the type", generator, PROMPT, tokenization="canonical")
    refused(r"scope='joint'", PhiLogitsProcessor, model, thinking(Answer), max_new_tokens=50)
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


THINK = {"type": "token", "token": "</think>"}
TAG = {"type": "tag", "begin": "[", "content": {"type": "regex", "pattern": "[a-z ]*"}, "end": THINK}
TAGS = {
    "a token": {"type": "sequence", "elements": [{"type": "any_tokens", "exclude_tokens": ["</think>"]}, THINK]},
    "the end of a tag": TAG,
    "triggered": {
        "type": "token_triggered_tags",
        "trigger_tokens": ["</think>"],
        "tags": [{**TAG, "begin": THINK, "end": "2"}],
    },
    "dispatched": {
        "type": "token_dispatch",
        "rules": [["</think>", {"type": "const_string", "value": ""}]],
        "loop": False,
    },
}
TERMS = {
    **{
        f"tags: {name}": structural_tag({"type": "structural_tag", "format": form}) + Regex("[12]")
        for name, form in TAGS.items()
        if name in ("a token", "the end of a tag")
    },
    "lark": CFG('start: WORD? </think> ("1" | "2")\nWORD: /[a-zA-Z ]+/'),
    "terms": Regex("[a-zA-Z ]*") + Special("</think>") + JsonSchema({"enum": ["1", "2"]}),
    "a grammar inside": Regex("[a-zA-Z ]*") + Special("</think>") + CFG('start: "(" start ")" | "1"'),
}


@pytest.fixture(scope="module")
def marked() -> PhiTransformers:
    hf_model, tokenizer = bundled.load()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    hf_model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():  # as likely as the end of sequence
        weights = hf_model.get_output_embeddings().weight
        weights[tokenizer.convert_tokens_to_ids("</think>")] = weights[tokenizer.eos_token_id]
    return from_transformers(hf_model, tokenizer)


@pytest.mark.parametrize("name", TERMS)
def test_draws_have_the_token_and_texts_do_not_show_it(marked: PhiTransformers, name: str) -> None:
    think = marked.hf_tokenizer.convert_tokens_to_ids("</think>")
    generator = Generator(marked, TERMS[name])
    for draw in generator.sample("Is it one?", n=3, phi="local", seed=1, max_new_tokens=10):
        assert draw.token_ids.count(think) == 1 and draw.text[-1] in '12)"' and "think" not in draw.text
        assert draw.value == draw.text
    written = "".join(generator.stream("Is it one?", phi="local", seed=1, max_new_tokens=10))
    assert written == generator("Is it one?", phi="local", seed=1, max_new_tokens=10)
    assert generator("Is it one?", phi=None, max_new_tokens=10)[-1] in '12)"'


@pytest.mark.parametrize(("name", "most"), [("triggered", 9), ("dispatched", 1)])
def test_tokens_that_tags_begin_with_may_stand_in_text(marked: PhiTransformers, name: str, most: int) -> None:
    think = marked.hf_tokenizer.convert_tokens_to_ids("</think>")
    generator = Generator(marked, structural_tag({"type": "structural_tag", "format": TAGS[name]}))
    draws = generator.sample("Is it one?", n=20, phi="local", seed=1, max_new_tokens=10)
    counts = [draw.token_ids.count(think) for draw in draws]
    assert min(counts) == 0 < max(counts) <= most
    if name == "triggered":  # each begins a tag, which "2" ends
        for draw in draws:
            assert all("2" in part for part in marked.hf_tokenizer.decode(draw.token_ids).split("</think>")[1:])


def test_a_token_that_is_not_special_and_another_name_are_refused(marked: PhiTransformers) -> None:
    given = structural_tag({"type": "structural_tag", "format": {"type": "any_tokens", "exclude_tokens": ["the"]}})
    refused("Name a special token of the tokenizer", Generator, marked, given, error=VocabularyError)
    refused("Those like it: '</think>'", Generator, marked, Special("</thnk>") + "a", error=VocabularyError)


def test_texts_that_go_on_are_cut_behind_the_token(marked: PhiTransformers) -> None:
    """And accounts have the bytes that a token writes, never those that machines step by."""
    generator = Generator(marked, Regex("[ab]") + Special("</think>") + Regex("[01]"))
    for draw in generator.sample("Is it one?", n=3, phi="exact", seed=1, ends="open", tokens=True, top=5):
        assert draw.text in {"a0", "a1", "b0", "b1"}
        assert b"".join(token.bytes for token in draw.tokens).startswith(draw.text.encode())
        assert not any(b"\xff" in each.bytes for token in draw.tokens for each in token.top or ())


def test_captures_of_guidance_are_read_by_tokens(marked: PhiTransformers) -> None:
    text = '%llguidance {}\nstart: a </think> b\na[capture]: /[ab]{1,3}/\nb[capture]: "1" | "2"'
    generator = Generator(marked, CFG(text))
    draws = generator.sample("Is it one?", n=5, phi="exact", seed=1)
    assert [draw.value for draw in draws] == [{"a": draw.text[:-1], "b": draw.text[-1]} for draw in draws]
    found = generator.probabilities("Is it one?", tolerance=0.2)
    assert all(entry.value == {"a": entry.text[:-1], "b": entry.text[-1]} for entry in found.entries)


@pytest.mark.parametrize("token", [True, None, "", 1.5])
def test_a_special_token_is_a_name_or_an_id(token: object) -> None:
    refused("Give the name of a special token, or its id", Special, token)  # type: ignore[arg-type]
    assert Special(0).written == "<[0]>"


YES_NO = regex("yes|no")
TEMPLATE = "{% for m in messages %}<|pad|>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}<|pad|>assistant: "
ROOT = Path(__file__).parents[2]
QUESTION = "is it open?"
TEMPLATED = f"<|pad|>user: {QUESTION}\n<|pad|>assistant: "


def stock() -> Any:
    templated, tokenizer = bundled.load()
    tokenizer.chat_template = TEMPLATE
    return outlines.from_transformers(templated, tokenizer)


@pytest.fixture(scope="module")
def templated() -> PhiModel:
    return wrap(stock())


def prompts(templated: PhiModel, *texts: str) -> list[list[int]]:
    """Return the tokens that texts are read as."""
    return [list(ids) for ids in templated.prompt_ids(texts)]


DOORS: dict[str, Callable[[PhiModel, Any], Any]] = {
    "a call": lambda templated, prompt: templated(prompt, YES_NO, phi="exact", seed=0),
    "a batch": lambda templated, prompt: templated.batch([QUESTION, prompt], YES_NO, phi="auto", seed=0),
    "masking": lambda templated, prompt: templated(prompt, YES_NO, phi="local", seed=0),
    "a stream": lambda templated, prompt: list(templated.stream(prompt, YES_NO, phi="exact", seed=0)),
    "free text": lambda templated, prompt: templated(prompt, banned_phrases=["no"], max_new_tokens=3, seed=0),
    "the mode": lambda templated, prompt: Generator(templated, YES_NO).mode(prompt),
    "probabilities": lambda templated, prompt: Generator(templated, YES_NO).probabilities(prompt),
    "an audit": lambda templated, prompt: audit((templated, YES_NO), prompt, 5, seed=0),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=list(DOORS))
def test_a_prompt_that_is_templated_already_is_refused(
    door: Callable[[PhiModel, Any], Any], templated: PhiModel
) -> None:
    refused(r"^Give the messages, as an Outlines Chat .* which every text is put into\.$", door, templated, TEMPLATED)
    door(templated, QUESTION)
    door(templated, Chat([{"role": "user", "content": QUESTION}]))


def test_a_text_is_the_message_of_a_user(templated: PhiModel) -> None:
    """Special tokens that the template does not have are read as the tokenizer reads them."""
    for text in (QUESTION, f"a<|endoftext|>b {QUESTION}"):
        assert prompts(templated, text) == [templated.hf_tokenizer.encode(TEMPLATED.replace(QUESTION, text))]


def test_a_template_that_knows_thoughts_is_rendered_for_them() -> None:
    given = stock()
    given.hf_tokenizer.chat_template = TEMPLATE + "{% if not enable_thinking %}<|pad|></t>{% endif %}"
    templated = wrap(given)
    thinking = Thinking(YES_NO, end="</t>", max_tokens=1)
    assert Generator(templated, thinking, phi="local").sample(QUESTION, seed=1)[0].text in ("yes", "no")
    joint = Generator(templated, Thinking(YES_NO, end="</t>", max_tokens=1, scope="joint"), phi="local")
    (found,) = rollouts(joint, [QUESTION], 1, seed=1)
    assert found.prompt_ids == tuple(given.hf_tokenizer.encode(TEMPLATED))
    given.hf_tokenizer.apply_chat_template = partial(given.hf_tokenizer.apply_chat_template, enable_thinking=False)
    refused(
        r"enable_thinking=True.*The prompt ends a thought already",
        Generator(templated, thinking, phi="local").sample,
        QUESTION,
        seed=1,
    )


def test_a_template_asks_for_what_it_likes() -> None:
    """A chat is rendered alone, and what the template raises says what it wants."""
    given = stock()
    given.hf_tokenizer.chat_template = (
        "{% if messages | length < 2 %}{{ raise_exception('alone') }}{% endif %}" + TEMPLATE
    )
    templated, user = wrap(given), {"role": "user", "content": QUESTION}
    assert templated(Chat([{"role": "system", "content": "s"}, user]), YES_NO, phi="exact", seed=0) in ("yes", "no")
    refused("^Give a str .*an Outlines Chat.* cannot be read: alone", templated, QUESTION, YES_NO, phi="exact")


def test_texts_are_read_as_they_stand_where_outlines_is_told_so() -> None:
    """The switch is that of Outlines' model, whether it is set before the model is wrapped or after."""
    given = stock()
    raw = wrap(given)
    for _ in range(2):
        given.type_adapter.has_chat_template = False
        assert prompts(raw, TEMPLATED, QUESTION) == [raw.hf_tokenizer.encode(text) for text in (TEMPLATED, QUESTION)]
        assert raw(TEMPLATED, YES_NO, phi="exact", seed=0) in ("yes", "no")
        raw = wrap(given)


def test_without_phi_a_text_is_read_as_outlines_reads_it(templated: PhiModel) -> None:
    def texts(templated: Any) -> list[str]:
        return [templated(TEMPLATED, T, max_new_tokens=8, do_sample=False) for T in (None, YES_NO)]

    assert texts(templated) == texts(stock())


def test_pages_say_of_completion_prompts_that_they_are_that() -> None:
    pages = {page: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}
    shown = {page: text for page, text in pages.items() if 'JSON: "' in text}
    assert len(shown) > 5 and [page.name for page, text in shown.items() if "completion" not in text] == []
