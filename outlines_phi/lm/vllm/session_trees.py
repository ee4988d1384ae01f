"""Token trees over an engine of vLLM: walks are requests that stay open, and branches new ones."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import final

from ...errors import ModelError
from ...numerics.transfers import AnswerCheck, Rows
from ..forest import ForestTrees
from .sessions import Asked, Session, Sessions

_NUMBERS = itertools.count()  # Of requests and of trees, in this process


@final
class SessionTrees(ForestTrees):
    """Token trees whose nodes are requests to an engine.

    A node goes on with the request that ends at its parent, at the price of one token. Where there is none, or it went on
    elsewhere, a new request reads the whole path, but for what the engine has in its cache of prefixes.
    """

    def __init__(
        self, sessions: Sessions, prompts: Sequence[Sequence[int]], vocabulary_size: int, max_length: int | None
    ) -> None:
        super().__init__(prompts, vocabulary_size, max_length)
        self._sessions, self._name = sessions, next(_NUMBERS)
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
        return Rows(rows, range(len(rows)), AnswerCheck(rows.amax(-1).isfinite(), range(len(rows)), _no_numbers))

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
                asked[i] = each._replace(stays=self._sessions.keep(each.key, self._session(node), keys))
        return asked

    def _request(self, node: int) -> Asked:
        """Return the request for a node."""
        key = self._tips.pop(int(self._forest.parent[node]), None)
        if key is not None and key in self._sessions:
            return Asked(key, [int(self._forest.token[node])], goes_on=True)
        return Asked(f"outlines-phi-{next(_NUMBERS)}", list(self._forest.sequence(node)))

    def _session(self, node: int) -> Session:
        row = int(self._forest.row[node])
        prompt = int(self._forest.prompt_lengths[row])
        return Session((self._name, row), prompt, prompt + int(self._forest.depth[node]))

    def _count(self, nodes: range, asked: Sequence[Asked], cached: dict[str, int]) -> None:
        """Count the tokens that the engine has read."""
        self.counts.calls += 1
        for node, each in zip(nodes, asked, strict=True):
            read = len(each.token_ids) - (0 if each.goes_on else cached.get(each.key, 0))
            generated = min(read, int(self._forest.depth[node]))
            self.counts.tokens += generated
            self.counts.prompt_tokens += read - generated


def _no_numbers() -> ModelError:
    return ModelError(
        "Load the model with dtype='float32' or 'bfloat16', and check its weights. It answered NaN or inf."
    )
