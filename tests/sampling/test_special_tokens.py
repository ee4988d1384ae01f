"""The laws of samplers over formats with special tokens: exact draws, weights, windows, probabilities, beside enumeration."""

import math
from collections import defaultdict

import numpy as np
import pytest

from outlines_phi import BannedPhrases, ExactPhi, Generator, LocalPhi, from_language_model
from outlines_phi.guides import Table
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import Request, frequencies, noise_floor, total_variation
from tests.languages import (
    ALPHA,
    PROMPT,
    SPECIAL,
    SPECIAL_VOCABULARY,
    SpecialLanguage,
    correct,
    ids,
    p_value,
    sample,
    z,
)

DRAWS = 4_000
THINK = SPECIAL_VOCABULARY.special["</t>"]
"""The token before it writes its name."""


@pytest.mark.parametrize("language", SPECIAL, ids=str)
def test_exact_draws_have_the_conditioned_law_and_masked_ones_have_not(language: SpecialLanguage) -> None:
    reference = language.reference()
    drawn = ids(*sample(ExactPhi(), language.request(DRAWS, seed=1)))
    assert p_value(drawn, reference.mu) > ALPHA
    assert total_variation(frequencies(drawn), reference.mu) < 3 * noise_floor(reference.mu, DRAWS)
    assert any(THINK in one for one in drawn) and not any(THINK - 1 in one for one in reference.mu)
    masked = ids(*sample(LocalPhi(), language.request(DRAWS, seed=1)))
    assert p_value(masked, reference.mask) > ALPHA and p_value(masked, reference.mu) < ALPHA


@pytest.mark.parametrize("language", SPECIAL, ids=str)
def test_weights_are_unbiased(language: SpecialLanguage) -> None:
    reference = language.reference()
    (draws,) = sample(LocalPhi(), language.request(DRAWS, seed=2))
    assert abs(z(np.exp(draws.log_w), math.exp(reference.log_phi))) < 4 and correct(draws, reference.mu)


@pytest.mark.parametrize("language", SPECIAL, ids=str)
def test_probabilities_are_those_of_what_texts_show(language: SpecialLanguage) -> None:
    expected = defaultdict(float)
    for tokens, p in language.reference().mu.items():
        expected[language.table.guide.text(tokens).decode()] += p
    model = from_language_model(language.lm, lambda text: PROMPT)
    found = Generator(model, language.term).probabilities("", max_new_tokens=language.budget)
    for entry in found.entries:
        assert entry.lo - 1e-9 <= expected[entry.text] <= entry.hi + 1e-9
    assert math.isclose(sum(entry.p for entry in found.entries), 1)


def test_a_ban_does_not_reach_across_a_special_token() -> None:
    language = SPECIAL[0]
    guide = banned(language.table.guide, BannedPhrases(["ba", "aa"], across_prompt=False))
    reference = enumerate_language(language.lm, Table(guide), PROMPT, language.settings(), language.budget)
    texts = {guide.text(tokens) for tokens in reference.mu}
    assert b"ba" in texts and not any(b"ba" in text[:-1] or b"aa" in text[:-1] for text in texts)
    request = Request(lm=language.lm, table=Table(guide), prompts=[PROMPT], settings=language.settings(5), n=DRAWS)
    assert p_value(ids(*sample(ExactPhi(), request)), reference.mu) > ALPHA
