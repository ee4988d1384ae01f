"""Exact draws by tokens drawn ahead: the distribution is that of whole distributions, however few were drawn ahead."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi import ExactPhi
from tests.inner import BoundsTree, ExactSampler, Node, ahead, preexpand
from tests.languages import ALPHA, GRAMMARS, LANGUAGES, OPEN, Language, p_value, pooled_p_value

WORDS, LOOP, _, BOTTLENECK = LANGUAGES
WIDE = (LOOP, GRAMMARS[1], *OPEN)


@pytest.fixture(autouse=True)
def ahead_of_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MANY", 0)
    monkeypatch.setattr(preexpand, "SHORT", 0)


ROWS = {1: 260, 2: 100, 16: 50}
"""Prompts under each number of tokens that are drawn ahead; a fault is the likelier the fewer they are."""


def cold(language: Language, tokens: int) -> list[tuple[int, ...]]:
    """Return eight draws of each of many cold prompts: the first of them use up what was drawn ahead."""
    results = ExactSampler(ExactPhi(width=16)).sample(language.request(8, tokens, rows=ROWS[tokens]))
    return [tuple(draw.token_ids) for draws in results for draw in draws]


def warm(language: Language) -> list[tuple[int, ...]]:
    """Return many draws of one prompt: nodes are used up and evaluated again."""
    draws = ExactSampler(ExactPhi(width=8)).sample(language.request(700, 3))[0]
    return [tuple(draw.token_ids) for draw in draws]


def test_draws_have_the_conditioned_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The statistics of both languages and of all numbers of tokens are added, beside those of each number."""
    everything = []
    for tokens in ROWS:
        monkeypatch.setattr(ahead, "AHEAD", tokens)
        samples = [(cold(language, tokens), language.reference().mu) for language in WIDE]
        samples += [(warm(language), language.reference().mu) for language in (*WIDE, BOTTLENECK)]
        assert pooled_p_value(samples) > ALPHA / len(ROWS), tokens
        everything += samples
    assert pooled_p_value(everything) > ALPHA


def test_an_attempt_that_decides_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: who waits for a free token has decided against the children of then, and may not choose among them."""
    monkeypatch.setattr(ahead, "AHEAD", 1)
    choose = BoundsTree.choose_since

    def again(tree: BoundsTree, node: Node, since: int, rng: np.random.Generator) -> Node | None:
        return choose(tree, node, 0, rng)

    monkeypatch.setattr(BoundsTree, "choose_since", again)
    assert pooled_p_value([(cold(language, 1), language.reference().mu) for language in WIDE]) < ALPHA / len(ROWS)


def test_tokens_are_drawn_ahead_and_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node holds its drawn tokens and a sum; one that is used up is evaluated again, and held whole."""
    monkeypatch.setattr(ahead, "AHEAD", 2)
    sampler = ExactSampler(ExactPhi(width=8))
    with sampler.store.lend(*WORDS.request(1, None).tree_key) as (tree,):
        request = WORDS.request(200, None)
    sampler.sample(request)
    nodes = [node for node in tree.walk() if node.children and node is not tree.root]
    assert tree.root.distribution is not None
    assert any(node.drawn is not None for node in nodes) and any(node.distribution is not None for node in nodes)
    assert all(node.drawn is None or node.distribution is None for node in nodes)
    assert tree.distribution_bytes == sum(node.free.nbytes for node in tree.walk() if node.free is not None)
    for node in nodes:
        total = math.exp(node.log_rest) + math.fsum(math.exp(child.log_step) for child in node.children.values())
        assert total <= 1 + 1e-6 and math.exp(node.log_lower) <= math.exp(node.log_upper) + 1e-12


def test_a_tree_with_tokens_drawn_ahead_serves_every_other_call() -> None:
    """Nodes that are searched or enumerated afterwards are evaluated again, and whole."""
    mu = WORDS.reference().mu
    sampler = ExactSampler(ExactPhi(width=8))
    sampler.sample(WORDS.request(50, None))
    certified = ExactSampler(ExactPhi(tolerance=0.01), store=sampler.store)
    draws = certified.sample(WORDS.request(1500, None))[0]
    assert p_value([draw.token_ids for draw in draws], mu) > ALPHA
    lower, upper = np.exp(draws.log_z_bounds)
    assert lower <= math.exp(WORDS.reference().log_phi) * (1 + 1e-9) and upper <= lower * 1.02


def test_the_same_seed_gives_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "AHEAD", 2)
    first, second = (
        [draw.token_ids for draw in ExactSampler(ExactPhi(width=8)).sample(LOOP.request(50, 7))[0]] for _ in range(2)
    )
    assert first == second


def test_truncation_and_limits_are_kept() -> None:
    for language, options in ((WORDS, {"top_k": 8}), (LOOP, {"top_p": 0.9})):
        draws = ExactSampler(ExactPhi(width=8)).sample(language.request(700, 1, **options))[0]
        assert p_value([draw.token_ids for draw in draws], language.reference(**options).mu) > ALPHA
