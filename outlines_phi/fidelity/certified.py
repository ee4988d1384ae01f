"""The law of the texts of an output type, by best-first enumeration with a certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..guides.table import Table
from ..lm.model import LanguageModel
from ..phi.tree.tree import BoundsTree
from ..settings import SamplingSettings
from .probabilities import probabilities


@final
@dataclass(frozen=True, kw_only=True)
class CertifiedLaw:
    """``mu*`` over texts, all spellings of a text summed, known to within a stated total variation.

    Attributes
    ----------
    probabilities
        The probability of each text that was reached, the likeliest first; they sum to 1.
    tolerance
        ``TV(probabilities, mu*) <= (U - Lo) / U``, the share of ``Phi`` that the enumeration left undecided.
    phi_bounds
        ``(Lo, U)``, between which ``Phi`` of the prompt lies.
    calls, tokens
        What it cost: model calls, and generated tokens evaluated.
    """

    probabilities: dict[str, float]
    tolerance: float
    phi_bounds: tuple[float, float]
    calls: int
    tokens: int


def certified_law(
    lm: LanguageModel,
    table: Table,
    prompt: Sequence[int],
    settings: SamplingSettings,
    budget: int,
    *,
    tolerance: float = 1e-3,
    max_tokens: int = 100_000,
) -> CertifiedLaw:
    """Return the law of the texts of a language after ``prompt``: :func:`probabilities` of texts, without their bounds.

    With ``Lo(x) = sum p(y)`` over the enumerated spellings ``y`` of the text ``x`` and ``Lo = sum_x Lo(x)``, the law
    ``Lo(x) / Lo`` is ``mu*`` conditioned on an event of probability ``Lo / Phi``, so it is within
    ``1 - Lo / Phi <= (U - Lo) / U`` of ``mu*``.

    Parameters
    ----------
    lm, table, prompt, settings
        As for a sampler.
    budget
        The most tokens of a member, end of sequence included.
    tolerance
        Enumerate until ``U - Lo <= tolerance * Lo``.
    max_tokens
        Model tokens to spend at most.

    Raises
    ------
    BudgetError
        The tolerance was not reached with that many tokens; carries the bounds, and the probabilities within them.
    EmptyLanguageError
        No member of the language has any probability.
    """
    tree = BoundsTree(table, budget)
    options = {"tolerance": tolerance, "max_tokens": max_tokens}
    (found,) = probabilities(lm, settings, [prompt], [tree], **options)  # type: ignore[arg-type]
    lower, upper = tree.bounds
    return CertifiedLaw(
        probabilities={entry.text: entry.p for entry in found.entries if entry.spellings},
        tolerance=max(0.0, (upper - lower) / upper),
        phi_bounds=(lower, upper),
        calls=found.counts.calls,
        tokens=found.counts.tokens,
    )
