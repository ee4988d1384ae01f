"""The host llama.cpp: Outlines models over llama-cpp-python that take ``phi=``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any, final

import numpy as np
from llama_cpp import Llama
from numpy.typing import NDArray
from outlines.models.llamacpp import LlamaCpp, LlamaCppTokenizer, LlamaCppTypeAdapter

from ...errors import ModelError, UnsupportedError
from ...guides.index import END, TOKENS
from ...lm.llamacpp.llamacpp_model import LlamaCppModel
from ...phi.estimator import Phi
from ..call import Ban, Call
from ..mistakes import no_prompt
from ..processor import MaskLogitsProcessor
from ..session import MAX_TREE_BYTES, PhiModel
from ..streaming import Pieces
from .loop import refuse_options

SHOWN = {token.hex(): i for i, token in enumerate(TOKENS)}
"""The names under which :data:`outlines_phi.guides.index.TOKENS` are shown."""


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

    def convert_token_to_string(self, token: str) -> bytes:
        """Return the bytes that ``token`` stands for; none for the end of sequence."""
        return b"" if token == self.eos_token else bytes.fromhex(token)


@final
class PhiLlamaCpp(PhiModel, LlamaCpp):
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
    phi, banned_phrases, max_tree_bytes
        The defaults of every call, and the bound on kept trees, as of :class:`outlines_phi.PhiTransformers`.

    Raises
    ------
    UnsupportedError, VocabularyError
        See :class:`outlines_phi.lm.llamacpp.llamacpp_model.LlamaCppModel`; raised at the first call that asks for a correction.
    """

    def __init__(
        self,
        model: Llama,
        chat_mode: bool = True,
        *,
        phi: str | Phi | None = None,
        banned_phrases: Ban | None = None,
        max_tree_bytes: int = MAX_TREE_BYTES,
    ) -> None:
        PhiModel.__init__(self, max_tree_bytes, phi, banned_phrases)
        self.model, self.tokenizer = model, LlamaCppByteTokenizer(model)
        self.type_adapter = LlamaCppTypeAdapter(has_chat_template=chat_mode)
        self.hf_tokenizer = getattr(model.tokenizer_, "hf_tokenizer", None)

    @classmethod
    def over(cls, model: Any, **options: Any) -> PhiLlamaCpp:
        """Return the form that takes ``phi=`` of a model of Outlines, which stays as it is; ``options`` as in the constructor."""
        return cls(model.model, model.type_adapter.has_chat_template, **options)

    @cached_property
    def lm(self) -> LlamaCppModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return LlamaCppModel(self.model)

    def _hosted(self, call: Call, given: Any, *, many: bool) -> Any:
        masking = self._masking(call)
        text = (LlamaCpp.generate_batch if many else LlamaCpp.generate)(self, given, masking, **call.keywords)
        if masking is not None:
            masking.check()
        return text

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        masking = self._masking(call)
        written = LlamaCpp.generate_stream(self, prompt, masking, **call.keywords)
        for piece in chain(written, [""]):  # an error may be that of the last token
            if masking is not None:
                masking.check()
            if piece:
                yield piece

    def _masking(self, call: Call) -> InLoop | None:
        """Return what runs in llama.cpp's own loop."""
        refuse_options(call.keywords, "llama.cpp's own loop")
        processor = call.processor(self.compiled) if call.language is not None or call.ban is not None else None
        if getattr(processor, "ban", None) is not None:
            raise UnsupportedError(
                "Give phi='local' with banned phrases, or another estimator: llama.cpp's own loop (phi=None) ends a text where its "
                "max_tokens are written, in the middle of what is banned, too."
            )
        return None if processor is None else InLoop(processor, self.model.token_eos())

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        try:
            prompt = self.type_adapter.format_input(model_input)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise no_prompt(model_input, error) from error
        return prompt_ids(self.model, prompt)


@final
class InLoop:
    """A logits processor in llama.cpp's loop, in NumPy.

    llama.cpp goes on without a processor that raises, and without its mask: here the text ends, and :meth:`check` raises the error.
    """

    def __init__(self, processor: Any, eos: int) -> None:
        self._processor, self._eos = processor, eos
        self._error: BaseException | None = None

    def __call__(self, ids: NDArray[np.intc], logits: NDArray[np.single]) -> NDArray[np.single]:
        if self._error is None:
            try:
                return self._processed(ids, logits)
            except BaseException as error:
                self._error = error
        ended = np.full_like(logits, -np.inf)
        ended[self._eos] = 0.0
        return ended

    def check(self) -> None:
        """Raise what the processor has raised."""
        if self._error is not None:
            raise self._error

    def _processed(self, ids: NDArray[np.intc], logits: NDArray[np.single]) -> NDArray[np.single]:
        if not isinstance(self._processor, MaskLogitsProcessor):
            return np.asarray(self._processor(ids, logits))
        return self._processor.of_arrays(ids, logits)


class _PromptRead(Exception):
    """Carries the ids of a prompt out of a completion that is not made."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(map(int, ids))


class _Reader(Llama):
    """A ``Llama`` whose completions read their prompt, by whatever template, and end there."""

    def __init__(self, llama: Llama) -> None:
        self.__dict__.update(llama.__dict__, cache=None)

    def generate(self, tokens: Sequence[int], *args: Any, **keywords: Any) -> Any:
        raise _PromptRead(tokens)

    def close(self) -> None:
        """Do nothing: the weights belong to the other object."""


def prompt_ids(llama: Llama, prompt: str | list[Any]) -> tuple[int, ...]:
    """Return the token ids that llama.cpp would complete, for a text or the messages of a chat.

    Raises :class:`UnsupportedError`: it is no prompt.
    Raises :class:`ModelError`: it does not fit the context.
    """
    reader = _Reader(llama)
    try:
        reader(prompt) if isinstance(prompt, str) else reader.create_chat_completion(prompt)
    except _PromptRead as read:
        return read.ids
    except TypeError as error:
        raise no_prompt(prompt, error) from error
    except ValueError as error:
        raise ModelError(
            f"Shorten the prompt, or give a larger n_ctx= to Llama. llama.cpp does not take it: {error}."
        ) from error
    raise AssertionError("a completion asks for tokens")
