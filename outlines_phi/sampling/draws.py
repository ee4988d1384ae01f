"""Draws: a text with the guarantee of its distribution and its weight; those of a prompt, and the particles of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple, SupportsFloat, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import EmptyLanguageError, UnsupportedError, ValueReadError
from ..guides.guide import Guide
from ..numerics.checks import check, check_counts, counted, is_number, shown
from ..numerics.marginals import Marginals
from ..numerics.weights import draw, effective_size, log_mass_text, log_mean, normalized, scaled
from ..phi.tree.distribution import Beginnings


class Guarantee(IntEnum):
    """The relation of a draw's distribution to ``mu*``, weakest first.

    ``APPROXIMATE``
        Of a distribution that comes near to ``mu*``; how near it is, is not known. That of a look-ahead without weights is exact
        in every window; a text of ``auto`` may be the last state of a chain over candidates.
    ``FIELDWISE``
        Each field of the model's own distribution of that field, given what stands before it.
    ``WEIGHTED``
        Drawn from a known proposal; expectations under ``mu*`` need the weight.
    ``CONFIDENT``
        Within a total variation of ``mu*`` that is stated with a confidence, see :attr:`Draws.certificate`.
    ``CERTIFIED``
        Within a stated total variation of ``mu*``, for certain.
    ``EXACT``
        ``mu*`` itself.
    """

    APPROXIMATE = 0
    FIELDWISE = 1
    WEIGHTED = 2
    CONFIDENT = 3
    CERTIFIED = 4
    EXACT = 5

    def __str__(self) -> str:
        return self.name

    def __format__(self, form: str) -> str:
        return format(self.name, form)


@final
@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A bound on the distance of the distribution of draws to ``mu*``.

    Attributes
    ----------
    total_variation
        ``TV(distribution of one draw, mu*)`` is at most this; 0 for exact draws. Of token sequences, so also of texts.
    confidence
        1 where that is certain. Less where it rests on residual attempts: the probability that a certificate is issued that does
        not hold is at most ``1 - confidence``.
    """

    total_variation: float
    confidence: float = 1.0

    def for_draws(self, n: int) -> float:
        """Return a bound on the total variation of the joint distribution of ``n`` draws: ``1 - (1 - eps)^n``, they are
        independent.

        Raises
        ------
        UnsupportedError
            ``n`` is no whole number of at least 0.
        """
        check_counts("for_draws()", least=0, n=n)
        return -math.expm1(n * math.log1p(-self.total_variation)) if self.total_variation < 1 else float(n > 0)

    def __str__(self) -> str:
        at = "for certain" if self.confidence == 1 else f"at {self.confidence:.6g} confidence"
        return f"TV at most {self.total_variation:.4g} {at}"


NO_DISTANCE = Certificate(total_variation=0.0)
"""The certificate of exact draws."""


@dataclass(frozen=True, kw_only=True)
class WrittenText:
    """A text of the language, with its value: a draw, or a member of a ranking.

    Attributes
    ----------
    text
        The text, without the end of sequence; where it begins with a member, the member; with the stop string where it stays there.
    token_ids
        The generated ids, the end of sequence last; without it where free text used up its budget, and where texts begin with a
        member, of which the last token may write more.
    log_p
        ``log p(y)`` under the model and the settings, in nats.
    reader
        The function that makes the typed value of the text.
    member
        The part of the text that is a member of the format, of which the value is read; ``None`` for all of it.
    spelled
        That part with the special tokens that the format names, as machines step by them; ``None`` where it names none.
    """

    text: str
    token_ids: tuple[int, ...]
    log_p: float
    reader: Callable[[str], Any] = field(default=str, repr=False, compare=False)
    member: str | None = field(default=None, repr=False)
    spelled: str | None = field(default=None, repr=False, compare=False)

    @cached_property
    def value(self) -> Any:
        """The typed value: an instance, a member, a number, ...; the text itself for a regex.

        Read when it is first asked for.

        Raises
        ------
        ValueReadError
            The type refuses the text, by a constraint that is not part of the format.
        """
        spelled = self.spelled if getattr(self.reader, "spelled", False) else None
        member = self.text if self.member is None else self.member
        return self.reader(member if spelled is None else spelled)

    @property
    def calls(self) -> tuple[Any, ...]:
        """The calls of tools in the text, in turn: of an output type with :class:`outlines_phi.Tools`.

        Raises
        ------
        UnsupportedError
            There are no tools in the output type.
        ValueReadError
            As :attr:`value`.
        """
        if not hasattr(self.value, "calls"):
            raise UnsupportedError(
                "Give outlines_phi.Tools(...) as output type. This one has no tools that a draw could call."
            )
        return self.value.calls

    @classmethod
    def of(cls, guide: Guide, token_ids: Sequence[int], **attributes: Any) -> Any:
        """Return the text that ``token_ids`` write under a guide, with other ``attributes`` or these in place of those found."""
        # Free text that the budget cuts short may end inside a character.
        text, vocabulary = guide.text(token_ids).decode(errors="replace"), guide.vocabulary
        plain = guide.match is None and vocabulary.plain is None
        spelled = b"" if plain else guide.member(token_ids)
        member = text if guide.match is None else vocabulary.shown(spelled).decode(errors="replace")
        written = {
            "text": text,
            "member": None if member == text else member,
            "spelled": None if vocabulary.plain is None else spelled.decode(errors="surrogateescape"),
            "token_ids": tuple(token_ids),
        }
        return cls(**{**written, **attributes})


