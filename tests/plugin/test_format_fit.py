"""The fit of formats: the warning of a bad one, and the table that compares several."""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.types import regex

import outlines_phi
from outlines_phi import FidelityWarning, FitWarning, Generator, PhiTransformers, from_language_model
from outlines_phi.errors import UnsupportedError
from outlines_phi.fidelity import FormatFit
from outlines_phi.fidelity.format_fit import LOW, REMEDIES
from outlines_phi.lm.table_model import TableModel
from outlines_phi.phi.tree.distribution import Beginnings, FirstToken
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.languages import VOCABULARY

BAKERY, ARIA = "Question: is the bakery open on Sunday? Answer: ", "New character: Aria. JSON: "
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
    ids = torch.tensor([model._prompt_ids(prompt)])
    with torch.no_grad():
        p = model.model(ids).logits[0, -1].softmax(-1)
    return {model.lm.vocabulary.tokens[i].decode(errors="replace"): float(p[i]) for i in range(len(p))}


class TestWarning:
    def test_it_has_the_numbers_and_what_helps(self, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, CAPITAL)
        (text,) = said(lambda: generator.sample(BAKERY, 3))
        log_phi = generator.probabilities(BAKERY, tolerance=0).log_z_bounds[0]
        law = first(fresh, BAKERY)
        assert f"log Phi is {log_phi:.4g} after {BAKERY!r}" in text and log_phi < LOW
        assert text.startswith("Begin the values with the capital") and REMEDIES["ask"] in text
        assert f"'no' {law['no']:.2g}, 'yes' {law['yes']:.2g}" in text and f"'No' {law['No']:.2g}" in text

    @pytest.mark.parametrize(
        "write",
        [
            lambda generator: generator(BAKERY),
            lambda generator: generator.sample(BAKERY, 20, phi="local"),
            lambda generator: generator.sample_batch([BAKERY, ARIA]),
            lambda generator: generator.probabilities(BAKERY),
            lambda generator: generator.mode(BAKERY),
            lambda generator: "".join(generator.stream(BAKERY, phi="exact")),
            lambda generator: generator.model(BAKERY, CAPITAL, phi="exact"),
        ],
    )
    def test_every_door_gives_it_once_a_generator(self, fresh: PhiTransformers, write: Any) -> None:
        for _ in range(2):
            generator = Generator(fresh, CAPITAL)
            assert len(said(lambda: write(generator))) == 1  # noqa: B023
            assert said(lambda: write(generator)) == []  # noqa: B023

    def test_none_where_the_format_fits_and_none_without_an_estimator(self, fresh: PhiTransformers) -> None:
        assert said(lambda: Generator(fresh, SMALL).sample(BAKERY, 3)) == []
        assert said(lambda: Generator(fresh, CAPITAL)(BAKERY, phi=None)) == []
        banned = Generator(fresh, banned_phrases=["it is"])
        assert said(lambda: banned.sample(BAKERY, phi="local", max_new_tokens=12)) == []

    def test_it_costs_no_model_call(self, fresh: PhiTransformers) -> None:
        draws = Generator(fresh, CAPITAL).sample(BAKERY, 3, phi="local", seed=1, draft=[])
        assert draws.counts.calls == max(len(draw.token_ids) for draw in draws)

    def test_filters_of_python_silence_it_and_make_it_an_error(self, fresh: PhiTransformers) -> None:
        assert issubclass(FitWarning, FidelityWarning)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", FitWarning)
            Generator(fresh, CAPITAL)(BAKERY)
            warnings.simplefilter("error", FitWarning)
            with pytest.raises(FitWarning, match="log Phi is"):
                Generator(fresh, CAPITAL)(BAKERY)

    def test_the_worst_prompt_of_a_batch_is_named(self, fresh: PhiTransformers) -> None:
        (text,) = said(lambda: Generator(fresh, CAPITAL).sample_batch([BAKERY, ARIA]))
        assert f"after {ARIA!r}" in text


class TestAdvice:
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
    def test_it_goes_by_the_first_tokens(self, tokens: list, log_live: float, expected: list[str]) -> None:
        beginnings = Beginnings(tuple(FirstToken(text, 0.1, live) for text, live in tokens), log_live)
        fit = FormatFit(prompt="", form="", log_z=-8.5, log_z_bounds=(-9, -8), beginnings=beginnings)
        assert list(fit.advice) == [REMEDIES[name] for name in expected]

    def test_none_where_the_format_fits_and_some_where_first_tokens_are_unknown(self) -> None:
        assert FormatFit(prompt="", form="", log_z=-4.9, log_z_bounds=(-6, -4)).advice == ()
        assert "first tokens" not in FormatFit(prompt="", form="", log_z=-9, log_z_bounds=(-math.inf, 0)).warning


class TestTable:
    def test_the_numbers_are_those_of_enumeration(self) -> None:
        lm = TableModel.random(VOCABULARY, seed=3, scale=1.5)
        model = from_language_model(lm, lambda text: (1, 2))
        table = Generator(model, regex("(ab|ba|c){1,3}x?")).fit("p", [Literal["a", "cc"]], max_new_tokens=7)
        for fit, form in zip(table, (regex("(ab|ba|c){1,3}x?"), Literal["a", "cc"]), strict=True):
            compiled = model.table(form)
            settings = outlines_phi.SamplingSettings(max_new_tokens=7)
            exact = enumerate_language(lm, compiled, (1, 2), settings, 7)
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
        generator = Generator(fresh, SMALL)
        table = generator.fit([BAKERY, ARIA], [CAPITAL], tokens=6)
        assert [(fit.prompt, fit.low) for fit in table] == [(BAKERY, False), (BAKERY, True), (ARIA, True), (ARIA, True)]
        greedy = stock(BAKERY, max_new_tokens=6, do_sample=False)
        text = repr(table)
        assert table[0].line == greedy.strip().partition("\n")[0] and repr(table[0].line) in text
        assert "Literal['yes', 'no']" in text and table[1].log_phi in text and REMEDIES["case"] in text
        assert said(lambda: Generator(fresh, CAPITAL).fit(BAKERY)) == []

    def test_what_cannot_be_compared_is_refused(self, fresh: PhiTransformers) -> None:
        with pytest.raises(UnsupportedError, match="fit\\(\\)"):
            Generator(fresh, banned_phrases=["it is"]).fit(BAKERY)
        with pytest.raises(UnsupportedError, match="Leave phi out of fit"):
            Generator(fresh, SMALL).fit(BAKERY, phi="exact")
        with pytest.raises(UnsupportedError, match="tokens=0"):
            Generator(fresh, SMALL).fit(BAKERY, tokens=0)


class TestMarginals:
    def test_they_are_certified_where_enumeration_ends_and_intervals_elsewhere(self, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, Literal["yes", "no", "not now"])
        marginals, law = generator.marginals(BAKERY), generator.probabilities(BAKERY, tolerance=0)
        assert marginals.certified
        assert all(entry.lo - 1e-9 <= law[entry.value].p <= entry.hi + 1e-9 for entry in marginals[""])
        words, little = Generator(fresh, regex("[a-z]+")), outlines_phi.Effort(tokens=2)
        endless = words.marginals(BAKERY, 10, max_new_tokens=6, seed=1, effort=little)
        assert not endless.certified and "10 draws" in str(endless)
