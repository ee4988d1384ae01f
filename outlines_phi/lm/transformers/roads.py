"""Token trees as batch rows; the kinds of trees that a model can hold at each length, found out by trying; regions of lengths."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple, final
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import ModelError, UnsupportedError
from ...numerics.distributions import Rows, send
from ..model import TokenTrees
from ..sequences import Forest, ForestTrees, grown
from .forward import Forward, structure
from .packed import PackedTrees


@final
class RowTrees(ForestTrees):
    """Token trees whose every new node is a batch row with a whole sequence of its own.

    The cache of the last call is kept, where the model's can be. When all parents were nodes of the last call, its rows are
    selected (and copied, where a parent has several children) and one token each is evaluated; otherwise whole sequences are.
    The counts are what was really evaluated: prompts and paths that are evaluated again count again.

    ``padding``: whether sequences of different lengths may share a call, left padded. Models that let padding leak into their
        state need False: one call per length.
    ``cached``: whether the cache of one call serves the next. Models that begin every call anew (learned prompts), or whose state
        cannot be copied, need False: every node is evaluated with all that stands before it.
    """

    def __init__(
        self, forward: Forward, prompts: Sequence[Sequence[int]], *, padding: bool = True, cached: bool = True
    ) -> None:
        super().__init__(prompts, forward.size, forward.max_length)
        self._forward, self._padding, self._cached = forward, padding, cached
        self._cache: Any = None
        self._held: NDArray[np.int64] = np.empty(0, dtype=np.int64)  # [b] nodes of the cache's rows, ascending
        self._real: NDArray[np.bool_] = np.empty((0, 0), dtype=bool)  # [b, columns] where the cache is not padding

    def _grow(self, nodes: range) -> Rows:
        new = np.arange(nodes.start, nodes.stop)
        try:
            follows = self._cache is not None and np.isin(self._forest.parent[new], self._held).all()
            return self._advance(new) if follows else self._evaluate(new)
        except BaseException:
            self._forget()
            raise

    def compact(self, keep: Sequence[int]) -> None:
        live = np.isin(self._held, self._forest.retain(keep))
        if not live.any():
            self._forget()
        elif self._cache is not None and not live.all():
            rows = np.flatnonzero(live)
            self._select(rows, *self._sent(rows))
            self._held, self._real = self._held[live], self._real[live]

    def _advance(self, nodes: NDArray[np.int64]) -> Rows:
        """Evaluate children of the last call's nodes from its cache, one token each."""
        forest = self._forest
        rows = np.searchsorted(self._held, forest.parent[nodes])
        self._real = np.pad(self._real[rows], ((0, 0), (0, 1)), constant_values=True)
        position = forest.prompt_lengths[forest.row[nodes]] + forest.depth[nodes] - 1
        tokens, real, positions, chosen = self._sent(
            forest.token[nodes][:, None], self._real.astype(np.int64), position[:, None], rows
        )
        self._select(rows, chosen)
        mask = None if self._forward.recurrent else real
        logits, self._cache = self._forward(tokens, mask=mask, positions=positions, cache=self._cache, last=1)
        self._held = nodes
        self.counts.calls += 1
        self.counts.tokens += len(nodes)
        return self._forward.checked(Rows.all(logits[:, -1]))

    def _evaluate(self, nodes: NDArray[np.int64]) -> Rows:
        """Evaluate the whole sequences of ``nodes``."""
        self._forget()
        sequences = [self._forest.sequence(int(node)) for node in nodes]
        lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
        answers = []
        groups = self._groups(lengths)
        for group in groups:
            logits, cache, real = self._batch([sequences[index] for index in group])
            self.counts.calls += 1
            depths = self._forest.depth[nodes[group]]
            self.counts.prompt_tokens += int((lengths[group] - depths).sum())
            self.counts.tokens += int(depths.sum())
            answers.append(self._forward.checked(Rows.all(logits)))
            if len(groups) == 1 and self._cached:
                self._cache, self._held, self._real = cache, nodes, real
        return Rows.joined(answers, groups)

    def _groups(self, lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the groups of sequences that share a call: those that may, as many as memory allows."""
        size = torch.finfo(self._forward.hf_model.dtype).bits // 8
        heads = self._forward.heads_in_memory
        groups = []
        for length in [lengths.max()] if self._padding else np.unique(lengths):
            members = np.arange(len(lengths)) if self._padding else np.flatnonzero(lengths == length)
            together = max(1, int(self._forward.memory // (size * (self._forward.size + heads * length**2))))
            groups += np.split(members, range(together, len(members), together))
        return groups

    def _batch(self, sequences: Sequence[tuple[int, ...]]) -> tuple[Tensor, Any, NDArray[np.bool_]]:
        """Evaluate ``sequences`` in one call; return last logits ``[b, V]``, the cache, and where it is real."""
        length = max(map(len, sequences))
        tokens, real = np.zeros((2, len(sequences), length), dtype=np.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, -len(sequence) :], real[row, -len(sequence) :] = sequence, 1
        ids, mask, positions = self._sent(tokens, real, np.maximum(np.cumsum(real, axis=1) - 1, 0))
        logits, cache = self._forward(ids, mask=mask, positions=positions if self._padding else None, last=1)
        return logits[:, -1], cache, real.astype(bool)

    @torch.inference_mode()
    def _select(self, rows: NDArray[np.int64], sent: Tensor) -> None:
        """Keep the cache of these rows alone, in their order."""
        if not np.array_equal(rows, np.arange(len(self._held))):
            self._cache.reorder_cache(sent)

    def _forget(self) -> None:
        self._cache, self._held = None, np.empty(0, dtype=np.int64)

    def _sent(self, *arrays: NDArray[np.int64]) -> list[Tensor]:
        return send(self._forward.hf_model.device, *arrays)


logger = logging.getLogger(__name__)

Trees = Callable[..., TokenTrees]

# From the cheapest to the most patient; the last one needs nothing but causality.
ROADS: dict[str, Trees] = {
    "packed": PackedTrees,
    "rows": RowTrees,
    "rows of one length": partial(RowTrees, padding=False),
    "whole sequences": partial(RowTrees, padding=False, cached=False),
}

# Root mean square of the error in log p over the standard deviation of log p, at the worst prefix. On small random models
# rounding gives 1e-6 (float32) and 1e-2 (bfloat16), a wrong mask or wrong positions 0.1 to 2.
TOLERANCE = {torch.float64: 5e-5, torch.float32: 5e-5, torch.float16: 2e-2, torch.bfloat16: 5e-2}
COARSE = {"high": 5e-3, "medium": 5e-2}  # float32 products that PyTorch was allowed to round: TF32, bfloat16

LEAST_LOG_P = -50.0  # Tokens below are none that a model writes: padding of the vocabulary, at whatever logit marks it
KEPT = 64  # Verdicts of one model that are kept, the newest: a model that is switched to and fro is not tried again each time

VERDICTS: WeakKeyDictionary[Any, dict[tuple[int, str, int], str | None]] = WeakKeyDictionary()
_RESTLESS: WeakSet[Any] = WeakSet()  # models whose structure is another one after each call


class TrialCall(NamedTuple):
    """One model call of a trial: what is given back before it, and the parents of its new nodes."""

    parents: Sequence[int]
    keep: Sequence[int] | None = None


# The walks; nodes 0 and 1 are the prompts. The calls: that of the prompts; siblings, both prompts, a parent of the same call;
# parents that are all of the call before, one repeated, others dropped, out of order; the same after nodes were given back, where
# all have one length, twice; then prefixes of earlier calls.
WALKS = (
    TrialCall((0, 0, 1)),
    TrialCall((2, 5, 3, 4, 2)),
    TrialCall((8, 6, 6, 5)),
    TrialCall((12, 11), keep=(11, 12, 10)),
    TrialCall((15, 15)),
    TrialCall((17, 16)),
    TrialCall((10, 0)),
)
# The same with fewer leaves, as prompts are long. The third call writes the last tokens before the border, in one length.
CROSSING = (
    TrialCall((0, 0, 1)),
    TrialCall((2, 2, 3, 4)),
    TrialCall((6, 5, 5)),
    TrialCall((10, 9, 9)),
    TrialCall((13, 4), keep=(13, 4)),
)


def tolerance(forward: Forward) -> float:
    """Return the distance between two evaluations of one prefix that rounding explains."""
    if forward.hf_model.dtype == torch.float32 and (precision := torch.get_float32_matmul_precision()) in COARSE:
        return COARSE[precision]
    return TOLERANCE.get(forward.hf_model.dtype, TOLERANCE[torch.bfloat16])


def road(forward: Forward, length: int) -> str:
    """Return the first of :data:`ROADS` on which the model agrees with plain evaluation, for sequences of up to ``length`` tokens.

    A trial with short prompts is made once for a model as it is (its structure: dtype, attention, adapters, ...), and costs about
    ten small model calls; another one at each border below ``length``, when that is first asked for. One warning is logged where
    packed trees do not work. Where no road agrees, the model is refused: it is not causal, or its answers are not reproducible.
    """
    tried = [0, *filter(length.__gt__, forward.borders.all)]
    reasons, new = dict[str, str](), False
    verdicts = VERDICTS.setdefault(forward.hf_model, {})
    known = 0 if forward.hf_model in _RESTLESS else structure(forward.hf_model)
    for name in ROADS:
        for border in tried:
            key = (known, name, border)
            if key not in verdicts:
                example = Example(forward, border)
                verdicts[key], new = example.fault(name), True
                if example.restless:
                    _RESTLESS.add(forward.hf_model)
                while len(verdicts) > KEPT:
                    del verdicts[next(iter(verdicts))]
            if (reason := verdicts[key]) is not None:
                reasons[name] = reason
                break
        else:
            if new and reasons:
                logger.warning(
                    "%s cannot hold token trees in one cache (%s); %s, which is correct but slower.",
                    type(forward.hf_model).__name__,
                    reasons["packed"],
                    "every node is evaluated with all that stands before it"
                    if name == "whole sequences"
                    else "every tree node becomes a batch row",
                )
            return name
    raise UnsupportedError(
        f"Use a causal (decoder-only) language model; if it is one, try torch.float32 or attn_implementation='eager'. "
        f"{type(forward.hf_model).__name__} in {forward.hf_model.dtype} with {forward.attention!r} attention does not reproduce "
        f"its own logits ({'; '.join(f'{name}: {reason}' for name, reason in reasons.items())})."
    )


@final
class Example:
    """A small tree with random tokens, and the log probabilities that plain evaluation gives for its nodes.

    ``border``: the length that the tree crosses, a long prompt beside a short one; behind a separating one both prompts are
        beyond it. With 0 prompts are short.

    ``restless``: whether calls of the trial have changed the model's structure: its modules count calls, say.
    """

    restless = False

    def __init__(self, forward: Forward, border: int = 0) -> None:
        self.forward, random = forward, np.random.default_rng(border)
        self.calls = CROSSING if border else WALKS
        depth = 5 if border else 7  # tokens behind a prompt, at most
        longest = (forward.max_length or border + 20) - depth
        if border in forward.borders.separate:
            lengths = (border + 3, border + 1)
        else:
            lengths = (border - 3, 2) if border else (12, 2)
            longest = min([longest, *(end - depth for end in forward.borders.separate if end > border)])
        self.gap = 0 if border else forward.borders.slots

        def draw(count: int) -> list[int]:
            return random.integers(forward.size, size=count).tolist()

        self.prompts = [draw(max(1, min(length, longest))) for length in lengths]
        self.prompts[0] = [*self.prompts[0], *forward.triggers][-len(self.prompts[0]) :]
        self.tokens = [draw(len(call.parents)) for call in self.calls]

    def fault(self, name: str) -> str | None:
        """Return the fault of the model on a road, ``None`` if there is none. A trial that raised is made twice."""
        plain = self.plain  # first: a model that gives NaN by itself says so, and no road is blamed for it
        before = structure(self.forward.hf_model)
        trials: list[dict[str, int]] = [{}] if name != "packed" or not self.gap else [{}, {"gap": self.gap}]
        for options in trials:
            reason = self._fault(plain, partial(ROADS[name], **options))
            if reason is not None:
                break
        self.restless = structure(self.forward.hf_model) != before
        return reason

    def _fault(self, plain: Tensor, trees: Trees, *, again: bool = True) -> str | None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what wrappers say of arguments that they ignore, a trial shows
                found = self._grown(trees(self.forward, self.prompts))
        except torch.OutOfMemoryError:
            raise
        except UnsupportedError as error:
            return str(error)
        except Exception as error:  # whatever an unknown architecture makes of masks and caches it does not know
            if again:
                return self._fault(plain, trees, again=False)
            cause = error.__cause__ if isinstance(error, ModelError) and error.__cause__ else error
            return f"{type(cause).__name__}: {(str(cause).splitlines() or [''])[0]}"
        off = distance(found, plain)
        if off <= tolerance(self.forward):
            return None
        return f"in a trial its log probabilities are off by {off:.2g} of their standard deviation"

    def _grown(self, trees: TokenTrees) -> Tensor:
        """Return ``[nodes, V]`` log probabilities of the tree, grown as walks grow it."""
        first, *later = zip(self.calls, self.tokens, strict=True)
        logits = [trees.roots(first[0].parents, first[1]).logits]
        for call, tokens in later:
            if call.keep is not None:
                trees.compact(call.keep)
            logits.append(trees.extend(call.parents, tokens).logits)
        return torch.cat(logits).double().cpu().log_softmax(-1)

    @cached_property
    def plain(self) -> Tensor:
        """``[nodes, V]`` log probabilities from the sequences of the leaves, one at a time, without mask or cache.

        A node's are read in the middle of a leaf's sequence, so a model that sees what follows is found out.
        """
        forest = Forest(self.prompts, self.forward.size, None)
        forest.plant()
        for call, tokens in zip(self.calls, self.tokens, strict=True):
            forest.add(call.parents, tokens)
        logits = torch.empty(len(forest), self.forward.size, dtype=torch.float64)
        for leaf in sorted(set(range(len(forest))) - set(forest.parent.tolist())):
            sequence = torch.tensor([forest.sequence(leaf)], device=self.forward.hf_model.device)
            last = int(forest.depth[leaf]) + 1
            answer, _ = self.forward(sequence, mask=torch.ones_like(sequence), positions=None, last=last)
            answer = self.forward.checked(Rows.all(answer[0])).whole().double().cpu()
            node, place = leaf, -1
            while node >= 0:
                logits[node] = answer[place]
                node, place = int(forest.parent[node]), place - 1
        return logits.log_softmax(-1)


def distance(found: Tensor, plain: Tensor) -> float:
    """Return the distance of ``[n, V]`` log probabilities from the right ones: at the worst of the ``n``, over their spread.

    The root mean square of the difference over the tokens that the right ones give any probability, over the standard deviation of
    these. Tokens that a model never writes are left out: rows of a padded vocabulary would hide every error by their spread.
    """
    real = plain > LEAST_LOG_P
    error = torch.where(real, found - plain, 0).square().sum(-1) / real.sum(-1)
    off = float(error.sqrt().max() / plain[real].std().clamp(min=1e-6))
    return float("inf") if np.isnan(off) else off


@final
class RegionTrees(ForestTrees):
    """Token trees over trees of their own for each region of lengths.

    A region ends at a border that separates (:class:`Borders`), and at one behind which another of :data:`ROADS` is needed, which
    is tried when a sequence first comes to it. A node beyond the end is evaluated with its whole sequence, as a new prompt.
    """

    def __init__(self, forward: Forward, prompts: Sequence[Sequence[int]]) -> None:
        super().__init__(prompts, forward.size, forward.max_length)
        self._forward = forward
        self._parts: list[TokenTrees | None] = []
        self._region_of: list[int] = []  # of each part
        self._part = np.full(len(self._forest), -1, dtype=np.int64)  # per handle: its trees,
        self._inner = np.zeros(len(self._forest), dtype=np.int64)  # and its handle there
        self._ends: list[int] = []  # the lengths at which regions end,
        self._ahead = list(forward.borders.all)  # and those that no sequence has crossed yet
        self._roads = [road(forward, 0)]  # of each region

    def _grow(self, nodes: range) -> Rows:
        parts = len(self._parts)
        try:
            return self._evaluate(np.arange(nodes.start, nodes.stop))
        except BaseException:
            del self._parts[parts:], self._region_of[parts:]
            raise

    def compact(self, keep: Sequence[int]) -> None:
        live = self._forest.retain(keep)
        for index, part in enumerate(self._parts):
            mine = live[self._part[live] == index]
            if part is not None and len(mine):
                part.compact(self._inner[mine].tolist())
            else:
                self._parts[index] = None

    def _evaluate(self, nodes: NDArray[np.int64]) -> Rows:
        """Evaluate new nodes (and prompts, the first time), each in the trees of its region; return their logits ``[n, V]``."""
        forest = self._forest
        regions = self._regions(forest.prompt_lengths[forest.row[nodes]] + forest.depth[nodes])
        self._part, self._inner = grown(self._part, len(forest)), grown(self._inner, len(forest))
        old, begun = len(self._parts), dict[int, int]()  # by region
        prompts: dict[int, list[int]] = {}
        grown_by: dict[int, list[int]] = {}
        for node, region in zip(nodes.tolist(), regions.tolist(), strict=True):
            parent = int(forest.parent[node])
            part = int(self._part[parent]) if parent >= 0 else -1
            if part >= 0 and self._region_of[part] == region:
                grown_by.setdefault(part, []).append(node)
            else:  # a prompt, or a node beyond the end of its parent's region
                if region not in begun:
                    begun[region] = len(self._region_of)
                    self._region_of.append(region)
                part = begun[region]
                prompts.setdefault(part, []).append(node)
            self._part[node] = part
        self._parts += [
            ROADS[self._roads[region]](self._forward, [forest.sequence(node) for node in prompts[part]])
            for region, part in begun.items()
        ]
        answers, places = list[Rows](), list[NDArray[np.int64]]()
        for index in sorted(prompts.keys() | grown_by.keys()):
            trees = self._parts[index]
            assert trees is not None
            new = grown_by.get(index, [])
            answered = [*prompts.get(index, []), *new]
            first = 0 if index >= old else trees.next_node
            self._inner[answered] = first + np.arange(len(answered))
            before = replace(trees.counts)
            pairs = self._inner[forest.parent[new]].tolist(), forest.token[new].tolist()
            answers.append((trees.roots(*pairs) if index >= old else trees.extend(*pairs)).rows)
            places.append(np.searchsorted(nodes, answered))
            # Generated tokens that are evaluated as those of a prompt count as generated.
            written = int(forest.depth[prompts.get(index, [])].sum())
            self.counts.calls += trees.counts.calls - before.calls
            self.counts.prompt_tokens += trees.counts.prompt_tokens - before.prompt_tokens - written
            self.counts.tokens += trees.counts.tokens - before.tokens + written
        return Rows.joined(answers, places)

    def _regions(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the region of sequences of ``lengths`` tokens, after trials at the borders that are crossed for the first time."""
        while self._ahead and lengths.max() > self._ahead[0]:
            border = self._ahead[0]
            behind = road(self._forward, border + 1)
            self._ahead.pop(0)
            if border in self._forward.borders.separate or behind != self._roads[-1]:
                self._ends.append(border)
                self._roads.append(behind)
        return np.searchsorted(self._ends, lengths)
