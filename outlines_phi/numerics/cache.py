"""A cache of bounded size that forgets the least recently used entry first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, final

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@final
class Cache(Generic[Key, Value]):
    """What was made once under each key, the least recently used of it forgotten where the sizes exceed a bound.

    Parameters
    ----------
    most
        The bound of the sum of sizes: a number of entries, where each has the size 1.
    least
        How many entries are kept whatever they take.
    """

    def __init__(self, most: int, *, least: int = 1) -> None:
        self._most, self._least = most, least
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.size = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def of(self, key: Key, make: Callable[[], Value], size: Callable[[Value], int] | None = None) -> Value:
        """Return what is kept under ``key``; else make it, and keep it."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry[0]
        value = make()
        self.put(key, value, 1 if size is None else size(value))
        return value

    def put(self, key: Key, value: Value, size: int = 1) -> None:
        """Keep a value in place of what was kept under its key."""
        self.drop(key)
        self._entries[key] = value, size
        self.size += size
        while self.size > self._most and len(self._entries) > self._least:
            self.size -= self._entries.popitem(last=False)[1][1]

    def drop(self, key: Key) -> None:
        """Forget an entry, if there is one."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size -= entry[1]

    def clear(self) -> None:
        """Forget every entry."""
        self._entries.clear()
        self.size = 0
