"""The key-value cache of packed token trees: preallocated slots, written in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass
class Slots:
    """Where the present model call reads and writes; shared by all layers of one cache.

    Attributes
    ----------
    prompts
        Batch rows of the cache.
    capacity
        Slots per row. A layer whose storage is smaller grows to it, once, at its next call.
    width
        Slots that the call reads: ``[0, width)``; 0 while the prompts are evaluated.
    rows
        ``[r]`` batch rows in the call, ``None`` for all.
    columns
        ``[r, n]`` the slot of each token of the call, or the one stretch that all rows write; ``None`` while the prompts are
        evaluated.
    """

    prompts: int
    capacity: int
    width: int = 0
    rows: Tensor | None = None
    columns: Tensor | slice | None = None


@final
class SlotLayer(CacheLayerMixin):
    """Keys and values of one attention layer, ``[P, heads, capacity, D]``.

    ``update`` writes the new keys and values into their slots and returns the slots that are read, as a view
    when all rows take part. Slots that hold nothing are finite (zeros), so that a mask can hide them.
    """

    is_sliding = False

    def __init__(self, slots: Slots) -> None:
        super().__init__()
        self.slots = slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (self._storage(states) for states in (key_states, value_states))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys, keys = self._write(self.keys, key_states)
        self.values, values = self._write(self.values, value_states)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.slots.width or query_length, 0

    def get_seq_length(self) -> int:
        return self.slots.width

    def get_max_length(self) -> int:
        return -1

    def select(self, columns: Tensor) -> None:
        """Keep only the slots ``columns`` ``[P, m]`` of each row, in that order, in storage of the present capacity."""
        if self.is_initialized:
            self.keys, self.values = (self._gathered(states, columns) for states in (self.keys, self.values))

    def _storage(self, like: Tensor | None) -> Tensor:
        assert like is not None
        return like.new_zeros(self.slots.prompts, like.shape[1], self.slots.capacity, like.shape[3])

    def _write(self, storage: Tensor | None, states: Tensor) -> tuple[Tensor, Tensor]:
        """Write ``states`` ``[r, heads, n, D]``; return the storage, grown if need be, and what the call reads."""
        assert storage is not None
        slots = self.slots
        if slots.columns is None:  # the prompts see only each other's columns, which are all in this call
            storage[:, :, : states.shape[2]] = states
            return storage, states
        if storage.shape[2] < slots.capacity:
            smaller, storage = storage, self._storage(storage)
            storage[:, :, : smaller.shape[2]] = smaller
        if isinstance(slots.columns, slice):
            storage[:, :, slots.columns] = states
        else:
            columns = slots.columns.to(storage.device)
            rows = torch.arange(slots.prompts) if slots.rows is None else slots.rows
            rows = rows.to(storage.device)
            storage.transpose(1, 2)[rows[:, None], columns] = states.transpose(1, 2)  # [r, n, heads, D]
        read = storage[:, :, : slots.width]
        return storage, read if slots.rows is None else read[slots.rows.to(storage.device)]

    def _gathered(self, storage: Tensor | None, columns: Tensor) -> Tensor:
        assert storage is not None
        kept, columns = self._storage(storage), columns.to(storage.device)
        index = columns[:, None, :, None].expand(-1, storage.shape[1], -1, storage.shape[3])
        kept[:, :, : columns.shape[1]] = storage.gather(2, index)
        return kept


@final
class SlotCache(Cache):
    """A cache of ``P`` rows whose slots are allocated ahead and doubled when they run out.

    Slots ``[0, base)`` belong to the prompts, the rest to nodes. Which slot holds what is decided by the caller.

    Attributes
    ----------
    reallocations
        How often the storage was allocated anew because it was full.
    """

    NODES = 64  # node slots per row to begin with

    def __init__(self, prompts: int, base: int) -> None:
        self._slot_layers: list[SlotLayer] = []
        super().__init__(layers=[])
        self.base, self.reallocations = base, 0
        self.slots = Slots(prompts, base + self.NODES)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        while len(self.layers) <= layer_idx:
            self._slot_layers.append(SlotLayer(self.slots))
            self.layers.append(self._slot_layers[-1])
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def aim(self, rows: Tensor | None, columns: Tensor | slice, width: int) -> None:
        """Say where the next call writes, as :class:`Slots` has it, and that it reads ``width`` slots."""
        if width > self.slots.capacity:
            self.slots.capacity = self._capacity(width)
            self.reallocations += 1
        self.slots.rows, self.slots.columns, self.slots.width = rows, columns, width

    @torch.inference_mode()
    def select(self, columns: Tensor) -> None:
        """Keep only the slots ``columns`` ``[P, m]`` of each row, in that order, and give back what that frees."""
        self.slots.capacity = self._capacity(columns.shape[1], self.base + self.NODES)
        for layer in self._slot_layers:
            layer.select(columns)

    def _capacity(self, width: int, capacity: int | None = None) -> int:
        capacity = self.slots.capacity if capacity is None else capacity
        while capacity < width:
            capacity += capacity - self.base  # twice the node slots
        return capacity
