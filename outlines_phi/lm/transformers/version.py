"""What a forward pass of a PyTorch model depends on beside its input, as values that change with it."""

from __future__ import annotations

import marshal
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from itertools import chain, compress
from operator import not_
from typing import Any

import torch
from torch import Tensor, nn

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types whose values are told by themselves; of all others it is told which object they are."""

TENSORS = frozenset({Tensor, nn.Parameter})  # Types that settings do not have; forward passes set such attributes

DICTS, LISTS = frozenset({dict}), frozenset({list, tuple})

KNOWN = frozenset({"builtins", "outlines_phi", "peft", "torch", "transformers"})
"""Packages whose modules keep all that they compute by in settings, parameters and buffers."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")

INTERNAL = frozenset(nn.Module().__dict__) - {"training"}  # What every module has and no setting is
ENTRIES = 4  # Numbers of every tensor that each call reads


def structure(model: Any) -> int:
    """Return a digest of how a model computes: its modules and their settings, replaced methods, and its configuration.

    Adapters that are switched on and off, merged or scaled keep all that in attributes of their modules. Every call pays for this,
    so no function is called for each of them.
    """
    states = [*map(vars, modules(model)), vars(model.config)]
    values = [value for state in states for name, value in state.items() if name not in INTERNAL]
    kinds = list(map(type, values))
    dicts = list(compress(values, map(DICTS.__contains__, kinds)))
    lists = compress(values, map(LISTS.__contains__, kinds))
    within = chain(chain.from_iterable(dicts), chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists))
    # Written out, because -1 and -2 have one hash.
    return hash(marshal.dumps((str(model.dtype), str(model.device), *_told(values), *_told(list(within))), 2))


def hooks(model: Any) -> tuple[int, ...]:
    """Return the numbers of the hooks of all modules; PyTorch never gives one twice."""
    states = map(vars, modules(model))
    return tuple([key for state in states for name in HOOKS if state[name] for key in state[name]])


def opaque(model: Any) -> bool:
    """Whether a forward pass may depend on what :func:`structure` and :func:`weights` cannot see.

    That is hooks, replaced methods, modules and settings of unknown packages, and weights made under inference mode.
    """
    found = modules(model)
    states = list(map(vars, found))
    kinds = set(map(type, chain(found, *[state.values() for state in states]))) - {OrderedDict}
    return (
        bool(hooks(model))
        or any(["forward" in state for state in states])
        or not KNOWN.issuperset([kind.__module__.partition(".")[0] for kind in kinds])
        or any(map(Tensor.is_inference, saved(model)))
    )


def _told(values: Sequence[Any]) -> tuple[Any, ...]:
    kinds = list(map(type, values))
    plain = list(map(PLAIN.__contains__, kinds))
    others = map(not_, map((PLAIN | TENSORS).__contains__, kinds))
    return (*compress(values, plain), *map(id, compress(values, others)))


def weights(model: Any) -> Hashable:
    """Return the write counters of all tensors, where they lie, and some of their numbers.

    The tensors are the parameters, and the buffers of the ``state_dict``; forward passes write the other buffers. Those that were
    made under inference mode keep no counter, and writes through ``.data`` are not counted: such writes are seen where they change
    a number that is read, as those of all numbers are. Nothing of the model is kept.
    """
    tensors = saved(model)
    counted = compress(tensors, map(not_, map(Tensor.is_inference, tensors)))
    counters = sum([tensor._version for tensor in counted])
    places = (*map(id, tensors), *map(Tensor.data_ptr, tensors))
    together: dict[Hashable, list[Tensor]] = {}
    with torch.no_grad():
        for tensor in tensors:
            # What is held elsewhere (offloaded, sharded, packed) is not here to be read.
            if type(tensor) in TENSORS and tensor.layout == torch.strided and not tensor.is_meta:
                together.setdefault((tensor.dtype, tensor.device), []).append(_some(tensor))
        numbers = [torch.cat(group).view(torch.uint8).cpu().numpy().tobytes() for group in together.values()]
    return counters, hash(places), hash(tuple(numbers))


def _some(tensor: Tensor) -> Tensor:
    """Return a few numbers of a tensor, spread over it."""
    count = min(ENTRIES, tensor.numel())
    if count and tensor.is_contiguous():
        return tensor.as_strided((count,), (tensor.numel() // count,))
    return tensor.reshape(-1)[:count]


def saved(model: Any) -> list[Tensor]:
    """Return the parameters of a model and the buffers of its ``state_dict``."""
    states = list(map(vars, modules(model)))
    parameters = list(chain.from_iterable([state["_parameters"].values() for state in states if state["_parameters"]]))
    buffers = [
        state["_buffers"][name]
        for state in states
        if state["_buffers"]
        for name in state["_buffers"]
        if name not in state["_non_persistent_buffers_set"]
    ]
    return [tensor for tensor in parameters + buffers if tensor is not None]


def modules(model: Any) -> list[Any]:
    """Return a module and all below it, level by level: ``model.modules()`` without a call for each, which all calls pay for."""
    found, level = list[Any](), [model]
    while level:
        found += level
        below = chain.from_iterable([state["_modules"].values() for state in map(vars, level) if state["_modules"]])
        level = [module for module in below if module is not None]
    return found
