"""The fidelity suite: every estimator and sampler on every language, beside the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

from ..errors import BudgetError, OutlinesPhiError
from ..phi.estimators.local import LocalPhi
from ..plugin.hosts.transformers import PhiTransformers
from ..settings import SamplingSettings
from .cells import Cell
from .experiment import Subject
from .grid import Heading
from .languages import Language
from .methods import DRAW, Method

Observe = Callable[[str], None]


@final
@dataclass(frozen=True, kw_only=True)
class Suite:
    """What is measured.

    Attributes
    ----------
    model
        The model.
    languages, methods
        What is written, and how: a cell for each pair.
    settings
        What defines the law, apart from the budget.
    n, seed
        Draws per cell, and where all random streams come from.
    """

    model: PhiTransformers
    languages: Sequence[Language]
    methods: Sequence[Method]
    settings: SamplingSettings
    n: int
    seed: int

    def __len__(self) -> int:
        return len(self.languages) * len(self.methods)

    def cells(self, observe: Observe = lambda _: None) -> Iterator[tuple[Heading, Cell]]:
        """Yield the cells as they are finished, under the headings of their languages; ``observe`` is told what comes next.

        A cell that cannot be measured says why in its note, and the others go on.
        """
        laws = {method.name: method.law for method in self.methods if method.law is not None}
        settings = replace(self.settings, seed=self.seed)
        for language in self.languages:
            observe(f"{language.name}, truth")
            heading = Heading(name=language.name, family=language.family, title=language.title)
            try:
                subject = Subject(self.model, language, settings, self.n, laws)
                truth = subject.truth
            except OutlinesPhiError as error:
                heading = replace(heading, source=_said(error))
                yield from ((heading, _failed(language, method, error)) for method in self.methods)
                continue
            heading = replace(heading, log_phi=truth.log_phi, error=truth.error, source=truth.source)
            mask = subject.mask_tv(truth)
            for method in filter(subject.runs, self.methods):
                observe(f"{language.name}, {method.name}")
                try:
                    cell = subject.measure(method, truth)
                except OutlinesPhiError as error:
                    cell = _failed(language, method, error)
                if method.phi == LocalPhi() and method.sampler == DRAW:
                    mask = cell.tv
                elif mask and cell.tv is not None and (cell.floor or 0.0) < mask / 4:
                    cell = replace(cell, change=cell.tv / mask - 1)
                yield heading, cell


def _failed(language: Language, method: Method, error: OutlinesPhiError) -> Cell:
    return Cell(
        family=language.family,
        language=language.name,
        estimator=method.estimator,
        sampler=method.sampler,
        note=_said(error),
    )


def _said(error: OutlinesPhiError) -> str:
    """Return the first sentence of an error, with its kind; of one that begins with a remedy, what was reached."""
    said, _, _ = " ".join((error.reason if isinstance(error, BudgetError) else str(error)).split()).partition(". ")
    return f"{type(error).__name__}: {said.removesuffix('.')}."
