"""Logits of chosen requests, kept where an engine computes them until they are asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor

from .engine import BatchRows

KEY = "outlines_phi_row"
"""The name in ``SamplingParams.extra_args`` of what a request's logits are kept under."""

_ROWS: dict[str, Tensor] = {}
"""The logits of this process's engine, by key. Of a prompt that is read in parts the last ones are those of its end."""


@final
class RowCapture(LogitsProcessor):
    """A logits processor that copies the logits of requests with a :data:`KEY`, and changes none."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._keys = BatchRows(lambda params, prompt, outputs: (params.extra_args or {}).get(KEY))

    def is_argmax_invariant(self) -> bool:
        """Return False: vLLM leaves out processors that are, where all requests are greedy, and ours are."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self._keys.update(batch_update)

    def apply(self, logits: Tensor) -> Tensor:
        wanted = {row: key for row, key in self._keys.of.items() if row < len(logits)}
        if wanted:
            _ROWS.update(zip(wanted.values(), logits[list(wanted)], strict=True))
        return logits


class RowReader:
    """The methods that a worker of vLLM gains: the logits that :class:`RowCapture` has kept."""

    def row_process(self) -> int:
        """Return the process that logits are kept in."""
        return os.getpid()

    def take_rows(self, keys: Sequence[str], process: int) -> Tensor | bytes | None:
        """Return the logits under some keys, ``[n, V]``, and forget all; ``None`` where another worker has them.

        Another ``process`` than this one gets their bytes, which need no trust to be read.
        """
        # Every rank of a tensor-parallel group computes the same logits; of pipeline stages the last one does.
        found = [] if get_tp_group().rank_in_group else [_ROWS[key] for key in keys if key in _ROWS]
        _ROWS.clear()
        if len(found) < len(keys):
            return None
        rows = torch.stack(found)
        return rows if process == os.getpid() else rows.cpu().numpy().tobytes()
