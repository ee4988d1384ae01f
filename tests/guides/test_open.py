"""An open guide: the end of the budget is an end, for tables, trees and every sampler."""

from __future__ import annotations

from typing import ClassVar, final

import numpy as np
import pytest
import torch

from outlines_phi.guides.guide import DEAD, DONE, Guide, Row
from outlines_phi.guides.table import Table
from outlines_phi.vocabulary.classes import EOS, NEVER, Partition
from outlines_phi.vocabulary.vocabulary import Vocabulary

VOCABULARY = Vocabulary.from_tokens(["a", "b", "<eos>"], eos=2)
PARTITION = Partition(np.array([2, 3, EOS], dtype=np.int32), 4)


@final
class NoTwoAs(Guide):
    """Free text over ``a`` and ``b`` without ``aa``; the text may not end in ``a`` where ``strict``."""

    open: ClassVar[bool] = True

    def __init__(self, strict: bool = False) -> None:
        self.vocabulary, self.start = VOCABULARY, 2
        self._strict = strict

    def row(self, state: int) -> Row:
        targets = np.full(4, DEAD, dtype=np.int32)
        if state in (2, 3):
            targets[2], targets[3] = (3 if state == 2 else DEAD), 2
            targets[EOS] = DEAD if self._strict and state == 3 else DONE
        return Row(PARTITION, targets)

    def min_tokens(self, state: int) -> int:
        return int(state == 3 and self._strict) if state != DEAD else np.iinfo(np.int32).max

    def describe(self, state: int) -> str:
        return str(state)


def members(strict: bool, budget: int) -> set[tuple[int, ...]]:
    """Return the members within the budget, by brute force."""
    found, level = set(), [()]
    for left in range(budget, 0, -1):
        below = []
        for ids in level:
            for token in range(3):
                text = "".join("ab"[v] for v in ids if v < 2) + ("ab"[token] if token < 2 else "")
                ends = token == 2 or left == 1
                if "aa" in text or (ends and strict and text.endswith("a")):
                    continue
                (found.add if ends else below.append)((*ids, token))
        level = below
    return found


def walked(table: Table, budget: int) -> set[tuple[int, ...]]:
    """Return the members that the moves of a table lead to."""
    found, level = set(), [((), table.start)]
    for left in range(budget, 0, -1):
        below = []
        for ids, state in level:
            moves = table.moves(state, left)
            for token, target in zip(moves.tokens.tolist(), moves.targets.tolist(), strict=True):
                assert target == table.advance(state, token, left) != DEAD
                (found.add((*ids, token)) if target == DONE else below.append(((*ids, token), target)))
        level = below
    return found


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_a_text_ends_where_it_says_so_or_where_the_budget_does(strict: bool, budget: int) -> None:
    table = Table(NoTwoAs(strict))
    everything = members(strict, budget)
    # With the strict end, a prefix may run into the end of the budget; live prefixes are those that need not.
    assert walked(table, budget) == everything and everything


@pytest.mark.parametrize("strict", [False, True])
def test_what_estimators_read_agrees_with_the_moves(strict: bool) -> None:
    table, device = Table(NoTwoAs(strict)), torch.device("cpu")
    for left in (1, 2, 3):
        for state in (2, 3):
            moves = table.moves(state, left)
            to = table.class_targets(state, left, device)
            places = to.places.numpy()[to.partition.class_of[moves.tokens]]
            assert (to.states[places] == moves.targets).all()
            step = table.one_step(state, left, device)
            ends = step.ends.numpy()[to.partition.class_of[moves.tokens]]
            assert ((moves.targets == DONE) == ends).all()
            assert NEVER == 0 and not step.live[NEVER]
