"""The interface of every language model, and the watch between its calls: a clock, an interruption, and progress.

A model call cannot be broken off. The watch and the interruption travel with the context (:mod:`contextvars`), so that no
signature between who asks and who works has to know of them.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import final

import torch
from torch import Tensor

from ..numerics.checks import Amount, Checked
from ..numerics.distributions import Rows
from ..vocabulary.vocabulary import Vocabulary


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """The answer of one model call about ``n`` new nodes."""

    nodes: range  # The handles of the nodes, consecutive integers
    # `[n, V]` raw next-token logits after each node, on the model's device. What the user's settings make of them (temperature,
    # truncation) is `p`; see `SamplingSettings`.
    rows: Rows

    @property
    def logits(self) -> Tensor:
        """All rows, to be read and not written."""
        return self.rows.whole()


@dataclass
class ModelCounts:
    """The cost of a set of token trees so far."""

    calls: int = 0  # Calls of the model
    prompt_tokens: int = 0  # Prompt tokens evaluated, padding excluded
    tokens: int = 0  # Generated tokens (tree nodes) evaluated, padding excluded


class TokenTrees(ABC):
    """The token trees of some prompts, evaluated in shared model calls.

    A node is a token sequence after a prompt, named by an integer handle; the handles ``0 .. P - 1`` are the roots,
    the prompts themselves. Nothing is ever cropped: a node may be extended at any time, in any order, in
    company of nodes of other prompts.
    """

    counts: ModelCounts

    @abstractmethod
    def roots(self, parents: Sequence[int] = (), tokens: Sequence[int] = ()) -> Evaluation:
        """Evaluate all prompts, and the first new nodes with them, in one call, once.

        Row ``i < P`` answers for prompt ``i``; the nodes of the pairs ``(parents, tokens)`` follow, as in :meth:`extend`. A plan
        that a guide makes before any distribution is known (every live prefix of a short choice) thus costs no call of its own.
        """

    @abstractmethod
    def extend(self, parents: Sequence[int], tokens: Sequence[int]) -> Evaluation:
        """Evaluate one new node per pair, all in one call.

        ``parents``: handle of each new node's parent. The ``i``-th new node's handle is ``evaluation.nodes[i]``, which is known
            beforehand (``next_node + i``), so a parent may be a node of this same call that stands before it.
        ``tokens``: the token of each new node.

        Raises :class:`ModelError`: a node would lie beyond the model's context. That the model answered NaN is known, and
        raised, when something of the answer is read.
        """

    @property
    @abstractmethod
    def next_node(self) -> int:
        """The handle that the first node of the next :meth:`extend` will get."""

    @abstractmethod
    def compact(self, keep: Sequence[int]) -> None:
        """Give back the memory of every node that is neither in ``keep``, an ancestor of one, nor a root.

        The handles of kept nodes stay valid; the others must not be used again.
        """


@final
@dataclass(frozen=True)
class CallCost(Checked):
    """The time of a model call over ``n`` tokens, in times of a call over one: ``1 + second [n > 1] + later (n - 1)``.

    Drafts are as long as pays by it, and ``auto`` tries as long to be exact. It is a constant until ``lm.cost =
    CallCost.measured(lm)`` is set: a seed gives the same draws on every machine for equal costs.

    Attributes
    ----------
    second
        The cost of the second token, a matrix in place of a vector: 0.5 to 0.7 were measured on a CPU.
    later
        The cost of each token behind the first: 0.03 to 0.06 were measured on a CPU.

    Raises
    ------
    UnsupportedError
        One of them is negative or no number.
    """

    second: Amount = 0.5
    later: Amount = 0.05

    @classmethod
    def measured(cls, lm: LanguageModel) -> CallCost:
        """Return the cost of a model's calls by the clock: the shortest of several over 1, 2, and 32 tokens each."""
        writing = [token for token, text in enumerate(lm.vocabulary.tokens) if text]
        trees, least = lm.trees([writing[:1]]), dict.fromkeys((1, 2, 32), math.inf)
        trees.roots()
        for n in [*least] * 8:
            began = perf_counter()
            trees.extend([0] * n, (writing * n)[:n]).logits[0, 0].item()  # waits for the device
            least[n] = min(least[n], perf_counter() - began)
        later = max(0.0, (least[32] - least[2]) / (30 * least[1]))
        return cls(max(0.0, least[2] / least[1] - 1 - later), later)


