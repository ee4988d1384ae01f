"""A document, and the schemas within it: what their keywords hold, where each stands, and the formula that each is."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, final
from urllib.parse import urljoin

from jsonschema_specifications import REGISTRY as SPECIFICATIONS
from referencing import Registry, Specification
from referencing._core import Resolved, Resolver
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, DynamicAnchor, specification_with

from ....automata.byte_machine import closure
from ....errors import GrammarError, UnsupportedError
from ....format_limits import LimitError, current_limits
from ..formula import FALSE, TRUE, And, Formula, Not, Or, Referred, both, but_not, pointer_to
from ..string_set import StringSet

PATTERN_DIALECT = "$patternDialect"
"""A keyword of schemas of Python types alone: the dialect of the pattern beside it, ``rust`` or ``python``."""

CLOSED = "$closed"
"""A keyword of whole documents: objects with ``properties`` have no others, unless they say so."""

_BESIDE = frozenset(
    {"allOf", "not", "if", "then", "else", "contains", "propertyNames", "dependencies", "dependentSchemas"}
)
"""Keywords whose schemas say a part of what a value is."""

MOST_COUNTED = 1 << 40
"""No text has as many characters, items or members."""

NEWEST = "http://json-schema.org/schema"
"""The newest draft, whichever that is."""

_NAMING = frozenset({"$id", "id", "$schema"})  # Keywords that a part has a name or a draft of its own by

NEGATING = frozenset({"not", "oneOf", "if", "maxContains"})  # Keywords that may ask that a schema is false

OPENAPI = {"nullable": "it is a keyword of OpenAPI 3.0, not of JSON Schema; add null to the types that may stand there"}
"""Names that another dialect gives a meaning which widens a schema, and what to write instead."""

DRAFTS: Mapping[str, str] = {
    "draft-04": "4",
    "draft-06": "6",
    "draft-07": "7",
    "draft2019-09": "2019-09",
    "draft2020-12": "2020-12",
}
"""The drafts that are read, and what they are called."""

FROM_6, FROM_7, FROM_2019, FROM_2020 = (tuple(DRAFTS)[since:] for since in range(1, 5))
TO_7 = tuple(DRAFTS)[:3]


@final
class Keyword(NamedTuple):
    """The reader of a keyword, and its fate.

    Attributes
    ----------
    says
        The maker of its formula, from the place of the schema that it stands in; ``None`` where it is read with another.
    drafts
        The drafts that have it. In others it is an annotation: to honour it there is wrong beneath ``not`` and ``oneOf``.
    fate
        Its fate, for the documentation.
    """

    says: Callable[[Place], Formula] | None
    drafts: Sequence[str] = tuple(DRAFTS)
    fate: str = "enforced"


@final
@dataclass(eq=False)
class Place:
    """A part of a document.

    Attributes
    ----------
    contents
        The part of the document there.
    pointer
        The JSON pointer to it in the document, behind a number sign.
    resolver, specification
        The base of references here, and the draft.
    reading
        The reader of the document.
    entered
        True if ``resolver`` and ``specification`` are those inside of this part, which may have a name or a draft of its own.
    scope
        The resources that led here, by their URIs, the outermost first: the *dynamic scope*.
    closed
        True if an object has no members but its properties, where nothing else is said.
    """

    contents: Any
    pointer: str
    resolver: Resolver[Any]
    specification: Specification[Any]
    reading: Reader
    entered: bool = False
    scope: tuple[str, ...] = ()
    closed: bool = False

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The keywords and what they hold, without those of other drafts."""
        assert isinstance(self.contents, dict)
        draft, keywords = self.specification.name, self.reading.keywords
        return {
            name: held for name, held in self.contents.items() if name not in keywords or draft in keywords[name].drafts
        }

    def at(self, *steps: str | int) -> Place:
        """Return a part of this part."""
        contents = self.contents
        for step in steps:
            contents = contents[step]
        closed = self.closed and steps[0] not in _BESIDE
        pointer = pointer_to(steps, self.pointer)
        return Place(
            contents, pointer, self.resolver, self.specification, self.reading, scope=self.scope, closed=closed
        )

    def below(self, *steps: str | int) -> Formula:
        """Return the formula of the schema there."""
        return self.reading.formula(self.at(*steps))

    def each(self, keyword: str) -> list[Formula]:
        """Return the formula of each schema of a list."""
        return [self.below(keyword, i) for i in range(len(self.listed(keyword, object)))]

    def named(self, keyword: str) -> Iterator[tuple[str, Formula]]:
        """Yield the names of an object of schemas, and what each says."""
        for name in self.mapping(keyword):
            yield name, self.below(keyword, name)

    def value(self, keyword: str | None) -> Any:
        """Return the value of a keyword, or the contents of this place."""
        return self.contents if keyword is None else self.schema[keyword]

    def mapping(self, keyword: str) -> dict[str, Any]:
        """Return the object that a keyword holds; an empty one where it is not there."""
        return (
            self._checked(keyword, lambda value: isinstance(value, dict), "an object") if keyword in self.schema else {}
        )

    def listed(self, keyword: str | None, kind: type) -> list[Any]:
        """Return the list that a keyword holds, or that stands here."""

        def fits(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(item, kind) for item in value)

        return self._checked(keyword, fits, "a list of names" if kind is str else "a list")

    def text(self, keyword: str) -> str:
        """Return the string that a keyword holds."""
        return self._checked(keyword, lambda value: isinstance(value, str), "a string")

    def flag(self, keyword: str) -> bool:
        """Return the truth that a keyword holds."""
        return self._checked(keyword, lambda value: isinstance(value, bool), "true or false")

    def number(self, keyword: str) -> int | float | Decimal:
        """Return the number that a keyword holds."""
        return self._checked(keyword, _is_number, "a number")

    def count(self, keyword: str) -> int:
        """Return the whole number that a keyword holds, or the greatest that makes a difference to any text."""
        count = self._checked(
            keyword, lambda n: _is_number(n) and n >= 0 and min(n, MOST_COUNTED) % 1 == 0, "a whole number"
        )
        return int(min(count, MOST_COUNTED))

    def leave_out(self, keyword: str, why: str) -> None:
        """Take note that a keyword is not asked of a value."""
        self.reading.leave_out(f"{self.pointer}/{keyword}", why)

    def malformed(self, keyword: str | None, expected: str) -> UnsupportedError:
        """Return the error of a keyword that holds something else."""
        pointer = self.pointer if keyword is None else f"{self.pointer}/{keyword}"
        return UnsupportedError(
            f"Write {expected} at {pointer} of the JSON schema. It holds {self.value(keyword)!r:.80}."
        )

    def in_order(self, names: Iterable[str], keyword: str | None = None) -> None:
        """Take note that a keyword names members in an order; without one, that they are told apart and have none by that."""
        self.reading.put_in_order(names, None if keyword is None else f"{self.pointer}/{keyword}")

    def matching(self, pattern: str, *steps: str, dialect: str = "ecma") -> StringSet:
        """Return the strings that a pattern matches, which stands in a part of this part."""
        with self.within(*steps):
            return StringSet.matching(pattern, dialect)

    def matched(self) -> StringSet:
        """Return the union of the languages of the patterns of ``patternProperties``."""
        found = StringSet.none()
        for pattern in self.mapping("patternProperties"):
            found |= self.matching(pattern, "patternProperties", pattern)
        return found

    @contextmanager
    def within(self, *steps: str) -> Iterator[None]:
        """Say in every error of a part where it stands."""
        try:
            yield
        except GrammarError as error:
            pointer = pointer_to(steps, self.pointer)
            dialect = {"rust": "the crate regex", "python": "the module re"}.get(
                self.contents.get(PATTERN_DIALECT), "ECMA-262"
            )
            raise UnsupportedError(
                f"Write a regular expression of {dialect} at {pointer} of the JSON schema. In the one that is there, {error}"
            ) from error
        except LimitError as limit:
            raise limit.at(pointer_to(steps, self.pointer)) from None
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{error} It stands at {pointer_to(steps, self.pointer)} of the JSON schema."
            ) from error

    def _checked(self, keyword: str | None, fits: Callable[[Any], bool], expected: str) -> Any:
        value = self.value(keyword)
        if not fits(value):
            raise self.malformed(keyword, expected)
        if isinstance(value, (list, dict)):
            where = self.pointer if keyword is None else f"{self.pointer}/{keyword}"
            current_limits().check("members", len(value), f"The number of members at {where} of the JSON schema")
        return value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    if isinstance(value, Decimal):
        return value.is_finite()
    return isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


