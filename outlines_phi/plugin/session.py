"""A language model, and what is kept for it between calls: what every host has in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from transformers import GenerationConfig

from ..errors import UnsupportedError
from ..fidelity.probabilities import Probabilities, probabilities
from ..guides.phrases.banned import BannedPhrases
from ..guides.table import Table
from ..lm.model import LanguageModel
from ..lm.watch import WatchedModel, limited, turn
from ..phi.constraint import all_of
from ..phi.estimator import Phi
from ..phi.tree.store import TreeStore, afresh
from ..sampling.ancestral import AncestralSampler
from ..sampling.draws import Draws
from ..sampling.lookahead import LookaheadSampler
from ..sampling.phi_options import Effort
from ..sampling.ranking import Ranking, rank
from ..sampling.resolve import sampler_for
from ..sampling.sampler import Request, Sampler
from ..vocabulary.canonical import CanonicalTokenization
from .call import Call
from .drafts import DraftSources
from .mistakes import check_batch
from .options import CallOptions, check_closed, search_options, texts
from .progress import telling
from .streaming import Pieces, accepted, pieces, stepped
from .types.tables import CompiledTypes

MAX_TREE_BYTES = 2**30
"""Bound on the memory of the token trees of a model, where nothing else is said."""


class PhiModel(ABC):
    """The base of every host: a language model with its token trees, compiled output types, drafters and lock.

    ``PhiTransformers`` adds the doors of an Outlines model, which generators ask for.
    """

    hf_tokenizer: Any
    """What writes texts in its tokens; ``None`` where only the vocabulary is known."""

    def __init__(self, max_tree_bytes: int = MAX_TREE_BYTES) -> None:
        self._trees = TreeStore(max_tree_bytes)
        # Threads that share a model take turns: their calls share trees.
        self._drawing = threading.RLock()

    @property
    @abstractmethod
    def lm(self) -> LanguageModel:
        """The model as samplers see it."""

    @abstractmethod
    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        """Return the token ids of a prompt."""

    @property
    def defaults(self) -> GenerationConfig | None:
        """What holds of temperature, penalty and length where a call does not say."""
        return None

    @cached_property
    def compiled(self) -> CompiledTypes:
        return CompiledTypes(self.lm.vocabulary)

    @cached_property
    def drafts(self) -> DraftSources:
        return DraftSources(self.lm)

    @cached_property
    def _canonical(self) -> CanonicalTokenization:
        return CanonicalTokenization(self.hf_tokenizer, self.lm.vocabulary)

    def table(self, output_type: Any, ban: BannedPhrases | None = None, *, backend: str | None = None) -> Table:
        """Return the compiled form of ``output_type`` without banned phrases, kept for later calls; ``None`` is free text then."""
        if backend is not None and output_type is not None:
            output_type = self.compiled.of_type(output_type, backend)
        return self.compiled.without(output_type, ban)

    def clear_cache(self) -> None:
        """Forget every kept tree, all learned values and every compiled output type."""
        self._trees.clear()
        self.compiled.clear()

    def drawn(self, call: Call, prompts: Sequence[Any]) -> list[Any]:
        """Return a text of each prompt, or the list of those asked for: drawn, or with ``do_sample=False`` the most probable."""
        assert call.phi is not None
        table = call.table(self.compiled)
        if call.searched:
            check_closed(table, "do_sample=False")
            options, limits = search_options(call.phi, call.keywords, self.defaults)
            rankings = self.rank(prompts, table, replace(options, n=1), options.n, **limits)
            return [ranking.texts if options.n > 1 else ranking.texts[0] for ranking in rankings]
        options = self._options(call)
        return [texts(draws, options) for draws in self.draw(prompts, table, call.phi, options)]

    def streamed(self, call: Call, prompt: Any) -> Pieces:
        """Return the pieces of one draw, begun with the first."""
        assert call.phi is not None
        options, table = self._options(call), call.table(self.compiled)
        request = self._request([prompt], table, options)
        match self._sampler(call.phi, options):
            case AncestralSampler() | LookaheadSampler() as sampler:
                if request.constraint is not None:
                    raise UnsupportedError(
                        "Stream with phi='exact' or phi='auto', or call without a stream: under a step estimator or a look-ahead, "
                        f"whether {request.constraint} lets a token stay is known only at the end."
                    )
                return pieces(stepped(sampler, request, self._drawing), self.lm.vocabulary)
            case _:
                draw = partial(self.draw, [prompt], table, call.phi, options)
                return pieces(accepted(draw, options), self.lm.vocabulary)

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt: what all calls with ``phi=`` come down to."""
        check_batch(inputs)
        if not inputs:
            return []
        request, sampler = self._request(inputs, table, options), self._sampler(phi, options)
        with turn(self._drawing), telling(options.progress, phi):
            return sampler.sample(request)

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
        lent = self._trees.lend(*request.tree_key, None, request.starts)
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

    @contextmanager
    def asking(self, inputs: Sequence[Any], processor: Any, options: CallOptions) -> Iterator[Request]:
        """Yield what a call under a logits processor asks for, while no other thread draws from the model."""
        request = self._request(inputs, self.compiled.of_processor(processor), options)
        with turn(self._drawing):
            yield request

    def _options(self, call: Call) -> CallOptions:
        """Read the keywords of a call that returns texts alone."""
        return replace(CallOptions.read(call.keywords, self.defaults, call.banned), weighted=False)

    def _sampler(self, phi: Phi, options: CallOptions) -> Sampler:
        return sampler_for(phi, self._trees, options.sampler, **self.drafts.of(options.draft, phi, self.hf_tokenizer))

    def _request(self, inputs: Sequence[Any], table: Table, options: CallOptions) -> Request:
        constraint = all_of(
            options.constraint and options.constraint.over(self.lm.vocabulary),
            self._canonical if options.tokenization == "canonical" else None,
        )
        return Request(
            lm=WatchedModel(self.lm),
            table=table,
            prompts=[self._prompt_ids(item) for item in inputs],
            settings=options.settings,
            n=options.n,
            constraint=constraint,
            weighted=options.weighted,
        )
