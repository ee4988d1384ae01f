"""Prefixes that several readers grow, and chains below them that are asked for in one call."""

import torch

from outlines_phi.lm.table_model import TableModel
from outlines_phi.phi.branches import Branches
from tests.languages import VOCABULARY

LM = TableModel.random(VOCABULARY, seed=4)
PROMPTS = [(1, 2), (3,)]


def law(*tokens: int, row: int = 0) -> torch.Tensor:
    return torch.from_numpy(LM.logits((*PROMPTS[row], *tokens)))


def test_chains_are_evaluated_with_the_prompts_in_one_call() -> None:
    branches = Branches(LM.trees(PROMPTS))
    nodes, logits = branches.reach([0, ~0, ~1, 1], [5, 6, 7, 5])
    assert nodes == [2, 3, 4, 5] and branches.trees.counts.calls == 1
    assert torch.equal(logits.whole(), torch.stack([law(5), law(5, 6), law(5, 6, 7), law(5, row=1)]))
    roots, planted = branches.plant()
    assert roots == [0, 1] and torch.equal(planted.whole(), torch.stack([law(), law(row=1)]))
    assert branches.trees.counts.calls == 1


def test_what_was_drafted_is_not_evaluated_again() -> None:
    """By a chain that another walk did not follow."""
    branches = Branches(LM.trees(PROMPTS))
    nodes, _ = branches.reach([0, ~0, ~1], [5, 6, 7])
    assert branches.trees.counts.tokens == 3
    again, logits = branches.reach([nodes[0], ~0], [6, 7])
    assert again == nodes[1:] and branches.trees.counts.tokens == 3
    assert torch.equal(logits.whole(), torch.stack([law(5, 6), law(5, 6, 7)]))


def test_nothing_asked_for_costs_the_prompts_alone() -> None:
    branches = Branches(LM.trees(PROMPTS))
    for _ in range(2):
        nodes, logits = branches.reach([], [])
        assert nodes == [] and logits.whole().shape == (0, len(VOCABULARY))
        assert branches.trees.counts.calls == 1


def test_what_no_walk_wants_is_forgotten() -> None:
    branches = Branches(LM.trees(PROMPTS))
    nodes, _ = branches.reach([0, ~0, ~1], [5, 6, 7])
    branches.prune(nodes, [(nodes[0], 6)])
    branches.reach([nodes[0], nodes[1]], [6, 7])
    assert branches.trees.counts.tokens == 4  # the second below a chain that was given up
