"""Free text, which any token ends at its limit: certificates and normalisers against exact enumeration (theory.md, section 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial

import numpy as np
import pytest

from outlines_phi import BannedPhrases, Effort, SamplingSettings
from outlines_phi.guides import Table
from outlines_phi.lm import TableModel
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.inner import BoundsTree, Evaluator, FrozenWalks, PhraseGuide, RejectionAttempts, ResidualAttempts, grow_trees
from tests.languages import ALPHA, PROMPT, VOCABULARY, p_value

BUDGET = 3
LM = TableModel.random(VOCABULARY, seed=11, scale=1.5)
TABLE = Table(PhraseGuide(VOCABULARY, BannedPhrases(["cx"])))
SETTINGS = SamplingSettings(max_new_tokens=BUDGET)
A = VOCABULARY.tokens.index(b"a")


@cache
def reference() -> Reference:
    return enumerate_language(LM, TABLE, PROMPT, SETTINGS, BUDGET)


class EndsWithA:
    """A text that comes to its limit ends with the token ``a``."""

    further, bytes = 2, 0

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        return not finished or len(tokens) < BUDGET or tokens[-1] == A


def stream(seed: int, number: int) -> np.random.Generator:
    return np.random.default_rng((seed, number))


@pytest.mark.parametrize("max_bytes", [2**30, 0], ids=["kept", "laws dropped"])
def test_confident_draws_are_of_all_members_that_the_lower_bound_counts(max_bytes: int) -> None:
    tree = BoundsTree(TABLE, BUDGET)
    evaluator = Evaluator(LM, SETTINGS, [PROMPT], [tree])
    node, wanted = tree.root, [tree.root]
    for token in (A, A):  # the last of these has one token left
        node = tree.child(node, token, tree.target(node, token))
        wanted.append(node)
    evaluator.expand((tree, each) for each in wanted)
    expanded = {each.tokens() for each in wanted}
    mu = {ids: p for ids, p in reference().mu.items() if ids[:-1] in expanded}
    assert math.exp(tree.root.log_lower) == pytest.approx(sum(mu.values()) * math.exp(reference().log_phi))
    attempts = FrozenWalks(
        tree, 4000, partial(stream, 1), upper=False, width=64, effort=Effort(tokens=10**6), max_bytes=max_bytes
    )
    grow_trees([attempts], evaluator)
    law = {ids: p / sum(mu.values()) for ids, p in mu.items()}
    drawn = [each.tokens() for each in attempts.accepted]
    assert len(drawn) == 4000 and set(drawn) <= set(law)
    assert p_value(drawn, law) > ALPHA


def test_ends_that_a_constraint_may_refuse_are_not_counted_beforehand() -> None:
    """Bounds hold and residual attempts are unbiased, in trees that have seen a single draw."""
    phi = sum(math.exp(log_p) for ids, log_p in reference().log_p.items() if ids[-1] in (A, 0))
    estimates = []
    for seed in range(400):
        tree = BoundsTree(TABLE, BUDGET, EndsWithA())
        evaluator = Evaluator(LM, SETTINGS, [PROMPT], [tree])
        row = RejectionAttempts(tree, 1, partial(stream, seed), width=4, effort=Effort(), max_bytes=2**30)
        grow_trees([row], evaluator)
        assert (
            tuple(map(math.exp, tree.log_bounds))[0] <= phi + 1e-12
            and phi <= tuple(map(math.exp, tree.log_bounds))[1] + 1e-12
        )
        residual = ResidualAttempts(tree, [stream(seed, 1000 + i) for i in range(16)], width=16)
        grow_trees([residual], evaluator)
        estimates.append(float(np.mean(np.exp(residual.log_estimates))))
    error = float(np.std(estimates)) / math.sqrt(len(estimates))
    assert error < 0.02 * phi
    assert abs(float(np.mean(estimates)) - phi) < 3 * error
