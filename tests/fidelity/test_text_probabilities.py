"""The certified probabilities of texts and the law of certified draws, against exact enumeration."""

import math
from collections import defaultdict

import pytest

from outlines_phi import BudgetError, Effort, EmptyLanguageError, ExactPhi, SamplingSettings
from outlines_phi.fidelity.comparison import total_variation
from outlines_phi.fidelity.probabilities import Probabilities, probabilities
from outlines_phi.phi.tree import preexpand
from outlines_phi.phi.tree.tree import BoundsTree
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi_workbench.suite.reference import CertifiedWalk, Reference, enumerate_language
from tests.languages import ALPHA, LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language, p_value

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


def found_of(
    language: Language, tolerance: float, max_tokens: int = 100_000, settings: SamplingSettings | None = None
) -> Probabilities:
    trees = [BoundsTree(language.table, language.budget)]
    return probabilities(
        language.lm, settings or language.settings(), [PROMPT], trees, tolerance=tolerance, max_tokens=max_tokens
    )[0]


def texts(language: Language) -> dict[str, float]:
    """mu* over texts, all spellings summed."""
    law: dict[str, float] = defaultdict(float)
    for ids, p in language.reference().mu.items():
        law[VOCABULARY.decode(ids).decode()] += p
    return law


@languages
def test_a_small_tolerance_gives_the_law_of_the_texts(language: Language) -> None:
    found = found_of(language, tolerance=1e-9)
    exact = texts(language)
    assert total_variation(found.distribution, exact) < 1e-6
    assert set(found.distribution) <= set(exact)
    assert sum(found.distribution.values()) == pytest.approx(1)
    assert list(found.distribution.values()) == sorted(found.distribution.values(), reverse=True)


@languages
@pytest.mark.parametrize("tolerance", [0.5, 0.1, 0.01])
def test_the_certificate_holds_and_is_as_asked(language: Language, tolerance: float) -> None:
    found = found_of(language, tolerance=tolerance)
    lower, upper = map(math.exp, found.log_z_bounds)
    phi = math.exp(language.reference().log_phi)
    assert lower * (1 - 1e-6) <= phi <= upper * (1 + 1e-6)
    assert found.tolerance == pytest.approx((upper - lower) / upper)
    assert found.tolerance <= tolerance
    assert total_variation(found.distribution, texts(language)) <= found.tolerance + 1e-6


def test_the_enumeration_really_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)
    language = LANGUAGES[0]
    assert found_of(language, tolerance=0.5).tolerance > 0
    assert found_of(language, tolerance=0.5).counts.tokens <= found_of(language, tolerance=1e-9).counts.tokens


def test_too_few_tokens_are_an_error_that_carries_the_bounds() -> None:
    language = LANGUAGES[0]
    with pytest.raises(BudgetError, match="Give a larger effort") as caught:
        found_of(language, tolerance=1e-9, max_tokens=1)
    assert caught.value.log_z_bounds is not None
    low, high = caught.value.log_z_bounds
    assert low <= language.reference().log_phi <= high + 1e-9


def test_a_truncation_that_empties_the_language_is_an_error() -> None:
    language = LANGUAGES[2]
    likeliest = language.settings(top_k=1)
    with pytest.raises(EmptyLanguageError, match="truncation"):
        found_of(language, tolerance=1e-3, settings=likeliest)


@pytest.fixture(autouse=True)
def never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """No language is small enough to be expanded whole beforehand."""
    monkeypatch.setattr(preexpand, "SHORT", 0)


def walk(language: Language, phi: ExactPhi) -> Reference:
    law = language.lm, language.table, PROMPT, language.settings(), language.budget
    return enumerate_language(*law, estimators={"walk": CertifiedWalk(phi.tolerance, phi.effort.tokens)})


@languages
def test_it_is_the_law_of_certified_draws(language: Language) -> None:
    phi = ExactPhi(tolerance=0.5)
    laws = walk(language, phi)
    drawn = ExactSampler(phi).sample(language.request(4000, seed=1))[0]
    assert p_value([draw.token_ids for draw in drawn], laws.distribution("walk")) > ALPHA
    assert drawn.certificate is not None
    assert total_variation(laws.distribution("walk"), laws.mu) <= drawn.certificate.total_variation + 1e-12


@languages
def test_without_tolerance_it_is_the_conditioned_law(language: Language) -> None:
    """Backward induction over the whole tree: the distance is that of rounding."""
    laws = walk(language, ExactPhi(tolerance=1e-15))
    assert total_variation(laws.distribution("walk"), laws.mu) < 1e-12


def test_an_effort_that_does_not_do_is_said() -> None:
    with pytest.raises(BudgetError, match="tolerance=1e-06 when its 3 model tokens were used"):
        walk(LANGUAGES[0], ExactPhi(tolerance=1e-6, effort=Effort(tokens=3)))
