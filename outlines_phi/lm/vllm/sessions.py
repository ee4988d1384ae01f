"""Requests that stay open in an engine, so that walks go on at the price of a token, and the room that they take."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import NamedTuple, Protocol, final

from torch import Tensor


class Asked(NamedTuple):
    """A request for the logits after some tokens."""

    key: str
    token_ids: list[int]
    goes_on: bool = False  # True if the tokens follow those of an open request with this key
    stays: bool = False  # True if it is left open, with its keys and values


class Calls(Protocol):
    """The protocol of calls of an engine."""

    def rows(self, asked: Sequence[Asked], relieve: Callable[[], object]) -> tuple[Tensor, dict[str, int]]:
        """Return the logits after each request, ``[n, V]``, and how many tokens of new ones were in the engine's cache.

        ``relieve`` closes requests that stay open and are not asked now. Where a call fails, all of its requests are closed.
        """

    def close(self, keys: Sequence[str]) -> None:
        """Close requests that stay open."""


class Session(NamedTuple):
    """An open request: the path to a node, whose keys and values the engine holds."""

    prompt: Hashable  # The prompt above it
    prompt_length: int
    length: int  # Tokens, prompt included


@final
class Sessions:
    """The open requests of an engine, by key, the latest used last.

    They are at most ``most``, in at most ``blocks`` of ``block_size`` tokens; the oldest are given up for new ones. An engine that
    holds more has no room for what it is asked next, and waits for room that nobody frees. Whole blocks of a prompt are held once
    for all requests below it where the engine has a cache of ``prefixes``.

    Threads take turns: who makes a call holds ``turn`` from the first :meth:`keep` to the end of :meth:`rows`.
    """

    def __init__(self, calls: Calls, *, most: int, blocks: int, block_size: int, prefixes: bool) -> None:
        self.turn = threading.RLock()
        self._calls = calls
        self._most, self._blocks, self._block_size, self._prefixes = most, blocks, block_size, prefixes
        self._open: dict[str, Session] = {}
        self._of_prompt: Counter[Hashable] = Counter()
        self._taken = 0
        self._due: deque[dict[int, str]] = deque()  # closed before the next call

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, key: object) -> bool:
        return key in self._open

    def rows(self, asked: Sequence[Asked]) -> tuple[Tensor, dict[str, int]]:
        """Run :meth:`Calls.rows`; after an error none of ``asked`` is open."""
        while self._due:
            self.close(list(self._due.popleft().values()))
        busy = {each.key for each in asked}
        try:
            return self._calls.rows(asked, lambda: self.release(busy))
        except BaseException:
            self._drop(busy)
            raise

    def keep(self, key: str, session: Session, busy: Collection[str]) -> bool:
        """Return True if a request may stay open; the oldest of those that are not ``busy`` are closed for it."""
        goes_on = key in self._open
        self._drop([key])
        if not self._fits(session):
            self._make_room(session, busy)
        # One that is open goes on: it takes a block more now and then.
        if not goes_on and not self._fits(session):
            return False
        self._open[key] = session
        self._taken += self._cost(session)
        self._of_prompt[session.prompt] += 1
        return True

    def close(self, keys: Sequence[str]) -> None:
        """Close requests."""
        with self.turn:
            self._drop(keys)
            self._calls.close(keys)

    def close_later(self, tips: dict[int, str]) -> None:
        """Have the requests that ``tips`` will name then closed before the next call: a finalizer may run in the middle of one."""
        self._due.append(tips)

    def release(self, busy: Collection[str] = ()) -> None:
        """Close all requests but some."""
        with self.turn:
            self._due.clear()
            self.close([key for key in self._open if key not in busy])

    def _make_room(self, session: Session, busy: Collection[str]) -> None:
        """Close the oldest requests that are not ``busy``, until a session fits or there are none."""
        given_up = list[str]()
        for oldest in [other for other in self._open if other not in busy]:
            given_up.append(oldest)
            self._drop([oldest])
            if self._fits(session):
                break
        self._calls.close(given_up)

    def _drop(self, keys: Collection[str]) -> None:
        for key in keys:
            session = self._open.pop(key, None)
            if session is not None:
                self._of_prompt[session.prompt] -= 1
                if not self._of_prompt[session.prompt]:
                    del self._of_prompt[session.prompt]
                self._taken -= self._cost(session)

    def _fits(self, session: Session) -> bool:
        return len(self._open) < self._most and self._taken + self._cost(session) <= self._blocks

    def _cost(self, session: Session) -> int:
        """Return the blocks that a session takes, with those of its prompt where it is the only one below it."""
        shared = session.prompt_length // self._block_size if self._prefixes else 0
        own = -(-(session.length + 1) // self._block_size) - shared
        return own + (0 if self._of_prompt[session.prompt] else shared)
