"""The logits processor of a vLLM server that takes ``phi=``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import vllm
from torch import Tensor
from vllm import SamplingParams

from ....errors import UnsupportedError
from ....lm.vllm.engine import AskedRow, RowProcessor, check_engine, refuse_faults, vocabulary_of
from ...session import MAX_TREE_BYTES
from .served_call import ARGUMENT, FORM, SHOWN, check
from .served_walks import LOG, EngineWalk, ServedWalks

START = "Start the server by outlines-phi serve MODEL, which gives the right options"

NEUTRAL: Mapping[str, Any] = {
    "temperature": (1.0,),
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    **dict.fromkeys(("stop", "stop_token_ids", "bad_words"), (None, [])),
    **dict.fromkeys(
        (
            *("logit_bias", "allowed_token_ids", "structured_outputs", "prompt_logprobs"),
            *("thinking_token_budget", "repetition_detection", "trace_decode_token_ids"),
        ),
        (None,),
    ),
}
"""The neutral values of a request's other parameters: all else would come after the processor, and change its decisions."""

TREES_ARGUMENT = "outlines_phi_max_tree_bytes"  # in the engine's additional_config

KEPT = "_outlines_phi_walk"
"""The attribute of the parameters of a request of V1 that holds its walk: both are gone together, however the request ends."""


@final
class PhiAttempts(RowProcessor):
    """Draws in the engine: every request that has the argument writes what its walk says, row by row.

    A request that was preempted finds its walk again: in V1 its parameters hold it, so that one that was cancelled leaves nothing
    behind. V2 copies parameters and does not say who has left, so that the latest walks are held here, twice as many as rows.

    ``--additional-config '{"outlines_phi_max_tree_bytes": N}'`` bounds the memory of its trees, 1 GiB where nothing is said.

    Raises :class:`UnsupportedError` where the engine does what no walk could follow.
    """

    argument = ARGUMENT
    follows: ClassVar[bool] = True

    def __init__(self, vllm_config: Any, *given: Any) -> None:
        super().__init__(vllm_config, *given)
        check_engine(vllm_config)
        model, scheduler = vllm_config.model_config, vllm_config.scheduler_config
        max_tree_bytes = (vllm_config.additional_config or {}).get(TREES_ARGUMENT, MAX_TREE_BYTES)
        refuse_faults(
            (
                type(max_tree_bytes) is not int or max_tree_bytes < 1,
                f"Give {TREES_ARGUMENT} in --additional-config as a number of bytes. {max_tree_bytes!r:.80} is none.",
            ),
            (
                self.requests is None
                and (scheduler.enable_chunked_prefill or scheduler.long_prefill_token_threshold > 0),
                f"{START}. With chunked prefill V1 asks about parts of prompts, which no processor tells from whole ones.",
            ),
            (
                model.logprobs_mode != "processed_logits",
                f"{START}. logprobs_mode={model.logprobs_mode!r} hides what the processor tells its client.",
            ),
            (0 <= model.max_logprobs < SHOWN, f"{START}. max_logprobs={model.max_logprobs} is less than {SHOWN}."),
        )
        tokens_tell = not (vllm_config.lora_config or model.is_multimodal_model or model.enable_prompt_embeds)
        self.served = ServedWalks(vocabulary_of(model), model.max_model_len, max_tree_bytes, tokens_tell=tokens_tell)
        self._latest = dict[tuple[str, int | None, tuple[int, ...]], EngineWalk]()
        self._most = 2 * scheduler.max_num_seqs
        runner, shared = "V1" if self.requests is None else "V2", "by calls" if tokens_tell else "by no two calls"
        LOG.info(
            "outlines_phi draws for vLLM %s: model %s, model runner %s, arguments of form %d, trees shared %s",
            *(vllm.__version__, model.model, runner, FORM, shared),
        )

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse, when a request arrives, what could not be drawn: with ``ValueError``, as the server expects."""
        argument = (sampling_params.extra_args or {}).get(ARGUMENT)
        if argument is None:
            return
        for name, values in NEUTRAL.items():
            if (given := getattr(sampling_params, name, values[0])) not in values:
                raise UnsupportedError(
                    f"Leave {name} at {values[0]!r} beside {ARGUMENT}, whose settings are the distribution. {name}={given!r:.80} "
                    "was given, which the engine would apply to what is drawn already."
                )
        if sampling_params.seed is None or (sampling_params.logprobs or 0) < SHOWN:
            raise UnsupportedError(
                f"Give seed= and top_logprobs={SHOWN} beside {ARGUMENT}, as outlines_phi.wrap(model) does."
            )
        check(argument)

    def _apply(self, logits: Tensor, asked: dict[int, AskedRow]) -> None:
        """Decide the rows of our requests."""
        self.served.write(logits, asked)

    def _kept(self, argument: Any, params: SamplingParams, prompt: Sequence[int] | None, written: int) -> Any:
        """Return the walk of a request."""
        name = argument, params.seed, tuple(prompt or ())
        held = getattr(params, KEPT, None) if self.requests is None else self._latest.get(name) if written else None
        served: EngineWalk = held or self.served.begin(argument, params.seed or 0, prompt, params.max_tokens)
        served.fresh = True
        if self.requests is None:
            setattr(params, KEPT, served)
        else:
            self._latest.pop(name, None)
            self._latest[name] = served
            if len(self._latest) > self._most:
                self._latest.pop(next(iter(self._latest)))
        return served
