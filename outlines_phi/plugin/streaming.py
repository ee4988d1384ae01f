"""Text while it is written, and calls that leave the event loop free."""

from __future__ import annotations

import asyncio
import codecs
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar, cast, final

from tqdm.auto import tqdm
from transformers import GenerationConfig

from ..errors import UnsupportedError
from ..guides.guide import Guide
from ..lm.model import INTERRUPTION, Interruption, Progress, Watch, turn, watching
from ..phi.estimator import Phi
from ..sampling.ancestral import AncestralSampler
from ..sampling.draws import Draws, ThoughtText
from ..sampling.lookahead import LookaheadSampler
from ..sampling.phi_options import ExactPhi
from ..sampling.sampler import Request
from ..sampling.thought_sampler import ThinkingSampler
from ..vocabulary.vocabulary import Vocabulary
from .call import CallOptions, dead_end
from .choices import Told, refuse_misfits
from .mistakes import check_one

SLOW = 2.0  # Seconds after which a call for exact draws says that it goes on

logger = logging.getLogger("outlines_phi")


@contextmanager
def telling(progress: Told, phi: Phi | None = None) -> Iterator[None]:
    """Watch a call under ``phi``, and tell how far it has come."""
    endless = isinstance(phi, ExactPhi) and phi.effort.seconds is None
    usual = SlowCall() if progress is None and endless else None
    told = nullcontext(partial(_tell, progress) if callable(progress) else usual)
    with _shown() if progress is True else told as tell, watching(tell):
        yield


@final
class SlowCall:
    """Says once that a call for exact draws does not end soon, and what to do."""

    _said = False

    def __call__(self, watch: Watch) -> None:
        """Log one line where it is time for it."""
        if self._said or watch.ended or watch.seconds < SLOW or watch.progress is None:
            return
        progress = watch.progress()
        if not progress.log_z_bounds:  # no attempts yet, but thoughts before them
            return
        self._said = True
        row, (lower, upper) = min(enumerate(progress.log_z_bounds), key=lambda bounds: bounds[1][1])
        of = f" of prompt {row}" if len(progress.log_z_bounds) > 1 else ""
        logger.warning(
            "Give phi='auto' for weighted draws where exact ones are dear, ExactPhi(effort=Effort(seconds=...)) for a limit, or a "
            "prompt closer to the format: after %.0f s there are %d of %d draws, by %s attempts, and log Phi%s is between %.4g and "
            "%.4g. (progress=True shows a bar, progress=False nothing.)",
            progress.seconds,
            progress.draws,
            progress.wanted,
            f"{progress.attempts:,}",
            of,
            lower,
            upper,
        )


def _tell(callback: Callable[[Progress], object], watch: Watch) -> None:
    if watch.progress is not None:
        callback(watch.progress())


@contextmanager
def _shown() -> Iterator[Callable[[Watch], None]]:
    """Show the progress of a call by a bar of tqdm: of draws where some were asked for, else a count of model calls."""
    with ExitStack() as opened:
        bars: list[Any] = []

        def show(progress: Progress) -> None:
            total, done = (progress.wanted, progress.draws) if progress.wanted else (None, progress.calls)
            if not bars:
                bars.append(opened.enter_context(tqdm(total=total, unit="draw" if total else "call")))
            bars[0].set_postfix_str(beside(progress), refresh=False)
            bars[0].update(done - bars[0].n)

        yield partial(_tell, show)


def beside(progress: Progress, *, draws: bool = False) -> str:
    """Return the text beside a bar, with the ``draws`` where it does not show them itself."""
    drawn = f"{progress.draws:,} of {progress.wanted:,} draws, " if draws else ""
    attempts = f"{progress.attempts:,} attempts, " if progress.attempts else ""
    uppers = [upper for _, upper in progress.log_z_bounds]
    bounds = f", log Phi in [{progress.log_z_bounds[0][0]:.3g}, {uppers[0]:.3g}]" if len(uppers) == 1 else ""
    return f"{drawn}{attempts}{progress.calls:,} calls, {progress.tokens:,} tokens{bounds}"


