"""What can still succeed: the interface of every estimator of future validity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor

from ..guides.table import Table

Need = Literal["guide", "logits", "model"]


class Phi(ABC):
    """A choice of ``h``, the stand-in for future validity ``Phi`` (mathematics.md, section 3).

    Any ``h`` is a proposal, ``q_h(v|y) = p(v|y) h(yv) / S(y)``; fidelity comes from what corrects for it: the tree and its
    rejection, or weights.

    Attributes
    ----------
    name
        What a call may write: ``phi="onestep"``.
    needs
        What the estimator reads. One that needs only the guide and the current logits runs anywhere, also inside a
        logits processor; one that needs the model runs in samplers of this package.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]]


class StepPhi(Phi):
    """An estimator that answers for one step at a time, from the guide and the current logits."""

    @abstractmethod
    def add_log_h(self, log_p: Tensor, table: Table, states: Sequence[int], remaining: Sequence[int]) -> Tensor:
        """Add ``log h`` of every next token to ``log_p`` in place, and return it.

        Parameters
        ----------
        log_p
            ``[B, V]`` log probabilities, or logits up to a constant per row.
        table
            What is allowed.
        states, remaining
            Guide state of each row, and the tokens it may still write.

        Returns
        -------
        Tensor
            ``log p + log h``: ``-inf`` on tokens that cannot be completed within the budget, ``log h = 0`` at the end of sequence.
        """
