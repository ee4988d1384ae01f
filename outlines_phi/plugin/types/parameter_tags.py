"""JSON objects as tags, one for each member: the arguments of calls, in the styles of several model families."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, final

from outlines.types.dsl import Alternatives, KleeneStar, Optional, QuantifyBetween, QuantifyMinimum, Regex, String, Term
from outlines.types.dsl import Sequence as InTurn

from ...errors import OutlinesPhiError, UnsupportedError
from ...guides.json_schema.kinds import Kinds
from ...guides.json_schema.reading.schema import Schema
from ...guides.json_schema.strings.string_set import StringSet
from ...guides.json_schema.values import TYPES, Path, pointer_to
from ...regex.patterns import literal
from .output_types import ANNOTATIONS, FreeText, Written, to_json
from .pydantic_schemas import PythonSchema


@final
@dataclass(frozen=True)
class Style:
    """The tags around a value.

    Attributes
    ----------
    begin, end
        Those of the member ``{name}``, whose value has the word ``{kind}``; ``{blanks}`` are any.
    words
        The word of each type; ``{}`` where nothing tells types apart.
    item
        The begin of an item of an array, where arrays and objects are tags inside tags; empty where they are JSON.
    closes
        The string that no text holds; empty for ``end``.
    padded
        The types whose values may have blanks around them.
    """

    begin: str
    end: str
    words: Mapping[str, str] = field(default_factory=dict)
    item: str = ""
    closes: str = ""
    padded: frozenset[str] = frozenset(TYPES)


_NOT_STRINGS = frozenset(TYPES) - {"string"}


def _dsml(gap: str) -> Style:
    begin, end = f'<｜DSML｜{gap}parameter name="{{name}}" string="{{kind}}">', f"</｜DSML｜{gap}parameter>"
    return Style(begin, end, {"string": "true", **dict.fromkeys(_NOT_STRINGS, "false")}, padded=_NOT_STRINGS)


STYLES = {
    "qwen_xml": Style("<parameter={name}>", "</parameter>"),
    "minimax_xml": Style('<parameter name="{name}">', "</parameter>"),
    "minimax_m3_xml": Style(
        "]<]minimax[>[<{name}>",
        "]<]minimax[>[</{name}>",
        item="{blanks}]<]minimax[>[<item>",
        closes="]<]minimax[>[",
        padded=frozenset(),
    ),
    "deepseek_xml": _dsml(""),
    "deepseek_v4_1_xml": _dsml(" "),
    "glm_xml": Style("<arg_key>{name}</arg_key>{blanks}<arg_value>", "</arg_value>"),
    "cohere_xml": Style(
        '<cofl:value name="{name}" type="{kind}">',
        "</cofl:value>",
        {
            "string": "raw",
            "object": "dict",
            "array": "list",
            **dict.fromkeys(("integer", "number", "boolean", "null"), "json"),
        },
        item='<cofl:value type="{kind}">',
    ),
    "kimi_k3_xml": Style(
        '<|open|>argument key="{name}" type="{kind}"<|sep|>',
        "<|close|>argument<|sep|>",
        {**{one: one for one in TYPES}, "integer": "number"},
    ),
}
"""The styles of the members of an object, by their names in structural tags."""

_NAME = "[a-zA-Z_][a-zA-Z0-9_]*"
"""The names of members that no schema lists."""

_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_ARRAY = frozenset({"type", "items", "minItems", "maxItems"})
_INSIDE = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "prefixItems")


def json_value(schema: Any, path: Path, blanks: str) -> Term:
    """Return the JSON of the values of a schema: objects are closed and integers plain, as in calls."""
    return _checked(_closed(schema), path, blanks)


def _checked(schema: Any, path: Path, blanks: str) -> Term:
    try:
        Schema.read(schema, plain=True)
    except OutlinesPhiError as error:
        raise type(error)(f"Correct the JSON schema at {pointer_to(path)}. {error}") from error
    return to_json(PythonSchema(schema), blanks)


def _closed(schema: Any) -> Any:
    """Return a schema whose objects with ``properties`` have no others, unless they say so or something else stands beside."""
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for keyword in _INSIDE:
        if isinstance(found.get(keyword), Mapping):
            found[keyword] = {name: _closed(inner) for name, inner in found[keyword].items()}
    for keyword in _LISTED:
        if isinstance(found.get(keyword), list):
            found[keyword] = [_closed(inner) for inner in found[keyword]]
    for keyword in ("items", "additionalProperties"):
        if keyword in found:
            found[keyword] = _closed(found[keyword])
    if "properties" in found and not found.keys() & {*_BESIDE, "additionalProperties", "patternProperties"}:
        found["additionalProperties"] = False
    return found


_BESIDE = ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef", "unevaluatedProperties", "propertyNames")


def parameters(schema: Any, path: Path, style: Style, blanks: str, excludes: tuple[str, ...]) -> Term:
    """Return the members of an object as tags, in the order of its ``properties``; blanks may stand before and behind each.

    Raises :class:`UnsupportedError` with its pointer for what cannot be honoured.
    """
    return _Members(_closed(schema), path, style, blanks, excludes).object(_closed(schema), (), ())


@final
@dataclass(frozen=True)
class _Members:
    """Reads the values of a document as tags; paths are within it."""

    document: Any
    path: Path
    style: Style
    blanks: str
    excludes: tuple[str, ...]

    def refuse(self, path: Path, remedy: str) -> NoReturn:
        pointer = pointer_to((*self.path, *path))
        raise UnsupportedError(
            f"{remedy}. What stands at {pointer} cannot be honoured where members are written as tags."
        )

    def object(self, given: Any, path: Path, seen: tuple[Path, ...]) -> Term:
        """Return the members of the objects of a schema, with the blanks around them."""
        schema, path, seen = self._resolved(given, path, seen)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema and schema.keys() <= {keyword, "type", *ANNOTATIONS}:
                parts = enumerate(schema[keyword])
                return Alternatives([self.object(part, (*path, keyword, n), seen) for n, part in parts])
        self._check(schema, path, "object", _OBJECT)
        named, required = schema.get("properties", {}), schema.get("required", [])
        if not set(required) <= named.keys():
            self.refuse((*path, "required"), "Require members that properties list")
        found = list[Term]()
        for name, inner in named.items():
            member = self._member(name, inner, (*path, "properties", name), seen)
            found.append(member if name in required else Optional(member))
        others = schema.get("additionalProperties", "properties" not in schema)
        if others is not False:
            if "{name}" in self.style.end:
                self.refuse((*path, "additionalProperties"), "List all properties")
            found.append(KleeneStar(self._member(None, others, (*path, "additionalProperties"), seen, but=list(named))))
        return InTurn([*found, Regex(self.blanks)])

    def _resolved(
        self, schema: Any, path: Path, seen: tuple[Path, ...]
    ) -> tuple[Mapping[str, Any], Path, tuple[Path, ...]]:
        """Return the schema that a reference within the document leads to, and its path."""
        if schema is True:
            return {}, path, seen
        if not isinstance(schema, Mapping):
            self.refuse(path, "Give a schema that is true of something")
        while "$ref" in schema:
            steps = tuple(
                step.replace("~1", "/").replace("~0", "~") for step in str(schema["$ref"]).removeprefix("#/").split("/")
            )
            if not schema.keys() <= {"$ref", *ANNOTATIONS} or not str(schema["$ref"]).startswith("#/"):
                self.refuse((*path, "$ref"), "Write out what the reference stands for")
            if steps in seen:
                self.refuse((*path, "$ref"), "Give a schema that does not contain itself")
            schema, path, seen = self.document, steps, (*seen, steps)
            for step in steps:
                schema = (
                    schema[step] if isinstance(schema, Mapping) and step in schema else self.refuse(path, "Define it")
                )
        return schema, path, seen

    def _check(self, schema: Mapping[str, Any], path: Path, kind: str, known: frozenset[str]) -> None:
        if schema.get("type", kind) != kind:
            self.refuse((*path, "type"), f"Give type {kind}")
        for keyword in schema:
            if keyword not in known and keyword not in ANNOTATIONS:
                self.refuse((*path, keyword), f"Give {kind}s by {', '.join(sorted(known))} alone")

    def _member(self, name: str | None, schema: Any, path: Path, seen: tuple[Path, ...], but: Any = ()) -> Term:
        """Return the tag of a member, behind blanks; of one with another name than those ``but``, for ``None``."""
        known = Written(("ecma", f"(?!(?:{'|'.join(map(literal, but))})$){_NAME}" if but else _NAME))
        ways = [
            InTurn(
                [*self._tag(self.style.begin, name, word, known), value, *self._tag(self.style.end, name, word, known)]
            )
            for word, value in self._values(schema, path, seen)
        ]
        return InTurn([Regex(self.blanks), ways[0] if len(ways) == 1 else Alternatives(ways)])

    def _tag(self, written: str, name: str | None, word: str, known: Term) -> list[Term]:
        parts = list[Term]()
        for piece in re.split(r"(\{\w+\})", written):
            match piece:
                case "{blanks}":
                    parts.append(Regex(self.blanks))
                case "{name}" if name is None:
                    parts.append(known)
                case "{name}" | "{kind}":
                    parts.append(String(word if piece == "{kind}" else str(name)))
                case _ if piece:
                    parts.append(String(piece))
        return parts

    def _values(self, schema: Any, path: Path, seen: tuple[Path, ...]) -> list[tuple[str, Term]]:
        """Return the values of a schema by their words: text, and JSON or tags of all else."""
        sub = self._part(schema)
        try:
            read = Schema.read(sub, plain=True)
            kinds = Kinds(read.definitions, read.pointers)
            types = [one for one in TYPES if any(kinds.may_be(kind, read.formula) for kind in TYPES[one])]
            strings = kinds.strings(read.formula)
        except OutlinesPhiError as error:
            raise type(error)(f"Correct the JSON schema at {pointer_to((*self.path, *path))}. {error}") from error
        words, found = self.style.words, list[tuple[str, Term]]()
        if not strings.is_empty:
            closes = (self.style.closes or self.style.end, *self.excludes)
            if strings == StringSet.all():
                found.append((words.get("string", ""), FreeText(closes)))
                types = types if words else []
            else:
                limited = Written(("string", json.dumps(_only(sub, ["string"])), closes))
                found.append((words.get("string", ""), self._padded(limited, "string")))
        rest = dict.fromkeys(words.get(one, "") for one in types if one != "string")
        for word in rest:
            alike = [one for one in types if one != "string" and words.get(one, "") == word]
            found.append((word, self._padded(self._value(schema, sub, alike, path, seen), alike[0])))
        if not found:
            self.refuse(path, "Give a schema that is true of something")
        return found

    def _padded(self, value: Term, kind: str) -> Term:
        return InTurn([Regex(self.blanks), value, Regex(self.blanks)]) if kind in self.style.padded else value

    def _value(self, schema: Any, sub: Any, types: list[str], path: Path, seen: tuple[Path, ...]) -> Term:
        """Return the values of some types: JSON, or tags inside of a tag."""
        if not self.style.item or not {"array", "object"} & set(types):
            if self.excludes and {"array", "object"} & set(types):
                self.refuse(path, "Leave excludes out")
            return _checked(_only(sub, types), (*self.path, *path), self.blanks)
        scalars = [one for one in types if one not in ("array", "object")]
        ways = [_checked(_only(sub, scalars), (*self.path, *path), self.blanks)] if scalars else []
        resolved, path, seen = self._resolved(schema, path, seen)
        if resolved.get("type") == "array":
            self._check(resolved, path, "array", _ARRAY)
            ways.append(self._items(resolved, path, seen))
        elif resolved.get("type") == "object":
            ways.append(self.object(resolved, path, seen))
        else:
            self.refuse(path, "Give type array or object, with items or properties")
        return ways[0] if len(ways) == 1 else Alternatives(ways)

    def _items(self, schema: Mapping[str, Any], path: Path, seen: tuple[Path, ...]) -> Term:
        if "items" not in schema:
            self.refuse(path, "Give items")
        each = [
            InTurn(
                [
                    *self._tag(self.style.item, "", word, String("")),
                    value,
                    *self._tag(self.style.end, "item", word, String("")),
                ]
            )
            for word, value in self._values(schema["items"], (*path, "items"), seen)
        ]
        item = each[0] if len(each) == 1 else Alternatives(each)
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        repeated = QuantifyMinimum(item, least) if most is None else QuantifyBetween(item, least, most)
        return InTurn([repeated, Regex(self.blanks)]) if "{blanks}" in self.style.item else repeated

    def _part(self, schema: Any) -> dict[str, Any]:
        """Return a part of the document as one of its own, with what its references lead to."""
        held = self.document if isinstance(self.document, Mapping) else {}
        defined = {keyword: held[keyword] for keyword in ("$schema", "$defs", "definitions") if keyword in held}
        return {**defined, **(schema if isinstance(schema, Mapping) else {} if schema else {"not": {}})}


def _only(schema: Mapping[str, Any], types: list[str]) -> dict[str, Any]:
    """Return the schema of the values of some types."""
    defined = {keyword: schema[keyword] for keyword in ("$schema", "$defs", "definitions") if keyword in schema}
    return {**defined, "type": types, "allOf": [{k: inner for k, inner in schema.items() if k not in defined}]}
