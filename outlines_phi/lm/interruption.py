"""Work that may be asked to stop, and stops at its next model call.

A model call cannot be broken off, so work in a thread stops *between* calls. What asks (a cancelled task, a stream that is closed)
sets a flag; what works reads it before every model call (:mod:`outlines_phi.lm.watch`). The flag travels with the context
(:mod:`contextvars`), so that no signature between the two has to know of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import final

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
