"""Our mask inside Hugging Face's own loop, and the prefixes that the loop visits: what ``phi=None`` runs."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from outlines.processors import OutlinesLogitsProcessor
from torch import Tensor

from ..errors import ModelError, UnsupportedError
from ..guides.guide import DEAD, DONE
from ..guides.phrases.banned import BannedPhrases
from ..guides.table import Table
from ..numerics.distributions import add_rows


@final
class Step(NamedTuple):
    """The next token's distribution after a prefix ``y``: ``log S(y) = log sum_v p(v|y) h(yv)``, in nats, and ``log h(yv)`` of each
    token, ``[V]``, ``-inf`` where it is never drawn.
    """

    log_s: float
    log_h: Tensor

    def log_w(self, token: int) -> float:
        """Return ``log p(v|y) - log q(v|y) = log S(y) - log h(yv)``, ``-inf`` where ``v`` is never drawn."""
        log_h = float(self.log_h[token])
        return self.log_s - log_h if log_h > -math.inf else -math.inf


@final
@dataclass(slots=True, eq=False)
class Prefix:
    """A sequence of ``length`` generated tokens ``y``, the guide state after it, and the longer prefixes that were seen.

    ``log_w`` is ``log p(y) - log q(y)``, ``nan`` where a step is not known; ``step`` is the next one, where the host has asked.
    """

    state: int
    length: int
    log_w: float
    children: dict[int, Prefix] = field(default_factory=dict)
    step: Step | None = None


@final
class PrefixTree:
    """The prefixes of one generation, by what the host passes: prompt and generated tokens in one row of ids.

    Beams, rejected drafts and reordered batches come down to visiting other prefixes. The prompt is what the rows hold
    at the first call. A new generation is told by its rows: they do not go on where the host has asked before.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.forget()

    def forget(self) -> None:
        """Wait for the first call of a generation."""
        self._seen: Tensor | None = None
        self._prompt_length = 0
        self._roots: dict[tuple[int, ...], Prefix] = {}
        self.last: list[Prefix] = []
        self.in_order = True

    def visit(self, rows: Tensor) -> list[Prefix]:
        """Return the prefix of each row of ``[B, prompt + generated]`` ids.

        Where a prompt is an earlier prompt with exactly what was written after it, nothing tells a new generation: call
        :meth:`forget` in between.
        """
        seen, self._seen = self._seen, rows.clone()
        if seen is not None and seen.shape == rows[:, :-1].shape and torch.equal(seen, rows[:, :-1]):
            self.last = [self._next(node, token) for node, token in zip(self.last, rows[:, -1].tolist(), strict=True)]
            return self.last
        found = self._continued(rows.tolist())
        self.last = self._begin(rows) if found is None else found
        self.in_order = found is None
        return self.last

    def find(self, row: Sequence[int]) -> tuple[Prefix, list[int]] | None:
        """Return the longest visited prefix of a row of ids, and the ids after it; ``None`` for an unknown prompt."""
        node = self._roots.get(tuple(row[: self._prompt_length]))
        if node is None:
            return None
        generated = list(row[self._prompt_length :])
        while generated and generated[0] in node.children:
            node = node.children[generated.pop(0)]
        return node, generated

    def _begin(self, rows: Tensor) -> list[Prefix]:
        self._prompt_length = rows.shape[1]
        self._roots = {}
        return [
            self._roots.setdefault(tuple(row), Prefix(self._table.start_after(row), 0, 0.0)) for row in rows.tolist()
        ]

    def _continued(self, rows: list[list[int]]) -> list[Prefix] | None:
        """Return the prefixes of rows that continue this generation; ``None`` where they begin another one."""
        nodes, finished, leaps = [], 0, False
        for row in rows:
            found = self.find(row) if len(row) > self._prompt_length else None
            if found is None:
                return None
            node, rest = found
            leap = len(rest) > 1
            for token in rest:
                # A finished row is filled up with one id; anything else after an end is a new prompt.
                if leap and node.state == DONE and token != rest[-1]:
                    return None
                node = self._next(node, token)
            if leap and node.state == DEAD:
                return None
            leaps, finished = leaps or leap, finished + (node.state == DONE)
            nodes.append(node)
        return None if leaps and finished == len(rows) else nodes

    def _next(self, node: Prefix, token: int) -> Prefix:
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = Prefix(self._after(node.state, token), node.length + 1, math.nan)
        # Anew at every visit: an assistant's distribution, or that of a trial run, is replaced by the model's own.
        if node.state == DONE:
            child.log_w = node.log_w
        elif node.step is not None:
            child.log_w = node.log_w + node.step.log_w(token)
        return child

    def _after(self, state: int, token: int) -> int:
        if state == DONE:
            return DONE
        # A prompt may hold ids that the model reads and cannot write.
        return self._table.guide.advance(state, token) if token < len(self._table.vocabulary) else DEAD


