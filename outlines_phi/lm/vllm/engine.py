"""A vLLM engine from inside: its configuration, the rows of its batch, and logits that are kept for an application."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from vllm import SamplingParams
from vllm.distributed.parallel_state import get_tp_group
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from ...errors import UnsupportedError
from ...vocabulary.vocabulary import Vocabulary


def vocabulary_of(model_config: Any) -> Vocabulary:
    """Return the bytes of each token of an engine's model; the end of a text is as in vLLM, its generation config included."""
    config = model_config.try_get_generation_config()
    ends = config.get("eos_token_id", model_config.hf_text_config.eos_token_id)
    tokenizer = cached_tokenizer_from_config(model_config)
    return Vocabulary.from_tokenizer(
        tokenizer,
        size=model_config.get_vocab_size(),
        eos_ids=[ends] if isinstance(ends, int) else list(ends or ()),
    )


def refuse_faults(*faults: tuple[bool, str]) -> None:
    """Raise :class:`UnsupportedError` for the first fault of an engine that is there: its remedy, then the fault."""
    for found, said in faults:
        if found:
            raise UnsupportedError(said)


def check_engine(config: Any) -> None:
    """Refuse an engine, given its ``VllmConfig``, in which the rows of requests cannot be told or are not those of the model."""
    model = config.model_config
    refuse_faults(
        (
            config.speculative_config is not None,
            "Start vLLM without speculative_config, and give draft= for drafts: with speculative decoding vLLM runs no logits "
            "processor.",
        ),
        (
            model.runner_type != "generate",
            f"Load a generative model: runner={model.runner_type!r} writes no next tokens.",
        ),
        (model.is_encoder_decoder, "Load a model without an encoder. Here a text follows its prompt, token by token."),
        (
            config.use_v2_model_runner,
            "Set VLLM_USE_V2_MODEL_RUNNER=0 before vLLM is imported. The V2 model runner does not run logits processors of V1.",
        ),
    )


class RowProcessor(LogitsProcessor):
    """A logits processor for the requests that have its ``argument``, and what it keeps for them, ``kept`` by the row of the batch.

    A request that was preempted is added again, with its outputs.
    """

    argument: ClassVar[str]  # The name in ``SamplingParams.extra_args``

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.kept: dict[int, Any] = {}

    @abstractmethod
    def _kept(self, argument: Any, params: SamplingParams, prompt: list[int] | None, outputs: list[int]) -> Any:
        """Return the state of a request, whose ``outputs`` grow as it is written."""

    def is_argmax_invariant(self) -> bool:
        """Return False: vLLM leaves out processors that are, where all requests are greedy."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow a change of the batch: what left, what came, what moved, in this order."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.kept.pop(row, None)
        for row, params, prompt, outputs in batch_update.added:
            argument = (params.extra_args or {}).get(self.argument)
            self._put(row, None if argument is None else self._kept(argument, params, prompt, outputs))
        for source, target, direction in batch_update.moved:
            moved, replaced = self.kept.pop(source, None), self.kept.pop(target, None)
            self._put(target, moved)
            if direction == MoveDirectionality.SWAP:
                self._put(source, replaced)

    def _put(self, row: int, kept: Any) -> None:
        """Let a row have what is kept for its request, whatever it had before."""
        self.kept.pop(row, None)
        if kept is not None:
            self.kept[row] = kept


KEY = "outlines_phi_row"
"""The argument of what a request's logits are kept under."""

_ROWS: dict[str, Tensor] = {}
"""The logits of this process's engine, by key. Of a prompt that is read in parts the last ones are those of its end."""


@final
class RowCapture(RowProcessor):
    """A logits processor that copies the logits of requests with a :data:`KEY`, and changes none."""

    argument = KEY

    def _kept(self, argument: Any, params: SamplingParams, prompt: list[int] | None, outputs: list[int]) -> Any:
        return argument

    def apply(self, logits: Tensor) -> Tensor:
        wanted = {row: key for row, key in self.kept.items() if row < len(logits)}
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
