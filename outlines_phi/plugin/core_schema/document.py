"""The text of a JSON schema: where its parts are, and what they refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote


def nodes(node: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """Yield ``node`` and all objects and lists in it, with their JSON pointers."""
    if isinstance(node, (dict, list)):
        yield pointer, node
        for key, part in node.items() if isinstance(node, dict) else enumerate(node):
            yield from nodes(part, f"{pointer}/{token(str(key))}")


def found_at(root: Any, pointer: str) -> tuple[Any] | None:
    """Return what is at a JSON pointer, in a tuple; ``None`` where nothing is."""
    node = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and step.isdigit() and int(step) < len(node):
            node = node[int(step)]
        elif isinstance(node, dict) and step in node:
            node = node[step]
        else:
            return None
    return (node,)


def recursive(root: Any) -> set[str]:
    """Return the places that refer to themselves, at once or by others."""
    below: dict[str, set[str]] = {}
    waiting = _references(root)
    while waiting:
        place = waiting.pop()
        if place not in below:
            found = found_at(root, place)
            below[place] = set() if found is None else _references(found[0])
            waiting |= below[place] - below.keys()
    return {place for place in below if place in _reached(below, place)}


def _reached(below: Mapping[str, set[str]], place: str) -> set[str]:
    reached: set[str] = set()
    waiting = set(below[place])
    while waiting:
        reached |= waiting
        waiting = {further for one in waiting for further in below.get(one, ())} - reached
    return reached


def _references(node: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            found.add(unquote(node["$ref"].partition("#")[2]))
        for key, part in node.items():
            if key not in ("$defs", "definitions"):
                found |= _references(part)
    if isinstance(node, list):
        for part in node:
            found |= _references(part)
    return found


def token(name: str) -> str:
    """Return a key as it is written in a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")
