"""The watch between the model calls of a call: its clock, its interruption from another thread, and its progress.

A model call cannot be broken off. The watch and the interruption travel with the context (:mod:`contextvars`), so that no
signature between who asks and who works has to know of them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import final

from .model import ModelCounts

PATIENCE = 0.02  # Seconds between two looks at the flag while work waits for its turn


class Interrupted(BaseException):
    """Raised inside work that was asked to stop; like ``KeyboardInterrupt``, no ``except Exception`` may hold it up."""


@final
class Interruption:
    """The flag between what asks and what works; read and written from any thread, set once and for all."""

    def __init__(self) -> None:
        # Whether the work is to stop. Setting it takes no lock, so a garbage collector that closes a stream may do it anywhere.
        self.asked = False

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


now = time.monotonic  # Seconds, from a clock that is never set


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a call, as ``progress=`` is told after every model call.

    Attributes
    ----------
    draws, wanted
        Draws so far, and how many were asked for, of all prompts together; members, where the most probable ones are searched for.
        A draw that needs several candidates or particles counts when the last of them is there. 0 and 0 where only
        probabilities are asked for.
    attempts
        Attempts so far (or trajectories, candidates, particles), up to the last one that was read.
    calls, tokens
        Model calls, prompts included, and generated tokens that the model evaluated.
    seconds
        Since the call began.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi`` of every prompt, in nats; empty where nothing keeps bounds.
    """

    draws: int
    wanted: int
    attempts: int
    calls: int
    tokens: int
    seconds: float
    log_z_bounds: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(
        cls,
        counts: ModelCounts,
        *,
        draws: int = 0,
        wanted: int = 0,
        attempts: int = 0,
        log_bounds: Iterable[tuple[float, float]] = (),
    ) -> Progress:
        """Return the progress of the call that is watched now, with bounds of ``log Phi``."""
        return cls(
            draws=draws,
            wanted=wanted,
            attempts=attempts,
            calls=counts.calls,
            tokens=counts.tokens,
            seconds=current().seconds,
            log_z_bounds=tuple(log_bounds),
        )

    def __str__(self) -> str:
        drawn = f"{self.draws:,} of {self.wanted:,} draws, {self.attempts:,} attempts, " if self.wanted else ""
        return f"{drawn}{self.calls:,} model calls, {self.tokens:,} tokens, {self.seconds:.0f} s"


@final
class Watch:
    """One call as it goes on; ``tell`` is called with it after every model call and at the end.

    ``limit``: seconds after which nothing more may be launched.
    ``progress``: how far the call has come; ``None`` before its sampler says.
    ``ended``: whether this is the last time that is told.
    """

    def __init__(self, tell: Callable[[Watch], object] | None = None) -> None:
        self.limit, self.ended = math.inf, False
        self.progress: Callable[[], Progress] | None = None
        self._tell, self._began, self._calling = tell, now(), False

    @property
    def seconds(self) -> float:
        """The seconds that the call has taken so far."""
        return now() - self._began

    @property
    def over(self) -> bool:
        """True if the time for launches is over."""
        return self.limit < math.inf and self.seconds >= self.limit

    def end_of(self, effort: str) -> str:
        """Return the reason in messages for the end of the launches: the time, or else ``effort``."""
        return f"its {self.limit:g} s were over" if self.over else effort

    def between_calls(self) -> None:
        """Tell the progress after the last model call, if there was one; another one follows."""
        if self._calling:
            self.tell()
        self._calling = True

    def tell(self) -> None:
        """Tell the progress of the call, where somebody listens."""
        if self._tell is not None and self.progress is not None:
            self._tell(self)


_WATCH: ContextVar[Watch | None] = ContextVar("_WATCH", default=None)


def current() -> Watch:
    """Return the watch of the call that runs in this context; a new one where there is none."""
    return _WATCH.get() or Watch()


@contextmanager
def watching(tell: Callable[[Watch], object] | None = None) -> Iterator[Watch]:
    """Watch a call, which begins now; ``tell`` as of :class:`Watch`, for the last time when the call has ended well."""
    watch = Watch(tell)
    token = _WATCH.set(watch)
    try:
        yield watch
        watch.ended = True
        watch.tell()
    finally:
        _WATCH.reset(token)


@contextmanager
def limited(seconds: float | None) -> Iterator[Watch]:
    """Let nothing more be launched ``seconds`` after the call of this context began, or one that begins now; ``None``: no limit."""
    if (watch := _WATCH.get()) is None:
        with watching(), limited(seconds) as watch:
            yield watch
        return
    before, watch.limit = watch.limit, math.inf if seconds is None else seconds
    try:
        yield watch
    finally:
        watch.limit = before


def follow(progress: Callable[[], Progress]) -> None:
    """Let ``progress`` tell how far the call of this context has come, from now on."""
    if (watch := _WATCH.get()) is not None:
        watch.progress = progress


def between_calls() -> None:
    """Raise the interruption that somebody asked for, and tell the progress of the call; another model call follows."""
    check_interruption()
    if (watch := _WATCH.get()) is not None:
        watch.between_calls()
