"""Random streams that are named by numbers, and the seeds of many of them in one pass."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.random import PCG64, Generator
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

BLOCK = 64  # Streams that are seeded together
ALONE = 8  # Of each block so many at its beginning are made alone: a call that asks for few pays for those

POOL = 4  # Words that entropy is mixed into
SHIFT = np.uint32(16)
LEFT, RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)


def _powers(first: int, factor: int, count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return, as columns, the first ``count`` constants of a multiplicative hash, and those that follow each."""
    found = [first]
    for _ in range(count):
        found.append(found[-1] * factor % 2**32)
    constants = np.array(found, dtype=np.uint32)[:, None]
    return constants[:-1], constants[1:]


LONGEST = 12  # Words of entropy that there are constants for
XORS, FACTORS = _powers(0x43B0D7E5, 0x931E8875, LONGEST * POOL)
OUT_XORS, OUT_FACTORS = _powers(0x8B51F9DD, 0x58F38DED, 2 * POOL)
OTHERS = [[i for i in range(POOL) if i != source] for source in range(POOL)]


def words(x: int) -> list[int]:
    """Return the digits of a natural number in base ``2**32``, the last first; one for 0."""
    found = [x % 2**32]
    while x := x >> 32:
        found.append(x % 2**32)
    return found


def _hashed(x: NDArray[np.uint32], xors: NDArray[np.uint32], factors: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x = (x ^ xors) * factors
    return x ^ (x >> SHIFT)


def _mixed(x: NDArray[np.uint32], y: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x = x * LEFT - y * RIGHT
    return x ^ (x >> SHIFT)


def seeds(entropy: int, row: int, first: int, count: int) -> NDArray[np.uint64]:
    """Return ``[count, 4]``: the seeds of ``PCG64`` of the streams ``(entropy, row, number)`` from ``number = first`` on.

    They are those of ``numpy.random.SeedSequence``. The numbers have the same words but the lowest.
    """
    low, *high = words(first)
    before = words(entropy) + words(row)
    given = [*before, low, *high]
    filled = np.zeros((max(POOL, len(given)), count), dtype=np.uint32)
    filled[: len(given)] = np.array(given, dtype=np.uint32)[:, None]
    filled[len(before)] += np.arange(count, dtype=np.uint32)
    pool = _hashed(filled[:POOL], XORS[:POOL], FACTORS[:POOL])
    used = POOL
    for source, others in enumerate(OTHERS):
        steps = slice(used, used := used + POOL - 1)
        pool[others] = _mixed(pool[others], _hashed(pool[source], XORS[steps], FACTORS[steps]))
    for word in filled[POOL:]:
        steps = slice(used, used := used + POOL)
        pool = _mixed(pool, _hashed(word, XORS[steps], FACTORS[steps]))
    out = _hashed(np.concatenate([pool, pool]), OUT_XORS, OUT_FACTORS).astype(np.uint64)
    return (out[::2] | out[1::2] << np.uint64(32)).T.copy()


@final
class _Seed(ISeedSequence):
    """A seed that is there already."""

    def __init__(self, seed: NDArray[np.uint64]) -> None:
        self.seed = seed

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:
        assert n_words == len(self.seed) and dtype == self.seed.dtype
        return self.seed


@final
class Streams:
    """The streams ``numpy.random.default_rng((entropy, row, number))``, and no others."""

    def __init__(self, entropy: int) -> None:
        self.entropy, self._long = entropy, entropy >= 2 ** (32 * (LONGEST - 4))
        self._latest: dict[tuple[int, int], tuple[int, NDArray[np.uint64]]] = {}

    def of(self, row: int, number: int) -> Generator:
        """Return the stream of a number; a fraction of the time where those of a row are asked for in turn."""
        place = number % BLOCK
        if place < ALONE or self._long:
            return np.random.default_rng((self.entropy, row, number))
        block, kind = number // BLOCK, (row, number >> 32)
        latest = self._latest.get(kind)
        if latest is None or latest[0] != block:
            latest = self._latest[kind] = block, seeds(self.entropy, row, number - place, BLOCK)
        return Generator(PCG64(_Seed(latest[1][place])))  # type: ignore[arg-type]  # that of the interface, says its manual
