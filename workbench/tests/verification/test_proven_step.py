"""The steps of rejection attempts, replayed by the program that is extracted from their proof (proofs/theories/pick.v)."""

import json
import math
from collections.abc import Callable
from itertools import islice

import numpy as np
import pytest

from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.tree import BoundsTree, Node
from outlines_phi.sampling.rejection.attempts import Attempt, descend
from tests.languages import LANGUAGES, PROMPT, Language

WORDS, LOOP = LANGUAGES[:2]
SCALE = 1 << 48  # Probabilities as whole numbers; what is lost of a float decides no step here
FAILED = -1

Step = tuple[int, int, tuple[int, ...]]  # coin, quantile, masses


class Heard(np.random.Generator):
    """A random generator that keeps the uniforms that it gave."""

    def __init__(self, seed: int) -> None:
        super().__init__(np.random.PCG64(seed))
        self.uniforms: list[float] = []

    def random(self, *arguments: object, **options: object) -> float:  # type: ignore[override]
        assert not arguments and not options
        self.uniforms.append(float(super().random()))
        return self.uniforms[-1]


def steps_of(language: Language, seed: int) -> list[tuple[Step, int]]:
    """Walk attempts on a tree that grows, and return each step with what was chosen: a place among the children, or the rest."""
    tree = BoundsTree(language.table, language.budget)
    evaluator = Evaluator(language.lm, language.settings(), [PROMPT], [tree])
    found: list[tuple[Step, int]] = []
    for number in range(60):
        attempt = Attempt(number, tree.root, Heard(1000 * seed + number))
        while watched(tree, attempt, found) is None:
            evaluator.expand([(tree, attempt.node)])
    return found


def watched(tree: BoundsTree, attempt: Attempt, found: list[tuple[Step, int]]) -> bool | None:
    """Take an attempt down as :func:`descend` does, and write down its steps."""
    choose = tree.choose
    rng = attempt.rng
    assert isinstance(rng, Heard)

    def masses(node: Node, since: int) -> tuple[int, ...]:
        shares = [math.exp(child.log_step + child.log_upper) for child in islice(node.children.values(), since, None)]
        return tuple(round(share * SCALE) for share in [*shares, math.exp(node.log_rest)])

    def chosen(node: Node, log_weight: Callable[[Node], float], rng: Heard, *, since: int) -> Node | None:
        before, listed = masses(node, since), list(islice(node.children.values(), since, None))
        bound, first = math.exp(attempt.log_bound), len(rng.uniforms)
        total = math.exp(node.log_rest) + sum(math.exp(child.log_step + child.log_upper) for child in listed)
        coin = rng.uniforms[-1]
        child = choose(node, log_weight, rng, since=since)
        place = next((place for place, each in enumerate(listed) if each is child), len(listed))
        found.append(((round(coin * bound * SCALE), round(rng.uniforms[first] * total * SCALE), before), place))
        return child

    tree.choose = chosen  # type: ignore[method-assign, assignment]
    try:
        outcome = descend(tree, attempt)
    finally:
        tree.choose = choose  # type: ignore[method-assign]
    if outcome is False and rng.uniforms:
        coin = round(rng.uniforms[-1] * math.exp(attempt.log_bound) * SCALE)
        found.append(((coin, 0, masses(attempt.node, attempt.since)), FAILED))
    return outcome


@pytest.mark.parametrize("language", [WORDS, LOOP], ids=str)
def test_each_step_is_the_proven_one(language: Language, checker: Callable[..., tuple[int, str]]) -> None:
    steps = steps_of(language, seed=1)
    python = [place for _, place in steps]
    assert json.loads(checker([step for step, _ in steps], "--steps")[1]) == python
    assert len(steps) > 100 and FAILED in python and len(set(python)) > 3


def test_a_walk_without_its_coin_is_found_out(checker: Callable[..., tuple[int, str]]) -> None:
    steps = steps_of(LOOP, seed=2)
    without = [(0, quantile, masses) for (_, quantile, masses), _ in steps]
    assert json.loads(checker(without, "--steps")[1]) != [place for _, place in steps]
