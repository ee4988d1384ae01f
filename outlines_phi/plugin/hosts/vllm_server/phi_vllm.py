"""The host vLLM server: Outlines models over a client of the OpenAI protocol that take ``phi=``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout
from contextvars import copy_context
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn, TypeVar, final

from outlines.exceptions import normalize_provider_errors
from outlines.models.vllm import VLLM, AsyncVLLM, VLLMTypeAdapter

from ....errors import BudgetError, UnsupportedError
from ....guides.table import Table
from ....lm.watch import PATIENCE, check_interruption
from ....phi.estimator import Phi
from ....phi.onestep import LocalPhi
from ....sampling.draws import Draws
from ....sampling.phi_options import ExactPhi
from ....sampling.sampler import seeds
from ...call import Call
from ...choices import refuse_misfits
from ...mistakes import check_batch, no_prompt
from ...options import CallOptions
from ...processor import MaskLogitsProcessor
from ...session import PhiModel
from ...streaming import LOOP, Pieces, Worker
from ...types.tables import CompiledTypes, masks_only
from .request_rounds import RequestRounds
from .served_call import BYTES, ServedCall

Result = TypeVar("Result")

TOGETHER = 16  # Prompts of a batch that are asked for at a time

CALLS = 64  # Asynchronous calls under way at a time

OTHER_ROADS = (
    "or run the model with vLLM offline (outlines.from_vllm_offline) or Transformers, where everything is offered"
)


class ServedModel(PhiModel):
    """A model behind a vLLM server with the processor of this package; a subclass derives from Outlines' class, too.

    Without ``phi=`` a call is Outlines' own. With ``phi="exact"`` or ``"local"`` the engine itself draws; what needs the
    distribution of every prefix here is refused.
    """

    stock: ClassVar[Any]  # Outlines' class
    tells_progress = False
    hf_tokenizer = None

    def __init__(self, client: Any, model_name: str | None = None, **options: Any) -> None:
        PhiModel.__init__(self, **options)
        self.client, self.model_name, self.type_adapter = client, model_name, VLLMTypeAdapter()
        self._probed = False

    @classmethod
    def over(cls, model: Any, **options: Any) -> ServedModel:
        """Return the form that takes ``phi=`` of a model of Outlines, which stays as it is."""
        return cls(model.client, model.model_name, **options)

    @property
    def lm(self) -> NoReturn:
        """Raise :class:`UnsupportedError`: a server has no distributions to give."""
        raise UnsupportedError(
            f"Draw with phi='exact' or phi='local', without a stream, {OTHER_ROADS}. What was asked for needs the distribution of "
            "every prefix, and a server does not give them."
        )

    @cached_property
    def compiled(self) -> CompiledTypes:
        """Output types over bytes: the server compiles them for its tokens."""
        return CompiledTypes(BYTES)

    def _prompt_ids(self, model_input: Any) -> tuple[int, ...]:
        return self.lm

    def generate(self, model_input: Any, output_type: Any = None, **keywords: Any) -> Any:
        """Generate a text of an output type, as generators of Outlines ask for it."""
        return self(model_input, output_type, **keywords)

    def generate_batch(self, model_input: list[Any], output_type: Any = None, **keywords: Any) -> Any:
        """Generate for several prompts."""
        return self.batch(model_input, output_type, **keywords)

    def generate_stream(self, model_input: Any, output_type: Any = None, **keywords: Any) -> Any:
        """Generate piece by piece."""
        return self.stream(model_input, output_type, **keywords)

    def written_in_pieces(self, call: Call, prompt: Any) -> Pieces:
        """Return the stream of Outlines; none under a correction, where a text is known when it is accepted as a whole."""
        return self.lm if call.phi is not None else self._hosted_stream(call, prompt)

    def _typed(self, output_type: Any, backend: str | None, keywords: dict[str, Any]) -> Call:
        correction = self._correction(keywords)
        if correction.ban is None and correction.estimator(keywords.get("sampler"), usual=None) is None:
            if backend is not None:
                raise UnsupportedError(
                    f"Leave backend={backend!r} out, which the server has been started with: a call without phi= is the server's."
                )
            return Call(None, output_type, None, keywords)
        masks_only(backend)
        typed = None if output_type is None else MaskLogitsProcessor(self.table(output_type, backend=backend))
        return self._under(typed, correction, keywords)

    def _hosted(self, call: Call, given: Any, *, many: bool) -> Any:
        return (self.stock.generate_batch if many else self.stock.generate)(
            self, given, _stock_type(call), **call.keywords
        )

    def _hosted_stream(self, call: Call, prompt: Any) -> Any:
        return self.stock.generate_stream(self, prompt, _stock_type(call), **call.keywords)

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt, made by the server: see :class:`RequestRounds`."""
        check_batch(inputs)
        if not inputs:
            return []
        refuse_misfits("a vLLM server", {name: getattr(options, name) for name in _OPTIONS}, roads=OTHER_ROADS)
        _check_estimator(phi)
        messages = [self._messages(item) for item in inputs]
        seed_of = seeds(options.settings)
        language, ban = self.compiled.written(table)
        call = ServedCall(
            road="exact" if isinstance(phi, ExactPhi) else "local",
            language=language,
            ban=ban,
            settings=options.settings,
            alone=options.settings.seed is not None,
        )

        def drawn(row: int) -> Draws | BudgetError:
            send, (seed, place) = partial(self._send, messages=messages[row]), seed_of(row)
            own = replace(call, settings=replace(call.settings, seed=seed), row=place)
            if not self._probed:
                RequestRounds(send, replace(own, road="probe")).probe()
                self._probed = True
            rounds = RequestRounds(send, own)
            try:
                return rounds.exact(phi, options.n) if isinstance(phi, ExactPhi) else rounds.masked(options.n)
            except BudgetError as error:
                return error

        return _all(self._of_all(drawn, len(messages)))

    def check_prompt(self, prompt: Any, table: Table, options: CallOptions) -> None:
        self._messages(prompt)

    def _of_all(self, drawn: Callable[[int], Result], rows: int) -> list[Result]:
        """Return what comes of every row: of the first by itself, then of some at a time."""
        found = [drawn(0)]
        if rows > 1:
            with ThreadPoolExecutor(min(TOGETHER, rows - 1)) as executor:
                others = [executor.submit(copy_context().run, drawn, row) for row in range(1, rows)]
                found += [other.result() for other in others]
        return found

    def _messages(self, item: Any) -> list[Any]:
        try:
            messages: list[Any] = self.type_adapter.format_input(item)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise no_prompt(item, error) from error
        return messages

    def _send(self, **request: Any) -> Any:
        """Make a request, as Outlines does."""
        if self.model_name is not None:
            request["model"] = self.model_name
        with normalize_provider_errors("vllm"):
            return self._sent(request)

    def _sent(self, request: dict[str, Any]) -> Any:
        return self.client.chat.completions.create(**request)


