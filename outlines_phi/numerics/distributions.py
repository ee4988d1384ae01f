"""Categorical distributions over a vocabulary, summed in blocks: what they add up to, and draws by inverse CDF.

Pure torch, all rows at once, on any device. A draw reads the sums of a distribution, then one block of it. Several arrays travel
between the host and a device as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .weights import masses_at

Key = TypeVar("Key")

BLOCK = 256
"""Tokens that are summed together: a draw reads the sums of a distribution, then one block of it."""

CACHED = 2**20
"""Elements that are exponentiated at a time on a processor: what fits its cache. An accelerator takes :data:`AT_ONCE`."""

AT_ONCE = 2**26
"""Elements that are held beside the distributions, at most: 256 MiB in single precision."""


@final
@dataclass(frozen=True, eq=False)
class Distributions:
    """Distributions ``q(v) = exp(score(v)) / S`` that are read once, then drawn from by inverse CDF at the cost of a block each."""

    scores: Tensor  # `[L, V]`: `log p + log h`, or any other log of a distribution, normalised or not
    log_s: Tensor  # `[L]` float64: `log S`, `-inf` where a row allows nothing
    # `[L, V / BLOCK]` float64: the mass of each block and of all before it; 0 where a row allows nothing
    masses: Tensor

    @classmethod
    def of(cls, scores: Tensor) -> Distributions:
        """Return the distributions of ``scores``, ``[L, V]``: one exponential and one sum of each element."""
        parts = [_sums(part) for part in scores.split(together(scores))]
        log_s, sums = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return cls(scores, log_s, sums.cumsum(-1))

    def log_q(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Return ``log q`` of ``tokens`` in ``rows``, float64; means nothing in a row that allows nothing."""
        return self.scores[rows, tokens].double() - self.log_s[rows]

    def draw(self, rows: Tensor, uniforms: Tensor) -> Tensor:
        """Return one token per entry of ``rows``, ``[n]``, at the quantile that ``uniforms``, ``[n]`` in [0, 1), names.

        The token of a row that allows nothing means nothing.
        """
        masses = self.masses.index_select(0, rows)
        return quantile(masses, uniforms, lambda block: self.shares(rows, block), self.scores.shape[-1])

    def shares(self, rows: Tensor, block: Tensor) -> Tensor:
        """Return the mass of each token of a block of each row, ``[n, BLOCK]`` float64, in the measure of :attr:`masses`."""
        tokens, beyond = columns(block, self.scores.shape[-1])
        share = (self.scores[rows[:, None], tokens].double() - self.log_s[rows, None]).exp_()
        return torch.where(beyond, 0.0, share).nan_to_num_(nan=0.0).mul_(self.masses[rows, -1:])


def quantile(masses: Tensor, uniforms: Tensor, shares: Callable[[Tensor], Tensor], size: int) -> Tensor:
    """Return the token at a quantile of each row, given the masses up to its blocks, and those of the tokens of one."""
    block, below = _block_at(masses, uniforms[:, None])
    found = _place_at(shares(block[:, 0])[:, None], below)
    return (block * BLOCK + found)[:, 0].clamp_(max=size - 1)


