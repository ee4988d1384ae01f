"""Populations of look-ahead walks against enumeration (theory.md, sections 6 and 8)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from outlines_phi.errors import BudgetError, UnsupportedError
from outlines_phi.fidelity.comparison import frequencies, noise_floor, total_variation
from outlines_phi.guides.phrases.banned import BannedPhrases
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.guides.phrases.product import ProductGuide
from outlines_phi.guides.table import Table
from outlines_phi.phi.tree.store import TreeStore
from outlines_phi.sampling.draws import Draws
from outlines_phi.sampling.lookahead import LookaheadSMCSampler
from outlines_phi.sampling.particles import Particles
from outlines_phi.sampling.phi_options import Effort, LookaheadPhi
from outlines_phi.sampling.resolve import sampler_for
from outlines_phi.sampling.smc import SMC
from tests.languages import GRAMMARS, VOCABULARY
from tests.sampling.banning import NESTED, SHORT, ids

WEIGHTED = LookaheadPhi(weights=True)
OPTIONS = {
    "never": SMC(particles=4),
    "always": SMC(particles=4, resample="ess", threshold=1.0),
    "often": SMC(particles=3, resample="ess", threshold=0.95),
}


def sample(name: str, n: int = 300) -> Draws:
    return LookaheadSMCSampler(WEIGHTED, OPTIONS[name]).sample(NESTED.request(n, 1))[0]


@pytest.mark.parametrize("name", OPTIONS)
def test_populations_estimate_phi_and_mu_without_bias(name: str) -> None:
    """E[Z_hat] = Phi within four standard errors; picks, weighted by their Z_hat, and all particles together are mu*."""
    draws, mu = sample(name), NESTED.mu()
    z = np.exp(draws.log_w)
    assert abs(z.mean() - NESTED.phi()) < 4 * z.std() / math.sqrt(len(z))
    floor = noise_floor(mu, int(draws.ess))
    assert total_variation(frequencies(ids(draws), draws.weights), mu) < 1.5 * floor
    f = sum(
        share * weight
        for population, share in zip(draws.populations, draws.weights, strict=True)
        for weight, draw in zip(population.weights, population, strict=True)
        if draw.token_ids == max(mu, key=mu.__getitem__)
    )
    assert abs(f - max(mu.values())) < 0.05
    resamplings = sum(population.resamplings for population in draws.populations)
    assert (resamplings > 0) == (name != "never")
    assert not any(NESTED.bad(text) for text in ids(draws)) and draws.rejections


def test_populations_of_a_grammar_without_phrases() -> None:
    language, phrases = GRAMMARS[2], ["aa", "(ab)"]
    reference = language.reference()
    p = {y: math.exp(log_p) for y, log_p in reference.log_p.items()}
    kept = {y: x for y, x in p.items() if not any(each.encode() in VOCABULARY.decode(y) for each in phrases)}
    guide = ProductGuide(language.table.guide, PhraseGuide(VOCABULARY, BannedPhrases(phrases, across_prompt=False)))
    request = replace(language.request(300, 1), table=Table(guide))
    draws = LookaheadSMCSampler(WEIGHTED, OPTIONS["always"]).sample(request)[0]
    phi, z = sum(kept.values()), np.exp(draws.log_w)
    assert phi < 0.9 * sum(p.values()) and set(ids(draws)) <= set(kept)
    assert abs(z.mean() - phi) < 4 * z.std() / math.sqrt(len(z))
    mu = {y: x / phi for y, x in kept.items()}
    assert total_variation(frequencies(ids(draws), draws.weights), mu) < 1.5 * noise_floor(mu, int(draws.ess))


def test_resampling_without_the_mean_weight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: an epoch's weight that is dropped at the resampling."""
    right = Particles._resample

    def forgetful(self: Particles) -> None:
        right(self)
        for walk in self.walks:
            walk.log_w = 0.0

    monkeypatch.setattr(Particles, "_resample", forgetful)
    z = np.exp(sample("always").log_w)
    assert abs(z.mean() - NESTED.phi()) > 4 * z.std() / math.sqrt(len(z))


def test_populations_do_not_depend_on_what_else_is_drawn() -> None:
    sampler = LookaheadSMCSampler(WEIGHTED, OPTIONS["always"])
    alone = sampler.sample(SHORT.request(2, 4))[0]
    together = sampler.sample(SHORT.request(200, 4, rows=2))
    assert ids(together[0])[:2] == ids(alone)
    assert ids(together[0]) != ids(together[1])


def test_effort_and_options() -> None:
    short_of_effort = LookaheadPhi(weights=True, effort=Effort(attempts=1))
    with pytest.raises(BudgetError, match="the effort ran out"):
        LookaheadSMCSampler(short_of_effort, OPTIONS["always"]).sample(NESTED.request(50, 1))
    assert isinstance(sampler_for(WEIGHTED, TreeStore(), OPTIONS["never"]), LookaheadSMCSampler)
    with pytest.raises(UnsupportedError, match=r"LookaheadPhi\(weights=True\)"):
        sampler_for(LookaheadPhi(), TreeStore(), OPTIONS["never"])