def constant(contents: Any) -> Formula | None:
    """Return the formula of a schema that is a truth value; ``None`` of another."""
    return {True: TRUE, False: FALSE}[contents] if isinstance(contents, bool) else None


@final
class LeftOut(NamedTuple):
    """A keyword that is not asked of a value: where it stands, and why."""

    pointer: str
    why: str


@final
class Reader:
    """One document in the reading, by a table of keywords.

    Attributes
    ----------
    plain
        True if integers are written without a fraction and an exponent, as in draft 4.
    formats
        Pointers of the formats that assert something; ``None`` where all formats are annotations.
    """

    def __init__(self, document: Any, keywords: Mapping[str, Keyword], label: str, plain: bool) -> None:
        self.keywords, self._label, self.plain = keywords, label, plain
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
        closed = isinstance(document, dict) and document.get(CLOSED) is True
        self.root = Place(document, "#", base, specification, self, scope=(base._base_uri,), closed=closed)
        self.definitions: dict[str, Formula] = {}
        self._formulas: dict[tuple[int, str], Formula] = {}
        self._overridden: dict[tuple[str, ...], dict[str, str]] = {}
        self.pointers: dict[Formula, str] = {}
        self.order: dict[str, frozenset[str]] = {}
        self.negating: dict[str, Formula] = {}
        self.formats: list[str] | None = []
        self._waiting: dict[str, Place] = {}
        self._referred: dict[Hashable, Formula] = {}

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
        other = Reader(self.root.contents, self.keywords, f"{self._label}'", self.plain)
        other.formats = None
        other.read()
        self.definitions |= other.definitions
        return {pointer: but_not(found, other.negating[pointer]) for pointer, found in self.negating.items()}

    def formula(self, place: Place) -> Formula:
        """Return the formula of a schema."""
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
        """Return the formula of the part of the document that a keyword refers to."""
        place = self._entered(place)
        asked = keyword, place.text(keyword), place.resolver._base_uri, place.scope, place.specification.name
        if asked not in self._referred:
            target = self.target(place, keyword)
            if (found := constant(target.contents)) is None:
                key = self._label + target.pointer + self._told(target)
                found = Referred(key)
                if key not in self.definitions and key not in self._waiting:
                    self._waiting[key] = target
            self._referred[asked] = found
        return self._referred[asked]

    def target(self, place: Place, keyword: str) -> Place:
        """Return the part of the document that a keyword refers to."""
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
        return Place(found.contents, pointer, found.resolver, specification, self, True, scope, closed=self.root.closed)

    def leave_out(self, pointer: str, why: str) -> None:
        """Take note of what is not asked of a value."""
        self.left_out[LeftOut(pointer, why)] = None

    def put_in_order(self, names: Iterable[str], pointer: str | None) -> None:
        """Take note that members of these names come in this order; without a pointer, that they come in none."""
        here = frozenset[str]() if pointer is None else frozenset([self._label + pointer])
        for name in names:
            self.order[name] = self.order.get(name, frozenset()) | here

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
        if place.entered or _NAMING.isdisjoint(place.contents):
            place.entered = True
            return place
        specification = self._specification(place.contents, place.pointer, place.specification)
        resource = specification.create_resource(place.contents)
        if resource.id() is None or place.pointer == "#":
            return replace(place, specification=specification, entered=True)
        resolver = place.resolver.in_subresource(resource)
        scope = tuple(dict.fromkeys((*place.scope, resolver._base_uri)))
        return replace(place, entered=True, specification=specification, resolver=resolver, scope=scope)

    def _says(self, place: Place) -> Iterator[Formula]:
        """Yield the formula of each keyword of a schema."""
        draft = place.specification.name
        if draft in TO_7 and "$ref" in place.schema:
            for keyword in place.schema:
                if keyword != "$ref" and keyword in self.keywords:
                    place.leave_out(keyword, f"siblings of $ref say nothing in draft {DRAFTS[draft]}")
            yield self.reference(place, "$ref")
            return
        for keyword in place.contents:
            if keyword not in place.schema:
                place.leave_out(
                    keyword, f"it is no keyword of draft {DRAFTS[draft]}; name the draft that is meant as $schema"
                )
            elif keyword in OPENAPI and place.schema[keyword]:
                place.leave_out(keyword, OPENAPI[keyword])
            elif keyword in self.keywords and (reading := self.keywords[keyword].says) is not None:
                yield reading(place)

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
        try:
            TopologicalSorter({key: list(_references(said)) for key, said in self.definitions.items()}).prepare()
        except CycleError as error:
            circle = ", ".join(key.removeprefix(self._label) for key in reversed(error.args[1][1:]))
            raise UnsupportedError(
                f"Let the references at {circle} of the JSON schema lead to something else. They refer to one another without a "
                "keyword between them, so they say nothing of a value."
            ) from None


def _looked_up(resolver: Resolver[Any], reference: str) -> Resolved[Any]:
    """Look up the target of a reference by itself, whatever led to it."""
    base = resolver._base_uri
    whole = f"{base}{reference}" if reference.startswith("#") else urljoin(base, reference)
    return resolver._registry.resolver().lookup(whole)


def _references(formula: Formula) -> Iterator[str]:
    """Yield the keys of what a formula refers to of the same value."""

    def inner(part: Formula) -> Iterable[Formula]:
        return part.formulas if isinstance(part, (And, Or)) else (part.formula,) if isinstance(part, Not) else ()

    return (part.key for part in closure([formula], inner) if isinstance(part, Referred))


def _pointers(part: Any, pointer: str) -> Iterator[tuple[int, str]]:
    """Yield the pointer of each object of a document, by its identity."""
    stack = [(part, pointer)]
    while stack:
        part, pointer = stack.pop()
        yield id(part), pointer
        steps = part.items() if isinstance(part, dict) else enumerate(part)
        stack += [(item, pointer_to([step], pointer)) for step, item in steps if isinstance(item, (dict, list))]
