"""Our mask inside Hugging Face's own loop: what ``phi=None`` runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from outlines.processors import OutlinesLogitsProcessor
from torch import Tensor

from ...errors import ModelError, UnsupportedError
from ...guides.guide import DONE, UNREACHABLE
from ...guides.phrases.banned import BannedPhrases
from ...guides.table import Table
from .prefixes import Prefix, Prefixes

UNLIMITED = UNREACHABLE - 1
"""The remaining budget of a loop that does not tell its own: a stock loop may cut its output short."""


class TableLogitsProcessor(OutlinesLogitsProcessor):
    """A logits processor that allows what a table allows.

    A row's guide state is a function of the tokens generated so far, never of the call history, so beams, assisted
    decoding and reordered batches are fine.

    Parameters
    ----------
    table
        What is allowed.
    tensor_library_name
        ``"torch"`` or ``"numpy"``: what the host's loop works with.
    """

    def __init__(self, table: Table, tensor_library_name: str = "torch") -> None:
        super().__init__(tensor_library_name)
        self.table = table
        self._prefixes = Prefixes(table)

    def reset(self) -> None:
        """Forget the last generation."""
        self._prefixes.forget()

    def process_logits(self, input_ids: Tensor, logits: Tensor) -> Tensor:
        """Return the logits from which the host draws the next tokens.

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
        return self._process(self._prefixes.visit(input_ids), logits)

    @abstractmethod
    def _process(self, prefixes: Sequence[Prefix], logits: Tensor) -> Tensor:
        """Return the logits from which the token after each prefix is drawn."""


@final
class MaskLogitsProcessor(TableLogitsProcessor):
    """Plain masking, ``mu_proj``, with cached bias rows added in place.

    Parameters
    ----------
    table, tensor_library_name
        As for every :class:`TableLogitsProcessor`.
    ban
        The phrases that the table keeps out, where it does.
    budget
        The most tokens that the loop writes, where it is known: what is allowed can be completed within it. Without, the loop may
        cut a text short; in a whole word that is banned, too.
    """

    def __init__(
        self,
        table: Table,
        tensor_library_name: str = "torch",
        *,
        ban: BannedPhrases | None = None,
        budget: int | None = None,
    ) -> None:
        super().__init__(table, tensor_library_name)
        self.ban, self.budget = ban, budget

    def _process(self, prefixes: Sequence[Prefix], logits: Tensor) -> Tensor:
        for row, prefix in zip(logits, prefixes, strict=True):
            remaining = UNLIMITED if self.budget is None else self.budget - prefix.length
            row.add_(self._bias(prefix.state, remaining, logits.device))
        return logits

    def _bias(self, state: int, remaining: int, device: torch.device) -> Tensor:
        # A finished row goes on being called until the batch ends; the host replaces what it draws.
        if state == DONE:
            bias = torch.full((len(self.table.vocabulary),), -torch.inf, device=device)
            bias[self.table.vocabulary.eos_ids[0]] = 0.0
            return bias
        return self.table.bias(state, remaining, device)
