"""An Outlines model that takes ``phi=``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor
from outlines.generator import SteerableGenerator
from outlines.models.transformers import Transformers
from outlines.types.dsl import CFG

from ..errors import EmptyLanguageError, UnsupportedError
from ..guides.index import is_byte_level
from ..guides.table import Table
from ..lm.transformers.model import TransformersModel
from ..phi.estimator import Phi
from ..phi.store import TreeStore
from ..sampling.draws import Draws
from ..sampling.resolve import sampler_for
from ..sampling.sampler import Request
from ..settings import SamplingSettings
from ..vocabulary import Vocabulary
from .compiled import CompiledTypes
from .options import CallOptions, Unset, resolve_phi
from .output_types import to_term
from .processor import MaskLogitsProcessor
from .tokenizer import ByteTokenizer

READABLE = "outlines_core"
"""The backend whose languages can be read; the default of Outlines for regex and JSON."""

BACKENDS = (READABLE, "llguidance", "xgrammar")
"""The backends that Outlines has."""


class PhiTransformers(Transformers):
    """A stock Outlines ``Transformers`` model whose calls may carry ``phi=``.

    Without ``phi=`` every call goes through Hugging Face's own ``generate`` under our mask, with every keyword. With
    it, ``model(prompt, T, phi="exact")``, ``outlines.Generator(model, T)(prompt, phi="exact")`` and their batches
    draw from the law that ``phi`` names; nothing of Outlines is patched.

    Parameters
    ----------
    model, tokenizer
        A Hugging Face causal language model and its tokenizer.
    device_dtype
        As for Outlines.
    phi
        The default of every call; ``None`` for plain Outlines.
    max_tree_bytes
        Bound on the memory of the token trees kept between calls.

    Raises
    ------
    UnsupportedError
        Not a causal text model.
    VocabularyError
        The tokenizer does not fit the model, or its bytes cannot be known.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        device_dtype: torch.dtype | None = None,
        phi: str | Phi | None = None,
        max_tree_bytes: int = 2**30,
    ) -> None:
        self.phi = resolve_phi(phi)
        self.lm = _language_model(model, tokenizer)
        super().__init__(model, tokenizer, device_dtype=device_dtype)
        self.tokenizer = ByteTokenizer(tokenizer)
        self._trees = TreeStore(max_tree_bytes)
        self._drawing = threading.RLock()
        self._compiled = CompiledTypes(self.lm.vocabulary)

    def __call__(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Any:
        """Generate one text, or a list of them where ``num_return_sequences`` is more than 1.

        The output type is compiled at the first call that needs it.
        """
        return self._generator(output_type, backend, keywords)(model_input, **keywords)

    def batch(
        self, model_input: list[Any], output_type: Any = None, backend: str | None = None, **keywords: Any
    ) -> list[Any]:
        """Generate for several prompts in shared model calls."""
        return self._generator(output_type, backend, keywords).batch(model_input, **keywords)

    def generate(
        self, model_input: Any, output_type: Any = None, *, phi: str | Phi | Unset | None = Unset.UNSET, **keywords: Any
    ) -> str | list[str]:
        """Generate under a logits processor that Outlines built; see :class:`PhiTransformers`."""
        resolved = self._resolve(phi, output_type)
        if resolved is None:
            return super().generate(model_input, self._host_processor(output_type, keywords), **keywords)
        options = CallOptions.read(keywords, self.model.generation_config)
        draws = self.draw([model_input], self._compiled.of_processor(output_type), resolved, options)[0]
        return _texts(draws, options.settings)

    def generate_batch(
        self,
        model_input: list[Any],
        output_type: Any = None,
        *,
        phi: str | Phi | Unset | None = Unset.UNSET,
        **keywords: Any,
    ) -> list[Any]:
        """Generate for several prompts; as :meth:`generate`."""
        _check_batch(model_input)
        resolved = self._resolve(phi, output_type)
        if not model_input:
            return []
        if resolved is None:
            return super().generate_batch(model_input, self._host_processor(output_type, keywords), **keywords)
        options = CallOptions.read(keywords, self.model.generation_config)
        results = self.draw(model_input, self._compiled.of_processor(output_type), resolved, options)
        return [_texts(draws, options.settings) for draws in results]

    def generate_stream(self, model_input: Any, output_type: Any = None, **keywords: Any) -> Iterator[str]:
        """Refuse, as stock Outlines does for ``transformers`` models."""
        raise UnsupportedError(
            "Streaming is not offered for transformers models, as in stock Outlines; call the model instead."
        )

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt (``str`` or ``Chat``): what all calls with ``phi=`` come down to."""
        _check_batch(inputs)
        if not inputs:
            return []
        request = Request(
            lm=self.lm,
            table=table,
            prompts=[self._prompt_ids(item) for item in inputs],
            settings=options.settings,
            n=options.n,
        )
        # Threads that share a model take turns: their calls share trees.
        with self._drawing:
            return sampler_for(phi, self._trees).sample(request)

    def table(self, output_type: Any) -> Table:
        """Return the compiled form of ``output_type``, kept for later calls."""
        return self._compiled.of_type(output_type)

    def clear_cache(self) -> None:
        """Forget every kept tree and every compiled output type."""
        self._trees.clear()
        self._compiled.clear()

    def _resolve(self, phi: str | Phi | Unset | None, processor: Any) -> Phi | None:
        if phi is Unset.UNSET:
            # Free text is the model's own law already: the default has nothing to correct there.
            return None if processor is None else self.phi
        return resolve_phi(phi)

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        try:
            _, inputs = self._prepare_model_inputs(model_input)
        except (TypeError, ValueError) as error:
            raise UnsupportedError(
                f"The prompt {model_input!r:.80} cannot be read: {error} Give a str of valid Unicode, or an Outlines "
                "Chat where the tokenizer has a chat template; batch() takes a list of them."
            ) from error
        return tuple(inputs["input_ids"][0][inputs["attention_mask"][0].bool()].long().tolist())

    def _generator(self, output_type: Any, backend: str | None, keywords: dict[str, Any]) -> SteerableGenerator:
        if backend not in (None, *BACKENDS):
            raise UnsupportedError(f"backend={backend!r} was given; expected one of {', '.join(BACKENDS)}, or None.")
        corrected = resolve_phi(self.phi if "phi" not in keywords else keywords["phi"]) is not None
        if backend not in (None, READABLE) and output_type is not None and corrected:
            raise UnsupportedError(
                f"phi= cannot read the language of backend={backend!r}; use backend={READABLE!r} (the default for "
                "regex and JSON), or phi=None."
            )
        host_only = output_type is None or backend not in (None, READABLE)
        if host_only or (not corrected and isinstance(to_term(output_type), CFG)):
            return SteerableGenerator(self, output_type, backend)
        return SteerableGenerator.from_processor(self, MaskLogitsProcessor(self.table(output_type)))

    def _host_processor(self, processor: Any, keywords: dict[str, Any]) -> Any:
        """Return what runs in Hugging Face's loop: our mask where the language can be read, else ``processor``."""
        if "seed" in keywords:
            raise UnsupportedError(
                "seed= was given without phi=; Hugging Face's generate takes its randomness from "
                "torch.manual_seed(seed)."
            )
        ours = isinstance(processor, MaskLogitsProcessor)
        if ours or (isinstance(processor, OutlinesCoreLogitsProcessor) and is_byte_level(processor.index)):
            # A fresh one for each generation, so that no state is left of the last one.
            return MaskLogitsProcessor(self._compiled.of_processor(processor))
        return processor


def _texts(draws: Draws, settings: SamplingSettings) -> str | list[str]:
    """Return what stock Outlines would: a text, or a list where several were asked for."""
    if draws.failures:
        raise EmptyLanguageError(
            f"{draws.failures} of {draws.failures + len(draws)} trajectories met a step where "
            f"{settings.truncation or 'the model'} leaves no allowed token; they are draws of weight 0, which texts cannot "
            "tell. Loosen the truncation, use phi='exact', or take the weights: "
            "outlines_phi.Generator(model, T).sample(prompt, n=...)."
        )
    return draws.texts[0] if len(draws) == 1 else draws.texts


def _check_batch(inputs: Any) -> None:
    if not isinstance(inputs, (list, tuple)):
        raise UnsupportedError(
            f"A {type(inputs).__name__} was given as the prompts of a batch; expected a list of str or Chat."
        )


def _language_model(model: Any, tokenizer: Any) -> TransformersModel:
    if not callable(getattr(tokenizer, "convert_ids_to_tokens", None)):
        raise UnsupportedError(
            f"{type(tokenizer).__name__} was given as tokenizer; expected a text tokenizer "
            "(AutoTokenizer.from_pretrained). Multimodal models, whose tokenizer is a processor, cannot be corrected "
            "by this version."
        )
    config = getattr(getattr(model, "config", None), "get_text_config", lambda: None)()
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    size = getattr(output, "out_features", None) or getattr(config, "vocab_size", None)
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    eos_ids = [ends] if isinstance(ends, int) else list(ends or ())
    # The tokenizer's own first, where the model stops at it: the one that stock Outlines allows.
    eos_ids.sort(key=lambda v: v != tokenizer.eos_token_id)
    return TransformersModel(model, Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=eos_ids))


