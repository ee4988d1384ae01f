"""The line that shows draws."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from outlines_phi import Draw, Draws, ExactPhi, Guarantee, LocalPhi
from outlines_phi.sampling import Population
from outlines_phi.sampling.draws import DrawCounts
from tests.inner import TreeStore, sampler_for
from tests.languages import LANGUAGES


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
    draws = sampler_for(phi, TreeStore()).sample(LANGUAGES[0].request(20, seed=1))[0]
    low, high = draws.log_z_bounds
    assert low <= LANGUAGES[0].reference().log_phi + 1e-9 and LANGUAGES[0].reference().log_phi <= high + 1e-9
    assert f"{low:.4g}" in repr(draws) if phi == ExactPhi() else f"log Phi {draws.log_z:.4g}" in repr(draws)


def test_one_of_a_kind_is_singular() -> None:
    counts = DrawCounts(calls=1, tokens=1)
    single = Draws(items=(one(),), budget=3, counts=counts, rejections={"a": 1})
    assert repr(single).startswith("<1 draw, EXACT") and "1 model call, 1 token, 1 attempt upon" in repr(single)
    assert repr(replace(single, items=())).startswith("<0 draws")
    assert "<1,000 draws" in repr(replace(single, items=(one(),) * 1000))
    assert (
        repr(Population(items=(one(),), resamplings=1))
        == "<population of 1 particle: ess 1, log Phi -2.5, 1 resampling>"
    )


def test_a_guarantee_is_written_as_its_name() -> None:
    assert str(Guarantee.EXACT) == f"{Guarantee.EXACT}" == "EXACT" and f"{Guarantee.WEIGHTED:>9}" == " WEIGHTED"
    assert Guarantee.EXACT == max(Guarantee) and Guarantee.WEIGHTED < Guarantee.CONFIDENT
