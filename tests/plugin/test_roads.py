"""One law on every road: whichever door a call comes through, its texts are draws of mu*, and masked ones fail the same test.

Hosts' own loops under :class:`PhiLogitsProcessor` draw weighted texts; their laws are in ``test_phi_processor``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from outlines_phi import PhiTransformers
from tests.languages import ALPHA
from tests.plugin.doors import DOORS, ONE_BY_ONE, Door, Wanted, alternately, through
from tests.plugin.oracle import p_value

# "no" last: over any vocabulary a stock generator loses what goes on after an earlier alternative (docs/output-types.md).
WORDS = ("yes", "not now", "nobody", "no")
ANSWER = Wanted("Question: is the bakery open on Monday? Answer: ", n=600, budget=12, words=WORDS)
CONTROL, FEWER = replace(ANSWER, n=300), replace(ANSWER, n=120)
"""So few are enough to fail the test; and fewer, of doors with a call for each."""


@pytest.fixture(scope="module")
def truth(model: PhiTransformers) -> dict[str, float]:
    """Return P(text) under mu*, by complete enumeration."""
    law = ANSWER.generator(model).probabilities(ANSWER.prompt, tolerance=0.0, **ANSWER.limits)
    return {word: law[word].p for word in WORDS}


@pytest.mark.in_turn
@through(*DOORS)
@pytest.mark.parametrize("phi", ["exact", "auto"])
def test_every_road_has_the_law(door: Door, phi: str, model: PhiTransformers, truth: dict[str, float]) -> None:
    drawn = door(model, ANSWER.by(phi=phi))
    assert len(drawn) == ANSWER.n and set(drawn) <= set(truth)
    assert p_value(drawn, truth) > ALPHA


@alternately(*DOORS)
def test_masked_texts_fail_the_same_test(door: Door, model: PhiTransformers, truth: dict[str, float]) -> None:
    """Power control: texts of phi="local" without their weights are draws of mu_proj."""
    control = FEWER if door in ONE_BY_ONE else CONTROL
    drawn = door(model, control.by(phi="local"))
    assert len(drawn) == control.n and set(drawn) <= set(truth)
    assert p_value(drawn, truth) < 1e-6
