"""Tokens of a vocabulary from the places of a schema's machine: where they end, and which are allowed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from ...numerics.cache import Cache
from .compiled import Compiled, UntoldError
from .interior import Interior
from .machine.containers import Key
from .machine.machine import Machine
from .machine.scalars import Text
from .machine.states import Configuration, Frame, Stack, State
from .token_forest import FullError, TokenForest

MOST_KEPT = 1 << 25
"""Bytes of the interiors of strings of one guide that are kept."""

Ends: TypeAlias = list[tuple[NDArray[np.integer], State | None, Stack]]
"""Nodes of the forest, and the state and the stack at each."""

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
    nodes: NDArray[np.int64]
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
        ends, inside = self._told(lambda compiled: compiled.reached(at, begun)) or self.by_steps(at, begun)
        base, within = None, Ends()
        for interior, here in inside:
            split = interior.split
            if not interior.node and split is not None and not tells_apart(interior.state, stack, counted=True):
                base = interior
            elif split is not None:
                nodes = np.split(split.stays.nodes, split.stays.first[1:-1])
                within += zip(nodes, interior.targets, [here] * len(nodes), strict=False)
            within += ((np.array([node]), state, here) for node, state in interior.ends)
        return self._placed(base, within + ends, stack, begun)

    def _placed(self, base: Interior | None, ends: Ends, stack: Stack, begun: Stack) -> Reached:
        """Number the places in the order of the first texts that lead there, whatever the order of the walk."""
        known = dict[tuple[State | None, Stack], int]()
        numbers = [known.setdefault((state, here), len(known)) for _, state, here in ends]
        nodes = np.concatenate([np.empty(0, np.int64), *(nodes for nodes, _, _ in ends)])
        order = self._forest.order(nodes)
        at = np.repeat(np.array(numbers, dtype=np.int64), [len(nodes) for nodes, _, _ in ends])[order]
        here, first, at = np.unique(at, return_index=True, return_inverse=True)
        ranks = np.argsort(np.argsort(first))
        every = list(known)
        places = [every[number] for number in here[np.argsort(first)].tolist()]
        return Reached(
            base, nodes[order], ranks[at], [(state, *self._settled(one, stack, begun)) for state, one in places]
        )

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

    def by_steps(self, at: Configuration, begun: Stack) -> tuple[Ends, list[tuple[Interior, Stack]]]:
        """Walk from node to node: the reference of the compiled walk."""
        ends, inside, forest, machine = Ends(), list[tuple[Interior, Stack]](), self._forest, self._machine
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
                after += ((child, machine.advance(here, byte)) for byte, child in forest.children(node).items())
            found = [(child, one) for child, one in after if one is not None]
            ends += ((np.array([child]), one.state, one.stack) for child, one in found)
            waiting += found
        return ends, inside

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