class Alternative(NamedTuple):
    """One of the likeliest tokens after a prefix: ``allowed`` says whether the format lets it follow."""

    id: int
    bytes: bytes
    log_p: float
    allowed: bool


class TokenAccount(NamedTuple):
    """One token ``v`` of a draw, after the tokens ``y`` before it; logs of probabilities, in nats.

    Attributes
    ----------
    id, bytes
        The token, and what it writes: nothing where it is special.
    log_p
        ``log p(v | y)``: the model's own, under the settings, before the format; they add up to that of the draw. ``None`` of an
        end that a stream wrote without the model.
    log_q
        ``log q(v | y)``, by which it was proposed. Of a weighted draw ``log_p - log_q`` add up to ``log_w``, unless it was picked
        from several; beside a constraint an unbiased estimate of the allowed mass stands in. ``None`` under exact, certified and
        window-wise sampling, which accept or reject whole texts and have no such probability.
    log_s
        ``log S(y)``: of all tokens together that the format allows after ``y``, a constraint aside. Under masking they add up to
        ``log_w``. ``None`` where it was forgotten.
    log_phi_lower, log_phi_upper
        Bounds of ``log Phi(y)``, as the tree had them when the call ended; without one, ``-inf`` and ``log_s``.
    top
        The likeliest tokens after ``y``, the likeliest first: as many as ``top=`` asked for, or as have a probability. ``None``
        where the distribution was read before the call, or dropped since.
    """

    id: int
    bytes: bytes
    log_p: float | None
    log_q: float | None
    log_s: float | None
    log_phi_lower: float
    log_phi_upper: float
    top: tuple[Alternative, ...] | None = ()


@final
class ThoughtText(str):
    """The text of a thought, and in a stream a piece of one: other pieces are of the answer."""

    __slots__ = ()


@final
@dataclass(frozen=True, kw_only=True)
class Thought:
    """The thought before an answer.

    Attributes
    ----------
    text
        The text between its markers.
    token_ids
        The first ids of the draw: up to the marker at its end, with the tokens of both markers.
    forced
        True if it came to ``max_tokens``, where the marker alone was allowed.
    log_p, log_w
        ``log p(x)`` of these tokens, and ``log p(x) - log q(x)``: the log mass of what could follow, added up over the tokens; less
        by far where the marker was forced. ``nan`` under ``scope="joint"``, where the draw's own are known.
    answer
        The guarantee of the answer, given the thought; ``None`` under ``scope="joint"``.
    """

    text: ThoughtText
    token_ids: tuple[int, ...]
    forced: bool
    log_p: float = math.nan
    log_w: float = math.nan
    answer: Guarantee | None = None

    @classmethod
    def of(cls, guide: Guide, token_ids: Sequence[int], **attributes: Any) -> Thought | None:
        """Return the thought that a text of ``guide`` begins with; ``None`` where it begins with none."""
        thoughts, tokens = guide.thoughts, guide.vocabulary.tokens
        found = None if thoughts is None else thoughts.read([tokens[token] for token in token_ids])
        if found is None:
            return None
        count, text, forced = found
        shown = ThoughtText(text.decode(errors="replace"))
        return cls(text=shown, token_ids=tuple(token_ids[:count]), forced=forced, **attributes)


