"""Token trees in requests that stay open, over an engine that checks how it is used and has no more room than it says."""

import gc
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi.errors import ModelError
from outlines_phi.lm import TableModel, TokenTrees
from outlines_phi.lm.vllm.sessions import Asked, Sessions, SessionTrees
from outlines_phi.testing import check_language_model
from tests.inner import WrappedModel
from tests.lm.gardens import SIZE, VOCABULARY

LONGEST = 30
TABLE = TableModel.random(VOCABULARY, seed=2, max_length=LONGEST)


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


ROOMS = {
    "plenty": (4096, 4, 256),
    "few places": (4096, 4, 6),
    "one place": (4096, 4, 2),
    "few blocks": (40, 4, 256),
    "few of all": (36, 2, 8),
    "large blocks": (60, 16, 256),
}


@pytest.mark.parametrize("prefixes", [True, False])
@pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
def test_every_node_is_read_as_its_sequence(room: tuple[int, int, int], prefixes: bool) -> None:
    lm = InEngine(*room, prefixes=prefixes)
    assert check_language_model(lm).error < 1e-5
    gc.collect()
    lm.sessions.release()
    assert not lm.engine.open and not len(lm.sessions)


@pytest.mark.parametrize("seed", range(4))
def test_random_rooms(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(6):
        room = int(random.integers(40, 200)), int(random.integers(1, 20)), int(random.integers(2, 40))
        check_language_model(InEngine(*room, prefixes=bool(random.integers(2))), seed=seed)


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
    with pytest.raises(ModelError, match="no answer"):
        trees.extend([0, 1], [7, 8])
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
    with pytest.raises(ModelError, match="Use the tokenizer that belongs to the model"):
        SessionTrees(lm.sessions, [[3]], SIZE + 1, LONGEST).roots()


def test_numbers_that_are_none_are_told_where_they_are_read(lm: InEngine) -> None:
    sound = lm.engine.rows
    lm.engine.rows = lambda asked, relieve: (sound(asked, relieve)[0] * float("nan"), {})  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="NaN"):
        _ = lm.trees([[3]]).roots().logits
