"""From a byte automaton to vocabulary classes, in one walk of the vocabulary's trie (mathematics.md, section 2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .automaton import ByteAutomaton
from .partition import EOS, NEVER, Partition
from .transformations import Transformations
from .trie import Trie
from .vocabulary import Vocabulary

FIRST = EOS + 1
"""The number of the first class that spells something."""


class Lift(NamedTuple):
    """What the tokens of a vocabulary do to the states of a byte automaton.

    Attributes
    ----------
    partition
        The vocabulary classes: tokens with the same transformation share one.
    transformations
        Transformation ``g - FIRST`` is that of class ``g``. Classes NEVER and EOS have none: what the end of sequence
        does is the guide's business.
    """

    partition: Partition
    transformations: Transformations


def lift(automaton: ByteAutomaton, vocabulary: Vocabulary) -> Lift:
    """Return the vocabulary classes of ``automaton`` and what each does to its states.

    A token ``b_1 .. b_n`` acts on the states as ``delta(b_n) o .. o delta(b_1)``, with ``delta(b)`` the automaton's
    column of byte ``b``. The walk goes down the byte trie level by level. It carries the transformation of each node,
    composes every pair (transformation of the parent, byte class) that occurs once, numbers equal results alike, and
    never goes below a node that leaves every state dead.
    """
    trie = Trie.of(vocabulary)
    columns = np.ascontiguousarray(automaton.targets.T)
    width = len(columns)
    byte_class = automaton.byte_class.astype(np.int64)
    here = Transformations.identity(len(automaton))
    action = np.zeros(1, dtype=np.int64)  # per node of the level above: its transformation in `here`, -1 if dead
    ends, seen = [], 0
    end_of = np.full(len(trie.parent), -1, dtype=np.int64)
    for above, low, high in zip(trie.levels, trie.levels[1:], trie.levels[2:], strict=False):
        parent = action[trie.parent[low:high] - above]
        live = np.flatnonzero(parent >= 0)
        if not len(live):
            break
        key = parent[live] * width + byte_class[trie.byte[low:high][live]]
        # A table over all keys instead of a sort: there are few transformations and few byte classes.
        occurs = np.zeros(len(here) * width, dtype=bool)
        occurs[key] = True
        keys = np.flatnonzero(occurs)
        here, number_of = here.then(*np.divmod(keys, width), columns)
        number = np.full(len(occurs), -1, dtype=np.int64)
        number[keys] = number_of
        action = np.full(high - low, -1, dtype=np.int64)
        action[live] = number[key]

        final = np.zeros(len(here) + 1, dtype=bool)
        final[action[trie.is_end[low:high]]] = True
        kept = np.flatnonzero(final[:-1])
        place = np.full(len(here) + 1, -1, dtype=np.int64)
        place[kept] = np.arange(seen, seen + len(kept))
        end_of[low:high] = place[action]
        ends.append(here.take(kept))
        seen += len(kept)
    found = Transformations.concatenate([Transformations.identity(1).take(np.zeros(0, np.int64)), *ends])
    found, number_of = found.distinct()
    number = np.append(number_of, -1)[end_of[trie.node_of]]
    return _number_by_first_token(number, found, vocabulary)


def _number_by_first_token(number: NDArray[np.int64], found: Transformations, vocabulary: Vocabulary) -> Lift:
    """Return the classes in the order of their first token ids, so that numbers do not depend on hashes."""
    spelled = np.flatnonzero(number >= 0)[::-1]
    first = np.zeros(len(found), dtype=np.int64)
    first[number[spelled]] = spelled  # the last write wins, and ids descend
    order = np.argsort(first)
    rank = np.empty(len(found) + 1, dtype=np.int32)
    rank[order] = np.arange(FIRST, FIRST + len(found))
    rank[-1] = NEVER
    class_of = rank[number]
    class_of[vocabulary.eos_ids[0]] = EOS
    return Lift(Partition(class_of, FIRST + len(found)), found.take(order))
