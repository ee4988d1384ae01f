"""A vLLM engine from inside: its configuration, the rows of its batch, and logits that are kept for an application.

The rows are told by the logits processors of its model runner, whose interfaces are ``vllm.v1.sample.logits_processor`` (V1) and
``vllm.v1.worker.gpu.sample.logits_processor`` (V2).
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, ClassVar, NamedTuple, final

import torch
import vllm
from torch import Tensor
from vllm import SamplingParams
from vllm.distributed.parallel_state import get_tp_group
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.worker.gpu.sample.logits_processor import LogitsContext
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor

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


TESTED = "0.32"  # The versions of vLLM whose engine is known


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
            not vllm.__version__.startswith(f"{TESTED}."),
            f'Install it, by pip install "vllm=={TESTED}.*". vLLM {vllm.__version__} is here, whose engine was not tested.',
        ),
        (
            config.speculative_config is not None,
            "Start vLLM without speculative_config, and give draft= for drafts: with speculative decoding its logits processors "
            "see no rows (V1), or those of tokens that are taken back (V2).",
        ),
        (
            model.runner_type != "generate",
            f"Load a generative model: runner={model.runner_type!r} writes no next tokens.",
        ),
        (
            model.is_encoder_decoder or model.is_diffusion,
            "Load a model without an encoder or diffusion. Here a text follows its prompt, token by token.",
        ),
        (
            bool(config.parallel_config.enable_batch_sharded_sampling),
            "Start vLLM without enable_batch_sharded_sampling. With it each rank sees its part of the rows.",
        ),
    )


class AskedRow(NamedTuple):
    """A row of the batch whose next token is sampled: what is kept for its request, the tokens written so far and the last of them.

    ``last`` is -1 where it is not known: V1 may schedule ahead of it, and V2 reads it only for processors that ``follow``.
    """

    kept: Any
    written: int
    last: int


class RowProcessor(LogitsProcessor, SlotProcessor):
    """A logits processor for the requests that have its ``argument``, in either model runner.

    ``kept`` by place. In V1 that is the row of the batch, and updates tell what leaves, comes and moves. In V2 it is the slot of a
    request, which holds until another one has it. A request that was preempted is added again, with its outputs.
    """

    argument: ClassVar[str]  # The name in ``SamplingParams.extra_args``
    follows: ClassVar[bool] = False  # True if it reads the tokens of its requests

    def __init__(self, vllm_config: Any, *given: Any) -> None:
        """``given`` are a device and whether memory is pinned (V1), or the state of all requests (V2)."""
        self.kept: dict[
            int, tuple[Any, Sequence[int] | None]
        ] = {}  # with the outputs in V1, which grow as they are written
        self.requests: Any = given[0] if len(given) == 1 else None
        self._arrived: dict[int, SamplingParams] = {}

    @abstractmethod
    def _kept(self, argument: Any, params: SamplingParams, prompt: Sequence[int] | None, written: int) -> Any:
        """Return the state of a request that comes, or comes again with so many tokens ``written``."""

    @abstractmethod
    def _apply(self, logits: Tensor, asked: dict[int, AskedRow]) -> None:
        """Read or change rows of ``logits``, ``[B, V]``."""

    def apply(self, logits: Tensor, context: LogitsContext | None = None) -> Tensor:
        if self.kept and (asked := dict(self._asked(len(logits), context))):
            self._apply(logits, asked)
        return logits

    def _asked(self, rows: int, context: LogitsContext | None) -> Iterator[tuple[int, AskedRow]]:
        if context is None:
            for row, (kept, outputs) in self.kept.items():
                if row < rows:
                    yield row, AskedRow(kept, len(outputs or ()), outputs[-1] if outputs else -1)
            return
        read = context.input_ids.tolist() if self.follows else repeat(-1)
        places = zip(context.idx_mapping_np.tolist(), context.seq_lens_upper_bound_np.tolist(), read, strict=False)
        for row, (slot, length, last) in enumerate(places):
            if slot in self.kept and length >= self.requests.prefill_len.np[slot]:  # else a part of a prompt
                written = length - int(self.requests.prompt_len.np[slot])
                yield row, AskedRow(self.kept[slot][0], written, last if written else -1)

    def is_argmax_invariant(self) -> bool:
        """Return False: vLLM leaves out processors that are, where all requests are greedy."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Follow a change of the batch of V1: what left, what came, what moved, in this order."""
        if batch_update is None:
            return
        for row in batch_update.removed:
            self.kept.pop(row, None)
        for row, params, prompt, outputs in batch_update.added:
            argument = (params.extra_args or {}).get(self.argument)
            kept = None if argument is None else (self._kept(argument, params, prompt, len(outputs)), outputs)
            self._put(row, kept)
        for source, target, direction in batch_update.moved:
            moved, replaced = self.kept.pop(source, None), self.kept.pop(target, None)
            self._put(target, moved)
            if direction == MoveDirectionality.SWAP:
                self._put(source, replaced)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Take the request that a slot of V2 is given to; return True if it is ours."""
        self._put(req_idx, None)
        self._arrived.pop(req_idx, None)
        if ours := self.argument in (sampling_params.extra_args or {}):
            self._arrived[req_idx] = sampling_params
        return ours

    def apply_staged_writes(self) -> None:
        """Begin the requests that have come, whose tokens can be read from now on."""
        for slot, params in self._arrived.items():
            size, given = int(self.requests.prompt_len.np[slot]), int(self.requests.prefill_len.np[slot])
            prompt = self.requests.all_token_ids.gpu[slot, :size].tolist() if self.follows else None
            self._put(slot, (self._kept((params.extra_args or {})[self.argument], params, prompt, given - size), None))
        self._arrived.clear()

    def _put(self, place: int, kept: tuple[Any, Sequence[int] | None] | None) -> None:
        """Let a place have what is kept for its request, whatever it had before."""
        self.kept.pop(place, None)
        if kept is not None:
            self.kept[place] = kept


KEY = "outlines_phi_row"
"""The argument of what a request's logits are kept under."""

_ROWS: dict[str, Tensor] = {}
"""The logits of this process's engine, by key. Of a prompt that is read in parts the last ones are those of its end."""


@final
class RowCapture(RowProcessor):
    """A logits processor that copies the logits of requests with a :data:`KEY`, and changes none."""

    argument = KEY

    def _kept(self, argument: Any, params: SamplingParams, prompt: Sequence[int] | None, written: int) -> Any:
        return argument

    def _apply(self, logits: Tensor, asked: dict[int, AskedRow]) -> None:
        _ROWS.update(zip((each.kept for each in asked.values()), logits[list(asked)], strict=True))


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
