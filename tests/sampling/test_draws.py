"""The line that shows draws."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outlines_phi import SMC, BigramDPPhi, Draw, Draws, ExactPhi, Guarantee, LearnedPhi, LocalPhi, OneStepPhi
from outlines_phi.sampling import Certificate, Population
from tests.inner import (
    AncestralSampler,
    DrawCounts,
    Prefetch,
    Request,
    Sampler,
    SMCSampler,
    Stream,
    numbers_of,
    random_stream,
)
from tests.languages import LANGUAGES, LOOP, OF_EVERY_KIND, Language, sample
from tests.refusals import refused
from tests.sampling.drafters import Drawn, Fixed, law_of, ranked
from tests.sampling.test_constraint import Rule


def one(guarantee: Guarantee = Guarantee.EXACT, log_w: float = -2.5) -> Draw:
    return Draw(text="a", token_ids=(1,), log_p=-3.0, log_w=log_w, guarantee=guarantee)


DRAWS = Draws(items=(one(), one()), budget=3, log_z_bounds=(-3.25, -2.125))
WEIGHTED = replace(DRAWS, items=(one(Guarantee.WEIGHTED), one(Guarantee.WEIGHTED)))
LOOKED_AHEAD = replace(DRAWS, items=(one(Guarantee.APPROXIMATE, math.nan),))

SHOWN = {
    "interval": (DRAWS, "log Phi in [-3.25, -2.125],"),
    "one number": (replace(DRAWS, log_z_bounds=(-2.50001, -2.5)), "log Phi -2.5,"),
    "at most 1": (replace(DRAWS, log_z_bounds=(-3.25, -0.0)), "log Phi in [-3.25, 0],"),
    "estimate": (replace(WEIGHTED, log_z_bounds=(-math.inf, 0.0)), "log Phi -2.5,"),
    "estimate and interval": (WEIGHTED, "log Phi -2.5 in [-3.25, -2.125],"),
    "normalizers": (replace(DRAWS, log_normalizers=(-3.0, -3.0)), "log Phi -3 in [-3.25, -2.125],"),
    "nothing": (replace(LOOKED_AHEAD, log_z_bounds=(-math.inf, 0.0)), "log Phi unknown,"),
    "no weights": (LOOKED_AHEAD, "log Phi in [-3.25, -2.125],"),
}


@pytest.mark.parametrize(("draws", "said"), SHOWN.values(), ids=list(SHOWN))
def test_what_is_known_of_phi(draws: Draws, said: str) -> None:
    assert said in repr(draws)


@pytest.mark.parametrize("phi", [ExactPhi(), LocalPhi()])
def test_the_interval_that_is_shown_holds(phi: ExactPhi | LocalPhi) -> None:
    (draws,) = sample(phi, LANGUAGES[0].request(20, seed=1))
    low, high = draws.log_z_bounds
    assert low <= LANGUAGES[0].reference().log_phi + 1e-9 and LANGUAGES[0].reference().log_phi <= high + 1e-9
    assert f"{low:.4g}" in repr(draws) if phi == ExactPhi() else f"log Phi {draws.log_z:.4g}" in repr(draws)


def test_one_of_a_kind_is_singular_and_a_guarantee_is_its_name() -> None:
    single = Draws(items=(one(),), budget=3, counts=DrawCounts(calls=1, tokens=1), rejections={"a": 1})
    assert repr(single).startswith("<1 draw, EXACT") and "1 model call, 1 token, 1 attempt upon" in repr(single)
    assert repr(replace(single, items=())).startswith("<0 draws")
    assert "<1,000 draws" in repr(replace(single, items=(one(),) * 1000))
    assert (
        repr(Population(items=(one(),), resamplings=1))
        == "<population of 1 particle: ess 1, log Phi -2.5, 1 resampling>"
    )
    assert str(Guarantee.EXACT) == f"{Guarantee.EXACT}" == "EXACT" and f"{Guarantee.WEIGHTED:>9}" == " WEIGHTED"
    order = ["APPROXIMATE", "FIELDWISE", "WEIGHTED", "CONFIDENT", "CERTIFIED", "EXACT"]
    assert [guarantee.name for guarantee in sorted(Guarantee)] == order


ANSWERS = [Draw(text=text, token_ids=(0,), log_p=-1.0, log_w=0.0, guarantee=Guarantee.EXACT) for text in ("no", "yes")]


@pytest.mark.parametrize("kind", [bool, int, float, np.bool_, np.float32, torch.tensor])
def test_every_kind_of_number_counts(kind: Any) -> None:
    assert numbers_of(lambda draw: kind(draw.text == "yes"), ANSWERS) == [0.0, 1.0]


@pytest.mark.parametrize("value", ["1", None, [1.0], np.ones(2), 1j, torch.ones(2)])
def test_other_values_are_refused(value: Any) -> None:
    refused(
        "returned .* for 'no'; expected a function of a draw that returns a number",
        numbers_of,
        lambda _: value,
        ANSWERS,
    )


def test_what_is_no_function_is_refused() -> None:
    refused(r"expectation\(3\) was asked for; expected a function", numbers_of, 3, ANSWERS)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", ["3", -1, 1.5, None, True])
def test_a_certificate_is_of_a_whole_number_of_draws(n: Any) -> None:
    certificate = Certificate(total_variation=0.1)
    assert certificate.for_draws(0) == 0 and certificate.for_draws(2) == pytest.approx(0.19)
    refused("expected a whole number of at least 0", certificate.for_draws, n)


@pytest.mark.parametrize("seed", [0, 7, 2**32, 2**62 + 3, 2**70])
@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, Stream.DIAGNOSTIC, Stream.AHEAD + 5])
def test_a_stream_is_that_of_numpy_for_three_numbers(seed: int, number: int) -> None:
    for row in (0, 70_000):
        expected = np.random.default_rng((seed, row, number)).random(4)
        assert (random_stream(seed, row, number).random(4) == expected).all()


CHILDREN = '''
import os, torch
from outlines_phi.sampling.sampler import seeds
from outlines_phi.settings import SamplingSettings

def told(settings, seed=None):
    """The seed of a call in a forked process, which has seeded torch itself or not."""
    told, tell = os.pipe()
    if not os.fork():
        if seed is not None:
            torch.manual_seed(seed)
        os.write(tell, repr(seeds(settings, 1)[0]).encode())
        os._exit(0)
    os.wait()
    return os.read(told, 999).decode()

torch.manual_seed(3)
free = SamplingSettings()
drawn = [told(free) for _ in range(3)] + [repr(seeds(free, 1)[0])]
assert len(set(drawn)) == 4, drawn
assert len({told(free, seed=5) for _ in range(3)}) == 1
assert len({told(SamplingSettings(seed=7)) for _ in range(3)}) == 1
torch.manual_seed(3)
assert repr(seeds(free, 1)[0]) == drawn[-1]
'''


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_forked_processes_draw_differently_where_they_have_no_seed_of_their_own() -> None:
    """In a process of its own: one with threads should not be forked."""
    subprocess.run([sys.executable, "-c", CHILDREN], check=True, timeout=120)


EOS = 0
STATELESS = {"local": LocalPhi, "onestep": OneStepPhi}
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
    return end == EOS and table.moves(state, request.budgets[0] - len(written)).tokens.tolist() == [EOS]


@pytest.mark.parametrize("phi", STATELESS)
@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_a_text_that_can_only_end_ends_without_a_call(language: Language, phi: str) -> None:
    for name, sampler in samplers(language, phi).items():
        request = language.request(60, 3)
        weighted, lean = both(sampler, request)
        assert [draw.token_ids for draw in lean] == [draw.token_ids for draw in weighted]
        unknown = [math.isnan(draw.log_w) and math.isnan(draw.log_p) for draw in lean]
        can_only_end = [only_ends(request, draw) for draw in lean]
        # Where a draft came to the end of the text, the law of the end was read beside the others.
        assert any(can_only_end) and all(a <= b for a, b in zip(unknown, can_only_end, strict=True))
        assert unknown == can_only_end or name != "undrafted"
        for draw, other in zip(lean, weighted, strict=True):
            if not math.isnan(draw.log_w):
                assert (draw.log_p, draw.log_w) == pytest.approx((other.log_p, other.log_w), abs=1e-9)
        assert lean.counts.tokens <= weighted.counts.tokens


@pytest.mark.parametrize("estimator", [LearnedPhi, BigramDPPhi])
def test_estimators_that_hold_something_see_every_step(estimator: type[LearnedPhi] | type[BigramDPPhi]) -> None:
    for draft in (None, Prefetch(Fixed(ranked(LOOP.lm, 0)), 3)):
        weighted, lean = both(AncestralSampler(estimator(), draft=draft), LOOP.request(20, 3))
        assert (lean.counts, lean.log_w) == (weighted.counts, pytest.approx(weighted.log_w))


def test_truncation_or_a_constraint_may_refuse_the_end_and_particles_read_weights_themselves() -> None:
    """A draw fails where the end is none of the likeliest tokens, whoever reads the weights."""
    weighted, lean = both(AncestralSampler(LocalPhi()), LOOP.request(200, 4, top_k=4))
    assert weighted.failures == lean.failures > 0 and lean.log_w == pytest.approx(weighted.log_w)
    # Texts of more than two tokens, when they are finished.
    short = Rule(lambda tokens, finished: not finished or len(tokens) < 3)
    weighted, lean = both(AncestralSampler(LocalPhi()), replace(LOOP.request(200, 4), constraint=short))
    assert weighted.failures == lean.failures > 0 and all(len(draw.token_ids) <= 3 for draw in lean)
    weighted, lean = both(SMCSampler(LocalPhi(), SMC(particles=20, resample="ess")), LOOP.request(5, 3))
    assert lean.log_w == pytest.approx(weighted.log_w) and all(map(math.isfinite, lean.log_w))
