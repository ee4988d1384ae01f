"""Learned values that are kept with a model, apart by output type and law."""

from __future__ import annotations

from collections.abc import Hashable
from typing import final
from weakref import WeakKeyDictionary

from ...guides.table import Table
from ...lm.model import LanguageModel
from ...numerics.cache import Cache
from ...settings import SamplingSettings
from .state_values import StateValues, spelled

LAWS = 8
"""Laws (temperatures, truncations, versions of the weights) of one output type that are kept, the latest used."""


@final
class KeptValues:
    """The values that ``phi="learned"`` means. Those of an output type go when it is forgotten."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Table, Cache[Hashable, StateValues]] = WeakKeyDictionary()

    def of(self, lm: LanguageModel, table: Table, settings: SamplingSettings) -> StateValues:
        """Return the values of a law, from now on kept for later calls."""
        return self._of.setdefault(table, Cache(LAWS)).of((lm, lm.version(), spelled(settings)), StateValues)

    def clear(self) -> None:
        """Forget everything."""
        self._of.clear()
