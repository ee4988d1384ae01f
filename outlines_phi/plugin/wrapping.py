"""The registry of hosts: the models of Outlines that take ``phi=`` once they are wrapped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from importlib import import_module
from typing import Any, final
from weakref import WeakKeyDictionary

from outlines.models.llamacpp import LlamaCpp
from outlines.models.mlxlm import MLXLM
from outlines.models.transformers import Transformers
from outlines.models.vllm import VLLM, AsyncVLLM
from outlines.models.vllm_offline import VLLMOffline

from ..errors import UnsupportedError
from ..lm.model import LanguageModel
from ..numerics.checks import is_count, shown
from ..phi.estimator import Phi
from .call import Ban, Unset
from .hosts.transformers import PhiTransformers
from .mistakes import no_model
from .session import MAX_TREE_BYTES, PhiModel


@final
class OwnModel(PhiModel):
    """A language model of one's own, with what turns a prompt into its tokens; see :func:`from_language_model`."""

    hf_tokenizer: Any = None
    lm: LanguageModel = None  # type: ignore[assignment]  # the model as samplers see it

    def __init__(self, lm: LanguageModel, encode: Callable[[str], Sequence[int]] | None, **options: Any) -> None:
        super().__init__(**options)
        self.lm, self._encode = lm, encode

    def _prompt_ids(self, model_input: Any, *, thinking: bool = False) -> tuple[int, ...]:
        if isinstance(model_input, str):
            if self._encode is None:
                raise UnsupportedError(
                    "Give encode= to from_language_model(lm), a function from a text to its token ids, or token ids as the prompt. "
                    f"The prompt {shown(model_input)} is a text."
                )
            try:
                model_input = self._encode(model_input)
            except Exception as error:  # it runs the code of any tokenizer
                raise UnsupportedError(
                    f"Give a text that encode= takes. It raised {type(error).__name__} ({error}) for the prompt "
                    f"{shown(model_input)}."
                ) from error
        if not isinstance(model_input, Sequence) or not all(map(is_count, model_input)):
            raise UnsupportedError(
                f"Give a text or a sequence of token ids as a prompt. {shown(model_input)} was given."
            )
        return tuple(map(int, model_input))


