"""Token trees in sequences that share cells, over a context that checks how it is used."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outlines_phi.errors import ModelError
from outlines_phi.lm import TableModel, TokenTrees, sequences
from outlines_phi.lm.model import WrappedModel
from outlines_phi.lm.sequences import Entry, SequencePaths
from outlines_phi.testing import check_language_model
from tests.lm.gardens import SIZE, VOCABULARY

TABLE = TableModel.random(VOCABULARY, seed=2, max_length=40)


class CellContext:
    """The context of llama.cpp by its promises: cells that belong to sets of sequences."""

    remedy, size = "Give more cells", SIZE

    def __init__(self, sequences: int, cells: int, batch_size: int) -> None:
        self.sequences, self.capacity, self.batch_size = sequences, cells, batch_size
        self.cells: list[tuple[set[int], int, int]] = []  # sequences, position, token
        self.decoded = 0

    def decode(self, entries: Sequence[Entry]) -> np.ndarray | None:
        assert 0 < len(entries) <= self.batch_size
        if len(self.cells) + len(entries) > self.capacity:
            return None
        found = []
        for entry in entries:
            assert entry.sequences and all(0 <= s < self.sequences for s in entry.sequences)
            before = [self.held(s) for s in entry.sequences]
            assert all(tokens == before[0] for tokens in before), "sequences of one token differ before it"
            assert entry.position == len(before[0]), "positions of a sequence follow one another"
            self.cells.append((set(entry.sequences), entry.position, entry.token))
            if entry.wanted:
                found.append(TABLE.logits((*before[0], entry.token)))
        self.decoded += len(entries)
        return np.array(found, dtype=np.float32).reshape(-1, SIZE)

    def held(self, sequence: int) -> list[int]:
        cells = sorted((position, token) for owners, position, token in self.cells if sequence in owners)
        assert [position for position, _ in cells] == list(range(len(cells)))
        return [token for _, token in cells]

    def fork(self, source: int, target: int, length: int) -> None:
        assert source != target and len(self.held(source)) >= length
        self.cut(target, 0)
        for owners, position, _ in self.cells:
            if source in owners and position < length:
                owners.add(target)

    def cut(self, sequence: int, length: int) -> None:
        for owners, position, _ in self.cells:
            if position >= length:
                owners.discard(sequence)
        self.cells = [cell for cell in self.cells if cell[0]]

    def clear(self) -> None:
        self.cells = []


class InCells(WrappedModel):
    """A table of probabilities, read in sequences."""

    def __init__(self, *room: int) -> None:
        super().__init__(TABLE)
        self._room = room
        self.context = CellContext(*room)

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        self.context = CellContext(*self._room)
        return SequencePaths(self.context, prompts, SIZE, 40)


ROOMS = {
    "plenty": (64, 4096, 512),
    "small batches": (64, 4096, 3),
    "few sequences": (3, 4096, 512),
    "two sequences": (2, 4096, 2),
    "few cells": (64, 45, 512),
    "few of all": (4, 50, 5),
}


@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
def test_every_node_is_read_as_its_sequence(room: tuple[int, int, int]) -> None:
    assert check_language_model(InCells(*room)).error < 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_random_rooms(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(6):
        room = int(random.integers(2, 9)), int(random.integers(41, 120)), int(random.integers(1, 40))
        check_language_model(InCells(*room), seed=seed)


def test_nothing_is_read_twice_where_there_is_room() -> None:
    lm = InCells(64, 4096, 512)
    trees = lm.trees([[3, 4, 5], [6]])
    trees.roots([0, 0, 2], [7, 8, 9])
    trees.extend([3, 3, 4, 1], [10, 11, 12, 13])
    trees.extend([3, 5, 5, 0], [14, 15, 16, 17])
    assert lm.context.decoded == 4 + 3 + 4 + 4 == trees.counts.prompt_tokens + trees.counts.tokens
    assert trees.counts.calls == 3


def test_what_was_given_up_is_read_again_from_where_it_is_held() -> None:
    lm = InCells(2, 4096, 512)
    trees = lm.trees([[3, 4, 5, 6, 7]])
    trees.roots()
    for token in (8, 9, 10):  # the third gives the first up
        trees.extend([0], [token])
    before = lm.context.decoded
    trees.extend([1], [11])
    assert lm.context.decoded - before == 2 and trees.counts.tokens == 5


def test_a_text_that_finds_no_room_is_an_error_and_the_next_one_is_read() -> None:
    trees = SequencePaths(CellContext(4, 6, 4), [[3, 4, 5]], SIZE, 40)
    trees.roots()
    chain = [0, *range(1, 4)]
    with pytest.raises(ModelError, match=r"Give more cells\. A text of 7 tokens"):
        trees.extend(chain, [6, 7, 8, 9])
    answer = trees.extend([0, trees.next_node], [6, 7])
    expected = TABLE.logits((3, 4, 5, 6, 7))
    np.testing.assert_allclose(answer.logits[1].double().numpy(), expected, rtol=1e-5)


def test_an_error_of_the_context_leaves_the_trees_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    context = CellContext(8, 4096, 512)
    trees = SequencePaths(context, [[3, 4, 5]], SIZE, 40)
    trees.roots([0], [6])

    def failing(entries: Any) -> None:
        raise ModelError("spoiled")

    with monkeypatch.context() as broken:
        broken.setattr(context, "decode", failing)
        with pytest.raises(ModelError, match="spoiled"):
            trees.extend([1, 0], [7, 8])
    answer = trees.extend([1, 0], [7, 8])
    np.testing.assert_allclose(answer.logits[0].double().numpy(), TABLE.logits((3, 4, 5, 6, 7)), rtol=1e-5)


def test_a_sequence_that_another_branch_needs_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without that the wrong text is read, and it is seen."""
    branches = SequencePaths._branches

    def greedy(self: SequencePaths, leaves: Sequence[int]) -> list[sequences.NewPath]:
        made = branches(self, leaves)
        return [branch._replace(source=made[0].source) for branch in made]

    monkeypatch.setattr(SequencePaths, "_branches", greedy)
    with pytest.raises((AssertionError, ModelError)):
        check_language_model(InCells(8, 4096, 512))
