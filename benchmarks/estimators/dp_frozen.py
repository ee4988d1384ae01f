"""An estimator of one's own: backward induction with the current distribution in place of every later one.

It imports public names alone, and a call takes it as it takes one of the package, ``phi=FrozenDPPhi()``: in every sampler, as
the frontier of ``AutoPhi``, and in a logits processor, because it reads nothing but the guide and the current logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from outlines_phi.guides import Guide, Table
from outlines_phi.phi import StepPhi

DEAD, DONE = 0, 1  # The states of every guide from which nothing can be reached, and after the end of sequence


class Induction(NamedTuple):
    """The induction from one guide state, ready for the class masses of any distribution.

    It runs over ``n`` nodes: dead states, the end, the explored states, and of the states beyond these one for each distance from
    the end, because they differ in nothing else.
    """

    partitions: tuple  # The partitions of the explored states, that of the state itself first
    # `int[E]`: the class of each transition, among the classes of all partitions in turn and one more of mass 1;
    # and where it stands in the `[n, n]` matrix of transitions.
    classes: Tensor
    cells: Tensor
    min_tokens: Tensor  # `int64[n]`: distance of each node from the end
    places: Tensor  # `int64[G]`: the node that each class of the state leads to
    depth: int  # Steps for which every state on the way was explored

    @classmethod
    def of(cls, guide: Guide, state: int, horizon: int, states: int, device: torch.device) -> Induction:
        """Explore the states within ``horizon`` steps of ``state``, the first step and no more than ``states`` beyond it."""
        rows, level, depth = {}, [state], -1
        while level and depth < horizon and (depth < 1 or len(rows) + len(level) <= states):
            rows |= {source: guide.row(source) for source in level}
            depth += 1
            below = np.unique(np.concatenate([rows[source].targets for source in level])).tolist()
            level = [s for s in below if s not in (DEAD, DONE) and s not in rows and math.isfinite(distance(guide, s))]
        depth = depth if level else horizon
        partitions = {id(row.partition): row.partition for row in rows.values()}
        sizes = [partition.size for partition in partitions.values()]
        first_class = dict(zip(partitions, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        node = {DEAD: 0, DONE: 1} | {source: i for i, source in enumerate(rows, start=2)}
        min_tokens = [math.inf, 0, *(distance(guide, source) for source in rows)]
        resting = [1]  # Nodes that keep their value
        beyond = {math.inf: 0}

        def place(target: int) -> int:
            if target not in node:
                left = distance(guide, target)
                if left not in beyond:
                    beyond[left] = len(min_tokens)
                    resting.append(len(min_tokens))
                    min_tokens.append(left)
                node[target] = beyond[left]
            return node[target]

        edges = []
        for source, row in rows.items():
            live = np.flatnonzero(row.targets != DEAD)
            targets = np.array([place(target) for target in row.targets[live].tolist()], dtype=np.int64)
            edges.append((node[source], first_class[id(row.partition)] + live, targets))
        size = len(min_tokens)
        kept = np.array(resting)
        classes = np.concatenate([*(classes for _, classes, _ in edges), np.full(len(kept), sum(sizes))])
        cells = np.concatenate([*(source * size + targets for source, _, targets in edges), kept * (size + 1)])
        return cls(
            tuple(partitions.values()),
            *(torch.from_numpy(array.astype(np.int32)).to(device) for array in (classes, cells)),
            torch.tensor(min_tokens, device=device),
            torch.tensor([place(target) for target in guide.row(state).targets.tolist()], device=device),
            depth,
        )

    def values(self, p: Tensor, remaining: int) -> Tensor:
        """Return ``float64[n, nodes]``: ``h`` of each node with one token fewer than ``remaining`` to write, under ``p[n, V]``."""
        rows, size, steps = len(p), len(self.min_tokens), min(self.depth, remaining - 1)
        mass = torch.cat([*(partition.mass(p) for partition in self.partitions), p.new_ones(rows, 1)], -1).double()
        matrix = mass.new_zeros(rows, size * size).index_add_(-1, self.cells, mass.index_select(-1, self.classes))
        h = (self.min_tokens <= remaining - 1 - steps).double().expand(rows, size)[..., None]
        for _ in range(steps):
            h = matrix.view(rows, size, size) @ h
        return h[..., 0]

    @property
    def bytes(self) -> int:
        """Memory of the tensors."""
        return sum(x.nbytes for x in (self.classes, self.cells, self.min_tokens, self.places))


def distance(guide: Guide, state: int) -> float:
    """Return the fewest tokens from a state to the end, ``inf`` where there is no way."""
    left = guide.min_tokens(state)
    return left if left < guide.min_tokens(DEAD) else math.inf


@final
@dataclass(frozen=True)
class FrozenDPPhi(StepPhi):
    """``h_t(s) = sum_g P(g) h_{t-1}(target(s, g))`` with the current class masses ``P`` for all later ones; no model call.

    Exact when the distribution does not depend on its context and the horizon is the whole budget. Current logits rate only the
    next slot, so as a proposal without weights it is often *worse* than plain masking. Use its weights.

    Attributes
    ----------
    horizon
        Steps that the induction looks ahead; states beyond it have the value 1 where the end can still be reached.
    states
        Most guide states that the induction runs over: where more can be reached within the horizon, it looks less far, but
        never less than one step. The cost of a step grows as its square.
    floor
        ``h`` of a live token is at least this share of the largest among its siblings, so that it is positive wherever ``Phi`` is.
    """

    horizon: int = 12
    states: int = 128
    floor: float = 1e-3
    name: ClassVar[str] = "dp-frozen"
    needs: ClassVar[frozenset] = frozenset({"guide", "logits"})

    def log_h(self, log_p: Tensor, table: Table, state: int, remaining: int) -> Tensor:
        """See :meth:`StepPhi.log_h`. One segmented sum, and a product with a small matrix for each step of the horizon."""
        induction = table.keep(
            (self.name, self.horizon, self.states, log_p.device),
            state,
            lambda: Induction.of(table.guide, state, self.horizon, self.states, log_p.device),
            lambda induction: induction.bytes,
        )
        log_h = induction.values(log_p.softmax(-1), remaining).log().index_select(-1, induction.places)
        ends = induction.places == DONE
        dead = (induction.min_tokens > remaining - 1).index_select(0, induction.places)
        inner = log_h.masked_fill(ends | dead, -math.inf)
        least = (inner.amax(-1, keepdim=True) + math.log(self.floor)).nan_to_num(neginf=0.0)
        return torch.maximum(inner, least).masked_fill(ends, 0.0).masked_fill(dead, -math.inf)
