"""Backward induction with the current distribution in place of every later one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from ..guides.guide import DEAD, DONE, UNREACHABLE
from ..guides.table import Table
from ..numerics.checks import check_counts, check_shares
from ..vocabulary.classes import Partition
from .dp import SETTLED, Reachable, explore
from .estimator import Need, StepPhi, floored

BLOCK = 32  # Steps of the induction between two looks at whether it has settled: a look waits for the device


class Recursion(NamedTuple):
    """The induction from one guide state, ready for the class masses of any row.

    It runs over ``n`` nodes: the explored states, the end of sequence, dead states, and the states beyond the horizon, which
    differ in nothing but their distance from the end and share a node where they have that in common.
    """

    partitions: tuple[Partition, ...]  # The partitions of the explored states, that of the state itself first
    # `int32[E]`: the class of each transition, among the classes of all partitions in turn and one more of mass 1;
    # and where it stands in the `[n, n]` matrix of transitions.
    classes: Tensor
    cells: Tensor
    min_tokens: Tensor  # `int64[n]`: distance of each node from the end
    places: Tensor  # `int64[G]`: the node that each class of the state leads to
    ends: Tensor  # `bool[G]`: the class leads to the end of sequence
    depth: int  # Steps after which values stand for states beyond the explored ones

    @classmethod
    def of(cls, table: Table, state: int, reachable: Reachable, device: torch.device) -> Recursion:
        """Return the induction from ``state``, whose targets are the first states of ``reachable``."""
        guide, rows = table.guide, reachable.rows
        partitions = {id(row.partition): row.partition for row in (guide.row(state), *rows.values())}
        sizes = [partition.size for partition in partitions.values()]
        first_class = dict(zip(partitions, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        node = {DEAD: 0, DONE: 1} | {source: i for i, source in enumerate(rows, start=2)}
        min_tokens = [UNREACHABLE, 0, *(guide.min_tokens(source) for source in rows)]
        resting = [1]  # nodes that keep their value
        beyond: dict[int, int] = {}

        def place(target: int) -> int:
            if target not in node:
                distance = guide.min_tokens(target)
                if distance >= UNREACHABLE:
                    beyond[distance] = 0
                elif distance not in beyond:
                    beyond[distance] = len(min_tokens)
                    resting.append(len(min_tokens))
                    min_tokens.append(distance)
                node[target] = beyond[distance]
            return node[target]

        edges: list[tuple[int, np.ndarray, np.ndarray]] = []
        for source, row in rows.items():
            live = np.flatnonzero(row.targets != DEAD)
            targets, inverse = np.unique(row.targets[live], return_inverse=True)
            found = np.array([place(target) for target in targets.tolist()], dtype=np.int64)[inverse]
            edges.append((node[source], first_class[id(row.partition)] + live, found))
        places = [place(target) for target in guide.row(state).targets.tolist()]
        size = len(min_tokens)
        kept = np.array(resting, dtype=np.int64)
        classes = np.concatenate([*(classes for _, classes, _ in edges), np.full(len(kept), sum(sizes))])
        cells = np.concatenate([*(source * size + found for source, _, found in edges), kept * (size + 1)])
        leads = torch.tensor(places, device=device)
        return cls(
            partitions=tuple(partitions.values()),
            classes=torch.from_numpy(classes.astype(np.int32)).to(device),
            cells=torch.from_numpy(cells.astype(np.int32)).to(device),
            min_tokens=torch.tensor(min_tokens, device=device),
            places=leads,
            ends=leads == node[DONE],
            depth=reachable.depth,
        )

    @property
    def bytes(self) -> int:
        """Memory of the tensors."""
        return sum(x.nbytes for x in (self.classes, self.cells, self.min_tokens, self.places, self.ends))

    def values(self, p: Tensor, remaining: int) -> Tensor:
        """Return ``float64[n, S]``: ``h`` of each node when one token fewer than ``remaining`` may follow, under ``p[n, V]``."""
        rows, size, steps = len(p), len(self.min_tokens), min(self.depth, remaining - 1)
        mass = torch.cat([*(partition.mass(p) for partition in self.partitions), p.new_ones(rows, 1)], -1).double()
        matrix = mass.new_zeros(rows, size * size).index_add_(-1, self.cells, mass.index_select(-1, self.classes))
        matrix = matrix.view(rows, size, size)
        h = (self.min_tokens <= remaining - 1 - steps).double().expand(rows, size)[..., None]
        while steps > 0:
            for _ in range(min(steps, BLOCK)):
                before, h = h, matrix @ h
            steps -= BLOCK
            if steps > 0 and bool(((h - before).abs() <= SETTLED * before).all()):
                break
        return h[..., 0]


@final
@dataclass(frozen=True)
class FrozenDPPhi(StepPhi):
    """``h_t(s) = sum_g P(g) h_{t-1}(target(s, g))`` with the current class masses ``P`` for all later ones; no model call.

    Exact when the distribution does not depend on its context and the horizon is the whole budget. Current logits rate only the
    next slot, so as a proposal without weights it is often *worse* than plain masking. Use its weights.

    Attributes
    ----------
    horizon
        Steps that the induction looks ahead; states beyond it have the value 1 where the end can still be reached. ``None``
        for the whole budget.
    states
        Most guide states that the induction runs over: where more can be reached within the horizon, it looks less far, but
        never less than one step. ``None`` for all of them, which are refused where they are too many, or have no last one as in
        some grammars; the cost of a step grows as its square.
    floor
        ``h`` of a live token is at least this share of the largest among its siblings, so that it is positive wherever ``Phi`` is.
    """

    horizon: int | None = 12
    states: int | None = 128
    floor: float = 1e-3
    name: ClassVar[str] = "dp-frozen"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits"})

    def __post_init__(self) -> None:
        bounds = {"horizon": self.horizon, "states": self.states}
        given = {name: value for name, value in bounds.items() if value is not None}
        check_counts("FrozenDPPhi", ", or None for no bound", **given)
        check_shares("FrozenDPPhi", floor=self.floor)

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """See :meth:`StepPhi.log_h`. One segmented sum, and a product with a small matrix for each step of the horizon.

        Logits do as well as log probabilities.
        """
        recursion = self._recursion(table, state, log_p.device)
        h = recursion.values(log_p.softmax(-1), remaining)
        log_h = h.log().index_select(-1, recursion.places)
        live = (recursion.min_tokens <= remaining - 1).index_select(0, recursion.places)
        return floored(log_h, self.floor, recursion.ends, live)

    def _recursion(self, table: Table, state: int, device: torch.device) -> Recursion:
        def build() -> Recursion:
            first = np.unique(table.guide.row(state).targets).tolist()
            reachable = explore(table.guide, first, depth=self.horizon, states=self.states)
            if self.horizon is not None:
                reachable = reachable._replace(depth=min(reachable.depth, self.horizon))
            return Recursion.of(table, state, reachable, device)

        kind = ("dp-frozen", self.horizon, self.states, device)
        return table.keep(kind, state, build, lambda recursion: recursion.bytes)
