"""The least number of bytes of a value that a formula is true of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, final

from ....errors import UnsupportedError
from ....format_limits import LimitError
from ..formula import TRUE, Formula, both
from ..kinds import Kinds
from ..shapes import ArrayShape, ObjectShape, Some, told_apart
from ..string_set import StringSet, composed_of, members, spelled_size
from .blanks import BEGUN, Gaps, Spacing
from .seen import NOTHING, Seen, canonical, value_of

NEVER = 1 << 40
"""The size of what there is none of."""

LITERALS = {"null": b"null", "true": b"true", "false": b"false"}

MOST_DEEP = 20
"""Values within values of which one is looked for by what is evident."""

MOST_TRIED = 50_000
"""Ways to choose the members of one object of which some must be of a kind."""

MOST_APART = 4_000
"""Ways to write items that must differ and are told apart; each item multiplies them."""

Nested: TypeAlias = Callable[[Formula, int, str], list[tuple[int, Any]]]


@final
class Sizes:
    """Least numbers of bytes: of the values that a formula is true of, and of the rest of an array or object of some shape.

    A value may hold values that the same formula is true of, so the numbers are the least solution of equations:
    ``size(f) = min`` over what may be written of ``1 + ... + size(g)``. They are found by iteration from :data:`NEVER` down, over
    the equations that a question leads to, each again once one that it asks for came down, and then kept (Knuth 1977, "A
    generalization of Dijkstra's algorithm").

    Parameters
    ----------
    kinds
        The truth sets of formulas, kind by kind.
    nested
        Function of the sizes and values of so many arrays and objects that a formula is true of, the smallest first. It is
        told where the schema asks that they differ.
    layout
        The blanks between the tokens of values.
    ascii
        True if strings are spelled in ASCII alone.
    """

    def __init__(self, kinds: Kinds, nested: Nested, layout: Spacing, *, ascii: bool = False) -> None:
        self._kinds, self._nested, self._layout, self._ascii = kinds, nested, layout, ascii
        self._known: dict[Hashable, int] = {}
        self._evident: dict[Formula, bool] = {}
        self._depth = 0
        self._open: dict[Hashable, int] | None = None
        self._equations: dict[Hashable, Callable[[], int]] = {}
        # By the identity of who asks: hashing thousands of names takes long.
        self._askers: dict[Hashable, dict[int, Hashable]] = {}
        self._new: list[Hashable] = []
        self._waiting: dict[Hashable, None] = {}
        self._asking: Hashable = None

    def of(self, formula: Formula) -> int:
        """Return the size of the smallest value; :data:`NEVER` where there is none."""
        return self._find(formula, lambda: self._value(formula))

    def possible(self, formula: Formula) -> bool:
        """Return True if there is a value: evidently, or else by its size."""
        return self.is_evident(formula) or self.of(formula) < NEVER

    def possible_text(self, strings: StringSet) -> bool:
        """Return True if there is a string, and one that is not longer than any text."""
        return not strings.is_empty and (strings.lengths is None or self.of_text(strings) < NEVER)

    def possible_array(self, shape: ArrayShape) -> bool:
        """Return True if an array may be of a shape."""
        return self._is_evident_array(shape) or self.of_array(shape, BEGUN) < NEVER

    def possible_object(self, shape: ObjectShape, ahead: tuple[str, ...], taken: frozenset[str]) -> bool:
        """Return True if the rest of an object may be of a shape; see :meth:`of_object`."""
        return (self._is_evident_object(shape) and shape.required.issubset(ahead)) or self.of_object(
            shape, ahead, taken, BEGUN
        ) < NEVER

    def is_evident(self, formula: Formula) -> bool:
        """Return True if there evidently is a value: a scalar, or an array or object all of whose parts evidently are."""
        if formula not in self._evident and self._depth < MOST_DEEP:
            self._evident[formula] = False  # while it is looked at: a value within itself is no evidence
            self._depth, kinds = self._depth + 1, self._kinds
            try:
                self._evident[formula] = (
                    not kinds.kinds_of(formula).isdisjoint(LITERALS)
                    or self.possible_text(kinds.strings(formula))
                    or any(map(self._is_evident_array, kinds.arrays(formula)))
                    or any(map(self._is_evident_object, kinds.objects(formula)))
                    or kinds.has_number(formula)
                )
            finally:
                self._depth -= 1
        return self._evident.get(formula, False)

    def _is_evident_array(self, shape: ArrayShape) -> bool:
        plain = not shape.counted and not shape.unique and (shape.most is None or shape.least <= shape.most)
        places = range(min(shape.least, len(shape.first) + 1))
        return shape.closed or (plain and all(self.is_evident(shape.item(place)) for place in places))

    def _is_evident_object(self, shape: ObjectShape) -> bool:
        count = len(shape.required)
        plain = not shape.some and shape.least <= count and (shape.most is None or count <= shape.most)
        return plain and all(
            self.of_name(name) < NEVER and self.is_evident(shape.value(name)) for name in shape.required
        )

    def of_array(self, shape: ArrayShape, gaps: Gaps, *, seen: Seen = NOTHING, rank: int = 0) -> int:
        """Return the size of the least rest of an array, its end included; ``seen`` are its items so far, where they must differ.

        Of values of which there are infinitely many, at least ``rank`` are free; where this is 0, as many as items must come.
        The size is that of so many, which is enough whichever ones were taken before.
        """
        seen = seen if shape.unique else NOTHING
        rank = max(rank, shape.needed) if shape.unique else 0
        return self._find((shape, gaps, seen, rank), lambda: self._array(shape, gaps, seen, rank))

    def of_rest(
        self,
        shape: ArrayShape,
        item: Formula,
        left: ArrayShape,
        seen: Seen,
        value: str | None = None,
        gaps: Gaps = BEGUN,
    ) -> int:
        """Return an upper bound of the size of the rest of an array after one more item, where its items must differ.

        ``item`` and ``left`` are one of the steps of the shape, ``seen`` the items before it, and ``value`` is the
        canonical text of the item, if it is one of :meth:`contested`.
        """
        if left.closed:
            return 1
        if not shape.unique:
            return self.of_array(left, gaps)
        if left.alike is item:
            # Of so many different values, those that are left are no greater than all but the least.
            sizes = self._smallest_sizes(shape, both(item, seen.unlike), left.least + 1)
            return min(NEVER, sum(sizes[1:]) + gaps.of(left.least) + 1) if len(sizes) > left.least else NEVER
        return self.of_array(left, gaps, seen=(seen if value is None else seen.with_all([value])), rank=left.needed + 1)

    def contested(self, shape: ArrayShape, seen: Seen, *, onward: bool = False) -> set[str]:
        """Return the canonical texts of the values that make a difference to the size of the rest if they are the next item.

        With ``onward`` only for items without which something is missing.
        """
        found: set[str] = set()
        if shape.unique:
            for item, left in shape.steps(onward=onward):
                if not left.closed and left.alike is not item:
                    found |= self._contested(left, seen)
        return found

    @staticmethod
    def regions(values: Iterable[str], seen: Seen | None) -> list[tuple[Formula, str | None]]:
        """Return formulas that tell contested values apart, each with its value, and all others that were not ``seen``."""
        others = TRUE if seen is None else seen.with_all(values).unlike
        return [*((Seen(frozenset([value])).like, value) for value in sorted(values)), (others, None)]

    def _contested(self, shape: ArrayShape, seen: Seen) -> set[str]:
        """Return the values that are not to be taken from the rest of an array."""
        needed = shape.needed
        if self._open is not None and len(self._open) > MOST_APART and self._kinds.compiling:
            raise UnsupportedError(
                f"Let fewer items come beside {shape.unique} of the JSON schema, where prefixItems or contains tells them apart. "
                f"More than {MOST_APART:,} ways to write them were tried."
            )
        found: set[str] = set()
        shapes, asked = [shape], dict[Formula, None]()
        for _ in range(needed):
            ways = [way for one in shapes for way in one.steps()]
            asked.update(dict.fromkeys(both(item, seen.unlike) for item, _ in ways))
            shapes = list(dict.fromkeys(left for _, left in ways if not left.closed))
        for item in asked:
            if not self._is_rich(item):
                found.update(canonical(value) for _, value in self._smallest(shape, item, needed, nested=True))
        return found

    def _smallest_sizes(self, shape: ArrayShape, formula: Formula, count: int) -> list[int]:
        """Return the sizes of so many different values, or of all if these are fewer: of the smallest of some part of the values.

        That part is always the same for what is left of them when single values are taken out.
        """
        if count == 1:
            return [size] if (size := self.of(formula)) < NEVER else []
        return [size for size, _ in self._smallest(shape, formula, count, nested=not self._is_rich(formula))]

    def _is_rich(self, formula: Formula) -> bool:
        """Return True if there are infinitely many strings or numbers."""
        strings = self._kinds.strings(formula)
        if not strings.is_empty and strings.longest is None:
            return True
        return self._kinds.spellings(formula).is_infinite

    def _smallest(self, shape: ArrayShape, formula: Formula, count: int, *, nested: bool) -> list[tuple[int, Any]]:
        """Return the sizes and values of the smallest different items; with arrays and objects where these are ``nested``."""
        found = [
            (len(text), value_of(text)) for kind, text in LITERALS.items() if kind in self._kinds.kinds_of(formula)
        ]
        numbers = ((len(text), value_of(text)) for text in self._kinds.spellings(formula).members())
        strings = ((size + 1, text) for text, size in members(self._kinds.strings(formula), ascii=self._ascii))
        for sized in (numbers, strings):
            values: dict[str, tuple[int, Any]] = {}
            for size, value in sized:
                values.setdefault(canonical(value), (size, value))
                if len(values) == count:
                    break
            found += values.values()
        found.sort(key=lambda one: one[0])
        if nested and (self._kinds.arrays(formula) or self._kinds.objects(formula)):
            found += self._nested(formula, count, shape.unique or "")
            found.sort(key=lambda one: one[0])
        return found[:count]

    def of_object(self, shape: ObjectShape, ahead: tuple[str, ...], taken: frozenset[str], gaps: Gaps) -> int:
        """Return the size of the least rest of an object, its end included.

        The names ``ahead`` are told apart and may come, in their order; ``taken`` are all that are told apart, and those that were
        written: no other member has them. The gaps count blanks behind colons, too.
        """
        return self._find((shape, ahead, taken, gaps), lambda: self._object(shape, ahead, taken, gaps))

    def _find(self, key: Hashable, equation: Callable[[], int]) -> int:
        if key in self._known:
            return self._known[key]
        if self._open is None:
            return self._solved(key, equation)
        if key not in self._open:
            self._open[key] = NEVER
            self._equations[key] = equation
            self._new.append(key)
        self._askers.setdefault(key, {})[id(self._asking)] = self._asking
        return self._open[key]

    def _solved(self, key: Hashable, equation: Callable[[], int]) -> int:
        """Solve the equation, and those that it leads to; what was never looked at comes first, so that none is inside another."""
        self._open, self._equations, self._askers = {key: NEVER}, {key: equation}, {}
        self._new, self._waiting = [key], {}
        try:
            while self._new or self._waiting:
                self._asking = self._new.pop() if self._new else next(iter(self._waiting))
                self._waiting.pop(self._asking, None)
                found = self._equations[self._asking]()
                if found < self._open[self._asking]:
                    self._open[self._asking] = found
                    self._waiting.update(dict.fromkeys(self._askers.get(self._asking, {}).values()))
            self._known.update(self._open)
        finally:
            self._open = None
        return self._known[key]

    def _value(self, formula: Formula) -> int:
        least = min(
            (len(text) for kind, text in LITERALS.items() if kind in self._kinds.kinds_of(formula)), default=NEVER
        )
        if least > 1:
            least = min(least, self._kinds.shortest_number(formula) or NEVER)
        if least > 2:
            least = min(least, 1 + self.of_text(self._kinds.strings(formula)))
        if least > 2:
            for array in self._kinds.arrays(formula):
                least = min(least, 1 + self._layout.before + self.of_array(array, self._layout.gaps(begun=False)))
            for shape in self._kinds.objects(formula):
                names = tuple(dict.fromkeys(shape.names()))
                rest = self.of_object(shape, names, frozenset(names), self._layout.gaps(begun=False, members=True))
                least = min(least, 1 + self._layout.before + rest)
        return least

    def of_text(self, strings: StringSet) -> int:
        """Return the size of the smallest spelling of a string, from after the opening quote on."""
        if strings.is_empty:
            return NEVER
        if strings.values is not None or strings.but:
            return next(members(strings, ascii=self._ascii))[1]
        if strings.automaton is None:
            return strings.shortest + 1
        composed = composed_of(strings, ascii=self._ascii)
        return composed.size(composed.start)

    def of_name(self, name: str) -> int:
        """Return the size of the shortest spelling of a name, quotes included; a lone surrogate has none."""
        if not name.isascii() and any("\ud800" <= character <= "\udfff" for character in name):
            return NEVER
        return spelled_size(name, ascii=self._ascii) + 2

    def _array(self, shape: ArrayShape, gaps: Gaps, seen: Seen, rank: int) -> int:
        if shape.closed:
            return 1
        if not shape.counted and not shape.unique:
            # Items do not depend on each other.
            if shape.most is not None and shape.most < shape.least:
                return NEVER
            more = shape.least - len(shape.first)
            items = sum(map(self.of, shape.first[: shape.least])) + (more * self.of(shape.rest) if more > 0 else 0)
            return min(NEVER, items + gaps.of(shape.least) + 1)
        if shape.unique and shape.alike is not None:
            free = both(shape.alike, seen.unlike)
            if self.of(free) >= NEVER or (shape.most is not None and shape.most < shape.least):
                return NEVER
            sizes = self._smallest_sizes(shape, free, rank if self._is_rich(free) else shape.least)
            sizes = sizes[-shape.least :] if len(sizes) >= shape.least else [NEVER]
            # What is begun next is held to the bound of all, which may be larger than that of the smallest.
            return min(NEVER, max(sizes[0], self.of(free)) + sum(sizes[1:]) + gaps.of(shape.least) + 1)
        regions = self.regions(self.contested(shape, seen, onward=True), seen if shape.unique else None)
        least = NEVER
        for item, left in shape.steps(onward=True):
            for region, value in regions:
                within = both(item, region)
                size = self.of(within)
                if shape.unique and value is None and size < NEVER and self._is_rich(within):
                    size = self._smallest_sizes(shape, within, rank)[-1]
                if size < NEVER:
                    after = seen if value is None else seen.with_all([value])
                    rest = self.of_array(left, gaps.begun, seen=after, rank=rank)
                    least = min(least, gaps.of(1) + size + rest)
        return least

    def _object(self, shape: ObjectShape, ahead: tuple[str, ...], taken: frozenset[str], gaps: Gaps) -> int:
        if not shape.required.issubset(ahead) or (
            shape.most is not None and shape.most < max(shape.least, len(shape.required))
        ):
            return NEVER
        chosen = {name: self._member(shape.value(name), self.of_name(name)) for name in sorted(shape.required)}
        total = sum(one.size for one in chosen.values())
        missing = shape.least - len(chosen)
        if total >= NEVER or not (shape.some or missing > 0):
            return min(NEVER, total + gaps.of(len(chosen)) + 1)
        # Names of which the same is said are alike but for their lengths, so that the shortest are enough.
        alike: dict[Hashable, list[tuple[int, str]]] = {}
        for name in ahead:
            if name not in chosen:
                covered = tuple(one.covers(name) for one in shape.some)
                alike.setdefault((shape.value(name), covered), []).append((self.of_name(name), name))
        enough = len(shape.some) + max(missing, 0)
        others = [nsmallest(enough, names) for names in alike.values()]
        kinds = dict.fromkeys(one.names for one in shape.every + shape.some)
        for cell in told_apart(kinds, bounded=self._kinds.compiling):
            free = islice(members(cell.without(taken), ascii=self._ascii), enough)
            others.append([(size + 1, name) for name, size in free])
        added = [
            (name, member)
            for names in others
            for size, name in names
            if (member := self._member(shape.value(name), size)).size < NEVER
        ]
        added.sort(key=lambda one: one[1].size)
        best, tried = NEVER, 0

        def choose(some: Sequence[Some], chosen: dict[str, _Member], total: int) -> None:
            """Choose the members that are to be as ``some`` say, one by one (branch and bound)."""
            nonlocal best, tried
            tried += 1
            if tried > MOST_TRIED and self._kinds.compiling:
                raise LimitError(
                    "Ask for fewer members of some kind by not, oneOf and if",
                    f"They may be chosen in more than {MOST_TRIED:,} ways",
                )
            least = max(len(chosen), shape.least)
            if total + gaps.of(least) >= best or (shape.most is not None and least > shape.most):
                return
            held = [one for one in some if any(one.held(name, member.value) for name, member in chosen.items())]
            if some := [one for one in some if one not in held]:
                new = ((name, one) for name, one in added if name not in chosen)
                for name, member in (*chosen.items(), *new):
                    if some[0].covers(name):
                        joint = self._member(both(member.value, some[0].value), member.name)
                        before = member.size if name in chosen else 0
                        if joint.size < NEVER:
                            choose(some[1:], {**chosen, name: joint}, total - before + joint.size)
                return
            filling = islice((one.size for name, one in added if name not in chosen), least - len(chosen))
            sizes = list(filling)
            if len(sizes) == least - len(chosen):
                best = min(best, total + sum(sizes) + gaps.of(least) + 1)

        def ways(one: Some) -> int:
            """Count the members, present or possible, that may satisfy ``one``."""
            own = [(name, member.value) for name, member in (*chosen.items(), *added) if one.covers(name)]
            return sum(self.of(both(value, one.value)) < NEVER for _, value in own)

        counts = {one: ways(one) for one in shape.some}
        if all(counts.values()):
            choose(sorted(shape.some, key=lambda one: counts[one]), chosen, total)
        return best

    def _member(self, value: Formula, name: int) -> _Member:
        return _Member(value, name, min(NEVER, name + 1 + self.of(value)))


class _Member(NamedTuple):
    """The formula of a member's value, with the least sizes of its name and of the whole, without a comma."""

    value: Formula
    name: int
    size: int
