"""Generators with their correction built in: draws, seeds, accounts of tokens, probabilities, modes and certificates."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.types import regex

from outlines_phi import (
    SMC,
    AutoPhi,
    BudgetError,
    Draw,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    Generator,
    LocalPhi,
    PhiTransformers,
    UnsupportedError,
    generate,
    wrap,
)
from outlines_phi_workbench.suite.reference import Reference, count_prefixes
from tests.inner import PhiGenerator, TokenAccount, best_first, watch
from tests.languages import ALPHA, DRAWS, ids, p_value
from tests.loaded import Character
from tests.plugin.instruments import (
    A_PERSON,
    ANSWER,
    ARIA,
    SUNDAY,
    Gate,
    by_text,
    custom,
    inputs_of,
    pair,
    reference,
    texts,
)
from tests.precision import NATS, near, near_log
from tests.refusals import refusals, refused

COLOUR = Literal["red", "green", "dark green"]
NUMBER = regex("[0-9]{2,3}")


@pytest.fixture(scope="module")
def exact(model: PhiTransformers) -> PhiGenerator:
    return Generator(model, COLOUR, phi="exact")


def test_it_is_a_generator_of_outlines(exact: PhiGenerator, model: PhiTransformers) -> None:
    """Calls and batches are those of the model."""
    assert isinstance(exact, outlines.generator.SteerableGenerator) and exact.phi == ExactPhi()
    prompts = [A_PERSON, "no", "yes"]
    for options in ({}, {"num_return_sequences": 2}, {"phi": "local"}):
        given: dict[str, Any] = {"phi": "exact", "seed": 3, **options}
        assert exact(A_PERSON, seed=3, **options) == model(A_PERSON, COLOUR, **given)
        assert exact.batch(prompts, seed=3, **options) == model.batch(prompts, COLOUR, **given)
    assert len(exact.sample(A_PERSON, seed=2)) == 1 and exact.sample_batch([], 3) == []


def test_a_text_alone_ends_where_it_can_only_end(model: PhiTransformers) -> None:
    """The law of a forced end is read for the weights alone, by whoever returns them."""
    three_digits, options = regex("[0-9]{3}"), {"seed": 6, "max_new_tokens": 9}
    generator, hf = Generator(model, three_digits, phi="local"), pair(model)
    generated = partial(custom, hf, A_PERSON, output_type=three_digits, phi="local", **options)
    generated()  # checks the model
    ways: dict[str, tuple[Callable[[], str], int]] = {
        "sample": (lambda: generator.sample(A_PERSON, **options)[0].text, 4),
        "call": (lambda: generator(A_PERSON, **options), 3),
        "batch": (lambda: generator.batch([A_PERSON], **options)[0], 3),
        "stream": (lambda: "".join(generator.stream(A_PERSON, **options)), 3),
        "tensor": (lambda: texts(hf, generated(), A_PERSON)[0], 3),
        "output": (lambda: texts(hf, generated(return_dict_in_generate=True), A_PERSON)[0], 4),
    }
    written = set()
    for way, (call, calls) in ways.items():
        with Gate(model.model) as gate:
            written.add(call())
        assert gate.calls == calls, way
    assert len(written) == 1 and len(written.pop()) == 3


class TestSeeds:
    PROMPTS = ("Colour: ", "A shop: ", "no")
    SEEDS = (7, 8, 7)
    WAYS: dict[str, dict[str, Any]] = {
        **{phi: {"phi": phi} for phi in ("auto", "exact", "local", "onestep", "learned", "dp-bigram")},
        "particles": {"sampler": SMC(particles=5)},
        "drafted": {"phi": "local", "draft": "forced"},
    }

    @pytest.mark.parametrize("way", WAYS)
    def test_a_prompt_of_a_batch_has_the_draws_that_it_has_alone(self, way: str, model: PhiTransformers) -> None:
        generator, keywords = Generator(model, regex("[a-z]{2,4}")), self.WAYS[way]
        alone = [
            generator.sample(prompt, 6, seed=seed, **keywords).texts
            for prompt, seed in zip(self.PROMPTS, self.SEEDS, strict=True)
        ]

        def together(seed: object) -> list[list[str]]:
            return [draws.texts for draws in generator.sample_batch(list(self.PROMPTS), 6, seed=seed, **keywords)]

        assert together(list(self.SEEDS)) == together(self.SEEDS) == alone
        assert together(7)[1:] != alone[1:] and together([7, 9, 7])[1] != alone[1]

    def test_calls_take_them_too(self, exact: PhiGenerator) -> None:
        expected = [exact(prompt, seed=seed) for prompt, seed in zip(self.PROMPTS, self.SEEDS, strict=True)]
        assert exact.batch(list(self.PROMPTS), seed=self.SEEDS) == expected
        assert exact(A_PERSON, seed=[3]) == exact(A_PERSON, seed=3)


SEEDS: list[Any] = [[1, 2], [], [1, 2, -1], [1, 2, 0.5], [1, None, 2], "abc"]
test_refused = refusals(
    [
        *((lambda g, n=n: g.sample(A_PERSON, n), "a whole number of at least 1") for n in (0, -1, 1.5, "3", True)),
        (lambda g: g.sample(A_PERSON, num_return_sequences=3), "its argument n, the number of draws"),
        (lambda g: g.sample(A_PERSON, samples=3), r"samples cannot .* argument n of sample\(\)\)\.$"),
        *((lambda g, seed=seed: g.sample_batch(["a", "b", "c"], seed=seed), "seed") for seed in SEEDS),
        (lambda g: Generator(g.model, NUMBER, phi=None).sample(A_PERSON), "phi='exact' or phi='local'"),
        (lambda g: Generator(g.model, None), "free text has nothing to correct"),
        (lambda g: Generator(g.model, COLOUR, max_new_tokens=5), "give it to the generator's call"),
        (lambda g: Generator(g.model, COLOUR, ph="exact"), "did you mean phi="),
        (lambda g: Generator(g.model, COLOUR, banned=["x"]), "give banned_phrases="),
    ],
    fixture="exact",
)


def test_a_stock_model_is_wrapped(stock: outlines.models.Transformers) -> None:
    one, other = (Generator(stock, COLOUR) for _ in range(2))
    assert one.model is other.model is not stock


def test_a_generator_takes_the_phi_of_its_model(model: PhiTransformers) -> None:
    """The value of ``phi``, which wrapping again keeps."""
    masked, colours = wrap(model, phi="local"), partial(Generator, output_type=COLOUR)
    choice = partial(generate.choice, choices=["a", "b"])
    assert colours(masked).phi == choice(masked).phi == colours(wrap(masked)).phi == LocalPhi()
    assert colours(model).phi == choice(model).phi == AutoPhi()
    assert colours(masked, phi=None).phi is wrap(masked, phi=None).phi is None


WORDS = Literal["yes", "no", "no, it is closed"]
PHIS = ["exact", "auto", "local", "onestep", "fields"]
TOLD = {"seed": 3, "tokens": True, "top": 5}


def sums(draw: Draw) -> float:
    return sum(account.log_p for account in draw.tokens if account.log_p is not None)


@pytest.mark.parametrize("phi", PHIS)
def test_accounts_are_those_of_the_model(phi: str, model: PhiTransformers) -> None:
    """Against one plain call of the model over the whole text, at a temperature."""
    for draw in Generator(model, WORDS, phi=phi).sample(SUNDAY, n=3, temperature=0.7, **TOLD):
        prompt = inputs_of(model.hf_tokenizer, SUNDAY)["input_ids"]
        with torch.no_grad():
            logits = model.model(torch.cat([prompt, torch.tensor([draw.token_ids])], 1)).logits[
                0, prompt.shape[1] - 1 :
            ]
        rows = zip(draw.tokens, torch.log_softmax(logits / 0.7, -1), strict=False)
        assert sums(draw) == pytest.approx(draw.log_p, abs=1e-4)
        for account, row in rows:
            assert account.log_p == pytest.approx(float(row[account.id]), abs=1e-3) and account.top is not None
            assert [each.log_p for each in account.top] == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)
            allowed = [each.id for each in account.top if each.allowed]
            assert account.id in allowed or account.log_p <= account.top[-1].log_p
        assert b"".join(account.bytes for account in draw.tokens).decode() == draw.text


@pytest.mark.parametrize("phi", PHIS)
@pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
def test_a_stream_yields_the_accounts_of_the_text(phi: str, model: PhiTransformers) -> None:
    generator = Generator(model, WORDS, phi=phi)
    written = generator(SUNDAY, seed=3)
    accounts = list(generator.stream(SUNDAY, **TOLD))
    assert all(isinstance(account, TokenAccount) for account in accounts)
    assert (
        b"".join(account.bytes for account in accounts).decode() == written == "".join(generator.stream(SUNDAY, seed=3))
    )
    assert all(account.log_p is not None and len(account.top or ()) == 5 for account in accounts[:-1])

    async def told() -> list[TokenAccount]:
        return [account async for account in generator.astream(SUNDAY, **TOLD)]

    assert asyncio.run(told()) == accounts


def test_free_texts_have_accounts(model: PhiTransformers) -> None:
    draws = Generator(model, banned_phrases=["it is"]).sample(SUNDAY, n=20, max_new_tokens=8, **TOLD)
    for draw in draws:
        assert sums(draw) == pytest.approx(draw.log_p) and all(account.log_s is not None for account in draw.tokens)
    barred = [each.bytes for draw in draws for account in draw.tokens for each in account.top or () if not each.allowed]
    assert b" is" in barred


def test_custom_generate_hands_them_out_in_its_draws(model: PhiTransformers) -> None:
    options = {"output_type": WORDS, "phi": "local", "max_new_tokens": 20, "num_return_sequences": 4}
    found = custom(pair(model), SUNDAY, return_dict_in_generate=True, **options, **TOLD)
    (draws,) = found.draws
    assert [sums(draw) for draw in draws] == pytest.approx(found.log_p.tolist())
    assert [sum(account.log_s for account in draw.tokens) for draw in draws] == pytest.approx(found.log_w.tolist())


NOT_TOLD: list[tuple[Callable[[Any], Any], str]] = [
    (lambda g: g(SUNDAY, tokens=True), r"^Give tokens= to sample\(\) or stream\(\).*to a call that returns texts"),
    (lambda g: g.batch([SUNDAY], tokens=True, top=2), "to a call that returns texts"),
    (lambda g: g(SUNDAY, phi=None, tokens=True), "tokens= was given without phi="),
    (lambda g: g.sample(SUNDAY, top=3), r"^Give tokens=True beside top=, .*top=3 was given"),
    (lambda g: g.sample(SUNDAY, tokens="yes"), "tokens='yes' was given; expected True for an account"),
    (lambda g: g.sample(SUNDAY, tokens=True, top=0), "top=0 was given; expected a whole number from 1 to 100"),
    (lambda g: g.sample(SUNDAY, tokens=True, top=101), "top=101 was given; expected a whole number from 1 to 100"),
    (lambda g: g(SUNDAY, phi="exact", do_sample=False, tokens=True), "to a call that returns texts"),
    (lambda g: g.probabilities(SUNDAY, tokens=True), r"^Leave tokens out of probabilities\(\)"),
    (lambda g: g.mode(SUNDAY, tokens=True), r"^Leave tokens out of mode\(\)"),
    (lambda g: g.fit(SUNDAY, tokens=4, top=3), r"^Leave top out of fit\(\)"),
    (lambda g: g.audit(SUNDAY, tokens=True), r"^Give tokens= to sample\(\) with phi='local'"),
    (
        lambda g: custom(pair(g.model), SUNDAY, output_type=WORDS, max_new_tokens=9, tokens=True),
        "return_dict_in_generate=True",
    ),
]


@pytest.mark.parametrize(("call", "words"), NOT_TOLD, ids=[words for _, words in NOT_TOLD])
def test_what_has_no_room_for_accounts_says_so(call: Callable[[Any], Any], words: str, model: PhiTransformers) -> None:
    refused(words, call, Generator(model, WORDS, phi="local"))


OTHER = "Question: is the school open on Monday? Answer: "
BUDGET = 12


@pytest.fixture
def generator(fresh: PhiTransformers) -> PhiGenerator:
    return Generator(fresh, ANSWER)


def law_of(model: PhiTransformers, **settings: Any) -> Reference:
    return reference(model, ANSWER, SUNDAY, BUDGET, **settings)


class TestProbabilities:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.5}, {"top_k": 40}], ids=str)
    def test_they_are_those_of_enumeration(
        self, generator: PhiGenerator, settings: dict[str, Any], model: PhiTransformers
    ) -> None:
        result = generator.probabilities(SUNDAY, tolerance=0, max_new_tokens=BUDGET, **settings)
        assert {value: entry.p for value, entry in result.items()} == near(by_text(model, law_of(model, **settings).mu))
        assert all(entry.lo <= entry.p <= entry.hi for entry in result.entries)
        assert result.complete and result.counts.calls <= 4 and result.budget == BUDGET

    def test_after_draws_they_cost_what_no_draw_came_to(self, generator: PhiGenerator) -> None:
        whole = generator.probabilities(SUNDAY, seed=0, tolerance=0).counts
        draws = generator.sample(SUNDAY, 5)
        assert draws.counts.calls == 1 and 0 < draws.counts.tokens < whole.tokens
        assert generator.probabilities(SUNDAY).counts.calls == 0
        result = generator.probabilities(SUNDAY, tolerance=0)
        # Nothing is evaluated twice; an enumeration of its own evaluates most of it again.
        most = count_prefixes(generator.table, result.budget, 10_000) or 0
        assert 0 < result.counts.calls <= 4 and draws.counts.tokens + result.counts.tokens < most
        assert draws.counts.tokens + result.counts.tokens + whole.tokens > most
        (lower, upper), (least, most) = draws.log_z_bounds, result.log_z_bounds
        assert lower <= least == most <= upper
        assert generator.sample(SUNDAY, 5).counts.calls == generator.probabilities(SUNDAY).counts.calls == 0

    def test_usual_spellings_are_enough_for_a_certificate(
        self, generator: PhiGenerator, model: PhiTransformers
    ) -> None:
        """One call of a handful of tokens certifies a thousandth, and draws keep what is certified."""
        options, law = {"phi": ExactPhi(tolerance=1e-3), "max_new_tokens": BUDGET}, law_of(model)
        ready, draws = (generator.sample(SUNDAY, n, seed=11, **options) for n in (1, DRAWS))
        assert 0 < ready.certificate.total_variation < 1e-3 and ready.counts.calls == 1 and ready.counts.tokens < 10
        lower, upper = draws.log_z_bounds
        assert p_value(ids(draws), law.mu) > ALPHA and lower - NATS <= law.log_phi <= upper + NATS

    def test_a_type_without_bounds_is_listed_within_a_budget(self, model: PhiTransformers) -> None:
        """Digits that no token spells together are not followed beyond it."""
        assert (found := Generator(model, int).probabilities("Age: ", max_new_tokens=4)).complete and len(
            found
        ) == 1_099

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
        first, seeded = generator.probabilities(SUNDAY), generator.probabilities(SUNDAY, seed=3)
        assert seeded.entries == first.entries and seeded.counts.calls == 1
        assert generator.probabilities_batch([]) == [] == generator.mode_batch([])


class TestMode:
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.3}, {"temperature": 3.0}, {"top_p": 0.9}], ids=str)
    def test_it_is_that_of_enumeration(
        self, generator: PhiGenerator, settings: dict[str, Any], model: PhiTransformers
    ) -> None:
        log_p = law_of(model, **settings).log_p
        best, settings = sorted(log_p, key=lambda ids: (-log_p[ids], ids))[:4], {"max_new_tokens": BUDGET, **settings}
        ranking = generator.mode(SUNDAY, 4, **settings)
        assert ([member.token_ids for member in ranking], ranking[0].log_p) == (best, near_log(log_p[best[0]]))
        assert ranking.certified == len(ranking) and ranking.gap == 0.0 and ranking.counts.calls <= 3
        again = generator.mode(SUNDAY, 4, **settings)
        assert again.items == ranking.items and again.counts.calls == 0
        seeded = generator.mode(SUNDAY, 4, seed=5, **settings)
        assert seeded.texts == ranking.texts and seeded.counts == ranking.counts
        first = generator.mode(SUNDAY, seed=5, **settings)
        assert first.items == ranking.items[:1] and first.counts.calls == 1 and first.counts.tokens < 10

    def test_calls_without_sampling_give_it(self, generator: PhiGenerator, fresh: PhiTransformers) -> None:
        ranking = generator.mode(SUNDAY, 3)
        assert generator(SUNDAY, do_sample=False) == ranking.texts[0]
        assert generator(SUNDAY, do_sample=False, num_return_sequences=3) == ranking.texts
        assert fresh(SUNDAY, ANSWER, phi="exact", do_sample=False) == ranking.texts[0]
        assert fresh(SUNDAY, ANSWER, phi="auto", do_sample=False) == ranking.texts[0]
        assert outlines.Generator(fresh, ANSWER)(SUNDAY, phi="exact", do_sample=False) == ranking.texts[0]
        for law in ({"temperature": 3.0}, {"temperature": 0.2}, {"top_p": 0.8}, {"max_new_tokens": 4}):
            answer = fresh(SUNDAY, ANSWER, phi="exact", do_sample=False, **law)
            assert answer == generator.mode(SUNDAY, **law).texts[0]
        batch = fresh.batch([SUNDAY, OTHER], ANSWER, phi="exact", do_sample=False)
        assert batch == [generator.mode(prompt).texts[0] for prompt in (SUNDAY, OTHER)]
        several = generator.batch([SUNDAY, OTHER], do_sample=False, num_return_sequences=2)
        assert several == [generator.mode(prompt, 2).texts for prompt in (SUNDAY, OTHER)]

    def test_the_effort_and_tolerance_of_the_estimator_hold(self, fresh: PhiTransformers) -> None:
        hasty = ExactPhi(effort=Effort(tokens=30))
        refused("used its 30 model tokens", fresh, ARIA, Character, phi=hasty, do_sample=False, error=BudgetError)
        refused("used its 30 model tokens", Generator(fresh, Character, phi=hasty).mode, ARIA, error=BudgetError)
        loose = Generator(fresh, Character).mode(ARIA, tolerance=1.0, seed=0)
        tight = Generator(fresh, Character).mode(ARIA, seed=0)
        assert loose.counts.tokens <= tight.counts.tokens and loose.gap <= math.log(2)
        assert fresh(ARIA, Character, phi=ExactPhi(tolerance=0.5), do_sample=False)


@pytest.mark.parametrize("door", ["probabilities", "mode"])
def test_seconds_end_a_search(door: str, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes a second."""
    monkeypatch.setattr(watch, "now", map(float, range(10**6)).__next__)
    generator = Generator(fresh, regex("[a-z ]{9,12}"))
    caught = refused(
        "its 3 s were over", getattr(generator, door), "Story: Aria is a ", effort=Effort(seconds=3), error=BudgetError
    )
    assert caught.value.partial[0].log_z_bounds[1] <= 0
    asked = fresh(SUNDAY, ANSWER, phi=ExactPhi(effort=Effort(seconds=10**5)), do_sample=False)
    assert asked == generator.model(SUNDAY, ANSWER, phi="exact", do_sample=False)


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
    refused(message, getattr(generator, door), SUNDAY, **keywords)


