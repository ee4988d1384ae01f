"""The engines that there are, by the names that Outlines gives to its backends."""

from __future__ import annotations

from collections.abc import Mapping

from .engine import Engine
from .llguidance import LLGuidance
from .xgrammar import XGrammar

ENGINES: Mapping[str, type[Engine]] = {engine.package: engine for engine in (LLGuidance, XGrammar)}
"""What makes an engine for a vocabulary; its package is imported then."""
