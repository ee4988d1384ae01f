"""Runs, sites and bad drafters for the tests of drafters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from outlines_phi import SamplingSettings, Vocabulary
from outlines_phi.drafting import Draft, Drafter, Drafting, DraftRun, Site
from outlines_phi.guides import FSMGuide, Table
from tests.inner import Proposer, compile_regex
from tests.languages import PROMPT, VOCABULARY


def table_of(pattern: str, vocabulary: Vocabulary = VOCABULARY) -> Table:
    return Table(FSMGuide.from_automaton(compile_regex(pattern), vocabulary))


def run_of(table: Table, *, prompts: Sequence[tuple[int, ...]] = (PROMPT,), **options: Any) -> DraftRun:
    return DraftRun(table, options.pop("settings", SamplingSettings()), tuple(prompts), **options)


def site_of(run: DraftRun, tokens: Sequence[int] = (), *, row: int = 0, budget: int = 20) -> Site:
    """Return the site after ``tokens``."""
    site = Site(row, run.prompts[row], (), run.table.start, budget)
    for token in tokens:
        site = site.after(token, run.table)
    return site


def propose(drafter: Drafter, run: DraftRun, sites: Sequence[Site], length: int = 4, seed: int = 0) -> list[Draft]:
    """Return the proposals of ``drafter`` in a first round, checked and cut."""
    streams = [np.random.default_rng((seed, i)) for i in range(len(sites))]
    return Proposer(drafter, run).propose(sites, [length] * len(sites), streams)


@dataclass(frozen=True)
class Scripted(Drafter):
    """A drafter of proposals that a function makes of every site."""

    answer: Callable[[Site, int], Any]
    drawn: bool = False
    name: ClassVar[str] = "scripted"

    @property
    def sampled(self) -> bool:
        return self.drawn

    def begin(self, run: DraftRun) -> ScriptedDrafting:
        return ScriptedDrafting(self.answer)


class CheapScripted(Scripted):
    """The same, which says that its proposals cost nothing."""

    cheap = True


class ScriptedDrafting(Drafting):
    def __init__(self, answer: Callable[[Site, int], Any]) -> None:
        self.answer = answer

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [self.answer(site, length) for site, length in zip(sites, lengths, strict=True)]