@final
@dataclass(frozen=True, kw_only=True)
class Draw(WrittenText):
    """One member of the language.

    Attributes
    ----------
    log_w
        ``log p(y) - log q(y)``, the importance weight; for exact, certified and confident draws, and the last state of a chain,
        the constant estimate of ``log Phi``; ``nan`` where it is not known.
    guarantee
        How its distribution stands to ``mu*``.
    candidates, ess
        Weighted draws may be picked from several candidates by weight, others by a chain: how many there were, and their
        effective number ``(sum w)^2 / sum w^2``.
    blocks, picked
        Of a text drawn by fields: the blocks that it was drawn in, and how many of them were picked from candidates.
    tokens
        The account of each of ``token_ids``, where ``tokens=True`` asked for it; else empty.
    thought
        The thought before the answer, of which ``text`` and ``value`` are; ``None`` but for :class:`outlines_phi.Thinking`.
    """

    log_w: float
    guarantee: Guarantee
    candidates: int = 1
    ess: float = 1.0
    blocks: int = 1
    picked: int = 0
    tokens: tuple[TokenAccount, ...] = field(default=(), repr=False)
    thought: Thought | None = None

    @classmethod
    def of(cls, guide: Guide, token_ids: Sequence[int], **attributes: Any) -> Draw:
        """Return the draw that ``token_ids`` write under a guide; see :meth:`WrittenText.of`."""
        return super().of(
            guide, token_ids, **{"thought": guide.thoughts and Thought.of(guide, token_ids), **attributes}
        )


Item = TypeVar("Item", bound=WrittenText, covariant=True)


class TextSequence(Sequence[Item]):
    """A sequence of texts with their values, which knows more of them all together."""

    items: tuple[Item, ...]  # The texts, in order

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Item, ...]: ...
    def __getitem__(self, index: int | slice) -> Item | tuple[Item, ...]:
        return self.items[index]

    @property
    def texts(self) -> list[str]:
        """The texts, in order."""
        return [item.text for item in self.items]

    @property
    def values(self) -> list[Any]:
        """The typed values, in order; see :attr:`Draw.value`."""
        return [item.value for item in self.items]


def numbers_of(f: Callable[[Draw], float], draws: Sequence[Draw]) -> list[float]:
    """Return ``f`` of each draw; what ``f`` itself raises is its caller's.

    Raises :class:`UnsupportedError`: ``f`` is no function, or does not return a number.
    """
    expected = "expected a function of a draw that returns a number, such as lambda draw: draw.text == 'yes'."
    if not callable(f):
        raise UnsupportedError(f"expectation({shown(f)}) was asked for; {expected}")
    numbers: list[float] = []
    for one in draws:
        value: object = f(one)
        try:
            if not isinstance(value, SupportsFloat):
                raise TypeError
            numbers.append(float(value))
        except (TypeError, ValueError):
            raise UnsupportedError(
                f"The function given to expectation() returned {shown(value)} for {one.text!r}; {expected}"
            ) from None
    return numbers


class WeightedSample(TextSequence[Draw]):
    """Draws with their weights, and with so many ``failures``, which have weight 0."""

    failures: int

    @property
    def weighed(self) -> bool:
        """True if the weights are known; a look-ahead estimates them only where it is asked to."""
        return not any(math.isnan(draw.log_w) for draw in self.items)

    @property
    def log_w(self) -> NDArray[np.float64]:
        """``[n + failures]``: all log weights, in nats; ``-inf`` for failures, at the end; ``nan`` where they are not known."""
        return np.array([draw.log_w for draw in self.items] + [-math.inf] * self.failures)

    @property
    def ess(self) -> float:
        """Effective sample size ``(sum w)^2 / sum w^2``; equal to ``n`` for exact draws.

        ``n`` where the weights are not known: that of the distribution that they were drawn from. It knows nothing of what
        resampling has made equal.
        """
        return effective_size(scaled(self.log_w)) if self.weighed else float(len(self.items))

    @property
    def weights(self) -> NDArray[np.float64]:
        """``[n]``: self-normalised weights of the draws, summing to 1; expectations under ``mu*`` use these.

        Equal where they are not known: expectations are then those under the distribution that was drawn from.
        """
        w = normalized(self.log_w[: len(self.items)]) if self.weighed else np.zeros(len(self.items))
        return w if w.any() else np.full(len(w), 1 / max(1, len(w)))

    def expectation(self, f: Callable[[Draw], float]) -> float:
        """Return the mean of ``f(draw)`` by the weights, an estimate of that under ``mu*``; 0 of none.

        Biased by the order of ``1 / n``, as every ratio of two estimates is.

        Raises
        ------
        UnsupportedError
            ``f`` is no function of a draw that returns a number.
        """
        return float(np.dot(self.weights, numbers_of(f, self.items)))


