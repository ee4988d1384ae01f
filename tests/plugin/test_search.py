"""Probabilities and the mode through generators and stock calls."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from typing import Any, Literal

import outlines
import pytest
from outlines.types import JsonSchema, regex
from pydantic import BaseModel, field_validator

import outlines_phi
from outlines_phi import BudgetError, Effort, ExactPhi, PhiTransformers
from outlines_phi.errors import EmptyLanguageError, UnsupportedError, ValueReadError
from outlines_phi.lm import watch
from outlines_phi.phi.tree import best_first
from outlines_phi.plugin.generator import PhiGenerator
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.precision import SHARE, near, near_log

QUESTION = "Question: is the bakery open on Sunday? Answer: "
OTHER = "Question: is the school open on Monday? Answer: "
CHARACTER = "New character: Aria. JSON: "
ANSWER = Literal["yes", "no", "not now", "nobody"]
BUDGET = 12


class Character(BaseModel):
    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


@pytest.fixture
def generator(fresh: PhiTransformers) -> PhiGenerator:
    return outlines_phi.Generator(fresh, ANSWER)


def reference(generator: PhiGenerator, prompt: str = QUESTION, **settings: Any) -> Reference:
    model = generator.model
    chosen = outlines_phi.SamplingSettings(max_new_tokens=BUDGET, **settings)
    table = generator.logits_processor.table
    return enumerate_language(model.lm, table, model._prompt_ids(prompt), chosen, BUDGET)


def best(exact: Reference, top: int) -> list[tuple[int, ...]]:
    return sorted(exact.log_p, key=lambda ids: (-exact.log_p[ids], ids))[:top]


class TestProbabilities:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 40}], ids=str)
    def test_they_are_those_of_enumeration(self, generator: PhiGenerator, settings: dict[str, Any]) -> None:
        law: dict[str, float] = defaultdict(float)
        for ids, p in reference(generator, **settings).mu.items():
            law[generator.model.lm.vocabulary.decode(ids).decode()] += p
        result = generator.probabilities(QUESTION, tolerance=0, max_new_tokens=BUDGET, **settings)
        assert {value: entry.p for value, entry in result.items()} == near(law)
        assert all(entry.lo <= entry.p <= entry.hi for entry in result.entries)
        assert result.complete and result.counts.calls <= 4 and result.budget == BUDGET

    def test_after_draws_they_cost_what_no_draw_came_to(self, generator: PhiGenerator) -> None:
        whole = generator.probabilities(QUESTION, seed=0, tolerance=0).counts
        draws = generator.sample(QUESTION, 5)
        assert draws.counts.calls == 1 and 0 < draws.counts.tokens < whole.tokens
        assert generator.probabilities(QUESTION).counts.calls == 0
        result = generator.probabilities(QUESTION, tolerance=0)
        assert 0 < result.counts.calls <= 4 and result.counts.tokens < whole.tokens
        (lower, upper), (least, most) = draws.log_z_bounds, result.log_z_bounds
        assert lower <= least == most <= upper
        assert generator.sample(QUESTION, 5).counts.calls == generator.probabilities(QUESTION).counts.calls == 0

    def test_a_tolerance_takes_the_usual_spellings_alone(self, generator: PhiGenerator) -> None:
        """The others hold less than a thousandth, and are most of what there is to read."""
        whole, usual = (generator.probabilities(QUESTION, seed=0, tolerance=t) for t in (0, 1e-3))
        assert usual.counts.calls == 1 < whole.counts.calls
        assert 5 * usual.counts.tokens < whole.counts.tokens
        assert 0 < usual.tolerance < 1e-3 and whole.tolerance < 1e-12
        for value, entry in usual.items():
            assert entry.lo * (1 - SHARE) <= whole[value].p <= entry.hi * (1 + SHARE)

    def test_few_prefixes_of_a_record_decide(self, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        """A call takes what may count, not all that it has room for."""
        characters, spent = outlines_phi.Generator(fresh, Character), []
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

    def test_a_batch_shares_calls(self, generator: PhiGenerator) -> None:
        both = generator.probabilities_batch([QUESTION, OTHER])
        assert both[0].counts.calls == 1
        for prompt, result in zip([QUESTION, OTHER], both, strict=True):
            alone = generator.probabilities(prompt, seed=0)
            assert {v: e.p for v, e in result.items()} == near({v: e.p for v, e in alone.items()})
        assert generator.probabilities_batch([]) == []

    def test_values_are_typed(self, fresh: PhiTransformers) -> None:
        class Open(enum.Enum):
            YES = "yes"
            NO = "no"

        law = outlines_phi.Generator(fresh, Open).probabilities(QUESTION)
        assert set(law) == {Open.YES, Open.NO} and law[Open.YES].p > law[Open.NO].p
        flags = outlines_phi.Generator(fresh, bool).probabilities(QUESTION)
        assert set(flags) == {True, False}
        numbers = outlines_phi.Generator(fresh, Literal[1, 2, 30]).probabilities("Level: ")
        assert set(numbers) == {1, 2, 30} and numbers[30].text == "30"

    def test_spellings_of_equal_values_are_one(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, Character)
        law = generator.probabilities(CHARACTER, tolerance=0.01)
        elf = Character(race="elf", role="rogue", level=3, alive=True)
        assert law[elf].value == elf and len(law) == 4 * 4 * 9 * 2
        assert law.complete and law.other == (0, 0) and 0 < law.tolerance <= 0.01
        draws = generator.sample(CHARACTER, 400, seed=1)
        found = sum(draw.value.role == "rogue" for draw in draws) / len(draws)
        expected = sum(entry.p for entry in law.entries if entry.value.role == "rogue")
        assert abs(found - expected) < 4 * math.sqrt(expected * (1 - expected) / len(draws)) + law.tolerance
        # Plain masking is another law: power.
        masked = generator.sample(CHARACTER, 400, seed=1, phi="local")
        found = sum(draw.value.role == "rogue" for draw in masked) / len(masked)
        assert abs(found - expected) > 4 * math.sqrt(expected * (1 - expected) / len(masked)) + law.tolerance

    def test_all_texts_of_a_value_count(self, fresh: PhiTransformers) -> None:
        """White space makes many texts of each of two values; all are listed, so the bounds are those of the values."""

        schema = {"properties": {"alive": {"type": "boolean"}}, "required": ["alive"], "additionalProperties": False}
        flag = JsonSchema(schema | {"type": "object"}, whitespace_pattern="[ ]?")
        law = outlines_phi.Generator(fresh, flag).probabilities(CHARACTER, tolerance=0.2)
        assert law.complete and {value["alive"] for value in law} == {True, False}
        assert all(len(entry.texts) > 10 for entry in law.entries)
        exact = outlines_phi.Generator(fresh, flag).probabilities(CHARACTER, tolerance=1e-6)
        for value, entry in exact.items():
            assert law[value].lo * (1 - SHARE) <= entry.p <= law[value].hi * (1 + SHARE)

    def test_a_text_that_the_type_refuses_is_part_of_the_law(self, fresh: PhiTransformers) -> None:
        class Level(BaseModel):
            level: int

            @field_validator("level")
            @classmethod
            def check(cls, level: int) -> int:
                if level < 5:
                    raise ValueError("too low")
                return level

        with pytest.warns(outlines_phi.SchemaWarning, match=r"what .*Level\.check checks"):
            generator = outlines_phi.Generator(fresh, Level)
        with pytest.raises(BudgetError) as caught:
            generator.probabilities("Level: ", tolerance=0.0, effort=Effort(tokens=3000))
        refused = [entry for entry in caught.value.partial[0].entries if entry.refused is not None]
        assert refused and isinstance(refused[0].refused, ValueReadError) and refused[0].value == refused[0].text

    def test_texts_of_a_regex_have_bounds_of_their_own(self, fresh: PhiTransformers) -> None:
        free = outlines_phi.Generator(fresh, regex("[a-z ]{1,40}"))
        with pytest.raises(BudgetError, match="short of tolerance=0.01") as caught:
            free.probabilities(QUESTION, tolerance=0.01, effort=Effort(tokens=300), temperature=2.0)
        result = caught.value.partial[0]
        widths = [entry.hi - entry.lo for entry in result.entries]
        assert min(widths) < 0.5 * result.tolerance

    @pytest.mark.parametrize("tolerance", [-1, 1, "0.1", True, math.nan])
    def test_tolerance_is_a_share(self, generator: PhiGenerator, tolerance: object) -> None:
        with pytest.raises(UnsupportedError, match=r"expected a number in \[0, 1\)"):
            generator.probabilities(QUESTION, tolerance=tolerance)  # type: ignore[arg-type]


class TestMode:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.3}, {"temperature": 3.0}, {"top_p": 0.9}], ids=str)
    def test_it_is_that_of_enumeration(self, generator: PhiGenerator, settings: dict[str, Any]) -> None:
        exact = reference(generator, **settings)
        ranking = generator.mode(QUESTION, 4, max_new_tokens=BUDGET, **settings)
        assert [member.token_ids for member in ranking] == best(exact, 4)
        assert ranking[0].log_p == near_log(max(exact.log_p.values()))
        assert ranking.certified == len(ranking) and ranking.gap == 0.0 and ranking.counts.calls <= 3
        again = generator.mode(QUESTION, 4, max_new_tokens=BUDGET, **settings)
        assert again.items == ranking.items and again.counts.calls == 0
        seeded = generator.mode(QUESTION, 4, max_new_tokens=BUDGET, seed=5, **settings)
        assert seeded.texts == ranking.texts and seeded.counts == ranking.counts
        first = generator.mode(QUESTION, max_new_tokens=BUDGET, seed=5, **settings)
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

    def test_it_is_not_the_step_by_step_argmax(self, fresh: PhiTransformers) -> None:
        """The first word of masking's greedy choice is paid for before it is known that nothing likely follows."""
        prompt = "Question: is the bakery open on Monday? Answer: "
        differ = 0
        for output_type in (
            Literal["no", "yes"],
            Literal["yes it is", "no"],
            regex("(yes|no|it is [a-z]{3,9})[.]"),
            Character,
        ):
            for question in (prompt, QUESTION, CHARACTER):
                plain = fresh(question, output_type, do_sample=False, max_new_tokens=60)
                differ += plain != fresh(question, output_type, phi="exact", do_sample=False, max_new_tokens=60)
        assert differ

    def test_json_takes_few_calls(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, Character)
        ranking = generator.mode(CHARACTER, 3)
        assert ranking.counts.calls < 60 and ranking.counts.tokens < 1500
        assert isinstance(ranking.values[0], Character)
        likeliest = generator.probabilities(CHARACTER, tolerance=0.001).entries[0]
        assert ranking[0].text in likeliest.texts

    def test_the_effort_and_tolerance_of_the_estimator_hold(self, fresh: PhiTransformers) -> None:
        hasty = ExactPhi(effort=Effort(tokens=30))
        with pytest.raises(BudgetError, match="used its 30 model tokens"):
            fresh(CHARACTER, Character, phi=hasty, do_sample=False)
        with pytest.raises(BudgetError, match="used its 30 model tokens"):
            outlines_phi.Generator(fresh, Character, phi=hasty).mode(CHARACTER)
        loose = outlines_phi.Generator(fresh, Character).mode(CHARACTER, tolerance=1.0, seed=0)
        tight = outlines_phi.Generator(fresh, Character).mode(CHARACTER, seed=0)
        assert loose.counts.tokens <= tight.counts.tokens and loose.gap <= math.log(2)
        assert fresh(CHARACTER, Character, phi=ExactPhi(tolerance=0.5), do_sample=False)

    @pytest.mark.parametrize("phi", ["local", "onestep"])
    def test_a_step_estimator_has_no_mode(self, fresh: PhiTransformers, phi: str) -> None:
        with pytest.raises(UnsupportedError, match=f"Give phi='exact' with do_sample=False.*phi='{phi}'"):
            fresh(QUESTION, ANSWER, phi=phi, do_sample=False)

    @pytest.mark.parametrize("top", [0, -3, 2.0, True])
    def test_top_is_a_count(self, generator: PhiGenerator, top: object) -> None:
        with pytest.raises(UnsupportedError, match=r"top=.* expected a whole number of at least 1"):
            generator.mode(QUESTION, top)  # type: ignore[arg-type]

    def test_more_than_there_are(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, Literal["yes"])
        ranking = generator.mode(QUESTION, 1000)
        assert ranking.complete and set(ranking.texts) == {"yes"} and len(ranking) < 1000
        assert len(generator(QUESTION, do_sample=False, num_return_sequences=1000)) == len(ranking)

    def test_an_emptied_language_is_an_error(self, generator: PhiGenerator) -> None:
        with pytest.raises(EmptyLanguageError, match="under top_k=1"):
            generator.mode("Person: Nora is a teacher. JSON: ", top_k=1)
        with pytest.raises(EmptyLanguageError, match="under top_k=1"):
            generator.probabilities("Person: Nora is a teacher. JSON: ", top_k=1)
        with pytest.raises(EmptyLanguageError, match="max_new_tokens=1 is too small"):
            generator.mode(QUESTION, max_new_tokens=1)


@pytest.mark.parametrize("door", ["probabilities", "mode"])
def test_seconds_end_a_search(door: str, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes a second."""
    time = iter(range(10**6))
    monkeypatch.setattr(watch, "now", lambda: float(next(time)))
    generator = outlines_phi.Generator(fresh, regex("[a-z ]{9,12}"))
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


def test_a_prompt_that_is_no_prompt(generator: PhiGenerator) -> None:
    for door in (generator.mode_batch, generator.probabilities_batch):
        with pytest.raises(UnsupportedError, match="expected a list of str or Chat"):
            door(QUESTION)  # type: ignore[arg-type]
