"""One byte automaton of the lexemes of all terminals: the product of theirs, with priorities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from ...automata.automaton import DEAD, UNREACHABLE, ByteAutomaton, Product, distances
from ...errors import EmptyLanguageError, GrammarError, UnsupportedError
from ...format_limits import current_limits
from ...regex.code_automaton import equivalent
from ...regex.patterns import compile_lexeme
from ...regex.syntax_tree import DIALECTS
from .grammar import Production, Terminal, followers

NOTHING = -1  # No terminal


@final
@dataclass(frozen=True, eq=False)
class LexemeAutomaton:
    """The least automaton that tells which terminal a byte string is a lexeme of, and whether it begins one.

    ``targets``, ``int32[S, C]``, is the next state, row 0 dead; ``byte_class``, ``uint8[256]``, the column of each byte; ``start``
    is not accepting; ``label``, ``int32[S]``, is the terminal of each accepting state, :data:`NOTHING` elsewhere.
    """

    targets: NDArray[np.int32]
    byte_class: NDArray[np.uint8]
    start: int
    label: NDArray[np.int32]

    @classmethod
    def of(cls, terminals: Sequence[Terminal]) -> LexemeAutomaton:
        """Return the automaton of the lexemes of ``terminals``.

        Where several match a byte string, it is a lexeme of the one with the highest priority, of a literal if two of them tie, of
        the one that is of all of them if there is such a one. Raises :class:`GrammarError` where a terminal matches nothing or the
        empty text, or two match the same text and neither comes first.
        """
        joined, matched = joint_of(terminals)
        targets, byte_class = joined.targets, joined.byte_class
        label, first = candidates(terminals, matched)
        # Which of two ignored terminals it is does not matter.
        tied = (first.sum(axis=1) > 1) & ~(first <= [terminal.ignored for terminal in terminals]).all(axis=1)
        if tied.any():
            text = ByteAutomaton(targets, byte_class, 1, tied).shortest()
            state = ByteAutomaton(targets, byte_class, 1, tied).advance(1, text)
            raise GrammarError(_tie([terminals[t] for t in np.flatnonzero(first[state])], text))
        block = equivalent(targets, label - NOTHING)
        _, kept = np.unique(block, return_index=True)
        return cls(block[targets[kept]], byte_class, int(block[1]), label[kept])

    def __len__(self) -> int:
        return len(self.targets)

    @cached_property
    def accepting(self) -> NDArray[np.bool_]:
        """``bool[S]``: where a lexeme is complete."""
        return self.label != NOTHING

    @cached_property
    def reaches(self) -> NDArray[np.bool_]:
        """``bool[S, T]``: the terminals that a lexeme so begun may still be of, the one that it already is among them."""
        source, column = np.nonzero(self.targets)
        target = self.targets[source, column]
        found = np.zeros((len(self), int(self.label.max()) + 1), dtype=bool)
        for terminal in range(found.shape[1]):
            goals = np.flatnonzero(self.label == terminal)
            found[:, terminal] = distances(source, target, goals, len(self)) != UNREACHABLE
        return found

    def leading_to(self, states: NDArray[np.bool_]) -> ByteAutomaton:
        """Return the automaton of the byte strings that lead to one of ``states``."""
        return ByteAutomaton(self.targets, self.byte_class, self.start, states)


def automaton_of(terminal: Terminal) -> ByteAutomaton:
    """Return the automaton of the lexemes of one terminal.

    Raises :class:`GrammarError` or :class:`UnsupportedError` where it has none, or its pattern cannot be used.
    """
    if terminal.special:
        return ByteAutomaton.of_special(terminal.special)
    try:
        automaton = compile_lexeme(terminal.pattern, DIALECTS[terminal.dialect])
    except EmptyLanguageError as error:
        raise GrammarError(f"the terminal {terminal.name} matches nothing: {error}") from None
    except (GrammarError, UnsupportedError) as error:
        kind = GrammarError if isinstance(error, GrammarError) else UnsupportedError
        raise kind(f"the terminal {terminal.name} cannot be read: {error}") from None
    if automaton.is_empty:
        raise GrammarError(f"the terminal {terminal.name} matches nothing: {terminal.pattern!r:.80}")
    if terminal.committed:
        automaton = automaton.without_empty()
    if automaton.accepting[automaton.start]:
        raise GrammarError(
            f"the terminal {terminal.name} matches the empty text: {terminal.pattern!r:.80}. A lexeme has at least one byte; let "
            "the pattern match at least one, and make the terminal optional in the rules that use it"
        )
    if not terminal.shortest:
        return automaton
    targets = automaton.targets.copy()
    targets[automaton.accepting] = DEAD
    return ByteAutomaton(targets, automaton.byte_class, automaton.start, automaton.accepting).trim()


def joint(automata: Sequence[ByteAutomaton]) -> Product:
    """Return the product of the automata of lexemes."""
    what = "The number of states of the automaton of all terminals"
    return Product.of(automata, lambda states: current_limits().check("states", states, what))


def joint_of(terminals: Sequence[Terminal]) -> tuple[Product, NDArray[np.bool_]]:
    """Return the product of the automata of ``terminals``, and ``bool[S, T]``, which of them match in each state."""
    plain = [t for t, terminal in enumerate(terminals) if not terminal.of]
    found = joint([automaton_of(terminals[t]) for t in plain])
    matched = np.zeros((len(found.targets), len(terminals)), dtype=bool)
    matched[:, plain] = found.matched
    for t, terminal in enumerate(terminals):
        if terminal.of:
            matched[:, t] = matched[:, terminal.of].all(axis=1)
    return found, matched


def bytes_behind(joined: Product, productions: Sequence[Production]) -> NDArray[np.bool_]:
    """Return ``bool[T, C]``: the byte classes of a product of terminals that may be first behind a lexeme of each."""
    begins = joined.places[joined.targets[1]] != DEAD  # [C, T]
    follow = followers(productions, begins.shape[1])
    return np.asarray(follow.astype(np.float32) @ begins.T.astype(np.float32) > 0)


def candidates(
    terminals: Sequence[Terminal], matched: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the first terminal that comes before all others which match in a state, :data:`NOTHING` where none does, and
    ``bool[S, T]``, all that do.
    """
    rank = [(2 * each.priority + each.literal) * (len(terminals) + 1) + len(each.of) for each in terminals]
    highest = np.where(matched, rank, min(rank) - 1).max(axis=1)
    first = matched & (rank == highest[:, None])
    return np.where(first.any(axis=1), first.argmax(axis=1), NOTHING).astype(np.int32), first


def as_prior(terminal: Terminal, priority: int) -> str:
    """Write the advice to give ``terminal`` a priority; one without a name in the grammar is given a name."""
    if terminal.name.isidentifier():
        return f"as in `{terminal.name}.{priority}: ...`"
    return f"and a name to put it on, as in `NAMED.{priority}: {terminal.name}`"


def _tie(both: Sequence[Terminal], text: bytes) -> str:
    ignored = next((terminal.name for terminal in both if terminal.ignored), None)
    names = " and ".join(terminal.name for terminal in both)
    kind = f"{ignored} is ignored, and may stand anywhere" if ignored else "both may stand there"
    return (
        f"Leave texts such as {text.decode(errors='backslashreplace')!r} out of the pattern of all but one of {names}, or give one "
        f"a higher priority, {as_prior(both[0], both[0].priority + 1)}. All of them match it, and {kind}, so it is not decided "
        "which it is."
    )