@final
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Population(WeightedSample):
    """The particles of one run: not so many draws, but one weighted sample, whose members depend on one another.

    A particle's ``log_w`` is its weight since the last resampling times the mean weights of the epochs before it, so that for
    every function ``E[sum_i w_i f(y_i) / N] = Phi mu*(f)``, the sum over all ``N`` particles, those of weight 0 included.

    Attributes
    ----------
    items
        The particles that were completed, in order; after resampling, several may be equal.
    failures
        Particles of weight 0, which have no text.
    resamplings
        How often the run was resampled.
    """

    items: tuple[Draw, ...]
    failures: int = 0
    resamplings: int = 0

    def __repr__(self) -> str:
        failed = f" and {self.failures} of weight 0" if self.failures else ""
        return (
            f"<population of {counted(len(self), 'particle')}{failed}: ess {self.ess:.4g}, log Phi {self.log_z:.4g}, "
            f"{counted(self.resamplings, 'resampling')}>"
        )

    @property
    def log_z(self) -> float:
        """``log Z_hat``, the log of the mean weight: ``E[Z_hat] = Phi(prompt)``; ``-inf`` where all particles failed."""
        return log_mean(self.log_w)

    def pick(self, rng: np.random.Generator) -> Draw:
        """Draw one particle in proportion to the weights; its ``log_w`` is ``log Z_hat``, so that ``E[w f] = Phi mu*(f)``."""
        return replace(self.items[draw(self.weights, rng)], log_w=self.log_z, candidates=len(self.log_w), ess=self.ess)

    def read_by(self, reader: Callable[[str], Any]) -> Population:
        """Return the same particles, whose values ``reader`` makes of their texts."""
        return replace(self, items=tuple(replace(draw, reader=reader) for draw in self.items))


