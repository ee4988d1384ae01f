"""Many prompts in batches, such that one that fails does not stop the others."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from ..errors import BudgetError, FidelityWarning, OutlinesPhiError
from ..guides.table import Table
from ..phi.estimator import Phi
from ..plugin.generator import PhiGenerator
from ..plugin.options import CallOptions
from ..plugin.session import PhiModel
from ..sampling.draws import Draws
from ..sampling.phi_options import LookaheadPhi
from .inputs import Prompt, model_input


@final
@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a prompt: its draws, an error, or the draws until an error."""

    index: int  # the number of the prompt, from 0
    prompt: Prompt
    # What came out.
    draws: Draws | None = None
    error: OutlinesPhiError | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Batches:
    """The draws of a list of prompts.

    The random streams of a batch come from the seed and the number of its first prompt: a batch gives the same draws, whatever was
    drawn before it, so that a run may begin at any prompt.
    """

    generator: PhiGenerator
    keywords: dict[str, Any]
    prompts: Sequence[Prompt]
    # Draws per prompt, and where all random streams come from.
    n: int
    seed: int
    size: int  # prompts of a batch

    def outcomes(self, begin: int) -> Iterator[list[Outcome]]:
        """Yield the outcomes of the prompts from number ``begin`` on, in order, batch by batch.

        Batches begin at the multiples of their size; of the one that ``begin`` stands in, all prompts are drawn.
        """
        model, table = self.generator.model, self.generator.logits_processor.table
        options = replace(CallOptions.read(self.keywords, model.defaults), n=self.n)
        for first in range(begin - begin % self.size, len(self.prompts), self.size):
            rows = range(first, min(first + self.size, len(self.prompts)))
            errors = {row: refusal(model, table, self.prompts[row], options) for row in rows}
            refused = {row: error for row, error in errors.items() if error is not None}
            drawn = [row for row in rows if row not in refused]
            found = [Outcome(index=row, prompt=self.prompts[row], error=error) for row, error in refused.items()]
            found += self._draw(drawn) if drawn else []
            yield sorted((outcome for outcome in found if outcome.index >= begin), key=lambda outcome: outcome.index)

    def _draw(self, rows: Sequence[int]) -> list[Outcome]:
        inputs = [model_input(self.prompts[row]) for row in rows]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FidelityWarning)  # the command sums them up
                results = self.generator.sample_batch(inputs, self.n, seed=self._seed(rows[0]), **self.keywords)
        except BudgetError as error:
            results = error.draws  # every prompt was drawn as far as its own effort went
        except OutlinesPhiError as error:
            if len(rows) == 1:
                return [Outcome(index=rows[0], prompt=self.prompts[rows[0]], error=error)]
            half = len(rows) // 2
            return [*self._draw(rows[:half]), *self._draw(rows[half:])]
        outcomes = []
        for row, draws in zip(rows, results, strict=True):
            missing = self.n - len(draws) - draws.failures
            short = _shortfall(draws, self.n, self.generator.phi) if missing else None
            outcomes.append(Outcome(index=row, prompt=self.prompts[row], draws=draws, error=short))
        return outcomes

    def _seed(self, first: int) -> int:
        return int(np.random.SeedSequence((self.seed, first)).generate_state(1, np.uint64)[0])


def refusal(model: PhiModel, table: Table, prompt: Prompt, options: CallOptions) -> OutlinesPhiError | None:
    """Return why a prompt cannot be drawn, as far as that is known before any model call: it is too long, or empty."""
    try:
        with model.asking([model_input(prompt)], table, options):
            return None
    except OutlinesPhiError as error:
        return error


def _shortfall(draws: Draws, n: int, phi: Phi | None) -> BudgetError:
    if isinstance(phi, LookaheadPhi):
        return BudgetError.of(
            "Give --ban-level mask, or another prompt",
            f"The effort ran out with {len(draws)} of {n} draws, where the model hardly writes anything else than banned phrases",
        )
    certificate, (low, high) = draws.certificate, draws.log_z_bounds
    if certificate is not None and certificate.total_variation and not len(draws):
        return BudgetError.of(
            "Give a larger --tolerance, --confidence 0.95 beside it, or --phi exact without it",
            f"The effort ran out with {certificate}, short of --tolerance",
        )
    return BudgetError.of(
        "Draw with weights (--phi auto), or move the prompt closer to the format",
        f"The effort ran out with {len(draws)} of {n} exact draws (log Phi between {low:.4g} and {high:.4g})",
        "each that is there is exact",
    )
