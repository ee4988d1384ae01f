"""What a forward pass of a PyTorch model depends on beside its input, as values that change with it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

from torch import Tensor, nn

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types whose values are told by themselves."""

LISTED = 32
"""Containers of up to so many entries are told by their entries; longer ones by which object they are."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")

INTERNAL = frozenset(nn.Module().__dict__) - {"training"}
"""What PyTorch keeps in every module: parameters, buffers and submodules are looked at by themselves, the rest is not run."""


def structure(model: nn.Module) -> int:
    """Return a digest of how a model computes: the settings of every module, its hooks, and methods that were replaced.

    Adapters that are switched on and off, merged or scaled keep all that in attributes of their modules. Tensors are not read here,
    see :func:`weights`; nor is what a hook or a replaced method does, which only a forward pass can tell.
    """
    facts: list[Hashable] = []
    for module in modules(model):
        state = module.__dict__
        for name in HOOKS:
            if state[name]:
                facts += map(id, state[name].values())
        # A forward pass may set tensors (frequencies of positions), so that their number is no fact either.
        facts += [_told(v) for name, v in state.items() if name not in INTERNAL and not isinstance(v, Tensor)]
    facts += map(_told, model.config.__dict__.values())
    return hash((model.dtype, model.device, *facts))


def weights(model: nn.Module) -> Hashable:
    """Return the write counters of all parameters and saved buffers, and where they lie.

    Writes through ``.data`` are not counted, and tensors that were made under inference mode keep no counter.
    """
    tensors = [tensor for tensor in saved(model) if not tensor.is_inference()]
    return sum(tensor._version for tensor in tensors), hash(tuple(tensor.data_ptr() for tensor in tensors))


def saved(model: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters of a model and the buffers of its ``state_dict``; forward passes write the other buffers."""
    for module in modules(model):
        for parameter in module._parameters.values():
            if parameter is not None:
                yield parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield buffer


def modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a module and all below it: ``model.modules()`` in a third of the time, which every call has to pay."""
    found = [model]
    for module in found:  # the list grows meanwhile
        yield module
        found += [below for below in module._modules.values() if below is not None]


def _told(value: Any) -> Hashable:
    """Return what tells ``value`` from another one."""
    if isinstance(value, dict) and len(value) <= LISTED:
        return (*map(_entry, value), *map(_entry, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)) and len(value) <= LISTED:
        return tuple(map(_entry, value))
    return _entry(value)


def _entry(value: Any) -> Hashable:
    return value if type(value) in PLAIN else id(value)
