"""Our mask inside Hugging Face's own loop: what ``phi=None`` runs."""

from __future__ import annotations

from typing import final

import torch
from outlines.processors import OutlinesLogitsProcessor
from torch import Tensor

from ..errors import ModelError, UnsupportedError
from ..guides.guide import DONE, UNREACHABLE
from ..guides.table import Table

UNLIMITED = UNREACHABLE - 1
"""The remaining budget of a loop that does not tell its own: a stock loop may cut its output short."""


@final
class MaskLogitsProcessor(OutlinesLogitsProcessor):
    """Plain masking, ``mu_proj``, with cached bias rows added in place.

    A row's guide state is a function of the tokens generated so far, never of the call history, so beams, assisted
    decoding and reordered batches are fine.

    Parameters
    ----------
    table
        What is allowed.
    """

    def __init__(self, table: Table) -> None:
        super().__init__("torch")
        self.table = table
        self.reset()

    def reset(self) -> None:
        """Forget the last generation."""
        self._seen: Tensor | None = None
        self._prompt_length = 0
        self._states: list[int] = []

    def process_logits(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        """Add the bias row of each sequence's state to its logits, in place.

        Parameters
        ----------
        input_ids
            ``[B, prompt + generated]``.
        logits
            ``[B, V]``.

        Raises
        ------
        UnsupportedError
            The logits are not those of the model that the table was made for.
        ModelError
            The logits hold NaN, after which an argmax may be any token.
        """
        if logits.shape[-1] != len(self.table.vocabulary):
            raise UnsupportedError(
                f"The model gives {logits.shape[-1]} logits per token and the guide was built for "
                f"{len(self.table.vocabulary)}; use the generator with the model that it was made for."
            )
        if torch.isnan(logits.sum()):  # one cheap reduction: a NaN anywhere stays NaN
            raise ModelError(
                "The model's logits hold NaN, so it gives no law. Check its weights and dtype (float16 overflows in "
                "some models; try bfloat16 or float32)."
            )
        for row, state in enumerate(self._advance(input_ids)):
            logits[row].add_(self._bias(state, logits.device))
        return logits

    def _bias(self, state: int, device: torch.device) -> Tensor:
        # A finished row goes on being called until the batch ends; the host replaces what it draws.
        if state == DONE:
            bias = torch.full((len(self.table.vocabulary),), -torch.inf, device=device)
            bias[self.table.vocabulary.eos_ids[0]] = 0.0
            return bias
        return self.table.bias(state, UNLIMITED, device)

    def _advance(self, input_ids: Tensor) -> list[int]:
        seen, self._seen = self._seen, input_ids
        if seen is None:
            self._prompt_length = input_ids.shape[1]
            self._states = [self.table.start] * len(input_ids)
        elif seen.shape == input_ids[:, :-1].shape and torch.equal(seen, input_ids[:, :-1]):
            last = input_ids[:, -1].tolist()
            self._states = [self._step(state, token) for state, token in zip(self._states, last, strict=True)]
        else:
            self._states = [self._replay(row) for row in input_ids[:, self._prompt_length :].tolist()]
        return self._states

    def _replay(self, tokens: list[int]) -> int:
        state = self.table.start
        for token in tokens:
            state = self._step(state, token)
        return state

    def _step(self, state: int, token: int) -> int:
        return DONE if state == DONE else self.table.guide.advance(state, token)
