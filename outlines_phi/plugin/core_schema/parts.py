"""What holds for one value of a JSON schema, wherever it is written: references are followed, ``allOf`` is merged."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from ...errors import EmptyLanguageError, GrammarError, OutlinesPhiError, UnsupportedError
from .document import found_at, nodes, recursive
from .table import MEANT, REFUSED

_DEPTH = 4
"""How often a reference that leads to itself is followed, with all others of its kind around it."""

_MOST_PARTS = 20_000
_ITEMS = ("items", "prefixItems", "additionalItems")


class Nothing(Exception):
    """A part that no value fits; carries the error of a schema that needs it."""

    def __init__(self, error: OutlinesPhiError) -> None:
        super().__init__(error)
        self.error = error


@dataclass
class Parts:
    """The keywords that hold for a value, wherever they are written.

    Attributes
    ----------
    keywords, at
        The keywords, and their JSON pointers.
    choices
        The keyword, alternatives and JSON pointer of each ``anyOf`` and ``oneOf``.
    nodes
        The schemas that a value must fit.
    via
        The references that lead here.
    """

    keywords: dict[str, Any] = field(default_factory=dict)
    at: dict[str, str] = field(default_factory=dict)
    choices: tuple[tuple[str, list[Any], str], ...] = ()
    nodes: tuple[Any, ...] = ()
    via: tuple[str, ...] = ()
    pointer: str = ""

    def get(self, keyword: str, default: Any = None) -> Any:
        return self.keywords.get(keyword, default)


class Reader:
    """Reads what holds for a value at a part of a schema, and notes what is left out.

    Parameters
    ----------
    root
        The whole schema.

    Attributes
    ----------
    dropped
        The JSON pointers of what is left out, in order.
    validator
        Validates values, by the draft that the schema names.
    """

    def __init__(self, root: Any) -> None:
        self.root = root
        self.dropped: dict[str, None] = {}
        self._pointers = {id(node): pointer for pointer, node in nodes(root, "")}
        draft = validator_for(root, default=Draft202012Validator)
        self.validator = draft(root)
        # Up to draft 7 whatever stands beside $ref is ignored.
        self._alone = "prefixItems" not in draft.VALIDATORS and "$recursiveRef" not in draft.VALIDATORS
        self._recursive = recursive(root)
        self._beside: dict[str, str] = {}  # a bound, and the one that it is merged with
        self._count = 0

    def flat(self, node: Any, pointer: str, via: tuple[str, ...]) -> Parts:
        """Return the keywords of ``node``, of what it refers to, and of all parts of its ``allOf``."""
        self._count += 1
        pointer = self._pointers.get(id(node), pointer)
        if self._count > _MOST_PARTS:
            raise UnsupportedError(
                f"Write a smaller schema: with every `$ref` put in it has more than {_MOST_PARTS:,} parts, at {pointer or '/'}. "
                "A part that refers to itself in several places grows with every level."
            )
        if node is True:
            return Parts(via=via, pointer=pointer)
        if node is False:
            raise self.empty(pointer, "`false` fits no value")
        if not isinstance(node, dict):
            raise GrammarError(f"Write a JSON schema at {pointer or '/'}: {node!r:.40} is none.")
        own = {keyword: value for keyword, value in node.items() if keyword in MEANT}
        if self._alone and "$ref" in own:
            own = {"$ref": own["$ref"]}
        for keyword in own.keys() & REFUSED.keys():
            raise UnsupportedError(
                f"Leave `{keyword}` out, or write the format as a regex: at {pointer}/{keyword} it {REFUSED[keyword]}."
            )
        reference, parts = own.pop("$ref", None), own.pop("allOf", [])
        choices = [
            (keyword, own.pop(keyword), f"{pointer}/{keyword}") for keyword in ("anyOf", "oneOf") if keyword in own
        ]
        flat = Parts(own, {keyword: f"{pointer}/{keyword}" for keyword in own}, tuple(choices), (node,), via, pointer)
        if reference is not None:
            target, place = self._target(reference, f"{pointer}/$ref")
            flat = self.merged(flat, self.flat(target, place, self._followed(place, via, pointer)))
        for index, part in enumerate(parts):
            flat = self.merged(flat, self.flat(part, f"{pointer}/allOf/{index}", flat.via))
        return flat

    def _target(self, reference: str, pointer: str) -> tuple[Any, str]:
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        if base not in ("", self.root.get("$id", self.root.get("id", ""))) or (fragment and fragment[0] != "/"):
            raise UnsupportedError(
                f"Write what it refers to into the schema, and refer to it by a JSON pointer: the reference {reference!r} at "
                f"{pointer} is not one. Nothing is fetched."
            )
        target = found_at(self.root, fragment)
        if target is None:
            raise GrammarError(
                f"Write what it refers to into the schema: the reference {reference!r} at {pointer} leads nowhere."
            )
        return target[0], fragment

    def _followed(self, place: str, via: tuple[str, ...], pointer: str) -> tuple[str, ...]:
        if place in self._recursive and sum(known in self._recursive for known in via) >= _DEPTH:
            raise Nothing(
                UnsupportedError(
                    f"Write {pointer}/$ref as an optional key, an item or an alternative: it leads to itself without end. Or write "
                    "the format as a grammar, outlines.types.CFG."
                )
            )
        return (*via, place)

    def empty(self, pointer: str, why: str) -> Nothing:
        """Return what is raised where no value fits."""
        return Nothing(
            EmptyLanguageError(f"Change the JSON schema at {pointer or '/'}: {why}. So no text is in the format.")
        )

    def merged(self, left: Parts, right: Parts) -> Parts:
        """Return the keywords that hold where those of both parts do."""
        keywords, at = dict(left.keywords), dict(left.at)
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if right.get(keyword, True) is not True:
                self.drop(right, keyword)  # it does not see its neighbours
        one, other = left.get("properties", {}), right.get("properties", {})
        names = [*one, *other]
        if any(part.keywords.keys() & {"additionalProperties", "patternProperties"} for part in (left, right)):
            names += [*left.get("required", ()), *right.get("required", ())]
        if names:
            keywords["properties"] = {
                name: both(self.value(left, name, one), self.value(right, name, other)) for name in dict.fromkeys(names)
            }
            at.setdefault("properties", right.at.get("properties", left.pointer))
        self._check_places(left, right)
        for keyword, value in right.keywords.items():
            if keyword == "properties":
                continue
            if keyword in keywords and keywords[keyword] != value:
                keywords[keyword] = self._conjunction(keyword, left, right)
            else:
                keywords[keyword] = value
                at.setdefault(keyword, right.at[keyword])
        return Parts(
            keywords,
            at,
            left.choices + right.choices,
            left.nodes + right.nodes,
            max(left.via, right.via, key=len),
            left.pointer,
        )

    def value(self, part: Parts, name: str, declared: Mapping[str, Any]) -> Any:
        """Return the schema that a part has for a key, declared or not."""
        if name in declared:
            return declared[name]
        found = [schema for pattern, schema in part.get("patternProperties", {}).items() if matches(pattern, name)]
        if len(found) > 1:
            return {"allOf": found}
        return found[0] if found else part.get("additionalProperties", True)

    def _check_places(self, left: Parts, right: Parts) -> None:
        items = [
            {keyword: part.get(keyword) for keyword in _ITEMS if keyword in part.keywords} for part in (left, right)
        ]
        by_place = any("prefixItems" in one or isinstance(one.get("items"), list) for one in items)
        if by_place and all(items) and items[0] != items[1]:
            raise UnsupportedError(
                f"Write the items in one place: those of {left.pointer or '/'} and {right.pointer or '/'} hold at once, and some "
                "are listed by place. Outlines' front end cannot honour both."
            )

    def _conjunction(self, keyword: str, left: Parts, right: Parts) -> Any:
        one, other = left.keywords[keyword], right.keywords[keyword]
        match keyword:
            case "type":
                kinds = [kind for kind in kinds_of(one) if kind in kinds_of(other)]
                for these, those in ((kinds_of(one), kinds_of(other)), (kinds_of(other), kinds_of(one))):
                    if "integer" in these and "number" in those and "integer" not in kinds:
                        kinds.append("integer")
                if not kinds:
                    raise self.empty(right.at[keyword], f"no value has the types of {left.at[keyword]}, too")
                return kinds
            case "required":
                return [*one, *(name for name in other if name not in one)]
            case "minLength" | "minItems" | "minProperties" | "minimum" | "exclusiveMinimum":
                self._beside[left.at[keyword]] = right.at[keyword]
                return max(one, other)
            case "maxLength" | "maxItems" | "maxProperties" | "maximum" | "exclusiveMaximum":
                self._beside[left.at[keyword]] = right.at[keyword]
                return min(one, other)
            case "uniqueItems":
                return True
            case "enum" | "const":
                return one  # all schemas of the parts are asked about the values
            case "additionalProperties":
                return both(one, other)
            case "items":
                return both(one, other)
            case "patternProperties":
                return {key: both(one.get(key, True), other.get(key, True)) for key in {**one, **other}}
        self.drop(right, keyword)
        return one

    def drop(self, flat: Parts, *keywords: str) -> None:
        """Note that keywords are left out, as far as they are there."""
        for keyword in keywords:
            pointer = flat.at.get(keyword)
            while pointer is not None:
                self.dropped[pointer] = None
                pointer = self._beside.get(pointer)
                if pointer in self.dropped:
                    break


def both(one: Any, other: Any) -> Any:
    """Return the schema of the values that fit two schemas."""
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}


def kinds_of(given: Any) -> list[str]:
    """Return the types that ``type`` names."""
    return [given] if isinstance(given, str) else list(given)


def matches(pattern: str, text: str) -> bool:
    """Tell whether a pattern is found in a text, or may be."""
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return True  # nobody knows: what depends on it is named
