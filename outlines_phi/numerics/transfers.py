"""Transfers between the host and a device: several arrays travel as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
