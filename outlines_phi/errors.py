"""Every error that outlines_phi raises on purpose.

    OutlinesPhiError
    ├── EmptyLanguageError    nothing in the language can be written within the budget
    ├── GrammarError          a regular expression, schema or grammar that cannot be read
    ├── VocabularyError       tokenizer and model do not fit each other
    ├── ModelError            the model gave no distribution: NaN logits, prompt longer than its context
    ├── UnsupportedError      a feature that is not offered; the message names the alternative
    ├── ValueReadError        a draw that the output type itself refuses as a value; carries the text
    ├── ConstraintError       a predicate that raised, or gave no answer; carries the text
    ├── DraftError            a drafter that raised, or proposed what is no draft
    └── BudgetError           exact sampling ran out of effort; carries what it had so far
    KeyboardInterrupt
    └── InterruptedDraws      Ctrl-C in a call that had exact draws already; carries them

Each message says what was given, what was expected, and what to do next. Classes that also mean a
wrong argument derive from ``ValueError`` so that an application's existing handlers keep working.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any


class OutlinesPhiError(Exception):
    """Base of every error raised on purpose by outlines_phi. Errors can be pickled, with what they carry."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception itself would call the class with the message alone, which is not all that some of them take.
        return _restored, (type(self), self.args), self.__dict__


class EmptyLanguageError(OutlinesPhiError, ValueError):
    """No member of the language can be written within the budget.

    ``least_budget`` is the least ``max_new_tokens`` (end of sequence included) that would do; ``None`` when no budget would.
    """

    def __init__(self, message: str, *, least_budget: int | None = None) -> None:
        super().__init__(message)
        self.least_budget = least_budget


class GrammarError(OutlinesPhiError, ValueError):
    """A regular expression, schema or grammar that cannot be read.

    ``source`` is the text at fault, and ``position`` an offset into it, in characters, where it is known.
    """

    def __init__(self, message: str, source: str = "", position: int | None = None) -> None:
        self.source, self.position = source, position
        super().__init__(message if position is None else f"{message}\n{caret(source, position)}")


class VocabularyError(OutlinesPhiError, ValueError):
    """The tokenizer's bytes cannot be known exactly, or it does not fit the model."""


class ModelError(OutlinesPhiError, ValueError):
    """The model cannot give a distribution for this input (NaN logits, prompt longer than the context)."""


class UnsupportedError(OutlinesPhiError, ValueError):
    """A feature, option or combination that is not offered; the message names the alternative."""


class ValueReadError(OutlinesPhiError, ValueError):
    """A text, ``.text``, that is in the format but that the output type itself refuses as a value; its draw is as good as any."""

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class ConstraintError(OutlinesPhiError, ValueError):
    """A predicate that was given as ``constraint=`` raised, or returned something else than ``True`` or ``False``.

    ``text`` is what it was asked about. An exception that it raised is the ``__cause__``.
    """

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class DraftError(OutlinesPhiError, ValueError):
    """A drafter that was given as ``draft=`` raised, or proposed no draft: unknown tokens, weights that are no distribution.

    An exception that it raised is the ``__cause__``.
    """


def too_small(budget: object, least: int, name: str = "max_new_tokens") -> EmptyLanguageError:
    """Return the error of a budget, given as ``name``, that the shortest member of the language does not fit."""
    return EmptyLanguageError(
        f"Give {name}={least} or more: {name}={budget} is too small, this output type needs {least} tokens, end of sequence "
        "included.",
        least_budget=least,
    )


COST = "using the set as if it were complete costs at most the probability that the effort runs out, in total variation"
"""The warning on the draws that a call has made before its effort ran out."""


class BudgetError(OutlinesPhiError, RuntimeError):
    """Exact sampling ran out of effort.

    Attributes
    ----------
    reason
        The message without what to do.
    draws
        One :class:`Draws` per prompt with what was drawn before the effort ran out, in launch order. Using one as if it were
        complete costs at most the probability that the effort runs out, in total variation (each draw is still exact). Where the
        effort was time, that probability depends on the machine.
    log_z_bounds
        ``(lower, upper)`` bounds of ``log Phi`` of the prompt, in nats.
    partial
        The bounds so far of an enumeration or a search: one ``Probabilities`` or ``Ranking`` per prompt.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        draws: Any = None,
        log_z_bounds: tuple[float, float] | None = None,
        partial: Any = None,
    ) -> None:
        super().__init__(message)
        self.reason, self.draws, self.log_z_bounds, self.partial = reason or message, draws, log_z_bounds, partial

    @classmethod
    def of(cls, remedy: str, reason: str, carried: str = "", **attributes: Any) -> BudgetError:
        """Return the error that says what to do, then what was reached, then what it carries of that; none with a full stop."""
        reached = f"{reason}; {carried}" if carried else reason
        return cls(f"{remedy}. {reached}.", reason=f"{reason}.", **attributes)


class InterruptedDraws(KeyboardInterrupt):
    """Ctrl-C in a call that had made exact draws already; ``except KeyboardInterrupt`` catches it, too.

    Attributes
    ----------
    draws
        One :class:`Draws` per prompt: those that were accepted, in launch order. Unlike a :class:`BudgetError`, an interrupt does
        not wait for the attempts that are under way, and these are rather long ones: the set leans to short texts by about the
        attempts that it lacks, ``width`` of them at most.
    """

    def __init__(self, message: str, *, draws: Any = None) -> None:
        super().__init__(message)
        self.draws = draws

    @classmethod
    def of(cls, draws: Any, wanted: int) -> InterruptedDraws:
        """Return the exception for ``draws``, of so many for each prompt."""
        made = sum(map(len, draws))
        return cls(f"{made} of {wanted * len(draws)} draws were made; .draws of this exception has them.", draws=draws)


class FidelityWarning(UserWarning):
    """Some of what was returned is weighted or approximate, where exact was asked for as far as it is cheap."""


class FitWarning(FidelityWarning):
    """The model hardly ever writes the format by itself: ``log Phi`` is low. What was returned is as faithful as ever."""


class SchemaWarning(UserWarning):
    """Texts may violate a JSON schema: keywords that its compiler cannot honour are named by JSON pointer, and left out."""


class GrammarWarning(UserWarning):
    """A grammar has rules of no use, which are left out, or a priority that takes texts which the rules would use."""


def _restored(kind: type[OutlinesPhiError], arguments: tuple[Any, ...]) -> OutlinesPhiError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


def warn_of(category: type[Warning], message: str) -> None:
    """Give a warning at the line of the application that made the call."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        "outlines_phi",
        "outlines",
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level + 1)


def caret(source: str, position: int, width: int = 72) -> str:
    """Return the line of ``source`` that holds ``position`` with a caret under it, at most ``width`` wide."""
    start = source.rfind("\n", 0, position) + 1
    line = source[start:].split("\n", 1)[0]
    column = position - start
    left = max(0, column - width // 2)
    place = f"  line {source.count(chr(10), 0, position) + 1}, column {column + 1}"
    return f"{place}\n  {line[left : left + width]}\n  {' ' * (column - left)}^"
