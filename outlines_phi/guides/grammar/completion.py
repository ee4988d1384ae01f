"""The length of a shortest completion, in tokens: of a lexeme from a lexer's state, of a text with a parser's beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray

from ...automata.byte_machine import closure
from ...format_limits import current_limits
from ..guide import UNREACHABLE
from .lexer import NOTHING, Word
from .parser import ERROR, Parser
from .spanner import Spanner

SILENT = -2  # The end of the text completes nothing that counts


class LookaheadStates(NamedTuple):
    """The states of a lexer, and beside each that holds terminals back the guesses that the longer lexeme fails.

    A *guess* about a state takes some terminals as emitted before they are; there may be several, for the longer lexeme may fail in
    several ways, one behind the other. What is emitted along a path of guesses is what the lexer emits along it, so each lexeme
    that ends is one step, however late the lexer tells. States have the first numbers, in their order, and guess nothing.
    """

    emitted: tuple[Word, ...]  # for each number what it takes as emitted beyond what is
    of_state: dict[int, tuple[int, ...]]  # the guesses about the states that hold terminals back
    # ``int32[E]``: steps on single tokens, with the one terminal that they emit or :data:`NOTHING`.
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    terminal: NDArray[np.int32]
    # ``int32[X]``: the terminal of the lexeme that is pending and complete, if it counts; else :data:`NOTHING`.
    complete: NDArray[np.int32]
    # ``int32[X]``: the terminal that the end of the text completes, :data:`SILENT` for none, :data:`NOTHING` where it may not end.
    end: NDArray[np.int32]

    @classmethod
    def of(cls, spanner: Spanner) -> LookaheadStates:
        """Return the guesses about a lexer, and the steps on the tokens of a vocabulary."""
        lexer, edges = spanner.lexer, spanner.edges()
        emitted: list[Word] = [()] * len(lexer)
        state, pending = list(range(len(lexer))), list(range(len(lexer)))
        of_state: dict[int, tuple[int, ...]] = {}
        for holding in np.flatnonzero(lexer.held).tolist():
            taken, at, first = cast("Word", ()), holding, len(emitted)
            while lexer.held[at]:
                taken += lexer.counted(lexer.words[lexer.held[at]])
                at = int(lexer.fallback[at])
                emitted.append(taken)
                state.append(holding)
                pending.append(at)
            of_state[holding] = tuple(range(first, len(emitted)))
        lengths = np.array([len(word) for word in spanner.words])
        only = np.array([word[0] if word else NOTHING for word in spanner.words])
        holds = lexer.held != 0
        plain = ~(holds[edges.source] | holds[edges.target])
        kept = plain & (lengths[edges.word] <= 1)
        steps = [np.stack([edges.source[kept], edges.target[kept], only[edges.word[kept]]], axis=1)]
        for source, target, word in np.stack(edges, axis=1)[~plain].tolist():
            for before in (source, *of_state.get(source, ())):
                for after in (target, *of_state.get(target, ())):
                    total, known = spanner.words[word] + emitted[after], emitted[before]
                    rest = total[len(known) :]
                    if total[: len(known)] == known and len(rest) <= 1:
                        steps.append(np.array([[before, after, rest[0] if rest else NOTHING]]))
        flushed = [lexer.flush(at) for at in state]
        end = [
            NOTHING if word is None else _last(lexer.counted(word), taken)
            for word, taken in zip(flushed, emitted, strict=True)
        ]
        source, target, terminal = np.concatenate(steps).astype(np.int32).T
        label = lexer.label[pending]
        ignored = np.array([each.ignored for each in lexer.terminals])
        complete = np.where((label != NOTHING) & ~ignored[label], label, NOTHING)
        return cls(tuple(emitted), of_state, source, target, terminal, complete, np.array(end, dtype=np.int32))


def _last(word: Word, taken: Word) -> int:
    """Return the rest of ``word`` behind ``taken``: a terminal, :data:`SILENT`; :data:`NOTHING` where it is something else."""
    if word[: len(taken)] != taken or len(word) > len(taken) + 1:
        return NOTHING
    return word[-1] if len(word) > len(taken) else SILENT


_CHUNK = 1 << 24  # The number of entries looked at together: it bounds the memory, not the result


FAR = np.int32(UNREACHABLE // 4)  # No way; a sum of three does not overflow

Distances: TypeAlias = NDArray[np.int32]


class LexemeDistances(NamedTuple):
    """The distances to the ends of lexemes, from rows that are lookahead states and then contexts.

    ``to_end_of``, ``int32[R, J]``, are the tokens to where a lexeme of ``terminal[j]`` is complete in ``context[j]``, one of
    ``contexts``; ``end``, ``int32[R]``, those to the end of the text where nothing more may count. A *context* is all states in
    which a lexeme is complete and after which tokens lead to the same places (grammar-theory.md, section 6.2).
    """

    to_end_of: Distances
    terminal: NDArray[np.int64]
    context: NDArray[np.int64]
    contexts: int
    end: Distances

    @classmethod
    def of(cls, states: LookaheadStates) -> LexemeDistances:
        """Return those of the lookahead states of a lexer."""
        size = len(states.emitted)
        # Where tokens that end just this lexeme lead, from the states in which one is complete.
        ends = (states.terminal != NOTHING) & (states.terminal == states.complete[states.source])
        counts = np.flatnonzero(states.complete != NOTHING)
        landing: list[set[int]] = [set() for _ in range(size)]
        for at, there in zip(states.source[ends].tolist(), states.target[ends].tolist(), strict=True):
            landing[at].add(there)
        number: dict[tuple[frozenset[int], bool], int] = {}
        is_last = (states.end == states.complete).tolist()
        found = (number.setdefault((frozenset(landing[at]), is_last[at]), len(number)) for at in counts.tolist())
        context = np.fromiter(found, np.int64, len(counts))
        groups, group = np.unique(np.stack([states.complete[counts], context]), axis=1, return_inverse=True)
        pairs = size * groups.shape[1]
        current_limits().check(
            "states", pairs // 1000, "The number of pairs of states and ends of lexemes, in thousands,"
        )
        goals = np.zeros((size, groups.shape[1] + 1), dtype=bool)
        goals[counts, group.reshape(-1)] = True
        goals[:, -1] = states.end == SILENT
        silent = states.terminal == NOTHING
        from_states = _levels(states.source[silent], states.target[silent], goals)
        from_contexts = np.full((len(number), goals.shape[1]), FAR, dtype=np.int32)
        for row, (after, _) in zip(from_contexts, number, strict=True):
            row[:] = from_states[list(after)].min(axis=0, initial=FAR)
        rows = np.minimum(np.concatenate([from_states, 1 + from_contexts]), FAR)
        end = np.minimum(rows[:, -1] + 1, FAR)
        end[size:] = [1 if last else FAR for _, last in number]
        return cls(rows[:, :-1], groups[0], groups[1], len(from_contexts), end.astype(np.int32))

    def distances(self, terminal: int) -> Distances:
        """Return ``g_T``, ``int32[R, K]``."""
        found = np.full((len(self.to_end_of), self.contexts), FAR, dtype=np.int32)
        mine = self.terminal == terminal
        found[:, self.context[mine]] = self.to_end_of[:, mine]
        return found


def _levels(source: NDArray[np.integer], target: NDArray[np.integer], goals: NDArray[np.bool_]) -> Distances:
    """Return ``int32[S, J]``: the length of a shortest path from each state to a goal ``j``, breadth-first from the goals."""
    source, target = np.unique(np.stack([source, target]), axis=1)
    starts, first = np.unique(source, return_index=True)
    distances = np.where(goals, np.int32(0), FAR)
    frontier, length = goals, 0
    while frontier.any() and len(starts):
        length += 1
        reached = np.zeros_like(frontier)
        for column in range(0, goals.shape[1], _CHUNK // len(target) + 1):
            here = slice(column, column + _CHUNK // len(target) + 1)
            reached[starts, here] = np.logical_or.reduceat(frontier[target, here], first)
        frontier = reached & (distances == FAR)
        distances[frontier] = length
    return distances


def then(left: Distances, right: Distances) -> Distances:
    """Return ``min over k of left[r, k] + right[k, j]``, the product of the tropical semiring, ``int32[R, J]``."""
    found = np.full((len(left), right.shape[1]), FAR, dtype=np.int32)
    for k in np.flatnonzero((left < FAR).any(axis=0)):
        np.minimum(found, left[:, k, None] + right[k], out=found)
    return found


class _Profile(NamedTuple):
    """Distances ``base + shapes[shape]``: stacks that differ in what lies deep below differ in the base alone."""

    base: int
    shape: int

    def beyond(self, base: int) -> _Profile:
        """Return the distances that are larger by ``base``."""
        return _Profile(self.base + base, self.shape) if self.shape else self


_NOWHERE = _Profile(0, 0)  # No way to the end from anywhere


class StackOffset(NamedTuple):
    """The part of a stack that matters to those on top: with one ``kind`` they have the same distances but for the ``base``."""

    base: int
    kind: int


_Likeness: TypeAlias = tuple[int, tuple[StackOffset, ...]]
"""The top of a stack, and what it stands on, the least base 0: stacks of one likeness are the same but for a constant."""


class _Item(NamedTuple):
    """The rest of the body of a rule on a stack, and the stacks after its reduction, none for the rule of the whole text."""

    rest: Word
    reduced: tuple[int, ...]


class _KnownStacks(NamedTuple):
    """The distances ``W`` of all stacks of one likeness, and their offset for those on top."""

    distances: _Profile
    offset: StackOffset


@final
class Completion:
    """The least number of tokens to the end of the text, where no token ends more than one lexeme (grammar-theory.md, section 6).

    With ``g_T`` of :class:`LexemeDistances`, from a state ``r`` to where a lexeme of ``T`` is complete in context ``k``, the
    distances of nonterminals are the least solution of (Bar-Hillel, Perles, Shamir 1961, with the weights of Knuth 1977)

    ``D_A(r, k) = min over A -> X_1 .. X_m and k_1, k_2, .. of D_X1(r, k_1) + D_X2(k_1, k_2) + .. + D_Xm(k_{m-1}, k)``,

    and a stack ``s`` is completed by an item of its top state, all of which are valid for it (Knuth 1965):

    ``W_s(r) = min over A -> a . b in top(s) and k of D_b(r, k) + W_goto(s without a, A)(k)``.

    Of what lies below the top only the ``W`` that its items lead to matter. Stacks with one top whose ``W`` are the same up to a
    constant are of one *kind*: what is found on top of one is known on top of all. There are few kinds, however deep stacks become.

    A distance is finite if and only if bytes complete a text, where each byte is a token. It is the least of all where no token
    reaches over two ends of lexemes, and else an upper bound that some token always lowers.
    """

    def __init__(self, spanner: Spanner, parser: Parser) -> None:
        self._parser, self._rules = parser, parser.tables.rules
        self._lookahead = LookaheadStates.of(spanner)
        self._states = len(self._lookahead.emitted)
        lexemes = LexemeDistances.of(self._lookahead)
        triples = (
            lexemes.to_end_of.shape[0] * lexemes.contexts * (len(self._rules.terminals) + len(self._rules.by_head))
        )
        current_limits().check(
            "states", triples // 1000, "The number of triples of two states and a symbol, in thousands,"
        )
        self._of_symbol = {symbol: lexemes.distances(symbol) for symbol in range(len(self._rules.terminals))}
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
        self._known: list[_KnownStacks] = []
        self._number_of_likeness: dict[_Likeness, int] = {}
        # Of each stack the number of its likeness, and the constant. Plain tuples, which the garbage collector passes over.
        self._of_stack: dict[int, tuple[int, int]] = {}
        self._kinds: dict[tuple[int, tuple[_Profile, ...]], int] = {}
        self._holds = np.isin(np.arange(self._states), list(self._lookahead.of_state))
        self._of_configuration = np.array([_NOWHERE], dtype=np.int64)

    def distance(self, configuration: int, lexer_state: int) -> int:
        """Return the distance of a configuration and a state of the lexer, UNREACHABLE for none."""
        ways = [(configuration, lexer_state)]
        for state in self._lookahead.of_state.get(lexer_state, ()):
            ways.append((self._parser.read(configuration, self._lookahead.emitted[state]), state))
        profiles = [(self._of(read), state) for read, state in ways]
        found = min(base + int(self._shapes[shape, state]) for (base, shape), state in profiles)
        return found if found < FAR else UNREACHABLE

    def distances(self, configurations: NDArray[np.integer], lexer_states: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return ``int64[N]``: the distance of each pair."""
        places = configurations - ERROR  # the first place is that of ERROR
        if len(self._of_configuration) <= len(self._parser):
            grown = np.full((2 * len(self._parser) + 1, 2), -1, dtype=np.int64)
            grown[: len(self._of_configuration)] = self._of_configuration
            self._of_configuration = grown
        for place in set(places[self._of_configuration[places, 1] < 0].tolist()):
            self._of_configuration[place] = self._of(place + ERROR)
        base, shape = self._of_configuration[places].T
        found = base + self._shapes[shape, lexer_states]
        for place in np.flatnonzero(self._holds[lexer_states]).tolist():
            found[place] = self.distance(int(configurations[place]), int(lexer_states[place]))
        return np.where(found < FAR, found, UNREACHABLE)

    def offset(self, stack: int) -> StackOffset:
        """Return the part of ``stack`` that matters to those on top of it."""
        number, constant = self._like(stack)
        base, kind = self._known[number].offset
        return StackOffset(base + constant, kind)

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

    def _of(self, configuration: int) -> _Profile:
        return self._minimum(self._distances(stack) for stack in self._parser.stacks(configuration))

    def _distances(self, stack: int) -> _Profile:
        """Return ``W`` of a stack."""
        number, constant = self._like(stack)
        return self._known[number].distances.beyond(constant)

    def _like(self, stack: int) -> tuple[int, int]:
        """Return the number of a stack's likeness, of which all is known, and the constant."""
        if stack not in self._of_stack:
            unknown = lambda each: (lower for lower in self._parser.below(each) if lower not in self._of_stack)  # noqa: E731
            for each in sorted(closure([stack], unknown)):  # stacks are numbered from the bottom
                if not self._is_known(each):
                    self._find(each)
        return self._of_stack[stack]

    def _likeness(self, stack: int) -> tuple[_Likeness, int]:
        """Return the likeness of a stack, and the constant; the stacks below are known."""
        under = {self.offset(lower) for lower in self._parser.below(stack)}
        constant = min((offset.base for offset in under), default=0)
        relative = sorted(StackOffset(offset.base - constant, offset.kind) for offset in under)
        return (self._parser.top(stack), tuple(relative)), constant

    def _is_known(self, stack: int) -> bool:
        """Return True if the distances of a stack are known, by one that is like it or by itself."""
        if stack not in self._of_stack:
            likeness, constant = self._likeness(stack)
            if likeness in self._number_of_likeness:
                self._of_stack[stack] = (self._number_of_likeness[likeness], constant)
        return stack in self._of_stack

    def _find(self, stack: int) -> None:
        # Stacks of one height depend on each other, and on shorter ones; those are the last of the list.
        ways = self._unknown(stack)
        found = dict.fromkeys(reversed(ways), _NOWHERE)
        recursive = any(reduced in ways for items in ways.values() for item in items for reduced in item.reduced)
        while True:
            before = dict(found)
            for each in found:
                found[each] = self._minimum(self._derived(item.rest, self._after(item, found)) for item in ways[each])
            if not recursive or found == before:
                break
        for each, distances in found.items():
            likeness, constant = self._likeness(each)
            ends = [self._after(item, found) for item in ways[each]]
            base = min((end.base for end in ends if end != _NOWHERE), default=constant)
            kind = (self._parser.top(each), tuple(end.beyond(-base) for end in ends))
            offset = StackOffset(base - constant, self._kinds.setdefault(kind, len(self._kinds)))
            self._of_stack[each] = (self._number_of_likeness.setdefault(likeness, len(self._known)), constant)
            self._known.append(_KnownStacks(distances.beyond(-constant), offset))

    def _after(self, item: _Item, found: dict[int, _Profile]) -> _Profile:
        """Return the distances after an item, to stacks whose distances are ``found`` so far or known."""
        if not item.reduced:
            return self._end
        return self._minimum(found[each] if each in found else self._distances(each) for each in item.reduced)

    def _unknown(self, stack: int) -> dict[int, list[_Item]]:
        """Return the stacks that the distances of ``stack`` depend on and that are not known, it among them, with their items."""
        ways: dict[int, list[_Item]] = {}
        pending = [stack]
        while pending:
            each = pending.pop()
            if each not in ways and not self._is_known(each):
                ways[each] = list(self._items(each))
                pending += chain.from_iterable(item.reduced for item in ways[each])
        return ways

    def _items(self, stack: int) -> Iterator[_Item]:
        for production, dot in self._parser.tables.kernels[self._parser.top(stack)]:
            rule = self._rules.productions[production]
            if rule.head == self._rules.start:
                yield _Item(rule.body[dot:-1], ())  # the last symbol is the end
                continue
            left = self._parser.descend(stack, dot)
            yield _Item(rule.body[dot:], tuple(self._parser.goto(lower, rule.head) for lower in left))

    def _derived(self, word: Word, after: _Profile) -> _Profile:
        """Return the distances over what ``word`` derives and then as ``after``."""
        if not word or after == _NOWHERE:
            return after
        if (word, after.shape) not in self._before:
            distances = then(self._word(word), self._shapes[after.shape, self._states :, None])
            self._before[word, after.shape] = self._profile(distances[:, 0])
        return self._before[word, after.shape].beyond(after.base)

    def _minimum(self, several: Iterable[_Profile]) -> _Profile:
        profiles = set(several) - {_NOWHERE}
        if len(profiles) <= 1:
            return next(iter(profiles), _NOWHERE)
        least = min(profile.base for profile in profiles)
        relative = frozenset(_Profile(base - least, shape) for base, shape in profiles)
        if relative not in self._least:
            all_of = [base + self._shapes[shape] for base, shape in relative]
            self._least[relative] = self._profile(np.minimum.reduce(all_of))
        return self._least[relative].beyond(least)

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
