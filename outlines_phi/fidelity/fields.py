"""Where a text in the making stands: the fields of JSON, by byte."""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from typing import Any, NamedTuple, final

ROOT = "(whole value)"
"""The outermost value; its own punctuation and keys."""

END = "(end of text)"
"""After the outermost value, where only the end of sequence is left."""

PLAIN_KEY = re.compile(r"[^\W\d][\w-]*")
"""Keys that a path shows as they are; others are quoted."""


class Mode(Enum):
    """What the next byte belongs to."""

    VALUE = auto()
    """A value has to begin (or an empty array to end)."""
    TEXT = auto()
    """The inside of a string value."""
    BARE = auto()
    """A number, ``true``, ``false`` or ``null``."""
    KEYS = auto()
    """The inside of an object, before a key or the closing brace."""
    KEY = auto()
    """The inside of a key."""
    COLON = auto()
    """Between a key and its value."""
    AFTER = auto()
    """After a value, inside an object or array."""
    DONE = auto()
    """After the outermost value."""


class Container(NamedTuple):
    """An object or array that is open."""

    path: str
    is_object: bool


@final
class JsonScanner:
    """Knows, byte by byte, which field of a JSON text is being written.

    ``place`` is the path of the value that the text stands in: ``address.city``, ``tags[]`` (all elements share a place).
    Keys and punctuation belong to the object or array that they structure, :data:`ROOT` for the outermost one; from the colon
    on, a place is the field's. It never fails: a text that is cut short, or is not JSON, has a place at every byte.
    """

    def __init__(self) -> None:
        self._open: list[Container] = []
        self._path = ROOT
        self._mode = Mode.VALUE
        self._escaped = False
        self._raw = bytearray()

    @property
    def place(self) -> str:
        """The path of the field that the next byte is about."""
        match self._mode:
            case Mode.VALUE | Mode.TEXT | Mode.BARE:
                return self._path
            case Mode.DONE:
                return END
            case _:
                return self._open[-1].path

    def feed(self, data: bytes) -> None:
        """Go on by ``data``."""
        for byte in data:
            self._step(byte)

    def _step(self, byte: int) -> None:
        match self._mode:
            case Mode.TEXT | Mode.KEY:
                self._in_string(byte)
            case Mode.VALUE:
                self._begin(byte)
            case Mode.BARE:
                if byte in b",]} \t\r\n":
                    self._end_value()
                    self._step(byte)
                    return
                self._raw.append(byte)
                if self._raw in (b"true", b"false", b"null"):
                    self._end_value()
            case Mode.KEYS if byte == ord('"'):
                self._mode = Mode.KEY
                self._raw.clear()
            case Mode.COLON if byte == ord(":"):
                self._mode, self._path = Mode.VALUE, _member(self._open[-1].path, bytes(self._raw))
            case Mode.AFTER if byte == ord(","):
                self._expect(self._open[-1])
            case Mode.AFTER | Mode.KEYS if byte in b"]}":
                self._close()

    def _in_string(self, byte: int) -> None:
        if byte == ord('"') and not self._escaped:
            if self._mode is Mode.TEXT:
                self._end_value()
            else:
                self._mode = Mode.COLON
            return
        self._escaped = byte == ord("\\") and not self._escaped
        self._raw.append(byte)

    def _begin(self, byte: int) -> None:
        if byte in b" \t\r\n":
            return
        if byte == ord("]") and self._open and not self._open[-1].is_object:
            self._close()
        elif byte in b"{[":
            self._open.append(Container(self._path, byte == ord("{")))
            self._expect(self._open[-1])
        else:
            self._raw.clear()
            self._mode = Mode.TEXT if byte == ord('"') else Mode.BARE
            self._raw.extend(b"" if self._mode is Mode.TEXT else bytes([byte]))

    def _expect(self, container: Container) -> None:
        """Wait for the next member of an open object or array."""
        if container.is_object:
            self._mode = Mode.KEYS
        else:
            self._mode, self._path = Mode.VALUE, "[]" if container.path == ROOT else f"{container.path}[]"

    def _close(self) -> None:
        self._open.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._raw.clear()
        self._mode = Mode.AFTER if self._open else Mode.DONE


def _member(path: str, key: bytes) -> str:
    try:
        name = json.loads(b'"' + key + b'"')
    except ValueError:
        name = key.decode(errors="replace")
    shown = name if PLAIN_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
    return shown if path == ROOT else f"{path}.{shown}"


def field_values(text: str) -> dict[str, str] | None:
    """Return the value of each field of a JSON object or array, as JSON; ``None`` where ``text`` is neither.

    Objects are opened, so ``address.city`` is a field; an array is one value.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict | list):
        return None
    return dict(_leaves(ROOT, record))


def _leaves(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict) and value:
        inner = ((_member(path, json.dumps(key)[1:-1].encode()), member) for key, member in value.items())
        return [leaf for below, member in inner for leaf in _leaves(below, member)]
    return [(path, json.dumps(value, ensure_ascii=False))]
