"""``constraint=``, ``tokenization=`` and ``progress=`` at every door: used, told, or refused with a sentence."""

import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Any, Literal
from unittest.mock import Mock

import outlines
import pytest
from outlines.types import regex

import outlines_phi
from outlines_phi import (
    SMC,
    BudgetError,
    Effort,
    ExactPhi,
    Generator,
    PhiTransformers,
    Progress,
    TextConstraint,
    UnsupportedError,
    audit,
    generate,
    samplers,
)
from outlines_phi.errors import ConstraintError, EmptyLanguageError, InterruptedDraws
from outlines_phi_workbench.suite.reference import Reference
from tests.inner import Attempts, total_variation, watch
from tests.inner import streaming as module
from tests.languages import ALPHA, p_value
from tests.plugin.instruments import ANSWER, MONDAY, SUNDAY, by_text, custom, pair, reference, trees, written
from tests.precision import named, near
from tests.refusals import refusals, refused

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
PROMPT = "The year is "
NUMBER = regex("[0-9]{2}")


def sevens(text: str) -> bool:
    return len(text) < 2 or int(text) % 7 == 0


@pytest.fixture(scope="module")
def mu(model: outlines_phi.PhiTransformers) -> dict[tuple[int, ...], float]:
    log_p, spell = reference(model, NUMBER, PROMPT, 5).log_p, model.lm.vocabulary.decode
    p = {y: math.exp(x) for y, x in log_p.items() if sevens(spell(y).decode())}
    assert 5 < len(p) < len(log_p) / 3
    return {y: value / sum(p.values()) for y, value in p.items()}


def test_probabilities_mode_and_weights(model: outlines_phi.PhiTransformers, mu: dict[tuple[int, ...], float]) -> None:
    generator = outlines_phi.Generator(model, NUMBER, phi="local", constraint=sevens)
    draws = generator.sample(PROMPT, 2000, max_new_tokens=5, seed=1)
    spell = model.lm.vocabulary.decode
    found = generator.probabilities(PROMPT, tolerance=0.0, max_new_tokens=5)
    for text in ("14", "21", "98"):
        p = sum(share for y, share in mu.items() if spell(y).decode() == text)
        assert found[text].p == near(p)
        weighted = sum(weight for draw, weight in zip(draws, draws.weights, strict=True) if draw.text == text)
        assert weighted == pytest.approx(p, abs=0.05)
    assert all(found[text].p == 0 for text in found if not sevens(text))
    (best,) = generator.mode(PROMPT, max_new_tokens=5)
    assert best.token_ids == max(mu, key=lambda y: mu[y])
    assert model(PROMPT, NUMBER, phi="exact", constraint=sevens, do_sample=False, max_new_tokens=5) == best.text


def test_every_door(model: outlines_phi.PhiTransformers) -> None:
    generator = outlines_phi.Generator(model, NUMBER, constraint=sevens)
    texts = [
        generator(PROMPT, seed=1),
        *generator.batch([PROMPT, "Add: "], seed=1),
        "".join(generator.stream(PROMPT, seed=1)),
        model(PROMPT, NUMBER, phi="exact", constraint=sevens, seed=2),
        outlines.Generator(model, NUMBER)(PROMPT, phi="exact", constraint=sevens, seed=3),
        *model.batch([PROMPT, "Add: "], NUMBER, phi="auto", constraint=TextConstraint(sevens), seed=4),
        generate.regex(model, "[0-9]{2}", constraint=sevens)(PROMPT, seed=5),
        generate.regex(model, "[0-9]{2}")(PROMPT, seed=5, constraint=sevens),
        generate.choice(model, ["15", "28", "33"], constraint=sevens)(PROMPT, seed=6),
        str(generate.json(model, '{"type": "integer"}', constraint=is_negative)(PROMPT, seed=7)),
        str(generate.format(model, int, constraint=TextConstraint(is_negative))(PROMPT, seed=8)),
    ]
    assert all(sevens(text) for text in texts[:-2]) and all(is_negative(text) for text in texts[-2:])


def is_negative(text: str) -> bool:
    return text.startswith("-")


