"""Slots of packed token trees: those that hold keys and values, written in place, and which a node sees (additive 4-D masks)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin

from ...errors import UnsupportedError


@dataclass
class Slots:
    """The slots that the present model call reads and writes; shared by all layers of one cache."""

    batch: int  # Rows of the cache
    capacity: int  # Slots per row. A layer whose storage is smaller grows to it, once, at its next call
    width: int = 0  # Slots that the call reads: `[0, width)`; 0 while the prompts are evaluated
    rows: Tensor | None = None  # `[r]` rows in the call, `None` for all
    # `[r, n]` the slot of each token of the call, or the one stretch that all rows write; `None` while the prompts
    # are evaluated.
    columns: Tensor | slice | None = None


@final
class SlotLayer(CacheLayerMixin):
    """Keys and values of one attention layer, ``[R, heads, capacity, D]``.

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

    def select(self, rows: Tensor, columns: Tensor) -> None:
        """Fill new storage with the slots ``columns`` ``[R, m]`` of ``rows`` ``[R, m]``."""
        if self.is_initialized:
            self.keys, self.values = (self._gathered(states, rows, columns) for states in (self.keys, self.values))

    def _storage(self, like: Tensor | None) -> Tensor:
        assert like is not None
        return like.new_zeros(self.slots.batch, like.shape[1], self.slots.capacity, like.shape[3])

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
            every = torch.arange(slots.batch, device=storage.device)
            rows = every if slots.rows is None else slots.rows.to(storage.device)
            storage.transpose(1, 2)[rows[:, None], columns] = states.transpose(1, 2)  # [r, n, heads, D]
        read = storage[:, :, : slots.width]
        return storage, read if slots.rows is None else read[slots.rows.to(storage.device)]

    def _gathered(self, storage: Tensor | None, rows: Tensor, columns: Tensor) -> Tensor:
        assert storage is not None
        kept, rows, columns = self._storage(storage), rows.to(storage.device), columns.to(storage.device)
        kept.transpose(1, 2)[:, : columns.shape[1]] = storage.transpose(1, 2)[rows, columns]  # [R, m, heads, D]
        return kept


