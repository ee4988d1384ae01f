"""Arguments given by mistake in place of a model, a prompt or an output type, and the error of each."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args, is_typeddict

from outlines.inputs import Audio, Chat, Image, Video
from outlines.models.transformers import Transformers
from outlines.types import utils as kind

from ..errors import OutlinesPhiError, UnsupportedError
from ..numerics.checks import is_count


def loading(name: str) -> str:
    """Return the line that loads a model of that name; ``name`` is as in code."""
    return (
        f"outlines_phi.from_transformers(AutoModelForCausalLM.from_pretrained({name}), "
        f"AutoTokenizer.from_pretrained({name})), both of transformers"
    )


_WEIGHTS = f"Load its weights by {loading('name')}"
_OPEN = f"Load a model whose weights are public by {loading('name')}"
_SERVER = "hands the output type to a server that decodes by itself"
_SERVICE = "hands the output type to a service that decodes by itself"

REFUSED: dict[str, tuple[str, str]] = {
    **dict.fromkeys(("SGLang", "AsyncSGLang", "TGI", "AsyncTGI"), (_WEIGHTS, _SERVER)),
    **dict.fromkeys(("Ollama", "AsyncOllama", "LMStudio", "AsyncLMStudio"), (_WEIGHTS, _SERVER)),
    **dict.fromkeys(("OpenAI", "AsyncOpenAI", "Anthropic", "Gemini", "Mistral", "AsyncMistral"), (_OPEN, _SERVICE)),
    **dict.fromkeys(("Dottxt", "AsyncDottxt"), (_OPEN, _SERVICE)),
    "TransformersMultiModal": (
        f"Load a text-only version by {loading('name')}",
        "takes images, audio or video beside text",
    ),
}
"""By the name of the class: what to do instead, and why there is nothing to correct."""


def refusal(given: Any) -> UnsupportedError | None:
    """Return the error for a model of Outlines or guidance that cannot be corrected; ``None`` for everything else."""
    for each in type(given).__mro__:
        if each.__module__.startswith("guidance.models."):
            return UnsupportedError(
                f"{_WEIGHTS}, or make a guidance.models.Transformers of them; for a file of llama.cpp, wrap "
                f"outlines.from_llamacpp(llama). guidance.models.{type(given).__name__} is none of those that wrap(model) takes."
            )
        if each.__module__.startswith("outlines.") and each.__name__ in REFUSED:
            instead, why = REFUSED[each.__name__]
            return UnsupportedError(f"{instead}. {type(given).__name__} {why}, so phi= cannot correct it.")
    return None


def pretrained() -> tuple[type, ...]:
    """Return ``PreTrainedModel`` for ``isinstance``; nothing while transformers has not loaded it, since no model exists then."""
    module = sys.modules.get("transformers.modeling_utils")
    return () if module is None else (module.PreTrainedModel,)


def no_model(given: Any, call: str, second: Any = None) -> UnsupportedError:
    """Return the error for what was given as the model of ``call``; ``second`` is what was given after it."""
    if (refused := refusal(given) or refusal(getattr(given, "model", None))) is not None:
        return refused
    models = pretrained()
    match given, second:
        case _ if isinstance(second, (Transformers, *models)):
            how = f"a {type(second).__name__} after it: were the arguments swapped? Expected {call}"
        case _ if isinstance(given, (str, *models)):
            return not_loaded(given)
        case Transformers(), _:
            how = (
                "a class of its own, whose methods would be lost. Give what it is made of: "
                "outlines_phi.from_transformers(model.model, model.hf_tokenizer)"
            )
        case _:
            how = (
                "expected a model made by outlines.from_transformers(hf_model, hf_tokenizer), from_llamacpp, from_mlxlm or "
                "from_vllm_offline, for outlines_phi.wrap(model), or by outlines_phi.from_transformers(hf_model, hf_tokenizer)"
            )
    return UnsupportedError(f"{_name(given)} was given as model; {how}.")


def not_loaded(given: Any, what: str = "model") -> UnsupportedError:
    """Return the error for a name given as model or tokenizer, or for a Hugging Face model without its tokenizer."""
    if isinstance(given, str):
        return UnsupportedError(f"Load it first, by {loading(repr(given))}: the name {given!r} was given as {what}.")
    return UnsupportedError(
        f"Give both: outlines_phi.from_transformers(hf_model, hf_tokenizer), that is {loading('name')}. "
        f"The Hugging Face model {_name(given)} was given as model, without its tokenizer."
    )


def check_loaded(model: Any, tokenizer: Any) -> None:
    """Refuse names, and a tokenizer in place of the model."""
    for given, what in ((model, "model"), (tokenizer, "tokenizer")):
        if isinstance(given, str):
            raise not_loaded(given, what)
    if isinstance(tokenizer, pretrained()) and not isinstance(model, pretrained()):
        raise UnsupportedError(
            "Give from_transformers(hf_model, hf_tokenizer): were the arguments swapped? "
            f"{_name(model)} was given as model, and the model {_name(tokenizer)} as tokenizer."
        )


def check_one(prompt: Any, door: str) -> None:
    """Refuse several prompts where one is expected; ``door`` takes a list of them."""
    if isinstance(prompt, (list, tuple)) and not all(map(is_count, prompt)):  # token ids
        raise UnsupportedError(
            f"A {type(prompt).__name__} of {len(prompt)} was given as prompt; expected one str or Chat. {door} takes a list of "
            "them."
        )


def check_batch(inputs: Any) -> None:
    """Refuse one prompt where several are expected."""
    if not isinstance(inputs, (list, tuple)):
        raise UnsupportedError(
            f"A {type(inputs).__name__} was given as the prompts of a batch; expected a list of str or Chat."
        )


def _has_media(given: Any) -> bool:
    """Return True if a part of some messages is no text."""
    if isinstance(given, (dict, list, tuple)):
        return any(map(_has_media, given.values() if isinstance(given, dict) else given))
    return isinstance(given, (Audio, Image, Video))


@contextmanager
def reading(prompt: Any) -> Iterator[None]:
    """Turn the errors by which Outlines or a tokenizer refuses a prompt into the remedy."""
    if isinstance(prompt, Chat) and _has_media(prompt.messages):
        raise UnsupportedError(
            "Give messages of text alone. A prompt holds an image, audio or video, which models of text do not read."
        )
    try:
        yield
    except OutlinesPhiError:
        raise
    except Exception as error:  # of the chat template, whatever it raises
        of = f"it is of type {type(prompt).__name__}; batch() takes a list"
        raise UnsupportedError(
            "Give a str of valid Unicode, or an Outlines Chat where the tokenizer has a chat template. "
            f"The prompt {prompt!r:.80} cannot be read: {error if isinstance(prompt, (str, Chat)) else of}."
        ) from error


def not_pickled(what: str) -> UnsupportedError:
    """Return the error for ``what`` holds a model and is copied or pickled."""
    return UnsupportedError(
        "Build it in the other process, with outlines_phi.from_transformers(...) there; draws, guides, settings and StateValues "
        f"can be pickled. {what} is neither pickled nor copied: it holds a model, its trees and a thread."
    )


def too_deep(what: str) -> UnsupportedError:
    """Return the error for an output type with more parts inside each other than Python reads."""
    return UnsupportedError(
        f"Write the {what} with fewer levels, or the recursion as a grammar, outlines.types.cfg(text). It is nested too deeply to "
        "be read."
    )


def _has_old_typed_dict(given: Any) -> bool:
    """Return True if an output type is, or holds, a TypedDict that pydantic does not read."""
    old = sys.version_info < (3, 12) and is_typeddict(given)  # which knows those of `typing` alone
    return old or any(map(_has_old_typed_dict, get_args(given)))


def no_format(given: Any, reason: str = "") -> UnsupportedError:
    """Return the error for what was given as output type and is none; ``reason`` is what Outlines says of it."""
    own = type(given)
    if _has_old_typed_dict(given) or "typing_extensions.TypedDict" in reason:  # the second is what pydantic says
        return UnsupportedError(
            f"Write `from typing_extensions import TypedDict`. {given!r:.80} was given as output type, and before Python 3.12 a "
            "TypedDict of `typing` lacks what its format is read from."
        )
    if any(belongs(own) for belongs in _CLASSES):
        return UnsupportedError(
            f"Give the class {own.__name__}, not an instance of it: {given!r:.80} was given as output type."
        )
    how = next((how for kinds, how in _WRAPS if isinstance(given, kinds)), None)
    if how is None:
        return UnsupportedError(
            f"{given!r} is not an output type that Outlines reads: {reason}\nExpected a type such as int, Literal, an Enum, "
            "list[int] or a pydantic model, or a function whose arguments all have types; or write the format as "
            "outlines.types.regex(pattern)."
        )
    if isinstance(given, str) and not (given.lstrip().startswith("{") and given.rstrip().endswith("}")):
        how = f"Wrap it: outlines.types.regex({repr(given) if len(given) <= 60 else 'pattern'})"
    return UnsupportedError(
        f"The output type is the {type(given).__name__} {given!r:.60}; expected a type or an Outlines term. {how}."
    )


_WRAPS: tuple[tuple[Any, str], ...] = (
    (
        str,
        "Wrap it: outlines.types.json_schema(schema) if it is a JSON schema, outlines.types.regex(pattern) if not",
    ),
    (bytes, "Wrap it, as str: outlines.types.regex(pattern)"),
    (dict, "Wrap it: outlines.types.json_schema(schema)"),
    (
        (list, tuple, set, frozenset),
        "Give typing.Literal[tuple(items)] for fixed texts, typing.Union for several types, list[T] for a list",
    ),
)


def _name(given: Any) -> str:
    """Return the name of an argument in messages: a class by its own name, anything else by that of its class."""
    return f"The class {given.__name__}" if isinstance(given, type) else type(given).__name__


_CLASSES = (
    kind.is_pydantic_model,
    kind.is_dataclass,
    kind.is_enum,
    (datetime.date, datetime.time, datetime.datetime).__contains__,
)
"""The tests for the classes of which people give an instance."""
