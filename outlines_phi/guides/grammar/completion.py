"""How many tokens are left to the end of a text: the distance to acceptance of a lexer's and a parser's state."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from ..guide import UNREACHABLE
from .lexeme_distances import FAR, Distances, LexemeDistances, then
from .parser import ERROR, Parser
from .spanner import Spanner
from .views import Views

Word: TypeAlias = tuple[int, ...]


class _Profile(NamedTuple):
    """Distances ``base + shapes[shape]``: stacks that differ in what lies deep below differ in the base alone."""

    base: int
    shape: int


_NOWHERE = _Profile(0, 0)
"""No way to the end from anywhere."""


class Below(NamedTuple):
    """The distances after each item of the top of a stack: ``base`` beyond those that ``shapes`` names."""

    base: int
    shapes: tuple[tuple[int, int], ...]


@final
class Completion:
    """The least number of tokens to the end, the end of sequence included, where no token ends more than one lexeme that counts.

    Such a text is a sequence of lexemes, each ended by the token that begins the next. What may begin after a lexeme depends on the
    state of the lexer in which it is complete, and states after which tokens lead to the same are one *context*: few, for what
    matters is whether a letter or a digit would prolong the lexeme. With ``g_T(r, k)`` the least number of tokens from ``r``, a
    view of a state of the lexer or a context, until a lexeme of terminal ``T`` is complete in context ``k``, the distances of a
    nonterminal are the least solution of

    ``D_A(r, k) = min over A -> X_1 .. X_m and k_1, k_2, .. of D_X1(r, k_1) + D_X2(k_1, k_2) + .. + D_Xm(k_{m-1}, k)``,

    the triples of Bar-Hillel, Perles and Shamir (1961) with the weights of Knuth (1977). A stack ``s`` of an LR parser is completed
    by an item of its top state, all of which are valid for it (Knuth 1965): for ``A -> a . b``, by what ``b`` derives, and then by
    what completes the stack in which ``A`` stands in the place of ``a``:

    ``W_s(r) = min over A -> a . b in top(s) and k of D_b(r, k) + W_goto(s without a, A)(k)``.

    So a distance is finite if and only if bytes complete a text, where each byte is a token: it knows which lexemes cannot stand
    side by side, and leaves no dead end in a grammar without separators. It is the least of all where no token reaches over two
    ends of lexemes, and else an upper bound that some token always lowers.

    Parameters
    ----------
    spanner
        What tokens do to the states of the lexer.
    parser
        The parser.
    """

    def __init__(self, spanner: Spanner, parser: Parser) -> None:
        self._parser, self._rules = parser, parser.tables.rules
        self._views = Views.of(spanner)
        self._states = len(self._views.emitted)
        lexemes = LexemeDistances.of(self._views)
        self._of_symbol = {symbol: lexemes.distances(symbol) for symbol in range(self._rules.terminals)}
        for symbol in self._rules.by_head:
            self._of_symbol[symbol] = np.full_like(self._of_symbol[0], FAR)
        # What follows the first symbol of a body depends on contexts alone, so these are solved by themselves first.
        for rows in (slice(self._states, None), slice(None)):
            self._solve(rows)
        self._shapes = np.full((1, len(lexemes.end)), FAR, dtype=np.int32)
        self._number_of_shape: dict[bytes, int] = {self._shapes[0].tobytes(): 0}
        self._end = self._profile(lexemes.end)
        self._before: dict[tuple[Word, int], _Profile] = {}
        self._least: dict[frozenset[_Profile], _Profile] = {}
        self._of_stack: dict[int, _Profile] = {}
        self._of_below: dict[int, Below] = {}
        self._of_configuration = np.array([_NOWHERE], dtype=np.int64)

    def distances(self, configurations: NDArray[np.integer], lexemes: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return ``int64[N]``: the distance of each pair of a configuration and a state of the lexer, UNREACHABLE for none."""
        found = self._along_views(configurations, lexemes)
        for state, views in self._views.of_state.items():
            for place in np.flatnonzero(lexemes == state).tolist():
                read = [self._parser.read(int(configurations[place]), self._views.emitted[view]) for view in views]
                later = self._along_views(np.array(read), np.array(views))
                found[place] = min(found[place], later.min())
        return np.where(found < FAR, found, UNREACHABLE)

    def below(self, stack: int) -> Below:
        """Return the distances from what lies below the top of ``stack``: all ways on from above it lead there."""
        if stack not in self._of_below:
            ends = [self._end if reduced is None else self._from(reduced) for _, reduced in self._items(stack)]
            base = min(profile.base for profile in ends)
            self._of_below[stack] = Below(base, tuple((profile.base - base, profile.shape) for profile in ends))
        return self._of_below[stack]

    def _along_views(self, configurations: NDArray[np.integer], views: NDArray[np.integer]) -> NDArray[np.int64]:
        places = configurations - ERROR  # the first place is that of ERROR
        if len(self._of_configuration) <= len(self._parser):
            grown = np.full((2 * len(self._parser) + 1, 2), -1, dtype=np.int64)
            grown[: len(self._of_configuration)] = self._of_configuration
            self._of_configuration = grown
        for place in set(places[self._of_configuration[places, 1] < 0].tolist()):
            of_stacks = (self._from(stack) for stack in self._parser.stacks(place + ERROR))
            self._of_configuration[place] = self._minimum(frozenset(of_stacks))
        base, shape = self._of_configuration[places].T
        return base + self._shapes[shape, views]

    def _solve(self, rows: slice) -> None:
        """Find the least solution for these rows of ``D``, in rounds over the productions whose symbols have changed."""
        changed = set(self._of_symbol)
        while changed:
            before, changed = changed, set()
            for production in self._rules.productions:
                if production.head == self._rules.start or before.isdisjoint(production.body):
                    continue
                known = self._of_symbol[production.head][rows]
                found = np.minimum(known, self._word(production.body, rows))
                if (found < known).any():
                    self._of_symbol[production.head][rows] = found
                    changed.add(production.head)
                    before.add(production.head)

    def _word(self, word: Word, rows: slice = slice(None)) -> Distances:
        """Return ``int32[R, K]``: the distances over what a word of symbols derives."""
        found = self._of_symbol[word[0]][rows]
        for symbol in word[1:]:
            found = then(found, self._of_symbol[symbol][self._states :])
        return found

    def _from(self, stack: int) -> _Profile:
        """Return ``W`` of a stack."""
        if stack not in self._of_stack:
            # Stacks of one height depend on each other, and on shorter ones; those are the last of the list.
            ways = self._unknown(stack)
            found = dict.fromkeys(reversed(ways), _NOWHERE)
            recursive = any(reduced in ways for items in ways.values() for _, reduced in items)
            while True:
                before = dict(found)
                for each in found:
                    found[each] = self._minimum(frozenset(self._along(ways[each], found)))
                if not recursive or found == before:
                    break
            self._of_stack |= found
        return self._of_stack[stack]

    def _along(self, ways: list[tuple[Word, int | None]], found: dict[int, _Profile]) -> Iterator[_Profile]:
        """Yield the distances along each item of a stack."""
        for rest, reduced in ways:
            if reduced is None:
                yield self._derived(rest[:-1], self._end)  # the last symbol is the end
            else:
                yield self._derived(rest, found[reduced] if reduced in found else self._of_stack[reduced])

    def _unknown(self, stack: int) -> dict[int, list[tuple[Word, int | None]]]:
        """Return the stacks that the distances of ``stack`` depend on and that are not known, it among them, with their items."""
        ways: dict[int, list[tuple[Word, int | None]]] = {}
        pending = [stack]
        while pending:
            each = pending.pop()
            if each not in ways and each not in self._of_stack:
                ways[each] = list(self._items(each))
                pending += [reduced for _, reduced in ways[each] if reduced is not None]
        return ways

    def _items(self, stack: int) -> Iterator[tuple[Word, int | None]]:
        """Yield, for each item of the top of a stack, what is left of its body, and the stack after it; ``None``: the end."""
        for production, dot in self._parser.tables.kernels[self._parser.top(stack)]:
            rule = self._rules.productions[production]
            if rule.head == self._rules.start:
                yield rule.body[dot:], None
                continue
            under: Collection[int] = (stack,)
            for _ in range(dot):
                below = [self._parser.below(upper) for upper in under]
                under = below[0] if len(below) == 1 else set(chain.from_iterable(below))
            for lower in under:
                yield rule.body[dot:], self._parser.goto(lower, rule.head)

    def _derived(self, word: Word, after: _Profile) -> _Profile:
        """Return the distances over what ``word`` derives and then as ``after``."""
        if not word or after == _NOWHERE:
            return after
        if (word, after.shape) not in self._before:
            distances = then(self._word(word), self._shapes[after.shape, self._states :, None])
            self._before[word, after.shape] = self._profile(distances[:, 0])
        base, shape = self._before[word, after.shape]
        return _Profile(base + after.base, shape) if shape else _NOWHERE

    def _minimum(self, profiles: frozenset[_Profile]) -> _Profile:
        profiles -= {_NOWHERE}
        if len(profiles) <= 1:
            return next(iter(profiles), _NOWHERE)
        least = min(profile.base for profile in profiles)
        relative = frozenset(_Profile(base - least, shape) for base, shape in profiles)
        if relative not in self._least:
            self._least[relative] = self._profile(
                np.minimum.reduce([base + self._shapes[shape] for base, shape in relative])
            )
        base, shape = self._least[relative]
        return _Profile(base + least, shape)

    def _profile(self, distances: Distances) -> _Profile:
        """Return ``distances``, their shape numbered."""
        base = int(distances.min())
        if base >= FAR:
            return _NOWHERE
        shape = np.where(distances < FAR, distances - base, FAR).astype(np.int32)
        number = self._number_of_shape.setdefault(shape.tobytes(), len(self._shapes))
        if number == len(self._shapes):
            self._shapes = np.concatenate([self._shapes, shape[None]])
        return _Profile(base, number)
