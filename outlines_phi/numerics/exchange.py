"""What a step sends to the device and reads from it: whoever takes part says what it needs, and all of it travels as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .distributions import Rows
from .transfers import send


@final
class Exchange:
    """The transfers of one step, which begins with the ``answer`` of a model call: one each way, that of the check among them.

    First all say what the device needs of the host (:meth:`rows`, :meth:`send`). What is sent is there when the first of them uses
    it. Then all say what is to be read (:meth:`tell`), and who decides the step reads it with what it reads itself (:meth:`read`).
    """

    def __init__(self, answer: Rows) -> None:
        self.answer = answer
        self._arrays, self._sent = list[NDArray[Any]](), list[Tensor]()
        self._told: list[tuple[Callable[..., None], Sequence[Tensor]]] = []

    @property
    def device(self) -> torch.device:
        """Where the answer is."""
        return self.answer.matrix.device

    def send(self, *arrays: NDArray[Any]) -> Callable[[], list[Tensor]]:
        """Return what gives arrays as tensors on the device; they travel with all that is asked for before the first is used."""
        here = slice(len(self._arrays), len(self._arrays) + len(arrays))
        self._arrays += arrays

        def sent() -> list[Tensor]:
            if len(self._sent) < here.stop:
                self._sent += send(self.device, *self._arrays[len(self._sent) :])
            return self._sent[here]

        return sent

    def rows(self, places: Sequence[int]) -> Callable[..., Tensor]:
        """Return what gives some rows of the answer, or a ``slice`` of these, to be read and not written; unchecked.

        What is made of them is used for nothing before it is :meth:`read`.
        """
        sent = self.send(np.array(self.answer.within(places), dtype=np.int64))

        def rows(part: slice = slice(None)) -> Tensor:  # noqa: B008
            return self.answer.unchecked(places[part], lambda: sent()[0][part])

        return rows

    def tell(self, told: Callable[..., None], *tensors: Tensor) -> None:
        """Have ``told`` called with tensors as arrays on the host when the step is read; never where the check fails."""
        self._told.append((told, tensors))

    def read(self, *tensors: Tensor) -> list[NDArray[Any]]:
        """Return tensors as arrays on the host, in one transfer with what others are to be told, and tell these.

        Raises what the check of the answer does.
        """
        told, self._told = self._told, []
        found = iter(self.answer.read(*tensors, *(tensor for _, some in told for tensor in some)))
        own = list(islice(found, len(tensors)))
        for tell, some in told:
            tell(*islice(found, len(some)))
        return own
