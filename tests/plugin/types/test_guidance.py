"""Grammars of guidance as output types: at every door, with their captures, and with the distribution of the model."""

import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from outlines.types import CFG

from outlines_phi import (
    AuditReport,
    EmptyLanguageError,
    Generator,
    GrammarError,
    PhiTransformers,
    UnsupportedError,
    ValueReadError,
    Vocabulary,
    audit,
    from_guidance,
    from_language_model,
)
from tests.guides.guidance.oracle import HEADER, RECORDED
from tests.inner import FSMGuide, TableModel
from tests.languages import p_value
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

QUESTION = "Question: is the bakery open on Sunday? Answer: "
ANSWER = HEADER + 'start: a b\na[capture]: A\nA: "yes" | "no"\nb[capture="__LIST_APPEND:b"]: B\nB: /[.!]{1,3}/'


class Grammar:
    """As a grammar of guidance: it writes itself in llguidance's dialect."""

    def __init__(self, text: Any) -> None:
        self.text = text

    def ll_grammar(self) -> Any:
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


TOKENS = ["<eos>", "s", "k", "y", "i", "l", "sk", "ki", "ll", "ky", "ski", "il"]
WORDS = Vocabulary.from_tokens(TOKENS, 0)


def spellings(text: str) -> list[tuple[int, ...]]:
    """All ways to write a text in tokens, and its end."""
    if not text:
        return [(0,)]
    return [
        (token, *rest)
        for token, written in enumerate(TOKENS)
        if token and text.startswith(written)
        for rest in spellings(text[len(written) :])
    ]


def probability(lm: TableModel, prompt: tuple[int, ...], written: tuple[int, ...]) -> float:
    log_p = 0.0
    for place, token in enumerate(written):
        logits = [float(one) for one in lm.next_logits(prompt + written[:place])]  # type: ignore[attr-defined]
        log_p += logits[token] - math.log(sum(map(math.exp, logits)))
    return math.exp(log_p)


def test_sky_and_skill_have_the_probabilities_of_the_model_and_masking_has_not() -> None:
    """The reason for all of this: of two words a mask prefers the one whose first tokens look better."""
    lm = TableModel.random(WORDS, seed=3, scale=2.0)
    prompt = (1, 2)
    weights = {word: sum(probability(lm, prompt, one) for one in spellings(word)) for word in ("sky", "skill")}
    law = {tuple(word.encode()): weight / sum(weights.values()) for word, weight in weights.items()}
    generator = Generator(from_language_model(lm, lambda text: prompt), from_guidance(RECORDED["select"]["grammar"]))

    def fit(phi: str) -> float:
        texts = generator.sample("Animals: ", n=2_000, phi=phi, seed=0).texts
        return p_value([tuple(text.encode()) for text in texts], law)

    assert fit("exact") > 1e-4 > fit("local")
    found = generator.probabilities("Animals: ", tolerance=0).distribution
    assert found == pytest.approx({word: law[tuple(word.encode())] for word in weights}, abs=1e-9)


def test_what_else_there_is(model: PhiTransformers) -> None:
    generator = Generator(model, from_guidance(ANSWER))
    assert generator.mode(QUESTION, max_new_tokens=8).texts[0] in ("yes.", "no.")
    assert isinstance(audit(generator, QUESTION, n=30, seed=0, max_new_tokens=8), AuditReport)
    draws = generator.sample(QUESTION, n=20, seed=0, banned_phrases=["no"], max_new_tokens=8, phi="exact")
    assert all(text.startswith("yes") for text in draws.texts)
    probabilities = generator.probabilities(QUESTION, tolerance=1e-6, max_new_tokens=8)
    assert sum(one.p for one in probabilities.entries) == pytest.approx(1, abs=1e-5)
    assert probabilities[{"a": "no", "b": ["."]}].p > 0.1


def test_values_are_captures(model: PhiTransformers) -> None:
    (draw,) = Generator(model, from_guidance(ANSWER)).sample(QUESTION, n=1, seed=0, phi="exact", max_new_tokens=8)
    assert draw.value == {"a": draw.text.rstrip(".!"), "b": [draw.text.lstrip("yesno")]}
    assert pickle.loads(pickle.dumps(draw)).value == draw.value
    plain = Generator(model, from_guidance(HEADER + 'start: "yes" | "no"'))
    assert plain.sample(QUESTION, n=1, seed=0, phi="exact").values[0] in ("yes", "no")


def test_equal_grammars_share_a_table(model: PhiTransformers) -> None:
    text = HEADER + "start: A\nA: /[a-z]{2,5}/"
    table = model.table(from_guidance(text))
    assert table is model.table(CFG(text + "\n\n")) and isinstance(table.guide, FSMGuide)
    assert from_guidance(Grammar(text)) == from_guidance(text) == CFG(text)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: from_guidance('start: "a"'), UnsupportedError, "or the text of one, which begins with %llguidance"),
        (lambda: from_guidance(Grammar(3)), UnsupportedError, "Give a grammar of guidance"),
        (lambda: from_guidance(Grammar(ValueError("no target"))), UnsupportedError, "It refuses this one: no target"),
        (lambda: from_guidance(Grammar), UnsupportedError, r"Call the function, as in from_guidance\(f\(\)\)"),
        (lambda: from_guidance(len), UnsupportedError, r"Call the function, as in from_guidance\(f\(\)\)"),
        (lambda: from_guidance(None), UnsupportedError, r"NoneType None has no ll_grammar\(\)"),
        (lambda: from_guidance(["yes", "no"]), UnsupportedError, "Give a grammar of guidance, such as select"),
        (lambda: from_guidance(HEADER + "start: x"), GrammarError, "line 2, column 8"),
        (lambda: from_guidance(HEADER + 'start: A "s"\nA: /[a-z]+/'), EmptyLanguageError, "."),
        (
            lambda: from_guidance(HEADER + 'start: a "1"\na: %json {"type": "integer"}'),
            UnsupportedError,
            "tells them apart",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(call: Callable[[], Any], error: type[Exception], words: str) -> None:
    refused(words, call, error=error)


def test_it_is_no_part_of_another_type(model: PhiTransformers) -> None:
    refused("Write the other parts into the grammar", Generator, model, from_guidance(ANSWER) + "!")
    with pytest.raises(ValueReadError, match="refuses 'ye'"):  # a text that was cut short has no value
        Generator(model, from_guidance(ANSWER)).reader("ye")
