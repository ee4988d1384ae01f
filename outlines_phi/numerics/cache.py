"""Caches in memory under a bound, arrays kept on disk between processes, and files that are replaced as a whole."""

from __future__ import annotations

import gc
import hashlib
import io
import os
import sys
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Generic, ParamSpec, TypeVar, final

import numpy as np
import platformdirs
from numpy.typing import NDArray

from ..errors import UnsupportedError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Arguments = ParamSpec("Arguments")

CACHE_VARIABLE = "OUTLINES_PHI_CACHE"
"""Environment variable: the folder where arrays are kept between processes; empty for none."""

_DIGEST = 32  # Bytes of the checksum that a kept file begins with


@final
class Cache(Generic[Key, Value]):
    """A cache of values by key, the least recently used forgotten where the sizes exceed a bound.

    ``most``: the bound of the sum of sizes: a number of entries, where each has the size 1.
    ``least``: how many entries are kept whatever they take.
    """

    def __init__(self, most: int, *, least: int = 1) -> None:
        self._most, self.least = most, least
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.size = 0

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the value under ``key``, ``None`` if there is none."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def of(self, key: Key, make: Callable[[], Value], size: Callable[[Value], int] | None = None) -> Value:
        """Return the value kept under ``key``; else make it, and keep it."""
        if key not in self._entries:
            value = make()
            self.put(key, value, 1 if size is None else size(value))
            return value
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Key, value: Value, size: int = 1) -> None:
        """Keep a value in place of what was kept under its key."""
        self.drop(key)
        self._entries[key] = value, size
        self.size += size
        while self.size > self._most and len(self._entries) > self.least:
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


class Shared:
    """Base of the objects that many values hold, which are part of the memory of none of them."""

    __slots__ = ()


def memory_of(value: Any) -> int:
    """Return the bytes of a value and of all that it holds, without types, functions and what is :class:`Shared`."""
    seen, found, total = set[int](), [value], 0
    while found:
        each = found.pop()
        if id(each) not in seen and not isinstance(each, (type, FunctionType, ModuleType, Shared)):
            seen.add(id(each))
            total += each.nbytes if isinstance(each, np.ndarray) else sys.getsizeof(each)
            found += gc.get_referents(each)
    return total


PARTS_BYTES = 1 << 25  # Of all parts of formats that are kept
kept_parts: Cache[tuple[Any, ...], tuple[Any]] = Cache(PARTS_BYTES, least=64)
_keeping = threading.RLock()


def kept(make: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Return a function of hashable arguments that makes each part of a format once, while all parts fit :data:`PARTS_BYTES`."""

    @wraps(make)
    def part(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Value:
        key = (make, arguments, *keywords.items())
        with _keeping:
            found = kept_parts.get(key)
        if found is None:
            found = (make(*arguments, **keywords),)
            # Some are kept whatever they take; to measure one takes a third of the time in which it is made.
            size = 0 if len(kept_parts) < kept_parts.least else memory_of((key, found))
            with _keeping:
                kept_parts.put(key, found, size)
        value: Value = found[0]
        return value

    return part


def forget_parts() -> None:
    """Forget every part of a format."""
    with _keeping:
        kept_parts.clear()


def load_arrays(name: str) -> dict[str, NDArray[Any]] | None:
    """Return the arrays that were kept under a name; ``None`` if there are none. A file that was damaged is dropped."""
    folder = _folder()
    if folder is None:
        return None
    path = folder / f"{name}.npz"
    try:
        with path.open("rb") as file:
            digest, content = file.read(_DIGEST), file.read()
    except OSError:
        return None
    if _digest(name, content) != digest:
        with suppress(OSError):
            path.unlink()
        return None
    with np.load(io.BytesIO(content)) as arrays:
        return dict(arrays)


def save_arrays(name: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Keep arrays under a name; another process sees all of them or nothing. A folder that refuses is no error."""
    folder = _folder()
    if folder is None:
        return
    buffer = io.BytesIO()
    np.savez(buffer, **dict[str, Any](arrays))
    content = buffer.getvalue()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / f"{name}.npz") as temporary:
            temporary.write_bytes(_digest(name, content) + content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Lend a temporary path in the folder of ``path`` that takes its place at the end, so that nobody meets half a file.

    After an exception, such as that of a full disk or Ctrl-C, the old file stands as it did, and nothing else is left.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path`` by way of a temporary file in the same folder; what stood there stays until it is done."""
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(content)
    except OSError as error:
        raise UnsupportedError(
            f"{path} cannot be written: {error.strerror}. Give the path of a file in a folder that exists."
        ) from error


def make_folder(folder: Path, given: str) -> None:
    """Make a folder where there is none; ``given`` is what messages call it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnsupportedError(f"Give another folder: {given} cannot be made a folder, {error.strerror}.") from None


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.blake2b(name.encode() + content, digest_size=_DIGEST).digest()


def _folder() -> Path | None:
    folder = os.environ.get(CACHE_VARIABLE)
    if folder is None:
        return Path(platformdirs.user_cache_dir("outlines_phi"))
    return Path(folder) if folder else None
