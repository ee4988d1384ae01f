"""A cache forgets what was least recently used, and nothing while its sizes fit."""

import numpy as np
import pytest

from outlines_phi.numerics import cache as cache_module
from outlines_phi.numerics.cache import Cache, forget_parts, kept, memory_of


def test_entries_are_made_once() -> None:
    cache: Cache[str, list[int]] = Cache(2)
    first = cache.of("a", list)
    assert cache.of("a", list) is first and len(cache) == 1


def test_the_least_recently_used_entry_goes_first() -> None:
    cache: Cache[str, int] = Cache(2)
    for key in "aba":
        cache.of(key, lambda: 0)
    cache.of("c", lambda: 0)
    assert "a" in cache and "b" not in cache and cache.size == 2


def test_sizes_are_bounded_but_for_the_least_number_of_entries() -> None:
    cache: Cache[int, bytes] = Cache(10, least=2)
    for key, size in enumerate((4, 5, 100, 3)):
        cache.of(key, lambda size=size: bytes(size), len)
    assert [key for key in range(4) if key in cache] == [2, 3] and cache.size == 103
    cache.put(2, b"", 0)
    assert cache.size == 3
    cache.clear()
    assert len(cache) == cache.size == 0


def test_memory_is_that_of_all_that_is_held_once() -> None:
    shared = np.zeros(1000)
    held = {"a": [shared, shared], "b": (shared[:10], "x" * 500)}
    assert 8000 + 80 + 500 < memory_of(held) < 8000 + 80 + 500 + 1000
    assert memory_of(held, shared) < 2000 and memory_of(np.ndarray) == 0


def test_parts_are_made_once_and_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_parts", Cache(5_000, least=1))
    made: list[int] = []

    @kept
    def part(size: int, *, odd: bool = False) -> bytes:
        made.append(size)
        return bytes(size)

    assert part(1000) is part(1000) and made == [1000]
    part(1000, odd=True)
    for size in range(2000, 2010):
        part(size)
    assert len(cache_module._parts) < 3 and cache_module._parts.size <= 5_000
    part(1000)
    assert made.count(1000) == 3
    forget_parts()
    assert len(cache_module._parts) == 0
