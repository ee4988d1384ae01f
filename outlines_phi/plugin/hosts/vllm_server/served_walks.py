"""The walks in an engine: which there are, what each writes in a step, and the trees and formats that they share."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import count
from typing import final
from weakref import WeakSet

import torch
from torch import Tensor

from ....errors import EmptyLanguageError
from ....guides.guide import UNREACHABLE
from ....guides.table import Table
from ....numerics.cache import Cache
from ....phi.tree.tree import BoundsTree
from ....sampling.engine_walks import EngineWalk, ExactWalk, MaskedWalk, Outcome, StoppedWalk
from ....sampling.sampler import DEFAULT_BUDGET, random_stream
from ....settings import SamplingSettings
from ....vocabulary.vocabulary import Vocabulary
from ...types.tables import CompiledTypes
from .answer import force
from .served_call import ServedCall

LOG = logging.getLogger("outlines_phi.vllm")

TREES_BYTES, TREES = 2**30, 1024
"""Bounds on the kept trees, in memory and in number; a single one may take a quarter of the memory."""

CALLS = 256  # Calls whose arguments are kept, read


@final
class ServedWalk:
    """One request of the engine: a walk, and what is around it."""

    __slots__ = ("__weakref__", "asked", "budget", "launch", "over", "prompt", "settings", "walk")

    def __init__(
        self, walk: EngineWalk, settings: SamplingSettings, prompt: Sequence[int], budget: int, launch: int
    ) -> None:
        self.walk, self.settings, self.prompt, self.budget, self.launch = walk, settings, prompt, budget, launch
        self.over = False
        self.asked = (
            -1
        )  # How many tokens the engine had written when it asked last, since the request came into its batch

    def check(self, outputs: Sequence[int]) -> None:
        """Raise ``AssertionError`` where the engine asks again, as about parts of a prompt, or has written what was not decided."""
        written, tokens = len(outputs), self.walk.tokens
        # The last token may not be noted yet, -1, where the engine schedules ahead.
        agreed = written <= len(tokens) and (not written or outputs[-1] in (-1, tokens[written - 1]))
        if written == self.asked or not agreed:
            raise AssertionError(
                f"the engine asks after {list(outputs)}, and before after {self.asked} tokens; {tokens} was decided"
            )
        self.asked = written


@final
class ServedWalks:
    """All walks of an engine, over the tokens of its model, which takes ``max_length`` of them.

    Nothing here raises: an exception would end the engine, and the requests of everybody. Whatever goes wrong ends one request, by
    an :class:`Outcome` that says so. Nor does anything depend on time or on chance that is not in the arguments: every rank of a
    tensor-parallel engine does the same.

    ``walks``: Those that there are: a walk lives as long as its request, which holds it.
    """

    def __init__(self, vocabulary: Vocabulary, max_length: int) -> None:
        self.vocabulary, self._max_length = vocabulary, max_length
        self._compiled = CompiledTypes(vocabulary)
        self._calls: Cache[str, ServedCall] = Cache(CALLS)
        self._launches: Cache[tuple[int, int], count[int]] = Cache(CALLS)
        self._trees: OrderedDict[Hashable, BoundsTree] = OrderedDict()
        self.walks: WeakSet[ServedWalk] = WeakSet()

    @property
    def trees(self) -> int:
        """How many trees are kept."""
        return len(self._trees)

    def begin(self, argument: str, number: int, prompt: Sequence[int] | None, limit: int | None) -> ServedWalk:
        """Return the walk of a request: attempt or draw ``number`` of its call, of at most ``limit`` tokens."""
        ids = tuple(prompt or ())
        try:
            walk = self._begun(self._calls.of(argument, lambda: ServedCall.read(argument)), number, ids, limit)
        except EmptyLanguageError:
            walk = self._stopped(Outcome.EMPTY)
        except Exception:
            LOG.exception("A request of outlines_phi could not be begun.")
            walk = self._stopped(Outcome.BROKEN)
        self.walks.add(walk)
        return walk

    def write(self, row: Tensor, served: ServedWalk, outputs: Sequence[int]) -> None:
        """Let a row of logits, ``[V]``, write the token that ``served`` writes after ``outputs``."""
        walk = served.walk
        try:
            self._write(row, served, outputs)
        except Exception:
            LOG.exception("A request of outlines_phi has failed.")
            walk.outcome = Outcome.BROKEN
            self._end(row, served, Outcome.BROKEN)

    def _write(self, row: Tensor, served: ServedWalk, outputs: Sequence[int]) -> None:
        walk, written = served.walk, len(outputs)
        if served.over:  # an engine that schedules ahead asks once more
            self._end(row, served, Outcome.ENDED)
            return
        served.check(outputs)
        if walk.outcome is Outcome.UNDER_WAY and written == len(walk.tokens):
            walk.advance(lambda: self._log_p(row, served))
            self._trim(walk)
        if walk.outcome in (Outcome.UNDER_WAY, Outcome.MEMBER) and written < len(walk.tokens):
            last = written + 1 == len(walk.tokens)
            outcome = walk.outcome if last else Outcome.UNDER_WAY
            force(row, walk.tokens[written], outcome, walk.account, served.budget, served.launch)
        else:  # failed, or free text that its limit has ended
            self._end(row, served, Outcome.ENDED if walk.outcome is Outcome.MEMBER else walk.outcome)

    def _end(self, row: Tensor, served: ServedWalk, outcome: Outcome) -> None:
        served.over = True
        force(row, self.vocabulary.eos_ids[0], outcome, served.walk.account, served.budget, served.launch)

    def _log_p(self, row: Tensor, served: ServedWalk) -> Tensor:
        context = (*served.prompt, *served.walk.tokens)
        log_p = served.settings.log_p(row[None, : len(self.vocabulary)], self.vocabulary, [context])[0]
        if bool(torch.isnan(log_p).any()):
            raise ValueError("the model's logits hold NaN")
        return log_p

    def _begun(self, call: ServedCall, number: int, prompt: tuple[int, ...], limit: int | None) -> ServedWalk:
        if call.road == "probe":
            return self._stopped(Outcome.READY)
        if not prompt:
            raise ValueError("the engine gives no tokens of the prompt")
        table = self._compiled.of_written(call.language, call.ban)
        start = table.start_after(prompt)
        least = table.guide.min_tokens(start)
        if least >= UNREACHABLE:
            return self._stopped(Outcome.EMPTY)
        budget = call.settings.max_new_tokens or max(DEFAULT_BUDGET, 4 * least)
        budget = min(budget, self._max_length - len(prompt), budget if limit is None else limit)
        if budget < least:
            return self._stopped(Outcome.TOO_SHORT, least)
        assert call.settings.seed is not None
        launch = next(self._launches.of((call.settings.seed, call.row), count))
        rng = random_stream(call.settings.seed, call.row, number)
        walk: EngineWalk
        if call.road == "local":
            walk = MaskedWalk(table, start, budget, rng)
        else:
            walk = ExactWalk(self._tree(call, table, prompt, start, budget), number, rng)
        return ServedWalk(walk, call.settings, prompt, budget, launch)

    def _stopped(self, outcome: Outcome, budget: int = 0) -> ServedWalk:
        return ServedWalk(StoppedWalk(outcome), SamplingSettings(), (), budget, 0)

    def _tree(self, call: ServedCall, table: Table, prompt: tuple[int, ...], start: int, budget: int) -> BoundsTree:
        key = (
            table,
            call.settings.law_key,
            call.prompt,
            call.tree,
            call.row if call.tree else 0,
            prompt,
            start,
            budget,
        )
        if key not in self._trees:
            self._trees[key] = BoundsTree(table, budget, start=start)
            while len(self._trees) > TREES or sum(tree.bytes for tree in self._trees.values()) > TREES_BYTES:
                self._trees.popitem(last=False)
        self._trees.move_to_end(key)
        return self._trees[key]

    def _trim(self, walk: EngineWalk) -> None:
        """Bring the tree of a walk under its bound; what other walks stand on stays."""
        if isinstance(walk, ExactWalk):
            standing = (served.walk for served in self.walks if isinstance(served.walk, ExactWalk))
            walk.tree.evict(TREES_BYTES // 4, (other.attempt.node for other in standing if other.tree is walk.tree))
