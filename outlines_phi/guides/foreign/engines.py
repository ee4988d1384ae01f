"""The engines that there are, by the names that Outlines gives to its backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...vocabulary import Vocabulary
from .engine import Engine
from .llguidance import LLGuidance
from .xgrammar import XGrammar

ENGINES: Mapping[str, Callable[[Vocabulary], Engine]] = {"llguidance": LLGuidance, "xgrammar": XGrammar}
"""What makes an engine for a vocabulary; its package is imported then."""
