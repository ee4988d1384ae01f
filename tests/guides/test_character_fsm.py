"""Automata over characters beside the package that makes them."""

from itertools import product

import interegular
import pytest

import outlines_phi
from outlines_phi.guides.character_fsm import CharacterFSM, encoded
from outlines_phi.lm import bundled

PATTERNS = ["[a-c]é?x|€+", ".*x", "(ab|c)*", "[^a]{2}", "", "(?!ab)[abx]{2}", "a&b", "𝄞|é"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_are_those_of_the_automaton(pattern: str) -> None:
    fsm = interegular.parse_pattern(pattern).to_fsm()
    assert isinstance(fsm, CharacterFSM)
    found = encoded(fsm)
    for text in ("".join(each) for n in range(4) for each in product("abcxé€𝄞\n", repeat=n)):
        assert found.accepts(text.encode()) == fsm.accepts(text), text


def test_bytes_that_are_no_text_are_not_accepted() -> None:
    found = encoded(interegular.parse_pattern(".").to_fsm())
    assert not any(found.accepts(text) for text in (b"\xc3", b"\xff", b"\xa9", b"\xed\xa0\x80"))


def test_the_classic_function_draws_what_the_expression_draws() -> None:
    model = outlines_phi.from_transformers(*bundled.load())
    pattern = "(yes|no)(, (it|we) (is|are) (open|closed))?"
    fsm = interegular.parse_pattern(pattern).to_fsm()
    prompt = "Question: is the bakery open on Sunday? Answer: "
    texts = [
        make(prompt, max_tokens=12, seed=seed)
        for make in (
            outlines_phi.generate.fsm(model, fsm, phi="exact"),
            outlines_phi.generate.regex(model, pattern, phi="exact"),
        )
        for seed in range(12)
    ]
    assert texts[:12] == texts[12:] and len(set(texts)) > 1