def test_both_constraints_hold(model: outlines_phi.PhiTransformers) -> None:
    """A predicate beside ``tokenization="canonical"``."""
    names = Literal["northern", "eastern", "western"]
    for phi in ("exact", "local"):
        generator = outlines_phi.Generator(
            model, names, phi=phi, tokenization="canonical", constraint=lambda text: "north"[: len(text)] != text[:5]
        )
        draws = generator.sample(PROMPT, 100, seed=1, temperature=8.0)
        spelled = {text: tuple(model.hf_tokenizer.encode(text)) for text in ("eastern", "western")}
        assert set(draws.texts) <= set(spelled) and len(draws) > 0
        assert all(draw.token_ids[:-1] == spelled[draw.text] for draw in draws)


def test_under_custom_generate(model: outlines_phi.PhiTransformers, mu: dict[tuple[int, ...], float]) -> None:
    hf, options = pair(model), {"output_type": NUMBER, "max_new_tokens": 5, "phi": "exact", "constraint": sevens}
    assert p_value(written(hf, custom(hf, PROMPT, num_return_sequences=2000, seed=4, **options), PROMPT), mu) > ALPHA
    assert written(hf, custom(hf, PROMPT, do_sample=False, **options), PROMPT) == [max(mu, key=lambda y: mu[y])]


def is_never(text: str) -> bool:
    return False


NEVER = TextConstraint(complete=is_never)


def stock_processor(model: Any) -> Any:
    return outlines.Generator(outlines.from_transformers(*pair(model)), NUMBER).logits_processor


GAVE_NONE = "constraint= was given without phi="
test_refused = refusals(
    [
        (lambda m: m(PROMPT, NUMBER, constraint=sevens), GAVE_NONE),
        (lambda m: outlines_phi.Generator(m, NUMBER, phi=None, constraint=sevens)(PROMPT), GAVE_NONE),
        (lambda m: generate.regex(m, "[0-9]", phi=None, constraint=sevens)(PROMPT), GAVE_NONE),
        (lambda m: outlines_phi.audit((m, NUMBER), PROMPT, 10, constraint=sevens), "Leave constraint= out of an audit"),
        (
            lambda m: outlines_phi.Generator(m, NUMBER, constraint=sevens).audit(PROMPT),
            "Leave constraint= out of an audit",
        ),
        (
            lambda m: outlines_phi.Generator(m, NUMBER, phi="local", constraint=sevens).stream(PROMPT),
            "under a step estimator or a look-ahead, whether constraint=sevens",
        ),
        (
            lambda m: outlines_phi.Generator(m, NUMBER, constraint="[0-9]"),
            r"constraint='\[0-9\]' .* a function of a text",
        ),
        (lambda m: m(PROMPT, NUMBER, phi="exact", constraint=int), "constraint=<class 'int'> .* a function"),
        (
            lambda m: m(PROMPT, NUMBER, phi="exact", constraint=lambda text: int(text + "?") > 0),
            "raised ValueError for the text '[0-9]+'",
        ),
        (
            lambda m: m(PROMPT, NUMBER, phi="local", constraint=lambda text: None),
            "returned None for the text '[0-9]+'; expected True or False",
        ),
        (
            lambda m: m(PROMPT, NUMBER, phi="exact", constraint=is_never),
            "constraint=is_never leaves no member .* asked about",
        ),
        (
            lambda m: m(PROMPT, NUMBER, phi="local", constraint=is_never),
            "constraint=is_never allows no output at all: it was asked about every first token",
        ),
        *(
            (
                lambda m, phi=phi: m(PROMPT, NUMBER, phi=phi, constraint=NEVER, max_new_tokens=5, seed=0),
                r"Let the predicate refuse earlier .* constraint=TextConstraint\(complete=is_never\) leaves no allowed token",
            )
            for phi in ("local", "learned")
        ),
        (
            lambda m: custom(
                pair(m),
                PROMPT,
                vocabulary=...,
                logits_processor=[stock_processor(m)],
                constraint=sevens,
                max_new_tokens=5,
            ),
            "give the tokenizer too: vocabulary=tokenizer",
        ),
    ],
    error=(UnsupportedError, ConstraintError, EmptyLanguageError),
)


