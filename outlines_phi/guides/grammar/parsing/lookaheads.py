"""LALR(1) lookaheads: the terminals before which a rule may be reduced (DeRemer and Pennello, 1982)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from .lr0 import LR0Automaton
from .rules import END

Key = TypeVar("Key", bound=Hashable)
Transition = tuple[int, int]  # (state, nonterminal)


def lookaheads(automaton: LR0Automaton) -> list[dict[int, frozenset[int]]]:
    """Return, for each state, by production that is complete in it, the terminals that may follow.

    A transition by a nonterminal ``A`` from state ``p`` is followed by ``Follow(p, A)``, the least sets with

    - ``Read(p, A)``: the terminals that the next state reads, and ``Read(r, C)`` for its transitions by a ``C`` that may be
      empty;
    - ``Follow(p, A) = Read(p, A)`` and ``Follow(p', B)`` wherever ``B -> beta A gamma``, ``gamma`` may be empty, and ``beta``
      leads from ``p'`` to ``p``.

    The lookaheads of ``A -> omega`` in state ``q`` are the union of ``Follow(p, A)`` over the ``p`` from which ``omega``
    leads to ``q``. They are those of the canonical LR(1) parser, merged over the states with the same dotted rules.
    """
    rules, transitions = automaton.rules, automaton.transitions
    nullable = rules.nullable
    bits: dict[Transition, int] = {}
    reads: dict[Transition, list[Transition]] = {}
    includes: dict[Transition, list[Transition]] = {}
    lookback: dict[Transition, list[Transition]] = {}  # (state, production) -> transitions by its head
    for state, row in enumerate(transitions):
        for symbol, target in row.items():
            if symbol < rules.terminals:
                continue
            here = (state, symbol)
            after = transitions[target]
            bits[here] = sum(1 << (terminal - END) for terminal in after if terminal < rules.terminals)
            reads[here] = [(target, empty) for empty in after if empty in nullable]
            for number in rules.by_head[symbol]:
                body = rules.productions[number].body
                # Only the last symbols, behind which all may be empty, include what follows the head.
                tail = len(body)
                while tail and body[tail - 1] in nullable:
                    tail -= 1
                at = state
                for place, passed in enumerate(body):
                    if place >= tail - 1 and passed >= rules.terminals:
                        includes.setdefault((at, passed), []).append(here)
                    at = transitions[at][passed]
                lookback.setdefault((at, number), []).append(here)
    _close(bits, reads)
    _close(bits, includes)
    sets: dict[int, frozenset[int]] = {}
    found: list[dict[int, frozenset[int]]] = []
    for state, complete in enumerate(automaton.complete):
        found.append({})
        for number in complete:
            union = 0
            for transition in lookback.get((state, number), ()):
                union |= bits[transition]
            if union not in sets:
                sets[union] = frozenset(bit + END for bit in range(union.bit_length()) if union >> bit & 1)
            found[state][number] = sets[union]
    return found


def _close(bits: dict[Key, int], needs: Mapping[Key, Iterable[Key]]) -> None:
    """Add to each set of bits those of the sets that it needs, until nothing changes."""
    needed_by: dict[Key, list[Key]] = {}
    for key, others in needs.items():
        for other in others:
            needed_by.setdefault(other, []).append(key)
    pending = list(needed_by)
    while pending:
        other = pending.pop()
        for key in needed_by.get(other, ()):
            union = bits[key] | bits[other]
            if union != bits[key]:
                bits[key] = union
                pending.append(key)
