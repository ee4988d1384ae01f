"""The law of certified draws, by exact enumeration."""

import pytest

from outlines_phi import BudgetError, Effort, ExactPhi
from outlines_phi_workbench.suite.reference import CertifiedWalk, Reference, enumerate_language
from tests.inner import ExactSampler, preexpand, total_variation
from tests.languages import ALPHA, LANGUAGES, OF_EVERY_KIND, PROMPT, Language, p_value

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


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
