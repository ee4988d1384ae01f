"""Transfers between the host and a device: several arrays travel as one, and all that a step sends or reads with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HOST = frozenset({"cpu"})
"""Types of devices whose memory is the host's: nothing has to travel."""


def send(device: torch.device, *arrays: NDArray[Any]) -> list[Tensor]:
    """Return arrays as tensors on a device: one copy, from pinned memory where the device is a GPU, that nothing waits for."""
    arrays = tuple(map(np.ascontiguousarray, arrays))
    if device.type in HOST:
        return list(map(torch.from_numpy, arrays))
    order, ends = _arranged([array.itemsize for array in arrays], [array.nbytes for array in arrays])
    buffer = torch.empty(sum(array.nbytes for array in arrays), dtype=torch.uint8, pin_memory=device.type == "cuda")
    np.concatenate([arrays[i].reshape(-1).view(np.uint8) for i in order], out=buffer.numpy())
    sent = buffer.to(device, non_blocking=True)
    dtypes = [torch.from_numpy(array[:0] if array.ndim else array).dtype for array in arrays]
    return [
        sent[end - array.nbytes : end].view(dtype).view(array.shape)
        for array, end, dtype in zip(arrays, ends, dtypes, strict=True)
    ]


def read(*tensors: Tensor) -> list[NDArray[Any]]:
    """Return tensors of one device as arrays on the host, in one copy; the memory of tensors that are there already is shared."""
    if all(tensor.device.type in HOST for tensor in tensors):
        return [tensor.numpy() for tensor in tensors]
    order, ends = _arranged([tensor.itemsize for tensor in tensors], [tensor.nbytes for tensor in tensors])
    buffer = torch.cat([tensors[i].reshape(-1).contiguous().view(torch.uint8) for i in order]).cpu()
    return [
        buffer[end - tensor.nbytes : end].view(tensor.dtype).view(tensor.shape).numpy()
        for tensor, end in zip(tensors, ends, strict=True)
    ]


def _arranged(sizes: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the order in which arrays follow one another in a buffer, and the byte at which each ends.

    Large elements come first, so that those of every array are aligned.
    """
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    ends, end = [0] * len(sizes), 0
    for i in order:
        ends[i] = end = end + counts[i]
    return order, ends


@final
@dataclass(eq=False)
class AnswerCheck:
    """A check that a model's answer has numbers: computed on the device, and read with the next readback."""

    holds: Tensor  # `bool[m]`
    places: Sequence[int]  # Those that count
    error: Callable[[], Exception]  # Returns what is raised where one of them does not hold
    read: bool = False

    def learn(self, holds: NDArray[np.bool_]) -> None:
        """Raise the error where the device has found that the check fails."""
        if not holds[self.places].all():
            raise self.error()
        self.read = True


@final
@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of a matrix, ``[n, V]``, that are copied where they are read, few at a time, and only where they lie apart."""

    matrix: Tensor  # `[m, V]`
    places: Sequence[int]  # The row of each in it
    check: AnswerCheck | None = None  # Of the model's answer that they come from

    @classmethod
    def all(cls, matrix: Tensor) -> Rows:
        """Return all rows of a matrix."""
        return cls(matrix, range(len(matrix)))

    @classmethod
    def joined(cls, parts: Sequence[Rows], numbers: Sequence[NDArray[np.int64]]) -> Rows:
        """Return the rows of several matrices in the order of their ``numbers``, which are those from 0 on."""
        if len(parts) == 1 and (numbers[0] == np.arange(len(parts[0]))).all():
            return parts[0]
        return cls(torch.cat([part.whole() for part in parts]), np.concatenate(numbers).argsort().tolist())

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.matrix, self.places[part], self.check)

    def of(self, rows: Sequence[Tensor]) -> Rows:
        """Return copies of other rows, ``[V]`` each, under the same check."""
        return Rows(torch.stack([*rows]), range(len(rows)), self.check)

    def each(self) -> list[Tensor]:
        """Return every row, ``[V]``, as a view, :meth:`unchecked`."""
        return [self.matrix[place] for place in self.places]

    def whole(self) -> Tensor:
        """Return all rows, to be read and not written; raises what the check does."""
        return self.take(range(len(self)))

    def take(self, rows: Sequence[int]) -> Tensor:
        """Return some of the rows, ``[k, V]``, as :meth:`unchecked` does; raises what the check does."""
        self.read()
        return self.unchecked(rows)

    def unchecked(self, rows: Sequence[int], where: Callable[[], Tensor] | None = None) -> Tensor:
        """Return some of the rows, ``[k, V]``, to be read and not written: a view where they follow one another.

        What is made of them is read by :meth:`read`, and used for nothing before. ``where``: gives :meth:`within` of them on the
        device, to which it is sent by itself otherwise.
        """
        places = self.within(rows)
        first, end = (places[0], places[-1] + 1) if places else (0, 0)
        if places == list(range(first, end)):
            return self.matrix[first:end]
        return self.matrix.index_select(0, where() if where else send(self.matrix.device, np.array(places))[0])

    def within(self, rows: Sequence[int]) -> list[int]:
        """Return the places of some of the rows in the matrix."""
        return [self.places[row] for row in rows]

    def read(self, *tensors: Tensor) -> list[NDArray[Any]]:
        """Return tensors that were made of the rows as arrays on the host, in one transfer; raises what the check does."""
        if self.check is None or self.check.read:
            return read(*tensors)
        holds, *found = read(self.check.holds, *tensors)
        self.check.learn(holds)
        return found


@final
class Exchange:
    """The transfers of one step, which begins with the ``answer`` of a model call: one each way, that of the check among them.

    First all say what the device needs of the host (:meth:`rows`, :meth:`send`). What is sent is there when the first of them uses
    it. Then all say what is to be read (:meth:`tell`), and who decides the step reads it with what it reads itself (:meth:`read`).
    """

    def __init__(self, answer: Rows) -> None:
        self.answer, self.device = answer, answer.matrix.device
        self._arrays, self._sent = list[NDArray[Any]](), list[Tensor]()
        self._told: list[tuple[Callable[..., None], Sequence[Tensor]]] = []

    def send(self, *arrays: NDArray[Any]) -> Callable[[], list[Tensor]]:
        """Queue arrays for the device, and return their getter; they travel in one transfer, before the first is used."""
        here = slice(len(self._arrays), len(self._arrays) + len(arrays))
        self._arrays += arrays

        def sent() -> list[Tensor]:
            if len(self._sent) < here.stop:
                self._sent += send(self.device, *self._arrays[len(self._sent) :])
            return self._sent[here]

        return sent

    def rows(self, places: Sequence[int]) -> Callable[..., Tensor]:
        """Return the getter of some rows of the answer, or a ``slice`` of these, to be read and not written; unchecked.

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
