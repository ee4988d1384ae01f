"""The subject of an inspection: a guide with its machine, what is banned beside it, and the limit of its texts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.grammar.cfg_guide import CFGGuide
from outlines_phi.guides.guide import DEAD, Guide
from outlines_phi.guides.json_schema.json_guide import JSONGuide
from outlines_phi.guides.phrases.phrase_guide import PhraseGuide
from outlines_phi.guides.table import Moves
from outlines_phi.vocabulary.vocabulary import Vocabulary

from .machines.automaton_machine import AutomatonMachine
from .machines.grammar_machine import GrammarMachine
from .machines.guide_machine import GuideMachine
from .machines.reading_machine import ReadingMachine
from .machines.schema_machine import SchemaMachine

ENOUGH = 1 << 30  # Tokens that no text needs: no limit


def machine_of(guide: Guide) -> ReadingMachine:
    """Return the machine of a guide, which says what refuses a byte."""
    match guide:
        case CFGGuide():
            return GrammarMachine(guide)
        case JSONGuide():
            return SchemaMachine(guide)
        case FSMGuide(automaton=automaton) if automaton is not None:
            return AutomatonMachine(automaton)
    return GuideMachine(guide)


@final
@dataclass(frozen=True, eq=False)
class Inspected:
    """A language that is looked at.

    Attributes
    ----------
    name
        Its name in messages.
    guide
        The allowed texts: the output type, less the banned phrases.
    plain
        The guide of the output type alone; ``guide`` itself where nothing is banned.
    phrases
        The banned phrases, as a guide of their own.
    budget
        The most tokens of a text, the end of sequence included; ``None`` for no limit.
    start, begun
        The states of ``guide`` and of ``phrases`` in which a text begins, which a prompt may decide.
    """

    name: str
    guide: Guide
    plain: Guide
    phrases: PhraseGuide | None = None
    budget: int | None = None
    start: int = 0
    begun: int = 0

    @classmethod
    def of(
        cls, name: str, guide: Guide, plain: Guide | None = None, budget: int | None = None, prompt: bytes = b""
    ) -> Inspected:
        """Return the subject of an inspection, of texts that come after ``prompt``."""
        banned = guide.phrases if plain is not None and plain is not guide else None
        phrases = None if banned is None else PhraseGuide(guide.vocabulary, banned)
        begun = 0 if phrases is None else phrases.start_after(prompt)
        return cls(name, guide, plain or guide, phrases, budget, guide.start_after(prompt), begun)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens."""
        return self.guide.vocabulary

    @cached_property
    def machine(self) -> ReadingMachine:
        """The machine of the output type alone."""
        return machine_of(self.plain)

    def remaining(self, written: int) -> int:
        """Return the number of tokens that may still be written after so many."""
        return ENOUGH if self.budget is None else self.budget - written

    def live(self, state: int, remaining: int) -> tuple[NDArray[np.bool_], Moves]:
        """Return the mask ``bool[V]`` of ``state``, and the live tokens with where they lead."""
        row = self.guide.row(state)
        classes = self.guide.live_classes(state, remaining) & (row.targets != DEAD)
        mask = row.partition.where(classes)
        tokens = np.flatnonzero(mask)
        return mask, Moves(tokens, row.partition.class_of[tokens], row.targets)
