"""Token trees in little room: sequences that share cells, requests that stay open in an engine; doubles check their use."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi.errors import ModelError
from outlines_phi.lm import TableModel, TokenTrees, sequences
from outlines_phi.lm.sequences import Entry, SequencePaths
from outlines_phi.lm.vllm.sessions import Asked, Sessions, SessionTrees
from outlines_phi.testing import check_language_model
from tests.inner import WrappedModel
from tests.lm.gardens import SIZE, VOCABULARY
from tests.refusals import refused

LONGEST = 30
TABLE = TableModel.random(VOCABULARY, seed=2, max_length=LONGEST)


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
        return SequencePaths(self.context, prompts, SIZE, LONGEST)


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
    trees = SequencePaths(CellContext(4, 6, 4), [[3, 4, 5]], SIZE, LONGEST)
    trees.roots()
    refused(r"Give more cells\. A text of 7 tokens", trees.extend, [0, *range(1, 4)], [6, 7, 8, 9], error=ModelError)
    answer = trees.extend([0, trees.next_node], [6, 7])
    np.testing.assert_allclose(answer.logits[1].double().numpy(), TABLE.logits((3, 4, 5, 6, 7)), rtol=1e-5)


def test_an_error_of_the_context_leaves_the_trees_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    context = CellContext(8, 4096, 512)
    trees = SequencePaths(context, [[3, 4, 5]], SIZE, LONGEST)
    trees.roots([0], [6])

    def failing(entries: Any) -> None:
        raise ModelError("spoiled")

    with monkeypatch.context() as broken:
        broken.setattr(context, "decode", failing)
        refused("spoiled", trees.extend, [1, 0], [7, 8], error=ModelError)
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


class BlockEngine:
    """The engine of vLLM by its promises: blocks of keys and values, whole ones shared where they hold the same tokens."""

    def __init__(self, blocks: int, block_size: int, places: int, prefixes: bool) -> None:
        self.blocks, self.block_size, self.places, self.prefixes = blocks, block_size, places, prefixes
        self.open: dict[str, tuple[int, ...]] = {}
        self.read = 0
        self.relieved = False
        self.broken: Callable[[], object] = lambda: None
        self._names = count()

    def taken(self, requests: Sequence[tuple[int, ...]]) -> int:
        """Return the number of blocks that requests hold, each with room for the token that is sampled."""
        size, held = self.block_size, set[object]()
        for tokens in requests:
            for end in range(size, len(tokens) + 1 + size, size):
                held.add(tokens[:end] if (self.prefixes and end <= len(tokens)) else next(self._names))
        return len(held)

    def rows(self, asked: Sequence[Asked], relieve: Callable[[], object]) -> tuple[Tensor, dict[str, int]]:
        if self.relieved:
            relieve()
        found, cached = [], {}
        for each in asked:
            if each.goes_on:
                assert each.key in self.open and each.stays and len(each.token_ids) == 1
            else:
                assert each.key not in self.open
                cached[each.key] = 0
            tokens = (*self.open.pop(each.key, ()), *each.token_ids)
            assert self.taken([*self.open.values(), tokens]) <= self.blocks, (
                "a request waits for room that nobody frees"
            )
            assert len(self.open) < self.places
            self.read += len(each.token_ids)
            if each.stays:
                self.open[each.key] = tokens
            found.append(torch.as_tensor(TABLE.logits(tokens), dtype=torch.float32))
        try:
            self.broken()
        except BaseException:
            self.close([each.key for each in asked])
            raise
        return torch.stack(found), cached

    def close(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.open.pop(key, None)


class InEngine(WrappedModel):
    """A table of probabilities, read by requests; half of the engine's room may stay open."""

    def __init__(self, blocks: int, block_size: int, places: int, *, prefixes: bool = True) -> None:
        super().__init__(TABLE)
        self.engine = BlockEngine(blocks, block_size, places, prefixes)
        self.sessions = Sessions(
            self.engine, most=places // 2, blocks=blocks // 2, block_size=block_size, prefixes=prefixes
        )

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SessionTrees(self.sessions, prompts, SIZE, LONGEST)


