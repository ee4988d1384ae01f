"""Guide of a JSON schema: allowed tokens, and the fewest tokens of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from ...errors import SchemaWarning, UnsupportedError, warn_of
from ...numerics.cache import kept_of_states
from ...numerics.checks import check_kind
from ...vocabulary.vocabulary import EOS, Vocabulary, check_vocabulary
from ..guide import DEAD, DONE, FIRST, UNREACHABLE, Row
from ..guide_texts import FirstStep
from ..machine_guide import PlaceGuide
from .machine.containers import Key
from .machine.machine import BEYOND_ASCII, LIKELY, Machine
from .machine.scalars import Listed, Text
from .machine.sizes import NEVER
from .machine.states import Configuration, Stack, State
from .reading.place import LeftOut
from .reading.schema import Schema, Template
from .token_forest import TokenForest
from .walker import Walker, tells_apart

LONGEST = 1_000
"""The most bytes of a completion that are tiled."""


_UNREAD = 1 << 40
"""From here on states have the numbers of another state and a token: behind tokens of which each leads to a state of its own."""

MOST_SHOWN = 10
"""Keywords that a warning names."""


def warn_of_keywords(left_out: Sequence[LeftOut]) -> None:
    """Warn of keywords of a schema that are not asked of values, or not by all validators."""
    if left_out:
        shown = "; ".join(f"{pointer} ({why})" for pointer, why in left_out[:MOST_SHOWN])
        more = f"; and {len(left_out) - MOST_SHOWN} more" if len(left_out) > MOST_SHOWN else ""
        warn_of(
            SchemaWarning,
            f"Check the values that are drawn: {len(left_out)} keywords of the JSON schema are not asked of them, or not by "
            f"all validators: {shown}{more}.",
        )


class _Known(NamedTuple):
    """A row; for each class a state with the ``min_tokens`` of its target, and whether its tokens end the innermost value."""

    row: Row
    alike: NDArray[np.int64]
    closes: NDArray[np.bool_]


@final
class JSONGuide(PlaceGuide):
    """The token sequences that spell a JSON value that a schema is true of (grammar-theory.md, section 9).

    A state is a configuration of :class:`~outlines_phi.guides.json_schema.machine.machine.Machine`: a place within a value, and
    what comes after the values around it. What a token does within a value depends on the place alone, and is kept without the
    stack.

    The next byte of a completion is the first that lowers the least number of bytes to the end. Where the text of a value has to
    be known, that number stands for the fewest tokens, one bound for all texts; and so it does more than :data:`LONGEST` bytes
    before the end.

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

    def __init__(self, machine: Machine, vocabulary: Vocabulary) -> None:
        check_kind(
            "JSONGuide", "machine", machine, Machine, "a Machine; use JSONGuide.of(schema, vocabulary), which makes it"
        )
        self.machine: Machine
        self.blocks, self._forest = machine.blocks, TokenForest.of(vocabulary)
        single = self._forest.single_bytes
        missing = machine.needed - single
        if missing:
            raise UnsupportedError(
                f"Use a vocabulary with a token for each byte. This one has none for {bytes(sorted(missing))!r:.80}."
            )
        super().__init__(machine, vocabulary)
        self._lock = self._forest.lock
        self._bytes = [byte for byte in LIKELY if byte in single]
        self._walker = Walker(machine, self._forest)
        self._sizes: dict[int, int] = {}
        self._masked = set[int]()

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
            True if members may come in any order; else in that of the schema, and others behind those that it names.

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
        # A shortest way to the end goes by single bytes, so what has none is spelled by others.
        ascii = not BEYOND_ASCII.issubset(TokenForest.of(vocabulary).single_bytes)
        machine = Machine(template, blanks=blanks, any_order=any_order, ascii=ascii)
        warn_of_keywords((*template.left_out, *machine.unlike()))
        return cls(machine, vocabulary)

    def row(self, state: int) -> Row:
        """Return the transitions of ``state``."""
        with self._lock:
            return self._recent(state).row

    def mask(self, state: int) -> NDArray[np.uint32]:
        """See :meth:`Guide.mask`: by the compiled walk, where it has an answer."""
        with self._lock:
            if state in self._masked:
                return self._kept_mask(state).copy()
            self._masked.add(state)
            return self._mask(state)

    def _mask(self, state: int) -> NDArray[np.uint32]:
        found = None if state < FIRST else self._walker.mask(self._place(state))
        if found is None:
            return super().mask(state)
        if self.machine.ends(self._place(state)):
            eos = self.vocabulary.eos_ids[0]
            found[eos >> 5] |= np.uint32(1 << (eos & 31))
        return found

    # Kept from the second time on: most states are met once, and to keep a mask in new pages takes as long as the walk.
    _kept_mask = kept_of_states(_mask)

    def live_classes(self, state: int, remaining: int) -> NDArray[np.bool_]:
        """See :meth:`Guide.live_classes`: tokens are counted only where there are fewer of them left than bytes to the end."""
        with self._lock:
            alike = self._recent(state).alike
            most = self.far_from_end(alike)
            live = most <= remaining - 1
            near = np.unique(alike[~live & (most < UNREACHABLE)])
            within = [target for target in near.tolist() if self.min_tokens(target) <= remaining - 1]
            return live | np.isin(alike, within) if within else live

    def slack(self, state: int) -> int:
        """See :meth:`Guide.slack`: an upper bound, in bytes."""
        with self._lock:
            sizes = self.far_from_end(self._recent(state).alike)
            return int(sizes[sizes < UNREACHABLE].max(initial=0)) + 1

    def distances_after(self, state: int) -> NDArray[np.int64]:
        """Return ``int64[G]``: ``min_tokens`` of the target of each class of ``state``."""
        with self._lock:
            return self.min_tokens_of(self._recent(state).alike)

    def shortest_text(self, state: int) -> bytes:
        """See :meth:`Guide.shortest_text`."""
        with self._lock:
            return self.machine.shortest(self._place(state), self._likely)

    def far_from_end(self, states: NDArray[np.integer]) -> NDArray[np.int64]:
        """See :meth:`Guide.far_from_end`: the least number of bytes to the end, and the end itself."""
        distinct, inverse = np.unique(states, return_inverse=True)
        with self._lock:
            return np.array([self._size(int(state)) for state in distinct], dtype=np.int64)[inverse]

    def _size(self, state: int) -> int:
        if state < FIRST:
            return 0 if state == DONE else UNREACHABLE
        if state not in self._sizes:
            size = self.machine.size(self._place(state))
            self._sizes[state] = UNREACHABLE if size >= NEVER else size + 1
        return self._sizes[state]

    def begins_block(self, state: int, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """See :meth:`Guide.begins_block`: behind the colon of a name, and behind the comma before an item."""
        with self._lock:
            known = self._recent(state)
            targets, places = np.unique(known.alike, return_inverse=True)
            in_value = np.array([target >= FIRST and self._place(target).state.in_value for target in targets.tolist()])
            begins = in_value[places] & (known.closes | (not self._place(state).state.in_value))
            return begins[known.row.partition.class_of[tokens]]

    def between_blocks(self, state: int) -> bool:
        """See :meth:`Guide.between_blocks`: behind a comma, or where none may come."""
        return state >= FIRST and self._place(state).state.between

    def _after(self, state: int, token: int, place: Configuration) -> int:
        if place.text or (isinstance(place.state, Key) and place.state.is_other):
            return self._unread(state, self._place(state)) + token
        return self._state(place)

    def _place(self, state: int) -> Configuration:
        if state < _UNREAD:
            return self._places[state]
        before, token = divmod(state - _UNREAD, len(self.vocabulary))
        found = self.machine.read(self.vocabulary.tokens[token], self._place(before))
        assert found is not None
        return found

    def _unread(self, state: int, at: Configuration) -> int:
        """Return the state of token 0 after a state where it is not read yet; those of others follow."""
        return _UNREAD + (state if state < _UNREAD else self._state(at)) * len(self.vocabulary)

    def _first(self, place: Configuration) -> FirstStep:
        size, state = self.machine.size(place), place.state
        # The text that is read is kept: of values that must differ, or of names that are counted.
        keeps = (place.stack is not None and place.stack.keeps) or (
            isinstance(state, Key) and state.counts and state.text != b""
        )
        looked_at = 0 < size <= LONGEST and not keeps
        found = self.machine.nearer(place, size, self._likely(place.state)) if looked_at else None
        return FirstStep(size + 1) if found is None else FirstStep(size, *found)

    def _likely(self, state: State) -> Iterable[int]:
        """Return the bytes that may come next, those first that a completion goes on with most often."""
        if state.bytes is not None and state.ends is None:
            return (byte for byte in self._bytes if byte in state.bytes)
        listed = state.spelled if isinstance(state, Text) else ()
        on_path = [byte for one in listed if isinstance(one, Listed) and one.beside for byte in one.on_path]
        return chain(self._bytes[:1], (byte for byte in on_path if byte in self._forest.single_bytes), self._bytes)

    def _recent(self, state: int) -> _Known:
        if state < FIRST:
            nothing = np.array([DEAD, DEAD])
            return _Known(Row(self._forest.nothing, nothing), nothing, np.zeros(2, dtype=np.bool_))
        return self._make_row(state)

    @kept_of_states
    def _make_row(self, state: int) -> _Known:
        """Return the row of ``state``; a token that no walk reaches is dead, and so is one that leads to no end.

        Two tokens share a class where they lead to the same configuration. The tokens of a key that is being read, and of a stack
        that keeps what was written, lead to one configuration each: they are a class each.
        """
        at = self._place(state)
        base, ids, places, ways = self._walker.reached(at)
        others = [] if base is None else [self._target(within, at.stack) for within in base.targets]
        own = [self._target(within, stack) for within, stack, _ in ways]
        each = [tells_apart(within, stack) for within, stack, _ in ways]
        first, ends = EOS + 1 + len(others), DONE if self.machine.ends(at) else DEAD
        last = first + len(own)
        alike = np.array(
            [DEAD, ends, *others, *(DEAD if many else one for one, many in zip(own, each, strict=True))], np.int64
        )
        closing = np.array([False] * first + [closes for _, _, closes in ways])
        classes, targets = first + places, alike
        if any(each):
            apart = np.array(each)[places]
            alone = places[apart]
            classes[apart] = np.arange(last, last + len(alone))
            alike, closing = np.append(alike, np.array(own)[alone]), np.append(closing, closing[first + alone])
            targets = np.append(targets, self._unread(state, at) + ids[apart].astype(np.int64))
        partition = self._forest.partition(base and base.split, ids, classes, len(alike))
        return _Known(Row(partition, targets), alike, closing)

    def _target(self, within: State | None, stack: Stack) -> int:
        return DEAD if within is None else self._state(Configuration(within, stack))
