"""Regular expressions as trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

from .code_points import EVERYTHING, CodePoints


@final
@dataclass(frozen=True)
class Chars:
    """One character of a set."""

    points: CodePoints


@final
@dataclass(frozen=True)
class Sequence:
    """One part after the other; ``named`` is a group with a name, of one part."""

    parts: tuple[Node, ...]
    named: bool = False


@final
@dataclass(frozen=True)
class Choice:
    """One of several branches."""

    branches: tuple[Node, ...]


@final
@dataclass(frozen=True)
class Repeat:
    """A part several times; ``most`` is ``None`` where there is no bound. ``lazy`` says nothing of the language."""

    part: Node
    least: int
    most: int | None
    lazy: bool = False


@final
@dataclass(frozen=True)
class Ahead:
    """Look-ahead: the text after it begins with the part, or does not."""

    part: Node
    negated: bool


@final
@dataclass(frozen=True)
class Behind:
    """Look-behind: the text before it ends with the part, or does not."""

    part: Node
    negated: bool


@final
@dataclass(frozen=True)
class First:
    """The part up to its first end: its texts that none of its other texts begins."""

    part: Node


@final
@dataclass(frozen=True)
class Beginning:
    """Nothing comes before."""


@final
@dataclass(frozen=True)
class End:
    """Nothing follows."""


class Leaf:
    """A part that grammars have, and no regular expression."""


@final
@dataclass(frozen=True)
class RuleName(Leaf):
    """A reference to a rule of a grammar; ``at`` is the offset at which it is written, 0 where that is not told."""

    rule: str
    at: int = field(default=0, compare=False)


Node = Chars | Sequence | Choice | Repeat | Ahead | Behind | First | Beginning | End | Leaf

EMPTY = Sequence(())
ANYTHING = Repeat(Chars(EVERYTHING), 0, None)
"""Any string."""


def parts_of(tree: Node) -> Iterator[Node]:
    """Return the parts of a tree, each after the parts inside it."""
    found, waiting = [], [tree]
    while waiting:
        found.append(part := waiting.pop())
        match part:
            case Sequence(inner) | Choice(inner):
                waiting += inner
            case Repeat(inner) | Ahead(inner) | Behind(inner) | First(inner):
                waiting.append(inner)
    return reversed(found)


def rules_of(tree: Node) -> Iterator[RuleName]:
    """Yield the references to rules in a tree, as they are written."""
    return (part for part in parts_of(tree) if isinstance(part, RuleName))


def blocks_of(tree: Node) -> tuple[Node, ...]:
    """Split a concatenation at its named groups: what stands before each and the group, in turn, and the rest; all are sequences.

    Groups inside a repeat, alternatives, or another such group are not seen. Nothing where there are none.
    """
    found: list[list[Node]] = [[]]
    waiting = [tree]
    while waiting:
        match waiting.pop():
            case Sequence(_, named=True) as group:
                found += [[group], []]
            case Sequence(parts):
                waiting += reversed(parts)
            case part:
                found[-1].append(part)
    return tuple(Sequence(tuple(parts)) for parts in found) if len(found) > 1 else ()


def least_lengths(tree: Node) -> dict[int, int]:
    """Return the fewest characters of a match of each part, by the identity of the part."""
    least: dict[int, int] = {}
    for part in parts_of(tree):
        match part:
            case Chars():
                least[id(part)] = 1
            case Sequence(inner):
                least[id(part)] = sum(least[id(one)] for one in inner)
            case Choice(inner):
                least[id(part)] = min(least[id(one)] for one in inner)
            case First(inner):
                least[id(part)] = least[id(inner)]
            case Repeat(inner, times):
                least[id(part)] = times * least[id(inner)]
            case _:
                least[id(part)] = 0
    return least