class LanguageModel(ABC):
    """A causal language model over token ids."""

    vocabulary: Vocabulary  # The exact bytes of every token
    # The longest sequence, prompt included, that the model can evaluate; `None` when there is no limit
    max_length: int | None
    device: torch.device  # Where logits are returned
    cost = CallCost()

    def version(self) -> Hashable:
        """Return a value that changes with what a forward pass depends on beside its input (weights, adapter, dtype, device).

        What cannot be seen in a model need not be in it: trees that are used again compare the distribution of their prompt.
        """
        return None

    @property
    def opaque(self) -> bool:
        """True if the distribution may change unseen by :meth:`version`; calls with a kept tree then ask the model."""
        return False

    @property
    def rounding(self) -> float:
        """The most that two evaluations of one prefix, in calls of other shapes, differ: see :meth:`BoundsTree.drift`, in nats."""
        return 1e-6

    def fingerprint(self) -> str:
        """Return a name for the distribution that another process knows, too; made without reading all weights."""
        return type(self).__name__

    @abstractmethod
    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        """Return token trees rooted at ``prompts`` (token ids, each at least one token long); no call is made yet."""


class WrappedModel(LanguageModel):
    """A model with the distribution of another one, ``lm``, of which it has all but the token trees."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.vocabulary, self.max_length, self.device, self.cost = lm.vocabulary, lm.max_length, lm.device, lm.cost

    def version(self) -> Hashable:
        return self.lm.version()

    @property
    def opaque(self) -> bool:
        return self.lm.opaque

    @property
    def rounding(self) -> float:
        return self.lm.rounding

    def fingerprint(self) -> str:
        return self.lm.fingerprint()


PATIENCE = 0.02  # Seconds between two looks at the flag while work waits for its turn


class Interrupted(BaseException):
    """Raised inside work that was asked to stop; like ``KeyboardInterrupt``, no ``except Exception`` may hold it up."""


@final
class Interruption:
    """The flag between what asks and what works; read and written from any thread, set once and for all."""

    def __init__(self) -> None:
        # Whether the work is to stop. Setting it takes no lock, so a garbage collector that closes a stream may do it anywhere.
        self.asked = False

    def check(self) -> None:
        """Raise :class:`Interrupted` where the work has been asked to stop."""
        if self.asked:
            raise Interrupted


INTERRUPTION: ContextVar[Interruption | None] = ContextVar("INTERRUPTION", default=None)
"""The flag of the work that runs in this context; ``None`` where nobody can ask."""


def check_interruption() -> None:
    """Raise :class:`Interrupted` where the work of this context has been asked to stop; for long work without model calls."""
    interruption = INTERRUPTION.get()
    if interruption is not None:
        interruption.check()


@contextmanager
def turn(lock: threading.RLock) -> Iterator[None]:
    """Hold ``lock``; work that is asked to stop while it waits stops waiting."""
    interruption = INTERRUPTION.get()
    while not lock.acquire(timeout=-1 if interruption is None else PATIENCE):
        if interruption is not None:
            interruption.check()
    try:
        yield
    finally:
        lock.release()


now = time.monotonic  # Seconds, from a clock that is never set


@final
@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a call, as ``progress=`` is told after every model call.

    Attributes
    ----------
    draws, wanted
        Draws so far, and how many were asked for, of all prompts together; members, where the most probable ones are searched for.
        A draw that needs several candidates or particles counts when the last of them is there. 0 and 0 where only
        probabilities are asked for.
    attempts
        Attempts so far (or trajectories, candidates, particles), up to the last one that was read.
    calls, tokens
        Model calls, prompts included, and generated tokens that the model evaluated.
    seconds
        Since the call began.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi`` of every prompt, in nats; empty where nothing keeps bounds.
    """

    draws: int
    wanted: int
    attempts: int
    calls: int
    tokens: int
    seconds: float
    log_z_bounds: tuple[tuple[float, float], ...] = ()

    @classmethod
    def of(
        cls,
        counts: ModelCounts,
        *,
        draws: int = 0,
        wanted: int = 0,
        attempts: int = 0,
        log_bounds: Iterable[tuple[float, float]] = (),
    ) -> Progress:
        """Return the progress of the call that is watched now, with bounds of ``log Phi``."""
        return cls(
            draws=draws,
            wanted=wanted,
            attempts=attempts,
            calls=counts.calls,
            tokens=counts.tokens,
            seconds=current().seconds,
            log_z_bounds=tuple(log_bounds),
        )

    def __str__(self) -> str:
        drawn = f"{self.draws:,} of {self.wanted:,} draws, {self.attempts:,} attempts, " if self.wanted else ""
        return f"{drawn}{self.calls:,} model calls, {self.tokens:,} tokens, {self.seconds:.0f} s"


