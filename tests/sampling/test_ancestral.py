"""Draws whose weights nobody reads: the same texts, without the model calls that tell weights alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from outlines_phi import SMC, BigramDPPhi, Draw, Draws, LearnedPhi, LocalPhi, OneStepPhi
from tests.inner import DEAD, DONE, AncestralSampler, Prefetch, Request, Sampler, SMCSampler
from tests.languages import LANGUAGES, OF_EVERY_KIND, VOCABULARY, Language
from tests.sampling.drafters import Drawn, Fixed, law_of, ranked

EOS = 0
STATELESS = {"local": LocalPhi, "onestep": OneStepPhi}
LOOP = LANGUAGES[1]
"""All of its texts end with the only letter that ends them."""


def samplers(language: Language, phi: str) -> dict[str, Sampler]:
    return {
        "undrafted": AncestralSampler(STATELESS[phi]()),
        "likeliest": AncestralSampler(STATELESS[phi](), draft=Prefetch(Fixed(ranked(language.lm, 0)), 3)),
        "of a law": AncestralSampler(STATELESS[phi](), draft=Prefetch(Drawn(law_of(language.lm, masked=True)), 3)),
    }


def both(sampler: Sampler, request: Request) -> tuple[Draws, Draws]:
    """Return the draws of a request, with their weights and without."""
    return sampler.sample(request)[0], sampler.sample(replace(request, weighted=False))[0]


def only_ends(request: Request, draw: Draw) -> bool:
    """Return True if only the end was allowed after the text, token by token."""
    table, state = request.table, request.starts[0]
    *written, end = draw.token_ids
    for place, token in enumerate(written):
        state = table.advance(state, token, request.budgets[0] - place)
    remaining = request.budgets[0] - len(written)
    live = [
        token
        for token in range(len(VOCABULARY))
        if (target := table.advance(state, token, remaining)) == DONE
        or (target != DEAD and table.guide.min_tokens(target) < remaining)
    ]
    assert end == EOS
    return live == [EOS]


@pytest.mark.parametrize("phi", STATELESS)
@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_a_text_that_can_only_end_ends_without_a_call(language: Language, phi: str) -> None:
    for name, sampler in samplers(language, phi).items():
        request = language.request(60, 3)
        weighted, lean = both(sampler, request)
        assert [draw.token_ids for draw in lean] == [draw.token_ids for draw in weighted]
        unknown = [math.isnan(draw.log_w) and math.isnan(draw.log_p) for draw in lean]
        can_only_end = [only_ends(request, draw) for draw in lean]
        assert any(can_only_end)
        assert unknown == can_only_end or name != "undrafted"
        for draw, other, known, alone in zip(lean, weighted, ~np.array(unknown), can_only_end, strict=True):
            # Where a draft came to the end of the text, the law of the end was read beside the others.
            assert known or alone
            if known:
                assert (draw.log_p, draw.log_w) == pytest.approx((other.log_p, other.log_w), abs=1e-9)
        assert lean.counts.tokens <= weighted.counts.tokens


@pytest.mark.parametrize("phi", STATELESS)
def test_that_is_a_call_less(phi: str) -> None:
    for seed in range(20):
        weighted, lean = both(AncestralSampler(STATELESS[phi]()), LOOP.request(1, seed))
        assert lean.counts.calls == weighted.counts.calls - 1
        assert lean.counts.tokens == weighted.counts.tokens - 1


@pytest.mark.parametrize("estimator", [LearnedPhi, BigramDPPhi])
def test_estimators_that_hold_something_see_every_step(estimator: type[LearnedPhi] | type[BigramDPPhi]) -> None:
    for sampler in (
        AncestralSampler(estimator()),
        AncestralSampler(estimator(), draft=Prefetch(Fixed(ranked(LOOP.lm, 0)), 3)),
    ):
        weighted, lean = both(sampler, LOOP.request(20, 3))
        assert lean.counts == weighted.counts
        assert lean.log_w == pytest.approx(weighted.log_w)


def test_truncation_may_refuse_the_end() -> None:
    """A draw fails where the end is none of the likeliest tokens, whoever reads the weights."""
    weighted, lean = both(AncestralSampler(LocalPhi()), LOOP.request(200, 4, top_k=4))
    assert weighted.failures == lean.failures > 0
    assert lean.log_w == pytest.approx(weighted.log_w)


def test_a_constraint_may_refuse_the_end() -> None:
    class Short:
        """Refuses texts of more than two tokens, when they are finished."""

        further = 1
        bytes = 0

        def allows(self, tokens: tuple[int, ...], *, finished: bool) -> bool:
            return not finished or len(tokens) < 3

    weighted, lean = both(AncestralSampler(LocalPhi()), replace(LOOP.request(200, 4), constraint=Short()))
    assert weighted.failures == lean.failures > 0
    assert all(len(draw.token_ids) <= 3 for draw in lean)


def test_particles_read_their_weights_themselves() -> None:
    weighted, lean = both(SMCSampler(LocalPhi(), SMC(particles=20, resample="ess")), LOOP.request(5, 3))
    assert lean.log_w == pytest.approx(weighted.log_w)
    assert all(map(math.isfinite, lean.log_w))