Random = np.random.Generator
ROOMS: dict[str, Callable[[], InCells | InEngine]] = {
    "cells, plenty": lambda: InCells(64, 4096, 512),
    "cells, small batches": lambda: InCells(64, 4096, 3),
    "few sequences": lambda: InCells(3, 4096, 512),
    "two sequences": lambda: InCells(2, 4096, 2),
    "few cells": lambda: InCells(64, 35, 512),
    "cells, few of all": lambda: InCells(4, 40, 5),
    **{
        f"blocks, {name}{'' if prefixes else ', no prefixes'}": partial(InEngine, *room, prefixes=prefixes)
        for prefixes in (True, False)
        for name, room in {
            "plenty": (4096, 4, 256),
            "few places": (4096, 4, 6),
            "one place": (4096, 4, 2),
            "few blocks": (40, 4, 256),
            "few of all": (36, 2, 8),
            "large blocks": (60, 16, 256),
        }.items()
    },
}
DRAWN: dict[str, Callable[[Random], InCells | InEngine]] = {
    "cells": lambda r: InCells(*(int(r.integers(*ends)) for ends in ((2, 9), (31, 110), (1, 40)))),
    "blocks": lambda r: InEngine(
        *(int(r.integers(*ends)) for ends in ((40, 200), (1, 20), (2, 40))), prefixes=bool(r.integers(2))
    ),
}


@pytest.mark.parametrize("made", ROOMS.values(), ids=ROOMS)
def test_every_node_is_read_as_its_sequence(made: Callable[[], InCells | InEngine]) -> None:
    lm = made()
    assert check_language_model(lm).error < 1e-5
    if isinstance(lm, InEngine):
        gc.collect()
        lm.sessions.release()
        assert not lm.engine.open and not len(lm.sessions)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("seed", range(4))
def test_random_rooms(kind: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(6):
        check_language_model(DRAWN[kind](random), seed=seed)


@pytest.fixture
def lm() -> InEngine:
    return InEngine(4096, 4, 256)


@pytest.fixture
def trees(lm: InEngine) -> TokenTrees:
    """Trees of two prompts, which are read."""
    trees = lm.trees([[3, 4, 5], [6]])
    trees.roots()
    return trees


def opened(lm: InEngine) -> list[tuple[int, ...]]:
    return sorted(lm.engine.open.values())


def test_a_walk_takes_a_token_a_step_and_a_branch_is_a_request_of_its_own(lm: InEngine, trees: TokenTrees) -> None:
    nodes = [0, 1]
    for token in (7, 8, 9):
        nodes = list(trees.extend(nodes, [token, token]).nodes)
    assert lm.engine.read == 4 + 3 * 2 == trees.counts.prompt_tokens + trees.counts.tokens
    assert trees.counts.tokens == 6 and trees.counts.calls == 4
    trees.extend([nodes[0], nodes[0]], [7, 8])
    assert lm.engine.read == 10 + 1 + 7


def test_what_is_given_back_is_closed(lm: InEngine, trees: TokenTrees) -> None:
    first, second = trees.extend([0, 0], [7, 8]).nodes
    trees.compact([second])
    assert opened(lm) == [(3, 4, 5, 8), (6,)]
    trees.extend([second], [9])
    assert opened(lm) == [(3, 4, 5, 8, 9), (6,)]


def test_trees_that_are_gone_are_closed_before_the_next_call() -> None:
    lm = InEngine(4096, 4, 256)
    lm.trees([[3, 4, 5]]).roots()
    gc.collect()
    assert lm.engine.open  # a finalizer may run in the middle of a call
    lm.trees([[6]]).roots()
    assert opened(lm) == [(6,)]


def test_a_call_that_fails_leaves_nothing_open_and_may_be_made_again(lm: InEngine, trees: TokenTrees) -> None:
    def fail() -> None:
        raise ModelError("no answer")

    lm.engine.broken = fail
    refused("no answer", trees.extend, [0, 1], [7, 8], error=ModelError)
    assert not lm.engine.open and not len(lm.sessions)
    lm.engine.broken = lambda: None
    trees.extend([0, 0], [7, 8])
    assert opened(lm) == [(3, 4, 5, 7), (3, 4, 5, 8)]


def test_an_engine_that_waits_gets_all_room(lm: InEngine, trees: TokenTrees) -> None:
    """Requests that are not asked about are closed, and their nodes read again."""
    for node, waits in ((0, True), (1, False)):
        lm.engine.relieved = waits
        trees.extend([node], [8])
        assert opened(lm) == [(3, 4, 5, 8), (6, 8)][: node + 1]


def test_a_model_of_another_vocabulary_is_said_to_be(lm: InEngine) -> None:
    refused(
        "Use the tokenizer that belongs to the model",
        SessionTrees(lm.sessions, [[3]], SIZE + 1, LONGEST).roots,
        error=ModelError,
    )


def test_numbers_that_are_none_are_told_where_they_are_read(lm: InEngine) -> None:
    sound = lm.engine.rows
    lm.engine.rows = lambda asked, relieve: (sound(asked, relieve)[0] * float("nan"), {})  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="NaN"):
        _ = lm.trees([[3]]).roots().logits
