"""An Outlines model that takes ``phi=``."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor
from outlines.generator import SteerableGenerator
from outlines.models.transformers import Transformers
from outlines.types.dsl import CFG

from ..canonical import CanonicalTokenization
from ..errors import EmptyLanguageError, UnsupportedError
from ..fidelity.probabilities import Probabilities, probabilities
from ..guides.index import is_byte_level
from ..guides.table import Table
from ..lm.interruption import interruptible, turn
from ..lm.transformers.model import TransformersModel
from ..phi.constraint import all_of
from ..phi.estimator import Phi
from ..phi.exact import Effort
from ..phi.store import TreeStore
from ..sampling.ancestral import AncestralSampler
from ..sampling.draws import Draws
from ..sampling.ranking import Ranking, rank
from ..sampling.resolve import sampler_for
from ..sampling.sampler import Request, no_tokens
from .asynchronous import Worker
from .compiled import CompiledTypes
from .mistakes import check_loaded, no_prompt
from .options import UNCHOSEN, CallOptions, Unset, proposing, resolve_phi
from .output_types import to_term
from .processor import MaskLogitsProcessor
from .search import best_texts
from .streaming import Pieces, accepted, check_stream, hosted, pieces, stepped, stoppable
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
        check_loaded(model, tokenizer)
        self.lm = TransformersModel.with_tokenizer(model, tokenizer)
        super().__init__(model, tokenizer, device_dtype=device_dtype)
        self.tokenizer = ByteTokenizer(tokenizer)
        self._trees = TreeStore(max_tree_bytes)
        self._drawing = threading.RLock()
        self.worker = Worker()
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

    def stream(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Pieces:
        """Yield the text of a call piece by piece: only what is accepted, whole characters, never taken back."""
        return self._generator(output_type, backend, keywords).stream(model_input, **keywords)

    async def agenerate(self, model_input: Any, output_type: Any = None, **keywords: Any) -> Any:
        """Return what a call does, without blocking the event loop; cancelling stops it at its next model call."""
        return await self.worker.run(partial(self, model_input, output_type, **keywords))

    async def abatch(self, model_input: list[Any], output_type: Any = None, **keywords: Any) -> list[Any]:
        """Return what :meth:`batch` does; as :meth:`agenerate`."""
        return await self.worker.run(partial(self.batch, model_input, output_type, **keywords))

    def astream(self, model_input: Any, output_type: Any = None, **keywords: Any) -> AsyncGenerator[str, None]:
        """Yield what :meth:`stream` does; as :meth:`agenerate`."""
        return self.worker.stream(partial(self.stream, model_input, output_type, **keywords))

    def generate(
        self, model_input: Any, output_type: Any = None, *, phi: str | Phi | Unset | None = Unset.UNSET, **keywords: Any
    ) -> str | list[str]:
        """Generate under a logits processor that Outlines built; see :class:`PhiTransformers`."""
        resolved = self._resolve(phi, output_type, keywords)
        if resolved is None:
            self._check_prompts([model_input])
            processor = self._host_processor(output_type, keywords)
            return super().generate(model_input, processor, **stoppable(keywords))
        if keywords.get("do_sample") is False:
            return best_texts(self, [model_input], self._compiled.of_processor(output_type), resolved, keywords)[0]
        options = CallOptions.read(keywords, self.model.generation_config)
        draws = self.draw([model_input], self._compiled.of_processor(output_type), resolved, options)[0]
        return _texts(draws, options)

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
        resolved = self._resolve(phi, output_type, keywords)
        if not model_input:
            return []
        if resolved is None:
            self._check_prompts(model_input)
            processor = self._host_processor(output_type, keywords)
            return super().generate_batch(model_input, processor, **stoppable(keywords))
        if keywords.get("do_sample") is False:
            return best_texts(self, model_input, self._compiled.of_processor(output_type), resolved, keywords)
        options = CallOptions.read(keywords, self.model.generation_config)
        results = self.draw(model_input, self._compiled.of_processor(output_type), resolved, options)
        return [_texts(draws, options) for draws in results]

    def generate_stream(
        self, model_input: Any, output_type: Any = None, *, phi: str | Phi | Unset | None = Unset.UNSET, **keywords: Any
    ) -> Pieces:
        """Generate piece by piece under a logits processor that Outlines built; checked now, begun with the first piece."""
        resolved = self._resolve(phi, output_type, keywords)
        check_stream(model_input, keywords, self.model.generation_config, resolved is not None)
        if resolved is None:
            self._check_prompts([model_input])
            generate = partial(super().generate, model_input, self._host_processor(output_type, keywords))
            first = lambda token: self.tokenizer.decode([[token]])[0]  # noqa: E731
            return pieces(hosted(generate, stoppable(keywords)), self.lm.vocabulary, first)
        options = CallOptions.read(keywords, self.model.generation_config)
        table = self._compiled.of_processor(output_type)
        request = self._request([model_input], table, options)
        match sampler_for(resolved, self._trees, options.sampler):
            case AncestralSampler() as sampler:
                if request.constraint is not None:
                    raise UnsupportedError(
                        f"{request.constraint} was given to a stream of a step estimator: whether a token stays is known only "
                        "at the end. Stream with phi='exact' or phi='auto', or call without a stream."
                    )
                return pieces(stepped(sampler, request, self._drawing), self.lm.vocabulary)
            case _:
                draw = partial(self.draw, [model_input], table, resolved, options)
                return pieces(accepted(draw, options), self.lm.vocabulary)

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt (``str`` or ``Chat``): what all calls with ``phi=`` come down to."""
        _check_batch(inputs)
        if not inputs:
            return []
        request = self._request(inputs, table, options)
        # Threads that share a model take turns: their calls share trees.
        with turn(self._drawing):
            return sampler_for(phi, self._trees, options.sampler).sample(request)

    @contextmanager
    def asking(self, inputs: Sequence[Any], processor: Any, options: CallOptions) -> Iterator[Request]:
        """Yield what a call under a logits processor asks for, while no other thread draws from the model."""
        request = self._request(inputs, self._compiled.of_processor(processor), options)
        with turn(self._drawing):
            yield request

    def rank(
        self,
        inputs: Sequence[Any],
        table: Table,
        options: CallOptions,
        top: int,
        reader: Callable[[str], Any] = str,
        **limits: Any,
    ) -> list[Ranking]:
        """Return the ``top`` most probable members after every prompt; ``limits`` as :func:`rank` takes them."""
        _check_batch(inputs)
        if not inputs:
            return []
        with turn(self._drawing):
            return rank(self._request(inputs, table, options), top, self._trees, reader=reader, **limits)

    def probabilities(
        self,
        inputs: Sequence[Any],
        table: Table,
        options: CallOptions,
        reader: Callable[[str], Any] | None,
        *,
        tolerance: float,
        effort: Effort,
    ) -> list[Probabilities]:
        """Return the probability of every value after every prompt; see :mod:`outlines_phi.fidelity.probabilities`."""
        _check_batch(inputs)
        if not inputs:
            return []
        request = self._request(inputs, table, options)
        law = *request.law, request.prompts, request.budgets, request.constraint
        with turn(self._drawing), self._trees.lend(*law, starts=request.starts) as trees:
            return probabilities(
                request.lm,
                request.settings,
                request.prompts,
                trees,
                tolerance=tolerance,
                max_tokens=effort.tokens,
                max_bytes=self._trees.share(len(trees)),
                reader=reader,
            )

    def _request(self, inputs: Sequence[Any], table: Table, options: CallOptions) -> Request:
        return Request(
            lm=interruptible(self.lm),
            table=table,
            prompts=[self._prompt_ids(item) for item in inputs],
            settings=options.settings,
            n=options.n,
            constraint=all_of(
                options.constraint and options.constraint.over(self.lm.vocabulary),
                self._canonical if options.tokenization == "canonical" else None,
            ),
        )

    @cached_property
    def _canonical(self) -> CanonicalTokenization:
        return CanonicalTokenization(self.hf_tokenizer, self.lm.vocabulary)

    def table(self, output_type: Any) -> Table:
        """Return the compiled form of ``output_type``, kept for later calls."""
        return self._compiled.of(output_type)

    def clear_cache(self) -> None:
        """Forget every kept tree and every compiled output type."""
        self._trees.clear()
        self._compiled.clear()

    def _resolve(self, phi: str | Phi | Unset | None, processor: Any, keywords: dict[str, Any]) -> Phi | None:
        sampler = keywords.get("sampler")
        if phi is Unset.UNSET:
            # Free text is the model's own law already: the default has nothing to correct there.
            chosen = self.phi if sampler is None else self.phi or UNCHOSEN
            return None if processor is None else proposing(chosen, sampler)
        return proposing(resolve_phi(phi), sampler)

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        try:
            _, inputs = self._prepare_model_inputs(model_input)
        except (TypeError, ValueError) as error:
            raise no_prompt(model_input, error) from error
        return tuple(inputs["input_ids"][0][inputs["attention_mask"][0].bool()].long().tolist())

    def _check_prompts(self, inputs: Sequence[Any]) -> None:
        """Refuse what Hugging Face's loop would fail over. Beside others, it takes an empty prompt, as padding."""
        prompts = [self._prompt_ids(item) for item in inputs]
        if not any(prompts):
            raise no_tokens(0, len(prompts))

    def _generator(self, output_type: Any, backend: str | None, keywords: dict[str, Any]) -> SteerableGenerator:
        if backend not in (None, *BACKENDS):
            raise UnsupportedError(f"backend={backend!r} was given; expected one of {', '.join(BACKENDS)}, or None.")
        chosen = resolve_phi(self.phi if "phi" not in keywords else keywords["phi"])
        corrected = chosen is not None or keywords.get("sampler") is not None
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
        if (sampler := keywords.pop("sampler", None)) is not None:
            raise UnsupportedError(
                f"sampler={sampler!r:.80} was given for a call in Hugging Face's own loop. Particles need an output type, and an "
                "estimator that proposes. Leave phi out or give phi='local' or another proposal, not phi=None; or leave sampler "
                "out."
            )
        if keywords.pop("constraint", None) is not None:
            raise UnsupportedError(
                "constraint= was given without phi=; plain masking has to know every token that may follow, and a predicate "
                "answers for one at a time. Give phi='exact' or phi='auto', or leave it out."
            )
        if keywords.pop("tokenization", None) not in (None, "any"):
            raise UnsupportedError(
                "tokenization= was given without phi=; plain masking cannot know where a tokenization is going. Give "
                "phi='exact' or phi='auto', or leave it out."
            )
        ours = isinstance(processor, MaskLogitsProcessor)
        if ours or (isinstance(processor, OutlinesCoreLogitsProcessor) and is_byte_level(processor.index)):
            # A fresh one for each generation, so that no state is left of the last one.
            return MaskLogitsProcessor(self._compiled.of_processor(processor))
        return processor


def _texts(draws: Draws, options: CallOptions) -> str | list[str]:
    """Return what stock Outlines would: a text, or a list where several were asked for."""
    if draws.failures:
        raise EmptyLanguageError(
            f"{draws.failures} of {draws.failures + len(draws)} {options.launched} met a step where {options.obstacle}; they are "
            f"draws of weight 0, which texts cannot tell. {options.remedy}, use phi='exact', or take the weights: "
            "outlines_phi.Generator(model, T).sample(prompt, n=...)."
        )
    return draws.texts[0] if len(draws) == 1 else draws.texts


def _check_batch(inputs: Any) -> None:
    if not isinstance(inputs, (list, tuple)):
        raise UnsupportedError(
            f"A {type(inputs).__name__} was given as the prompts of a batch; expected a list of str or Chat."
        )
