"""The logits processor of a vLLM server that takes ``phi=``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
import vllm
from torch import Tensor
from vllm import SamplingParams

from ....errors import UnsupportedError
from ....lm.vllm.engine import RowProcessor, check_engine, refuse_faults, vocabulary_of
from .served_call import ARGUMENT, SHOWN, check
from .served_walks import EngineWalk, ServedWalks

TESTED = "0.32."  # The prefix of the versions that were tested

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
    **dict.fromkeys(("stop", "bad_words"), (None, [])),
    **dict.fromkeys(("logit_bias", "allowed_token_ids", "structured_outputs", "prompt_logprobs"), (None,)),
}
"""The neutral values of a request's other parameters: all else would come after the processor, and change its decisions."""

KEPT = "_outlines_phi_walk"
"""The attribute of the parameters of a request that holds its walk: both are gone together, however the request ends."""


@final
class PhiAttempts(RowProcessor):
    """Draws in the engine: every request that has the argument writes what its walk says, row by row.

    A walk is held by the parameters of its request. One that was preempted comes back with them; one that was cancelled leaves
    nothing behind.

    Raises :class:`UnsupportedError` where the engine does what no walk could follow.
    """

    argument = ARGUMENT

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        check_engine(vllm_config)
        model = vllm_config.model_config
        refuse_faults(
            (
                not vllm.__version__.startswith(TESTED),
                f"{START}. vLLM {vllm.__version__} was not tested, {TESTED}x was.",
            ),
            (
                vllm_config.scheduler_config.enable_chunked_prefill
                or vllm_config.scheduler_config.long_prefill_token_threshold > 0,
                f"{START}. With chunked prefill an engine asks about parts of prompts, which no processor tells from whole ones.",
            ),
            (
                model.logprobs_mode != "processed_logits",
                f"{START}. logprobs_mode={model.logprobs_mode!r} hides what the processor tells its client.",
            ),
            (0 <= model.max_logprobs < SHOWN, f"{START}. max_logprobs={model.max_logprobs} is less than {SHOWN}."),
        )
        tokens_tell = not (vllm_config.lora_config or model.is_multimodal_model or model.enable_prompt_embeds)
        self.served = ServedWalks(vocabulary_of(model), model.max_model_len, tokens_tell=tokens_tell)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Refuse, when a request arrives, what could not be drawn: with ``ValueError``, as the server expects."""
        argument = (sampling_params.extra_args or {}).get(ARGUMENT)
        if argument is None:
            return
        for name, values in NEUTRAL.items():
            if (given := getattr(sampling_params, name)) not in values:
                raise UnsupportedError(
                    f"Leave {name} at {values[0]!r} beside {ARGUMENT}, whose settings are the distribution. {name}={given!r:.80} "
                    "was given, which the engine would apply to what is drawn already."
                )
        if sampling_params.seed is None or (sampling_params.logprobs or 0) < SHOWN:
            raise UnsupportedError(
                f"Give seed= and top_logprobs={SHOWN} beside {ARGUMENT}, as outlines_phi.wrap(model) does."
            )
        check(argument)

    def apply(self, logits: Tensor) -> Tensor:
        """Return the logits, ``[B, V]``, with the rows of our requests decided."""
        if self.kept:
            self.served.write(logits, self.kept)
        return logits

    def _kept(self, argument: Any, params: SamplingParams, prompt: list[int] | None, outputs: list[int]) -> Any:
        """Return the walk of a request, and its outputs."""
        served: EngineWalk | None = getattr(params, KEPT, None)
        if served is None:
            served = self.served.begin(argument, params.seed or 0, prompt, params.max_tokens)
            setattr(params, KEPT, served)
        served.fresh = True
        return served, outputs
