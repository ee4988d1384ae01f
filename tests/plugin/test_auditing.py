"""Audits of applications on the bundled model, and the fit of formats: its warning, and the table that compares several."""

import math
import warnings
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.inputs import Image
from outlines.types import regex
from pydantic import BaseModel

from outlines_phi import (
    AuditReport,
    Effort,
    EmptyLanguageError,
    FidelityWarning,
    FitWarning,
    Generator,
    PhiTransformers,
    SamplingSettings,
    UnsupportedError,
    audit,
    from_language_model,
)
from outlines_phi.fidelity import FormatFit
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import LOW, REMEDIES, Beginnings, FirstToken, TableModel
from tests.languages import VOCABULARY
from tests.plugin.instruments import ARIA, MONDAY, SUNDAY, reference, trees
from tests.precision import SHARE
from tests.refusals import refused

Answer = Literal["yes", "not now", "nobody"]  # none begins another: stock Outlines would lose the longer
BUDGET = 12


class Character(BaseModel):
    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    alive: bool


def truth(model: PhiTransformers, prompt: str = MONDAY, **options: Any) -> tuple[float, float]:
    """Phi, and the total variation of masking, by enumeration."""
    laws = reference(model, Answer, prompt, BUDGET, **options)
    return math.exp(laws.log_phi), 1 - sum(min(laws.mask[ids], p) for ids, p in laws.mu.items())


def holds(report: AuditReport, phi: float, tv: float) -> bool:
    """Return True if both intervals hold the truth, to the precision of float32."""
    found = report.pooled.bias
    low, high = found.phi.interval
    return (
        low * (1 - SHARE) <= phi <= high * (1 + SHARE)
        and found.tv.interval.low <= tv + SHARE
        and tv - SHARE <= found.tv.interval.high
    )


@pytest.fixture(scope="module")
def report(model: PhiTransformers) -> AuditReport:
    return Generator(model, Answer).audit(MONDAY, n=400, max_new_tokens=BUDGET, seed=3)


def test_a_generator_is_audited(model: PhiTransformers, report: AuditReport) -> None:
    phi, tv = truth(model)
    assert holds(report, phi, tv) and tv > 0.05 and report.pooled.bias.tv.interval.low > 0.01
    assert not holds(report, phi * 1.1, tv) and not holds(report, phi, tv + 0.15)
    assert report.findings[0].name == MONDAY and not report.by_field
    assert report.budgets == (BUDGET,) and report.n == 400
    assert {one.field for one in report.pooled.distortions} == {"whole text"}


def test_masking_is_that_of_the_language_that_draws_are_of(model: PhiTransformers) -> None:
    """JSON is audited with the blanks of this package; with those of Outlines where its own generator is what is audited."""
    options: Any = {"n": 30, "max_new_tokens": 60, "seed": 3}
    draws = Generator(model, Character).sample(MONDAY, phi="local", **options)
    for source in ((model, Character), Generator(model, Character, phi=None)):
        found = audit(source, MONDAY, **options)
        assert [trace.text for trace in found.traces[0]] == draws.texts
        assert found.pooled.bias.phi.value == pytest.approx(math.exp(draws.log_z), rel=1e-6)
    stock = audit(outlines.Generator(model, Character), MONDAY, **options)
    assert [trace.text for trace in stock.traces[0]] != draws.texts


def test_no_model_call_is_made_beyond_the_draws(model: PhiTransformers, report: AuditReport) -> None:
    draws = Generator(model, Answer).sample(MONDAY, n=400, phi="local", draft=[], max_new_tokens=BUDGET, seed=3)
    assert (report.counts.calls, report.counts.tokens) == (draws.counts.calls, draws.counts.tokens)
    assert [trace.text for trace in report.traces[0]] == draws.texts


@pytest.mark.parametrize(
    "source",
    [
        lambda model, stock: (model, Answer),
        lambda model, stock: (stock, Answer),
        lambda model, stock: outlines.Generator(model, Answer),
    ],
    ids=["our model and a type", "a stock model and a type", "a stock generator of our model"],
)
def test_every_source_gives_the_same_report(source: Any, model: Any, stock: Any, report: AuditReport) -> None:
    assert audit(source(model, stock), MONDAY, 400, max_new_tokens=BUDGET, seed=3).to_dict() == report.to_dict()