@final
@dataclass(frozen=True, kw_only=True)
class DrawCounts:
    """The cost of a call."""

    # Model calls, prompts included. Prompts of one batch share calls: each reports those of the whole batch.
    calls: int = 0
    # Prompt tokens and generated tokens that the model evaluated, padding excluded, for the whole batch
    prompt_tokens: int = 0
    tokens: int = 0
    # Attempts launched and finished in launch order up to the last draw, and those that gave a draw. Under `sampler=` they are
    # runs of particles. Under a look-ahead they are attempts at windows, and the windows that were committed.
    attempts: int = 0
    accepted: int = 0
    # Under a draft: tokens that were drafted for the texts of this prompt, and those of them that were kept
    drafted: int = 0
    followed: int = 0
    # Under a draft: tokens that these texts have, and the model calls that each took part in, added up
    written: int = 0
    turns: int = 0

    @property
    def acceptance(self) -> float:
        """Accepted attempts per attempt; 1 where there were none."""
        return self.accepted / self.attempts if self.attempts else 1.0

    @property
    def draft_acceptance(self) -> float:
        """Drafted tokens that were kept, per drafted token; 0 where none were drafted."""
        return self.followed / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_call(self) -> float:
        """Tokens that a text grew by in a model call that it took part in, in the mean; 1 without a draft."""
        return self.written / self.turns if self.turns else 1.0


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Draws(WeightedSample):
    """The draws of one prompt, with their counts.

    Attributes
    ----------
    items
        The draws, in order; i.i.d. from the sampler's distribution.
    counts
        Their cost.
    budget
        The ``N`` that the distribution depends on: the most tokens that a draw may have.
    failures
        Trajectories that found no allowed token (truncation can do this). They are draws of weight 0 and count in every mean.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi(prompt)``, in nats: those that the draws ended with, or, for certified and
        confident draws, those of the certificate; these hold at its confidence.
    log_normalizers
        Logs of unbiased estimates of ``Phi(prompt)``, :attr:`normalizers`, one per residual attempt.
    certificate
        How far the distribution of a draw is from ``mu*``, at most: 0 for exact draws. ``None`` where nothing bounds it. Where a
        ``BudgetError`` has draws that are missing for want of a certificate: what was certified by then.
    populations
        The population that each draw was picked from, under ``sampler=``.
    rejections
        Under a look-ahead, with weights or without: how many of the failed attempts would have completed which phrase, by its
        name; phrases that cost none are left out. In free text these are all that failed, ``counts.attempts -
        counts.accepted``, as far as the model writes no special tokens; beside an output type some come upon what the type
        itself rules out, or upon a dead end. Other samplers count attempts alone: a mask has none that fails, and exact draws
        keep no distributions of dead tokens.
    beginnings
        The likeliest first tokens of the model and of the format, where the draws have read them.
    """

    items: tuple[Draw, ...]
    counts: DrawCounts = field(default_factory=DrawCounts)
    budget: int
    failures: int = 0
    log_z_bounds: tuple[float, float] = (-math.inf, 0.0)
    log_normalizers: tuple[float, ...] = ()
    certificate: Certificate | None = None
    populations: tuple[Population, ...] = field(default=(), compare=False)
    rejections: Mapping[str, int] = field(default_factory=dict, hash=False)
    beginnings: Beginnings | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        failed = f" and {self.failures} of weight 0" if self.failures else ""
        certified = f" ({self.certificate})" if self.certificate and self.certificate.total_variation else ""
        rejected = (
            f", {counted(sum(self.rejections.values()), 'attempt')} upon banned phrases" if self.rejections else ""
        )
        drafted = f", {self.counts.tokens_per_call:.3g} tokens per call by drafts" if self.counts.turns else ""
        estimated = bool(self.log_normalizers) or self.guarantee <= Guarantee.WEIGHTED
        # Bounds where there are any, and an estimate where it is more than their middle.
        log_phi = log_mass_text(self.log_z_bounds, self.log_z if estimated else math.nan)
        return (
            f"<{counted(len(self), 'draw')}{failed}, {self.guarantee}{certified}: ess {self.ess:.4g}, log Phi {log_phi}, "
            f"{counted(self.counts.calls, 'model call')}, {counted(self.counts.tokens, 'token')}{drafted}{rejected}>"
        )

    def read_by(self, reader: Callable[[str], Any]) -> Draws:
        """Return the same draws, whose values ``reader`` makes of their texts."""
        read = {population: population.read_by(reader) for population in self.populations}
        return replace(
            self,
            items=tuple(replace(draw, reader=reader) for draw in self.items),
            populations=tuple(read[population] for population in self.populations),
        )

    def expectation(self, f: Callable[[Draw], float]) -> float:
        """Return the mean of ``f(draw)`` by the weights, an estimate of that under ``mu*``; over all particles where there are any.

        Raises
        ------
        EmptyLanguageError
            There is no draw.
        UnsupportedError
            ``f`` is no function of a draw that returns a number.
        """
        if not self.items:
            raise self._nothing
        means = [population.expectation(f) for population in self.populations] or numbers_of(f, self.items)
        return float(np.dot(self.weights, means))

    def marginals(self, confidence: float = 0.95) -> Marginals:
        """Return the distribution of each field of the values, with intervals at this confidence, each by itself.

        Those of Wilson at the effective sample size, of the distribution that was drawn from where the weights are not known. What
        a certificate leaves open is added to both sides.

        Raises
        ------
        EmptyLanguageError
            There is no draw.
        UnsupportedError
            ``confidence`` is not between 0 and 1.
        """
        holds = is_number(confidence) and 0 < confidence < 1
        check("marginals()", holds, "a number between 0 and 1", confidence=confidence)
        if not self.items:
            raise self._nothing
        slack = self.certificate.total_variation if self.certificate else 0.0
        return Marginals.by_weight(
            list(map(_value_or_error, self.items)), self.weights, confidence, self.ess, slack, f"{self!r:.300}"
        )

    @property
    def _nothing(self) -> EmptyLanguageError:
        return EmptyLanguageError(
            f"There is no draw to take a mean of: all {self.failures} were of weight 0. Draw more, or with another sampler."
        )

    @property
    def guarantee(self) -> Guarantee:
        """The weakest guarantee among the draws."""
        none = Guarantee.WEIGHTED if self.failures else Guarantee.EXACT
        return min((draw.guarantee for draw in self.items), default=none)

    @property
    def normalizers(self) -> tuple[float, ...]:
        """Unbiased estimates of ``Phi(prompt)``, one per residual attempt."""
        return tuple(map(math.exp, self.log_normalizers))

    @property
    def log_z(self) -> float:
        """Estimate of ``log Phi(prompt)``, in nats; biased low, being the log of an unbiased estimate.

        From the residual attempts where there are any, from the weights of weighted draws, and else the middle of the bounds.
        ``nan`` where the weights are not known.
        """
        if not self.weighed:
            return math.nan
        if self.log_normalizers:
            return log_mean(self.log_normalizers)
        if self.guarantee <= Guarantee.WEIGHTED and len(self.log_w):
            return log_mean(self.log_w)
        return middle(self.log_z_bounds)


def _value_or_error(draw: Draw) -> Any:
    try:
        return draw.value
    except ValueReadError as error:
        return error


def middle(log_bounds: tuple[float, float]) -> float:
    """Return the log of the mean of two numbers given by their logs."""
    return float(np.logaddexp(*log_bounds)) - math.log(2)
