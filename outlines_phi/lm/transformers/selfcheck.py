"""Which kind of token trees a model can hold, found out by trying."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ...errors import UnsupportedError
from ..forest import Forest
from ..model import TokenTrees
from .forward import Forward
from .packed import PackedTrees
from .rows import RowTrees

logger = logging.getLogger(__name__)

Trees = Callable[[Forward, Sequence[Sequence[int]]], TokenTrees]

# From the cheapest to the most patient; the last one needs nothing but causality.
ROADS: dict[str, Trees] = {
    "packed": PackedTrees,
    "rows": RowTrees,
    "rows of one length": lambda forward, prompts: RowTrees(forward, prompts, padding=False),
}

# Root mean square of the logit error over the standard deviation of the logits. On small random models rounding gives
# 1e-6 (float32) and 1e-2 (bfloat16), a wrong mask or wrong positions 0.1 to 2; float32 leaves room for TF32.
TOLERANCE = {torch.float64: 5e-3, torch.float32: 5e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}

_VERDICTS: WeakKeyDictionary[Any, dict[tuple[torch.dtype, str, str], str]] = WeakKeyDictionary()


def road(forward: Forward) -> str:
    """Return the first of :data:`ROADS` on which the model agrees with plain evaluation of each sequence.

    The check is made once per (model, dtype, attention implementation, kind of device) and costs about seven small
    model calls. When packed trees do not work, one warning is logged that names the reason.

    Raises
    ------
    UnsupportedError
        No road agrees: the model is not causal, or its answers are not reproducible.
    """
    verdicts = _VERDICTS.setdefault(forward.hf_model, {})
    key = (forward.dtype, forward.attention, forward.device.type)
    if key not in verdicts:
        verdicts[key] = _find(forward)
    return verdicts[key]


def _find(forward: Forward) -> str:
    example = Example(forward)
    reasons: dict[str, str] = {}
    for name, trees in ROADS.items():
        reason = example.fault(trees)
        if reason is None:
            if reasons:
                logger.warning(
                    "%s cannot hold token trees in one cache (%s); every tree node becomes a batch row, which is "
                    "correct but slower.",
                    type(forward.hf_model).__name__,
                    reasons["packed"],
                )
            return name
        reasons[name] = reason
    raise UnsupportedError(
        f"{type(forward.hf_model).__name__} in {forward.dtype} with {forward.attention!r} attention does not "
        f"reproduce its own logits ({'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}). A causal "
        "(decoder-only) language model is needed; if it is one, try torch.float32 or attn_implementation='eager'."
    )


@final
class Example:
    """A small tree with random tokens, and the logits that plain evaluation gives for its nodes."""

    def __init__(self, forward: Forward) -> None:
        self.forward, random = forward, np.random.default_rng(0)
        window = getattr(forward.config, "sliding_window", None) or 0
        long = max(12, window + 2 if window <= 64 else 0)  # past the window, where that is cheap
        longest = forward.max_length or long + 3

        def draw(count: int) -> list[int]:
            return random.integers(forward.size, size=count).tolist()

        lengths = [max(1, min(length, longest - 3)) for length in (long, 2)]
        self.prompts = [draw(length) for length in lengths]
        # The prompts' call and another; both hold siblings and nodes of both prompts, the second a parent of its own call.
        self.calls = [([0, 0, 1], draw(3)), ([2, 5, 3, 4, 2], draw(5))]

    def fault(self, trees: Trees) -> str | None:
        """Return what is wrong with the model on this road, ``None`` when nothing is."""
        plain = self.plain  # first: a model that gives NaN by itself says so, and no road is blamed for it
        try:
            logits = self._grown(trees(self.forward, self.prompts))
        except torch.OutOfMemoryError:
            raise
        except UnsupportedError as error:
            return str(error)
        except Exception as error:  # whatever an unknown architecture makes of masks and caches it does not know
            return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        distance = float((logits - plain).square().mean().sqrt() / plain.std())
        if distance <= TOLERANCE.get(self.forward.dtype, TOLERANCE[torch.bfloat16]):
            return None
        return f"in a trial its logits are off by {distance:.2g} of their standard deviation"

    def _grown(self, trees: TokenTrees) -> Tensor:
        first, *later = self.calls
        evaluations = [trees.roots(*first), *(trees.extend(parents, tokens) for parents, tokens in later)]
        return torch.cat([evaluation.logits for evaluation in evaluations]).double().cpu()

    @cached_property
    def plain(self) -> Tensor:
        """``[nodes, V]`` logits from the sequences of the leaves, one at a time, without mask or cache.

        A node's logits are read in the middle of a leaf's sequence, so a model that sees what follows is found out.
        """
        forest = Forest(self.prompts, self.forward.size, None)
        forest.plant()
        for parents, tokens in self.calls:
            forest.add(parents, tokens)
        logits = torch.empty(len(forest), self.forward.size, dtype=torch.float64)
        for leaf in sorted(set(range(len(forest))) - set(forest.parent.tolist())):
            sequence = torch.tensor([forest.sequence(leaf)], device=self.forward.device)
            answer, _ = self.forward(sequence, mask=torch.ones_like(sequence), positions=None)
            answer = self.forward.checked(answer[0]).double().cpu()
            node, place = leaf, -1
            while node >= 0:
                logits[node] = answer[place]
                node, place = int(forest.parent[node]), place - 1
        return logits
