"""Tokens of a vocabulary from the places of a schema's machine: where they end, and which are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...numerics.cache import Cache
from .compiled import Compiled, Ends, UntoldError
from .interior import Interior
from .machine.containers import Key
from .machine.machine import Machine
from .machine.scalars import Text
from .machine.states import Configuration, Frame, Stack, State
from .token_forest import FullError, TokenForest

MOST_KEPT = 1 << 25
"""Bytes of the interiors of strings of one guide that are kept."""

Found = TypeVar("Found")


class Reached(NamedTuple):
    """The ends of all tokens from a configuration on.

    Attributes
    ----------
    base
        The interior of the string that is being read, where its tokens off the paths of listed texts share classes with others.
    nodes, at
        Nodes of the forest in the order of their texts, and the place in ``places`` where tokens end that spell them.
    places
        States, ``None`` where tokens are not allowed, each with the stack, and whether they are behind the innermost value.
    """

    base: Interior | None
    nodes: NDArray[np.integer]
    at: NDArray[np.int64]
    places: list[tuple[State | None, Stack, bool]]


@final
class Walker:
    """The walk of a vocabulary's trie by a machine: compiled where it tells, else byte by byte from node to node."""

    def __init__(self, machine: Machine, forest: TokenForest) -> None:
        self._machine, self._forest = machine, forest
        self._compiled: Compiled | None = None
        self._forget()

    def mask(self, at: Configuration) -> NDArray[np.uint32] | None:
        """Return the mask of a configuration but for the end of sequence; ``None`` where the compiled walk does not tell."""
        return self._told(lambda compiled: compiled.mask(at))

    def reached(self, at: Configuration) -> Reached:
        """Return the ends of all tokens from a configuration on."""
        stack = at.stack
        # An own copy, so that a stack which the value was popped from, and pushed on again, is another one.
        begun = None if stack is None else Frame(stack.after, stack.below, stack.start)
        found = self._told(lambda compiled: compiled.reached(at, begun)) or self.by_steps(at, begun)
        known: dict[tuple[State | None, Stack], int] = {}

        def numbers(places: Iterable[tuple[State | None, Stack]]) -> NDArray[np.int64]:
            return np.array([known.setdefault(place, len(known)) for place in places], dtype=np.int64)

        base, parts = None, list[tuple[NDArray[np.integer] | list[int], NDArray[np.int64]]]()
        for interior, here in found.inside:
            split = interior.split
            if not interior.node and split is not None and not tells_apart(interior.state, stack, counted=True):
                base = interior
            elif split is not None:
                groups = numbers((state, here) for state in interior.targets)
                parts.append((split.stays.nodes, groups.repeat(split.stays.sizes)))
            if interior.ends:
                parts.append(
                    ([node for node, _ in interior.ends], numbers((state, here) for _, state in interior.ends))
                )
        parts.append((found.nodes, numbers(found.places)[found.at]))
        nodes, places = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        order = self._forest.order(nodes)
        unranked = places[order]
        # Places are numbered in the order of the first texts that lead there, whatever the order of the walk.
        first, ranks, listed = list(dict.fromkeys(unranked.tolist())), np.empty(len(known), np.int64), list(known)
        ranks[first] = np.arange(len(first))
        settled = [(listed[one][0], *self._settled(listed[one][1], stack, begun)) for one in first]
        return Reached(base, nodes[order], ranks[unranked], settled)

    def _settled(self, here: Stack, stack: Stack, begun: Stack) -> tuple[Stack, bool]:
        """Return the stack of the machine for one of a walk, and whether the innermost value was left on the way there."""
        above, below = list[Frame](), here
        while below is not begun and below is not None:
            above.append(below)
            below = below.below
        if below is not begun:
            return here, True
        found = stack
        for frame in reversed(above):
            found = self._machine.push(frame.after, found, frame.start)
        return found, False

    def by_steps(self, at: Configuration, begun: Stack) -> Ends:
        """Walk from node to node: the reference of the compiled walk."""
        inside, reached = list[tuple[Interior, Stack]](), list[tuple[int, Configuration]]()
        forest, machine = self._forest, self._machine
        waiting = [(0, Configuration(at.state, begun, at.text))]
        while waiting:
            node, here = waiting.pop()
            state, stack, _ = here
            after = list[tuple[int, Configuration | None]]()
            if isinstance(state, (Text, Key)):
                interior = self._interior(state, node)
                inside.append((interior, stack))
                for child, edge in interior.exits:
                    keeps = stack is not None and stack.keeps
                    for one in forest.nodes(child).tolist() if keeps else [child]:
                        after.append((one, machine.follow(here, edge, forest.text(one, node) if keeps else b"")))
            else:
                after += ((child, machine.step(here, byte)) for byte, child in forest.children(node).items())
            found = [(child, one) for child, one in after if one is not None]
            reached += found
            waiting += found
        nodes = np.array([node for node, _ in reached], dtype=np.int64)
        return Ends(nodes, np.arange(len(nodes)), [(one.state, one.stack) for _, one in reached], inside)

    def _forget(self) -> None:
        """Begin to keep interiors, which know words of the tables that they were made for."""
        self._interior = partial(Interior.of, self._forest, Cache[tuple[State, int], Interior](MOST_KEPT))

    def _told(self, ask: Callable[[Compiled], Found]) -> Found | None:
        """Ask the compiled walk; return ``None`` where there is none, or it does not tell."""
        for _ in range(2):  # once more where what was kept takes all the room
            tables = self._forest.tables
            if tables is None:
                return None
            try:
                if self._compiled is None or self._compiled.forest is not tables:
                    self._forget()
                    self._compiled = Compiled(tables, self._interior, self._machine.push)
                return ask(self._compiled)
            except UntoldError:
                return None
            except FullError:
                self._compiled = None
                self._forest.forget(tables)
        return None


def tells_apart(state: State | None, stack: Stack, *, counted: bool = False) -> bool:
    """Return True if each token that leads to a state leads to a configuration of its own, since its text is kept.

    Names are ``counted`` in a state that stands for all of any text; or in that of each text, behind which they are.
    """
    keeps = stack is not None and stack.keeps
    return state is not None and (
        keeps or (isinstance(state, Key) and (state.counts if counted else state.text is None))
    )
