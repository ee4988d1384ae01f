"""One draw: a text, what its distribution is, and its weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, SupportsFloat, TypeVar, final, overload

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedError
from ..guides.guide import Guide
from ..numerics.checks import check_counts, counted, shown
from ..numerics.weights import draw, effective_size, log_mean, normalized, scaled


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
        The text, without the end of sequence; where it begins with a member, the member.
    token_ids
        The generated ids, the end of sequence last; without it where free text used up its budget, and where texts begin with a
        member, of which the last token may write more.
    log_p
        ``log p(y)`` under the model and the settings, in nats.
    reader
        The function that makes the typed value of the text.
    """

    text: str
    token_ids: tuple[int, ...]
    log_p: float
    reader: Callable[[str], Any] = field(default=str, repr=False, compare=False)

    @cached_property
    def value(self) -> Any:
        """The typed value: an instance, a member, a number, ...; the text itself for a regex.

        Read when it is first asked for.

        Raises
        ------
        ValueReadError
            The type refuses the text, by a constraint that is not part of the format.
        """
        return self.reader(self.text)


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
    """

    log_w: float
    guarantee: Guarantee
    candidates: int = 1
    ess: float = 1.0
    blocks: int = 1
    picked: int = 0

    @classmethod
    def of(cls, guide: Guide, token_ids: Sequence[int], **attributes: Any) -> Draw:
        """Return the draw that ``token_ids`` write under a guide."""
        # Free text that the budget cuts short may end inside a character.
        return cls(text=guide.text(token_ids).decode(errors="replace"), token_ids=tuple(token_ids), **attributes)


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


@final
@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Population(TextSequence[Draw]):
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

    @cached_property
    def log_w(self) -> NDArray[np.float64]:
        """``[N]``: the log weights, in nats; ``-inf`` for the failed particles, which stand at the end."""
        return np.array([draw.log_w for draw in self.items] + [-np.inf] * self.failures)

    @property
    def weights(self) -> NDArray[np.float64]:
        """``[len(items)]``: weights that sum to 1."""
        return normalized(self.log_w)[: len(self.items)]

    @property
    def ess(self) -> float:
        """Effective sample size of the final weights; it knows nothing of what resampling has made equal."""
        return effective_size(scaled(self.log_w))

    @property
    def log_z(self) -> float:
        """``log Z_hat``, the log of the mean weight: ``E[Z_hat] = Phi(prompt)``; ``-inf`` where all particles failed."""
        return log_mean(self.log_w)

    def expectation(self, f: Callable[[Draw], float]) -> float:
        """Return the mean of ``f(particle)`` by the weights, an estimate of that under ``mu*``.

        Biased by the order of ``1 / N``, as every ratio of two estimates is.

        Raises
        ------
        UnsupportedError
            ``f`` is no function of a draw that returns a number.
        """
        return float(np.dot(self.weights, numbers_of(f, self.items)))

    def pick(self, rng: np.random.Generator) -> Draw:
        """Draw one particle in proportion to the weights; its ``log_w`` is ``log Z_hat``, so that ``E[w f] = Phi mu*(f)``."""
        index = draw(self.weights, rng)
        chosen = self.items[index]
        return replace(chosen, log_w=self.log_z, candidates=len(self.log_w), ess=self.ess)

    def read_by(self, reader: Callable[[str], Any]) -> Population:
        """Return the same particles, whose values ``reader`` makes of their texts."""
        return replace(self, items=tuple(replace(draw, reader=reader) for draw in self.items))
