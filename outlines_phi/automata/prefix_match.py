"""Longest match at the beginning of a text: which member of a language a text begins with, and when that is settled."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import final

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..regex.patterns import compile_regex
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary
from .automaton import DEAD, UNREACHABLE, ByteAutomaton, Product, joint_classes

SETTLED = 1  # The state of a machine after which the longest member stays what it is, whatever follows


def boundary(pattern: str) -> ByteAutomaton:
    """Return the automaton of the shortest bytes by which it is known that a character is one that ``pattern`` matches.

    Raises :class:`UnsupportedError`: no str, or it matches a text that is not one character; else errors as :func:`compile_regex`.
    """
    if not isinstance(pattern, str):
        raise UnsupportedError(
            f"Give open_at= a regular expression as a str, or None. open_at={pattern!r:.80} was given."
        )
    wanted, character = compile_regex(pattern), compile_regex("(?s:.)")
    if not (wanted - character).is_empty:
        raise UnsupportedError(
            "Give open_at= a regular expression of one character, such as [^A-Za-z]: of what follows a member one character is "
            f"looked at. open_at={pattern!r:.80} matches other texts."
        )
    product = Product.of((wanted, character - wanted), needed=1)
    known = (product.places[:, 0] != DEAD) & (product.places[:, 1] == DEAD)
    return ByteAutomaton(np.where(known[:, None], DEAD, product.targets), product.byte_class, 1, known).trim()


_CONTINUATIONS = bytes(range(0x80, 0xC0))  # The bytes of a character after its first


@final
@dataclass(frozen=True, eq=False)
class PrefixMatch:
    """The longest member of a language that a text begins with: maximal munch, with going back (theory.md, section 1.8).

    ``members``: the language, of whole characters.
    ``after``: the :func:`boundary` that has to follow a member, unless the text ends with it; ``None`` where anything may.
    """

    members: ByteAutomaton
    after: ByteAutomaton | None = None
    open = True  # The length limit ends texts, too

    @cached_property
    def marked(self) -> ByteAutomaton:
        """The members, each with the character that has to follow it, if one has to; not trimmed."""
        if self.after is None:
            return self.members
        members, after = self.members, self.after
        byte_class, first = joint_classes([members.byte_class, after.byte_class])
        left, right = members.byte_class[first], after.byte_class[first]
        # A state is one of `after`, times the members' states, plus one of these. A member begins the character after it; the
        # last state of `after` is its start where that character has ended the one after a shorter member.
        reached, rows = members.targets[:, left], np.append(np.arange(len(after)), after.start)
        ended = np.append(after.accepting, True)
        following = after.targets[rows[:, None, None], right]
        begun = np.where(ended[following], len(after), after.start)
        following = np.where(members.accepting[reached], begun, following)
        targets = (following * len(members) + reached).reshape(-1, len(first)).astype(np.int32)
        start = after.start * len(members) * int(members.accepting[members.start]) + members.start
        return ByteAutomaton(targets, byte_class, int(start), np.repeat(ended, len(members)))

    @cached_property
    def _whole(self) -> NDArray[np.bool_]:
        """``bool[S]``: in which states of :attr:`marked` the text is a member."""
        return np.tile(self.members.accepting, len(self.marked) // len(self.members))

    @cached_property
    def machine(self) -> ByteAutomaton:
        """The automaton of the beginnings of texts: :data:`SETTLED`, or accepting where there is a member if the text ends."""
        marked = self.marked
        live, count = marked.distances != UNREACHABLE, len(marked)
        to = np.where(live[marked.targets], marked.targets, 0)
        final = marked.accepting & ~(to != 0).any(axis=1)
        # States before the first member come first, then the same after one.
        matched = np.where((to == 0) | final[to], SETTLED, to + 2 + count)
        before = np.where(marked.accepting[to], matched, np.where(to == 0, 0, to + 2))
        ends = np.repeat([[0], [SETTLED]], to.shape[1], axis=1)
        start = marked.start + 2 + count * int(marked.accepting[marked.start])
        accepting = np.concatenate([[False, True], self._whole, np.ones(count, dtype=bool)])
        targets = np.concatenate([ends, before, matched]).astype(np.int32)
        return ByteAutomaton(targets, marked.byte_class, int(start), accepting).trim()

    def text(self, written: bytes, *, ended: bool = True) -> bytes:
        """Return the member that ``written`` begins with; where more may come, as much of it as is certain."""
        marked, members = self.marked, self.members
        if ended and members.accepts(written):
            return written
        longest = max(marked.prefixes(written), default=-1)
        if longest < 0:
            return whole_characters(written)
        found = written[:longest]
        return found if self.after is None else found.rstrip(_CONTINUATIONS)[:-1]

    def member(self, written: bytes) -> bytes:
        """See :meth:`text`."""
        return self.text(written)

    def state(self, written: bytes) -> int:
        """Return the state of :attr:`marked` after a text."""
        return self.marked.advance(self.marked.start, written)

    def cuts(self, state: int, vocabulary: Vocabulary) -> NDArray[np.int64]:
        """Return ``int64[V]``: how many bytes of each token are of the member, where it ends a text in a state of :attr:`marked`.

        -1 where the member is one that the text has begun with before, and 0 where it is all of the text before the token.
        """
        marked, trie = self.marked, Trie.of(vocabulary)
        at = np.full(len(trie), state, dtype=np.int32)
        cut, begun, depth = np.full(len(trie), -1), np.zeros(len(trie), dtype=np.int64), np.zeros(len(trie), np.int64)
        for level, (low, high) in enumerate(pairwise(trie.levels[1:].tolist())):
            here, parent, byte = slice(low, high), trie.parent[low:high], trie.byte[low:high]
            at[here] = marked.targets[at[parent], marked.byte_class[byte]]
            depth[here] = level + 1
            begun[here] = np.where(byte & 0xC0 == 0x80, begun[parent], level)  # where the last character begins
            ends = depth[here] if self.after is None else begun[here]
            cut[here] = np.where(marked.accepting[at[here]], ends, cut[parent])
        return np.where(self._whole[at], depth, cut)[trie.node_of]

    def ended(
        self, written: bytes, tokens: Sequence[bytes], cuts: Callable[..., NDArray[np.int64]]
    ) -> Iterator[tuple[bytes, NDArray[np.int64]]]:
        """Yield the members that some tokens end behind ``written``, and the places of the tokens; ``cuts`` keeps their
        :meth:`cuts`.
        """
        found = cuts(self.state(written), self.cuts)
        for cut in (-1, 0):  # most tokens
            if len(places := np.flatnonzero(found == cut)):
                yield self.text(written, ended=False) if cut else whole_characters(written), places
        for place in np.flatnonzero(found > 0).tolist():
            yield written + tokens[place][: found[place]], np.array([place])


def whole_characters(written: bytes) -> bytes:
    """Return the whole characters of a beginning of a text."""
    return written.decode(errors="ignore").encode()