@pytest.mark.parametrize("phi", ["local", "learned"])
def test_a_walk_that_leads_nowhere_is_a_failure(model: outlines_phi.PhiTransformers, phi: str) -> None:
    draws = outlines_phi.Generator(model, NUMBER).sample(PROMPT, 3, phi=phi, constraint=NEVER, max_new_tokens=5, seed=0)
    assert (len(draws), draws.failures, draws.log_z) == (0, 3, -math.inf)


def test_after_an_error_the_model_is_as_before(fresh: outlines_phi.PhiTransformers) -> None:
    """A predicate that fails in the middle leaves no half-known tree behind."""
    breaking = Mock(side_effect=[True, True])
    for _ in range(2):
        generator = outlines_phi.Generator(fresh, NUMBER, phi="exact")
        refused(None, generator.sample, PROMPT, 50, constraint=breaking, error=ConstraintError)
    assert not trees(fresh)
    assert sevens(fresh(PROMPT, NUMBER, phi="exact", constraint=sevens)) and len(trees(fresh)) == 1


ANSWERS = Literal[
    "northern", "eastern", "western"
]  # in pieces that the tokenizer would not choose, at a high temperature
TEMPERATURE = 8.0
HOT: dict[str, Any] = {"max_new_tokens": 12, "temperature": TEMPERATURE}


@pytest.fixture(scope="module")
def law(model: outlines_phi.PhiTransformers) -> tuple[Reference, dict[tuple[int, ...], float]]:
    whole = reference(model, ANSWERS, MONDAY, 12, temperature=TEMPERATURE)
    spelled = {tuple(model.hf_tokenizer.encode(text)) for text in ("northern", "eastern", "western")}
    p = {y: math.exp(log_p) for y, log_p in whole.log_p.items() if y[:-1] in spelled}
    assert len(p) == 3
    return whole, {y: value / sum(p.values()) for y, value in p.items()}


def test_draws_probabilities_and_mode(model: outlines_phi.PhiTransformers, law: tuple) -> None:
    """Its cost in fidelity is the share given up: conditioned on a subset, mu* is 1 - mu*(subset) away in total variation."""
    whole, mu = law
    generator = outlines_phi.Generator(model, ANSWERS, phi="exact", tokenization="canonical")
    assert p_value([draw.token_ids for draw in generator.sample(MONDAY, 6000, seed=2, **HOT)], mu) > ALPHA
    anyhow = [draw.token_ids for draw in generator.sample(MONDAY, 6000, seed=2, tokenization="any", **HOT)]
    assert p_value(anyhow, mu) < ALPHA < p_value(anyhow, whole.mu)
    found = generator.probabilities(MONDAY, tolerance=0.0, **HOT)
    assert {text: found[text].p for text in by_text(model, mu)} == near(by_text(model, mu))
    (best,) = generator.mode(MONDAY, **HOT)
    assert best.token_ids == max(mu, key=lambda y: mu[y])
    assert generator(MONDAY, do_sample=False, **HOT) == best.text
    kept = sum(whole.mu[y] for y in mu)
    assert total_variation(mu, whole.mu) == pytest.approx(1 - kept) and 0.5 < 1 - kept < 0.9


def test_on_other_roads(model: outlines_phi.PhiTransformers) -> None:
    spelled = tuple(model.hf_tokenizer.encode("northern"))
    generator = outlines_phi.Generator(model, Literal["northern"], tokenization="canonical")
    text = model(MONDAY, Literal["northern"], phi="exact", tokenization="canonical", seed=1)
    assert text == "northern" == "".join(generator.stream(MONDAY, seed=1))
    draws = generator.sample(MONDAY, 300, phi="local", seed=1, temperature=TEMPERATURE)
    assert draws.failures > 0 and {draw.token_ids[:-1] for draw in draws} == {spelled}


def canonical(model: outlines_phi.PhiTransformers, **options: Any) -> Any:
    return outlines_phi.Generator(model, ANSWERS, **{"tokenization": "canonical", **options})


