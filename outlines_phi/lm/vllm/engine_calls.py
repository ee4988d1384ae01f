"""The calls of an engine for the logits after sequences of tokens: through its core, where requests stay open, or in public."""

from __future__ import annotations

import os
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor
from vllm import SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import InprocClient, SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

from ...errors import ModelError
from .row_capture import KEY
from .sessions import Asked, Calls

PATIENCE = 10.0
"""Seconds without an answer after which open requests are closed, whose cells may be what a new one waits for."""

LIMIT = 300.0  # Seconds without an answer after which it is given up


class EngineCalls(Calls, ABC):
    """Calls of the engine of a ``vllm.LLM`` that carries :class:`RowCapture` and :class:`RowReader`."""

    stay = False  # True if requests can stay open

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def rows(self, asked: Sequence[Asked], relieve: Callable[[], object]) -> tuple[Tensor, dict[str, int]]:
        """See :meth:`Calls.rows`.

        Raises :class:`ModelError`: the engine is busy, has died or does not answer.
        """
        if self._llm.llm_engine.has_unfinished_requests():
            raise ModelError(
                "Let vLLM finish first, LLM.wait_for_completion(). Its engine is at work on requests of the application."
            )
        try:
            cached = self._run(asked, relieve)
            found = self._llm.collective_rpc("take_rows", args=([each.key for each in asked], os.getpid()))
        except EngineDeadError as error:
            raise ModelError("Load the model again, and look above for why: the engine of vLLM has died.") from error
        rows = next((part for part in found if part is not None), None)
        if rows is None:
            raise ModelError(
                "Load the model with LLM(..., **outlines_phi.vllm.ENGINE). The logits of a request did not come back from vLLM."
            )
        if isinstance(rows, bytes):
            rows = torch.frombuffer(bytearray(rows), dtype=torch.float32).view(len(asked), -1)
        return rows, cached

    @abstractmethod
    def _run(self, asked: Sequence[Asked], relieve: Callable[[], object]) -> dict[str, int]:
        """Have all requests answered; return how many tokens of new ones were in the cache."""


@final
class CoreCalls(EngineCalls):
    """Requests to the core of the engine. One that stays open keeps its keys and values, and goes on at the price of one token."""

    stay = True

    @staticmethod
    def fits(llm: Any) -> bool:
        """Return True if the core of an engine can be asked in this way."""
        config = llm.llm_engine.vllm_config
        plain = config.kv_transfer_config is None and config.parallel_config.data_parallel_size == 1
        return plain and type(llm.llm_engine.engine_core) in (InprocClient, SyncMPClient)

    def __init__(self, llm: Any) -> None:
        super().__init__(llm)
        self._params: dict[str, SamplingParams] = {}  # of open requests

    def close(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._params.pop(key, None)
        self._core.abort_requests(list(keys))

    @property
    def _core(self) -> Any:
        return self._llm.llm_engine.engine_core

    def _run(self, asked: Sequence[Asked], relieve: Callable[[], object]) -> dict[str, int]:
        waiting, cached = {each.key for each in asked}, dict[str, int]()
        try:
            for each in asked:
                self._core.add_request(self._request(each))
            heard, relieved = time.monotonic(), False
            while waiting:
                outputs = self._outputs()
                for output in outputs:
                    if output.prefill_stats is not None:
                        cached[output.request_id] = output.prefill_stats.num_cached_tokens
                    if output.request_id in waiting and not output.new_token_ids and output.finished:
                        raise ModelError(f"Look above for why: vLLM ended a request ({output.finish_reason}).")
                    waiting.discard(output.request_id)
                silence = 0.0 if outputs else time.monotonic() - heard
                heard = time.monotonic() - silence
                if silence > PATIENCE and not relieved:
                    relieve()
                    relieved = True
                if silence > LIMIT:
                    raise ModelError(
                        f"Give the engine more memory for keys and values. vLLM did not answer for {LIMIT:g} s."
                    )
        except BaseException:
            self.close([each.key for each in asked])
            raise
        return cached

    def _request(self, asked: Asked) -> EngineCoreRequest:
        params = self._params.get(asked.key) or _params(asked.key)
        if asked.stays:
            self._params[asked.key] = params
        return EngineCoreRequest(
            request_id=asked.key,
            prompt_token_ids=asked.token_ids,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
            resumable=asked.stays,
        )

    def _outputs(self) -> list[Any]:
        """Return the engine's outputs, or nothing for want of an answer by now."""
        if isinstance(self._core, InprocClient):  # makes a step
            return self._core.get_output().outputs
        try:
            outputs = self._core.outputs_queue.get(timeout=PATIENCE / 2)
        except queue.Empty:
            self._core.ensure_alive()
            return []
        if not isinstance(outputs, EngineCoreOutputs):
            raise EngineDeadError from outputs
        return outputs.outputs


@final
class RequestCalls(EngineCalls):
    """Requests as an application makes them: each reads all its tokens but those in the engine's cache of prefixes."""

    def _run(self, asked: Sequence[Asked], relieve: Callable[[], object]) -> dict[str, int]:
        prompts = [TokensPrompt(prompt_token_ids=each.token_ids) for each in asked]
        answers = self._llm.generate(prompts, [_params(each.key) for each in asked], use_tqdm=False)
        return {each.key: answer.num_cached_tokens or 0 for each, answer in zip(asked, answers, strict=True)}

    def close(self, keys: Sequence[str]) -> None:
        """Do nothing: none stays open."""


def calls_of(llm: Any) -> EngineCalls:
    """Return the calls that an engine supports."""
    return (CoreCalls if CoreCalls.fits(llm) else RequestCalls)(llm)


def _params(key: str) -> SamplingParams:
    """Return the parameters of a request of which the logits are read; the token that vLLM samples is of no use."""
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        detokenize=False,
        extra_args={KEY: key},
        output_kind=RequestOutputKind.DELTA,
        skip_clone=True,
    )
