"""One call of a Hugging Face causal model, whatever its signature, and what its forward pass depends on beside the input."""

from __future__ import annotations

import inspect
import marshal
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from itertools import chain, compress
from operator import not_
from typing import Any, final

import torch
from torch import Tensor, nn

from ...errors import ModelError, OutlinesPhiError, VocabularyError
from ...numerics.distributions import Rows

WINDOWS = re.compile(r"(window|window_size|chunk_size|chunk_length|index_topk|original_max_position_embeddings)$")
"""Numbers of a configuration beyond which tokens no longer see each other, or see each other differently."""

SHORT = 10  # Borders up to here lie within every trial
SLOTS = 2048
"""Windows and tables up to this size may be counted in slots of the cache; larger ones are masked by position."""

PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types whose values are told by themselves; of all others it is told which object they are."""

TENSORS = frozenset({Tensor, nn.Parameter})  # Types that settings do not have; forward passes set such attributes

DICTS, LISTS = frozenset({dict}), frozenset({list, tuple})

KNOWN = frozenset({"builtins", "outlines_phi", "peft", "torch", "transformers"})
"""Packages whose modules keep all that they compute by in settings, parameters and buffers."""

CACHES = ("cache", "past_key_values", "cache_params")
"""Names by which models take and return their memory of a sequence: all since transformers 5.24; attention and Mamba before."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks")

INTERNAL = frozenset(nn.Module().__dict__) - {"training"}  # The attributes of every module that are no settings
ENTRIES = 4  # Numbers of every tensor that each call reads


@final
class Forward:
    """A causal Hugging Face model as a function from token ids to ``size`` logits.

    ``memory``: bytes that the logits and the mask of one call may take together, beyond what is returned.
    """

    def __init__(self, hf_model: Any, size: int, *, max_length: int | None, memory: int) -> None:
        self.hf_model, self.size, self.max_length, self.memory = hf_model, size, max_length, memory
        self.borders = Borders(hf_model, max_length)
        parameters = inspect.signature(hf_model.forward).parameters
        anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        signatures = ((each, inspect.signature(each.forward).parameters) for each in modules(hf_model))
        named = ((each, name, taken) for each, taken in signatures for name in CACHES if name in taken)
        # Wrappers hand on what they do not name.
        model, self.cache_name, taken = next(named, (hf_model, "past_key_values", parameters))
        # Mamba and its kin: a state instead of keys and values, so that a mask has nothing to hide.
        stateful = self.cache_name == "cache_params" or getattr(model, "_is_stateful", False)
        self.recurrent = stateful and "position_ids" not in taken
        self._takes_positions = anything or "position_ids" in parameters
        self._takes_logits_to_keep = anything or "logits_to_keep" in parameters

    @property
    def triggers(self) -> list[int]:
        """The tokens at which an adapter sets in (activated LoRA); a model without one has none."""
        adapters = getattr(self.hf_model, "peft_config", None) or {}
        named = [getattr(adapter, "alora_invocation_tokens", None) for adapter in adapters.values()]
        return next((list(tokens) for tokens in named if tokens), [])

    @property
    def attention(self) -> str:
        """Name of the attention implementation, ``"eager"`` or ``"sdpa"`` for example."""
        return str(self.hf_model.config._attn_implementation)

    @property
    def heads_in_memory(self) -> int:
        """The number of copies of a mask's worth of scores that one layer holds at a time."""
        return getattr(self.hf_model.config, "num_attention_heads", 1) if self.attention == "eager" else 1

    @torch.inference_mode()
    def __call__(
        self,
        tokens: Tensor,
        *,
        mask: Tensor | Mapping[str, Tensor] | None,
        positions: Tensor | None,
        cache: Any = None,
        last: int = 0,
    ) -> tuple[Tensor, Any]:
        """Return the logits ``[b, n, V]`` after ``tokens`` ``[b, n]`` and the cache.

        Only the last columns are computed, ``[b, last, V]``, when ``last`` is given. The tensors are inference tensors, to be read
        and not written. Raises :class:`ModelError` where the model raises.
        """
        arguments: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask}
        arguments |= {"use_cache": True, "return_dict": True}
        if cache is not None:  # None would stand against the keys and values that an adapter puts before the first call
            arguments[self.cache_name] = cache
        if self._takes_positions and not self.recurrent:
            arguments["position_ids"] = positions
        if self._takes_logits_to_keep and last:
            arguments["logits_to_keep"] = last
        try:
            output = self.hf_model(**arguments)
        except (torch.OutOfMemoryError, OutlinesPhiError):
            raise
        except (
            RuntimeError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:  # what its code does not foresee
            raise ModelError(
                f"Try shorter inputs, torch.float32, attn_implementation='eager', or the model without its wrappers: "
                f"{type(self.hf_model).__name__} raised {type(error).__name__} ({(str(error).splitlines() or [''])[0]}) in a call "
                f"of {tokens.shape[0]} sequences of {tokens.shape[1]} tokens."
            ) from error
        logits = output.logits
        if logits.shape[-1] != self.size:
            raise VocabularyError(
                f"The model gave {logits.shape[-1]} logits but the vocabulary has {self.size} entries; build the "
                "vocabulary with size= the rows of the model's output."
            )
        return logits[:, -last:] if last else logits, getattr(output, self.cache_name, None)

    def checked(self, logits: Rows) -> Rows:
        """Return ``logits``, ``[n, V]``, with their check: where a row is NaN who reads them raises :class:`ModelError`."""
        return logits.checked(
            lambda: ModelError(
                f"The model answered NaN, +inf or only -inf in {self.hf_model.dtype}; load it in torch.float32 or "
                "torch.bfloat16, or with attn_implementation='eager', and check its weights."
            )
        )


@final
class Borders:
    """The lengths, in tokens with the prompt, at which a model's forward pass may change.

    ``separate``: lengths beyond which *every* position is computed differently, that of the whole call deciding: LongRoPE takes
        its long factors where a call has a position past ``original_max_position_embeddings``. What lies on different sides of
        one can share neither a call nor a cache.
    ``all``: these, windows and the like, ascending, as far as the model's context reaches. Sequences of both sides of a window
        may share calls where a trial shows it.
    ``slots``: the largest of them, and of the model's square tables of positions, that may count slots of the cache, or 0.
    """

    def __init__(self, model: Any, max_length: int | None) -> None:
        named = list(_numbers(model.config.to_dict()))
        separate = {length for rope, length in named if rope == "longrope"}
        crossed = {length for _, length in named if length > SHORT} - separate
        self.all = tuple([length for length in sorted(separate | crossed) if max_length is None or length < max_length])
        self.separate = frozenset(separate)
        tables = [b.shape[-1] for b in model.buffers() if b.ndim >= 2 and b.shape[-2] == b.shape[-1] == max_length]
        self.slots = max((size for size in (*crossed, *tables) if size <= SLOTS), default=0)


def _numbers(config: dict[str, Any], rope: str | None = None) -> Iterator[tuple[str | None, int]]:
    """Yield the lengths that a configuration names, each with the kind of rotary embedding in whose settings it stands."""
    rope = config.get("rope_type", rope)
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value, rope)
        elif WINDOWS.search(str(name)) and isinstance(value, int) and not isinstance(value, bool):
            yield rope, value