@final
class SlotCache(Cache):
    """A cache whose slots are allocated ahead and doubled when they run out; it begins with a row for each prompt.

    Slots ``[0, base)`` belong to the prompts, the rest to nodes. ``reallocations`` counts how often the storage was full.
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
        """Set the slots that the next call writes, as :class:`Slots` has it, and the ``width`` that it reads."""
        if width > self.slots.capacity:
            self.slots.capacity = self._capacity(width)
            self.reallocations += 1
        self.slots.rows, self.slots.columns, self.slots.width = rows, columns, width

    @torch.inference_mode()
    def select(self, rows: Tensor, columns: Tensor) -> None:
        """Keep copies of slots alone: those of ``rows`` and ``columns`` ``[R, m]`` are the first of ``R`` rows from now on."""
        self.slots.batch, self.slots.capacity = len(rows), self._capacity(columns.shape[1], self.base + self.NODES)
        for layer in self._slot_layers:
            layer.select(rows, columns)

    def _capacity(self, width: int, capacity: int | None = None) -> int:
        capacity = self.slots.capacity if capacity is None else capacity
        while capacity < width:
            capacity += capacity - self.base  # twice the node slots
        return capacity


@final
@dataclass(frozen=True, eq=False)
class Layout:
    """The places of the ``k`` nodes of one model call among its ``r`` rows of ``n`` tokens."""

    rows: NDArray[np.int64]  # `[r]` the rows of the cache in the call
    # `[r, n]` the node slot of each token. Padding, at the end of a row, points at slots that are free
    columns: NDArray[np.int64]
    places: tuple[NDArray[np.int64], NDArray[np.int64]]  # Two arrays `[k]`: row and token of each node in the call

    @classmethod
    def of(cls, row: NDArray[np.int64], rank: NDArray[np.int64], used: NDArray[np.int64]) -> Layout:
        """Lay out nodes of cache rows ``row`` in the slots after ``used``, each the ``rank``-th in its row."""
        taking = np.zeros(len(used), dtype=bool)
        taking[row] = True
        rows, where = np.flatnonzero(taking), (taking.cumsum() - 1)[row]
        columns = used[rows][:, None] + np.arange(rank.max() + 1)
        return cls(rows, columns, (where, rank))

    @property
    def stretch(self) -> slice | None:
        """The node slots of every row, where all have the same ones; a stretch is written faster than a choice."""
        first = self.columns[:, 0]
        return slice(int(first[0]), int(self.columns[0, -1]) + 1) if (first == first[0]).all() else None

    @property
    def flat(self) -> NDArray[np.int64]:
        """``[k]`` the place of each node among the ``r n`` tokens of the call."""
        return self.places[0] * self.columns.shape[1] + self.places[1]

    @property
    def width(self) -> int:
        """Node slots that the call reads; a multiple of 8, which attention kernels like."""
        return eightfold(int(self.columns.max()) + 1)


@final
class TreeMask:
    """The ancestors of every node, and the masks that follow from them.

    A node sees its prompt, its ancestors and itself, so its line of ancestors is its parent's line and itself:
    bits over the node slots of its row of the cache. Layers with a window also ask that the positions differ by
    less than the window, whatever the slots. Nodes begin at slot ``base``, a multiple of 8.
    """

    def __init__(self, prompt_lengths: NDArray[np.int64], base: int, windows: Mapping[str, int | None]) -> None:
        self.windows = windows
        longest, slot = prompt_lengths.max(), np.arange(base)
        positions = slot - (longest - prompt_lengths)[:, None]
        # [R, base], negative where no token is
        self.prompt_positions = np.where(slot < longest, positions, -1)
        self._lines = np.zeros((len(prompt_lengths), 64, 8), dtype=np.uint8)  # [R, node slot, seen node slot / 8]
        self._positions = np.zeros((len(prompt_lengths), 64), dtype=np.int64)  # [R, node slot]

    def append(self, layout: Layout, parent: NDArray[np.int64], position: NDArray[np.int64]) -> None:
        """Add the nodes of ``layout`` after those in slots ``parent[k]``, -1 for the prompt; parents stand before children."""
        self._reserve(layout.width)
        row, slot = layout.rows[layout.places[0]], layout.columns[layout.places]
        self._positions[row, slot] = position
        known = (parent >= 0) & (parent < layout.columns[layout.places[0], 0])
        self._lines[row, slot] = np.where(known[:, None], self._lines[row, parent], 0)
        self._lines[row, slot, slot >> 3] |= (0x80 >> (slot & 7)).astype(np.uint8)
        new = (parent >= 0) & ~known
        for r, s, p in zip(row[new].tolist(), slot[new].tolist(), parent[new].tolist(), strict=True):
            self._lines[r, s] |= self._lines[r, p]

    def lines(self, layout: Layout) -> tuple[NDArray[Any], ...]:
        """Return the parts of a mask: bits ``[r, n, (base + width) / 8]`` of what each token sees, padding only itself.

        With a window also the positions of all slots, ``[r, base + width]``.
        """
        rows, columns, places = layout.rows, layout.columns, layout.places
        base = self.prompt_positions.shape[1]
        seen = np.zeros((*columns.shape, (base + layout.width) // 8), dtype=np.uint8)
        r, n = np.arange(len(rows))[:, None], np.arange(columns.shape[1])
        seen[r, n, (base + columns) >> 3] = 0x80 >> (columns & 7)
        seen[places[0], places[1], base // 8 :] = self._lines[rows[places[0]], columns[places], : layout.width // 8]
        seen[places[0], places[1], : base // 8] = np.packbits(self.prompt_positions[rows] >= 0, axis=-1)[places[0]]
        if not any(self.windows.values()):
            return (seen,)
        return seen, np.concatenate([self.prompt_positions[rows], self._positions[rows, : layout.width]], axis=-1)

    def build(
        self, positions: Tensor, seen: Tensor, keys: Tensor | None = None, *, dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """Return ``{kind of layer: [r, 1, n, base + width]}``: 0 where a token sees, ``finfo.min`` where not.

        The masks are additive because eager attention adds whatever it is given: a boolean mask is silently
        wrong there. ``positions``: those of the tokens; ``seen``, ``keys``: the :meth:`lines`, on the device.
        """
        bits = torch.arange(7, -1, -1, dtype=torch.uint8, device=seen.device)
        visible = (seen[..., None] >> bits).bitwise_and_(1).bool().flatten(-2)
        behind = None if keys is None else positions[..., None] - keys[:, None, :]
        return {kind: _additive(visible, behind, window, dtype) for kind, window in self.windows.items()}

    def build_prompts(self, positions: Tensor, length: int, width: int, *, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return ``{kind of layer: [P, 1, length, base + width]}`` of the prompts: causal, and blind to nodes.

        ``positions``: ``prompt_positions``, on the device.
        """
        behind = positions[:, :length, None] - positions[:, None, :]  # [P, length, base]
        itself = torch.arange(positions.shape[1], device=positions.device)
        itself = itself[:length, None] == itself
        causal = (behind >= 0) & (positions[:, None, :] >= 0) | itself
        masks = {kind: _additive(causal, behind, window, dtype) for kind, window in self.windows.items()}
        return {kind: pad(mask, (0, width), value=torch.finfo(dtype).min) for kind, mask in masks.items()}

    def positions(self, layout: Layout) -> NDArray[np.int64]:
        """Return the positions ``[r, n]`` of the tokens of ``layout``."""
        return self._positions[layout.rows[:, None], layout.columns]

    def arrange(self, of: NDArray[np.int64], parents: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Begin anew with the prompts of rows ``of`` ``[R]``, and with nodes after those in slots ``parents`` ``[R, m]``."""
        rows, used = parents.shape
        size = max(64, eightfold(used + 1))
        self.prompt_positions = self.prompt_positions[of]
        self._positions = np.zeros((rows, size), dtype=np.int64)
        self._positions[:, :used] = positions
        slot = np.arange(used)
        self._lines = np.zeros((rows, size, size // 8), dtype=np.uint8)
        self._lines[:, slot, slot >> 3] = 0x80 >> (slot & 7)
        above = np.full((rows, size), used)  # Slot `used` sees nothing
        above[:, :used] = np.where(parents < 0, used, parents)
        while (above < used).any():  # a line of 2^k ancestors becomes one of 2^(k + 1)
            self._lines |= np.take_along_axis(self._lines, above[:, :, None], axis=1)
            above = np.take_along_axis(above, above, axis=1)

    def _reserve(self, slots: int) -> None:
        rows, held = self._positions.shape
        if slots <= held:
            return
        size = eightfold(max(slots, 2 * held))
        lines = np.zeros((rows, size, size // 8), dtype=np.uint8)
        lines[:, :held, : held // 8] = self._lines
        positions = np.zeros((rows, size), dtype=np.int64)
        positions[:, :held] = self._positions
        self._lines, self._positions = lines, positions


def windows(config: Any) -> dict[str, int | None]:
    """Return the window of each kind of attention layer of a text ``config``, ``None`` for no window.

    Refuses kinds that a mask over slots cannot express (recurrent, chunked, compressed attention).
    """
    sliding = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return {"full_attention" if sliding is None else "sliding_attention": sliding}
    known = {"full_attention": None, "sliding_attention": sliding}
    unknown = sorted(set(kinds) - known.keys())
    if unknown:
        raise UnsupportedError(f"layers of type {', '.join(unknown)} have no tree mask")
    return {kind: known[kind] for kind in sorted(set(kinds))}


def eightfold(size: int) -> int:
    """Return the least multiple of 8 that is at least ``size``."""
    return -(-size // 8) * 8


def _additive(visible: Tensor, behind: Tensor | None, window: int | None, dtype: torch.dtype) -> Tensor:
    """Return an additive mask, ``[r, 1, n, slots]``, of ``visible`` slots that are less than a window ``behind``."""
    seen = visible if window is None or behind is None else visible & (behind < window)
    mask = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype, device=seen.device)
    return mask.masked_fill_(seen, 0)[:, None]
