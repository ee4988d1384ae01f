"""Special tokens of a tokenizer in formats, from a model of Transformers with one that was added."""

import pytest
import torch
from outlines.types import CFG, JsonSchema, Regex

from outlines_phi import Generator, PhiTransformers, Special, from_transformers, structural_tag
from outlines_phi.errors import UnsupportedError, VocabularyError
from outlines_phi.lm import bundled

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
def model() -> PhiTransformers:
    hf_model, tokenizer = bundled.load()
    tokenizer.add_special_tokens({"additional_special_tokens": ["</think>"]})
    hf_model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():  # as likely as the end of sequence
        weights = hf_model.get_output_embeddings().weight
        weights[tokenizer.convert_tokens_to_ids("</think>")] = weights[tokenizer.eos_token_id]
    return from_transformers(hf_model, tokenizer)


@pytest.mark.parametrize("name", TERMS)
def test_draws_have_the_token_and_texts_do_not_show_it(model: PhiTransformers, name: str) -> None:
    think = model.hf_tokenizer.convert_tokens_to_ids("</think>")
    generator = Generator(model, TERMS[name])
    for draw in generator.sample("Is it one?", n=3, phi="local", seed=1, max_new_tokens=10):
        assert draw.token_ids.count(think) == 1 and draw.text[-1] in '12)"' and "think" not in draw.text
        assert draw.value == draw.text
    written = "".join(generator.stream("Is it one?", phi="local", seed=1, max_new_tokens=10))
    assert written == generator("Is it one?", phi="local", seed=1, max_new_tokens=10)
    assert generator("Is it one?", phi=None, max_new_tokens=10)[-1] in '12)"'


@pytest.mark.parametrize(("name", "most"), [("triggered", 9), ("dispatched", 1)])
def test_tokens_that_tags_begin_with_may_stand_in_text(model: PhiTransformers, name: str, most: int) -> None:
    think = model.hf_tokenizer.convert_tokens_to_ids("</think>")
    generator = Generator(model, structural_tag({"type": "structural_tag", "format": TAGS[name]}))
    draws = generator.sample("Is it one?", n=20, phi="local", seed=1, max_new_tokens=10)
    counts = [draw.token_ids.count(think) for draw in draws]
    assert min(counts) == 0 < max(counts) <= most
    if name == "triggered":  # each begins a tag, which "2" ends
        for draw in draws:
            assert all("2" in part for part in model.hf_tokenizer.decode(draw.token_ids).split("</think>")[1:])


def test_a_token_left_out_that_is_not_special_is_refused(model: PhiTransformers) -> None:
    given = structural_tag({"type": "structural_tag", "format": {"type": "any_tokens", "exclude_tokens": ["the"]}})
    with pytest.raises(VocabularyError, match="Name a special token of the tokenizer"):
        Generator(model, given)("", phi="local")


def test_another_name_is_refused_with_those_like_it(model: PhiTransformers) -> None:
    with pytest.raises(VocabularyError, match="Those like it: '</think>'"):
        Generator(model, Special("</thnk>") + "a")("", phi="local")


def test_texts_that_go_on_are_cut_behind_the_token(model: PhiTransformers) -> None:
    """And accounts have the bytes that a token writes, never those that machines step by."""
    generator = Generator(model, Regex("[ab]") + Special("</think>") + Regex("[01]"))
    for draw in generator.sample("Is it one?", n=3, phi="exact", seed=1, ends="open", tokens=True, top=5):
        assert draw.text in {"a0", "a1", "b0", "b1"}
        assert b"".join(token.bytes for token in draw.tokens).startswith(draw.text.encode())
        assert not any(b"\xff" in each.bytes for token in draw.tokens for each in token.top or ())


def test_captures_of_guidance_are_read_by_tokens(model: PhiTransformers) -> None:
    text = '%llguidance {}\nstart: a </think> b\na[capture]: /[ab]{1,3}/\nb[capture]: "1" | "2"'
    generator = Generator(model, CFG(text))
    draws = generator.sample("Is it one?", n=5, phi="exact", seed=1)
    assert [draw.value for draw in draws] == [{"a": draw.text[:-1], "b": draw.text[-1]} for draw in draws]
    found = generator.probabilities("Is it one?", tolerance=0.2)
    assert all(entry.value == {"a": entry.text[:-1], "b": entry.text[-1]} for entry in found.entries)


@pytest.mark.parametrize("token", [True, None, "", 1.5])
def test_a_special_token_is_a_name_or_an_id(token: object) -> None:
    with pytest.raises(UnsupportedError, match="Give the name of a special token, or its id"):
        Special(token)  # type: ignore[arg-type]
    assert Special(0).written == "<[0]>"