Ids = Generator[Any, None, None]  # Final token ids, in order; under `tokens=True` the account of each
Pieces = Generator[Any, None, None]  # The pieces of one text, in order, or its accounts; `close()` gives it up


def pieces(ids: Ids, guide: Guide) -> Pieces:
    """Yield the text that ``ids`` write under a guide, at most one piece per token and one at the end, as far as it is certain;
    that of a thought first, as :class:`ThoughtText`.
    """
    match, thoughts, vocabulary, written = guide.match, guide.thoughts, guide.vocabulary, b""
    if match is None:
        yield from decoded(spelled(ids, vocabulary))
        return

    def thought() -> Generator[bytes, None, None]:
        nonlocal written
        assert thoughts is not None
        sent, behind = 0, -1
        while behind < 0 and (token := next(ids, None)) is not None:
            written += vocabulary.tokens[token]
            begin, end, behind = thoughts.split(written)
            yield written[begin + sent : end]
            sent = end - begin

    def certain() -> Generator[bytes, None, None]:
        nonlocal written
        sent, token = 0, next(ids, None) if thoughts is None else -1
        while token is not None:
            written += b"" if token < 0 else vocabulary.tokens[token]
            text, token = vocabulary.shown(match.text(written, ended=False)), next(ids, None)
            yield text[sent:]
            sent = len(text)
        yield vocabulary.shown(match.text(written))[sent:]

    with closing(ids):
        yield from () if thoughts is None else map(ThoughtText, decoded(thought()))
        yield from decoded(certain())


def spelled(
    ids: Ids, vocabulary: Vocabulary, first: Callable[[int], str] | None = None
) -> Generator[bytes, None, None]:
    """Yield the bytes of ``ids``, which are closed with it.

    ``first`` says how the host writes an id at the start of a text, where some decoders (SentencePiece) leave out a space.
    """
    with closing(ids):
        for token in ids:
            written = vocabulary.text_of(token)
            if written and first is not None:
                if written.startswith(b" ") and not first(token).startswith(" "):
                    written = written[1:]
                first = None
            yield written


