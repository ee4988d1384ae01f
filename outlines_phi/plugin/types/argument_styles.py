"""Arguments of calls that are no JSON: a tag for each, or an object whose strings stand between quotes of its own.

Terms are made of the schema of an object, and what they capture in texts is the object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, final

from jsonschema.validators import validator_for
from outlines.types.dsl import Alternatives, KleeneStar, Optional, QuantifyBetween, QuantifyMinimum, Regex, String, Term
from outlines.types.dsl import Sequence as InTurn

from ...errors import OutlinesPhiError, SchemaWarning, UnsupportedError, warn_of
from ...guides.json_schema.formula import TYPES, Path, pointer_to
from ...guides.json_schema.kinds import Kinds
from ...guides.json_schema.reading.keywords import KEYWORDS
from ...guides.json_schema.reading.place import CLOSED, Place, Reader
from ...guides.json_schema.string_set import StringSet
from ...regex.patterns import literal
from .output_types import ANNOTATIONS, FreeText, Written
from .readers import Captured, TokenNames, one_of


@final
@dataclass(frozen=True)
class Style:
    """The strings around a value, and between values.

    Attributes
    ----------
    begin, end
        Those of the member ``{name}``, whose value has the word ``{kind}``; ``{blanks}`` are any.
    words
        The word of each type; none where nothing tells types apart.
    item
        The begin of an item of an array, whose end is that of a member ``item``; ``None`` where arrays and objects are JSON.
    array, object
        The strings around items, and around members.
    between
        The string between members, and between items.
    quote, trimmed
        The string around strings that belongs to the style, and the one that may stand there and is not read.
    closes
        The string that no text holds; empty for ``quote`` or ``end``.
    padded
        The types whose values may have blanks around them.
    ordered
        True for members in the order of the alphabet.
    """

    begin: str
    end: str
    words: Mapping[str, str] = field(default_factory=dict)
    item: str | None = None
    array: tuple[str, str] = ("", "")
    object: tuple[str, str] = ("", "{blanks}")
    between: str = ""
    quote: str = ""
    trimmed: str = ""
    closes: str = ""
    padded: frozenset[str] = frozenset(TYPES)
    ordered: bool = False


_NESTED = ("array", "object")
_SILENT = ANNOTATIONS | {CLOSED}
_NOT_STRINGS = frozenset(TYPES) - {"string"}


def _dsml(gap: str) -> Style:
    begin, end = f'{{blanks}}<｜DSML｜{gap}parameter name="{{name}}" string="{{kind}}">', f"</｜DSML｜{gap}parameter>"
    return Style(begin, end, {"string": "true", **dict.fromkeys(_NOT_STRINGS, "false")}, padded=_NOT_STRINGS)


def _gemma(quote: str) -> Style:
    brackets: Mapping[str, Any] = {"array": ("[", "]"), "object": ("{", "}"), "between": ","}
    return Style("{name}:", "", item="", quote=quote, padded=frozenset(), ordered=True, **brackets)


STYLES: Mapping[str, Style] = {
    "qwen_xml": Style("{blanks}<parameter={name}>", "</parameter>", trimmed="\n"),
    "minimax_xml": Style('{blanks}<parameter name="{name}">', "</parameter>"),
    "minimax_m3_xml": Style(
        "{blanks}]<]minimax[>[<{name}>",
        "]<]minimax[>[</{name}>",
        item="{blanks}]<]minimax[>[<item>",
        array=("", "{blanks}"),
        closes="]<]minimax[>[",
        padded=frozenset(),
    ),
    "deepseek_xml": _dsml(""),
    "deepseek_v4_1_xml": _dsml(" "),
    "glm_xml": Style("{blanks}<arg_key>{name}</arg_key>{blanks}<arg_value>", "</arg_value>"),
    "cohere_xml": Style(
        '{blanks}<cofl:value name="{name}" type="{kind}">',
        "</cofl:value>",
        {"string": "raw", "object": "dict", "array": "list", **dict.fromkeys(_NOT_STRINGS - {*_NESTED}, "json")},
        item='<cofl:value type="{kind}">',
    ),
    "kimi_k3_xml": Style(
        '{blanks}<|open|>argument key="{name}" type="{kind}"<|sep|>',
        "<|close|>argument<|sep|>",
        {**{one: one for one in TYPES}, "integer": "number"},
    ),
    "gemma4": _gemma('<|"|>'),
    "functiongemma": _gemma("<escape>"),
}
"""The styles of the members of an object but JSON, by their names in structural tags; those of Gemma are not xgrammar's."""

