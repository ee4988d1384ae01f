"""JSON schemas: documents, read into formulas; and the part of one that no value is valid under."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, final
from urllib.parse import urljoin

from jsonschema_specifications import REGISTRY as SPECIFICATIONS
from referencing import Registry, Specification
from referencing._core import Resolved, Resolver
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, DynamicAnchor, specification_with

from ....errors import OutlinesPhiError, UnsupportedError
from ....format_limits import LimitError
from ..formula import And, Formula, Not, Or, Referred, both, but_not, not_too_deep
from ..values import Path, pointer_to
from .keywords import DRAFTS, KEYWORDS, TO_7, is_keyword, says
from .place import Place, constant

NEWEST = "http://json-schema.org/schema"
"""The newest draft, whichever that is."""

NEGATING = frozenset({"not", "oneOf", "if", "maxContains"})  # Keywords that may ask that a schema is false


@final
class LeftOut(NamedTuple):
    """A keyword that is not asked of a value: where it stands, and why."""

    pointer: str
    why: str


@final
@dataclass(frozen=True, eq=False)
class Schema:
    """The formulas of a JSON schema (grammar-theory.md, section 9.1).

    Attributes
    ----------
    formula
        The formula of the whole document.
    definitions
        The formulas of references, by their keys.
    left_out
        The parts that are not asked of a value, in the order of the document.
    document
        The document.
    pointers
        The pointer to each formula in it.
    order
        For each name, the places that put its members in an order with others.
    unlike
        The places where formats may make more values valid, by ``not`` and its like, with the formulas of these values.
    """

    formula: Formula
    definitions: Mapping[str, Formula]
    left_out: tuple[LeftOut, ...]
    document: Any
    pointers: Mapping[Formula, str] = field(default_factory=dict)
    order: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unlike: Mapping[str, Formula] = field(default_factory=dict)

    @classmethod
    def read(cls, document: Any, *, label: str = "", plain: bool = False) -> Schema:
        """Read a document as formulas, as ``json.loads`` made it; numbers may be ``Decimal``.

        Parameters
        ----------
        document
            The document.
        label
            The mark of its definitions among those of other documents.
        plain
            True if integers are written without a fraction and an exponent, as in draft 4.

        Raises
        ------
        UnsupportedError
            A keyword that cannot be honoured, or that holds what it may not; the message says which, by its JSON pointer.
        """
        try:
            with not_too_deep():
                reader = _SchemaReader(document, label, plain)
                formula = reader.read()
                unlike = reader.unlike()
        except (AttributeError, TypeError, ValueError) as error:
            # The library that follows references takes every $id, $anchor and $ref for a string, and a URI.
            if isinstance(error, OutlinesPhiError):
                raise
            raise UnsupportedError(
                f"Write URIs as $id, $anchor, $schema and $ref of the JSON schema. One of them cannot be read: {error}."
            ) from error
        return cls(formula, reader.definitions, tuple(reader.left_out), document, reader.pointers, reader.order, unlike)


class _SchemaReader:
    """One document in the reading; see :class:`~outlines_phi.guides.json_schema.reading.place.Reading`."""

    def __init__(self, document: Any, label: str, plain: bool) -> None:
        self._label, self.plain = label, plain
        if not isinstance(document, (dict, bool)):
            raise UnsupportedError(
                f"Write an object, true or false at # of the JSON schema. It holds {document!r:.80}."
            )
        self.left_out: dict[LeftOut, None] = {}
        specification = self._specification(document, "#", DRAFT202012)
        resource = specification.create_resource(document)
        registry: Registry[Any] = SPECIFICATIONS.with_resource("", resource)
        if resource.id():
            registry = registry.with_resource(resource.id() or "", resource)
        base = registry.resolver(resource.id() or "")
        self.root = Place(document, "#", base, specification, self, scope=(base._base_uri,))
        self.definitions: dict[str, Formula] = {}
        self._formulas: dict[tuple[int, str], Formula] = {}
        self._overridden: dict[tuple[str, ...], dict[str, str]] = {}
        self.pointers: dict[Formula, str] = {}
        self.order: dict[str, frozenset[str]] = {}
        self.negating: dict[str, Formula] = {}
        self.formats: list[str] | None = []
        self._waiting: dict[str, Place] = {}

    def read(self) -> Formula:
        """Return the formula of the document, all that it refers to read as well."""
        formula = self.formula(self.root)
        while self._waiting:
            key, place = self._waiting.popitem()
            self.definitions[key] = self.formula(place)
        self._refuse_circles()
        return formula

    def unlike(self) -> dict[str, Formula]:
        """Return the formula, for each schema, of the values that are valid only if formats assert."""
        if not self.negating or not self.formats:
            return {}
        other = _SchemaReader(self.root.contents, f"{self._label}'", self.plain)
        other.formats = None
        other.read()
        self.definitions |= other.definitions
        return {pointer: but_not(found, other.negating[pointer]) for pointer, found in self.negating.items()}

    def formula(self, place: Place) -> Formula:
        if (plain := constant(place.contents)) is not None:
            return plain
        if not isinstance(place.contents, dict):
            raise place.malformed(None, "a schema, which is an object, true or false,")
        key = id(place.contents), self._told(place)
        if key not in self._formulas:
            try:
                found = both(*self._says(self._entered(place)))
            except LimitError as limit:
                raise limit.at(place.pointer) from None
            self._formulas[key] = found
            self.pointers.setdefault(found, place.pointer)
            if not NEGATING.isdisjoint(place.contents):
                self.negating[place.pointer] = found
        return self._formulas[key]

    def reference(self, place: Place, keyword: str) -> Formula:
        target = self.target(place, keyword)
        if (plain := constant(target.contents)) is not None:
            return plain
        key = self._label + target.pointer + self._told(target)
        if key not in self.definitions and key not in self._waiting:
            self._waiting[key] = target
        return Referred(key)

    def target(self, place: Place, keyword: str) -> Place:
        place = self._entered(place)
        reference = place.text(keyword)
        try:
            found = _looked_up(place.resolver, reference)
            # A dynamic reference goes to the outermost resource on the way here that has the anchor which it led to.
            name = "" if keyword == "$recursiveRef" else reference.rpartition("#")[2]
            anchor = {"$dynamicRef": "$dynamicAnchor", "$recursiveRef": "$recursiveAnchor"}.get(keyword)
            if isinstance(found.contents, dict) and anchor and found.contents.get(anchor) == (name or True):
                outermost = self._anchors(place.scope).get(name)
                if outermost is not None:
                    reference = f"{outermost}#{name}"
                    found = _looked_up(place.resolver, reference)
        except (Unresolvable, ValueError, KeyError, TypeError, IndexError):
            raise UnsupportedError(
                f"Put what {reference!r} refers to into the document, such as under $defs. It stands at "
                f"{place.pointer}/{keyword} of the JSON schema, and nothing in the document answers to it."
            ) from None
        pointer, base = self._pointers.get(id(found.contents)), found.resolver._base_uri
        if pointer is None:  # of another document, such as a draft's own schema
            pointer = reference if reference.startswith(base) else f"{base}{reference}"
        specification = self._specification(found.contents, pointer, place.specification)
        scope = place.scope if base in place.scope else (*place.scope, base)
        return Place(found.contents, pointer, found.resolver, specification, self, entered=True, scope=scope)

    def leave_out(self, pointer: str, why: str) -> None:
        self.left_out[LeftOut(pointer, why)] = None

    def put_in_order(self, names: Iterable[str], pointer: str | None) -> None:
        here = frozenset[str]() if pointer is None else frozenset([self._label + pointer])
        for name in names:
            self.order[name] = self.order.get(name, frozenset()) | here

    def is_keyword(self, name: str, draft: str) -> bool:
        return is_keyword(name, draft)

    def _specification(self, contents: Any, pointer: str, default: Specification[Any]) -> Specification[Any]:
        """Return the draft of a part: the one that it names itself, or that of the part around it."""
        dialect = contents.get("$schema") if isinstance(contents, dict) else None
        if not isinstance(dialect, str):
            return default
        if dialect.rstrip("#") == NEWEST:
            return DRAFT202012
        found = specification_with(dialect, default=Specification.OPAQUE)
        if found is Specification.OPAQUE:
            name = DRAFTS[default.name]
            self.leave_out(f"{pointer}/$schema", f"{dialect!r:.80} is not known, and read as draft {name}")
            return default
        if found.name not in DRAFTS:
            raise UnsupportedError(
                f"Write the JSON schema in draft 4 or a later one. {pointer}/$schema names {dialect!r:.80}, which is not supported."
            )
        return found

    def _entered(self, place: Place) -> Place:
        """Return a schema with the meaning that references have inside of it."""
        if place.entered:
            return place
        specification = self._specification(place.contents, place.pointer, place.specification)
        resource = specification.create_resource(place.contents)
        if resource.id() is None or place.pointer == "#":
            return replace(place, specification=specification, entered=True)
        resolver = place.resolver.in_subresource(resource)
        scope = tuple(dict.fromkeys((*place.scope, resolver._base_uri)))
        return replace(place, entered=True, specification=specification, resolver=resolver, scope=scope)

    def _says(self, place: Place) -> Iterator[Formula]:
        if place.specification.name in TO_7 and "$ref" in place.schema:
            for keyword in place.schema:
                if keyword != "$ref" and keyword in KEYWORDS:
                    place.leave_out(
                        keyword, f"siblings of $ref say nothing in draft {DRAFTS[place.specification.name]}"
                    )
            yield place.reference("$ref")
            return
        yield from says(place)

    @cached_property
    def _pointers(self) -> dict[int, str]:
        """The pointer of each part of the document, by its identity."""
        return dict(_pointers(self.root.contents, "#"))

    def _anchors(self, scope: tuple[str, ...]) -> dict[str, str]:
        """Return the dynamic anchors of some resources, each with the first that has it; "" is that of ``$recursiveAnchor``."""
        if scope not in self._overridden:
            registry, found = self.root.resolver._registry.crawl(), dict[str, str]()
            for uri in scope:
                resource = registry.get(uri)
                if resource and isinstance(resource.contents, dict) and resource.contents.get("$recursiveAnchor"):
                    found.setdefault("", uri)
                for (base, name), anchor in registry._anchors.items():
                    if base == uri and isinstance(anchor, DynamicAnchor):
                        found.setdefault(name, uri)
            self._overridden[scope] = found
        return self._overridden[scope]

    def _told(self, place: Place) -> str:
        """Return a suffix that tells a part from itself where dynamic references inside of it lead elsewhere."""
        anchors = self._anchors(place.scope) if len(place.scope) > 1 else {}
        return "".join(f" (#{name} of {uri})" for name, uri in sorted(anchors.items()))

    def _refuse_circles(self) -> None:
        """Refuse a part that refers to itself without going into a value."""
        settled = set[str]()
        for key in self.definitions:
            path = dict[str, None]()

            def follow(key: str, path: dict[str, None] = path) -> None:
                if key in path:
                    circle = ", ".join(each.removeprefix(self._label) for each in path)
                    raise UnsupportedError(
                        f"Let the references at {circle} of the JSON schema lead to something else. They refer to one "
                        "another without a keyword between them, so they say nothing of a value."
                    )
                if key not in settled:
                    path[key] = None
                    for inner in _references(self.definitions[key]):
                        follow(inner)
                    del path[key]
                    settled.add(key)

            follow(key)


def _looked_up(resolver: Resolver[Any], reference: str) -> Resolved[Any]:
    """Look up the target of a reference by itself, whatever led to it."""
    base = resolver._base_uri
    whole = f"{base}{reference}" if reference.startswith("#") else urljoin(base, reference)
    return resolver._registry.resolver().lookup(whole)


def _references(formula: Formula) -> Iterator[str]:
    """Yield the keys of what a formula refers to of the same value."""
    found = {formula: None}
    for part in (waiting := [formula]):
        if isinstance(part, Referred):
            yield part.key
        inner = part.formulas if isinstance(part, (And, Or)) else (part.formula,) if isinstance(part, Not) else ()
        waiting += (one for one in inner if one not in found)
        found.update(dict.fromkeys(inner))


def _pointers(part: Any, pointer: str) -> Iterator[tuple[int, str]]:
    """Yield the pointer of each object of a document, by its identity."""
    stack = [(part, pointer)]
    while stack:
        part, pointer = stack.pop()
        if isinstance(part, (dict, list)):
            yield id(part), pointer
            steps = part.items() if isinstance(part, dict) else enumerate(part)
            stack += [(item, pointer_to([step], pointer)) for step, item in steps]


MOST_LOOKED_AT = 20_000
"""The most parts of documents that are read, each time a part of one is left out: first a small part, then a large one."""


def culprit(document: Any, is_empty: Callable[[Any], bool]) -> str:
    """Return the JSON pointer of a smallest part of a document without which it is not empty: some value is valid.

    Where a document is too large to try all of its parts, it may be a larger part.
    """
    # Deep ones first. Without its type anything may be valid, which tells least.
    paths = sorted(_paths(document), key=lambda path: (-len(path), path[-1] == "type"))
    for waiting in (paths, sorted(paths, key=lambda path: (len(path), path[-1] == "type"))):
        for path in waiting[: 1 + MOST_LOOKED_AT // max(len(paths), 1)]:
            if not is_empty(_without(document, path)):
                return pointer_to(path)
    return "#"


def _paths(part: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of each keyword and each item of lists."""
    waiting: list[tuple[Any, Path]] = [(part, path)]
    while waiting:
        part, path = waiting.pop()
        steps = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        for step, inner in steps:
            yield (*path, step)
            if step != "enum" or not isinstance(inner, list):  # values are no schemas
                waiting.append((inner, (*path, step)))


def _without(document: Any, path: Path) -> Any:
    """Return a document without the keyword at a place; an item of a list gives way to ``true``."""
    step, *rest = path
    changed = document.copy()
    if rest:
        changed[step] = _without(document[step], tuple(rest))
    elif isinstance(document, list):
        changed[step] = True
    else:
        del changed[step]
    return changed