def structure(model: Any) -> int:
    """Return a digest of how a model computes: its modules and their settings, replaced methods, and its configuration.

    Adapters that are switched on and off, merged or scaled keep all that in attributes of their modules. Every call pays for this,
    so no function is called for each of them.
    """
    states = [*map(vars, modules(model)), vars(model.config)]
    values = [value for state in states for name, value in state.items() if name not in INTERNAL]
    kinds = list(map(type, values))
    dicts = list(compress(values, map(DICTS.__contains__, kinds)))
    lists = list(compress(values, map(LISTS.__contains__, kinds)))
    values += chain(
        chain.from_iterable(dicts), chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists)
    )
    kinds = list(map(type, values))
    plain = compress(values, map(PLAIN.__contains__, kinds))
    others = compress(values, map(not_, map((PLAIN | TENSORS).__contains__, kinds)))
    # Written out, because -1 and -2 have one hash.
    return hash(marshal.dumps((str(model.dtype), str(model.device), *plain, *map(id, others)), 2))


def hooks(model: Any) -> tuple[int, ...]:
    """Return the numbers of the hooks of all modules; PyTorch never gives one twice."""
    states = map(vars, modules(model))
    return tuple([key for state in states for name in HOOKS if state[name] for key in state[name]])


def opaque(model: Any) -> bool:
    """Return True if a forward pass may depend on state that :func:`structure` and :func:`weights` cannot see.

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
                # A few numbers, spread over it.
                count = min(ENTRIES, tensor.numel())
                spread = count and tensor.is_contiguous()
                some = tensor.as_strided((count,), (tensor.numel() // count,)) if spread else tensor.reshape(-1)[:count]
                together.setdefault((tensor.dtype, tensor.device), []).append(some)
        numbers = [torch.cat(group).view(torch.uint8).cpu().numpy().tobytes() for group in together.values()]
    return counters, hash(places), hash(tuple(numbers))


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