@final
class Watch:
    """One call as it goes on; ``tell`` is called with it after every model call and at the end.

    ``limit``: seconds after which nothing more may be launched.
    ``progress``: how far the call has come; ``None`` before its sampler says.
    ``ended``: whether this is the last time that is told.
    """

    def __init__(self, tell: Callable[[Watch], object] | None = None) -> None:
        self.limit, self.ended = math.inf, False
        self.progress: Callable[[], Progress] | None = None
        self._tell, self._began, self._calling = tell, now(), False

    @property
    def seconds(self) -> float:
        """The seconds that the call has taken so far."""
        return now() - self._began

    @property
    def over(self) -> bool:
        """True if the time for launches is over."""
        return self.limit < math.inf and self.seconds >= self.limit

    def end_of(self, effort: str) -> str:
        """Return the reason in messages for the end of the launches: the time, or else ``effort``."""
        return f"its {self.limit:g} s were over" if self.over else effort

    def between_calls(self) -> None:
        """Tell the progress after the last model call, if there was one; another one follows."""
        if self._calling:
            self.tell()
        self._calling = True

    def tell(self) -> None:
        """Tell the progress of the call, where somebody listens."""
        if self._tell is not None and self.progress is not None:
            self._tell(self)


_WATCH: ContextVar[Watch | None] = ContextVar("_WATCH", default=None)


def current() -> Watch:
    """Return the watch of the call that runs in this context; a new one where there is none."""
    return _WATCH.get() or Watch()


@contextmanager
def watching(tell: Callable[[Watch], object] | None = None) -> Iterator[Watch]:
    """Watch a call, which begins now; ``tell`` as of :class:`Watch`, for the last time when the call has ended well."""
    watch = Watch(tell)
    token = _WATCH.set(watch)
    try:
        yield watch
        watch.ended = True
        watch.tell()
    finally:
        _WATCH.reset(token)


@contextmanager
def limited(seconds: float | None) -> Iterator[Watch]:
    """Let nothing more be launched ``seconds`` after the call of this context began, or one that begins now; ``None``: no limit."""
    if (watch := _WATCH.get()) is None:
        with watching(), limited(seconds) as watch:
            yield watch
        return
    before, watch.limit = watch.limit, math.inf if seconds is None else seconds
    try:
        yield watch
    finally:
        watch.limit = before


def follow(progress: Callable[[], Progress]) -> None:
    """Let ``progress`` tell how far the call of this context has come, from now on."""
    if (watch := _WATCH.get()) is not None:
        watch.progress = progress


def between_calls() -> None:
    """Raise the interruption that somebody asked for, and tell the progress of the call; another model call follows."""
    check_interruption()
    if (watch := _WATCH.get()) is not None:
        watch.between_calls()
