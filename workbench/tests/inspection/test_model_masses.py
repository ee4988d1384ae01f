"""The masses of a text under the bundled model, compared with enumeration."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch

from outlines_phi.errors import ModelError
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.table import Table
from outlines_phi.lm import bundled
from outlines_phi.lm.model import LanguageModel
from outlines_phi.lm.transformers.transformers_model import TransformersModel
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.settings import SamplingSettings
from outlines_phi_workbench.inspection.inspected import Inspected
from outlines_phi_workbench.inspection.model_masses import MOST_STEPS, PromptedModel, StepMasses
from tests.precision import SHARE, near

from .conftest import encode

PROMPT = "Question: is the bakery open on Sunday? Answer: "
BUDGET = 4


@cache
def lm() -> LanguageModel:
    return TransformersModel.with_tokenizer(*bundled.load())


@cache
def asked(effort: int) -> tuple[Inspected, PromptedModel]:
    guide = FSMGuide.from_automaton(compile_regex("yes|no"), lm().vocabulary)
    of = Inspected.of("yes|no", guide, budget=BUDGET)
    prompted = PromptedModel(lm(), SamplingSettings(), tuple(encode(PROMPT)), Table(guide), BUDGET, guide.start, effort)
    return of, prompted


def masses(text: str, effort: int) -> tuple[StepMasses, ...]:
    of, prompted = asked(effort)
    ids, places = encode(text), [of.begin]
    for token in ids:
        places.append(of.after(places[-1], token))
    return prompted.masses(of, ids, places)


@cache
def next_p(written: tuple[int, ...]) -> np.ndarray:
    """``p`` of the next token, by one forward pass over the whole sequence."""
    logits = lm().trees([(*encode(PROMPT), *written)]).roots().logits
    return torch.softmax(logits[0].double(), -1).numpy()


@cache
def phi(written: tuple[int, ...]) -> float:
    """``Phi`` by its definition: the sum over all ways of tokens to write the rest and the end."""
    vocabulary = lm().vocabulary
    found, text = 0.0, vocabulary.decode(written)
    p = next_p(written)
    if text in (b"yes", b"no"):
        found += float(p[vocabulary.eos_ids[0]])
    if len(written) < BUDGET - 1:
        for token, spelled in enumerate(vocabulary.tokens):
            if spelled and any(member.startswith(text + spelled) for member in (b"yes", b"no")):
                found += float(p[token]) * phi((*written, token))
    return found


def test_live_mass_is_the_sum_over_live_tokens() -> None:
    found, of = masses("no", 50), asked(50)[0]
    ids, at, log_live = encode("no"), of.begin, 0.0
    for length, step in enumerate(found):
        mask, _ = of.live(at)
        p = next_p(tuple(ids[:length]))
        assert step.live == near(p[mask].sum())
        log_live += math.log(step.live)
        assert step.log_live == pytest.approx(log_live)
        for branch in step.branches:
            assert mask[branch.token] and branch.p == near(p[branch.token])
            assert branch.masked == pytest.approx(branch.p / step.live)
        assert [lost.p for lost in step.lost] == sorted((lost.p for lost in step.lost), reverse=True)
        assert step.lost[0].p == near(p[~mask].max())
        at = at if length == len(ids) else of.after(at, ids[length])


@pytest.mark.parametrize("effort", [1, 200])
def test_bounds_hold_and_are_near_with_effort(effort: int) -> None:
    ids = encode("no")
    for length, step in enumerate(masses("no", effort)):
        written = tuple(ids[:length])
        lower, upper = step.phi
        assert lower * (1 - SHARE) <= phi(written) <= upper * (1 + SHARE)
        if effort > 1:
            assert upper - lower <= 2e-3 * upper
        assert sum(target.adds[0] for target in step.targets) <= phi(written) * (1 + SHARE)
        assert sum(target.adds[1] for target in step.targets) >= phi(written) * (1 - SHARE)
        assert sum(target.mass for target in step.targets) == near(step.live)
        for branch in step.branches:
            ends = branch.token in lm().vocabulary.eos_ids
            ahead = 1.0 if ends else phi((*written, branch.token))
            exact = branch.p * ahead / phi(written)
            assert branch.phi[0] * (1 - SHARE) <= ahead <= branch.phi[1] * (1 + SHARE)
            assert branch.exact[0] * (1 - 2 * SHARE) <= exact <= branch.exact[1] * (1 + 2 * SHARE)


def test_masking_and_the_exact_distribution_differ_where_mass_is_lost_later() -> None:
    """The model goes on behind ``no``, so masking writes it more often than the conditioned distribution."""
    first = masses("no", 200)[0]
    by_text = {branch.text: branch for branch in first.branches}
    starts = [by_text[text] for text in by_text if text.startswith("n")]
    assert sum(each.masked for each in starts) > sum(each.exact[1] for each in starts) + 0.1


def test_a_long_text_is_refused() -> None:
    of, prompted = asked(50)
    with pytest.raises(ModelError, match=f"Give a text of at most {MOST_STEPS} tokens"):
        prompted.masses(of, list(itertools.repeat(5, MOST_STEPS + 1)), [])