test_where_it_cannot_be = refusals(
    [
        (lambda m: canonical(m)(MONDAY, phi=None), "tokenization= was given without phi="),
        (lambda m: "".join(canonical(m).stream(MONDAY, phi="local")), "under a step estimator or a look-ahead"),
        (
            lambda m: m(MONDAY, ANSWERS, phi="exact", tokenization="best"),
            "'best' was given; expected 'any' or 'canonical'",
        ),
        (lambda m: canonical(m, tokenization="best"), "expected 'any' or 'canonical'"),
        (lambda m: canonical(m).audit(MONDAY, n=10, tokenization="canonical"), "Leave tokenization= out of an audit"),
        (
            lambda m: custom(
                pair(m), MONDAY, vocabulary=m.lm.vocabulary, output_type=ANSWERS, tokenization="canonical", **HOT
            ),
            "give custom_generate vocabulary=tokenizer, which defines",
        ),
    ]
)

WORD = regex("[a-z]{3,6}[.]")
Door = Callable[[PhiTransformers, Any], object]


def by_custom_generate(model: PhiTransformers, progress: Any) -> object:
    options = {"phi": "exact", "num_return_sequences": 3, "max_new_tokens": 9}
    return custom(pair(model), SUNDAY, output_type=WORD, progress=progress, **options)


N3 = {"num_return_sequences": 3, "max_new_tokens": 9}
DOORS: dict[str, tuple[Door, int]] = {
    "model": (lambda m, p: m(SUNDAY, WORD, phi="exact", progress=p, **N3), 3),
    "model, auto": (lambda m, p: m(SUNDAY, WORD, phi="auto", progress=p, **N3), 3),
    "model, local": (lambda m, p: m(SUNDAY, WORD, phi="local", progress=p, **N3), 3),
    "model, mode": (lambda m, p: m(SUNDAY, ANSWER, phi="exact", do_sample=False, progress=p, **N3), 3),
    "model, free": (lambda m, p: m(SUNDAY, banned_phrases=["yes"], progress=p, **N3), 3),
    "batch": (lambda m, p: m.batch([SUNDAY, "Answer: "], WORD, phi="exact", progress=p, **N3), 6),
    "outlines.Generator": (lambda m, p: outlines.Generator(m, WORD)(SUNDAY, phi="exact", progress=p, **N3), 3),
    "Generator": (lambda m, p: Generator(m, WORD)(SUNDAY, progress=p, **N3), 3),
    "sample": (lambda m, p: Generator(m, WORD, phi="exact").sample(SUNDAY, 5, progress=p), 5),
    "sample_batch": (lambda m, p: Generator(m, WORD).sample_batch([SUNDAY, "A"], 2, progress=p), 4),
    "drafts": (lambda m, p: Generator(m, WORD).sample(SUNDAY, 4, phi="local", draft="tree", progress=p), 4),
    "particles": (lambda m, p: Generator(m, WORD).sample(SUNDAY, 2, sampler=SMC(particles=4), progress=p), 2),
    "resampled": (
        lambda m, p: Generator(m, WORD).sample(SUNDAY, 2, sampler=SMC(particles=4, resample="ess"), progress=p),
        2,
    ),
    "probabilities": (lambda m, p: Generator(m, ANSWER).probabilities(SUNDAY, progress=p), 0),
    "mode": (lambda m, p: Generator(m, ANSWER).mode(SUNDAY, 2, progress=p), 2),
    "audit": (lambda m, p: audit((m, WORD), [SUNDAY, "A"], 4, bounds_tokens=50, progress=p), 8),
    "custom_generate": (by_custom_generate, 3),
    "classic": (lambda m, p: generate.format(m, WORD, samplers.multinomial(3), phi="exact")(SUNDAY, progress=p), 3),
}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_tells_how_far_it_has_come(name: str, fresh: PhiTransformers) -> None:
    door, wanted = DOORS[name]
    told: list[Progress] = []
    door(fresh, told.append)
    last = told[-1]
    assert (last.draws, last.wanted) == (wanted, wanted)
    for before, after in zip(told, told[1:], strict=False):
        assert before.draws <= after.draws and before.calls <= after.calls and before.seconds <= after.seconds
    assert last.calls >= len(told) and last.tokens > 0


def test_draws_are_the_same(model: PhiTransformers) -> None:
    generator = Generator(model, WORD)
    for phi in ("exact", "auto", "local"):
        told: list[Progress] = []
        draws = generator.sample(SUNDAY, 6, phi=phi, seed=3, progress=told.append)
        assert draws == generator.sample(SUNDAY, 6, phi=phi, seed=3)
        assert (told[-1].calls, told[-1].tokens) == (draws.counts.calls, draws.counts.tokens)
        if phi == "exact":
            assert told[-1].attempts == draws.counts.attempts and told[-1].log_z_bounds == (draws.log_z_bounds,)


