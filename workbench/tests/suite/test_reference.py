"""The exact reference, against brute force over all token sequences."""

import itertools
import math
import re
from collections import Counter

import pytest

from outlines_phi import BigramDPPhi, LocalPhi, OneStepPhi, UnsupportedError
from outlines_phi.phi import ProposalPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi_workbench.suite.reference import Reference, count_prefixes, enumerate_language
from tests.guides.walking import assert_same
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language

PROPOSALS: dict[str, ProposalPhi] = {phi.name: phi for phi in (LocalPhi(), OneStepPhi(), BigramDPPhi())}
SMALL = (Language("two", "(ab|ba|c){1,2}", 4, seed=4), Language("ends", "a*b?", 4, seed=9))


def enumerated(language: Language, **options: object) -> Reference:
    law = language.lm, language.table, PROMPT, language.settings(), language.budget
    return enumerate_language(*law, **{"estimators": PROPOSALS, **options})  # type: ignore[arg-type]


def brute_force(language: Language, **options: object) -> dict[tuple[int, ...], float]:
    """log p of every member, by matching the text of every token sequence."""
    eos, settings, found = VOCABULARY.eos_ids[0], language.settings(**options), {}
    for length in range(language.budget):
        for ids in itertools.product(range(1, len(VOCABULARY)), repeat=length):
            if re.fullmatch(language.pattern, VOCABULARY.decode(ids).decode()):
                trees = language.lm.trees([PROMPT])
                logits = [
                    trees.roots().logits,
                    *(trees.extend([node], [token]).logits for node, token in enumerate(ids)),
                ]
                laws = [settings.log_p(each, VOCABULARY, ())[0] for each in logits]
                found[(*ids, eos)] = sum(float(law[token]) for law, token in zip(laws, (*ids, eos), strict=True))
    return {ids: log_p for ids, log_p in found.items() if log_p > -math.inf}


@pytest.mark.parametrize("language", SMALL, ids=str)
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 6}], ids=str)
def test_members_and_their_probabilities_are_those_of_brute_force(
    language: Language, options: dict[str, object]
) -> None:
    reference, expected = language.reference(**options), brute_force(language, **options)
    assert_same(set(reference.log_p), set(expected))
    assert reference.log_p == pytest.approx(expected, abs=1e-6)
    assert reference.log_phi == pytest.approx(math.log(sum(map(math.exp, expected.values()))))


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_the_laws_of_estimators_are_those_of_their_draws(language: Language) -> None:
    """log q of every draw, by its own account of the steps, is what the enumeration says; no mass is lost, and laws differ."""
    reference = enumerated(language)
    assert sum(reference.mu.values()) == pytest.approx(1)
    assert any(abs(reference.mu[ids] - reference.mask[ids]) > 0.01 for ids in reference.mu)
    for name, phi in PROPOSALS.items():
        assert sum(reference.distribution(name).values()) == pytest.approx(1)
        for draw in AncestralSampler(phi).sample(language.request(60, seed=2))[0]:
            assert draw.log_p - draw.log_w == pytest.approx(reference.log_q[name][draw.token_ids], abs=1e-9)


def test_draws_without_weights_keep_the_a_priori_bound() -> None:
    """Theory, 1.4: TV <= 1 - r^T, each step having at least r times its probability under mu*; texts fall short by more."""
    steps_add_up = False
    for language, phi in itertools.product(OF_EVERY_KIND, (LocalPhi, OneStepPhi)):
        reference = enumerated(language)
        law = reference.distribution(phi.name)
        steps = []
        for of in (law, reference.mu):
            mass = Counter[tuple[int, ...]]()
            for ids, p in of.items():
                mass.update({ids[:length]: p for length in range(len(ids) + 1)})  # type: ignore[dict-item]
            steps.append({ids: p / mass[ids[:-1]] for ids, p in mass.items() if ids and mass[ids[:-1]] > 0})
        ratio = min(steps[0].get(ids, 0.0) / p for ids, p in steps[1].items() if p > 0)
        tv = 1 - sum(min(law[ids], p) for ids, p in reference.mu.items())
        assert tv <= 1 - ratio ** max(map(len, law)) + 1e-9
        steps_add_up |= min(law[ids] / p for ids, p in reference.mu.items()) < 0.9 * ratio
    assert steps_add_up


def test_truncation_and_languages_that_are_too_large() -> None:
    assert 0 < sum(LANGUAGES[0].reference(top_k=4).mask.values()) < 0.999
    with pytest.raises(UnsupportedError, match="max_prefixes"):
        enumerated(LANGUAGES[0], max_prefixes=3)
    assert count_prefixes(LANGUAGES[1].table, 10**6, 1000) is None


@pytest.mark.parametrize("language", [*SMALL, *OF_EVERY_KIND], ids=str)
def test_prefixes_are_counted(language: Language) -> None:
    prefixes = len({ids[:i] for ids in language.reference().mu for i in range(len(ids))})
    assert count_prefixes(language.table, language.budget, prefixes) == prefixes
    assert count_prefixes(language.table, language.budget, prefixes - 1) is None
