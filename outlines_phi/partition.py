"""Vocabulary classes: tokens that every state of a guide treats alike (mathematics.md, section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

NEVER = 0
"""The class of tokens that no state allows: unspelled ids, dead ones, and end-of-sequence ids but the first."""

EOS = 1
"""The class of the end of sequence: the first end-of-sequence id of the vocabulary, alone."""


@final
@dataclass(frozen=True, eq=False)
class Partition:
    """A map from the ``V`` token ids to ``G`` classes, with :data:`NEVER` and :data:`EOS` at fixed numbers.

    Attributes
    ----------
    class_of
        ``int32[V]``: the class of each token id.
    size
        ``G``, the number of classes; every class but :data:`NEVER` and :data:`EOS` has a member.
    """

    class_of: NDArray[np.int32]
    size: int
    _on_device: dict[torch.device, torch.Tensor] = field(default_factory=dict, repr=False)

    def mass(self, p: torch.Tensor) -> torch.Tensor:
        """Return ``mass[..., g] = sum of p[..., v] over v in class g``, in the dtype and on the device of ``p``."""
        out = torch.zeros((*p.shape[:-1], self.size), dtype=p.dtype, device=p.device)
        return out.index_add_(-1, self._classes(p.device), p)

    def spread(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``out[..., v] = x[..., class_of[v]]``."""
        return x.index_select(-1, self._classes(x.device))

    def members(self, g: int) -> NDArray[np.int32]:
        """Return the token ids of class ``g``, ascending."""
        return np.flatnonzero(self.class_of == g).astype(np.int32)

    def _classes(self, device: torch.device) -> torch.Tensor:
        if device not in self._on_device:
            self._on_device[device] = torch.from_numpy(self.class_of.astype(np.int64)).to(device)
        return self._on_device[device]


def refine(a: Partition, b: Partition) -> tuple[Partition, NDArray[np.int32], NDArray[np.int32]]:
    """Return the coarsest common refinement of ``a`` and ``b``, and for each of its classes the class of ``a`` and of ``b``."""
    pair = a.class_of.astype(np.int64) * b.size + b.class_of
    pair[(a.class_of == NEVER) | (b.class_of == NEVER)] = 0
    eos = EOS * b.size + EOS
    found = np.unique(pair)
    rest = found[(found != 0) & (found != eos)]
    pairs = np.concatenate([[0, eos], rest])
    class_of = np.searchsorted(rest, pair).astype(np.int32) + 2
    class_of[pair == 0], class_of[pair == eos] = NEVER, EOS
    left, right = np.divmod(pairs, b.size)
    return Partition(class_of, len(pairs)), left.astype(np.int32), right.astype(np.int32)
