"""The exact reference, against brute force over all token sequences."""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import pytest
from torch import Tensor

from outlines_phi.errors import UnsupportedError
from outlines_phi.guides.table import Table
from outlines_phi.phi.dp_bigram import BigramDPPhi
from outlines_phi.phi.estimator import Need, ProposalPhi, StepPhi
from outlines_phi.phi.onestep import LocalPhi, OneStepPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi_workbench.suite.reference import Reference, count_prefixes, enumerate_language
from tests.guides.banning import assert_same
from tests.languages import LANGUAGES, OF_EVERY_KIND, PROMPT, VOCABULARY, Language

PROPOSALS: tuple[ProposalPhi, ...] = (LocalPhi(), OneStepPhi(), BigramDPPhi())

SMALL = (Language("two", "(ab|ba|c){1,2}", 4, seed=4), Language("ends", "a*b?", 4, seed=9))
small = pytest.mark.parametrize("language", SMALL, ids=str)


def enumerated(language: Language, phi: ProposalPhi) -> Reference:
    law = language.lm, language.table, PROMPT, language.settings(), language.budget
    return enumerate_language(*law, estimators={phi.name: phi})


def brute_force(language: Language, **options: object) -> dict[tuple[int, ...], float]:
    """log p of every member, by matching the text of every token sequence."""
    eos = VOCABULARY.eos_ids[0]
    settings = language.settings(**options)
    found = {}
    for length in range(language.budget):
        for ids in itertools.product(range(1, len(VOCABULARY)), repeat=length):
            if re.fullmatch(language.pattern, VOCABULARY.decode(ids).decode()):
                trees = language.lm.trees([PROMPT])
                laws = [settings.log_p(trees.roots().logits, VOCABULARY, ())[0]]
                for node, token in enumerate(ids):
                    laws.append(settings.log_p(trees.extend([node], [token]).logits, VOCABULARY, ())[0])
                found[(*ids, eos)] = sum(float(law[token]) for law, token in zip(laws, (*ids, eos), strict=True))
    return {ids: log_p for ids, log_p in found.items() if log_p > -math.inf}


@small
@pytest.mark.parametrize("options", [{}, {"temperature": 0.7}, {"top_k": 6}], ids=str)
def test_the_members_and_their_probabilities_are_those_of_brute_force(
    language: Language, options: dict[str, object]
) -> None:
    reference = language.reference(**options)
    expected = brute_force(language, **options)
    assert_same(set(reference.log_p), set(expected))
    assert all(reference.log_p[ids] == pytest.approx(log_p, abs=1e-6) for ids, log_p in expected.items())
    assert reference.log_phi == pytest.approx(math.log(sum(map(math.exp, expected.values()))))


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_both_laws_are_laws_and_differ(language: Language) -> None:
    reference = language.reference()
    assert sum(reference.mu.values()) == pytest.approx(1)
    assert sum(reference.mask.values()) == pytest.approx(1)
    assert any(abs(reference.mu[ids] - reference.mask[ids]) > 0.01 for ids in reference.mu)


def test_truncation_leaves_the_mask_less_than_one() -> None:
    reference = LANGUAGES[0].reference(top_k=4)
    assert 0 < sum(reference.mask.values()) < 0.999


def test_a_language_that_is_too_large_is_refused() -> None:
    language = LANGUAGES[0]
    with pytest.raises(UnsupportedError, match="max_prefixes"):
        enumerate_language(language.lm, language.table, PROMPT, language.settings(), language.budget, max_prefixes=3)


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
@pytest.mark.parametrize("phi", PROPOSALS, ids=lambda phi: phi.name)
def test_the_law_of_an_estimator_is_that_of_its_draws(language: Language, phi: ProposalPhi) -> None:
    """log q of every draw, by its own account of the steps, is what the enumeration says; and no mass is lost."""
    reference = enumerated(language, phi)
    assert sum(reference.distribution(phi.name).values()) == pytest.approx(1)
    for draw in AncestralSampler(phi).sample(language.request(60, seed=2))[0]:
        assert draw.log_p - draw.log_w == pytest.approx(reference.log_q[phi.name][draw.token_ids], abs=1e-9)


def steps(law: Mapping[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """The probability of the last token of each prefix, given those before it, under a distribution of texts."""
    mass: dict[tuple[int, ...], float] = defaultdict(float)
    for ids, p in law.items():
        for length in range(len(ids) + 1):
            mass[ids[:length]] += p
    return {ids: p / mass[ids[:-1]] for ids, p in mass.items() if ids and mass[ids[:-1]] > 0}


def test_draws_without_weights_keep_the_a_priori_bound() -> None:
    """Theory, 1.4: TV <= 1 - r^T, each step having at least r times its probability under mu*; texts fall short by more."""
    steps_add_up = False
    for language in OF_EVERY_KIND:
        for phi in PROPOSALS[:2]:
            reference = enumerated(language, phi)
            law = reference.distribution(phi.name)
            of_law, of_mu = steps(law), steps(reference.mu)
            ratio = min(of_law.get(ids, 0.0) / p for ids, p in of_mu.items() if p > 0)
            tv = 1 - sum(min(law[ids], p) for ids, p in reference.mu.items())
            assert tv <= 1 - ratio ** max(map(len, law)) + 1e-9
            steps_add_up |= min(law[ids] / p for ids, p in reference.mu.items()) < 0.9 * ratio
    assert steps_add_up


def test_several_estimators_are_enumerated_together() -> None:
    language = LANGUAGES[2]
    together = enumerate_language(
        language.lm,
        language.table,
        PROMPT,
        language.settings(),
        language.budget,
        estimators={p.name: p for p in PROPOSALS},
    )
    for phi in PROPOSALS:
        assert together.log_q[phi.name] == pytest.approx(enumerated(language, phi).log_q[phi.name])
    assert together.log_mask == pytest.approx(language.reference().log_mask)


@final
@dataclass(frozen=True)
class Blind(StepPhi):
    """A wrong estimator: it never writes the token 5, "c"."""

    name: ClassVar[str] = "blind"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide"})

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        log_h = LocalPhi().log_h(log_p, table, state, remaining)
        log_h[table.partition(state).class_of[5]] = -math.inf
        return log_h


def test_what_an_estimator_never_draws_has_no_probability() -> None:
    reference = enumerated(LANGUAGES[0], Blind())
    for ids, log_q in reference.log_q["blind"].items():
        assert (log_q == -math.inf) == (5 in ids)


@pytest.mark.parametrize("language", [*SMALL, *OF_EVERY_KIND], ids=str)
def test_prefixes_are_counted(language: Language) -> None:
    members = language.reference().mu
    prefixes = len({ids[:i] for ids in members for i in range(len(ids))})
    assert count_prefixes(language.table, language.budget, prefixes) == prefixes
    assert count_prefixes(language.table, language.budget, prefixes - 1) is None


def test_a_language_without_end_is_too_many_at_once() -> None:
    language = LANGUAGES[1]
    assert count_prefixes(language.table, 10**6, 1000) is None