def decoded(written: Generator[bytes, None, None]) -> Pieces:
    """Yield the text of some bytes, which are closed with it, in whole characters; what is not UTF-8 becomes U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # no frame of `codecs` below a warning
    with closing(written):
        for part in written:
            if piece := decoder.decode(part):
                yield piece
    if piece := decoder.decode(b"", final=True):
        yield piece


def stepped(sampler: AncestralSampler | LookaheadSampler, request: Request, lock: threading.RLock) -> Ids:
    """Yield the tokens of one trajectory, or their accounts, as they become final: those of a call with the same seed.

    Every step takes its own turn at the model, so streams that run side by side share it token by token, and a consumer that
    pauses holds nobody up.
    """
    with turn(lock):
        steps = sampler.steps(request)
    released = 0
    while True:
        with turn(lock):
            grown = next(steps, None)
        if grown is None:
            return
        walk = grown[0]
        final = (walk.tokens if request.top is None else walk.accounts)[released:]
        released = len(walk.tokens)
        yield from final
        if walk.failed:
            raise dead_end(CallOptions(request.settings, ban=request.table.guide.phrases))


def accepted(draw: Callable[[], Sequence[Draws]], options: CallOptions) -> Ids:
    """Yield the tokens of the one draw of the one prompt of ``draw()``, or their accounts; made when the first is asked for."""
    (draws,) = draw()
    if not draws:
        raise dead_end(options)
    yield from draws[0].tokens if options.tokens else draws[0].token_ids


def thinking(sampler: ThinkingSampler, request: Request, lock: threading.RLock, options: CallOptions) -> Ids:
    """Yield the tokens of a thought as they become final, then those of its answer, or their accounts."""
    thinker, alone = sampler.thoughts(request)
    ids = list[int]()
    for token in stepped(thinker, alone, lock):
        ids.append(token if request.top is None else token.id)
        yield token
    if sampler.ends(request, 0, ids):
        return
    asked = sampler.answers(request, [(0, tuple(ids))])
    if isinstance(sampler.answer, AncestralSampler | LookaheadSampler):
        yield from stepped(sampler.answer, asked, lock)
        return

    def draw() -> Sequence[Draws]:
        with turn(lock):
            return sampler.answer.sample(asked)

    yield from accepted(draw, options)


def check_stream(
    model_input: Any, keywords: dict[str, Any], defaults: GenerationConfig | None, corrected: bool
) -> None:
    """Refuse calls without a stream."""
    check_one(model_input, "Streams are of one prompt each, side by side with astream(); batch()")
    # Under a correction the model's generation_config does not ask for beams or several texts; in the host's loop it does.
    config = None if corrected else keywords.get("generation_config", defaults)
    for name in ("num_return_sequences", "num_beams"):
        value = keywords.get(name, getattr(config, name, None))
        if value not in (None, 1):
            raise UnsupportedError(
                f"{name}={value!r} was given for a stream; expected 1, because a stream is one text from left to right. "
                "Open one stream for each text, or call the model without streaming."
            )
    refuse_misfits("a stream", keywords)
    if corrected:
        refuse_misfits("a stream under a correction", keywords)


Result = TypeVar("Result")

LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("LOOP", default=None)
"""The event loop that waits for the work of this context; ``None`` where none does."""


@final
class Worker:
    """The executor of the asynchronous calls of a model, from the first on: one thread, or several; they end with the model."""

    def __init__(self, threads: int = 1) -> None:
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="outlines_phi async")

    async def run(self, work: Callable[[], Result], interruption: Interruption | None = None) -> Result:
        """Run ``work()`` once it is its turn, and return its result, awaited if need be.

        Where the waiting task is cancelled, the work is asked to stop through ``interruption`` (its own, where none is given), and
        the cancellation goes on when it has.
        """
        interruption = interruption or Interruption()
        context = copy_context()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        context.run(INTERRUPTION.set, interruption)
        context.run(LOOP.set, loop)
        job: Future[Any] = self._executor.submit(context.run, work)
        job.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
        try:
            await ended.wait()
        except asyncio.CancelledError:
            interruption.asked = True
            job.cancel()
            while not ended.is_set():  # however often the task is cancelled meanwhile
                with suppress(asyncio.CancelledError):
                    await ended.wait()
            raise
        result = job.result()
        return cast(Result, await result if inspect.isawaitable(result) else result)

    async def stream(self, start: Callable[[], Pieces]) -> AsyncGenerator[Any, None]:
        """Yield the pieces of the stream that ``start()`` opens; every piece takes its own turn.

        However the iteration ends, the stream is closed then.
        """
        interruption = Interruption()
        pieces = await self.run(start, interruption)
        try:
            while (piece := await self.run(partial(next, pieces, None), interruption)) is not None:
                yield piece
        finally:
            interruption.asked = True
            await self.run(pieces.close, interruption)


class Asynchronous:
    """A writer of texts, with calls for event loops; they stop at their next model call where their task is cancelled."""

    worker: Worker

    async def agenerate(self, *arguments: Any, **keywords: Any) -> Any:
        """Run a call without blocking the event loop."""
        return await self.worker.run(partial(cast(Any, self), *arguments, **keywords))

    async def abatch(self, *arguments: Any, **keywords: Any) -> list[Any]:
        """Run ``batch`` without blocking the event loop; as :meth:`agenerate`."""
        return await self.worker.run(partial(cast(Any, self).batch, *arguments, **keywords))

    def astream(self, *arguments: Any, **keywords: Any) -> AsyncGenerator[Any, None]:
        """Yield the pieces of ``stream`` without blocking the event loop; as :meth:`agenerate`."""
        return self.worker.stream(partial(cast(Any, self).stream, *arguments, **keywords))