def from_language_model(
    lm: LanguageModel,
    encode: Callable[[str], Sequence[int]] | None = None,
    *,
    phi: str | Phi | None = "auto",
    banned_phrases: Ban | None = None,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> OwnModel:
    """Return a model whose calls take ``phi=``, over a :class:`outlines_phi.lm.LanguageModel`.

    Its calls and generators are those of every host but for what belongs to a loop of its own: there is no ``phi=None``.

    Parameters
    ----------
    lm
        The language model; :func:`outlines_phi.testing.check_language_model` tests one of your own.
    encode
        The token ids of a text. Without it prompts are token ids.
    phi, banned_phrases, max_tree_bytes
        The defaults of every call, and the bound on kept trees, as of :class:`outlines_phi.PhiTransformers`.

    Raises
    ------
    UnsupportedError
        ``lm`` is no language model, or ``encode`` no function.
    """
    if not isinstance(lm, LanguageModel):
        raise UnsupportedError(
            f"Derive the model from outlines_phi.lm.LanguageModel, or wrap a model of Outlines with outlines_phi.wrap(model). "
            f"lm={shown(lm)} was given."
        )
    if encode is not None and not callable(encode):
        raise UnsupportedError(
            f"Let encode= be a function from a text to its token ids. encode={shown(encode)} was given."
        )
    return OwnModel(lm, encode, phi=phi, banned_phrases=banned_phrases, max_tree_bytes=max_tree_bytes)


_MODULE = "guidance.models._transformers"


def over_guidance(model: Any, **options: Any) -> PhiTransformers:
    """Return a model that takes ``phi=`` over the weights and the tokenizer that a ``guidance.models.Transformers`` holds.

    ``options`` are those of :class:`PhiTransformers`.

    Raises
    ------
    UnsupportedError
        The model holds text, or settings of sampling, already; or this version of guidance keeps its weights elsewhere.
    """
    engine = getattr(getattr(model, "_interpreter", None), "engine", None)
    hf_model, tokenizer = getattr(engine, "model_obj", None), getattr(engine, "_orig_tokenizer", None)
    if hf_model is None or tokenizer is None:
        raise UnsupportedError(
            "Give outlines_phi.from_transformers(hf_model, hf_tokenizer) the two that the model was made of. This version of "
            "guidance keeps them where they are not found."
        )
    if str(model):
        raise UnsupportedError(
            "Wrap the model before text is added to it, and give its text as the prompt, str(lm). This one holds "
            f"{str(model)!r:.60}."
        )
    said = {key: value for key, value in dict(getattr(model, "sampling_params", {})).items() if value is not None}
    if said:
        raise UnsupportedError(
            f"Wrap the model without sampling_params, and give these to the call: top_p=, top_k=, ... It holds {said}."
        )
    return PhiTransformers(hf_model, tokenizer, **options)


HOSTS: dict[type, str] = {
    Transformers: "transformers:PhiTransformers",
    LlamaCpp: "llamacpp:PhiLlamaCpp",
    MLXLM: "mlx:PhiMLXLM",
    VLLMOffline: "vllm_offline:PhiVLLMOffline",
    VLLM: "vllm_server.phi_vllm:PhiVLLM",
    AsyncVLLM: "vllm_server.phi_vllm:PhiAsyncVLLM",
}
"""By the class of a model of Outlines: the class that takes ``phi=`` over it, whose library is imported when it is asked for."""


def _maker(model: Any) -> Callable[..., PhiModel] | None:
    """Return the wrapper of a model of Outlines, of guidance, or one of ours; ``None`` for all others."""
    if any(one.__module__ == _MODULE and one.__name__ == "Transformers" for one in type(model).__mro__):
        return partial(over_guidance, model)
    host: Any = type(model) if isinstance(model, PhiModel) else None
    if type(model) in HOSTS:
        module, _, name = HOSTS[type(model)].partition(":")
        host = getattr(import_module(f".hosts.{module}", __package__), name)
    if not hasattr(host, "made_of"):
        return None
    parts = {
        name: reduce(lambda one, part: getattr(one, part, None), place.split("."), model)
        for name, place in host.made_of.items()
    }
    return partial(host, **parts)


_LOCK = threading.RLock()
_WRAPPED: WeakKeyDictionary[Any, PhiModel] = WeakKeyDictionary()
"""By the model of Outlines; kept, so that their trees are."""


def wrapped(model: Any, call: str = "wrap(model)", second: Any = None) -> PhiModel:
    """Return a model that takes ``phi=`` as it is, and the form of one of Outlines that does, always the same.

    Errors say what ``call`` expects, and whether ``second``, given after it, is the model.
    """
    if isinstance(model, PhiModel):
        return model
    if _maker(model) is None:
        raise no_model(model, call, second)
    with _LOCK:
        if model not in _WRAPPED:
            _WRAPPED[model] = wrap(model)
        return _WRAPPED[model]


def wrap(
    model: Any,
    *,
    phi: str | Phi | Unset | None = Unset.UNSET,
    banned_phrases: Ban | Unset | None = Unset.UNSET,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> PhiModel:
    """Return the ``phi=`` taking form of an existing Outlines model; the original is left as it is.

    The new model has trees of its own; where ``phi`` or ``banned_phrases`` is left out, a model that is wrapped already keeps its
    own. A model that cannot be corrected is wrapped all the same where neither is given: its calls are those of plain Outlines, and
    the first one that asks for more raises why it cannot be had.

    Raises
    ------
    UnsupportedError, VocabularyError
        Not a text model made by ``outlines.from_transformers``, ``from_llamacpp``, ``from_mlxlm`` or ``from_vllm_offline``, nor a
        ``guidance.models.Transformers`` without text; or, with ``phi`` or ``banned_phrases``, one that cannot be corrected.
    """
    make = _maker(model)
    if make is None:
        raise no_model(model, "wrap(model)")
    made = make(
        phi=getattr(model, "phi", None) if isinstance(phi, Unset) else phi,
        banned_phrases=getattr(model, "banned_phrases", None) if isinstance(banned_phrases, Unset) else banned_phrases,
        max_tree_bytes=max_tree_bytes,
    )
    if hasattr(model, "type_adapter"):  # which says whether texts are put into the chat template
        vars(made)["type_adapter"] = model.type_adapter
    return made


@contextmanager
def needing(extra: str, given: str | None = None) -> Iterator[None]:
    """Turn a missing package into the command that installs its extra, for ``given``; by default for a host of that name."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f'Install it, by pip install "outlines_phi[{extra}]". {given or "--host " + extra} needs the package {error.name}, '
            "which is not here."
        ) from error


def from_vllm_offline(
    llm: Any,
    *,
    lora_request: Any = None,
    phi: str | Phi | None = None,
    banned_phrases: Ban | None = None,
    max_tree_bytes: int = MAX_TREE_BYTES,
) -> PhiModel:
    """Return an Outlines model that takes ``phi=``, from a ``vllm.LLM(model, **outlines_phi.vllm.ENGINE)``.

    The counterpart of ``outlines.from_vllm_offline``. ``lora_request`` is an adapter, for all calls of the model; models of
    several adapters share an engine, but no tree. The other parameters are those of :class:`outlines_phi.PhiTransformers`. An
    engine that cannot be read is refused now, with or without ``phi``.

    Raises
    ------
    UnsupportedError, VocabularyError
        See :class:`outlines_phi.lm.vllm.vllm_model.VLLMModel`; or vLLM is not installed.
    """
    with needing("vllm", "from_vllm_offline"):
        host = import_module(".hosts.vllm_offline", __package__).PhiVLLMOffline
    made: PhiModel = host(llm, lora_request, phi=phi, banned_phrases=banned_phrases, max_tree_bytes=max_tree_bytes)
    _ = made.lm  # raises why it cannot be corrected
    return made
