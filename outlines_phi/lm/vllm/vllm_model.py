"""The model of a ``vllm.LLM`` as a language model over token trees, and the calls of its engine for the logits of their nodes.

An engine is called through its core, where requests stay open, or in public.
"""

from __future__ import annotations

import hashlib
import os
import queue
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from vllm import SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.core_client import InprocClient, SyncMPClient
from vllm.v1.engine.exceptions import EngineDeadError

from ...errors import ModelError, UnsupportedError
from ..model import LanguageModel, TokenTrees
from .engine import KEY, RowCapture, check_engine, refuse_faults, vocabulary_of
from .sessions import Asked, Calls, Sessions, SessionTrees

ENGINE: Mapping[str, Any] = {
    "logits_processors": ["outlines_phi.vllm:RowCapture"],
    "worker_extension_cls": "outlines_phi.vllm.RowReader",
}
"""The arguments of an ``LLM`` whose logits can be read: ``LLM(model, **ENGINE)``."""

SESSIONS: weakref.WeakKeyDictionary[Any, Sessions] = weakref.WeakKeyDictionary()
"""By the ``LLM``: what is open in its engine, for whichever model of ours."""

PATIENCE = 10.0
"""Seconds without an answer after which open requests are closed, whose cells may be what a new one waits for."""

LIMIT = 300.0  # Seconds without an answer after which it is given up


class EngineCalls(Calls, ABC):
    """Calls of the engine of a ``vllm.LLM`` that carries :class:`RowCapture` and :class:`RowReader`."""

    def __init__(self, llm: Any) -> None:
        self._llm = weakref.proxy(llm)  # whose requests these are, kept as long as it is: see SESSIONS

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
            lora_request=asked.adapter,
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
        params = [_params(each.key) for each in asked]
        answers = self._llm.generate(prompts, params, use_tqdm=False, lora_request=asked[0].adapter)
        return {each.key: answer.num_cached_tokens or 0 for each, answer in zip(asked, answers, strict=True)}

    def close(self, keys: Sequence[str]) -> None:
        """Do nothing: none stays open."""


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


@final
class VLLMModel(LanguageModel):
    """The distribution of a ``vllm.LLM``, which goes on serving the application.

    Walks are requests that stay open in the engine while they are followed; they and what they hold take at most half of its
    memory for keys and values and of its places. What the engine samples with has no part in the distribution.

    Parameters
    ----------
    llm
        ``vllm.LLM(model, **outlines_phi.vllm.ENGINE)``.
    lora_request
        The ``LoRARequest`` of an adapter that every request has; by default none.

    Raises
    ------
    UnsupportedError
        Another version of vLLM; an engine that was made without :data:`ENGINE`, or in which rows cannot be told: with speculative
        decoding or an encoder; an adapter for an engine without ``enable_lora``.
    VocabularyError
        The tokenizer does not fit the model, or its bytes cannot be known.
    """

    def __init__(self, llm: Any, lora_request: Any = None) -> None:
        self.llm, self.lora_request, config = llm, lora_request, llm.llm_engine.vllm_config
        check_engine(config)
        processors = [_qualified(each) for each in config.model_config.logits_processors or ()]
        reader = config.parallel_config.worker_extension_cls
        refuse_faults(
            (
                processors[:1] != [_qualified(RowCapture)] or reader != ENGINE["worker_extension_cls"],
                "Make it with LLM(..., **outlines_phi.vllm.ENGINE), its logits processor before all others. The LLM that was "
                "given does not hand out the logits of its model.",
            ),
            (
                lora_request is not None and config.lora_config is None,
                f"Make it with LLM(..., enable_lora=True). It has no room for {lora_request!r:.80}.",
            ),
        )
        if lora_request is not None:
            _load(llm, lora_request)
        self.vocabulary = vocabulary_of(config.model_config)
        # A request has room for the token that vLLM samples, which nobody reads.
        self.max_length = int(config.model_config.max_model_len) - 1
        processes = llm.collective_rpc("row_process")
        self.device = torch.device(config.device_config.device_type if processes == [os.getpid()] else "cpu")
        if llm not in SESSIONS:
            SESSIONS[llm] = _sessions(llm)
        self.sessions = SESSIONS[llm]

    @property
    def opaque(self) -> bool:
        # Weights live in the engine, where an application may change them.
        return True

    @property
    def rounding(self) -> float:
        return 1e-3 if self.llm.model_config.dtype == torch.float32 else 0.05

    def fingerprint(self) -> str:
        config = self.llm.model_config
        named = (
            config.model,
            config.revision,
            str(config.dtype),
            config.quantization,
            config.hf_config.to_json_string(),
            repr(self.lora_request),
        )
        return hashlib.blake2b(repr((*named, self.vocabulary.fingerprint)).encode(), digest_size=16).hexdigest()

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SessionTrees(self.sessions, prompts, len(self.vocabulary), self.max_length, self.lora_request)

    def release(self) -> None:
        """Close the open requests in the engine, for others to have its room."""
        self.sessions.release()


def _load(llm: Any, lora_request: Any) -> None:
    """Load an adapter, one that cannot be loaded would end the engine at its first request."""
    try:
        llm.llm_engine.add_lora(lora_request)
    except Exception as error:
        raise UnsupportedError(
            f"Give the LoRARequest of an adapter that fits the model. {lora_request!r:.80} cannot be loaded: {error!s:.200}"
        ) from error


def _sessions(llm: Any) -> Sessions:
    """Return the open requests of an engine, which may take half of its room."""
    config, stay = llm.llm_engine.vllm_config, CoreCalls.fits(llm)
    return Sessions(
        CoreCalls(llm) if stay else RequestCalls(llm),
        most=config.scheduler_config.max_num_seqs // 2 if stay else 0,
        blocks=int(config.cache_config.num_gpu_blocks or 0) // 2,
        block_size=int(config.cache_config.block_size),
        prefixes=bool(config.cache_config.enable_prefix_caching),
    )


def _qualified(processor: str | type) -> str:
    """Return the name of a logits processor, however it was given."""
    name = processor if isinstance(processor, str) else f"{processor.__module__}:{processor.__qualname__}"
    return name.rpartition(":")[2] if "outlines_phi" in name else name
