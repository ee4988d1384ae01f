"""A gate in front of a model: its calls are counted, and may be held up or fail."""

from __future__ import annotations

import threading
from typing import Any

PATIENCE = 20.0
"""Seconds after which a held-up call gives up, so that a test that should fail does not hang."""


def workers() -> set[threading.Thread]:
    """Return the threads that still run of those that this package has started for one call; not those that models keep."""
    names = {thread: thread.name for thread in threading.enumerate()}
    return {thread for thread, name in names.items() if name.startswith("outlines_phi") and "async" not in name}


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
