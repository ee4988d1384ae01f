"""Constraints beside the guide: predicates on token sequences and on texts."""

from __future__ import annotations

import codecs
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import MethodType
from typing import Annotated, Any, Protocol, final

import numpy as np

from ..errors import ConstraintError, UnsupportedError
from ..numerics.checks import Checked, Count, that
from ..vocabulary.vocabulary import Vocabulary

FURTHER = 4
"""The default number of tests after a draw: of the first few, each takes more noise from the weight than the one after it."""

ENTRY_BYTES = 100  # Footprint of an entry of a dictionary, on CPython 3.11
Predicate = Callable[[str], bool]  # True for an allowed text; `True` or `False`, and always the same for the same text
Told = Annotated[Predicate | None, that(callable, "a function of a text that returns True or False")]


class Constraint(Protocol):
    """Rules out token sequences that the guide allows; part of the language, like the guide.

    A tree asks once for every prefix that it makes a node of, and a walk for the few next tokens that it tests, so a constraint
    costs what the visited prefixes cost. It is part of the key under which trees are kept: equal ones stand for one constraint.
    ``str`` of it is what messages call it.

    ``further``: next tokens that a walk tests after the one that it draws, at least 1: more make its weight less noisy.
    ``bytes``: memory that it holds beside what others hold anyway.
    """

    @property
    def further(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        """Return True if a sequence is a member (``finished``), or may still become the prefix of one.

        ``tokens`` come without the end of sequence. Saying yes to a prefix that has no member costs time and nothing else;
        saying no to one that has some is an error.
        """


@final
@dataclass(frozen=True)
class Conjunction:
    """The conjunction of several constraints, asked in their order."""

    parts: tuple[Constraint, ...]

    @property
    def further(self) -> int:
        """The least of the parts."""
        return min(part.further for part in self.parts)

    @property
    def bytes(self) -> int:
        """The sum of the parts."""
        return sum(part.bytes for part in self.parts)

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        return all(part.allows(tokens, finished=finished) for part in self.parts)

    def __str__(self) -> str:
        return " with ".join(map(str, self.parts))


def all_of(*constraints: Constraint | None) -> Constraint | None:
    """Return the conjunction of ``constraints``; ``None`` where there are none."""
    given = tuple(constraint for constraint in constraints if constraint is not None)
    return Conjunction(given) if len(given) > 1 else next(iter(given), None)


@final
@dataclass(frozen=True, eq=False)
class TextConstraint(Checked):
    """Predicates that a text has to satisfy, beside its output type.

    ``prefix(text)`` is asked of the beginnings of a text, and of the whole text; a beginning that it refuses is never continued.
    ``complete(text)`` is asked of whole texts only. Both see whole characters: of a beginning that ends inside a character,
    the part before that. The language is then that of the output type without what is refused, and everything that is said of
    draws, weights and bounds is said of this language. The earlier a predicate refuses what comes to nothing, the less is wasted.

    Parameters
    ----------
    prefix, complete
        One of them, or both. Pure functions: what is known of a predicate is kept for as long as the same callable is given.
    further
        Next tokens that a walk tests after the one that it draws. More make weights less noisy and cost calls of the predicate;
        give 1 where it is expensive. Only estimators that walk token by token use it, such as ``phi="local"``.
    memory
        Texts whose verdicts are kept, per predicate.

    Raises
    ------
    UnsupportedError
        No predicate, one that cannot be called, or a number out of range.
    """

    prefix: Told = None
    complete: Told = field(default=None, kw_only=True)
    further: Count = field(default=FURTHER, kw_only=True)
    memory: Count = field(default=2**14, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix is None and self.complete is None:
            raise UnsupportedError("TextConstraint() was given no predicate; expected prefix=, complete= or both.")

    @property
    def _key(self) -> tuple[Any, ...]:
        return _identity(self.prefix), _identity(self.complete), self.further, self.memory

    def __eq__(self, other: object) -> bool:
        # By identity: two predicates that compare equal, or cannot be hashed, may still be two.
        return isinstance(other, TextConstraint) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        if self.complete is None and self.prefix is not None:
            return _name(self.prefix)
        given = {"prefix": self.prefix, "complete": self.complete}
        named = (f"{name}={_name(predicate)}" for name, predicate in given.items() if predicate is not None)
        return f"TextConstraint({', '.join(named)})"

    def over(self, vocabulary: Vocabulary) -> AllowedTexts:
        """Return the constraint on token sequences of ``vocabulary``."""
        return AllowedTexts(self, vocabulary)


@final
class AllowedTexts:
    """A :class:`TextConstraint` over a vocabulary: a :class:`Constraint`."""

    def __init__(self, texts: TextConstraint, vocabulary: Vocabulary) -> None:
        if not any(vocabulary.tokens):
            raise UnsupportedError(
                f"constraint={texts} was given, and the bytes of the tokens are not known; give the tokenizer too: "
                "vocabulary=tokenizer."
            )
        self._texts, self._vocabulary = texts, vocabulary
        self.further = texts.further
        self._prefix, self._complete = (
            _Verdicts(predicate, texts.memory) for predicate in (texts.prefix, texts.complete)
        )

    @property
    def bytes(self) -> int:
        """Memory that the kept verdicts take."""
        return self._prefix.bytes + self._complete.bytes

    def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
        """See :meth:`Constraint.allows`; a predicate that raises, or returns no bool, is a :class:`ConstraintError`."""
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(self._vocabulary.decode(tokens))
        if not text and not finished:  # every text begins so, and predicates like to look at the first character
            return True
        return self._prefix.of(text) and (not finished or self._complete.of(text))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AllowedTexts) and self._texts == other._texts and self._vocabulary is other._vocabulary

    def __hash__(self) -> int:
        return hash((self._texts, id(self._vocabulary)))

    def __str__(self) -> str:
        return f"constraint={self._texts}"


@final
class _Verdicts:
    """A cache of the answers of a predicate for the last ``most`` texts; without a predicate, yes to all."""

    def __init__(self, predicate: Predicate | None, most: int) -> None:
        self._predicate, self._most = predicate, most
        self._known: dict[str, bool] = {}
        self._lock = threading.Lock()
        self.bytes = 0

    def of(self, text: str) -> bool:
        if self._predicate is None:
            return True
        verdict = self._known.get(text)
        if verdict is None:
            verdict = _ask(self._predicate, text)  # not under the lock: a predicate may take long, or draw itself
            with self._lock:
                self._keep(text, verdict)
        return verdict

    def _keep(self, text: str, verdict: bool) -> None:
        if text in self._known:
            return
        self._known[text] = verdict
        self.bytes += sys.getsizeof(text) + ENTRY_BYTES
        if len(self._known) > self._most:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self.bytes -= sys.getsizeof(oldest) + ENTRY_BYTES


def _ask(predicate: Predicate, text: str) -> bool:
    try:
        verdict: object = predicate(text)
    except Exception as error:
        raise ConstraintError(
            f"constraint={_name(predicate)} raised {type(error).__name__} for the text {text!r:.200}: {error}. A predicate is "
            "asked about unfinished texts too; return False for what can never be continued to an allowed text, else True.",
            text=text,
        ) from error
    match verdict:
        case bool() | np.bool_():
            return bool(verdict)
    raise ConstraintError(
        f"constraint={_name(predicate)} returned {verdict!r:.80} for the text {text!r:.200}; expected True or False.",
        text=text,
    )


def _name(predicate: Predicate) -> str:
    return getattr(predicate, "__qualname__", None) or repr(predicate)


def _identity(predicate: Predicate | None) -> tuple[int, ...]:
    """Return the identity of a callable among all that are alive; a method is a new object each time that it is looked up."""
    match predicate:
        case MethodType():
            return id(predicate.__self__), id(predicate.__func__)
    return (id(predicate),)
