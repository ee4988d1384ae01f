"""Arguments of calls that are no JSON: an object whose strings stand between quotes of its own, or a tag for each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, final

from ...errors import UnsupportedError, warn_of_schema
from ...guides.json_schema.values import Path, pointer_to
from .output_types import ANNOTATIONS
from .parameter_tags import STYLES

Format: TypeAlias = dict[str, Any]  # Of a structural-tag document

HONOURED = ANNOTATIONS | {"type", "properties", "required", "additionalProperties", "items"}
"""The keywords that are honoured between quotes."""

QUOTES = {"gemma4": '<|"|>', "functiongemma": "<escape>"}
"""The quotes of the styles of Gemma, which structural tags have not."""

TRIMMED = {"qwen_xml": "\n"}
"""The characters that chat templates put around strings, one at each side."""


def const(value: str) -> Format:
    """Return the format of one string."""
    return {"type": "const_string", "value": value}


def sequence(*elements: Format) -> Format:
    """Return the format of others in a row."""
    parts = [element for element in elements if element != const("")]
    return {"type": "sequence", "elements": parts} if len(parts) > 1 else parts[0] if parts else const("")


def one_of(elements: Sequence[Format]) -> Format:
    """Return the format of one of others."""
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(form: Format) -> Format:
    """Return the format of another, or of nothing."""
    return {"type": "optional", "content": form}


class ValueKind(NamedTuple):
    """One of the kinds of values of a schema: of ``values`` where they are listed."""

    name: str  # "string", "object", "array" or "other"
    schema: Mapping[str, Any]
    values: tuple[Any, ...] = ()


def kinds(root: Mapping[str, Any], schema: Any, path: Path = (), within: tuple[str, ...] = ()) -> Iterator[ValueKind]:
    """Yield the kinds of values of a part of the schema ``root``; a part that says nothing is of strings."""
    said = dict(schema) if isinstance(schema, Mapping) else {}
    if (reference := said.pop("$ref", None)) is not None:
        part = root.get("$defs", {}).get(reference.removeprefix("#/$defs/"))
        if part is None or reference in within:
            raise UnsupportedError(
                f"Write out what the reference stands for. At {pointer_to((*path, '$ref'))} {reference} is not in #/$defs, or part "
                "of itself, and this family of models does not write arguments as JSON."
            )
        yield from kinds(root, {**part, **said}, path, (*within, reference))
        return
    for keyword in ("anyOf", "oneOf"):
        if (parts := said.pop(keyword, None)) is not None:
            for part in parts:
                yield from kinds(root, {**said, **part}, path, within)
            return
    values = [said["const"]] if "const" in said else said.get("enum")
    if values is not None:
        for name in ("string", "other"):
            if listed := tuple(value for value in values if isinstance(value, str) == (name == "string")):
                yield ValueKind(name, said, listed)
        return
    types = said.get("type", "other" if said.keys() - ANNOTATIONS else "string")
    for one in [types] if isinstance(types, str) else types:
        named = {} if one == "other" else {"type": one}
        yield ValueKind(one if one in ("string", "object", "array") else "other", {**said, **named})


@final
@dataclass(frozen=True)
class Quoted:
    """The members of an object between commas, in the order of the alphabet; strings stand between quotes that they do not hold."""

    quote: str
    root: Mapping[str, Any]

    @property
    def form(self) -> Format:
        """The format of the declared members."""
        return self._members(self.root, ())

    def _members(self, schema: Mapping[str, Any], path: Path) -> Format:
        first: Format | None = None  # From a member on: what stands where none is before it, and behind another
        behind = const("")
        for key, inner in sorted(schema.get("properties", {}).items(), key=lambda one: one[0].lower(), reverse=True):
            member = sequence(const(f"{key}:"), self._value(inner, (*path, "properties", key)))
            here, after = sequence(member, behind), sequence(const(","), member)
            if key in schema.get("required", ()):
                first, behind = here, sequence(after, behind)
            else:
                first = optional(here) if first is None else one_of([here, first])
                behind = sequence(optional(after), behind)
        return first or const("")

    def _value(self, schema: Any, path: Path) -> Format:
        return one_of([self._of_kind(kind, path) for kind in kinds(self.root, schema, path)])

    def _of_kind(self, kind: ValueKind, path: Path) -> Format:
        quote = self.quote
        if kind.values:
            string = kind.name == "string"
            return one_of([const(f"{quote}{v}{quote}" if string else json.dumps(v)) for v in kind.values])
        if kind.name == "other":
            definitions = {"$defs": self.root["$defs"]} if "$defs" in self.root else {}
            return {"type": "json_schema", "json_schema": {**definitions, **kind.schema}}
        if left := sorted(kind.schema.keys() - HONOURED):
            warn_of_schema(
                f"Check the values of {pointer_to(path)}: this family of models does not write them as JSON, and the format leaves "
                f"out {', '.join(left)}."
            )
        if kind.name == "string":
            return sequence(const(quote), {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": quote})
        if kind.name == "object":
            return sequence(const("{"), self._members(kind.schema, path), const("}"))
        item = self._value(kind.schema.get("items"), (*path, "items"))
        more = {"type": "star", "content": sequence(const(","), item)}
        return sequence(const("["), optional(sequence(item, more)), const("]"))

    def read(self, text: str, at: int) -> tuple[str, int]:
        """Return the JSON of the members that stand at a place of a text, and where they end: at the brace that closes them."""
        quote, depth, written = re.escape(self.quote), 0, ["{"]
        for found in re.compile(rf"{quote}(.*?){quote}|([\w.-]+)(?=:)|.", re.DOTALL).finditer(text, at):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
            if depth < 0:
                return "".join([*written, "}"]), found.start()
            string = found[2] if found[1] is None else found[1]
            written.append(found[0] if string is None else json.dumps(string))
        raise ValueError("no brace closes the arguments")


@final
@dataclass(frozen=True)
class Tagged:
    """Arguments of which each is a tag, by the name of the style in structural tags."""

    style: str
    root: Mapping[str, Any]

    def read(self, text: str, at: int) -> tuple[str, int]:
        """Return the JSON of the arguments that stand at a place of a text, and where they end."""
        tags, arguments = STYLES[self.style], {}
        parts = {"{name}": "(?P<name>.*?)", "{kind}": '(?P<kind>[^"]*)', "{blanks}": r"\s*"}
        begin, end = (
            "".join(parts.get(part) or re.escape(part) for part in re.split(r"(\{\w+\})", tag))
            for tag in (tags.begin, tags.end)
        )
        pattern = re.compile(rf"\s*{begin}(?P<value>.*?){end.replace('P<name>.*?', '?P=name')}", re.DOTALL)
        while found := pattern.match(text, at):
            at, told = found.end(), found.groupdict().get("kind")
            arguments[found["name"]] = self._value(
                found["name"], found["value"], None if told is None else told == tags.words["string"]
            )
        return json.dumps(arguments), at

    def _value(self, name: str, written: str, string: bool | None) -> Any:
        """Return a value; where the tag does not tell, a string is what no other kind of the argument's values is."""
        found = list(kinds(self.root, self.root.get("properties", {}).get(name)))
        if string is False or (string is None and any(kind.name != "string" for kind in found)):
            try:
                return json.loads(written)
            except json.JSONDecodeError:
                pass  # then it is a string, or nothing that the tool takes
        if any(written.strip() in kind.values for kind in found):
            return written.strip()
        around = TRIMMED.get(self.style, "")
        return written.removeprefix(around).removesuffix(around)
