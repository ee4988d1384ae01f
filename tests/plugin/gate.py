"""A gate in front of a model: its calls are counted, and may be held up or fail; and what calls leave behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PATIENCE = 20.0
"""Seconds after which a held-up call gives up, so that a test that should fail does not hang."""


def workers() -> set[threading.Thread]:
    """Return the threads that still run of those that this package has started for one call; not those that models keep."""
    names = {thread: thread.name for thread in threading.enumerate()}
    return {thread for thread, name in names.items() if name.startswith("outlines_phi") and "async" not in name}


def trees(model: Any) -> list[Any]:
    """Return the trees that a model keeps, the longest unused one first."""
    return list(model._trees)


def forget_trees(model: Any) -> None:
    """Forget the trees of all calls; languages stay compiled."""
    model._trees.clear()


def compiled(model: Any) -> tuple[int, int]:
    """Return the number of languages and of tables that a model keeps."""
    return len(model.compiled._languages), len(model.compiled._tables)


def is_free(model: Any) -> bool:
    """Return True if no call holds the lock under which a model draws."""
    lock = model._drawing
    return bool(lock.acquire(blocking=False)) and not lock.release()


def together(*works: Callable[[], Any]) -> list[Any]:
    """Return the results of ``works``, each done in a thread of its own and all begun at once; an error is its result."""
    results: list[Any] = [None] * len(works)
    start = threading.Barrier(len(works))

    def work(index: int) -> None:
        start.wait()
        try:
            results[index] = works[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class Gate:
    """Counts the forward calls of a Hugging Face model; the calls from number ``closed_from`` on wait until it is opened."""

    def __init__(self, hf_model: Any, *, closed_from: int | None = None, error: BaseException | None = None) -> None:
        self.calls = 0
        self.closed_from, self.error = closed_from, error
        self.reached, self._open = threading.Event(), threading.Event()
        self._hook = hf_model.register_forward_pre_hook(self._pass)

    def _pass(self, *_: Any) -> None:
        self.calls += 1
        if self.closed_from is None or self.calls < self.closed_from:
            return
        if self.error is not None:
            raise self.error
        self.reached.set()
        if not self._open.wait(PATIENCE):
            raise TimeoutError("nobody opened the gate")

    def open(self) -> None:
        self._open.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: Any) -> None:
        self.open()
        self._hook.remove()
