"""How biased plain masking is: the numbers of an audit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from ..lm.model import ModelCounts
from ..settings import SamplingSettings
from .bias import Bias
from .losses import (
    Distortion,
    Loss,
)
from .traces import Trace


@final
@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an audit found after one prompt, or for all prompts together.

    Attributes
    ----------
    name
        The prompt as it was given, or how many there are.
    bias
        Phi, total variation, divergence and effective sample size.
    places
        Where legal mass is lost: by JSON field, in the order of the text; by step for other formats.
    steps
        The same by step.
    distortions
        The values that are written too often or too rarely, beyond noise; the worst first.
    """

    name: str
    bias: Bias
    places: tuple[Loss, ...]
    steps: tuple[Loss, ...]
    distortions: tuple[Distortion, ...]


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What an audit found.

    Attributes
    ----------
    findings
        One per prompt.
    pooled
        All prompts together, each with the same weight; the finding itself where there is one prompt.
    by_field
        Whether ``places`` are fields of JSON; else they are steps.
    confidence
        Of each interval by itself, and of all distortions together.
    settings, budgets
        What defines the law, and the most tokens of a draw after each prompt.
    counts
        What the audit cost.
    warnings
        What the reader should know before believing a number.
    traces
        The draws, per prompt, step by step.
    """

    findings: tuple[Finding, ...]
    pooled: Finding
    by_field: bool
    confidence: float
    settings: SamplingSettings
    budgets: tuple[int, ...]
    counts: ModelCounts
    warnings: tuple[str, ...]
    traces: tuple[tuple[Trace, ...], ...]

    @property
    def n(self) -> int:
        """Draws per prompt."""
        return len(self.traces[0])