test_what_else_is_refused = refusals(
    [
        *(
            (lambda g, t=t: g.probabilities(SUNDAY, tolerance=t), r"expected a number in \[0, 1\)")
            for t in (-1, 1, "0.1", True, math.nan)
        ),
        *(
            (lambda g, top=top: g.mode(SUNDAY, top), "top=.* a whole number of at least 1")
            for top in (0, -3, 2.0, True)
        ),
        *(
            (
                lambda g, phi=phi: g(SUNDAY, phi=phi, do_sample=False),
                f"Give phi='exact' with do_sample=False.*phi='{phi}'",
            )
            for phi in ("local", "onestep")
        ),
        (lambda g: g.mode_batch(SUNDAY), "expected a list of str or Chat"),
        (lambda g: g.probabilities_batch(SUNDAY), "expected a list of str or Chat"),
        (lambda g: g.mode("Person: Nora is a teacher. JSON: ", top_k=1), "under top_k=1"),
        (lambda g: g.probabilities("Person: Nora is a teacher. JSON: ", top_k=1), "under top_k=1"),
        (lambda g: g.mode(SUNDAY, max_new_tokens=1), "max_new_tokens=1 is too small"),
    ],
    fixture="generator",
    error=(UnsupportedError, EmptyLanguageError),
)
