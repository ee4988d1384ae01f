"""The host llama.cpp: Outlines models over llama-cpp-python that take ``phi=``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np
from llama_cpp import Llama
from numpy.typing import NDArray
from outlines.models.llamacpp import LlamaCpp, LlamaCppTokenizer, LlamaCppTypeAdapter

from ...errors import ModelError
from ...guides.fsm import END
from ...lm.llamacpp_model import LlamaCppModel
from ..mistakes import reading
from .transformers import SHOWN, ByteTokenizer, MaskedLoop


@final
class LlamaCppByteTokenizer(LlamaCppTokenizer):
    """A tokenizer that encodes and decodes as the model's own, and shows Outlines bytes for tokens."""

    def __init__(self, llama: Llama) -> None:
        self.tokenizer = llama.tokenizer()
        self.special_tokens: set[str] = set()
        self.vocabulary = SHOWN
        self.eos_token_id = self.pad_token_id = END
        self.eos_token = "<end>"
        self._hf_tokenizer = self._hash = None

    convert_token_to_string = ByteTokenizer.convert_token_to_string


@final
class PhiLlamaCpp(MaskedLoop, LlamaCpp):
    """A stock Outlines ``LlamaCpp`` model whose calls may carry ``phi=``.

    Without ``phi=`` a call is llama.cpp's own completion under our mask, with every keyword and every default of llama.cpp (a
    temperature of 0.8, ``top_k=40``, ``max_tokens=16``). With it, draws follow the model's own distribution conditioned on the
    format, at a temperature of 1 unless the call says otherwise.

    Parameters
    ----------
    model
        A ``llama_cpp.Llama``.
    chat_mode
        As for Outlines: whether texts are the messages of a user, under the chat template of the model.
    options
        ``phi``, ``banned_phrases`` and ``max_tree_bytes``, as of :class:`outlines_phi.PhiTransformers`.

    Raises
    ------
    UnsupportedError, VocabularyError
        See :class:`outlines_phi.lm.llamacpp_model.LlamaCppModel`; raised at the first call that asks for a correction.
    """

    stock, library = LlamaCpp, "llama.cpp"
    made_of: ClassVar = {"model": "model", "chat_mode": "type_adapter.has_chat_template"}

    def __init__(self, model: Llama, chat_mode: bool = True, **options: Any) -> None:
        MaskedLoop.__init__(self, **options)
        self.model, self.tokenizer = model, LlamaCppByteTokenizer(model)
        self.type_adapter = LlamaCppTypeAdapter(has_chat_template=chat_mode)
        self.hf_tokenizer = getattr(model.tokenizer_, "hf_tokenizer", None)

    @cached_property
    def lm(self) -> LlamaCppModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return LlamaCppModel(self.model)

    def _ended(self, logits: NDArray[np.single]) -> NDArray[np.single]:
        ended = np.full_like(logits, -np.inf)
        ended[self.model.token_eos()] = 0.0
        return ended

    def _prompt_ids(self, model_input: Any, *, thinking: bool = False) -> tuple[int, ...]:
        return prompt_ids(self.model, self._formatted(model_input, thinking=thinking))


class _PromptRead(Exception):
    """Carries the ids of a prompt, its arguments, out of a completion that is not made."""


class _Reader(Llama):
    """A ``Llama`` whose completions read their prompt, by whatever template, and end there."""

    def __init__(self, llama: Llama) -> None:
        self.__dict__.update(llama.__dict__, cache=None)

    def generate(self, tokens: Sequence[int], *args: Any, **keywords: Any) -> Any:
        raise _PromptRead(*map(int, tokens))

    def close(self) -> None:
        """Do nothing: the weights belong to the other object."""


def prompt_ids(llama: Llama, prompt: str | list[Any]) -> tuple[int, ...]:
    """Return the token ids that llama.cpp would complete, for a text or the messages of a chat.

    Raises :class:`UnsupportedError`: it is no prompt.
    Raises :class:`ModelError`: it does not fit the context.
    """
    reader = _Reader(llama)
    with reading(prompt):
        try:
            reader(prompt) if isinstance(prompt, str) else reader.create_chat_completion(prompt)
        except _PromptRead as read:
            return read.args
        except ValueError as error:
            raise ModelError(
                f"Shorten the prompt, or give a larger n_ctx= to Llama. llama.cpp does not take it: {error}."
            ) from error
    raise AssertionError("a completion asks for tokens")
