"""Work that may be asked to stop, and stops at its next model call.

A model call cannot be broken off, so work in a thread stops *between* calls. What asks (a cancelled task, a stream that is closed)
sets a flag; what works reads it before every model call. The flag travels with the context (:mod:`contextvars`), so that no
signature between the two has to know of it; where there is none, nothing is wrapped and nothing is checked.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

from .model import Evaluation, LanguageModel, TokenTrees

PATIENCE = 0.02
"""Seconds between two looks at the flag while work waits for its turn."""


class Interrupted(BaseException):
    """Raised inside work that was asked to stop; like ``KeyboardInterrupt``, no ``except Exception`` may hold it up."""


@final
class Interruption:
    """The flag between what asks and what works; read and written from any thread, set once and for all."""

    def __init__(self) -> None:
        # A plain attribute: setting it takes no lock, so a garbage collector that closes a stream may do it anywhere.
        self.asked = False

    def ask(self) -> None:
        """Ask the work to stop."""
        self.asked = True

    def check(self) -> None:
        """Raise :class:`Interrupted` where the work has been asked to stop."""
        if self.asked:
            raise Interrupted


INTERRUPTION: ContextVar[Interruption | None] = ContextVar("INTERRUPTION", default=None)
"""The flag of the work that runs in this context; ``None`` where nobody can ask."""


def check_interruption() -> None:
    """Raise :class:`Interrupted` where the work of this context has been asked to stop; for long work without model calls."""
    interruption = INTERRUPTION.get()
    if interruption is not None:
        interruption.check()


@contextmanager
def turn(lock: threading.RLock) -> Iterator[None]:
    """Hold ``lock``; work that is asked to stop while it waits stops waiting."""
    interruption = INTERRUPTION.get()
    while not lock.acquire(timeout=-1 if interruption is None else PATIENCE):
        if interruption is not None:
            interruption.check()
    try:
        yield
    finally:
        lock.release()


def interruptible(lm: LanguageModel) -> LanguageModel:
    """Return ``lm``, checking the flag of this context before every call where there is one."""
    interruption = INTERRUPTION.get()
    return lm if interruption is None else InterruptibleModel(lm, interruption)


@final
class InterruptibleModel(LanguageModel):
    """The same law as ``lm``: equal to it, so that what is kept for one serves the other.

    Parameters
    ----------
    lm
        The model that answers.
    interruption
        Checked before every call of it.
    """

    def __init__(self, lm: LanguageModel, interruption: Interruption) -> None:
        self.lm, self.interruption = lm, interruption
        self.vocabulary, self.max_length, self.device = lm.vocabulary, lm.max_length, lm.device

    def __eq__(self, other: object) -> bool:
        return self.lm == (other.lm if isinstance(other, InterruptibleModel) else other)

    def __hash__(self) -> int:
        return hash(self.lm)

    def version(self) -> Hashable:
        """See :meth:`LanguageModel.version`."""
        return self.lm.version()

    @property
    def opaque(self) -> bool:
        """See :attr:`LanguageModel.opaque`."""
        return self.lm.opaque

    @property
    def rounding(self) -> float:
        """See :attr:`LanguageModel.rounding`."""
        return self.lm.rounding

    def fingerprint(self) -> str:
        """See :meth:`LanguageModel.fingerprint`."""
        return self.lm.fingerprint()

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        """See :meth:`LanguageModel.trees`."""
        trees = InterruptibleTrees(self.lm.trees(prompts), self.interruption)
        self.device = self.lm.device
        return trees


@final
class InterruptibleTrees(TokenTrees):
    """The token trees ``trees``, with a check before every model call; an interrupted call has added no node."""

    def __init__(self, trees: TokenTrees, interruption: Interruption) -> None:
        self._trees, self._interruption = trees, interruption
        self.counts = trees.counts

    def roots(self, parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> Evaluation:
        self._interruption.check()
        return self._trees.roots(parents, tokens)

    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
        self._interruption.check()
        return self._trees.extend(parents, tokens)

    @property
    def next_node(self) -> int:
        return self._trees.next_node

    def compact(self, keep: Sequence[int]) -> None:
        self._trees.compact(keep)