_NAME = "[a-zA-Z_][a-zA-Z0-9_]*"
"""The names of members that no schema lists."""

_KNOWN = {
    "object": {"type", "properties", "required", "additionalProperties"},
    "array": {"type", "items", "minItems", "maxItems"},
}


@contextmanager
def corrected(path: Path) -> Iterator[None]:
    """Say in each error where in a structural tag that stands which it is of."""
    try:
        yield
    except OutlinesPhiError as error:
        raise type(error)(f"Correct what stands at {pointer_to(path)}. {error}") from error


def checked(path: Path, *part: Any) -> Written:
    """Return a part in a notation, which stands at a path, once it was read."""
    with corrected(path):
        return Written(part).checked()


def _closed(schema: Any) -> dict[str, Any]:
    """Return a document whose objects are closed, as those of calls are."""
    return {**(schema if isinstance(schema, Mapping) else {} if schema else {"not": {}}), CLOSED: True}


def json_value(schema: Any, path: Path, blanks: str | None) -> Term:
    """Return the JSON of the values of a schema: objects are closed and integers plain, as in calls."""
    return checked(path, "json", json.dumps(_closed(schema)), blanks, True)


def arguments(
    schema: Any,
    style: Style,
    path: Path,
    blanks: tuple[str, str | None],
    excludes: tuple[str, ...],
    names: TokenNames,
) -> Term:
    """Return the members of an object in a style, in the order of its ``properties`` or as the style has it.

    ``blanks`` may stand between tags, and in JSON. An :class:`UnsupportedError` says by pointers what cannot be honoured.
    """
    json_value(schema, path, blanks[1])  # before its parts are looked at
    reading = Reader(_closed(schema), KEYWORDS, "", True)
    reading.read()
    kinds = Kinds(reading.definitions, reading.pointers)
    return _Arguments(style, path, *blanks, tuple(excludes), names, reading, kinds).members(reading.root, ("#",))


