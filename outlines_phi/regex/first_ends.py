"""Lazy quantifiers at the end of a lexeme, as languages: ``A R*? S`` is ``A`` and then the texts of ``R*S`` up to their first end.

That is what Python's order of attempts gives where the conditions of :func:`with_first_ends` hold; they are told from automata.
"""

from __future__ import annotations

from dataclasses import replace

from ..errors import UnsupportedError
from .builder import automaton_of
from .code_points import EVERYTHING
from .syntax_tree import (
    ANYTHING,
    EMPTY,
    Ahead,
    Beginning,
    Behind,
    Chars,
    Choice,
    End,
    First,
    Node,
    Repeat,
    Sequence,
    parts_of,
)

_ANY = Chars(EVERYTHING)
_MORE = Sequence((_ANY, ANYTHING))


def with_first_ends(tree: Node, name: str, *, at_end: bool = True) -> Node:
    """Return a tree where what a lazy quantifier begins ends where it first matches; ``at_end``: no more must follow.

    Raises :class:`UnsupportedError` where that may differ from what Python gives: more must follow, or a later attempt may end
    earlier, by the ends of what is repeated, of what stands behind it, or of what stands before it.
    """
    if not any(isinstance(part, Repeat) and part.lazy for part in parts_of(tree)):
        return tree
    match tree:
        case Choice(branches):
            return Choice(tuple(with_first_ends(branch, name, at_end=at_end) for branch in branches))
        case Repeat(part, least, most, lazy) if not lazy or least == most:
            return replace(tree, part=with_first_ends(part, name, at_end=at_end and least <= 1))
        case Sequence() | Repeat():
            parts = _flat(tree)
        case _:
            return tree  # look-around, whose end does not matter
    for place, part in enumerate(parts):
        if isinstance(part, Repeat) and part.lazy and part.least != part.most:
            if not at_end:
                raise _refused(name, "with more behind it and its group")
            before = Sequence(tuple(with_first_ends(one, name, at_end=False) for one in parts[:place]))
            _check(before, part, Sequence(tuple(parts[place + 1 :])), name)
            return Sequence((before, First(Sequence(tuple(parts[place:])))))
    last = len(parts) - 1
    return Sequence(tuple(with_first_ends(one, name, at_end=at_end and n == last) for n, one in enumerate(parts)))


def _flat(tree: Node) -> list[Node]:
    """Return the parts of a sequence, with those of the groups in it."""
    return [part for one in tree.parts for part in _flat(one)] if isinstance(tree, Sequence) else [tree]


def _check(before: Node, lazy: Repeat, behind: Node, name: str) -> None:
    """Refuse a later attempt of Python's that may end earlier: one of three languages has a member then."""
    if any(isinstance(part, (Ahead, End)) for part in parts_of(Sequence((lazy.part, behind)))):
        raise _refused(name, "and looks ahead behind it")
    before = _without_look_ahead(before)
    once, some = lazy.part, Repeat(lazy.part, 0, None)
    more = Repeat(once, 0, None if lazy.most is None else lazy.most - lazy.least)
    ending = First(Sequence((lazy, behind)))
    longer = Behind(Sequence((Beginning(), before)), False)
    for wrong in (
        (before, some, Ahead(Sequence((once, _MORE)), False), once),  # one repetition begins another
        (before, some, Ahead(Sequence((more, behind, _MORE)), False), behind),  # a later repetition ends earlier
        (before, Ahead(Sequence((_MORE, longer, ending, _MORE)), False), ending),  # a longer text before ends earlier
    ):
        if automaton_of(Sequence(wrong), name).accepting.any():
            raise _refused(name, "of which what it repeats, or what stands around it, may end in several places")


def _without_look_ahead(tree: Node) -> Node:
    match tree:
        case Ahead() | End():
            return EMPTY
        case Sequence(parts):
            return Sequence(tuple(map(_without_look_ahead, parts)))
        case Choice(branches):
            return Choice(tuple(map(_without_look_ahead, branches)))
        case Repeat(part):
            return replace(tree, part=_without_look_ahead(part))
    return tree


def _refused(name: str, how: str) -> UnsupportedError:
    return UnsupportedError(
        f"Use a greedy quantifier and exclude what ends it, as in `[^;]*;` for `.*?;`. {name} has a lazy quantifier {how}, so its "
        "lexemes cannot be told from where they first end."
    )
