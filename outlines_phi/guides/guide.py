"""The interface of every guide: a deterministic automaton over tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

import numpy as np
from numpy.typing import NDArray

from ..automata.byte_machine import ByteMachine
from ..automata.prefix_match import PrefixMatch
from ..automata.stops import StoppedTexts, Thoughts
from ..errors import UnsupportedError
from ..vocabulary.vocabulary import Partition, Vocabulary
from .phrases.banned import BannedPhrases

Match: TypeAlias = PrefixMatch | StoppedTexts  # Of which member a text is that is none itself

DEAD = 0  # The state from which nothing in the language can be reached
DONE = 1  # The state after the end of sequence: one member of the language has been written
FIRST = 2  # The first of the other states
UNREACHABLE = np.iinfo(np.int32).max  # `min_tokens` of a state that cannot reach `DONE`


@final
@dataclass(frozen=True, eq=False)
class Row:
    """One state's transitions, per vocabulary class.

    ``targets``, ``int[G]``, is the next state of each class of ``partition``, :data:`DEAD` where it is not allowed. The end of
    sequence is an ordinary class whose target is :data:`DONE` where the text so far may end.
    """

    partition: Partition
    targets: NDArray[np.integer]

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.partition.nbytes + self.targets.nbytes


class Guide(ABC):
    """A deterministic token automaton, immutable, with integer states (theory.md, section 1.2).

    The language is the set of token sequences that lead from ``start`` to :data:`DONE`, the end of sequence included; those of
    texts that begin with a member may do without.
    A state is a plain ``int``, so a fork is a copy of a number and a rollback is free.
    """

    vocabulary: Vocabulary
    start: int
    open: bool = False
    """True if the length limit is an end, as in free text. ``min_tokens`` is 0 then wherever the text may end."""
    match: Match | Thoughts | None = None
    """The members that what is written begins with, or holds behind a thought; ``None`` where it is a member itself."""
    thoughts: Thoughts | None = None  # The match of a guide whose members stand behind thoughts
    machine: ByteMachine[Any] | None = None
    """The texts byte by byte; ``None`` where they are known token by token alone."""
    blocks: bool = False
    """True if texts have blocks: members of objects, items of arrays, named groups; see :meth:`begins_block`."""
    phrases: BannedPhrases | None = None  # The banned phrases that were kept out of the language; `None` for nothing
    full: bool = False  # True if so many states were met that calls that begin use another guide, :meth:`afresh`

    def text(self, tokens: Iterable[int], *, ended: bool = True) -> bytes:
        """Return the text that ``tokens`` write; where it has not ``ended``, as much of it as is certain."""
        written = self.vocabulary.decode(tokens)
        return self.vocabulary.shown(written if self.match is None else self.match.text(written, ended=ended))

    def member(self, tokens: Iterable[int]) -> bytes:
        """Return the member that ``tokens`` write, begin with, or hold, special tokens as machines step by them."""
        written = self.vocabulary.decode(tokens)
        return written if self.match is None else self.match.member(written)

    def afresh(self) -> Guide:
        """Return a guide of the same texts that has met no state, made as a copy is, of fresh parts; itself unless it is full."""
        if not self.full:
            return self
        make, parts = cast(tuple[Any, Any], self.__reduce__())
        return cast(Guide, make(*(part.afresh() if isinstance(part, Guide | ByteMachine) else part for part in parts)))

    @property
    def ends_by_tokens(self) -> bool:
        """True if other tokens than the end of sequence may be the last one."""
        return self.open or getattr(self.match, "stops", self.match) is not None

    @abstractmethod
    def row(self, state: int) -> Row:
        """Return the transitions of ``state``."""

    @abstractmethod
    def min_tokens(self, state: int) -> int:
        """Return the least number of tokens, end of sequence included, from ``state`` to :data:`DONE`.

        An upper bound will do (grammars and JSON have one) if some token always lowers it.
        """

    def min_tokens_of(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return ``min_tokens`` of every entry of ``states``."""
        distinct, inverse = np.unique(states, return_inverse=True)
        return np.array([self.min_tokens(int(state)) for state in distinct], dtype=np.int64)[inverse]

    def far_from_end(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the distance of each state from the end, to guide a search: ``min_tokens``, unless a guide knows better."""
        return self.min_tokens_of(states)

    def live_classes(self, state: int, remaining: int) -> NDArray[np.bool_]:
        """Return ``bool[G]``: which classes of ``state`` lead to where ``remaining - 1`` tokens are enough for the end."""
        return self.distances_after(state) <= remaining - 1

    def slack(self, state: int) -> int:
        """Return the length limit beyond which a larger one makes nothing more live in ``state``."""
        distances = self.distances_after(state)
        return int(distances[distances < UNREACHABLE].max(initial=int(self.open))) + 1

    def distances_after(self, state: int) -> NDArray[np.int64]:
        """Return ``int64[G]``: ``min_tokens`` of the target of each class of ``state``; :data:`UNREACHABLE` where it is dead."""
        return self.min_tokens_of(self.row(state).targets)

    def shortest_text(self, state: int) -> bytes | None:
        """Return a shortest text from ``state`` to the end, of at most ``min_tokens`` tokens; ``None`` where rows must be asked."""
        return None

    def begins_block(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Return the mask of the live ``tokens`` of ``state`` that introduce the next block: none in a format without blocks.

        A block is introduced by the colon behind its name, the comma before an item, the text before a group.
        """
        return np.zeros(len(tokens), dtype=np.bool_)

    def between_blocks(self, state: int) -> bool:
        """Return True if ``state`` is behind the value of a block and its separator from the next one."""
        return False

    def in_thought(self, state: int) -> bool:
        """Return True if ``state`` is inside of a thought before an answer."""
        return False

    def room(self, state: int) -> int:
        """Return the tokens by which the longest thought from ``state`` and the shortest answer behind it exceed ``min_tokens``."""
        return 0

    def least_budget(self, state: int) -> int:
        """Return the least length limit from ``state``: ``min_tokens``, and room for a thought of the most tokens.

        Bans that reach from a thought into its answer aside, which may make that longer.
        """
        return self.min_tokens(state) + self.room(state)

    def state(self, place: Any) -> int:
        """Return the state of a place of :attr:`machine`."""
        raise UnsupportedError(
            f"Give an output type. Which texts this {type(self).__name__} allows is known token by token."
        )

    def start_after(self, prompt: bytes) -> int:
        """Return the state in which a text after ``prompt`` begins: :attr:`start`, unless what is allowed depends on the prompt."""
        return self.start

    def why_empty(self, prompt: bytes) -> str:
        """Return the message for an empty language after ``prompt``: the reason and the remedy."""
        return "The language is empty: no text of this output type can be written with this vocabulary."

    @abstractmethod
    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``."""

    def fingerprint(self) -> str:
        """Return a name for the states and what they allow: equal for equal guides, in any process.

        Raises :class:`UnsupportedError` where the numbers of the states mean nothing to another guide, as for every guide that does
        not say otherwise.
        """
        raise UnsupportedError(
            f"A {type(self).__name__} has no fingerprint, so what is learned of its states cannot be told from that of other "
            "guides. Use phi='learned', which keeps it with this one, or a guide of a regular language (FSMGuide)."
        )

    def mask(self, state: int) -> NDArray[np.uint32]:
        """Return the bits of the tokens that are allowed in ``state``, whatever the length limit: of token ``v``, bit ``v % 32`` of
        entry ``v // 32``.
        """
        return packed(self.partition_of(state).where(self.live_classes(state, UNREACHABLE - 1)))

    def partition_of(self, state: int) -> Partition:
        """Return the vocabulary classes of ``state``, those of its row."""
        return self.row(state).partition

    def advance(self, state: int, token: int) -> int:
        """Return the state after ``token``, :data:`DEAD` where the token is not allowed."""
        row = self.row(state)
        return int(row.targets[row.partition.class_of[token]])


def packed(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return flags as the bits of words, the lowest bit first."""
    bits = np.zeros(4 * -(-len(allowed) // 32), np.uint8)
    found = np.packbits(allowed, bitorder="little")
    bits[: len(found)] = found
    return bits.view(np.uint32)