@final
@dataclass(frozen=True)
class _Arguments:
    """Makes terms of the values of the parts of a document; ``seen`` are the parts around."""

    style: Style
    path: Path
    blanks: str
    json_blanks: str | None
    excludes: tuple[str, ...]
    names: TokenNames
    reading: Reader
    kinds: Kinds

    def refuse(self, place: Place, remedy: str, *keyword: str) -> NoReturn:
        pointer = pointer_to(keyword, pointer_to(self.path) + place.pointer[1:])
        raise UnsupportedError(f"{remedy}. What stands at {pointer} cannot be honoured in this style of arguments.")

    def members(self, given: Place, seen: tuple[str, ...]) -> Term:
        """Return the members of the objects of a schema, with what stands behind them."""
        place, seen = self._resolved(given, seen)
        if parts := self._union(place, "type"):
            return one_of([self.members(part, seen) for part in parts])
        self._check(place, "object")
        named, required = place.mapping("properties"), place.schema.get("required", [])
        if not set(required) <= named.keys():
            self.refuse(place, "Require members that properties list", "required")
        others = place.schema.get("additionalProperties", "properties" not in place.schema)
        if others is not False and "{name}" in self.style.end:
            self.refuse(place, "List all properties", "additionalProperties")
        between = self._tag(self.style.between)
        first, behind = String(""), String("")  # of members where none stands before, and behind another
        if others is not False:
            but = f"(?!(?:{'|'.join(map(literal, named))})$)" if named else ""
            other = self._member(Written(("ecma", but + _NAME)), self._inside(place, "additionalProperties"), seen)
            behind = KleeneStar(InTurn([*between, other]))
            first = Optional(InTurn([other, behind]))
        for name in reversed(sorted(named, key=str.lower) if self.style.ordered else [*named]):
            member, needed = self._member(String(name), place.at("properties", name), seen), name in required
            here, after = InTurn([member, behind]), InTurn([*between, member])
            first = here if needed else Alternatives([here, first])
            behind = InTurn([after if needed else Optional(after), behind])
        begin, end = map(self._tag, self.style.object)
        return Captured([*begin, first if between else behind, *end], lambda _, found: dict(found))

    def _resolved(self, place: Place, seen: tuple[str, ...]) -> tuple[Place, tuple[str, ...]]:
        """Return the part that a reference leads to."""
        if place.contents is False:
            self.refuse(place, "Give a schema that is true of something")
        if place.contents is True:
            return replace(place, contents={}), seen
        if "$ref" not in place.schema:
            return place, seen
        if not place.schema.keys() <= {"$ref", *_SILENT}:
            self.refuse(place, "Write out what the reference stands for", "$ref")
        target = self.reading.target(place, "$ref")
        if target.pointer in seen:
            self.refuse(place, "Give a schema that does not contain itself", "$ref")
        return self._resolved(target, (*seen, target.pointer))

    def _union(self, place: Place, *beside: str) -> list[Place]:
        """Return the alternatives that a schema consists of."""
        for keyword in ("anyOf", "oneOf"):
            if keyword in place.schema and place.schema.keys() <= {keyword, *beside, *_SILENT}:
                return [place.at(keyword, i) for i in range(len(place.schema[keyword]))]
        return []

    def _check(self, place: Place, kind: str) -> None:
        said = place.schema.get("type", kind)
        if kind not in ([said] if isinstance(said, str) else said):
            self.refuse(place, f"Give type {kind}", "type")
        for keyword in place.schema.keys() - _SILENT - _KNOWN[kind]:
            self.refuse(place, f"Give {kind}s by {', '.join(sorted(_KNOWN[kind]))} alone", keyword)

    def _inside(self, place: Place, keyword: str) -> Place:
        return place.at(keyword) if keyword in place.schema else replace(place, contents=True)

    def _member(self, name: Term, place: Place, seen: tuple[str, ...]) -> Term:
        """Return the tag of a member: its name and its value."""
        known, style = Captured([name], lambda text, _: text), self.style
        return one_of(
            [
                Captured(
                    [*self._tag(style.begin, word, known), value, *self._tag(style.end, word, known)],
                    lambda _, found: tuple(found[:2]),
                )
                for word, value in self._ways(place, seen)
            ]
        )

    def _tag(self, written: str, word: str = "", name: Term | None = None) -> list[Term]:
        stands = {"{blanks}": Regex(self.blanks), "{name}": name or String("item"), "{kind}": String(word)}
        pieces = [piece for piece in re.split(r"(\{\w+\})", written) if piece]
        return [one for piece in pieces for one in ([stands[piece]] if piece in stands else self.names.terms(piece))]

    def _ways(self, place: Place, seen: tuple[str, ...]) -> list[tuple[str, Term]]:
        """Return the values of a schema by their words: JSON or what is inside of tags, and text."""
        style, ways, made = self.style, list[tuple[str, Term]](), dict[str, Callable[..., Term]]()
        if style.item is not None:
            place, seen = self._resolved(place, seen)
            made = {"array": self._items, "object": self.members}
            if parts := self._union(place):
                return [way for part in parts for way in self._ways(part, seen)]
        with corrected(self.path):
            formula = self.reading.formula(place)
            types = [one for one in TYPES if not self.kinds.kinds_of(formula).isdisjoint(TYPES[one])]
            strings = self.kinds.strings(formula)
        inner = [one for one in types if one in made]
        if inner and "type" not in place.schema:
            if not place.schema.keys() <= _SILENT:
                self.refuse(place, "Give type array or object, with items or properties")
            warn_of(
                SchemaWarning,
                f"Say what the values at {place.pointer} are. This style of arguments has no tags for arrays and objects of "
                "anything, and the format leaves them out.",
            )
            inner = []
        ways += [(style.words.get(one, ""), made[one](place, seen)) for one in inner]
        scalars = [one for one in types if one != "string" and one not in made]
        told = bool(style.words or style.quote or strings.is_empty)  # what is no string is told from strings
        if told or strings != StringSet.all():
            for word in dict.fromkeys(style.words.get(one, "") for one in scalars):
                alike = [one for one in scalars if style.words.get(one, "") == word]
                ways.append((word, self._json(place, alike, told)))
            scalars = []
        if not strings.is_empty:
            ways.append((style.words.get("string", ""), self._text(place, strings, scalars)))
        return ways or self.refuse(place, "Give a schema that is true of something")

    def _json(self, place: Place, types: list[str], told: bool) -> Term:
        """Return the JSON of the values of some types."""
        if self.excludes and {*_NESTED} & {*types}:
            self.refuse(place, "Leave excludes out")
        document, path = self._document(place, types), (*self.path, *place.pointer.split("/")[1:])
        value = checked(path, "json", json.dumps(document), self.json_blanks, True)
        return Captured(
            self._padded(value, types[0]), lambda text, _: json.loads(text) if told else _fitting(document, text)
        )

    def _text(self, place: Place, strings: StringSet, others: list[str]) -> Term:
        """Return the strings of a schema, as they are; what is JSON of one of the ``others`` is read as that."""
        style, names = self.style, self.names
        closes = tuple(filter(names.is_text, (style.closes or style.quote or style.end, *self.excludes)))
        value, trimmed = [FreeText(closes)], style.trimmed
        if strings != StringSet.all():
            document = json.dumps(self._document(place, ["string"]))
            value = self._padded(Written(("string", document, closes)), "string")

        def read(text: str, _: Any) -> Any:
            if others:
                with suppress(ValueError):
                    return _fitting(self._document(place, others), text)
            known = (text.removeprefix(trimmed).removesuffix(trimmed), text, text.strip())
            return next(filter(strings.contains, known), text)

        return InTurn([*names.terms(style.quote), Captured(value, read), *names.terms(style.quote)])

    def _padded(self, value: Term, kind: str) -> list[Term]:
        blanks = [Regex(self.blanks)] if kind in self.style.padded else []
        return [*blanks, value, *blanks]

    def _document(self, place: Place, types: list[str]) -> dict[str, Any]:
        """Return the document of the values of some types of a part, with what its references lead to."""
        root = self.reading.root.contents
        held = {keyword: root[keyword] for keyword in ("$schema", "$defs", "definitions") if keyword in root}
        return _closed({**held, "type": types, "anyOf": [place.contents]})

    def _items(self, place: Place, seen: tuple[str, ...]) -> Term:
        """Return the items of the arrays of a schema, between what stands around them."""
        self._check(place, "array")
        style, (begin, end) = self.style, map(self._tag, self.style.array)
        ways = self._ways(self._inside(place, "items"), seen)
        item = one_of(
            [InTurn([*self._tag(style.item or "", word), value, *self._tag(style.end, word)]) for word, value in ways]
        )
        least, most = place.schema.get("minItems", 0), place.schema.get("maxItems")
        more, fewer = InTurn([*self._tag(style.between), item]), max(least - 1, 0)
        rest = QuantifyMinimum(more, fewer) if most is None else QuantifyBetween(more, fewer, max(most - 1, 0))
        items = String("") if most == 0 else InTurn([item, rest])
        return Captured([*begin, items if least else Optional(items), *end], lambda _, found: found)


def _fitting(document: dict[str, Any], text: str) -> Any:
    """Return the JSON of a text; a ``ValueError`` where a schema refuses it."""
    value = json.loads(text)
    if not validator_for(document)(document).is_valid(value):
        raise ValueError(f"the schema refuses {text!r:.80}")
    return value
