"""Calls that leave the event loop free, and stop when their task is cancelled.

The work of a model runs in one thread, call after call, so that concurrent calls take turns. A cancelled call that still waits
leaves the queue; one that runs stops before its next model call. The cancellation arrives when the work *has* stopped: no thread
goes on behind the caller's back, and what a half-done call has learnt is forgotten (``TreeStore.lend``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import TypeVar, final

from ..lm.interruption import INTERRUPTION, Interruption
from .streaming import Pieces

Result = TypeVar("Result")


@final
class Worker:
    """The thread in which the asynchronous calls of a model run; it lives while there are any."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._callers = 0

    async def run(self, work: Callable[[], Result], interruption: Interruption | None = None) -> Result:
        """Return what ``work()`` returns, once it is its turn.

        Where the waiting task is cancelled, the work is asked to stop through ``interruption`` (its own, where none is given), and
        the cancellation goes on when it has.
        """
        interruption = interruption or Interruption()
        context = copy_context()
        context.run(INTERRUPTION.set, interruption)
        with self._hired() as executor:
            job: Future[Result] = executor.submit(context.run, work)
            loop, ended = asyncio.get_running_loop(), asyncio.Event()
            job.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
            try:
                await ended.wait()
            except asyncio.CancelledError:
                interruption.ask()
                job.cancel()
                await _outlast(ended)
                raise
        return job.result()

    async def stream(self, start: Callable[[], Pieces]) -> AsyncGenerator[str, None]:
        """Yield the pieces of the stream that ``start()`` opens; every piece takes its own turn.

        However the iteration ends, the stream is closed then.
        """
        interruption = Interruption()
        with self._hired():
            pieces = await self.run(start, interruption)
            try:
                while (piece := await self.run(partial(next, pieces, None), interruption)) is not None:
                    yield piece
            finally:
                interruption.ask()
                await self.run(pieces.close, interruption)

    @contextmanager
    def _hired(self) -> Iterator[ThreadPoolExecutor]:
        """Keep the thread for as long as a caller is inside: starting one for every token would cost torch its own threads."""
        with self._changing:
            self._callers += 1
            if self._callers == 1:
                self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outlines_phi async")
            executor = self._executor
        try:
            yield executor
        finally:
            with self._changing:
                self._callers -= 1
                last = not self._callers
            if last:
                executor.shutdown()  # it has nothing left to do


async def _outlast(ended: asyncio.Event) -> None:
    """Wait for ``ended``, however often the task is cancelled meanwhile."""
    while not ended.is_set():
        with suppress(asyncio.CancelledError):
            await ended.wait()
