"""An Outlines model that takes ``phi=``."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal

import torch
from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor
from outlines.generator import SteerableGenerator
from outlines.models.transformers import Transformers

from ..automaton import ByteAutomaton
from ..errors import UnsupportedError
from ..guides.fsm import FSMGuide
from ..guides.index import from_index
from ..guides.regex import compile_regex
from ..guides.table import Table
from ..lm.transformers.model import TransformersModel
from ..phi.estimator import Phi
from ..phi.store import TreeStore
from ..sampling.draws import Draws
from ..sampling.resolve import sampler_for
from ..sampling.sampler import Request
from ..vocabulary import Vocabulary
from .options import CallOptions, resolve_phi
from .output_types import to_pattern
from .processor import MaskLogitsProcessor
from .tokenizer import ByteTokenizer

Unset = Literal["unset"]

COMPILED = 32
"""Compiled output types kept per model."""


class PhiTransformers(Transformers):
    """A stock Outlines ``Transformers`` model whose calls may carry ``phi=``.

    Without ``phi=`` every call goes through Hugging Face's own ``generate`` under our mask, with every keyword. With it,
    ``model(prompt, T, phi="exact")``, ``outlines.Generator(model, T)(prompt, phi="exact")`` and their batches
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
        self._tables: OrderedDict[Hashable, Table] = OrderedDict()

    def __call__(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Any:
        """Generate one text (``num_return_sequences`` of them), compiling ``output_type`` at most once."""
        return self._generator(output_type, backend)(model_input, **keywords)

    def batch(
        self, model_input: list[Any], output_type: Any = None, backend: str | None = None, **keywords: Any
    ) -> list[Any]:
        """Generate for several prompts in shared model calls."""
        return self._generator(output_type, backend).batch(model_input, **keywords)

    def generate(
        self, model_input: Any, output_type: Any = None, *, phi: str | Phi | None | Unset = "unset", **keywords: Any
    ) -> str | list[str]:
        """Generate under a logits processor that Outlines built; see :class:`PhiTransformers`."""
        resolved = self.phi if phi == "unset" else resolve_phi(phi)
        if resolved is None:
            return super().generate(model_input, self._host_processor(output_type), **keywords)
        options = CallOptions.read(keywords, self.model.generation_config)
        draws = self.draw([model_input], self.table_of(output_type), resolved, options)[0]
        return draws.texts[0] if options.n is None else draws.texts

    def generate_batch(
        self, model_input: list[Any], output_type: Any = None, *, phi: str | Phi | None | Unset = "unset", **keywords: Any
    ) -> list[Any]:
        """Generate for several prompts; as :meth:`generate`."""
        resolved = self.phi if phi == "unset" else resolve_phi(phi)
        if resolved is None:
            return super().generate_batch(model_input, self._host_processor(output_type), **keywords)
        options = CallOptions.read(keywords, self.model.generation_config)
        results = self.draw(model_input, self.table_of(output_type), resolved, options)
        return [draws.texts[0] if options.n is None else draws.texts for draws in results]

    def generate_stream(self, model_input: Any, output_type: Any = None, **keywords: Any) -> Iterator[str]:
        """Refuse, as stock Outlines does for ``transformers`` models."""
        raise UnsupportedError("Streaming is not offered for transformers models, as in stock Outlines; call the model instead.")

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt (``str`` or ``Chat``): what all calls with ``phi=`` come down to."""
        if not inputs:
            return []
        request = Request(
            lm=self.lm,
            table=table,
            prompts=[self._prompt_ids(item) for item in inputs],
            settings=options.settings,
            n=1 if options.n is None else options.n,
        )
        return sampler_for(phi, self._trees).sample(request)

    def table(self, output_type: Any) -> Table:
        """Return the compiled form of ``output_type``, kept for later calls."""
        pattern = to_pattern(output_type)
        return self._compiled(pattern, lambda: compile_regex(pattern))

    def table_of(self, processor: Any) -> Table:
        """Return the compiled form of what a logits processor allows.

        Raises
        ------
        UnsupportedError
            No processor (nothing to condition on), or one whose language cannot be read.
        """
        match processor:
            case MaskLogitsProcessor():
                return processor.table
            case OutlinesCoreLogitsProcessor():
                index = processor.index
                return self._compiled((id(index), index), lambda: from_index(index))
            case None:
                raise UnsupportedError("phi= was given without an output type: free text has nothing to correct. Give a type.")
        raise UnsupportedError(
            f"phi= cannot read the language of a {type(processor).__name__}. Use backend='outlines_core' (the default for regex "
            "and JSON), or phi=None."
        )

    def clear_cache(self) -> None:
        """Forget every kept tree and every compiled output type."""
        self._trees.clear()
        self._tables.clear()

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        _, inputs = self._prepare_model_inputs(model_input)
        return tuple(inputs["input_ids"][0][inputs["attention_mask"][0].bool()].tolist())

    def _generator(self, output_type: Any, backend: str | None) -> SteerableGenerator:
        if output_type is None or backend not in (None, "outlines_core"):
            return SteerableGenerator(self, output_type, backend)
        return SteerableGenerator.from_processor(self, MaskLogitsProcessor(self.table(output_type)))

    def _host_processor(self, processor: Any) -> Any:
        """Return our mask in place of a byte-level processor of stock Outlines; any other processor is left alone."""
        if type(processor) is OutlinesCoreLogitsProcessor:
            return MaskLogitsProcessor(self.table_of(processor))
        return processor

    def _compiled(self, key: Hashable, build: Any) -> Table:
        if key not in self._tables:
            automaton: ByteAutomaton = build()
            self._tables[key] = Table(FSMGuide.from_automaton(automaton, self.lm.vocabulary))
        self._tables.move_to_end(key)
        while len(self._tables) > COMPILED:
            self._tables.popitem(last=False)
        return self._tables[key]


def _language_model(model: Any, tokenizer: Any) -> TransformersModel:
    if not callable(getattr(tokenizer, "convert_ids_to_tokens", None)):
        raise UnsupportedError(
            f"{type(tokenizer).__name__} was given as tokenizer; expected a text tokenizer (AutoTokenizer.from_pretrained). "
            "Multimodal models, whose tokenizer is a processor, cannot be corrected by this version."
        )
    config = getattr(getattr(model, "config", None), "get_text_config", lambda: None)()
    output = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    size = getattr(output, "out_features", None) or getattr(config, "vocab_size", None)
    ends = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    eos_ids = [ends] if isinstance(ends, int) else list(ends or ())
    return TransformersModel(model, Vocabulary.from_tokenizer(tokenizer, size=size, eos_ids=eos_ids))


def from_transformers(
    model: Any, tokenizer: Any, *, device_dtype: torch.dtype | None = None, phi: str | Phi | None = None
) -> PhiTransformers:
    """Return an Outlines model that takes ``phi=``, from a Hugging Face model and tokenizer.

    The counterpart of ``outlines.from_transformers``; see :class:`PhiTransformers`.
    """
    return PhiTransformers(model, tokenizer, device_dtype=device_dtype, phi=phi)


def wrap(model: Any, *, phi: str | Phi | None = None) -> PhiTransformers:
    """Return the ``phi=`` taking form of an existing Outlines model; the original is left as it is.

    Raises
    ------
    UnsupportedError
        Not a text model made by ``outlines.from_transformers``.
    """
    if type(model) not in (Transformers, PhiTransformers):
        raise UnsupportedError(
            f"{type(model).__name__} was given to wrap(); expected a model made by outlines.from_transformers(model, tokenizer). "
            "Multimodal models, servers and other libraries cannot be corrected by this version."
        )
    return PhiTransformers(model.model, model.hf_tokenizer, device_dtype=model.device_dtype, phi=phi)
