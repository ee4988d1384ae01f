"""Caches in memory under a bound, arrays kept on disk between processes, and files that are replaced as a whole."""

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
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, final
from weakref import ref

import numpy as np
import platformdirs
from numpy.typing import NDArray

from ..errors import UnsupportedError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")

CACHE_VARIABLE = "OUTLINES_PHI_CACHE"
"""Environment variable: the folder where arrays are kept between processes; empty for none."""

_DIGEST = 32  # Bytes of the checksum that a kept file begins with


@final
class Cache(Generic[Key, Value]):
    """A cache of values by key, the least recently used forgotten where the sizes exceed a bound.

    ``most``: the bound of the sum of sizes: a number of entries, where each has the size 1.
    ``least``: how many entries are kept whatever they take.

    Threads may share it: two that ask for the same value at once both make it.
    """

    _lock: ClassVar = threading.RLock()  # of all, held while none waits for another

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
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def of(self, key: Key, make: Callable[[], Value], size: Callable[[Value], int] | None = None) -> Value:
        """Return the value kept under ``key``; else make it, and keep it."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        value = make()
        self.put(key, value, 1 if size is None else size(value))
        return value

    def put(self, key: Key, value: Value, size: int = 1) -> None:
        """Keep a value in place of what was kept under its key."""
        with self._lock:
            self.drop(key)
            self._entries[key] = value, size
            self.size += size
            while self.size > self._most and len(self._entries) > self.least:
                self.size -= self._entries.popitem(last=False)[1][1]

    def drop(self, key: Key) -> None:
        """Forget an entry, if there is one."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.size -= entry[1]

    def clear(self) -> None:
        """Forget every entry."""
        with self._lock:
            self._entries.clear()
            self.size = 0


class Shared:
    """Base of the objects that many values hold, which are part of the memory of none of them."""

    __slots__ = ()


def memory_of(value: Any) -> int:
    """Return the bytes of a value and of all that it holds, without types, functions and what is :class:`Shared`."""
    seen: set[int] = set()
    found, total = [value], 0
    while found:  # all at one depth: the collector lists what many hold in one call
        new = {id(each): each for each in found if id(each) not in seen}
        seen |= new.keys()
        held = [each for each in new.values() if not isinstance(each, (type, FunctionType, ModuleType, Shared))]
        total += sum([each.nbytes if isinstance(each, np.ndarray) else sys.getsizeof(each) for each in held])
        found = gc.get_referents(*held)
    return total


ENTRY_BYTES = 250  # Of an entry of a cache, beside the arrays there

PARTS_BYTES = 1 << 25  # Of all parts of formats that are kept
kept_parts: Cache[tuple[Any, ...], tuple[Any]] = Cache(PARTS_BYTES, least=64)

ROWS_BYTES = 1 << 26
"""Bytes of what all formats keep of visited states: rows, masks, classes of tokens, and what samplers make of them."""
kept_rows: Cache[tuple[Any, ...], Any] = Cache(ROWS_BYTES, least=2)


def kept(make: Callable[Arguments, Value]) -> Callable[Arguments, Value]:
    """Return a function of hashable arguments that makes each part of a format once, while all parts fit :data:`PARTS_BYTES`."""

    @wraps(make)
    def part(*arguments: Arguments.args, **keywords: Arguments.kwargs) -> Value:
        key = (make, arguments, *keywords.items())
        found = kept_parts.get(key)
        if found is None:
            found = (make(*arguments, **keywords),)
            # Some are kept whatever they take; to measure one takes a third of the time in which it is made.
            size = 0 if len(kept_parts) < kept_parts.least else memory_of((key, found))
            kept_parts.put(key, found, size)
        value: Value = found[0]
        return value

    return part


def forget_parts() -> None:
    """Forget every part of a format."""
    kept_parts.clear()


def kept_of_states(
    find: Callable[Concatenate[Owner, Arguments], Value],
) -> Callable[Concatenate[Owner, Arguments], Value]:
    """Return a method whose results are kept in :data:`kept_rows`, which keeps no object alive whose method it is."""

    @wraps(find)
    def found(self: Owner, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> Value:
        key = ref(self), find, arguments, *keywords.items()
        value: Value = kept_rows.of(key, lambda: find(self, *arguments, **keywords), array_bytes)
        return value

    return found


def array_bytes(value: Any) -> int:
    """Return the bytes of an array, or of those in a tuple, and some for the entry."""
    parts = value if isinstance(value, tuple) else (value,)
    return ENTRY_BYTES + sum(getattr(part, "nbytes", 0) for part in parts)


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
