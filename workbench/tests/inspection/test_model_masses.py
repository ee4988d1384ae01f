"""The masses of a text under the bundled model, compared with enumeration."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch

from outlines_phi import SamplingSettings
from outlines_phi.errors import ModelError
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.lm import LanguageModel, TransformersModel, bundled
from outlines_phi.regex.patterns import compile_regex
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
    prompted = PromptedModel(lm(), SamplingSettings(), tuple(encode(PROMPT)), Table(guide), effort)
    return Inspected("yes|no", guide, BUDGET), prompted


def masses(text: str, effort: int) -> list[StepMasses]:
    of, prompted = asked(effort)
    return prompted.masses(of, encode(text), [step.place for step in of.walk(encode(text))])


@cache
def next_p(written: tuple[int, ...]) -> np.ndarray:
    """``p`` of the next token, by one forward pass over the whole sequence."""
    logits = lm().trees([(*encode(PROMPT), *written)]).roots().logits
    return torch.softmax(logits[0].double(), -1).numpy()


@cache
def phi(written: tuple[int, ...]) -> float:
    """``Phi`` by its definition: the sum over all ways of tokens to write the rest and the end."""
    vocabulary, p = lm().vocabulary, next_p(written)
    text = vocabulary.decode(written)
    found = float(p[vocabulary.eos_ids[0]]) if text in (b"yes", b"no") else 0.0
    if len(written) < BUDGET - 1:
        for token, spelled in enumerate(vocabulary.tokens):
            if spelled and any(member.startswith(text + spelled) for member in (b"yes", b"no")):
                found += float(p[token]) * phi((*written, token))
    return found


@pytest.mark.parametrize("effort", [1, 200])
def test_masses_and_bounds_are_those_of_enumeration(effort: int) -> None:
    of, ids, log_live = asked(effort)[0], encode("no"), 0.0
    for number, (step, at) in enumerate(zip(masses("no", effort), of.walk(ids), strict=True)):
        written, mask = tuple(ids[:number]), of.live(at.place)[0]
        p, whole = next_p(written), phi(written)
        log_live += math.log(step.live)
        assert step.live == near(p[mask].sum()) and step.log_live == pytest.approx(log_live)
        assert step.phi[0] * (1 - SHARE) <= whole <= step.phi[1] * (1 + SHARE)
        assert effort == 1 or step.phi[1] - step.phi[0] <= 2e-3 * step.phi[1]
        for branch in step.branches:
            ahead = 1.0 if branch.token in lm().vocabulary.eos_ids else phi((*written, branch.token))
            assert mask[branch.token] and branch.p == near(p[branch.token])
            assert branch.masked == pytest.approx(branch.p / step.live)
            assert branch.phi[0] * (1 - SHARE) <= ahead <= branch.phi[1] * (1 + SHARE)
            exact = branch.p * ahead / whole
            assert branch.exact[0] * (1 - 2 * SHARE) <= exact <= branch.exact[1] * (1 + 2 * SHARE)
        assert [share for share, _ in step.lost] == sorted((share for share, _ in step.lost), reverse=True)
        assert step.lost[0][0] == near(p[~mask].max()) and step.lost[0][1].fault.because


def test_masking_and_the_exact_distribution_differ_where_mass_is_lost_later() -> None:
    """The model goes on behind ``no``, so masking writes it more often than the conditioned distribution."""
    first = masses("no", 200)[0]
    starts = [each for each in first.branches if lm().vocabulary.tokens[each.token].startswith(b"n")]
    assert sum(each.masked for each in starts) > sum(each.exact[1] for each in starts) + 0.1


def test_a_long_text_is_refused() -> None:
    of, prompted = asked(1)
    with pytest.raises(ModelError, match=f"Give a text of at most {MOST_STEPS} tokens"):
        prompted.masses(of, [5] * (MOST_STEPS + 1), [])