def test_a_stock_generator_is_audited_as_it_is(model: Any, stock: Any) -> None:
    """Its index over the real vocabulary is the language; a type where Outlines loses no text."""
    type_ = Literal["yes", "no"]
    generator = outlines.Generator(stock, type_)
    ours, theirs = audit((model, type_), MONDAY, 100, seed=1), audit(generator, MONDAY, 100, seed=1)
    assert theirs.pooled.bias.tv.value == pytest.approx(ours.pooled.bias.tv.value, abs=SHARE)
    assert type(stock) is outlines.models.Transformers and generator.model is stock


@pytest.mark.parametrize(
    "options", [{"temperature": 0.6}, {"temperature": 1.5, "repetition_penalty": 1.2}, {"top_k": 2}], ids=str
)
def test_the_law_is_that_of_the_call(model: PhiTransformers, options: dict[str, Any]) -> None:
    """Dead ends of truncation are said."""
    report = audit((model, Answer), MONDAY, 300, max_new_tokens=BUDGET, seed=2, **options)
    assert holds(report, *truth(model, **options)) and report.settings.top_k == options.get("top_k")
    assert "top_k" in options or not holds(report, *truth(model))
    assert (report.pooled.bias.failures > 0) == any("top_k=2" in warning for warning in report.warnings)


def test_an_enumeration_narrows_the_bounds_and_is_counted(model: PhiTransformers) -> None:
    asked: dict[str, Any] = {"prompts": "New character: Aria. JSON: ", "n": 20, "seed": 1}
    without = audit((model, Character), **asked)
    bounded = audit((model, Character), **asked, bounds_tokens=1000)
    assert bounded.pooled.bias.certain.low >= without.pooled.bias.certain.low
    assert bounded.pooled.bias.certain.width < 0.5 * without.pooled.bias.certain.width
    assert bounded.pooled.bias.mean_w == without.pooled.bias.mean_w
    assert without.counts.tokens < bounded.counts.tokens <= without.counts.tokens + 1000 + 64


def test_the_generation_config_of_an_application_is_said(fresh: PhiTransformers) -> None:
    fresh.model.generation_config.top_k = 50
    assert any("top_k=50" in note for note in audit((fresh, Answer), MONDAY, 40, seed=1).warnings)
    asked = audit((fresh, Answer), MONDAY, 40, seed=1, top_k=50)
    assert asked.settings.top_k == 50 and not any("generation_config" in note for note in asked.warnings)
    fresh.model.generation_config.top_k = None
    fresh.model.generation_config.do_sample = False
    assert any("greedy" in note for note in audit((fresh, Answer), MONDAY, 40, seed=1).warnings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": []}, "No prompts"),
        ({"prompts": None}, "cannot be read"),
        ({"prompts": [MONDAY, 7]}, "cannot be read"),
        ({"n": 1}, "at least 2"),
        ({"n": 0}, "at least 2"),
        ({"n": 2.5}, "at least 2"),
        ({"n": True}, "at least 2"),
        ({"confidence": 95}, "between 0 and 1"),
        ({"bounds_tokens": -1}, "bounds_tokens"),
        ({"phi": "exact"}, "Leave phi= out of an audit"),
        ({"num_return_sequences": 3}, "Leave num_return_sequences= out of an audit"),
        ({"do_sample": False}, "do_sample"),
        ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size"),
        ({"sampler": "beam"}, "sampler"),
        ({"max_tokens": 9}, r"give max_new_tokens=\)\.$"),
        ({"temperature": 0}, "temperature"),
        ({"source": Answer}, r"expected an outlines\.Generator"),
        ({"source": "generator"}, r"expected an outlines\.Generator"),
        ({"source": (None, Answer)}, "wrap"),
        ({"prompts": Answer}, r"outlines_phi\.audit\(\(model, T\), prompts\).*in the place of the prompts"),
        ({"prompts": Literal["a"], "n": MONDAY}, r"outlines_phi\.audit\(\(model, T\), prompts\)"),
        ({"source": "free"}, "free text has no format"),
        ({"source": "stock"}, "free text has no format"),
        ({"source": "image"}, "Image"),
    ],
    ids=str,
)
def test_bad_input_is_refused(changes: dict[str, Any], message: str, model: PhiTransformers) -> None:
    asked = {"source": (model, Answer), "prompts": MONDAY, "n": 10, **changes}
    if isinstance(asked["source"], str):  # of the model
        asked["source"] = {"free": (model, None), "stock": outlines.Generator(model), "image": (model, Image)}.get(
            asked["source"], asked["source"]
        )
    refused(message, audit, **asked, error=(UnsupportedError, EmptyLanguageError))