class TableLogitsProcessor(OutlinesLogitsProcessor):
    """A logits processor that allows what a table allows.

    A row's guide state is a function of the tokens generated so far, never of the call history, so beams, assisted
    decoding and reordered batches are fine. ``tensor_library_name`` is what the host's loop works with, ``"torch"`` or ``"numpy"``.
    """

    ban: BannedPhrases | None = None  # The phrases that the table keeps out

    def __init__(self, table: Table, tensor_library_name: str = "torch") -> None:
        super().__init__(tensor_library_name)
        self.table = table
        self._prefixes = PrefixTree(table)

    def reset(self) -> None:
        """Forget the last generation."""
        self.table = self.table.current
        self._prefixes = PrefixTree(self.table)

    def process_logits(self, input_ids: Any, logits: Any) -> Any:
        """Return the logits, ``[B, V]``, from which the host draws the next tokens after ``[B, prompt + generated]`` ids.

        Tensors of torch, or arrays of NumPy.
        """
        if isinstance(logits, np.ndarray):
            ids = torch.from_numpy(np.array(input_ids, dtype=np.int64))
            return self.process_logits(ids, torch.from_numpy(np.array(logits))).numpy()
        if logits.shape[-1] != len(self.table.vocabulary):
            raise UnsupportedError(
                "Use the generator with the model that it was made for. The model gives "
                f"{logits.shape[-1]} logits per token and the guide was built for {len(self.table.vocabulary)}."
            )
        if torch.isnan(logits.sum()):  # one cheap reduction: a NaN anywhere stays NaN
            raise ModelError(
                "Check the model's weights and dtype (float16 overflows in some models; try bfloat16 or float32): its logits hold "
                "NaN."
            )
        return self._process(self._prefixes.visit(input_ids), logits)

    def of_arrays(self, ids: NDArray[np.integer], logits: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return :meth:`process_logits` of one sequence, ``[V]`` after ``[n]`` ids, for loops without torch."""
        masked: NDArray[np.floating] = self.process_logits(ids[None], logits[None])[0]
        return masked

    @abstractmethod
    def _process(self, prefixes: Sequence[Prefix], logits: Tensor) -> Tensor:
        """Return the logits from which the token after each prefix is drawn."""


@final
class MaskLogitsProcessor(TableLogitsProcessor):
    """Plain masking, ``mu_proj``, with cached bias rows added in place; ``ban`` are the phrases that the table keeps out.

    ``budget`` is the most tokens that the loop writes, where it is known: what is allowed can be completed within it. Without, the
    loop may cut a text short; in a whole word that is banned, too.
    """

    def __init__(
        self,
        table: Table,
        tensor_library_name: str = "torch",
        *,
        ban: BannedPhrases | None = None,
        budget: int | None = None,
    ) -> None:
        super().__init__(table, tensor_library_name)
        self.ban, self.budget = ban, budget

    def _process(self, prefixes: Sequence[Prefix], logits: Tensor) -> Tensor:
        return add_rows(logits, [self._bias(prefix, logits.device) for prefix in prefixes], out=logits)

    def _bias(self, prefix: Prefix, device: torch.device) -> Tensor:
        # A finished row goes on being called until the batch ends; the host replaces what it draws.
        if prefix.state == DONE:
            bias = torch.full((len(self.table.vocabulary),), -torch.inf, device=device)
            bias[self.table.vocabulary.eos_ids[0]] = 0.0
            return bias
        return self.table.bias(prefix.state, None if self.budget is None else self.budget - prefix.length, device)
