"""A model that is a table, and a ban of phrases, as potentials of genlm-control; run in its environment."""

import math
from typing import Any

import numpy as np
from genlm.control import Potential


class TablePotential(Potential):
    """A language model whose distributions are all given.

    Parameters
    ----------
    tokens
        Its tokens.
    rows
        The numbers of the tokens of each prefix, and the tokens that may follow with their probabilities; the end comes after the
        last token.

    Attributes
    ----------
    asked
        The prefixes whose distribution was asked for.
    """

    def __init__(self, tokens: list[bytes], rows: list[tuple[list[int], list[int], list[float]]]) -> None:
        super().__init__(tokens)
        self._log_p = {tuple(ids): dict(zip(after, map(math.log, p), strict=True)) for ids, after, p in rows}
        self.asked: set[tuple[int, ...]] = set()

    def ids(self, context: list[Any]) -> list[int]:
        """Return the numbers of the tokens of a context, without its end."""
        return [self.lookup[token] for token in context if token is not self.eos]

    async def prefix(self, context: list[Any]) -> float:
        ids = self.ids(context)
        return math.fsum(self._log_p[tuple(ids[:i])].get(token, -math.inf) for i, token in enumerate(ids))

    async def complete(self, context: list[Any]) -> float:
        return await self.prefix(context) + self._log_p[tuple(self.ids(context))].get(len(self.vocab), -math.inf)

    async def logw_next(self, context: list[Any]) -> Any:
        ids = tuple(self.ids(context))
        self.asked.add(ids)
        log_p = np.full(len(self.vocab_eos), -math.inf)
        log_p[list(self._log_p[ids])] = list(self._log_p[ids].values())
        return self.make_lazy_weights(log_p)


class Ban(Potential):
    """``1[no phrase occurs]``, of prefixes and of whole texts alike."""

    def __init__(self, tokens: list[bytes], phrases: list[bytes]) -> None:
        super().__init__(tokens)
        self._phrases = phrases

    async def prefix(self, context: list[Any]) -> float:
        text = b"".join(context)
        return -math.inf if any(phrase in text for phrase in self._phrases) else 0.0

    async def complete(self, context: list[Any]) -> float:
        return await self.prefix(context)
