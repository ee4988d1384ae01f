"""What a forward pass of a PyTorch model depends on beside its input, as values that change with it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, compress
from operator import not_
from typing import Any, final

import torch
from torch import Tensor, nn

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types whose values are told by themselves; of all others it is told which object they are."""

TENSORS = frozenset({Tensor, nn.Parameter})
"""Types that settings do not have; forward passes set such attributes."""

DICTS, LISTS = frozenset({dict}), frozenset({list, tuple})

HOOKS = ("_forward_hooks", "_forward_pre_hooks")

INTERNAL = frozenset(nn.Module().__dict__) - {"training"}
"""What every module has and no setting is."""

ENTRIES = 4
"""Numbers of every tensor that each call reads."""


def structure(model: Any) -> int:
    """Return a digest of how a model computes: its modules and their settings, replaced methods, and its configuration.

    Adapters that are switched on and off, merged or scaled keep all that in attributes of their modules. Every call pays for this,
    so no function is called for each of them.
    """
    states = [*[module.__dict__ for module in modules(model)], model.config.__dict__]
    values = [value for state in states for name, value in state.items() if name not in INTERNAL]
    kinds = list(map(type, values))
    dicts = list(compress(values, map(DICTS.__contains__, kinds)))
    lists = compress(values, map(LISTS.__contains__, kinds))
    within = chain(chain.from_iterable(dicts), chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists))
    return hash((model.dtype, model.device, *_told(values), *_told(list(within))))


def hooks(model: Any) -> tuple[int, ...]:
    """Return the numbers of the hooks of all modules; PyTorch never gives one twice."""
    states = [module.__dict__ for module in modules(model)]
    return tuple([key for state in states for name in HOOKS if state[name] for key in state[name]])


def opaque(model: Any) -> bool:
    """Whether a forward pass runs code that nothing is known of: hooks, and methods that were replaced."""
    return bool(hooks(model)) or any(["forward" in module.__dict__ for module in modules(model)])


def _told(values: Sequence[Any]) -> tuple[Hashable, ...]:
    kinds = list(map(type, values))
    plain = list(map(PLAIN.__contains__, kinds))
    others = map(not_, map((PLAIN | TENSORS).__contains__, kinds))
    return (*compress(values, plain), *map(id, compress(values, others)))


@final
class Weights:
    """The numbers of a model, as far as they are told from others without reading all of them.

    Parameters
    ----------
    model
        Its parameters, and the buffers of its ``state_dict``; forward passes write the other buffers.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._places: tuple[int, ...] = ()
        self._counted: list[Tensor] = []
        self._samples: list[list[Tensor]] = []  # views, those that can be read together

    def version(self) -> Hashable:
        """Return the write counters of all tensors, where they lie, and some of their numbers.

        Tensors that were made under inference mode keep no counter, and writes through ``.data`` are not counted: such writes are
        seen where they change a number that is read, as those of all numbers are.
        """
        tensors = list(saved(self._model))
        places = (*map(id, tensors), *map(Tensor.data_ptr, tensors))
        if places != self._places:
            self._places, self._samples = places, _samples(tensors)
            self._counted = [tensor for tensor in tensors if not tensor.is_inference()]
        counters = sum([tensor._version for tensor in self._counted])
        with torch.no_grad():
            numbers = b"".join([torch.cat(s).view(torch.uint8).cpu().numpy().tobytes() for s in self._samples])
        return counters, hash(places), hash(numbers)


def _samples(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return views of a few numbers of every tensor, spread over it, by dtype and device."""
    together: dict[Hashable, list[Tensor]] = {}
    for tensor in tensors:
        if type(tensor) in TENSORS and tensor.layout == torch.strided and tensor.numel():
            flat = (
                tensor.detach().flatten()
                if tensor.is_contiguous()
                else tensor.detach()[(0,) * (tensor.ndim - 1)].flatten()
            )
            together.setdefault((tensor.dtype, tensor.device), []).append(flat[:: -(-flat.numel() // ENTRIES)])
    return list(together.values())


def saved(model: Any) -> Iterator[Tensor]:
    """Yield the parameters of a model and the buffers of its ``state_dict``."""
    for module in modules(model):
        state = module.__dict__
        if state["_parameters"]:
            yield from [parameter for parameter in state["_parameters"].values() if parameter is not None]
        if state["_buffers"]:
            passing = state["_non_persistent_buffers_set"]
            yield from [b for name, b in state["_buffers"].items() if b is not None and name not in passing]


def modules(model: Any) -> list[Any]:
    """Return a module and all below it: ``model.modules()`` in a third of the time."""
    found = [model]
    for module in found:  # the list grows meanwhile
        if below := module.__dict__["_modules"]:
            found += [child for child in below.values() if child is not None]
    return found
