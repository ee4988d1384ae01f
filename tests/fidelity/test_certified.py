"""The certified law of texts, against exact enumeration."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

from outlines_phi.errors import BudgetError, EmptyLanguageError
from outlines_phi.fidelity import probabilities
from outlines_phi.fidelity.certified import CertifiedLaw, certified_law
from outlines_phi.fidelity.divergence import total_variation
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


def law_of(language: Language, **options: float) -> CertifiedLaw:
    return certified_law(language.lm, language.table, PROMPT, language.settings(), language.budget, **options)  # type: ignore[arg-type]


def texts(language: Language) -> dict[str, float]:
    """mu* over texts, all spellings summed."""
    law: dict[str, float] = defaultdict(float)
    for ids, p in language.reference().mu.items():
        law[VOCABULARY.decode(ids).decode()] += p
    return law


@languages
def test_a_small_tolerance_gives_the_law_of_the_texts(language: Language) -> None:
    found = law_of(language, tolerance=1e-9)
    exact = texts(language)
    assert total_variation(found.probabilities, exact) < 1e-6
    assert set(found.probabilities) <= set(exact)
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert list(found.probabilities.values()) == sorted(found.probabilities.values(), reverse=True)


@languages
@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.01])
def test_the_certificate_holds_and_is_as_asked(language: Language, tolerance: float) -> None:
    found = law_of(language, tolerance=tolerance)
    lower, upper = found.phi_bounds
    phi = math.exp(language.reference().log_phi)
    assert lower * (1 - 1e-6) <= phi <= upper * (1 + 1e-6)
    assert found.tolerance == pytest.approx((upper - lower) / upper)
    assert found.tolerance <= tolerance
    assert total_variation(found.probabilities, texts(language)) <= found.tolerance + 1e-6


def test_the_enumeration_really_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probabilities, "FINITE_PREFIXES", 0)
    language = LANGUAGES[0]
    assert law_of(language, tolerance=0.5).tolerance > 0
    assert law_of(language, tolerance=0.5).tokens <= law_of(language, tolerance=1e-9).tokens


def test_too_few_tokens_are_an_error_that_carries_the_bounds() -> None:
    language = LANGUAGES[0]
    with pytest.raises(BudgetError, match="Give a larger effort") as caught:
        law_of(language, tolerance=1e-9, max_tokens=1)
    assert caught.value.log_z_bounds is not None
    low, high = caught.value.log_z_bounds
    assert low <= language.reference().log_phi <= high + 1e-9


def test_a_truncation_that_empties_the_language_is_an_error() -> None:
    language = LANGUAGES[2]
    likeliest = language.settings(top_k=1)
    with pytest.raises(EmptyLanguageError, match="truncation"):
        certified_law(language.lm, language.table, PROMPT, likeliest, language.budget)
