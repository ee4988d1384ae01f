"""The least number of bytes of a value that a formula is true of."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import combinations, islice
from typing import final

from ...errors import UnsupportedError
from .composed import Composed
from .formula import Formula, both
from .kinds import Kinds
from .quoting import members, spelled_size
from .shapes import ArrayShape, ObjectShape, Some
from .strings import StringSet

NEVER = 1 << 40
"""The size of what there is none of."""

LITERALS = {"null": b"null", "true": b"true", "false": b"false"}

FRESH = 64
"""Names of one kind that are tried where members have to be added."""

MOST_NAMES = 10_000
"""The most members that are added."""

MOST_JOINED = 4
"""Up to how many members that are asked for may be one."""


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
        What formulas say of each kind of values.
    ascii
        Whether strings are spelled in ASCII alone.
    """

    def __init__(self, kinds: Kinds, *, ascii: bool = False) -> None:
        self._kinds, self._ascii = kinds, ascii
        self._known: dict[Hashable, int] = {}
        self._open: dict[Hashable, int] | None = None
        self._equations: dict[Hashable, Callable[[], int]] = {}
        self._askers: dict[Hashable, dict[Hashable, None]] = {}
        self._new: list[Hashable] = []
        self._waiting: dict[Hashable, None] = {}
        self._asking: Hashable = None
        self._allowed: dict[Hashable, tuple[StringSet, ...]] = {}

    def of(self, formula: Formula) -> int:
        """Return the size of the smallest value; :data:`NEVER` where there is none."""
        return self._find(formula, lambda: self._value(formula))

    def of_array(self, shape: ArrayShape, *, begun: bool) -> int:
        """Return the size of the least rest of an array, its end included; ``begun`` says whether an item is there already."""
        return self._find((shape, begun), lambda: self._array(shape, begun))

    def of_object(self, shape: ObjectShape, ahead: tuple[str, ...], taken: frozenset[str], *, begun: bool) -> int:
        """Return the size of the least rest of an object, its end included.

        Parameters
        ----------
        shape
            What is asked of it.
        ahead
            Names that are told apart and may come, in their order.
        taken
            All names that are told apart, and those that were written: no other member has them.
        begun
            Whether a member is there already.
        """
        return self._find((shape, ahead, taken, begun), lambda: self._object(shape, ahead, taken, begun))

    def _find(self, key: Hashable, equation: Callable[[], int]) -> int:
        if key in self._known:
            return self._known[key]
        if self._open is None:
            return self._solved(key, equation)
        if key not in self._open:
            self._open[key] = NEVER
            self._equations[key] = equation
            self._new.append(key)
        self._askers.setdefault(key, {})[self._asking] = None
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
                    self._waiting.update(self._askers.get(self._asking, {}))
            self._known.update(self._open)
        finally:
            self._open = None
        return self._known[key]

    def _value(self, formula: Formula) -> int:
        least = min((len(text) for kind, text in LITERALS.items() if self._kinds.literal(kind, formula)), default=NEVER)
        if least > 1 and not all(self._kinds.numbers(formula, plain=plain).is_empty for plain in (True, False)):
            spellings = self._kinds.spellings(formula)
            if not spellings.is_empty:
                least = min(least, int(spellings.distances[spellings.start]))
        if least > 2:
            least = min(least, 1 + self.of_text(self._kinds.strings(formula)))
        if least > 2:
            for array in self._kinds.arrays(formula):
                least = min(least, 1 + self.of_array(array, begun=False))
            for shape in self._kinds.objects(formula):
                names = tuple(dict.fromkeys(shape.names()))
                least = min(least, 1 + self.of_object(shape, names, frozenset(names), begun=False))
        return least

    def of_text(self, strings: StringSet) -> int:
        """Return the size of the smallest spelling of a string, from after the opening quote on."""
        if strings.is_empty:
            return NEVER
        if strings.lengths is not None:
            return strings.shortest + 1
        if strings.values is not None:
            return next(members(strings, ascii=self._ascii))[1]
        composed = Composed.of(strings, ascii=self._ascii)
        return composed.size(composed.start)

    def of_name(self, name: str) -> int:
        """Return the size of the shortest spelling of a name, quotes included; a lone surrogate has none."""
        if any("\ud800" <= character <= "\udfff" for character in name):
            return NEVER
        return spelled_size(name, ascii=self._ascii) + 2

    def _array(self, shape: ArrayShape, begun: bool) -> int:
        if shape.closed:
            return 1
        if not shape.counted:
            # Items do not depend on each other.
            if shape.most is not None and shape.most < shape.least:
                return NEVER
            first = shape.first[: shape.least]
            items = sum(map(self.of, first)) + (shape.least - len(first)) * (
                self.of(shape.rest) if shape.least > len(first) else 0
            )
            return min(NEVER, items + shape.least - (not begun) + 1)
        return min(
            (
                begun + size + self.of_array(after, begun=True)
                for item, after in shape.steps()
                if (size := self.of(item)) < NEVER
            ),
            default=NEVER,
        )

    def _object(self, shape: ObjectShape, ahead: tuple[str, ...], taken: frozenset[str], begun: bool) -> int:
        least = self._object_of_each(shape, ahead, taken, begun)
        if len(shape.some) <= MOST_JOINED:
            # One member may be as two of them say.
            for one, other in combinations(shape.some, 2):
                joint = Some(one.but | other.but, one.names & other.names, both(one.value, other.value))
                others = tuple(each for each in shape.some if each not in (one, other))
                joined = replace(shape, some=(*others, joint))
                least = min(least, self.of_object(joined, ahead, taken, begun=begun))
        return least

    def _object_of_each(self, shape: ObjectShape, ahead: tuple[str, ...], taken: frozenset[str], begun: bool) -> int:
        if not shape.required.issubset(ahead) or (
            shape.most is not None and shape.most < max(shape.least, len(shape.required))
        ):
            return NEVER
        chosen = {name: shape.value(name) for name in shape.required}
        fresh = set(taken)
        total = 0
        for one in shape.some:
            total += self._add(shape, one, chosen, ahead, fresh)
        total += sum(self.of_name(name) + 1 + self.of(value) for name, value in chosen.items())
        members = len(chosen) + len(fresh) - len(taken)
        if shape.least - members > MOST_NAMES:
            raise UnsupportedError(
                f"Ask for at most {MOST_NAMES:,} members of an object. The JSON schema asks for {shape.least:,}."
            )
        if members < shape.least:
            sizes = sorted(
                (size for size in self._optional(shape, ahead, chosen, fresh, shape.least - members)),
            )[: shape.least - members]
            total += sum(sizes) if len(sizes) == shape.least - members else NEVER
            members = shape.least
        if shape.most is not None and members > shape.most:
            return NEVER
        return min(NEVER, total + members - (members > 0 and not begun) + 1)

    def _add(
        self, shape: ObjectShape, one: Some, chosen: dict[str, Formula], ahead: Iterable[str], fresh: set[str]
    ) -> int:
        """Choose the member that is to be as ``one`` says; return its size if it has a name of its own."""
        options: list[tuple[int, str, Formula | None]] = []
        for name in ahead:
            if one.covers(name):
                value = both(chosen.get(name, shape.value(name)), one.value)
                before = self.of(chosen[name]) if name in chosen else -self.of_name(name) - 1
                options.append((self.of(value) - before, name, value))
        best = min((option[0] for option in options), default=NEVER)
        for name, size in islice(self._fresh(one.but, one.names & self._names_of(shape)[0], fresh), FRESH):
            if size + 2 > best:
                break  # with longer names nothing is shorter
            total = size + 1 + self.of(both(shape.value(name), one.value))
            best = min(best, total)
            options.append((total, name, None))
        options = [option for option in options if option[0] < NEVER // 2]
        if not options:
            return NEVER
        size, name, chosen_value = min(options, key=lambda option: option[:2])
        if chosen_value is None:
            fresh.add(name)
            return size
        chosen[name] = chosen_value
        return 0

    def _optional(
        self, shape: ObjectShape, ahead: Iterable[str], chosen: dict[str, Formula], fresh: set[str], needed: int
    ) -> Iterator[int]:
        """Yield the sizes of members that may be added."""
        for name in ahead:
            if name not in chosen and (value := self.of(shape.value(name))) < NEVER:
                yield self.of_name(name) + 1 + value
        seen = set(fresh)
        for names in self._names_of(shape):
            for name, size in islice(self._fresh(frozenset(seen), names, ()), needed + FRESH):
                seen.add(name)
                if (value := self.of(shape.value(name))) < NEVER:
                    yield size + 1 + value

    def _names_of(self, shape: ObjectShape) -> tuple[StringSet, ...]:
        """Return sets of the names that members may have, but for those that are told apart: all, and by what their values are."""
        never = tuple(self.of(one.value) >= NEVER for one in shape.every)
        key = shape.every, never
        if key not in self._allowed:
            allowed = StringSet.all()
            for one, is_never in zip(shape.every, never, strict=True):
                if is_never:
                    allowed &= ~one.names
            others = [one.names for one, is_never in zip(shape.every, never, strict=True) if not is_never]
            kinds = [allowed, *(kind for names in others for kind in (names & allowed, ~names & allowed))]
            self._allowed[key] = tuple(dict.fromkeys(kinds))
        return self._allowed[key]

    def _fresh(self, but: frozenset[str], names: StringSet, without: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Yield names of a kind that were not written yet, the shortest first, with the sizes of their spellings."""
        seen = set(without) | but
        for name, size in members(names, ascii=self._ascii):
            if name not in seen:
                seen.add(name)
                yield name, size + 1
