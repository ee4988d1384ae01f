"""Drafts along what earlier calls, and earlier rounds of this one, know of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import ClassVar, final

import numpy as np

from ..guides.guide import DEAD, DONE
from ..numerics.cache import Cache
from ..phi.tree.tree import BoundsTree, Node
from .drafter import Draft, Drafter, Drafting, DraftRun, Site

PLACES = 2**11
"""Places that are kept of a prompt; where they are full, nothing new is taken note of."""

PROMPTS = 16
"""Prompts that are kept of a table, those of the latest calls."""

BYTES_KEPT = 400 * PLACES * PROMPTS
"""The memory that these take at most, about."""


@final
@dataclass(frozen=True)
class TreeDrafter(Drafter):
    """Proposes the likeliest path through the token trees of earlier calls, and of this one's earlier rounds.

    At every node the token of the highest ``p(v | y) U(yv)``, whether it has a node of its own or not. Samplers without trees of
    bounds follow the texts that have been written so far, the way that was taken most often. Where nothing is known it proposes
    nothing.
    """

    name: ClassVar[str] = "tree"

    def begin(self, run: DraftRun) -> Drafting:
        return _FollowedPaths(run) if run.trees is None else _KnownPaths(run.trees)


@final
class _KnownPaths(Drafting):
    def __init__(self, trees: Sequence[BoundsTree]) -> None:
        self._trees = trees

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [
            Draft(_path(self._trees[site.row], site.tokens, length))
            for site, length in zip(sites, lengths, strict=True)
        ]


@final
@dataclass(eq=False, slots=True)
class Visited:
    """A prefix, and how often each way on was taken."""

    visits: int = 0  # How often a text that was to be continued had come this way
    below: dict[int, Visited] = field(default_factory=dict)  # The texts that are one token longer


@final
class History:
    """The texts that were written after one prompt."""

    def __init__(self) -> None:
        self._start = Visited()
        self._places = 0

    def take_note(self, tokens: Sequence[int]) -> None:
        """Take note of a text that is to be continued."""
        place = self._start
        for token in tokens:
            if token not in place.below:
                if self._places >= PLACES:
                    return
                place.below[token] = Visited()
                self._places += 1
            place = place.below[token]
            place.visits += 1

    def after(self, tokens: Sequence[int], length: int) -> tuple[int, ...]:
        """Return the way on that was taken most often, of at most ``length`` tokens."""
        place: Visited | None = self._start
        for token in tokens:
            place = None if place is None else place.below.get(token)
        path: list[int] = []
        while place is not None and place.below and len(path) < length:
            # A copy, because a call in another thread may take note meanwhile.
            token, place = max(list(place.below.items()), key=lambda item: item[1].visits)
            path.append(token)
        return tuple(path)


@final
class PromptHistories:
    """The histories of the prompts of the latest calls."""

    def __init__(self) -> None:
        self._written: Cache[tuple[int, ...], History] = Cache(PROMPTS)
        self._lock = Lock()  # a stream of the host's loop runs in a thread of its own, beside other calls

    def written(self, prompt: tuple[int, ...]) -> History:
        """Return the history of ``prompt``."""
        with self._lock:
            return self._written.of(prompt, History)


@final
class _FollowedPaths(Drafting):
    """Proposes the texts that followed the same text before: in this call, and in earlier ones of a table.

    A call with a seed knows nothing of others: what it returns does not depend on them, where drafts beside these are drawn.
    """

    def __init__(self, run: DraftRun) -> None:
        if run.settings.seed is not None:
            self._written = [History() for _ in run.prompts]
            return
        kept = run.table.keep("written", run.table.start, PromptHistories, lambda _: BYTES_KEPT)
        self._written = [kept.written(prompt) for prompt in run.prompts]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        for site in sites:
            self._written[site.row].take_note(site.tokens)
        return [
            Draft(self._written[site.row].after(site.tokens, length))
            for site, length in zip(sites, lengths, strict=True)
        ]


def _path(tree: BoundsTree, tokens: Sequence[int], length: int) -> tuple[int, ...]:
    """Return the likeliest path below the node of ``tokens``."""
    node: Node | None = tree.root
    for token in tokens:
        node = None if node is None else node.children.get(token)
    path: list[int] = []
    while node is not None and node.state not in (DEAD, DONE) and len(path) < length:
        likeliest = _likeliest(node)
        if likeliest is None:
            break
        path.append(likeliest)
        node = node.children.get(likeliest)
    return tuple(path)


def _likeliest(node: Node) -> int | None:
    """Return the likeliest token after an expanded node, ``None`` after others.

    Where the distribution was evicted, the children alone are left.
    """
    children = {child.token: child.p * child.upper for child in node.children.values()} if node.expanded else {}
    token = max(children, key=children.__getitem__, default=None)
    share = 0.0 if token is None else children[token]
    law = node.distribution
    if law is not None and law.free.size:
        free = int(law.free.argmax())
        if float(law.free[free]) * np.exp(law.log_scale) > share:
            return int(law.moves.tokens[free])
    return token if share > 0 else None
