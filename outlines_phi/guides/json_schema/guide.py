"""What a JSON schema allows, token by token."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, final

import numpy as np

from ...checked import check_kind
from ...errors import UnsupportedError, warn_of_schema
from ...partition import EOS
from ...vocabulary import Vocabulary, check_vocabulary
from ..guide import DEAD, DONE, UNREACHABLE, Guide, Row
from .forest import Forest, Tokens
from .machine import BEYOND_ASCII, Configuration, Machine
from .schema import Schema
from .sizes import NEVER as ENDLESS
from .template import Template
from .walks import Walks

_FIRST = DONE + 1

_ROWS = 256
"""How many rows are kept."""

MOST_SHOWN = 10
"""Keywords that a warning names."""


@final
class JSONGuide(Guide):
    """The token sequences that spell a JSON value that a schema is true of (json-schema.md, section 3).

    A state is a configuration of :class:`~outlines_phi.guides.json_schema.machine.Machine`: a place within a value, and what comes
    after the values around it. What a token does within a value depends on the place alone, and is kept without the stack.

    ``min_tokens`` is the least number of bytes to the end, and the end itself: a way to it by the tokens that are one byte.

    Parameters
    ----------
    machine
        The texts.
    vocabulary
        The tokens; each byte must have one of its own.

    Raises
    ------
    UnsupportedError
        Some bytes have no token of their own.
    """

    shortest = False

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        check_kind(
            "JSONGuide", "machine", machine, Machine, "a Machine; use JSONGuide.of(schema, vocabulary), which makes it"
        )
        self.machine, self.vocabulary = machine, vocabulary
        self._forest = Forest.of(vocabulary)
        missing = machine.needed - self._forest.single_bytes
        if missing:
            raise UnsupportedError(
                f"Use a vocabulary with a token for each byte. This one has none for {bytes(sorted(missing))!r:.80}."
            )
        self._lock = self._forest.lock
        self._configurations: list[Configuration] = []
        self._numbers: dict[Configuration, int] = {}
        self._walks = Walks(machine, self._forest)
        self._sizes: dict[int, int] = {}
        self._recent_row = lru_cache(_ROWS)(self._row)
        self.start = self._number(machine.start)

    @classmethod
    def of(
        cls, schema: Any, vocabulary: Vocabulary, *, blanks: str | None = None, any_order: bool = False
    ) -> JSONGuide:
        """Return the guide of a JSON schema.

        Parameters
        ----------
        schema
            The schema, as ``json.loads`` made it.
        vocabulary
            The tokens.
        blanks
            A regular expression of what may stand between the tokens of JSON: Outlines' ``whitespace_pattern``. ``None`` for what
            writers of JSON put: nothing, a blank, or new lines and indentations.
        any_order
            Whether members may come in any order; else in that of the schema, and others behind those that it names.

        Raises
        ------
        UnsupportedError
            A keyword that cannot be honoured, by its JSON pointer.
        EmptyLanguageError
            The schema is true of no value.
        """
        check_vocabulary("JSONGuide.of", vocabulary)
        return cls.of_template(Template.of_value(Schema.read(schema)), vocabulary, blanks=blanks, any_order=any_order)

    @classmethod
    def of_template(
        cls, template: Template, vocabulary: Vocabulary, *, blanks: str | None = None, any_order: bool = False
    ) -> JSONGuide:
        """Return the guide of JSON values and what they stand in; parameters and errors as :meth:`of`."""
        left_out = template.left_out
        if left_out:
            shown = "; ".join(f"{pointer} ({why})" for pointer, why in left_out[:MOST_SHOWN])
            more = f"; and {len(left_out) - MOST_SHOWN} more" if len(left_out) > MOST_SHOWN else ""
            warn_of_schema(
                f"Check the values that are drawn: {len(left_out)} keywords of the JSON schema are not asked of them. These are "
                f"{shown}{more}."
            )
        # A shortest way to the end goes by single bytes, so what has none is spelled by others.
        ascii = not BEYOND_ASCII.issubset(Forest.of(vocabulary).single_bytes)
        return cls(Machine(template, blanks=blanks, any_order=any_order, ascii=ascii), vocabulary)

    def __reduce__(self) -> tuple[Any, ...]:
        return JSONGuide, (self.machine, self.vocabulary)  # states are numbered as they are met

    def row(self, state: int) -> Row:
        """Return the transitions of ``state``."""
        with self._lock:
            return self._recent_row(state)

    def min_tokens(self, state: int) -> int:
        """Return the least number of bytes to the end, and the end itself."""
        if state < _FIRST:
            return 0 if state == DONE else UNREACHABLE
        with self._lock:
            if state not in self._sizes:
                size = self.machine.size(self._configurations[state - _FIRST])
                self._sizes[state] = UNREACHABLE if size >= ENDLESS else size + 1
            return self._sizes[state]

    def advance(self, state: int, token: int) -> int:
        """See :meth:`Guide.advance`: byte by byte."""
        if state < _FIRST:
            return DEAD
        if token in self.vocabulary.eos_ids:
            is_end = token == self.vocabulary.eos_ids[0] and self.machine.may_end(self._configurations[state - _FIRST])
            return DONE if is_end else DEAD
        with self._lock:
            at: Configuration | None = self._configurations[state - _FIRST] if self.vocabulary.tokens[token] else None
            for byte in self.vocabulary.tokens[token]:
                at = None if at is None else self.machine.advance(at, byte)
            return DEAD if at is None else self._number(at)

    def describe(self, state: int) -> str:
        """Return a debugging picture of ``state``: the places in the values around it, from the inside out."""
        if state < _FIRST:
            return "done" if state == DONE else "dead"
        at, stack = self._configurations[state - _FIRST]
        places = [type(at).__name__.lower()]
        while stack is not None and stack.below is not None:
            places.append(type(stack.after[0]).__name__.lower())
            stack = stack.below
        return " in ".join(places)

    def _number(self, at: Configuration) -> int:
        number = self._numbers.get(at)
        if number is None:
            number = self._numbers[at] = _FIRST + len(self._configurations)
            self._configurations.append(at)
        return number

    def _row(self, state: int) -> Row:
        if state < _FIRST:
            return Row(self._forest.partition((), (), EOS + 1), np.full(EOS + 1, DEAD))
        at = self._configurations[state - _FIRST]
        targets = [DEAD, DONE if self.machine.may_end(at) else DEAD]
        inside, reached = self._walks.reached(*at)
        for _, place in inside:
            targets.append(DEAD if place is None else self._number(Configuration(place, at.stack)))
        classes = {target: number for number, target in enumerate(targets)}
        placed: list[tuple[Tokens, int]] = []
        for ends, stack in reached:
            for after in ends.pushed:
                stack = self.machine.push(after, stack)
            target = self._number(Configuration(ends.state, stack))
            if target not in classes:
                classes[target] = len(targets)
                targets.append(target)
            placed.append((ends.tokens, classes[target]))
        partition = self._forest.partition([tokens for tokens, _ in inside], placed, len(targets))
        return Row(partition, np.array(targets, dtype=np.int64))
