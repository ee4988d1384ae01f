"""The model of a ``vllm.LLM`` as a language model over token trees."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
import vllm

from ...errors import UnsupportedError
from ..model import LanguageModel, TokenTrees
from .engine import check_engine, vocabulary_of
from .engine_calls import calls_of
from .row_capture import RowCapture
from .sessions import Sessions, SessionTrees

ENGINE: Mapping[str, Any] = {
    "logits_processors": ["outlines_phi.vllm:RowCapture"],
    "worker_extension_cls": "outlines_phi.vllm.RowReader",
}
"""The arguments of an ``LLM`` whose logits can be read: ``LLM(model, **ENGINE)``."""

TESTED = "0.32"  # The versions of vLLM whose core is spoken to

SESSIONS: WeakKeyDictionary[Any, Sessions] = WeakKeyDictionary()
"""By the ``LLM``: what is open in its engine, for whichever model of ours."""


@final
class VLLMModel(LanguageModel):
    """The distribution of a ``vllm.LLM``, which goes on serving the application.

    Walks are requests that stay open in the engine while they are followed; they and what they hold take at most half of its
    memory for keys and values and of its places. What the engine samples with has no part in the distribution.

    Parameters
    ----------
    llm
        ``vllm.LLM(model, **outlines_phi.vllm.ENGINE)``.

    Raises
    ------
    UnsupportedError
        Another version of vLLM; an engine that was made without :data:`ENGINE`, or in which rows cannot be told: with speculative
        decoding, the V2 model runner, or an encoder.
    VocabularyError
        The tokenizer does not fit the model, or its bytes cannot be known.
    """

    def __init__(self, llm: Any) -> None:
        if not vllm.__version__.startswith(f"{TESTED}."):
            raise UnsupportedError(
                f'Install it, by pip install "vllm=={TESTED}.*". vLLM {vllm.__version__} is here, whose engine was not tested.'
            )
        self.llm, config = llm, llm.llm_engine.vllm_config
        check_engine(config)
        processors = [_qualified(each) for each in config.model_config.logits_processors or ()]
        reader = config.parallel_config.worker_extension_cls
        if processors[:1] != [_qualified(RowCapture)] or reader != ENGINE["worker_extension_cls"]:
            raise UnsupportedError(
                "Make it with LLM(..., **outlines_phi.vllm.ENGINE), its logits processor before all others. The LLM that was "
                "given does not hand out the logits of its model."
            )
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
        )
        return hashlib.blake2b(repr((*named, self.vocabulary.fingerprint)).encode(), digest_size=16).hexdigest()

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SessionTrees(self.sessions, prompts, len(self.vocabulary), self.max_length)

    def release(self) -> None:
        """Close the open requests in the engine, for others to have its room."""
        self.sessions.release()


def _sessions(llm: Any) -> Sessions:
    """Return the open requests of an engine, which may take half of its room."""
    calls, config = calls_of(llm), llm.llm_engine.vllm_config
    return Sessions(
        calls,
        most=config.scheduler_config.max_num_seqs // 2 if calls.stay else 0,
        blocks=int(config.cache_config.num_gpu_blocks or 0) // 2,
        block_size=int(config.cache_config.block_size),
        prefixes=bool(config.cache_config.enable_prefix_caching),
    )


def _qualified(processor: str | type) -> str:
    """Return the name of a logits processor, however it was given."""
    name = processor if isinstance(processor, str) else f"{processor.__module__}:{processor.__qualname__}"
    return name.rpartition(":")[2] if "outlines_phi" in name else name
