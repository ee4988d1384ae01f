"""Probabilities, the mode and certificates through generators and stock calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex

from outlines_phi import BudgetError, Effort, EmptyLanguageError, ExactPhi, Generator, PhiTransformers, UnsupportedError
from outlines_phi.lm import watch
from outlines_phi.phi.tree import best_first
from outlines_phi.plugin.generator import PhiGenerator
from outlines_phi_workbench.suite.reference import Reference, count_prefixes
from tests.languages import ALPHA, DRAWS, ids, p_value
from tests.loaded import Character
from tests.plugin.oracle import by_text, reference
from tests.precision import NATS, near, near_log

QUESTION = "Question: is the bakery open on Sunday? Answer: "
OTHER = "Question: is the school open on Monday? Answer: "
CHARACTER = "New character: Aria. JSON: "
ANSWER = Literal["yes", "no", "not now", "nobody"]
BUDGET = 12


@pytest.fixture
def generator(fresh: PhiTransformers) -> PhiGenerator:
    return Generator(fresh, ANSWER)


def law_of(model: PhiTransformers, **settings: Any) -> Reference:
    return reference(model, ANSWER, QUESTION, BUDGET, **settings)


class TestProbabilities:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 40}], ids=str)
    def test_they_are_those_of_enumeration(
        self, generator: PhiGenerator, settings: dict[str, Any], model: PhiTransformers
    ) -> None:
        result = generator.probabilities(QUESTION, tolerance=0, max_new_tokens=BUDGET, **settings)
        assert {value: entry.p for value, entry in result.items()} == near(by_text(model, law_of(model, **settings).mu))
        assert all(entry.lo <= entry.p <= entry.hi for entry in result.entries)
        assert result.complete and result.counts.calls <= 4 and result.budget == BUDGET

    def test_after_draws_they_cost_what_no_draw_came_to(self, generator: PhiGenerator) -> None:
        whole = generator.probabilities(QUESTION, seed=0, tolerance=0).counts
        draws = generator.sample(QUESTION, 5)
        assert draws.counts.calls == 1 and 0 < draws.counts.tokens < whole.tokens
        assert generator.probabilities(QUESTION).counts.calls == 0
        result = generator.probabilities(QUESTION, tolerance=0)
        # Nothing is evaluated twice; an enumeration of its own evaluates most of it again.
        most = count_prefixes(generator.table, result.budget, 10_000) or 0
        assert 0 < result.counts.calls <= 4 and draws.counts.tokens + result.counts.tokens < most
        assert draws.counts.tokens + result.counts.tokens + whole.tokens > most
        (lower, upper), (least, most) = draws.log_z_bounds, result.log_z_bounds
        assert lower <= least == most <= upper
        assert generator.sample(QUESTION, 5).counts.calls == generator.probabilities(QUESTION).counts.calls == 0

    def test_usual_spellings_are_enough_for_a_certificate(
        self, generator: PhiGenerator, model: PhiTransformers
    ) -> None:
        """One call of a handful of tokens certifies a thousandth, and draws keep what is certified."""
        options, law = {"phi": ExactPhi(tolerance=1e-3), "max_new_tokens": BUDGET}, law_of(model)
        ready, draws = (generator.sample(QUESTION, n, seed=11, **options) for n in (1, DRAWS))
        assert 0 < ready.certificate.total_variation < 1e-3 and ready.counts.calls == 1 and ready.counts.tokens < 10
        lower, upper = draws.log_z_bounds
        assert p_value(ids(draws), law.mu) > ALPHA and lower - NATS <= law.log_phi <= upper + NATS

    def test_few_prefixes_of_a_record_decide(self, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        """A call takes what may count, not all that it has room for."""
        characters, spent = Generator(fresh, Character), []
        for left in (best_first.LEFT, 0.0):
            monkeypatch.setattr(best_first, "LEFT", left)
            found = characters.probabilities("Character: Aria is a brave elf. JSON: ", tolerance=0.01, seed=0)
            spent.append(found.counts)
            assert found.tolerance <= 0.01
        few, many = spent
        assert few.calls <= many.calls + 2 and few.tokens < 0.85 * many.tokens

    def test_seeds_do_not_matter_and_start_afresh(self, generator: PhiGenerator) -> None:
        first = generator.probabilities(QUESTION)
        seeded = generator.probabilities(QUESTION, seed=3)
        assert seeded.entries == first.entries and seeded.counts.calls == 1
        assert generator.probabilities_batch([]) == [] == generator.mode_batch([])


class TestMode:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.3}, {"temperature": 3.0}, {"top_p": 0.9}], ids=str)
    def test_it_is_that_of_enumeration(
        self, generator: PhiGenerator, settings: dict[str, Any], model: PhiTransformers
    ) -> None:
        log_p = law_of(model, **settings).log_p
        best, settings = sorted(log_p, key=lambda ids: (-log_p[ids], ids))[:4], {"max_new_tokens": BUDGET, **settings}
        ranking = generator.mode(QUESTION, 4, **settings)
        assert ([member.token_ids for member in ranking], ranking[0].log_p) == (best, near_log(log_p[best[0]]))
        assert ranking.certified == len(ranking) and ranking.gap == 0.0 and ranking.counts.calls <= 3
        again = generator.mode(QUESTION, 4, **settings)
        assert again.items == ranking.items and again.counts.calls == 0
        seeded = generator.mode(QUESTION, 4, seed=5, **settings)
        assert seeded.texts == ranking.texts and seeded.counts == ranking.counts
        first = generator.mode(QUESTION, seed=5, **settings)
        assert first.items == ranking.items[:1] and first.counts.calls == 1 and first.counts.tokens < 10

    def test_calls_without_sampling_give_it(self, generator: PhiGenerator, fresh: PhiTransformers) -> None:
        ranking = generator.mode(QUESTION, 3)
        assert generator(QUESTION, do_sample=False) == ranking.texts[0]
        assert generator(QUESTION, do_sample=False, num_return_sequences=3) == ranking.texts
        assert fresh(QUESTION, ANSWER, phi="exact", do_sample=False) == ranking.texts[0]
        assert fresh(QUESTION, ANSWER, phi="auto", do_sample=False) == ranking.texts[0]
        assert outlines.Generator(fresh, ANSWER)(QUESTION, phi="exact", do_sample=False) == ranking.texts[0]
        for law in ({"temperature": 3.0}, {"temperature": 0.2}, {"top_p": 0.8}, {"max_new_tokens": 4}):
            answer = fresh(QUESTION, ANSWER, phi="exact", do_sample=False, **law)
            assert answer == generator.mode(QUESTION, **law).texts[0]
        batch = fresh.batch([QUESTION, OTHER], ANSWER, phi="exact", do_sample=False)
        assert batch == [generator.mode(prompt).texts[0] for prompt in (QUESTION, OTHER)]
        several = generator.batch([QUESTION, OTHER], do_sample=False, num_return_sequences=2)
        assert several == [generator.mode(prompt, 2).texts for prompt in (QUESTION, OTHER)]

    def test_the_effort_and_tolerance_of_the_estimator_hold(self, fresh: PhiTransformers) -> None:
        hasty = ExactPhi(effort=Effort(tokens=30))
        with pytest.raises(BudgetError, match="used its 30 model tokens"):
            fresh(CHARACTER, Character, phi=hasty, do_sample=False)
        with pytest.raises(BudgetError, match="used its 30 model tokens"):
            Generator(fresh, Character, phi=hasty).mode(CHARACTER)
        loose = Generator(fresh, Character).mode(CHARACTER, tolerance=1.0, seed=0)
        tight = Generator(fresh, Character).mode(CHARACTER, seed=0)
        assert loose.counts.tokens <= tight.counts.tokens and loose.gap <= math.log(2)
        assert fresh(CHARACTER, Character, phi=ExactPhi(tolerance=0.5), do_sample=False)


@pytest.mark.parametrize("door", ["probabilities", "mode"])
def test_seconds_end_a_search(door: str, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes a second."""
    time = iter(range(10**6))
    monkeypatch.setattr(watch, "now", lambda: float(next(time)))
    generator = Generator(fresh, regex("[a-z ]{9,12}"))
    with pytest.raises(BudgetError, match="its 3 s were over") as caught:
        getattr(generator, door)("Story: Aria is a ", effort=Effort(seconds=3))
    assert caught.value.partial[0].log_z_bounds[1] <= 0
    asked = fresh(QUESTION, ANSWER, phi=ExactPhi(effort=Effort(seconds=10**5)), do_sample=False)
    assert asked == generator.model(QUESTION, ANSWER, phi="exact", do_sample=False)


