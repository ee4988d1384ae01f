"""The user's settings of sampling. They define ``p``, so they are part of the key of everything that is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .errors import UnsupportedError
from .numerics.checks import is_count, is_number, shown
from .vocabulary.vocabulary import Vocabulary


@final
@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Temperature, truncation, budget and seed of a call.

    The raw logits pass, in the order of Hugging Face's own loop, through temperature, top-k, top-p and min-p;
    the distribution that comes out *is* ``p`` (theory.md, section 1.1), and fidelity is measured against it.

    Attributes
    ----------
    temperature
        Divides the logits; positive. Greedy decoding is not a temperature.
    top_k, top_p, min_p
        Truncation as transformers defines it; ``None`` for none.
    repetition_penalty
        As transformers defines it: logits of tokens that stand in the prompt or the text so far are divided by it (multiplied
        where negative); 1 for none. It makes ``p`` depend on the history, which the token tree does anyway.
    max_new_tokens
        The budget ``N``: the most tokens to write, end of sequence included. ``None`` lets the sampler choose
        ``min(context left, max(256, 4 min_tokens))``.
    seed
        The same call with the same seed gives the same result, whatever ran before; ``None`` for fresh randomness. A sequence has a
        seed for each prompt of a batch, whose random streams are then those that it has in a call of its own with that seed.

    Raises
    ------
    UnsupportedError
        A value out of range; the message names the option.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None
    seed: int | tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.seed, list):
            object.__setattr__(self, "seed", tuple(self.seed))
        seeds = self.seed if isinstance(self.seed, tuple) else (self.seed,)
        expectations = {
            "temperature": (
                is_number(self.temperature) and self.temperature >= 1e-6,
                "a number of at least 1e-6 (the most probable output is what do_sample=False gives)",
            ),
            "top_k": (self.top_k is None or is_count(self.top_k, 1), "a whole number of at least 1"),
            "top_p": (self.top_p is None or is_number(self.top_p) and 0 < self.top_p <= 1, "a number in (0, 1]"),
            "min_p": (self.min_p is None or is_number(self.min_p) and 0 <= self.min_p <= 1, "a number in [0, 1]"),
            "repetition_penalty": (
                is_number(self.repetition_penalty) and self.repetition_penalty > 0,
                "a positive number (1 for none)",
            ),
            "max_new_tokens": (
                self.max_new_tokens is None or is_count(self.max_new_tokens, 1),
                "a whole number of at least 1 (the end of sequence counts as one token)",
            ),
            "seed": (
                self.seed is None or all(is_count(seed, 0) for seed in seeds),
                "a whole number of at least 0, or a list with one for each prompt",
            ),
        }
        for name, (holds, expected) in expectations.items():
            if not holds:
                raise UnsupportedError(f"{name}={shown(getattr(self, name))} was given; expected {expected}.")

    @property
    def law_key(self) -> tuple[object, ...]:
        """Everything that ``p`` and the language depend on: all fields but the seed."""
        return tuple({**vars(self), "seed": None}.values())

    @property
    def truncation(self) -> str:
        """The truncating options that are in force, as a call would write them; empty when there are none."""
        options = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)

    def log_p(self, logits: Tensor, vocabulary: Vocabulary, contexts: Iterable[Sequence[int]]) -> Tensor:
        """Return ``log p``, ``[n, V]``, of raw ``logits`` after ``contexts``.

        ``contexts`` are the token ids before each row, prompt included; read only where a penalty depends on them. Rows beyond
        the tokenizer are outside ``p``. All end-of-sequence ids are one event: its whole mass stands at ``eos_ids[0]`` and the
        other ids hold none. Computed in float32, or float64 where the logits are.
        """
        scores = logits if logits.dtype == torch.float64 else logits.float()
        if (padding := _padding(vocabulary, scores.device)) is not None:
            scores = scores.masked_fill(padding, -math.inf)
        penalized = self.repetition_penalty != 1.0
        history = _history(contexts).to(scores.device) if penalized else scores.new_empty(0, dtype=torch.long)
        log_p = torch.log_softmax(self._warpers()(history, scores), -1)
        if len(vocabulary.eos_ids) > 1:
            # By single columns: a list of ids would be sent to the device at every call.
            ends = [log_p[:, v] for v in vocabulary.eos_ids]
            ended = torch.logsumexp(torch.stack(ends, -1), -1)
            for end in ends:
                end.fill_(-math.inf)
            ends[0].copy_(ended)
        return log_p

    def _warpers(self) -> LogitsProcessorList:
        warpers = LogitsProcessorList()
        if self.repetition_penalty != 1.0:
            warpers.append(RepetitionPenaltyLogitsProcessor(float(self.repetition_penalty)))
        if self.temperature != 1.0:
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(int(self.top_k)))
        if self.top_p is not None and self.top_p < 1:
            warpers.append(TopPLogitsWarper(float(self.top_p)))
        if self.min_p is not None and self.min_p > 0:
            warpers.append(MinPLogitsWarper(float(self.min_p)))
        return warpers


_PADDING: WeakKeyDictionary[Vocabulary, dict[torch.device, Tensor | None]] = WeakKeyDictionary()


def _padding(vocabulary: Vocabulary, device: torch.device) -> Tensor | None:
    """Return ``bool[V]``, the ids that the tokenizer has no token for, sent to the device once; ``None`` if there are none."""
    kept = _PADDING.setdefault(vocabulary, {})
    if device not in kept:
        with torch.inference_mode(False):  # it may serve a call outside of inference mode later
            kept[device] = None if vocabulary.real.all() else torch.from_numpy(~vocabulary.real).to(device)
    return kept[device]


def _history(contexts: Iterable[Sequence[int]]) -> Tensor:
    """Return ``[n, longest]`` ids, each row filled up with its own first token, which a penalty on sets of tokens cannot tell."""
    rows = [list(context) for context in contexts]
    longest = max(map(len, rows))
    return torch.tensor([row + row[:1] * (longest - len(row)) for row in rows])
