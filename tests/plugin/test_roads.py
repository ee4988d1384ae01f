"""One law on every road: whichever door a call comes through, of a choice, of free text without a phrase, or with drafts, its texts
are draws of mu*, nothing leaks, and masked ones fail the same test.

The oracle asks the Hugging Face model by itself, and looks for phrases by Python's ``in``. Hosts' own loops under
:class:`PhiLogitsProcessor` draw weighted texts; their laws are in ``test_phi_processor``.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from outlines_phi import BannedPhrases, Generator, PhiTransformers, generate, samplers
from outlines_phi.drafting import Draft, Drafter, Drafting, DraftRun, Site
from outlines_phi.lm import bundled
from tests.languages import ALPHA
from tests.plugin.doors import BAN, BANNING, DOORS, ONE_BY_ONE, SUNDAY, Door, Wanted, banned_generator, fewer, through
from tests.plugin.instruments import free_texts, p_value, same_law, without

PROMPT, N, LAW = SUNDAY.prompt, SUNDAY.n, SUNDAY.limits

# "no" last: over any vocabulary a stock generator loses what goes on after an earlier alternative (docs/output-types.md).
WORDS = ("yes", "not now", "nobody", "no")
ANSWER = Wanted("Question: is the bakery open on Monday? Answer: ", n=600, budget=12, words=WORDS)


@pytest.fixture(scope="module")
def texts(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) under the model's own law."""
    return free_texts(model, PROMPT, k=SUNDAY.top_k, budget=SUNDAY.budget)


@pytest.fixture(scope="module")
def truth(texts: dict[str, float]) -> dict[str, float]:
    """Return P(text) under mu*."""
    law = without(texts, BAN, PROMPT)
    assert 0.1 < sum(p for text, p in texts.items() if text not in law) < 0.9
    return law


class Guesser(Drafter, Drafting):
    """Proposes the rest of a sentence that it has in mind, in the tokenizer's tokens, and counts what it has proposed."""

    name: ClassVar[str] = "guesser"

    def __init__(self, *sentences: str) -> None:
        tokenizer = bundled.load()[1]
        self.minds = [tuple(tokenizer.encode(sentence)) for sentence in sentences]
        self.proposed = 0

    def begin(self, run: DraftRun) -> Drafting:
        return self

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        drafts = []
        for site, length in zip(sites, lengths, strict=True):
            written = len(site.tokens)
            rest = next((mind[written:] for mind in self.minds if mind[:written] == site.tokens), ())
            drafts.append(Draft(rest[:length]))
            self.proposed += len(drafts[-1].tokens)
        return drafts


@pytest.fixture
def guesser() -> Guesser:
    """Right now and then, wrong most of the time, and once banned."""
    return Guesser("no, it is closed", "yes, until noon", "nobody knows")


ROADS: dict[str, tuple[Wanted, tuple[Door, ...]]] = {
    "choice": (ANSWER, DOORS),
    "banned": (SUNDAY, (*DOORS, *BANNING)),
    "banned, drafted": (SUNDAY, (*DOORS, banned_generator)),
}
"""Requests, each with the doors that it is made at."""


@pytest.fixture(scope="module")
def laws(model: PhiTransformers, truth: dict[str, float]) -> dict[str, dict[str, float]]:
    """Return P(text) under mu* of what is asked; of the choice by complete enumeration."""
    found = ANSWER.generator(model).probabilities(ANSWER.prompt, tolerance=0.0, **ANSWER.limits)
    return {**dict.fromkeys(ROADS, truth), "choice": {word: found[word].p for word in WORDS}}


def asked(name: str, guesser: Guesser, **options: Any) -> Wanted:
    drafts = {"draft": [guesser, "prompt_lookup"], "draft_length": 3} if "drafted" in name else {}
    return ROADS[name][0].by(**drafts, **options)


AUTO = [pytest.param("choice", door, "auto", marks=[pytest.mark.full] if i % 2 else []) for i, door in enumerate(DOORS)]
EXACT = [(name, door, "exact") for name, (_, doors) in ROADS.items() for door in doors]
CONTROLS = [(name, door) for name, (_, doors) in ROADS.items() for door in doors[::2]]


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "door", "phi"), [*EXACT, *AUTO], ids=lambda value: getattr(value, "__name__", value))
def test_texts_of_every_road_have_the_law(
    name: str, door: Door, phi: str, fresh: PhiTransformers, laws: dict[str, dict[str, float]], guesser: Guesser
) -> None:
    drawn = door(fresh, wanted := asked(name, guesser, phi=phi))
    assert len(drawn) == wanted.n and p_value(drawn, laws[name]) > ALPHA
    assert bool(guesser.proposed) == ("drafted" in name)


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "door"), CONTROLS, ids=lambda value: getattr(value, "__name__", value))
def test_masked_texts_fail_the_same_test(
    name: str, door: Door, model: PhiTransformers, laws: dict[str, dict[str, float]], guesser: Guesser
) -> None:
    """Power control: texts of phi="local" without their weights, also with drafts; they hold no phrase either."""
    drawn = door(model, fewer(asked(name, guesser, phi="local"), door))
    assert p_value(drawn, laws[name]) < ALPHA
    assert name == "choice" or not any(phrase in PROMPT + text for text in drawn for phrase in BAN)


