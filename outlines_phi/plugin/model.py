"""An Outlines model that takes ``phi=``."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from outlines.generator import SteerableGenerator
from outlines.models.transformers import Transformers, TransformerTokenizer

from ..errors import OutlinesPhiError, UnsupportedError
from ..fidelity.probabilities import Probabilities, probabilities
from ..guides.phrases.banned import BannedPhrases
from ..guides.phrases.banning import BanningGuide
from ..guides.table import Table
from ..lm.interruption import turn
from ..lm.transformers.model import TransformersModel
from ..lm.watch import limited
from ..phi.constraint import all_of
from ..phi.estimator import Phi
from ..phi.estimators.exact import Effort
from ..phi.estimators.lookahead import LookaheadPhi
from ..phi.tree.store import TreeStore, afresh
from ..sampling.ancestral import AncestralSampler
from ..sampling.draws import Draws
from ..sampling.lookahead.lookahead_sampler import LookaheadSampler
from ..sampling.ranking import Ranking, rank
from ..sampling.resolve import sampler_for
from ..sampling.sampler import Request, Sampler, no_tokens
from ..vocabulary.canonical import CanonicalTokenization
from .asynchronous import Worker
from .bans import Ban, corrected_as, resolve_ban
from .draft_sources import DraftSources
from .hosts.hosting import Loop, refuse_options
from .hosts.processor import MaskLogitsProcessor, TableLogitsProcessor
from .hosts.tokenizer import ByteTokenizer, as_written
from .mistakes import check_batch, check_loaded, is_stock, no_prompt, not_pickled
from .options import UNCHOSEN, CallOptions, Unset, proposing, resolve_phi
from .progress import telling
from .search import check_closed, search_options, texts
from .streaming import Pieces, accepted, check_stream, hosted, pieces, stepped, stoppable
from .types.backends import engine_name
from .types.output_types import left_to_outlines
from .types.tables import CompiledTypes


class PhiTransformers(Transformers):
    """A stock Outlines ``Transformers`` model whose calls may carry ``phi=``.

    Without ``phi=`` every call goes through Hugging Face's own ``generate`` under our mask, with every keyword. With it, calls
    of the model and of its Outlines generators draw from the law that ``phi`` names; nothing of Outlines is patched.
    ``banned_phrases=[...]`` beside either keeps phrases out of every text, free text too, which is then drawn with a look-ahead
    unless ``phi`` says otherwise. ``draft=`` beside ``phi=`` writes several tokens per model call, and changes no law.

    Parameters
    ----------
    model, tokenizer
        A Hugging Face causal language model and its tokenizer.
    device_dtype
        As for Outlines.
    phi
        The default of every call; ``None`` for plain Outlines.
    banned_phrases
        What no call may write unless it says otherwise: a list of phrases, or a :class:`outlines_phi.BannedPhrases`.
    max_tree_bytes
        Bound on the memory of the token trees kept between calls.

    Raises
    ------
    UnsupportedError
        Not a causal text model. A model for which nothing is to be corrected yet raises this at the first call that asks for it.
    VocabularyError
        The tokenizer does not fit the model, or its bytes cannot be known; as above.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        device_dtype: torch.dtype | None = None,
        phi: str | Phi | None = None,
        banned_phrases: Ban | None = None,
        max_tree_bytes: int = 2**30,
    ) -> None:
        self.phi = resolve_phi(phi)
        self.banned_phrases = resolve_ban(banned_phrases)
        if self.phi is not None:
            corrected_as(self.phi, self.banned_phrases)
        check_loaded(model, tokenizer)
        self.model, self.hf_tokenizer = model, tokenizer
        try:
            shown = self.compiled and self.drafts and ByteTokenizer
        except OutlinesPhiError:
            if self.phi is not None or self.banned_phrases is not None or not is_stock(model, tokenizer):
                raise
            shown = TransformerTokenizer  # plain calls do without a correction
        super().__init__(model, tokenizer, device_dtype=device_dtype)
        self.tokenizer = shown(tokenizer)
        self._trees = TreeStore(max_tree_bytes)
        self._drawing = threading.RLock()
        self.worker = Worker()

    @cached_property
    def lm(self) -> TransformersModel:
        """The model as samplers see it; errors as the constructor's, at every access until there is none."""
        return TransformersModel.with_tokenizer(self.model, self.hf_tokenizer)

    @cached_property
    def compiled(self) -> CompiledTypes:
        return CompiledTypes(self.lm.vocabulary)

    @cached_property
    def drafts(self) -> DraftSources:
        return DraftSources(self.lm)

    def __reduce__(self) -> Any:
        raise not_pickled("A PhiTransformers")

    def __call__(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Any:
        """Generate a text, or a list where ``num_return_sequences`` is more than 1; the type is compiled when it is needed."""
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
        self,
        model_input: Any,
        output_type: Any = None,
        *,
        phi: str | Phi | Unset | None = Unset.UNSET,
        banned_phrases: Ban | Unset | None = Unset.UNSET,
        **keywords: Any,
    ) -> str | list[str]:
        """Generate under a logits processor that Outlines built; see :class:`PhiTransformers`."""
        processor, resolved = self._asked(output_type, phi, banned_phrases, keywords)
        if resolved is None:
            processor = self._host_processor(processor, [model_input], keywords)
            with as_written(self.lm.vocabulary if getattr(processor, "ban", None) else None):
                return super().generate(model_input, processor, **stoppable(keywords))
        return self._texts([model_input], processor, resolved, keywords)[0]

    def generate_batch(
        self,
        model_input: list[Any],
        output_type: Any = None,
        *,
        phi: str | Phi | Unset | None = Unset.UNSET,
        banned_phrases: Ban | Unset | None = Unset.UNSET,
        **keywords: Any,
    ) -> list[Any]:
        """Generate for several prompts; as :meth:`generate`."""
        check_batch(model_input)
        processor, resolved = self._asked(output_type, phi, banned_phrases, keywords)
        if not model_input:
            return []
        if resolved is None:
            processor = self._host_processor(processor, model_input, keywords)
            with as_written(self.lm.vocabulary if getattr(processor, "ban", None) else None):
                return super().generate_batch(model_input, processor, **stoppable(keywords))
        return self._texts(model_input, processor, resolved, keywords)

    def _texts(self, prompts: Sequence[Any], processor: Any, phi: Phi, keywords: dict[str, Any]) -> list[Any]:
        """Return a text of each prompt, or the list of those asked for: drawn, or with ``do_sample=False`` the most probable."""
        table = self.compiled.of_processor(processor)
        if keywords.get("do_sample") is False:
            check_closed(table, "do_sample=False")
            options, limits = search_options(phi, keywords, self.model.generation_config)
            rankings = self.rank(prompts, table, replace(options, n=1), options.n, **limits)
            return [ranking.texts if options.n > 1 else ranking.texts[0] for ranking in rankings]
        options = self._options(processor, keywords)
        return [texts(draws, options) for draws in self.draw(prompts, table, phi, options)]

    def generate_stream(
        self,
        model_input: Any,
        output_type: Any = None,
        *,
        phi: str | Phi | Unset | None = Unset.UNSET,
        banned_phrases: Ban | Unset | None = Unset.UNSET,
        **keywords: Any,
    ) -> Pieces:
        """Generate piece by piece under a logits processor that Outlines built; checked now, begun with the first piece."""
        processor, resolved = self._asked(output_type, phi, banned_phrases, keywords)
        check_stream(model_input, keywords, self.model.generation_config, resolved is not None)
        if resolved is None:
            generate = partial(super().generate, model_input, self._host_processor(processor, [model_input], keywords))
            first = lambda token: self.tokenizer.decode([[token]])[0]  # noqa: E731
            return pieces(hosted(generate, stoppable(keywords)), self.lm.vocabulary, first)
        options, table = self._options(processor, keywords), self.compiled.of_processor(processor)
        request = self._request([model_input], table, options)
        match self._sampler(resolved, options):
            case AncestralSampler() | LookaheadSampler() as sampler:
                if request.constraint is not None:
                    raise UnsupportedError(
                        f"{request.constraint} was given to a stream of a step estimator or a look-ahead: whether a token stays is "
                        "known only at the end. Stream with phi='exact' or phi='auto', or call without a stream."
                    )
                return pieces(stepped(sampler, request, self._drawing), self.lm.vocabulary)
            case _:
                draw = partial(self.draw, [model_input], table, resolved, options)
                return pieces(accepted(draw, options), self.lm.vocabulary)

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt (``str`` or ``Chat``): what all calls with ``phi=`` come down to."""
        check_batch(inputs)
        if not inputs:
            return []
        request, sampler = self._request(inputs, table, options), self._sampler(phi, options)
        # Threads that share a model take turns: their calls share trees.
        with turn(self._drawing), telling(options.progress, phi):
            return sampler.sample(request)

    def _options(self, processor: Any, keywords: dict[str, Any]) -> CallOptions:
        """Read the keywords of a call that returns texts alone."""
        options = CallOptions.read(keywords, self.model.generation_config, getattr(processor, "ban", None))
        return replace(options, weighted=False)

    def _sampler(self, phi: Phi, options: CallOptions) -> Sampler:
        return sampler_for(phi, self._trees, options.sampler, **self.drafts.of(options.draft, phi, self.hf_tokenizer))

    @contextmanager
    def asking(self, inputs: Sequence[Any], processor: Any, options: CallOptions) -> Iterator[Request]:
        """Yield what a call under a logits processor asks for, while no other thread draws from the model."""
        request = self._request(inputs, self.compiled.of_processor(processor), options)
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
        check_batch(inputs)
        if not inputs:
            return []
        with turn(self._drawing), telling(options.progress):
            return rank(self._request(inputs, table, options), top, self._trees, reader=reader, **limits)

    @afresh
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
        check_batch(inputs)
        if not inputs:
            return []
        request = self._request(inputs, table, options)
        lent = self._trees.lend(
            *request.law, request.prompts, request.budgets, request.constraint, None, request.starts
        )
        with turn(self._drawing), telling(options.progress), limited(effort.seconds), lent as trees:
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
        constraint = all_of(
            options.constraint and options.constraint.over(self.lm.vocabulary),
            self._canonical if options.tokenization == "canonical" else None,
        )
        return options.request(self.lm, table, [self._prompt_ids(item) for item in inputs], constraint)

    @cached_property
    def _canonical(self) -> CanonicalTokenization:
        return CanonicalTokenization(self.hf_tokenizer, self.lm.vocabulary)

    def table(
        self,
        output_type: Any,
        ban: BannedPhrases | None = None,
        *,
        watched: bool = False,
        backend: str | None = None,
    ) -> Table:
        """Return the compiled form of ``output_type`` without banned phrases, kept for later calls; ``None`` is free text then.

        Parameters as for :meth:`outlines_phi.plugin.types.tables.CompiledTypes.without`; ``backend`` as for its ``of_type``.
        """
        if backend is not None and output_type is not None:
            output_type = self.compiled.of_type(output_type, backend)
        return self.compiled.without(output_type, ban, watched=watched)

    def clear_cache(self) -> None:
        """Forget every kept tree and every compiled output type."""
        self._trees.clear()
        self.compiled.clear()

    def _asked(
        self,
        processor: Any,
        phi: str | Phi | Unset | None,
        banned_phrases: Ban | Unset | None,
        keywords: dict[str, Any],
    ) -> tuple[Any, Phi | None]:
        """Return what a call may write, without what it bans, and how it is corrected."""
        inherited = isinstance(banned_phrases, Unset)
        ban = self.banned_phrases if inherited else resolve_ban(banned_phrases)
        # A level stands beside the phi of the place where it was given, and the call's own phi is the nearer one.
        said = corrected_as(phi, None if inherited and not isinstance(phi, Unset) else ban)
        if isinstance(said, Unset) and isinstance(processor, MaskLogitsProcessor):
            said = corrected_as(said, processor.ban)
        free = processor is None or (isinstance(processor, TableLogitsProcessor) and processor.table.guide.open)
        resolved = self._resolve(
            said, keywords.get("sampler"), free=free, banning=ban is not None or processor is not None
        )
        watched = isinstance(resolved, LookaheadPhi)
        if ban is None and watched and isinstance(processor, MaskLogitsProcessor):
            # A guide that tells what is pending has the phrases already; what is kept out twice is counted for no phrase.
            ban = None if isinstance(processor.table.guide, BanningGuide) else processor.ban
        if ban is not None:
            own = processor.ban if isinstance(processor, MaskLogitsProcessor) else None
            # Whole words of either one have to know where the loop ends.
            told = own if own is not None and own.whole_word else ban
            processor = MaskLogitsProcessor(self.compiled.without(processor, ban, watched=watched), ban=told)
        return processor, resolved

    def _resolve(self, said: Phi | Unset | None, sampler: Any, *, free: bool, banning: bool) -> Phi | None:
        if free and not banning and (isinstance(said, Unset) or said is UNCHOSEN):
            # Free text is the model's own law already: the default has nothing to correct there.
            return None
        if isinstance(said, Unset):
            said = self.phi or (UNCHOSEN if free or sampler is not None else None)
        return proposing(said, sampler, free=free)

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        try:
            _, inputs = self._prepare_model_inputs(model_input)
        except (TypeError, ValueError) as error:
            raise no_prompt(model_input, error) from error
        return tuple(inputs["input_ids"][0][inputs["attention_mask"][0].bool()].long().tolist())

    def _host_processor(self, processor: Any, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Return what runs in Hugging Face's loop. Beside others, it takes an empty prompt, as padding; not for all prompts."""
        lengths = [len(self._prompt_ids(item)) for item in inputs]
        if not any(lengths):
            raise no_tokens(0, len(lengths))
        if "lm" not in vars(self):
            refuse_options(keywords)
            return processor
        return Loop(self.model.generation_config, max(lengths), self.lm.max_length).processor(
            processor, self.compiled, keywords
        )

    def _generator(self, output_type: Any, backend: str | None, keywords: dict[str, Any]) -> SteerableGenerator:
        engine = engine_name(backend)
        corrected = resolve_phi(keywords.get("phi", self.phi)) is not None or keywords.get("sampler") is not None
        if "banned_phrases" in keywords:  # read once, whatever yields them
            keywords["banned_phrases"] = resolve_ban(keywords["banned_phrases"])
        banning = keywords.get("banned_phrases", self.banned_phrases) is not None
        stock = engine is not None or left_to_outlines(output_type, at_hand="lm" in vars(self))
        if output_type is None or (stock and not (corrected or banning)):
            return SteerableGenerator(self, output_type, backend)
        return SteerableGenerator.from_processor(self, MaskLogitsProcessor(self.table(output_type, backend=backend)))
