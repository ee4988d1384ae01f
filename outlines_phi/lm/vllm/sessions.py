"""Token trees over an engine of vLLM: walks are requests that stay open, at the price of a token a step, and branches new ones."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, final

from torch import Tensor

from ...errors import ModelError
from ...numerics.distributions import Rows
from ..sequences import ForestTrees


class Asked(NamedTuple):
    """A request for the logits after some tokens, at a node whose path holds so many tokens, prompt included.

    ``adapter``: The ``LoRARequest`` whose weights they are, if any.
    """

    key: str
    token_ids: list[int]
    prompt: Hashable  # The prompt above the node
    prompt_length: int
    length: int
    adapter: Any = None
    goes_on: bool = False  # True if the tokens follow those of an open request with this key
    stays: bool = False  # True if it is left open, with its keys and values


class Calls(Protocol):
    """The protocol of calls of an engine."""

    def rows(self, asked: Sequence[Asked], relieve: Callable[[], object]) -> tuple[Tensor, dict[str, int]]:
        """Return the logits after each request, ``[n, V]``, and how many tokens of new ones were in the engine's cache.

        ``relieve`` closes requests that stay open and are not asked now. Where a call fails, all of its requests are closed.
        """

    def close(self, keys: Sequence[str]) -> None:
        """Close requests that stay open."""


@final
class Sessions:
    """The open requests of an engine, by key, the latest used last.

    They are at most ``most``, in at most ``blocks`` of ``block_size`` tokens; the oldest are given up for new ones. An engine that
    holds more has no room for what it is asked next, and waits for room that nobody frees. Whole blocks of a prompt are held once
    for all requests below it where the engine has a cache of ``prefixes``.

    Threads take turns: who makes a call holds ``turn`` from the first :meth:`keep` to the end of :meth:`rows`.
    """

    def __init__(self, calls: Calls, *, most: int, blocks: int, block_size: int, prefixes: bool) -> None:
        self.turn = threading.RLock()
        self._calls = calls
        self._most, self._blocks, self._block_size, self._prefixes = most, blocks, block_size, prefixes
        self._open: dict[str, Asked] = {}
        self._of_prompt: Counter[Hashable] = Counter()
        self._taken = 0
        self._due: deque[dict[int, str]] = deque()  # closed before the next call

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def rows(self, asked: Sequence[Asked]) -> tuple[Tensor, dict[str, int]]:
        """Run :meth:`Calls.rows`; after an error none of ``asked`` is open."""
        while self._due:
            self.close(list(self._due.popleft().values()))
        busy = {each.key for each in asked}
        try:
            return self._calls.rows(asked, lambda: self.release(busy))
        except BaseException:
            self._drop(busy)
            raise

    def keep(self, asked: Asked, busy: Collection[str]) -> bool:
        """Return True if a request may stay open; the oldest of those that are not ``busy`` are closed for it."""
        goes_on = asked.key in self._open
        self._drop([asked.key])
        if not self._fits(asked):
            self._make_room(asked, busy)
        # One that is open goes on: it takes a block more now and then.
        if not goes_on and not self._fits(asked):
            return False
        self._open[asked.key] = asked
        self._taken += self._cost(asked)
        self._of_prompt[asked.prompt] += 1
        return True

    def close(self, keys: Sequence[str]) -> None:
        """Close requests."""
        with self.turn:
            self._drop(keys)
            self._calls.close(keys)

    def close_later(self, tips: dict[int, str]) -> None:
        """Have the requests that ``tips`` will name then closed before the next call: a finalizer may run in the middle of one."""
        self._due.append(tips)

    def release(self, busy: Collection[str] = ()) -> None:
        """Close all requests but some."""
        with self.turn:
            self._due.clear()
            self.close([key for key in self._open if key not in busy])

    def _make_room(self, asked: Asked, busy: Collection[str]) -> None:
        """Close the oldest requests that are not ``busy``, until ``asked`` fits or there are none."""
        given_up = list[str]()
        for oldest in [other for other in self._open if other not in busy]:
            given_up.append(oldest)
            self._drop([oldest])
            if self._fits(asked):
                break
        self._calls.close(given_up)

    def _drop(self, keys: Collection[str]) -> None:
        for key in keys:
            asked = self._open.pop(key, None)
            if asked is not None:
                self._of_prompt[asked.prompt] -= 1
                if not self._of_prompt[asked.prompt]:
                    del self._of_prompt[asked.prompt]
                self._taken -= self._cost(asked)

    def _fits(self, asked: Asked) -> bool:
        return len(self._open) < self._most and self._taken + self._cost(asked) <= self._blocks

    def _cost(self, asked: Asked) -> int:
        """Return the blocks that a request takes, with those of its prompt where it is the only one below it."""
        shared = asked.prompt_length // self._block_size if self._prefixes else 0
        own = -(-(asked.length + 1) // self._block_size) - shared
        return own + (0 if self._of_prompt[asked.prompt] else shared)


_NUMBERS = itertools.count()  # Of requests and of trees, in this process


@final
class SessionTrees(ForestTrees):
    """Token trees whose nodes are requests to an engine.

    A node goes on with the request that ends at its parent, at the price of one token. Where there is none, or it went on
    elsewhere, a new request reads the whole path, but for what the engine has in its cache of prefixes.
    """

    def __init__(
        self,
        sessions: Sessions,
        prompts: Sequence[Sequence[int]],
        size: int,
        max_length: int | None,
        adapter: Any = None,
    ) -> None:
        super().__init__(prompts, size, max_length)
        self._sessions, self._name, self._adapter = sessions, next(_NUMBERS), adapter
        self._tips: dict[int, str] = {}  # by the node that it ends at: a request that stays open
        weakref.finalize(self, sessions.close_later, self._tips)

    def _grow(self, nodes: range) -> Rows:
        with self._sessions.turn:
            asked = self._asked(nodes)
            rows, cached = self._sessions.rows(asked)
        if rows.shape[-1] != self._forest.vocabulary_size:
            raise ModelError(
                f"Use the tokenizer that belongs to the model. It gives {rows.shape[-1]} logits, for "
                f"{self._forest.vocabulary_size} tokens."
            )
        self._tips.update((node, each.key) for node, each in zip(nodes, asked, strict=True) if each.stays)
        self._count(nodes, asked, cached)
        return Rows.all(rows).checked(
            lambda: ModelError(
                "Load the model with dtype='float32' or 'bfloat16', and check its weights. It answered NaN or inf."
            )
        )

    def compact(self, keep: Sequence[int]) -> None:
        super().compact(keep)
        dead = [node for node in self._tips if not self._forest.alive[node]]
        self._sessions.close([self._tips.pop(node) for node in dead])

    def _asked(self, nodes: range) -> list[Asked]:
        """Return the requests for new nodes, each marked if it stays open."""
        asked = list(map(self._request, nodes))
        keys = {each.key for each in asked}
        inner = {int(self._forest.parent[node]) for node in nodes}
        for i, (node, each) in enumerate(zip(nodes, asked, strict=True)):
            # What is below an inner node is asked in this same call. An open request can only go on, or be closed.
            if each.goes_on or node not in inner:
                asked[i] = each._replace(stays=self._sessions.keep(each, keys))
        return asked

    def _request(self, node: int) -> Asked:
        """Return the request for a node."""
        row = int(self._forest.row[node])
        prompt_length = int(self._forest.prompt_lengths[row])
        path = (self._name, row), prompt_length, prompt_length + int(self._forest.depth[node]), self._adapter
        key = self._tips.pop(int(self._forest.parent[node]), None)
        if key is not None and key in self._sessions:
            return Asked(key, [int(self._forest.token[node])], *path, goes_on=True)
        return Asked(f"outlines-phi-{next(_NUMBERS)}", list(self._forest.sequence(node)), *path)

    def _count(self, nodes: range, asked: Sequence[Asked], cached: dict[str, int]) -> None:
        """Count the tokens that the engine has read."""
        self.counts.calls += 1
        for node, each in zip(nodes, asked, strict=True):
            read = len(each.token_ids) - (0 if each.goes_on else cached.get(each.key, 0))
            generated = min(read, int(self._forest.depth[node]))
            self.counts.tokens += generated
            self.counts.prompt_tokens += read - generated
