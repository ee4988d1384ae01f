"""A host for any language model: one of the caller's own, without a loop of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ...errors import UnsupportedError
from ...lm.model import LanguageModel
from ...numerics.checks import is_count, shown
from ...phi.estimator import Phi
from ..call import Ban
from ..session import MAX_TREE_BYTES, PhiModel


@final
class OwnModel(PhiModel):
    """A language model of one's own, with what turns a prompt into its tokens; see :func:`from_language_model`."""

    hf_tokenizer = None

    def __init__(self, lm: LanguageModel, encode: Callable[[str], Sequence[int]] | None, **options: Any) -> None:
        super().__init__(**options)
        self._lm, self._encode = lm, encode

    @property
    def lm(self) -> LanguageModel:
        """The model as samplers see it."""
        return self._lm

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
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