@pytest.mark.parametrize("door", ["probabilities", "mode"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"phi": "exact"}, "Leave phi out of .*draws nothing"),
        ({"num_return_sequences": 2}, "Leave num_return_sequences out of"),
        ({"do_sample": False}, "Leave do_sample out of"),
        ({"effort": 5}, r"expected Effort\(tokens=..., seconds=...\)"),
        ({"phi": None}, "Leave phi out of .*draws nothing"),
        ({"max_length": 9}, "max_length cannot be used here .give max_new_tokens="),
        ({"n": 9}, r"n cannot be used here \((give top=|nothing is).*\)\.$"),
        ({"foo": 9}, r"foo cannot be used here; expected any of temp(?!.*(do_sample|num_|phi))"),
        ({"temperature": 0}, "temperature=0 was given"),
    ],
    ids=str,
)
def test_what_is_refused(generator: PhiGenerator, door: str, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        getattr(generator, door)(QUESTION, **keywords)


OTHERS: list[tuple[Callable[[PhiGenerator], Any], str]] = [
    *(
        (lambda g, t=t: g.probabilities(QUESTION, tolerance=t), r"expected a number in \[0, 1\)")
        for t in (-1, 1, "0.1", True, math.nan)
    ),
    *((lambda g, top=top: g.mode(QUESTION, top), "top=.* a whole number of at least 1") for top in (0, -3, 2.0, True)),
    *(
        (
            lambda g, phi=phi: g(QUESTION, phi=phi, do_sample=False),
            f"Give phi='exact' with do_sample=False.*phi='{phi}'",
        )
        for phi in ("local", "onestep")
    ),
    (lambda g: g.mode_batch(QUESTION), "expected a list of str or Chat"),
    (lambda g: g.probabilities_batch(QUESTION), "expected a list of str or Chat"),
    (lambda g: g.mode("Person: Nora is a teacher. JSON: ", top_k=1), "under top_k=1"),
    (lambda g: g.probabilities("Person: Nora is a teacher. JSON: ", top_k=1), "under top_k=1"),
    (lambda g: g.mode(QUESTION, max_new_tokens=1), "max_new_tokens=1 is too small"),
]


@pytest.mark.parametrize(("call", "words"), OTHERS, ids=[words for _, words in OTHERS])
def test_what_else_is_refused(call: Callable[[PhiGenerator], Any], words: str, generator: PhiGenerator) -> None:
    with pytest.raises((UnsupportedError, EmptyLanguageError), match=words):
        call(generator)