def test_unbanned_texts_hold_the_phrase(model: PhiTransformers, texts: dict[str, float]) -> None:
    drawn = model(PROMPT, banned_phrases=None, do_sample=True, num_return_sequences=N, **LAW)
    assert p_value(drawn, texts) > ALPHA and any(BAN[0] in text for text in drawn)


@pytest.fixture(scope="module")
def ahead(model: PhiTransformers) -> list[str]:
    """Return many draws of a look-ahead, whose law is tested with its sampler."""
    return Generator(model, None, banned_phrases=BAN).sample(PROMPT, 5 * N, seed=3, **LAW).texts


@through(*(door for door in (*DOORS, *BANNING) if door not in ONE_BY_ONE))
def test_a_look_ahead_is_the_same_on_every_road(door: Door, model: PhiTransformers, ahead: list[str]) -> None:
    drawn = door(model, SUNDAY.by(phi="lookahead"))
    assert not any(phrase in PROMPT + text for text in drawn for phrase in BAN) and same_law(drawn, ahead) > ALPHA


def test_a_look_ahead_of_one_text_is_that_of_its_seed(model: PhiTransformers) -> None:
    """Doors with a call for each text draw what :meth:`Generator.sample` draws, text by text."""
    generator = Generator(model, None, banned_phrases=BAN, phi="lookahead")
    texts = set()
    for seed in range(20):
        (text,) = generator.sample(PROMPT, 1, seed=seed, **LAW).texts
        assert generator(PROMPT, seed=seed, **LAW) == text
        assert "".join(generator.stream(PROMPT, seed=seed, **LAW)) == text
        texts.add(text)
    assert len(texts) > 3


def test_masked_texts_and_exact_ones_have_other_laws(model: PhiTransformers, ahead: list[str]) -> None:
    for phi in ("local", "exact"):
        drawn = model(PROMPT, banned_phrases=BAN, phi=phi, num_return_sequences=5 * N, **LAW)
        assert same_law(drawn, ahead) < 1e-6, phi


@pytest.mark.parametrize("phi", ["exact", "auto"])
def test_an_output_type_without_a_phrase(phi: str, model: PhiTransformers) -> None:
    answer = Literal["yes", "not now", "nobody", "no"]
    law = Generator(model, answer).probabilities(PROMPT, tolerance=0.0, max_new_tokens=12)
    kept = {word: law[word].p for word in ("yes", "not now", "nobody", "no") if "now" not in word}
    truth = {word: p / sum(kept.values()) for word, p in kept.items()}
    for road in (
        lambda: model(PROMPT, answer, banned_phrases=["now"], phi=phi, num_return_sequences=N),
        lambda: Generator(model, answer, banned_phrases=["now"], phi=phi).sample(PROMPT, N).texts,
        lambda: generate.format(model, answer, samplers.multinomial(N), phi=phi, banned_phrases=["now"])(PROMPT),
    ):
        assert p_value(road(), truth) > ALPHA
    assert p_value(model(PROMPT, answer, phi=phi, num_return_sequences=N), truth) < 1e-6


HALF = "Question: is the bakery open on Sunday? Answer: no, it"


@pytest.fixture(scope="module")
def half(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) after a prompt that ends inside the phrase."""
    return free_texts(model, HALF, k=SUNDAY.top_k, budget=SUNDAY.budget)


class TestPrompts:
    def test_a_phrase_may_begin_in_one_prompt_of_a_batch(
        self, half: dict[str, float], truth: dict[str, float], model: PhiTransformers
    ) -> None:
        straddling = without(half, BAN, HALF)
        assert sum(p for text, p in half.items() if text not in straddling) > 0.5
        options: dict[str, Any] = {"banned_phrases": BAN, "phi": "exact", "num_return_sequences": N, **LAW}
        whole, drawn = model.batch([PROMPT, HALF], **options)
        assert p_value(whole, truth) > ALPHA and p_value(drawn, straddling) > ALPHA

    def test_or_it_does_not_count(self, half: dict[str, float], model: PhiTransformers) -> None:
        ban = BannedPhrases(BAN, across_prompt=False)
        drawn = model(HALF, banned_phrases=ban, phi="exact", num_return_sequences=N, **LAW)
        assert any(text.startswith(" is") for text in drawn) and p_value(drawn, without(half, BAN, "")) > ALPHA

    @pytest.mark.parametrize("phi", ["lookahead", "local", None])
    def test_other_corrections_do_not_leak_there(self, phi: str | None, model: PhiTransformers) -> None:
        options: dict[str, Any] = {"do_sample": True, "num_return_sequences": 50, **LAW}
        rows = model.batch([PROMPT, HALF], banned_phrases=BAN, phi=phi, **options)
        for prompt, drawn in zip([PROMPT, HALF], rows, strict=True):
            assert not any(BAN[0] in prompt + text for text in drawn)