def from_transformers(
    model: Any,
    tokenizer: Any,
    *,
    device_dtype: torch.dtype | None = None,
    phi: str | Phi | None = None,
    max_tree_bytes: int = 2**30,
) -> PhiTransformers:
    """Return an Outlines model that takes ``phi=``, from a Hugging Face model and tokenizer.

    The counterpart of ``outlines.from_transformers``; see :class:`PhiTransformers`.
    """
    return PhiTransformers(model, tokenizer, device_dtype=device_dtype, phi=phi, max_tree_bytes=max_tree_bytes)


def wrap(model: Any, *, phi: str | Phi | None = None, max_tree_bytes: int = 2**30) -> PhiTransformers:
    """Return the ``phi=`` taking form of an existing Outlines model; the original is left as it is.

    The new model has the ``phi`` and the memory bound given here, and trees of its own.

    Raises
    ------
    UnsupportedError
        Not a text model made by ``outlines.from_transformers``.
    """
    if type(model) not in (Transformers, PhiTransformers):
        raise UnsupportedError(
            f"{type(model).__name__} was given to wrap(); expected a model made by outlines.from_transformers(model, "
            "tokenizer). Multimodal models, servers and other libraries cannot be corrected by this version."
        )
    return PhiTransformers(
        model.model, model.hf_tokenizer, device_dtype=model.device_dtype, phi=phi, max_tree_bytes=max_tree_bytes
    )
