"""The requests to a Hugging Face model, counted at the model itself: the same code for every side of a comparison."""

from typing import Any


class Meter:
    """Counts forward passes and the tokens in them, by a hook on the model.

    Attributes
    ----------
    calls
        Forward passes.
    tokens
        Positions that were evaluated, padding excluded where a two-dimensional mask tells it.
    sequences
        Rows of the batches.
    """

    def __init__(self, model: Any) -> None:
        self.calls = self.tokens = self.sequences = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = args[0] if args else kwargs["input_ids"]
        mask = kwargs.get("attention_mask")
        padded = hasattr(mask, "dim") and mask.dim() == 2
        self.calls += 1
        self.tokens += int(mask[:, -ids.shape[1] :].sum()) if padded else ids.numel()
        self.sequences += ids.shape[0]

    def read(self) -> tuple[int, int, int]:
        """Return calls, tokens and sequences so far."""
        return self.calls, self.tokens, self.sequences
