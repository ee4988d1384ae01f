"""A JSON schema as a visibly pushdown machine over bytes, made as far as texts go (grammar-theory.md, section 9.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypeVar, final

from ....automata.byte_machine import ByteMachine, Position
from ....errors import EmptyLanguageError, UnsupportedError
from ....format_limits import LimitError
from ..formula import Formula, both, kind, not_too_deep
from ..kinds import Kinds, scalars_of
from ..reading.place import LeftOut
from ..reading.schema import Schema, Template, culprit
from ..shapes import ObjectShape, comes_first, names_in_order, told_apart
from ..string_set import members
from .between import Between, Places, Value, refuse_clashes
from .blanks import Spacing
from .containers import FirstBlank
from .seen import NOTHING, value_of
from .sizes import NEVER, Sizes
from .states import BeforeValue, Blank, ByteEdge, Configuration, Frame, Maker, Stack, State

LIKELY = sorted(range(256), key=lambda byte: (chr(byte) not in '"}]:,{[012truefalsn', byte not in range(0x20, 0x7F)))
"""All bytes, those first that a shortest text has most often."""

MOST_AROUND = 3
"""The most levels of nested arrays whose items must come and differ."""

MOST_COMPILED = 200
"""Formulas that are looked at before the first text, for what they tell apart; the others are when a text leads to them."""

BEYOND_ASCII = frozenset([*range(0x80, 0xC0), *range(0xC2, 0xF5)])
"""The bytes of characters beyond ASCII in UTF-8."""


_BESIDE = frozenset([""])
"""The name that orders, beside those of the schema, the items that were there before."""

Kept = TypeVar("Kept")

Goals: TypeAlias = tuple[Formula, ...]
"""The formulas that tell the next value apart: at most one of these is true of it. Its place is the *outcome* of the value."""


@final
class Machine(Maker, ByteMachine[Configuration]):
    """The texts of the values that a schema is true of.

    A value is read once for all that is asked of it: the formulas that tell its outcomes apart are followed side by side, so the
    machine is deterministic, and each text is one way through it. States are made when a text first leads to them.

    Parameters
    ----------
    schema
        The schema, or what its values stand in.
    blanks
        A regular expression of what may stand between tokens; ``None`` for what writers of JSON put.
    any_order
        True if members may come in any order; else in that of the schema, and others behind those that it names.
    ascii
        Whether strings are spelled in ASCII alone, others than that by ``\\uXXXX``.
    around
        Of what values the smallest ones are being looked for, one inside the other.
    compiling
        True if limits hold: not for values that are looked for inside of a text.

    Raises
    ------
    EmptyLanguageError
        The schema is true of no value.
    UnsupportedError
        A part of the schema that cannot be honoured, or blanks that are none.
    """

    def __init__(
        self,
        schema: Schema | Template,
        *,
        blanks: str | None = None,
        any_order: bool = False,
        ascii: bool = False,
        around: frozenset[Formula] = frozenset(),
        compiling: bool = True,
    ) -> None:
        super().__init__()
        self.template = schema if isinstance(schema, Template) else Template.of_value(schema)
        self.any_order, self.ascii, self._around = any_order, ascii, around
        self._order = self.template.order
        self.kinds = Kinds(self.template.definitions, self.template.pointers)
        self.kinds.compiling = compiling
        self._pattern, self.layout = blanks, Spacing.of(blanks)
        self.sizes = self._sizes(self.kinds, self.template.definitions)
        self._frames: dict[tuple[Sequence[State], int], Frame] = {}
        try:
            with not_too_deep():
                if compiling:
                    self._refuse_early()
                formulas = [piece for piece in self.template.pieces if isinstance(piece, Formula)]
                self.blocks = not all(self.kinds.kinds_of(piece).isdisjoint(("array", "object")) for piece in formulas)
                self._places = Places(self.template, self.sizes)
        except LimitError as limit:
            raise limit if around else limit.at("#") from None
        if not (begun := self._places.entered(self.template.first)):
            raise EmptyLanguageError(self._why_empty())
        start = self.made(Between, self._places, begun)
        if len(self.template.pieces) > 1:
            refuse_clashes(start)
        self.start = Configuration(start, None)
        self.kinds.compiling = False

    def _sizes(self, kinds: Kinds, definitions: Mapping[str, Formula]) -> Sizes:
        return Sizes(kinds, partial(self._smallest_nested, definitions), self.layout, ascii=self.ascii)

    def _why_empty(self) -> str:
        def is_empty(document: Any) -> bool:
            try:
                read = Schema.read(document)
                return self._sizes(Kinds(read.definitions), read.definitions).of(read.formula) >= NEVER
            except UnsupportedError:
                return True

        for schema in self.template.schemas:
            if self.sizes.of(schema.formula) >= NEVER:
                return (
                    f"Relax {culprit(schema.document, is_empty)} of the JSON schema. With it, no JSON value is valid."
                )
        return "Relax the output type. No text of it can be written."

    def unlike(self) -> Iterator[LeftOut]:
        """Yield the schemas that are true of values which they are not true of where formats are annotations."""
        for schema in self.template.schemas:
            sizes = self._sizes(Kinds(schema.definitions), schema.definitions)  # under the limits of compiling
            for pointer, added in schema.unlike.items():
                with suppress(UnsupportedError):  # more is asked than is looked at
                    if not sizes.possible(added):
                        continue
                yield LeftOut(pointer, "where formats are annotations, some of what is written is not valid")

    def _refuse_early(self) -> None:
        """Read the formulas of values within values, so that one that cannot be honoured is refused before the first text."""
        waiting = [piece for piece in self.template.pieces if isinstance(piece, Formula)]
        seen = set(waiting)
        while waiting:
            formula = waiting.pop()
            inner = self.kinds.within(formula)
            if len(seen) < MOST_COMPILED:
                inner += self._inside(formula)
            found = [one for one in dict.fromkeys(inner) if one not in seen]
            waiting += found
            seen.update(found)

    def _inside(self, formula: Formula) -> Iterator[Formula]:
        """Yield the formulas that tell apart the items and first members of the arrays and objects that a formula is true of."""
        arrays, objects = self.kinds.arrays(formula), self.kinds.objects(formula)
        asked: list[list[Formula]] = []
        for array in arrays:
            for item, left in array.steps() if array.unique and not self._around else ():
                self.sizes.contested(array, NOTHING)
                self.sizes.of_rest(array, item, left, NOTHING)
        if len(arrays) > 1 or any(array.counted for array in arrays):
            longest = max(len(array.first) for array in arrays)
            for place in range(min(longest, MOST_COMPILED) + 1):
                asked.append([item for array in arrays for item, _ in array.behind(place).steps()])
        if len(objects) > 1 or any(shape.every or shape.some for shape in objects):
            kinds = dict.fromkeys(one.names for shape in objects for one in shape.every + shape.some)
            own = names_in_order(objects)
            others = (members(cell.without(own), ascii=self.ascii) for cell in told_apart(kinds))
            names = [*own, *(name for found in others for name, _ in islice(found, 1))]
            for place, name in enumerate(names if len(names) * len(objects) < MOST_COMPILED else ()):
                for shapes in self._together(objects, name, own[:place]):
                    asked.append([value for shape in shapes for value in shape.asked(name)])
        for values in map(dict.fromkeys, asked):
            if len(values) < 2:
                yield from values
                continue
            live = [value for value in values if self.sizes.possible(value)]
            yield from (cell for cell, _ in self.cells((0, value, None) for value in live))

    def _together(
        self, shapes: Sequence[ObjectShape], name: str, before: Sequence[str]
    ) -> Iterator[Sequence[ObjectShape]]:
        """Yield the shapes that may be left of an object at a name, by the values of members that have to come before it."""
        for place, other in enumerate(before if len(shapes) > 1 else ()):
            near = all(other in one.required for one in shapes) and not self.places(other).isdisjoint(self.places(name))
            comes = near and comes_first(shapes, other, before=name, ahead=(other, name))
            asked = [(one, self.kinds.meant(one.value(other))) for one in shapes if comes]
            told = [(one, scalars_of(self.kinds, value) or ()) for one, value in asked]
            groups = dict.fromkeys(
                tuple(one for one, own in told if value in own or not own)
                for _, values in told
                for value in sorted(values, key=repr)
            )
            if len(groups) > 1:
                for group in groups:
                    yield from self._together(group, name, before[place + 1 :])
                return
        yield shapes

    def __reduce__(self) -> tuple[Any, ...]:
        # States are made again, and what was compiled is not refused under other limits.
        made = partial(Machine, blanks=self._pattern, any_order=self.any_order, ascii=self.ascii, compiling=False)
        return made, (self.template,)

    @property
    def needed(self) -> set[int]:
        """The bytes that a shortest way to the end may need."""
        beyond = () if self.ascii else BEYOND_ASCII
        blanks = b"\n" if self._pattern is None else self.layout.pattern.shortest()
        values = any(isinstance(piece, Formula) for piece in self.template.pieces)
        found = {*range(0x20, 0x7F), *blanks, *beyond} if values else set[int]()
        return found.union(*(piece.used for piece in self.template.pieces if not isinstance(piece, Formula)))

    def places(self, name: str) -> frozenset[str]:
        return frozenset() if self.any_order else self._order.get(name, _BESIDE)

    def step(self, at: Configuration, byte: int) -> Configuration | None:
        state, stack, text = at
        while (edge := state.edge(byte)) is None:
            if state.ends is None or stack is None:
                return None
            state, stack, text = stack.left(state.ends, text)
        return self.follow(Configuration(state, stack, text), edge, bytes([byte]))

    def follow(self, at: Configuration, edge: ByteEdge, read: bytes) -> Configuration:
        """Return the configuration behind an edge; ``read`` is what was read in its state, the byte of the edge included."""
        _, stack, text = at
        if edge.after is not None:
            stack = self.push(edge.after, stack, len(text))
        if stack is not None and stack.keeps:
            text += read
        if edge.target is not None:
            return Configuration(edge.target, stack, text)
        assert stack is not None  # a value stands between what comes before it and after it
        return stack.left(edge.outcome, text)

    def push(self, after: Sequence[State], stack: Stack, start: int = 0) -> Frame:
        """Return a stack with these states on top; ``start`` is where the value begins in the text that is kept."""
        frames = self._frames if stack is None else stack.deeper
        found = frames.get((after, start))
        if found is None:
            found = frames[after, start] = Frame(after, stack, start)
        return found

    def ends(self, at: Configuration) -> bool:
        state, stack, text = at
        while stack is not None and state.ends is not None:
            state, stack, text = stack.left(state.ends, text)
        return isinstance(state, Between) and state.is_end

    def size(self, at: Configuration) -> int:
        """Return the least number of bytes that complete a text."""
        sizes, stack = at.state.sizes, at.stack
        if stack is None:
            return sizes[0]
        known = stack.rests
        ways = [place for place, size in enumerate(sizes) if size < NEVER]
        return min(
            (sizes[place] + (known[place] if place in known else stack.rest(place)) for place in ways), default=NEVER
        )

    def shortest(
        self, at: Configuration | None = None, likely: Callable[[State], Iterable[int]] = lambda state: LIKELY
    ) -> bytes:
        """Return a rest that is as short as any, from the start by default; by the first of the ``likely`` bytes that do."""
        text, here = bytearray(), at or self.start
        while size := self.size(here):
            step = self.nearer(here, size, likely(here.state))
            assert step is not None  # some byte always lowers the size
            text.append(step[0])
            here = step[1]
        return bytes(text)

    def position(self, at: Configuration) -> Position:
        state = at.state
        core = state.core if isinstance(state, Blank) else state
        begins = state.in_value and isinstance(core, (BeforeValue, FirstBlank, Between))
        return Position(int(begins), state.in_value, state.between)

    def describe(self, at: Configuration) -> str:
        state, stack, _ = at
        places = [type(state).__name__.lower()]
        while stack is not None and stack.below is not None:
            places.append(type(stack.after[0]).__name__.lower())
            stack = stack.below
        return " in ".join(places)

    def nearer(self, at: Configuration, size: int, bytes: Iterable[int]) -> tuple[int, Configuration] | None:
        """Return the first of some bytes that leads to where less than ``size`` is left, and that place; ``None`` for none."""
        for byte in bytes:
            after = self.step(at, byte)
            if after is not None and self.size(after) < size:
                return byte, after
        return None

    def _smallest_nested(
        self, definitions: Mapping[str, Formula], formula: Formula, count: int, pointer: str
    ) -> list[tuple[int, Any]]:
        """Return the sizes and values of the smallest arrays and objects that a formula is true of."""
        if formula in self._around or len(self._around) > MOST_AROUND:
            raise UnsupportedError(
                f"Ask for at most one item beside {pointer} of the JSON schema, where the items hold others of their own kind. How "
                "many different arrays or objects of these there are is not counted."
            )
        found: list[tuple[int, Any]] = []
        seen = NOTHING
        while len(found) < count:
            rest = Schema(both(kind(["array", "object"]), formula, seen.unlike), definitions, (), True)
            try:
                around, compiling = self._around | {formula}, self.kinds.compiling
                machine = Machine(
                    rest, blanks=self._pattern, any_order=True, ascii=self.ascii, around=around, compiling=compiling
                )
            except EmptyLanguageError:
                break
            found.append((machine.size(machine.start), value_of(machine.shortest())))
            seen = seen.and_also(found[-1][1])
        return found

    def value(self, goals: Goals, layout: Spacing) -> BeforeValue:
        return self.made(Value, goals, layout)
