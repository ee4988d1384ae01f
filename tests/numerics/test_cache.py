"""A cache forgets what was least recently used, and nothing while its sizes fit."""

from __future__ import annotations

from outlines_phi.numerics.cache import Cache


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
