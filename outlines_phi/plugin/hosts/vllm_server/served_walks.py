"""The walks in an engine: which there are, what each writes in a step, and the trees and formats that they share."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, final
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from ....errors import EmptyLanguageError
from ....guides.guide import DONE, UNREACHABLE
from ....guides.table import Table
from ....numerics.cache import Cache, memory_of
from ....numerics.distributions import Distributions, add_rows
from ....phi.tree.tree import BoundsTree
from ....sampling.rejection.attempts import Attempt, descend
from ....sampling.sampler import DEFAULT_BUDGET, random_stream
from ....settings import SamplingSettings
from ....vocabulary.vocabulary import Vocabulary
from ...types.tables import CompiledTypes
from .served_call import ServedCall, WalkAccount, WalkEnd, force, reading

if TYPE_CHECKING:
    from ....lm.vllm.engine import AskedRow

USUAL = SamplingSettings()  # Of a request that is over before its first token


class EngineWalk:
    """One request of the engine: a draw, and by itself one that is over before its first token.

    The engine writes its ``tokens``; where it has written all of them, ``advance`` lets walks of a kind go on, in their order.
    """

    tokens: Sequence[int] = ()
    written = 0
    fresh = True  # Whether the engine has not asked since the request came into its batch
    over = False

    def __init__(
        self,
        outcome: WalkEnd,
        settings: SamplingSettings = USUAL,
        prompt: Sequence[int] = (),
        budget: int = 0,
        launch: int = 0,
    ) -> None:
        self.outcome, self.settings, self.prompt, self.budget, self.launch = outcome, settings, prompt, budget, launch

    @property
    def place(self) -> Hashable | None:
        """The name of the distribution that it needs to go on; ``None`` where it needs none."""
        return None

    @property
    def account(self) -> WalkAccount:
        """Account of the draw so far."""
        return WalkAccount(0.0, 0.0, 0.0)

    def wants_more(self, asked: AskedRow) -> bool:
        """Take note of what the engine has written; return whether the walk has to go on before it writes more.

        Raises ``AssertionError`` where the engine asks twice, as about parts of a prompt, or has written what was not decided.
        """
        before, tokens = None if self.fresh else self.written, self.tokens
        self.written, self.fresh = asked.written, False
        agreed = self.written <= len(tokens) and (not self.written or asked.last in (-1, tokens[self.written - 1]))
        if self.written == before or not agreed:
            raise AssertionError(
                f"asked after {asked.written} tokens, the last {asked.last}, and before that after {before}; decided {tokens}"
            )
        return self.outcome is WalkEnd.UNDER_WAY and self.written == len(tokens)


@final
class ExactWalk(EngineWalk):
    """An attempt by rejection on a tree that other attempts share: it returns a member with ``p(y) / U_launch`` (theory.md, section
    5.3), whatever the others expand meanwhile.

    It chooses as far as the tree knows, and the engine writes what was chosen before it is asked for more.
    """

    def __init__(self, tree: BoundsTree, number: int, rng: np.random.Generator, *given: Any) -> None:
        super().__init__(WalkEnd.UNDER_WAY, *given)
        self.tree, self.attempt = tree, Attempt(number, tree.root, rng)

    @property
    def place(self) -> Hashable | None:
        return self.attempt.node if self.attempt.node.free is None else None

    @staticmethod
    def advance(walks: Sequence[ExactWalk], log_p: Mapping[Hashable, Tensor]) -> None:
        for walk in walks:
            tree, node = walk.tree, walk.attempt.node
            if node.free is None:
                tree.expand(node, log_p[node].cpu().numpy())
                tree.propagate([node])
            found = descend(tree, walk.attempt)
            walk.tokens = walk.attempt.node.tokens()
            if found is not None:
                possible = tree.root.log_upper > -math.inf
                walk.outcome = WalkEnd.MEMBER if found else WalkEnd.FAILED if possible else WalkEnd.NOWHERE

    @property
    def account(self) -> WalkAccount:
        """The bounds are those of the tree now."""
        return WalkAccount(self.attempt.node.log_p, *self.tree.log_bounds)


@final
class MaskedWalk(EngineWalk):
    """A draw of plain masking with its weight, ``log_w = sum_t log S(y_t)`` (theory.md, section 4.1).

    ``start``: The guide state in which the text begins.
    """

    def __init__(self, table: Table, start: int, rng: np.random.Generator, *given: Any) -> None:
        super().__init__(WalkEnd.UNDER_WAY, *given)
        self._table, self._state, self._remaining, self._rng = table, start, self.budget, rng
        self.tokens: list[int] = []
        self._log_p = self._log_w = 0.0

    @property
    def place(self) -> Hashable | None:
        return self

    @staticmethod
    def advance(walks: Sequence[MaskedWalk], log_p: Mapping[Hashable, Tensor]) -> None:
        here = torch.stack([log_p[walk] for walk in walks])
        biases = [walk._table.bias(walk._state, walk._remaining, here.device) for walk in walks]
        allowed = Distributions.of(add_rows(here, biases, out=torch.empty_like(here)))
        # The numbers that a step of `Stepper` takes, so that a seed names the same text.
        quantiles = torch.tensor([walk._rng.random() for walk in walks], dtype=torch.float64, device=here.device)
        rows = torch.arange(len(walks), device=here.device)
        tokens = allowed.draw(rows, quantiles)
        drawn = torch.stack([tokens.double(), allowed.log_s, here[rows, tokens].double()], -1).tolist()
        for walk, (token, log_s, log_p_v) in zip(walks, drawn, strict=True):
            walk._take(int(token), log_s, log_p_v)

    def _take(self, token: int, log_s: float, log_p: float) -> None:
        if log_s == -np.inf:
            self.outcome = WalkEnd.NOWHERE
            return
        self._log_p, self._log_w = self._log_p + log_p, self._log_w + log_s
        self.tokens.append(token)
        self._state = self._table.advance(self._state, token, self._remaining)
        self._remaining -= 1
        if self._state == DONE:
            self.outcome = WalkEnd.MEMBER

    @property
    def account(self) -> WalkAccount:
        return WalkAccount(self._log_p, self._log_w, self._log_w)


LOG = logging.getLogger("vllm.outlines_phi")  # shown in the server's log, as vLLM's own lines are

# Bounds: of kept trees, of calls whose launches are kept, of calls that were read (bytes)
TREES, CALLS, CALLS_BYTES = 1024, 256, 2**22


@final
class ServedWalks:
    """All walks of an engine, over the tokens of its model, which takes ``max_length`` of them.

    Its trees take ``max_tree_bytes`` of memory together, a single one a quarter of that.

    Calls share what they learn only where the tokens of a prompt tell the distribution (``tokens_tell``). With adapters, pictures
    or embeddings they do not, and a client's word for the rest would let it turn the draws of others: each call has its own trees.

    Nothing here raises: an exception would end the engine, and the requests of everybody. Whatever goes wrong ends one request, by
    an :class:`WalkEnd` that says so. Nor does anything depend on time or on chance that is not in the arguments: every rank of a
    tensor-parallel engine does the same.

    ``trees``: Those that are kept, the latest used last.
    ``walks``: Those that there are: a walk lives as long as its request, which holds it.
    """

    def __init__(self, vocabulary: Vocabulary, max_length: int, max_tree_bytes: int, *, tokens_tell: bool) -> None:
        self.vocabulary, self._tokens_tell = vocabulary, tokens_tell
        self._max_length, self._max_tree_bytes = max_length, max_tree_bytes
        self._compiled = CompiledTypes(vocabulary)
        self._calls: Cache[str, ServedCall] = Cache(CALLS_BYTES)
        self._launches: Cache[tuple[int, int], count[int]] = Cache(CALLS)
        self.trees: OrderedDict[Hashable, BoundsTree] = OrderedDict()
        self.walks: WeakSet[EngineWalk] = WeakSet()

    def begin(self, argument: str, number: int, prompt: Sequence[int] | None, limit: int | None) -> EngineWalk:
        """Return the walk of a request: attempt or draw ``number`` of its call, of at most ``limit`` tokens."""
        ids = tuple(prompt or ())
        try:
            with reading():
                call = self._calls.of(argument, lambda: ServedCall.read(argument), memory_of)
                walk = self._begun(call, number, ids, limit)
        except EmptyLanguageError:
            walk = EngineWalk(WalkEnd.EMPTY)
        except Exception:
            LOG.exception("A request of outlines_phi could not be begun.")
            walk = EngineWalk(WalkEnd.BROKEN)
        self.walks.add(walk)
        return walk

    def write(self, logits: Tensor, asked: Mapping[int, AskedRow]) -> None:
        """Let some rows of ``logits``, ``[B, V]``, write what their walks write after the tokens that the engine has written.

        What was launched first goes first. A step that fails is made again, walk by walk: one that cannot go on stops nobody.
        """
        going: list[tuple[int, EngineWalk]] = []
        for row, each in sorted(asked.items(), key=lambda item: item[1].kept.launch):
            with self._alone(each.kept):
                if not each.kept.over and each.kept.wants_more(each):
                    going.append((row, each.kept))
        try:
            self._advance(logits, going)
        except Exception:
            for row, walk in going:
                if walk.outcome is WalkEnd.UNDER_WAY and walk.written == len(walk.tokens):
                    with self._alone(walk):
                        self._advance(logits, [(row, walk)])
        for row, each in asked.items():
            self._force(logits[row], each.kept)

    @contextmanager
    def _alone(self, walk: EngineWalk) -> Iterator[None]:
        """Let an error be that of one walk."""
        try:
            yield
        except Exception:
            LOG.exception("A request of outlines_phi has failed.")
            walk.outcome = WalkEnd.BROKEN

    def _advance(self, logits: Tensor, going: Sequence[tuple[int, EngineWalk]]) -> None:
        """Let walks go on that have written all that they had decided."""
        places: dict[SamplingSettings, dict[Hashable, tuple[int, EngineWalk]]] = {}
        for row, walk in going:
            if (place := walk.place) is not None:
                places.setdefault(walk.settings, {}).setdefault(place, (row, walk))
        log_p: dict[Hashable, Tensor] = {}
        for settings, found in places.items():
            contexts = [(*walk.prompt, *walk.tokens) for _, walk in found.values()]
            rows = logits[[row for row, _ in found.values()], : len(self.vocabulary)]
            known = settings.log_p(rows, self.vocabulary, contexts)
            if bool(torch.isnan(known.sum())):  # one cheap reduction: a NaN anywhere stays NaN
                raise ValueError("The model's logits hold NaN.")
            log_p |= zip(found, known, strict=True)
        for kind in (ExactWalk, MaskedWalk):
            walks: list[Any] = [walk for _, walk in going if isinstance(walk, kind)]
            if walks:
                kind.advance(walks, log_p)
        grown = {walk.tree for _, walk in going if isinstance(walk, ExactWalk)}
        for tree in grown:
            standing = (walk for walk in self.walks if isinstance(walk, ExactWalk) and walk.tree is tree)
            tree.evict(self._max_tree_bytes // 4, (walk.attempt.node for walk in standing))
        if any(tree.table.guide.full for tree in grown):  # nobody asks for these any more
            self.trees = OrderedDict((key, tree) for key, tree in self.trees.items() if not tree.table.guide.full)
        while grown and (
            len(self.trees) > TREES or sum(tree.bytes for tree in self.trees.values()) > self._max_tree_bytes
        ):
            self.trees.popitem(last=False)  # walks that go on hold theirs

    def _force(self, row: Tensor, walk: EngineWalk) -> None:
        token, outcome = self.vocabulary.eos_ids[0], walk.outcome
        account = WalkAccount(0.0, 0.0, 0.0) if outcome is WalkEnd.BROKEN else walk.account
        going = outcome in (WalkEnd.UNDER_WAY, WalkEnd.MEMBER)
        if going and not walk.over and walk.written < len(walk.tokens):
            token = walk.tokens[walk.written]
            outcome = outcome if walk.written + 1 == len(walk.tokens) else WalkEnd.UNDER_WAY
        else:
            # It has failed, or its limit has ended free text; an engine that schedules ahead asks once more after the end.
            outcome = WalkEnd.ENDED if walk.over or going else outcome
            walk.over = True
        force(row, token, outcome, account, walk.budget, walk.launch)

    def _begun(self, call: ServedCall, number: int, prompt: tuple[int, ...], limit: int | None) -> EngineWalk:
        if call.road == "probe":
            return EngineWalk(WalkEnd.READY)
        if not prompt:
            raise ValueError("the engine gives no tokens of the prompt")
        table = self._compiled.of_written(call.language, call.ban, call.stops).current
        start = table.start_after(prompt)
        least = table.guide.min_tokens(start)
        if least >= UNREACHABLE:
            return EngineWalk(WalkEnd.EMPTY)
        budget = call.settings.max_new_tokens or max(DEFAULT_BUDGET, 4 * least)
        budget = min(budget, self._max_length - len(prompt), budget if limit is None else limit)
        if budget < least:
            return EngineWalk(WalkEnd.TOO_SHORT, budget=least)
        assert isinstance(call.settings.seed, int)
        launch = next(self._launches.of((call.settings.seed, call.row), count))
        rng, given = random_stream(call.settings.seed, call.row, number), (call.settings, prompt, budget, launch)
        if call.road == "local":
            return MaskedWalk(table, start, rng, *given)
        return ExactWalk(self._tree(call, table, prompt, start, budget), number, rng, *given)

    def _tree(self, call: ServedCall, table: Table, prompt: tuple[int, ...], start: int, budget: int) -> BoundsTree:
        own = (call.name, call.row) if call.alone or not self._tokens_tell else None
        key = (table, call.settings.law_key, own, prompt, start, budget)
        if key not in self.trees:
            self.trees[key] = BoundsTree(table, budget, start=start)
        self.trees.move_to_end(key)
        return self.trees[key]
