"""The host vLLM server: Outlines models over a client of the OpenAI protocol that take ``phi=``."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn, final

from outlines.exceptions import normalize_provider_errors
from outlines.models.vllm import VLLM, AsyncVLLM, VLLMTypeAdapter

from ....automata.prefix_match import PrefixMatch
from ....errors import COST, BudgetError, EmptyLanguageError, ModelError, OutlinesPhiError, UnsupportedError, too_small
from ....guides.guide import Guide
from ....guides.table import Table
from ....lm.model import PATIENCE, check_interruption, current, limited
from ....phi.estimator import LocalPhi, Phi
from ....sampling.draws import NO_DISTANCE, Draw, DrawCounts, Draws, Guarantee, middle
from ....sampling.phi_options import ExactPhi
from ....sampling.rejection.attempts import Launches
from ....sampling.sampler import seeds
from ....vocabulary.vocabulary import BYTES
from ...call import Call, CallOptions
from ...choices import refuse_misfits, refuse_of_loop
from ...mistakes import check_batch
from ...processor import MaskLogitsProcessor
from ...session import PhiModel
from ...streaming import LOOP, Pieces, Worker
from ...types.tables import CompiledTypes
from .served_call import ARGUMENT, SHOWN, Answer, ServedCall, WalkEnd, read

MOST = 128  # Draws in one request, at most

ABSENT = (
    "Start the server by outlines-phi serve MODEL, in an environment with this version of outlines_phi. It was asked for draws "
    "under phi=, and did not answer as its processor does"
)


@final
@dataclass
class RequestRounds:
    """The requests of one prompt. ``send`` makes one of them: ``client.chat.completions.create``, with the prompt."""

    send: Callable[..., Any]
    call: ServedCall
    guide: Guide | None = None
    counts: DrawCounts = field(default_factory=DrawCounts)
    budget: int = 0

    def exact(self, phi: ExactPhi, n: int) -> Draws:
        """Return ``n`` draws by rejection (theory.md, section 5.3).

        What was launched together is finished, and read in launch order. Raises :class:`BudgetError`: the effort ran out.
        """
        accepted: list[Answer] = []
        # Which attempts share a step is a matter of time. Of a seed that says the texts there is one after the other.
        seen, most = 0, 1 if self.call.alone else MOST
        launches = Launches(n, phi.width, phi.effort, most)
        low, high, shortest = -math.inf, 0.0, 1
        with limited(phi.effort.seconds):
            while len(accepted) < n:
                launched = launches.launched
                launches.widen(launched - launches.successes)
                many = min(launches.more(0, launched, (low, high), self.counts.tokens, shortest), most)
                if not many or current().over:
                    self._refuse(self._draws(accepted, seen, low, high), n)
                answers = self._ask(many, launched)
                launches.launched += many
                for answer in answers:
                    low, high = max(low, answer.account.low), min(high, answer.account.high)
                    shortest = max(1, min(shortest, len(answer.tokens)))
                    launches.successes += answer.outcome is WalkEnd.MEMBER
                    if len(accepted) < n:
                        seen += 1
                        accepted += [answer] * (answer.outcome is WalkEnd.MEMBER)
        return self._draws(accepted, seen, low, high)

    def masked(self, n: int) -> Draws:
        """Return ``n`` draws of plain masking, with their weights."""
        answers: list[Answer] = []
        while len(answers) < n:
            answers += self._ask(min(MOST, n - len(answers)), len(answers))
        items = tuple(
            _draw(answer, answer.account.low, Guarantee.WEIGHTED, self.guide)
            for answer in answers
            if answer.outcome is WalkEnd.MEMBER
        )
        counts = replace(self.counts, attempts=n, accepted=len(items))
        return Draws(items=items, counts=counts, budget=self.budget, failures=n - len(items))

    def probe(self) -> None:
        """Raise :class:`UnsupportedError` where there is no processor behind the server."""
        answer = read(self._response(1, 0, max_tokens=1).choices[0])
        if answer is None or answer.outcome is not WalkEnd.READY:
            raise UnsupportedError(f"{ABSENT}.")

    def _ask(self, many: int, number: int) -> list[Answer]:
        """Return the answers to one request for draws ``number`` and on, in launch order."""
        check_interruption()
        response = self._response(many, number)
        answers = [self._checked(choice) for choice in response.choices]
        tokens = sum(len(answer.tokens) + (answer.outcome is not WalkEnd.MEMBER) for answer in answers)
        self.counts = replace(
            self.counts,
            calls=self.counts.calls + max((len(answer.tokens) for answer in answers), default=0),
            prompt_tokens=self.counts.prompt_tokens + many * response.usage.prompt_tokens,
            tokens=self.counts.tokens + tokens,
        )
        self.budget = answers[0].budget
        return sorted(answers, key=lambda answer: answer.launch)

    def _response(self, many: int, number: int, **limits: Any) -> Any:
        try:
            return self.send(
                n=many,
                seed=number,
                logprobs=True,
                top_logprobs=SHOWN,
                temperature=1.0,
                top_p=1.0,
                presence_penalty=0.0,
                frequency_penalty=0.0,
                extra_body={
                    "top_k": 0,
                    "min_p": 0.0,
                    "repetition_penalty": 1.0,
                    "return_tokens_as_token_ids": True,
                    "vllm_xargs": {ARGUMENT: self.call.text()},
                },
                **limits,
            )
        except Exception as error:
            if getattr(error, "status_code", None) != 400 or isinstance(error, OutlinesPhiError):
                raise
            kind = ModelError if "context length" in str(error) else UnsupportedError
            raise kind(f"The server does not take the request: {_said(error)}") from error

    def _checked(self, choice: Any) -> Answer:
        """Return the answer of a choice, if it is a draw or the failure of one."""
        answer, settings = read(choice), self.call.settings
        if answer is None:
            raise ModelError(
                f"Look into the log of the server. It ended a text by {choice.finish_reason!r} where the processor of outlines_phi "
                "had not: a limit of its own, or another processor."
            )
        match answer.outcome:
            case WalkEnd.EMPTY:
                raise EmptyLanguageError(
                    "Give another output type, or ban less. With the tokens of the server's model no text of it can be written."
                )
            case WalkEnd.TOO_SHORT if settings.max_new_tokens is not None and settings.max_new_tokens < answer.budget:
                raise too_small(settings.max_new_tokens, answer.budget)
            case WalkEnd.TOO_SHORT:
                raise ModelError(
                    "Shorten the prompt, or start the server with a larger --max-model-len: the shortest output needs "
                    f"{answer.budget} tokens, which the context does not leave."
                )
            case WalkEnd.NOWHERE if self.call.road == "exact":
                cut = settings.truncation
                raise EmptyLanguageError(
                    "Loosen the truncation, ban less, or check that the model gives the format any probability at all. No member "
                    f"of the language has any{cut and f' under {cut}'}."
                )
            case WalkEnd.BROKEN | WalkEnd.READY | WalkEnd.ENDED:
                raise ModelError(
                    "Look into the log of the server for the error of this request. Its processor could not go on with it; other "
                    "requests are not concerned."
                )
        if answer.text is None:
            raise UnsupportedError(
                "Start the server without --reasoning-parser and --tool-call-parser. It took the text of the draw out of the "
                "message."
            )
        return answer

    def _draws(self, accepted: Sequence[Answer], seen: int, low: float, high: float) -> Draws:
        log_w = middle((low, high))
        return Draws(
            items=tuple(_draw(answer, log_w, Guarantee.EXACT, self.guide) for answer in accepted),
            counts=replace(self.counts, attempts=seen, accepted=len(accepted)),
            budget=self.budget,
            log_z_bounds=(low, high),
            certificate=NO_DISTANCE,
        )

    def _refuse(self, made: Draws, n: int) -> None:
        low, high = made.log_z_bounds
        raise BudgetError.of(
            "Draw with weights (phi='local'), give a larger ExactPhi(effort=Effort(...)), or move the prompt closer to the format",
            f"{current().end_of('the effort ran out')} with {len(made)} of {n} exact draws (log Phi between {low:.4g} and "
            f"{high:.4g})",
            f"each of the error's .draws is exact, and {COST}" if made else "",
            draws=[made],
            log_z_bounds=made.log_z_bounds,
        )


def _draw(answer: Answer, log_w: float, guarantee: Guarantee, guide: Guide | None) -> Draw:
    text, member = answer.text, None
    assert text is not None
    if (
        guide is not None and guide.match is not None
    ):  # the server's text has what the last token writes behind a stop string
        member, text = (cut(text.encode()).decode(errors="replace") for cut in (guide.match.member, guide.match.text))
    log_p = answer.account.log_p
    return Draw(text=text, member=member, token_ids=answer.tokens, log_p=log_p, log_w=log_w, guarantee=guarantee)


def _said(error: Exception) -> str:
    """Return a server's message about a request that it refuses."""
    body = getattr(error, "body", None)
    return str(body.get("message") or error) if isinstance(body, dict) else str(error)


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

    takes_types = True
    tells_progress = False
    made_of: ClassVar = {"client": "client", "model_name": "model_name"}
    hf_tokenizer = None

    def __init__(self, client: Any, model_name: str | None = None, **options: Any) -> None:
        PhiModel.__init__(self, **options)
        self.client, self.model_name, self.type_adapter = client, model_name, VLLMTypeAdapter()
        self._probed = False

    @property
    def lm(self) -> NoReturn:
        """Raise :class:`UnsupportedError`: a server has no distributions to give."""
        raise UnsupportedError(
            f"Draw with phi='exact' or phi='local', without a stream, {OTHER_ROADS}. What was asked for needs the distribution of "
            "every prefix, and a server does not give them."
        )

    @property
    def token_names(self) -> NoReturn:
        """Raise :class:`UnsupportedError`: without them the marks of a model's calls would be spelled as text."""
        raise UnsupportedError(
            f"Give Tools to a model whose tokenizer is at hand, {OTHER_ROADS}. The marks of calls are special tokens in most "
            "models, and those of a server's are not known here."
        )

    @cached_property
    def compiled(self) -> CompiledTypes:
        """Output types over bytes: the server compiles them for its tokens."""
        return CompiledTypes.of_vocabulary(BYTES)

    def _prompt_ids(self, model_input: Any, *, thinking: bool = False) -> tuple[int, ...]:
        return self.lm

    def written_in_pieces(self, call: Call, prompt: Any) -> Pieces:
        """Return the stream of Outlines; none under a correction, where a text is known when it is accepted as a whole."""
        return self.lm if call.phi is not None else self._hosted_stream(call, prompt)

    def _in_loop(self, call: Call, prompts: Sequence[Any]) -> AbstractContextManager[Any]:
        if call.ban is not None or isinstance(call.language, (Table, MaskLogitsProcessor)):
            raise UnsupportedError(
                "Use outlines.Generator(model, T) for calls without phi=, which the server masks by itself. A generator of "
                "outlines_phi was called with phi=None."
            )
        refuse_of_loop("a vLLM server's own loop", call.keywords)
        return nullcontext(call.language)

    def draw(self, inputs: Sequence[Any], table: Table, phi: Phi, options: CallOptions) -> list[Draws]:
        """Return the draws of every prompt, made by the server: see :class:`RequestRounds`."""
        check_batch(inputs)
        if not inputs:
            return []
        if table.guide.thoughts is not None:
            raise UnsupportedError(
                f"Draw thought and answer in two calls, {OTHER_ROADS}. Thinking was asked of a vLLM server, whose requests have "
                "one distribution from the first token to the last."
            )
        ends = "open" if isinstance(table.guide.match, PrefixMatch) else "text"
        refuse_misfits("a vLLM server", {**vars(options), "ends": ends}, roads=OTHER_ROADS)
        attempted = isinstance(phi, ExactPhi) and phi.tolerance == 0 and phi.normalizers == 0
        if not attempted and not isinstance(phi, LocalPhi):
            raise UnsupportedError(
                f"Give phi='exact' or phi='local', {OTHER_ROADS}. phi={phi!r} goes by distributions that a server does not give."
            )
        messages = [self._formatted(item) for item in inputs]
        named = seeds(options.settings, len(messages))
        language, ban, stops = self.compiled.written(table)
        call = ServedCall(
            road="exact" if isinstance(phi, ExactPhi) else "local",
            language=language,
            ban=ban,
            stops=stops,
            settings=options.settings,
            alone=options.settings.seed is not None,
        )

        def drawn(row: int) -> Draws | BudgetError:
            send, (seed, place) = partial(self._send, messages=messages[row]), named[row]
            own = replace(call, settings=replace(call.settings, seed=seed), row=place)
            if not self._probed:
                RequestRounds(send, replace(own, road="probe")).probe()
                self._probed = True
            rounds = RequestRounds(send, own, table.guide)
            try:
                return rounds.exact(phi, options.n) if isinstance(phi, ExactPhi) else rounds.masked(options.n)
            except BudgetError as error:
                return error

        with ThreadPoolExecutor(TOGETHER) as executor:  # the first row by itself, then some at a time
            first = drawn(0)
            others = [executor.submit(copy_context().run, drawn, row) for row in range(1, len(messages))]
        draws = _all([first, *(other.result() for other in others)])
        self._tell_fit(inputs, table, draws)
        return draws

    def check_prompt(self, prompt: Any, table: Table, options: CallOptions) -> None:
        self._formatted(prompt)

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
        """Return the awaitable of the text of a call."""
        return self._awaited(partial(super().written, call, prompt))

    def written_batch(self, call: Call, prompts: list[Any]) -> Any:
        """Return the awaitable of the texts of several prompts."""
        return self._awaited(partial(super().written_batch, call, prompts))

    def astream(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the stream of ``stream``, which is asynchronous already."""
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
