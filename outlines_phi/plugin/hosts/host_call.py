"""What a call of transformers' ``generate`` says, by the time that it reaches ``custom_generate``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from outlines.processors import OutlinesLogitsProcessor
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from ...errors import UnsupportedError
from .generation_config import DEFAULTS

WARPERS: dict[type, tuple[str, str]] = {
    RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty"),
    TemperatureLogitsWarper: ("temperature", "temperature"),
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
    TopHLogitsWarper: ("top_h", "top_h"),
    TypicalLogitsWarper: ("mass", "typical_p"),
    EpsilonLogitsWarper: ("epsilon", "epsilon_cutoff"),
    EtaLogitsWarper: ("epsilon", "eta_cutoff"),
}
"""The processors that transformers makes of its options: where each keeps the option, and the option's name."""

LAWLESS = (LogitNormalization, InfNanRemoveLogitsProcessor)
"""Those that change no law: NaN in the logits is a ModelError here."""

UNTOUCHED = ("use_cache", "logits_to_keep")
"""What transformers hands on that does not change a law."""

WRITTEN = (
    "max_length",
    "max_new_tokens",
    "num_return_sequences",
    "pad_token_id",
    "return_dict_in_generate",
    "transformers_version",
)
"""Fields of a generation config that are read one by one, and those that transformers writes itself."""


def said_beyond(config: GenerationConfig, own: GenerationConfig) -> dict[str, Any]:
    """Return what a call's generation config says beyond the model's own and the defaults of transformers."""
    given = {}
    for name, value in vars(config).items():
        usual = getattr(own, name, None)
        if name in WRITTEN or name.startswith("_") or value == (DEFAULTS.get(name) if usual is None else usual):
            continue
        given[name] = value
    return given


def length_of(given: int | None, config: GenerationConfig, model: Any, prompt_length: int) -> int | None:
    """Return the ``max_length`` of the call, by keyword or in its generation config; ``None`` where it has none."""
    if given is not None or config.max_new_tokens is not None or config.max_length is None:
        return given
    usual = DEFAULTS["max_length"] + prompt_length
    context = getattr(model.config, "max_position_embeddings", None) or usual
    own = model.generation_config.max_length
    return None if config.max_length in (own, usual, min(usual, context)) else config.max_length


def check_processors(processors: Sequence[Any], config: GenerationConfig) -> None:
    """Refuse logits processors but those of transformers' own options, and more than one that says what may be written."""
    languages = [processor for processor in processors if isinstance(processor, OutlinesLogitsProcessor)]
    for processor in processors:
        attribute, option = WARPERS.get(type(processor), (None, None))
        of_option = attribute and float(getattr(processor, attribute)) == getattr(config, str(option), None)
        if processor not in languages and not of_option and not isinstance(processor, LAWLESS):
            raise UnsupportedError(
                f"A {type(processor).__name__} was given as logits processor; a correction would have to count it as a "
                "part of the model's law, which is not offered. Leave it out, or keep transformers' own loop with "
                "outlines_phi.PhiLogitsProcessor, where what stands before it is a part of the law."
            )
    if len(languages) > 1:
        raise UnsupportedError(f"{len(languages)} processors that say what may be written were given; expected one.")


def check_stops(criteria: Iterable[Any], config: GenerationConfig) -> None:
    """Refuse stopping criteria other than those that transformers makes of its options."""
    for criterion in criteria:
        match criterion:
            case EosTokenCriteria():
                continue
            case MaxLengthCriteria() if criterion.max_length == config.max_length:
                continue
        raise UnsupportedError(
            f"A {type(criterion).__name__} was given as stopping criterion; it would cut draws short, and what is left "
            "of them would have no law. Say where a text ends in its output type, and how long it may be with "
            "max_new_tokens."
        )


def prompts_of(
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    **prepared: Any,
) -> list[tuple[int, ...]]:
    """Return the ids of every row, padding left out."""
    unknown = sorted(name for name, value in prepared.items() if name not in UNTOUCHED and value is not None)
    if unknown:
        raise UnsupportedError(f"{', '.join(unknown)} cannot be used together with phi=; leave it out.")
    if past_key_values is not None and past_key_values.get_seq_length():
        raise UnsupportedError(
            "past_key_values with a prompt in it was given; draws of one prompt share a cache of their own. Leave it out."
        )
    mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
    usual = (mask.long().cumsum(-1) - 1)[mask]
    if position_ids is not None and not torch.equal(
        position_ids.broadcast_to(mask.shape)[mask].to(usual.device), usual
    ):
        raise UnsupportedError("position_ids that do not count the tokens of a row were given; leave them out.")
    return [tuple(ids[kept].tolist()) for ids, kept in zip(input_ids, mask, strict=True)]
