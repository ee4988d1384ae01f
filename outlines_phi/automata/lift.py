"""From a byte automaton to vocabulary classes, in one walk of the vocabulary's trie (theory.md, section 2)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..vocabulary.classes import EOS, NEVER, Partition
from ..vocabulary.trie import Trie
from ..vocabulary.vocabulary import Vocabulary
from .automaton import ByteAutomaton
from .transformations import Compositions, Transformations

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
    compositions = Compositions.of(automaton.targets)
    action = compositions.walk(trie, automaton.byte_class)
    return _classes(action[trie.node_of], compositions.known, vocabulary)


def _classes(number: NDArray[np.int64], known: Transformations, vocabulary: Vocabulary) -> Lift:
    """Return the classes of tokens with these transformations, in the order of their first ids."""
    spelled = np.flatnonzero(number)[::-1]
    first = np.full(len(known) + 1, len(number))
    first[number[spelled]] = spelled  # the last write wins, and ids descend
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(number))]
    class_of_number = np.full(len(known) + 1, NEVER, dtype=np.int32)
    class_of_number[order] = np.arange(FIRST, FIRST + len(order))
    class_of = class_of_number[number]
    class_of[vocabulary.eos_ids[0]] = EOS
    return Lift(Partition(class_of, FIRST + len(order)), known.take(order - 1))
