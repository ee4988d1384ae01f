"""JSON schemas that outlines_core reads as they are meant: what ``backend="outlines_core"`` takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...errors import UnsupportedError
from ...guides.json_schema.values import Path, pointer_to

ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$comment", "$defs", "definitions", "$schema"})
"""Keywords that forbid nothing."""

READ = {
    "string": frozenset({"minLength", "maxLength"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "integer": frozenset(),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
"""The types, and the keywords beside each that outlines_core honours."""


@lru_cache(maxsize=128)
def check_core(text: str) -> None:
    """Refuse the text of a schema of which outlines_core leaves something out, or which it misreads.

    Raises
    ------
    UnsupportedError
        A part that is not honoured, by its JSON pointer.
    """
    document = json.loads(text)
    _check(document, (), document, ())


def _check(schema: Any, path: Path, document: Any, within: tuple[str, ...]) -> None:
    if not isinstance(schema, dict):
        raise _unread(path)
    said = {keyword: value for keyword, value in schema.items() if keyword not in ANNOTATIONS}
    match said:
        case {"$ref": str(reference), **others} if not others and reference not in within:
            place, target = _referred(document, reference)
            if target is None:
                raise _unread((*path, "$ref"))
            _check(target, place, document, (*within, reference))
        case {"anyOf": [_, *_] as parts, **others} if not others:
            for i, part in enumerate(parts):
                _check(part, (*path, "anyOf", i), document, within)
        case {"const": value, **others} if others.keys() <= {"type"} and _is_plain(value):
            pass
        case {"enum": [_, *_] as values, **others} if others.keys() <= {"type"} and all(map(_is_plain, values)):
            pass
        case {"type": str(kind), **others} if kind in READ:
            for keyword in others:
                if keyword not in READ[kind]:
                    raise _unread((*path, keyword))
            _check_parts(kind, others, path, document, within)
        case _:
            raise _unread((*path, next(iter(said))) if said else path)


def _check_parts(kind: str, keywords: Mapping[str, Any], path: Path, document: Any, within: tuple[str, ...]) -> None:
    """Check what an object or an array holds."""
    if kind == "array":
        _check(keywords.get("items", True), (*path, "items"), document, within)
    if kind == "object":
        properties = keywords.get("properties", {})
        for name, part in properties.items():
            if not _is_plain(name):
                raise _unread((*path, "properties", name))
            _check(part, (*path, "properties", name), document, within)
        if not properties or not set(keywords.get("required", ())) <= properties.keys():
            raise _unread((*path, "required"))
        if keywords.get("additionalProperties", False) is not False:
            raise _unread((*path, "additionalProperties"))


def _referred(document: Any, reference: str) -> tuple[Path, Any]:
    """Return a definition that a reference leads to, and where it stands."""
    start, _, name = reference.rpartition("/")
    section = start.removeprefix("#/")
    return (section, name), document.get(section, {}).get(name) if section in ("$defs", "definitions") else None


def _is_plain(value: Any) -> bool:
    """Whether a value is written in one way, which holds nothing that a regular expression or JSON would escape."""
    if isinstance(value, str):
        return value.isascii() and value.isprintable() and not set(value) & set('"\\')
    return value is None or isinstance(value, (bool, int))


def _unread(path: Path) -> UnsupportedError:
    return UnsupportedError(
        "Leave the backend out, so that the JSON schema is read by this package, or give the schema by itself. outlines_core does "
        f"not honour what stands at {pointer_to(path)}."
    )