@final
class PhiVLLM(ServedModel, VLLM):
    """A stock Outlines ``VLLM`` model whose calls may carry ``phi=``; see :class:`ServedModel`."""

    stock = VLLM


@final
class PhiAsyncVLLM(ServedModel, AsyncVLLM):
    """A stock Outlines ``AsyncVLLM`` model whose calls may carry ``phi=``: what a call returns is awaited.

    The work around the requests is done in threads, the requests themselves in the event loop, with the application's client.
    """

    stock = AsyncVLLM

    def __init__(self, client: Any, model_name: str | None = None, **options: Any) -> None:
        ServedModel.__init__(self, client, model_name, **options)
        self.worker = Worker(CALLS)

    def written(self, call: Call, prompt: Any) -> Any:
        """Return what is awaited for the text of a call."""
        return self._awaited(partial(super().written, call, prompt))

    def written_batch(self, call: Call, prompts: list[Any]) -> Any:
        """Return what is awaited for the texts of several prompts."""
        return self._awaited(partial(super().written_batch, call, prompts))

    def astream(self, *arguments: Any, **keywords: Any) -> Any:
        """Return what ``stream`` does, which is asynchronous already."""
        return self.stream(*arguments, **keywords)

    def _awaited(self, work: Any) -> Any:
        return self.worker.run(work) if LOOP.get() is None else work()

    def _sent(self, request: dict[str, Any]) -> Any:
        loop = LOOP.get()
        if loop is None:
            raise UnsupportedError(
                "Await the call: await generator.asample(prompt, n=...), await model(prompt, T, phi=...). The client of this model "
                "is asynchronous."
            )
        response = asyncio.run_coroutine_threadsafe(self.client.chat.completions.create(**request), loop)
        try:
            while True:
                try:
                    return response.result(PATIENCE)
                except WaitTimeout:
                    if response.done():
                        raise
                    check_interruption()
        finally:
            response.cancel()


def _all(found: Sequence[Draws | BudgetError]) -> list[Draws]:
    """Return the draws of all prompts; the first :class:`BudgetError` is raised, and carries those of all."""
    made = [each.draws[0] if isinstance(each, BudgetError) else each for each in found]
    for each in found:
        if isinstance(each, BudgetError):
            each.draws = made
            raise each
    return made


_OPTIONS = ("constraint", "sampler", "draft", "tokenization", "progress")


def _check_estimator(phi: Phi) -> None:
    match phi:
        case LocalPhi():
            return
        case ExactPhi() if phi.tolerance == 0 and phi.normalizers == 0:
            return
    raise UnsupportedError(
        f"Give phi='exact' or phi='local', {OTHER_ROADS}. phi={phi!r} goes by distributions that a server does not give."
    )


def _stock_type(call: Call) -> Any:
    """Return the output type of a call of Outlines."""
    if isinstance(call.language, MaskLogitsProcessor):
        raise UnsupportedError(
            "Use outlines.Generator(model, T) for calls without phi=, which the server masks by itself. A generator of "
            "outlines_phi was called with phi=None."
        )
    return call.language
