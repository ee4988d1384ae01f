"""The masks of each library after the same prefixes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from outlines_phi.guides.guide import DONE
from outlines_phi.guides.table import Table

Ids = tuple[int, ...]


def ours(table: Table, budget: int, ids: Sequence[int]) -> Iterator[torch.Tensor]:
    """Yield this package's mask after each beginning of ``ids``, as far as these do not end the text."""
    state, left = table.start, budget
    for token in (*ids, None):
        yield table.bias(state, left, torch.device("cpu")).isfinite()
        if token is None:
            return
        moves = table.moves(state, left)
        (place,) = (moves.tokens == token).nonzero()[0]
        state, left = int(moves.leads[moves.classes[place]]), left - 1
        if state == DONE:
            return


def stock(processor: Any, prompt: Sequence[int], ids: Sequence[int], size: int) -> Iterator[torch.Tensor]:
    """Yield the mask of a logits processor of Outlines after each beginning of ``ids``; it ends where one is refused."""
    processor.reset()
    for length in range(len(ids) + 1):
        try:
            scores = processor(torch.tensor([[*prompt, *ids[:length]]]), torch.zeros(1, size))
        except (ValueError, RuntimeError):
            return
        yield scores[0].isfinite()


def compared(
    table: Table, budget: int, processor: Any, prompt: Sequence[int], texts: Sequence[Ids], size: int
) -> tuple[int, Counter[str], str]:
    """Compare masks: the number of prefixes of ``texts``, the masks with tokens too many or too few, and one of these.

    A prefix that the processor refuses counts with the mask that rules its last token out.
    """
    seen: set[Ids] = set()
    differing: Counter[str] = Counter()
    example = ""
    for ids in texts:
        for length, (mine, its) in enumerate(
            zip(ours(table, budget, ids), stock(processor, prompt, ids, size), strict=False)
        ):
            if ids[:length] in seen:
                continue
            seen.add(ids[:length])
            mine = mine[:size]
            few, many = mine & ~its, its & ~mine
            differing.update({"fewer": int(few.any()), "more": int(many.any())})
            if few.any() and not example:
                missing = table.vocabulary.tokens[int(few.nonzero()[0])].decode(errors="replace")
                example = f"{missing!r} after {table.vocabulary.decode(ids[:length]).decode(errors='replace')!r}"
    return len(seen), differing, example


class Walk:
    """The masks of this package as ``prefix_allowed_tokens_fn``: without a state, so that drafts may be taken back.

    Parameters
    ----------
    table, budget
        The allowed texts, and their most tokens.
    prompt
        The number of tokens before.
    eos
        The token after a text that has ended.
    """

    def __init__(self, table: Table, budget: int, prompt: int, eos: int) -> None:
        self._table, self._budget, self._prompt, self._eos = table, budget, prompt, eos
        self._after: dict[Ids, list[int]] = {}

    def __call__(self, row: int, ids: torch.Tensor) -> list[int]:
        """Return the allowed tokens after what was written."""
        written = tuple(ids.tolist()[self._prompt :])
        if written not in self._after:
            self._after[written] = self._allowed(written)
        return self._after[written]

    def _allowed(self, written: Ids) -> list[int]:
        if self._eos in written or len(written) >= self._budget:
            return [self._eos]
        *_, mask = ours(self._table, self._budget, written)
        return mask.nonzero().flatten().tolist()