def _block_at(masses: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the block at each quantile of ``uniforms``, ``[n, m]``, and the mass within it that comes before the quantile."""
    targets = masses_at(masses, uniforms)
    block = torch.searchsorted(masses, targets, right=True).clamp_(max=masses.shape[-1] - 1)
    return block, targets - torch.nn.functional.pad(masses, (1, -1)).gather(-1, block)


def _place_at(shares: Tensor, below: Tensor) -> Tensor:
    """Return the place within a block, of masses ``shares``, ``[n, m, BLOCK]``, that ``below``, ``[n, m]``, leads to."""
    inner = shares.cumsum(-1)
    # Below the block's mass, so that rounding never leads beyond the last token that has any.
    below = torch.minimum(below, torch.nextafter(inner[..., -1], torch.zeros_like(below)))
    return torch.searchsorted(inner, below[..., None], right=True)[..., 0].clamp_(max=inner.shape[-1] - 1)


def columns(block: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the tokens of a block of each row, ``[n, BLOCK]``, and which of them are beyond the vocabulary."""
    tokens = block[:, None] * BLOCK + torch.arange(min(BLOCK, size), device=block.device)
    return tokens.clamp(max=size - 1), tokens >= size


def together(scores: Tensor) -> int:
    """Return the number of rows of ``scores`` that are read at a time."""
    return max(1, (CACHED if scores.device.type == "cpu" else AT_ONCE) // scores.shape[-1])


def runs(keys: Iterable[Key]) -> Iterator[tuple[Key, slice]]:
    """Yield each key and the places of it, of keys whose equal ones are taken together where they are neighbours."""
    first = 0
    for key, alike in groupby(keys):
        end = first + sum(1 for _ in alike)
        yield key, slice(first, end)
        first = end


def add_rows(x: Tensor, rows: Sequence[Tensor], out: Tensor) -> Tensor:
    """Write ``x[i] + rows[i]`` to ``out``, ``[n, V]``, which may be ``x``, and return it; neighbours with the same row together."""
    first = {id(row): row for row in rows}
    for key, part in runs(map(id, rows)):
        torch.add(x[part], first[key], out=out[part])
    return out


def block_sums(weights: Tensor) -> Tensor:
    """Return the sum of each block of ``weights``, ``[n, V]``, in double precision."""
    whole = weights.shape[-1] // BLOCK * BLOCK
    sums = [weights[:, :whole].unflatten(-1, (-1, BLOCK)).sum(-1)] if whole else []
    if whole < weights.shape[-1]:
        sums.append(weights[:, whole:].sum(-1, keepdim=True))
    return torch.cat(sums, -1).double()


def _sums(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``log S`` of each row of ``scores``, NaN where one is NaN or +inf, and the masses of its blocks, which add up to 1."""
    q, top = scores.softmax(-1), scores.amax(-1).double()  # softmax in place of exp: half the time on a CPU
    masses = block_sums(q)
    # softmax has divided by its own sum, which the largest element still knows; what the division left is summed in float64.
    log_s = top - q.amax(-1).double().log() + masses.sum(-1).log()
    return log_s.masked_fill_(top.isneginf(), -math.inf), masses.nan_to_num(nan=0.0)


def draw_ahead(scores: Tensor, uniforms: Tensor) -> Tensor:
    """Return ``m`` independent draws of each distribution ``exp(score(v)) / S``, and what it holds beside them.

    Distinct tokens of independent draws, in the order of their first, are draws without replacement: each has, given those before
    it, the distribution without them. The rest is summed without the tokens that were drawn, relative to the likeliest of it, so
    that it is as exact where they hold nearly everything: its relative error is that of :class:`Distributions`.

    ``scores``: ``[n, V]``, ``-inf`` where a token is not allowed.
    ``uniforms``: ``[n, m]`` float64 in [0, 1).

    Returns ``[n, 2 m + 1]`` float64: the tokens, their scores, and the log of the sum of ``exp(score)`` of all other tokens. A row
    that allows nothing has scores and a log of ``-inf``.
    """
    rows, size = scores.shape
    shares = scores.softmax(-1)
    if size % BLOCK:
        shares = torch.nn.functional.pad(shares, (0, -size % BLOCK))
    blocks = shares.view(rows, -1, BLOCK)
    sums = blocks.sum(-1).double().nan_to_num_(nan=0.0)
    block, below = _block_at(sums.cumsum(-1), uniforms)
    row = torch.arange(rows, device=scores.device)[:, None]
    tokens = (block * BLOCK + _place_at(blocks[row, block].double(), below)).clamp_(max=size - 1)
    drawn = scores.gather(-1, tokens).double()
    left = scores.scatter(-1, tokens, -math.inf)
    top = left.amax(-1, keepdim=True)
    rest = block_sums(left.sub_(top).exp_()).sum(-1, keepdim=True)
    log_rest = (top.double() + rest.log()).nan_to_num_(nan=-math.inf, neginf=-math.inf)
    return torch.cat([tokens.double(), drawn, log_rest], -1)


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

    def checked(self, error: Callable[[], Exception]) -> Rows:
        """Return the rows with the check that they have, or this one: who reads them raises ``error()`` where one has NaN, +inf or
        only -inf.
        """
        return Rows(
            self.matrix,
            self.places,
            self.check or AnswerCheck(self.matrix.amax(-1).isfinite(), self.places, error),
        )

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
