"""The law of the texts of an output type, by best-first enumeration with a certificate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from ..errors import BudgetError, EmptyLanguageError
from ..guides.guide import DONE
from ..guides.table import Table
from ..lm.model import LanguageModel
from ..phi.enumerate import Enumeration
from ..phi.evaluator import Evaluator
from ..phi.tree import BoundsTree
from ..settings import SamplingSettings


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
    """Return the law of the texts of a language after ``prompt``.

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
        The tolerance was not reached with that many tokens; carries the bounds.
    EmptyLanguageError
        No member of the language has any probability.
    """
    tree = BoundsTree(table, budget)
    evaluator = Evaluator(lm, settings, [prompt], [tree])
    reached = Enumeration(tree, evaluator).run(tolerance, max_tokens)
    lower, upper = tree.bounds
    if upper <= 0:
        raise EmptyLanguageError(
            "No member of the language has any probability after this prompt; loosen the truncation."
        )
    if not reached or lower <= 0:
        raise BudgetError(
            f"{evaluator.counts.tokens} model tokens of enumeration left Phi between {lower:.3g} and {upper:.3g}, "
            f"short of tolerance={tolerance}. Give a larger max_tokens or tolerance, or a smaller output type.",
            log_z_bounds=(math.log(lower) if lower > 0 else -math.inf, math.log(upper)),
        )
    counts = evaluator.counts
    return CertifiedLaw(
        probabilities=_normalized(_spellings(tree)),
        tolerance=max(0.0, (upper - lower) / upper),
        phi_bounds=(lower, upper),
        calls=counts.calls,
        tokens=counts.tokens,
    )


def _spellings(tree: BoundsTree) -> dict[str, list[float]]:
    """Return ``log p`` of every enumerated spelling, by its text."""
    found: dict[str, list[float]] = defaultdict(list)
    for node in tree.walk():
        if node.state == DONE and node.log_p > -math.inf:
            found[tree.table.vocabulary.decode(node.tokens()).decode()].append(node.log_p)
    return found


def _normalized(spellings: dict[str, list[float]]) -> dict[str, float]:
    log_p = {text: float(np.logaddexp.reduce(values)) for text, values in spellings.items()}
    log_z = float(np.logaddexp.reduce(list(log_p.values())))
    return {text: math.exp(log_p[text] - log_z) for text in sorted(log_p, key=lambda text: -log_p[text])}