def test_an_audit_leaves_the_model_as_it_was(fresh: PhiTransformers) -> None:
    generator = Generator(fresh, Answer)
    before = generator.sample(MONDAY, n=5, seed=9, max_new_tokens=BUDGET).texts
    generator.audit(MONDAY, n=20, max_new_tokens=BUDGET)
    assert generator.sample(MONDAY, n=5, seed=9, max_new_tokens=BUDGET).texts == before
    assert not trees(fresh)


SMALL, CAPITAL = Literal["yes", "no"], Literal["Yes", "No"]


def said(write: Any) -> list[str]:
    """Return the messages of warnings of a bad fit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write()
    assert all(each.filename == __file__ for each in caught if each.category is FitWarning)
    return [str(each.message) for each in caught if each.category is FitWarning]


def first(model: PhiTransformers, prompt: str) -> dict[str, float]:
    """Return the probabilities of first tokens, by another road than trees."""
    ids = torch.tensor([model.hf_tokenizer(prompt)["input_ids"]])
    with torch.no_grad():
        p = model.model(ids).logits[0, -1].softmax(-1)
    return {model.lm.vocabulary.tokens[i].decode(errors="replace"): float(p[i]) for i in range(len(p))}


class TestWarning:
    def test_it_has_the_numbers_and_what_helps(self, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, CAPITAL)
        (text,) = said(lambda: generator.sample(SUNDAY, 3))
        log_phi = generator.probabilities(SUNDAY, tolerance=0).log_z_bounds[0]
        law = first(fresh, SUNDAY)
        assert f"log Phi is {log_phi:.4g} after {SUNDAY!r}" in text and log_phi < LOW
        assert text.startswith("Begin the values with the capital") and REMEDIES["ask"] in text
        assert f"'no' {law['no']:.2g}, 'yes' {law['yes']:.2g}" in text and f"'No' {law['No']:.2g}" in text

    @pytest.mark.parametrize(
        "write",
        [
            lambda generator: generator(SUNDAY),
            lambda generator: generator.sample(SUNDAY, 20, phi="local"),
            lambda generator: generator.sample_batch([SUNDAY, ARIA]),
            lambda generator: generator.probabilities(SUNDAY),
            lambda generator: generator.mode(SUNDAY),
            lambda generator: "".join(generator.stream(SUNDAY, phi="exact")),
            lambda generator: generator.model(SUNDAY, CAPITAL, phi="exact"),
        ],
    )
    def test_every_door_gives_it_once_a_generator(self, fresh: PhiTransformers, write: Any) -> None:
        for _ in range(2):
            generator = Generator(fresh, CAPITAL)
            assert len(said(lambda: write(generator))) == 1  # noqa: B023
            assert said(lambda: write(generator)) == []  # noqa: B023

    def test_none_where_the_format_fits_and_none_without_an_estimator(self, fresh: PhiTransformers) -> None:
        banned = Generator(fresh, banned_phrases=["it is"])
        for write in (
            lambda: Generator(fresh, SMALL).sample(SUNDAY, 3),
            lambda: Generator(fresh, CAPITAL)(SUNDAY, phi=None),
            lambda: banned.sample(SUNDAY, phi="local", max_new_tokens=12),
        ):
            assert said(write) == []

    def test_it_costs_no_model_call(self, fresh: PhiTransformers) -> None:
        draws = Generator(fresh, CAPITAL).sample(SUNDAY, 3, phi="local", seed=1, draft=[])
        assert draws.counts.calls == max(len(draw.token_ids) for draw in draws)

    def test_filters_of_python_silence_it_and_make_it_an_error(self, fresh: PhiTransformers) -> None:
        assert issubclass(FitWarning, FidelityWarning)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", FitWarning)
            Generator(fresh, CAPITAL)(SUNDAY)
            warnings.simplefilter("error", FitWarning)
            refused("log Phi is", Generator(fresh, CAPITAL), SUNDAY, error=FitWarning)

    def test_the_worst_prompt_of_a_batch_is_named(self, fresh: PhiTransformers) -> None:
        (text,) = said(lambda: Generator(fresh, CAPITAL).sample_batch([SUNDAY, ARIA]))
        assert f"after {ARIA!r}" in text


@pytest.mark.parametrize(
    ("tokens", "log_live", "expected"),
    [
        ([("Yes", False), ("yes", True)], -8.0, ["case", "ask"]),
        ([(" yes", False), ("yes", True)], -8.0, ["blank", "ask"]),
        ([(" Yes", False), ("yes", True)], -8.0, ["case", "ask"]),
        ([("The", False), ("yes", True)], -8.0, ["ask"]),
        ([("No", False), ("n", True)], -8.0, ["ask"]),
        ([("The", False), ("A", True)], -0.5, ["ask", "ends", "fields"]),
    ],
)
def test_advice_goes_by_the_first_tokens(tokens: list, log_live: float, expected: list[str]) -> None:
    beginnings = Beginnings(tuple(FirstToken(text, 0.1, live) for text, live in tokens), log_live)
    fit = FormatFit(prompt="", form="", log_z=-8.5, log_z_bounds=(-9, -8), beginnings=beginnings)
    assert list(fit.advice) == [REMEDIES[name] for name in expected]


def test_no_advice_where_the_format_fits_and_some_where_first_tokens_are_unknown() -> None:
    assert FormatFit(prompt="", form="", log_z=-4.9, log_z_bounds=(-6, -4)).advice == ()
    assert "first tokens" not in FormatFit(prompt="", form="", log_z=-9, log_z_bounds=(-math.inf, 0)).warning


class TestTable:
    def test_the_numbers_are_those_of_enumeration(self) -> None:
        lm = TableModel.random(VOCABULARY, seed=3, scale=1.5)
        model = from_language_model(lm, lambda text: (1, 2))
        table = Generator(model, regex("(ab|ba|c){1,3}x?")).fit("p", [Literal["a", "cc"]], max_new_tokens=7)
        for fit, form in zip(table, (regex("(ab|ba|c){1,3}x?"), Literal["a", "cc"]), strict=True):
            compiled = model.table(form)
            exact = enumerate_language(lm, compiled, (1, 2), SamplingSettings(max_new_tokens=7), 7)
            assert fit.log_z_bounds[0] - 1e-6 <= exact.log_phi <= fit.log_z_bounds[1] + 1e-6
            assert fit.log_z_bounds[0] - 1e-9 <= fit.log_z <= fit.log_z_bounds[1] + 1e-9
            row = lm.trees([(1, 2)]).roots().logits[0].double().log_softmax(-1)
            live = compiled.moves(compiled.start, 7).tokens
            assert fit.beginnings.log_live == pytest.approx(float(row[live].logsumexp(0)), abs=1e-5)
            shown = [(token.text, token.live) for token in fit.beginnings.tokens]
            ranked = row.argsort(descending=True)[:5].tolist()
            assert {(VOCABULARY.tokens[i].decode(), i in live) for i in ranked} <= set(shown)

    def test_it_compares_formats_after_prompts(
        self, fresh: PhiTransformers, stock: outlines.models.Transformers
    ) -> None:
        table = Generator(fresh, SMALL).fit([SUNDAY, ARIA], [CAPITAL], tokens=6)
        assert [(fit.prompt, fit.low) for fit in table] == [(SUNDAY, False), (SUNDAY, True), (ARIA, True), (ARIA, True)]
        greedy = stock(SUNDAY, max_new_tokens=6, do_sample=False)
        text = repr(table)
        assert table[0].line == greedy.strip().partition("\n")[0] and repr(table[0].line) in text
        assert "Literal['yes', 'no']" in text and table[1].log_phi in text and REMEDIES["case"] in text
        assert said(lambda: Generator(fresh, CAPITAL).fit(SUNDAY)) == []

    @pytest.mark.parametrize(
        ("call", "words"),
        [
            (lambda m: Generator(m, banned_phrases=["it is"]).fit(SUNDAY), r"fit\(\)"),
            (lambda m: Generator(m, SMALL).fit(SUNDAY, phi="exact"), "Leave phi out of fit"),
            (lambda m: Generator(m, SMALL).fit(SUNDAY, tokens=0), "tokens=0"),
        ],
    )
    def test_what_cannot_be_compared_is_refused(self, call: Any, words: str, model: PhiTransformers) -> None:
        refused(words, call, model)


def test_marginals_are_certified_where_enumeration_ends_and_intervals_elsewhere(fresh: PhiTransformers) -> None:
    generator = Generator(fresh, Literal["yes", "no", "not now"])
    marginals, law = generator.marginals(SUNDAY), generator.probabilities(SUNDAY, tolerance=0)
    assert marginals.certified
    assert all(entry.lo - 1e-9 <= law[entry.value].p <= entry.hi + 1e-9 for entry in marginals[""])
    unfinished = generator.marginals(SUNDAY, 10, seed=1, effort=Effort(tokens=2))
    assert not unfinished.certified and "10 draws" in str(unfinished)
