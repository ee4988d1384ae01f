"""The common session of all hosts: a language model, the state kept for it between calls, and the calls themselves."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar, cast
from weakref import WeakSet

from outlines.generator import SteerableGenerator
from outlines.processors import OutlinesLogitsProcessor
from transformers import GenerationConfig

from ..errors import FitWarning, OutlinesPhiError, UnsupportedError, warn_of
from ..fidelity.bias import LOW, FormatFit
from ..fidelity.probabilities import Probabilities, probabilities
from ..guides.phrases.banned import BannedPhrases
from ..guides.table import Table
from ..lm.model import LanguageModel, limited, turn
from ..numerics.weights import log_mean
from ..phi.constraint import all_of
from ..phi.estimator import Phi
from ..phi.tree.evaluator import TreeStore, afresh
from ..sampling.ancestral import AncestralSampler
from ..sampling.draws import Draws
from ..sampling.lookahead import LookaheadSampler
from ..sampling.phi_options import Effort
from ..sampling.ranking import Ranking, rank
from ..sampling.resolve import sampler_for
from ..sampling.sampler import Request, Sampler
from ..sampling.thought_sampler import ThinkingSampler
from ..vocabulary.canonical import CanonicalTokenization
from .call import Ban, Call, CallOptions, Correction, Unset, texts
from .choices import refuse_misfits
from .drafts import DraftSources
from .mistakes import check_batch, not_pickled, reading
from .streaming import Asynchronous, Pieces, Worker, accepted, check_stream, pieces, stepped, telling, thinking
from .types.output_types import left_to_outlines
from .types.readers import TokenNames
from .types.tables import REGISTERED, CompiledTypes, masks_only
from .types.tools import of_model

Answer = TypeVar("Answer", Draws, Probabilities, Ranking)

MAX_TREE_BYTES = 2**30  # Bound on the memory of the token trees of a model, where nothing else is said


class PhiModel(Asynchronous, ABC):
    """The base of every host: a language model, what is kept for it, and the calls that take ``phi=``.

    A host derives from it, and from Outlines' class of its models where there is one. It writes :attr:`lm`, :attr:`hf_tokenizer`
    and :meth:`_prompt_ids`; with a loop of its own, for calls with ``phi=None``, also :attr:`stock`, :meth:`_in_loop` and
    :meth:`_hosted_stream`.
    What :func:`outlines_phi.wrap` takes is registered in :data:`outlines_phi.plugin.wrapping.HOSTS`.
    """

    takes_types: ClassVar[bool] = False  # True if output types, not logits processors, are for its own loop
    stock: ClassVar[Any]  # Outlines' class of its models
    made_of: ClassVar[Mapping[str, str]]  # By parameter of its constructor: the attribute of a model of Outlines
    tells_progress = True  # True if `progress=` is told between model calls
    type_adapter: Any  # Outlines', where the host has one
    hf_tokenizer: Any  # The encoder of texts; `None` where only the vocabulary is known

    def __init__(
        self,
        max_tree_bytes: int = MAX_TREE_BYTES,
        phi: str | Phi | None = None,
        banned_phrases: Ban | None = None,
    ) -> None:
        self._trees = TreeStore(max_tree_bytes)
        # Threads that share a model take turns: their calls share trees.
        self._drawing = threading.RLock()
        # Of every call that does not say otherwise; `phi=None` says nothing.
        given = Correction().replaced_by(Unset.UNSET if phi is None else phi, banned_phrases)
        self.correction = replace(given, inherited=True)
        self.worker = Worker()
        self.told_of_fit = WeakSet[Table]()  # The tables whose bad fit was warned of

    def __reduce__(self) -> Any:
        raise not_pickled(f"A {type(self).__name__}")

    @property
    @abstractmethod
    def lm(self) -> LanguageModel:
        """The model as samplers see it; errors where it has none, at every access."""

    @property
    def token_names(self) -> TokenNames:
        """The names of the special tokens, for formats that have some."""
        return TokenNames.of(self.lm.vocabulary)

    @abstractmethod
    def _prompt_ids(self, model_input: Any, *, thinking: bool = False) -> tuple[int, ...]:
        """Return the token ids of a prompt, before a thought where ``thinking``."""

    def _in_loop(self, call: Call, prompts: Sequence[Any]) -> AbstractContextManager[Any]:
        """Lend the loop of Outlines' class its parts for the language of a call without an estimator.

        The keywords of the call are those of the loop from then on; what went wrong in the loop is raised behind it.
        """
        raise UnsupportedError(f"Give phi='local' for plain masking. {type(self).__name__} has no loop of its own.")

    def _hosted(self, call: Call, given: Any, *, many: bool) -> Any:
        """Return the texts of the host's own loop under a call without an estimator: of one prompt, or of each of ``many``."""
        with self._in_loop(call, given if many else [given]) as allowed:
            write = self.stock.generate_batch if many else self.stock.generate
            return write(self, given, allowed, **call.keywords)

    def _hosted_stream(self, call: Call, prompt: Any) -> Pieces:
        """Return :meth:`_hosted` piece by piece."""
        with self._in_loop(call, [prompt]) as allowed:
            return self.stock.generate_stream(self, prompt, allowed, **call.keywords)

    @property
    def chat_template(self) -> str | None:
        """The text of the chat template, that for tools of several; ``None`` where there is none."""
        given = getattr(self.hf_tokenizer, "chat_template", None)
        return given.get("tool_use", given.get("default")) if isinstance(given, dict) else given

    @property
    def defaults(self) -> GenerationConfig | None:
        """The defaults of temperature, penalty and length where a call does not say."""
        return None

    @property
    def _at_hand(self) -> bool:
        """True if :attr:`lm` is made already."""
        return True

    def __call__(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Any:
        """Generate a text, or a list where ``num_return_sequences`` is more than 1; the type is compiled when it is needed."""
        return self.written(self._typed(output_type, backend, keywords), model_input)

    def batch(
        self, model_input: list[Any], output_type: Any = None, backend: str | None = None, **keywords: Any
    ) -> list[Any]:
        """Generate for several prompts in shared model calls."""
        return self.written_batch(self._typed(output_type, backend, keywords), model_input)

    def stream(self, model_input: Any, output_type: Any = None, backend: str | None = None, **keywords: Any) -> Pieces:
        """Yield the text of a call piece by piece: only what is accepted, whole characters, never taken back."""
        return self.written_in_pieces(self._typed(output_type, backend, keywords), model_input)

    # A generator of Outlines calls these, with a logits processor, or for some hosts with the type itself.
    generate, generate_batch, generate_stream = __call__, batch, stream

    def written(self, call: Call, prompt: Any) -> Any:
        """Return the text that a call asks for, or the list of texts."""
        return self._hosted(call, prompt, many=False) if call.phi is None else self.drawn(call, [prompt])[0]

    def written_batch(self, call: Call, prompts: list[Any]) -> list[Any]:
        """Return :meth:`written` of every prompt, in shared model calls."""
        check_batch(prompts)
        if not prompts:
            return []
        return self._hosted(call, prompts, many=True) if call.phi is None else self.drawn(call, prompts)

    def written_in_pieces(self, call: Call, prompt: Any) -> Pieces:
        """Return the text that a call asks for, piece by piece."""
        check_stream(prompt, call.keywords, self.defaults, call.phi is not None)
        return self._hosted_stream(call, prompt) if call.phi is None else self.streamed(call, prompt)

    def _typed(self, output_type: Any, backend: str | None, keywords: dict[str, Any]) -> Call:
        """Return a call for an output type; by the means of Outlines where nothing is corrected and it writes what we do not."""
        output_type = of_model(output_type, self)
        phi, banned = keywords.pop("phi", Unset.UNSET), keywords.pop("banned_phrases", Unset.UNSET)
        if backend in REGISTERED:
            output_type, backend = SteerableGenerator(cast(Any, self), output_type, backend).logits_processor, None
        stock, correction = backend is not None and masks_only(backend), self.correction.replaced_by(phi, banned)
        plain = correction.ban is None and correction.estimator(keywords.get("sampler"), usual=None) is None
        typed = output_type is not None and not isinstance(output_type, (OutlinesLogitsProcessor, Table))
        if typed and plain and (stock or self.takes_types or left_to_outlines(output_type, at_hand=self._at_hand)):
            try:
                return Call(None, self._outlines_form(output_type, backend), None, keywords)
            except Exception as error:  # what Outlines refuses stays with this package
                if stock or isinstance(error, OutlinesPhiError):
                    raise
        read_here = output_type is not None and backend is not None
        language = self.compiled.of(output_type, backend) if read_here else output_type
        return Call.of(correction, language, keywords, usual=None)

    def _outlines_form(self, output_type: Any, backend: str | None) -> Any:
        """Return the form in which Outlines hands an output type to the host's own loop."""
        if self.takes_types and backend is not None:
            raise UnsupportedError(
                f"Leave backend= out, or choose it where the engine is started. backend={backend!r} was given, and a call without "
                "phi= is the engine's own."
            )
        if self.takes_types:
            return output_type
        return SteerableGenerator(cast(Any, self), output_type, backend).logits_processor

    @property
    def phi(self) -> Phi | None:
        """The estimator of every call that does not say otherwise; ``None`` for the host's own loop."""
        return None if isinstance(self.correction.phi, Unset) else self.correction.phi

    @property
    def banned_phrases(self) -> BannedPhrases | None:
        """The phrases that no call writes unless it says otherwise; ``None`` where nothing is banned."""
        return self.correction.ban

    @cached_property
    def compiled(self) -> CompiledTypes:
        return CompiledTypes.of_vocabulary(self.lm.vocabulary)

    @cached_property
    def drafts(self) -> DraftSources:
        return DraftSources(self.lm)

    @cached_property
    def _canonical(self) -> CanonicalTokenization:
        if self.hf_tokenizer is None:
            raise UnsupportedError(
                "Leave out tokenization='canonical', or give custom_generate vocabulary=tokenizer, which defines it. This model "
                "has a vocabulary alone."
            )
        return CanonicalTokenization(self.hf_tokenizer, self.lm.vocabulary)

    def table(self, output_type: Any, ban: BannedPhrases | None = None, *, backend: str | None = None) -> Table:
        """Return the compiled form of ``output_type`` without banned phrases, kept for later calls; ``None`` is free text then."""
        if backend is not None and output_type is not None:
            output_type = self.compiled.of(output_type, backend)
        return self.compiled.without(output_type, ban)

    def clear_cache(self) -> None:
        """Forget every kept tree, all learned values and every compiled output type."""
        self._trees.clear()
        self.compiled.clear()

    def drawn(self, call: Call, prompts: Sequence[Any]) -> list[Any]:
        """Return a text of each prompt, or the list of those asked for: drawn, or with ``do_sample=False`` the most probable."""
        assert call.phi is not None
        refuse_misfits("a call that returns texts", call.keywords)
        table, options = call.table(self.compiled), call.options(self.defaults)
        if call.searched:
            rankings = self.rank(prompts, table, replace(options, n=1), options.n, **call.limits)
            return [ranking.texts if options.n > 1 else ranking.texts[0] for ranking in rankings]
        return list(map(partial(texts, options=options), self.draw(prompts, table, call.phi, options)))

    def streamed(self, call: Call, prompt: Any) -> Pieces:
        """Return the pieces of one draw, begun with the first; its accounts in their place where they are asked for."""
        assert call.phi is not None
        table, options = call.table(self.compiled), call.options(self.defaults)
        request = self._request([prompt], table, options)
        match self._sampler(call.phi, options, table):
            case ThinkingSampler() as sampler:
                final = thinking(sampler, request, self._drawing, options)
            case AncestralSampler() | LookaheadSampler() as sampler:
                if request.constraint is not None:
                    raise UnsupportedError(
                        "Stream with phi='exact' or phi='auto', or call without a stream: under a step estimator or a look-ahead, "
                        f"whether {request.constraint} lets a token stay is known only at the end."
                    )
                final = stepped(sampler, request, self._drawing)
            case _:
                final = accepted(partial(self.draw, [prompt], table, call.phi, options), options)
        return self._alive(pieces(final, table.guide) if request.top is None else final)

    def _alive(self, made: Pieces) -> Pieces:
        """Yield pieces; drafters only borrow the tokenizer, which lives as long as this model."""
        yield from made

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt: what all calls with ``phi=`` come down to."""
        return self._answers(inputs, table, options, self._sampler(phi, options, table).sample, phi)

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
        return self._answers(inputs, table, options, partial(rank, top=top, store=self._trees, reader=reader, **limits))

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

        @afresh
        def bounded(request: Request) -> list[Probabilities]:
            with limited(effort.seconds), self._trees.lend(*request.tree_key) as trees:
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

        return self._answers(inputs, table, options, bounded)

    def _answers(
        self,
        inputs: Sequence[Any],
        table: Table,
        options: CallOptions,
        answer: Callable[[Request], list[Answer]],
        phi: Phi | None = None,
    ) -> list[Answer]:
        """Return the finding for each prompt, in one turn at the model."""
        check_batch(inputs)
        if not inputs:
            return []
        with self.asking(inputs, table, options, phi) as request:
            found = answer(request)
        self._tell_fit(inputs, table, found)
        return found

    def _tell_fit(self, inputs: Sequence[Any], table: Table, results: Sequence[Answer]) -> None:
        """Warn of the prompt after which the model writes the format most rarely, where that is hardly ever, once a format."""
        if table.guide.thoughts is not None and table.guide.thoughts.scope == "answer":
            return  # what is known is the thoughts' mass
        if min(map(attrgetter("log_z_bounds"), results))[0] >= LOW or table.guide.open or table in self.told_of_fit:
            return
        fits = [fit_of(item, "this format", found) for item, found in zip(inputs, results, strict=True)]
        worst = min(fits, key=lambda fit: fit.log_z)
        if worst.low:
            self.told_of_fit.add(table)
            warn_of(FitWarning, worst.warning)

    @contextmanager
    def asking(
        self, inputs: Sequence[Any], table: Table, options: CallOptions, phi: Phi | None = None
    ) -> Iterator[Request]:
        """Yield the request of a call under ``phi``, and tell its progress; no other thread draws from the model meanwhile."""
        request = self._request(inputs, table, options)
        with turn(self._drawing), telling(options.progress, phi):
            yield request

    def check_prompt(self, prompt: Any, table: Table, options: CallOptions) -> None:
        """Refuse a prompt that cannot be drawn, as far as that is known before any model call: too long, or empty."""
        self._request([prompt], table, options)

    def prompt_ids(self, inputs: Sequence[Any], *, thinking: bool = False) -> list[tuple[int, ...]]:
        """Return the token ids of prompts; refuse a text that holds special tokens of the chat template around it."""
        prompts = list(map(partial(self._prompt_ids, thinking=thinking), inputs))
        templated = getattr(getattr(self, "type_adapter", None), "has_chat_template", False)
        if templated and (texts := [pair for pair in zip(inputs, prompts, strict=True) if isinstance(pair[0], str)]):
            # To read such a text as it stands would let whoever wrote a part of it write the whole conversation.
            around = Counter(
                token for token in self._prompt_ids("x", thinking=thinking) if not self.lm.vocabulary.tokens[token]
            )
            for item, ids in texts:
                if any(ids.count(token) > times for token, times in around.items()):
                    raise UnsupportedError(
                        "Give the messages, as an Outlines Chat (in a file of prompts as a list), or set "
                        "model.type_adapter.has_chat_template = False, by which texts are read as they stand. The prompt "
                        f"{item!r:.80} holds special tokens of the chat template, which every text is put into."
                    )
        return prompts

    def _formatted(self, model_input: Any, *, thinking: bool = False) -> Any:
        """Return the prompt that Outlines hands to the library; before a thought, chat templates that name ``enable_thinking`` are
        given it, where the user says nothing else.
        """
        adapter = self.type_adapter
        if thinking and "enable_thinking" in (self.chat_template or "") and hasattr(adapter, "tokenizer"):
            adapter, render = copy(adapter), adapter.tokenizer.apply_chat_template
            said = {"enable_thinking": True, **getattr(render, "keywords", {})}
            adapter.tokenizer = SimpleNamespace(apply_chat_template=partial(render, **said))
        with reading(model_input):
            return adapter.format_input(model_input)

    def _sampler(self, phi: Phi, options: CallOptions, table: Table) -> Sampler:
        draft = self.drafts.of(options.draft, phi, self.hf_tokenizer)
        sampler, thoughts = sampler_for(phi, self._trees, options.sampler, draft), table.guide.thoughts
        if thoughts is None or thoughts.scope == "joint":
            return sampler
        return ThinkingSampler(sampler, getattr(sampler, "draft", None))

    def _request(self, inputs: Sequence[Any], table: Table, options: CallOptions) -> Request:
        constraint = None if options.constraint is None else options.constraint.over(self.lm.vocabulary)
        canonical = options.tokenization == "canonical"
        return Request(
            lm=self.lm,
            table=table.current,
            prompts=self.prompt_ids(inputs, thinking=table.guide.thoughts is not None),
            settings=options.settings,
            n=options.n,
            constraint=all_of(constraint, self._canonical) if canonical else constraint,
            weighted=options.weighted,
            top=(options.top or 0) if options.tokens else None,
        )


def fit_of(prompt: Any, form: str, found: Draws | Probabilities | Ranking, line: str | None = None) -> FormatFit:
    """Return the fit of a format, by what a call has found after a prompt."""
    low, high = found.log_z_bounds
    estimate = found.log_z if isinstance(found, Draws) else log_mean((low, high))
    return FormatFit(
        prompt=prompt if isinstance(prompt, str) else "the prompt",
        form=form,
        log_z=high if math.isnan(estimate) else min(max(estimate, low), high),
        log_z_bounds=found.log_z_bounds,
        beginnings=found.beginnings,
        line=line,
    )