def test_what_is_told_may_raise_and_the_next_call_works(fresh: PhiTransformers) -> None:
    generator = Generator(fresh, WORD, phi="exact")

    def stop(progress: Progress) -> None:
        if progress.calls > 2:
            raise ZeroDivisionError

    refused(None, generator.sample, SUNDAY, 40, progress=stop, error=ZeroDivisionError)
    assert generator.sample(SUNDAY, 8, seed=2) == generator.sample(SUNDAY, 8, seed=2, progress=False)
    assert len(generator.sample(SUNDAY, 8)) == 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *(
            (
                lambda m, given=given: m(SUNDAY, ANSWER, phi="exact", progress=given),
                "progress=.*; expected True for a bar",
            )
            for given in (1, "bar", list, [])
        ),
        (lambda m: m(SUNDAY, ANSWER, progress=True, max_new_tokens=9), "progress= was given without phi="),
        (lambda m: m.stream(SUNDAY, ANSWER, phi="exact", progress=print), "Leave progress out of a stream"),
    ],
)
def test_only_what_can_be_told_is_taken(call: Callable[..., Any], words: str, model: PhiTransformers) -> None:
    """And no loop of the host and no stream tells anything."""
    refused(words, call, model)
    assert model(SUNDAY, ANSWER, progress=None, max_new_tokens=9)


def test_bars(model: PhiTransformers, capsys: pytest.CaptureFixture[str]) -> None:
    """Of draws, of calls where nothing is drawn; closed where the call fails."""
    generator, answers = Generator(model, WORD, phi="exact"), Generator(model, ANSWER)
    generator.sample(SUNDAY, 7, seed=1, progress=True)
    shown = capsys.readouterr()
    assert "7/7" in shown.err and "attempts" in shown.err and "log Phi in [" in shown.err and not shown.out
    found = answers.probabilities(SUNDAY, seed=1, progress=True)
    assert f"{found.counts.calls} calls" in capsys.readouterr().err
    hasty = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1)
    refused(None, generator.sample, SUNDAY, 50, phi=hasty, seed=1, progress=True, error=BudgetError)
    assert capsys.readouterr().err.endswith("\n")


QUIET: list[dict[str, Any]] = [
    {"phi": "auto"},
    {"phi": "local"},
    {"phi": "exact", "progress": False},
    {"phi": "exact", "progress": lambda progress: None},
    {"phi": ExactPhi(effort=Effort(seconds=10_000))},
    {"phi": "exact", "slow": 1e9},
]


@pytest.mark.parametrize("options", [{"phi": "exact"}, *QUIET], ids=named)
def test_exact_draws_that_do_not_end_soon_say_so_once(
    options: dict[str, Any], model: PhiTransformers, logged: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock takes a tenth of a second. Others say nothing, and a call that has ended."""
    time, given = count(step=0.1), {name: value for name, value in options.items() if name != "slow"}
    monkeypatch.setattr(watch, "now", lambda: next(time))
    monkeypatch.setattr(module, "SLOW", options.get("slow", 0.3))
    Generator(model, WORD).sample_batch([SUNDAY, "A"], 30, seed=1, **given)
    said = [record.getMessage() for record in logged]
    assert len(said) == (options not in QUIET)
    for line in said:
        assert line.startswith(
            "Give phi='auto' for weighted draws where exact ones are dear, ExactPhi(effort=Effort(seconds="
        )
        assert "of 60 draws, by" in line and "log Phi of prompt 0 is between -" in line and "\n" not in line


def test_ctrl_c_hands_over_typed_values(fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(fresh, Literal[1, 22, 333], phi="exact")
    read = Attempts._read_in_order

    def interrupted(self: Attempts) -> None:
        read(self)
        if len(self.accepted) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Attempts, "_read_in_order", interrupted)
    caught = refused(None, generator.sample, "One, two, ", 500, seed=1, error=InterruptedDraws)
    (draws,) = caught.value.draws
    assert len(draws) > 3 and set(draws.values) <= {1, 22, 333}
    assert str(caught.value).startswith(f"{len(draws)} of 500 draws were made")
