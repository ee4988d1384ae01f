"""Drafters to test samplers with: good, bad and adversarial ones, deterministic and drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outlines_phi.drafting import Draft, Drafter, Drafting, DraftRun, Site
from tests.inner import DEAD, DONE, TableModel
from tests.languages import VOCABULARY, Language

Choice, Law = Callable[[Site, DraftRun], int], Callable[[Site, DraftRun], Tensor]


@final
@dataclass(frozen=True)
class Fixed(Drafter):
    """Drafts token after token by a rule, ``most`` of them."""

    choose: Choice
    most: int = 1000
    name: ClassVar[str] = "fixed"

    def begin(self, run: DraftRun) -> Drafting:
        return _Chains(run, lambda site, _: (self.choose(site, run), None), self.most)


@final
@dataclass(frozen=True)
class Drawn(Drafter):
    """Draws token after token from a law; ``shared``: walks at one site are given the same chain, which is a fault."""

    law: Law
    shared: bool = False
    name: ClassVar[str] = "drawn"

    @property
    def sampled(self) -> bool:
        return True

    def begin(self, run: DraftRun) -> Drafting:
        known: dict[Site, tuple[Tensor, NDArray[np.float64]]] = {}

        def draw(site: Site, stream: np.random.Generator) -> tuple[int, Tensor]:
            if site not in known:
                log_r = self.law(site, run)
                known[site] = log_r, np.cumsum(log_r.double().exp().numpy())
            log_r, cumulative = known[site]
            if self.shared:
                stream = np.random.default_rng((len(site.prompt), site.row, *site.tokens))
            return int(np.searchsorted(cumulative, stream.random() * cumulative[-1], side="right")), log_r

        return _Chains(run, draw)


@final
class _Chains(Drafting):
    def __init__(
        self, run: DraftRun, draw: Callable[[Site, np.random.Generator], tuple[int, Tensor | None]], most: int = 1000
    ) -> None:
        self._run, self._draw, self._most = run, draw, most

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        return [self._chain(*asked) for asked in zip(sites, lengths, streams, strict=True)]

    def _chain(self, site: Site, length: int, stream: np.random.Generator) -> Draft:
        tokens, laws = [], []
        while len(tokens) < min(length, self._most) and site.state not in (DEAD, DONE):
            token, law = self._draw(site, stream)
            if token < 0:
                break
            tokens.append(token)
            laws.append(law)
            site = site.after(token, self._run.table)
        drawn = [law for law in laws if law is not None]
        return Draft(tuple(tokens), torch.stack(drawn) if drawn else None)


def ranked(lm: TableModel, place: int) -> Choice:
    """The live token that is ``place``-th in the order of the model's law; -1 for the least likely."""

    def choose(site: Site, run: DraftRun) -> int:
        live = run.table.moves(site.state, site.remaining).tokens
        order = live[np.argsort(-lm.logits(site.prompt + site.tokens)[live], kind="stable")]
        return int(order[place if abs(place) < len(order) else -1])

    return choose


def constant(token: int) -> Choice:
    return lambda site, run: token


def law_of(lm: TableModel, temperature: float = 1.0, *, masked: bool = False) -> Law:
    """The law of a model, in single precision."""

    def law(site: Site, run: DraftRun) -> Tensor:
        logits = torch.from_numpy(lm.logits(site.prompt + site.tokens)) / temperature
        if masked:
            logits = logits + run.table.bias(site.state, site.remaining, logits.device).double()
        return logits.log_softmax(-1).float()

    return law


def always(token: int) -> Law:
    def law(site: Site, run: DraftRun) -> Tensor:
        log_r = torch.full((len(run.vocabulary),), -torch.inf)
        log_r[token] = 0.0
        return log_r

    return law


OTHER = TableModel.random(VOCABULARY, seed=99, scale=1.5)
DEAD_TOKEN = 7


def fixed(language: Language) -> dict[str, Drafter]:
    """Return drafters of a rule: good, bad, of no use, and in the way."""
    return {
        "likeliest": Fixed(ranked(language.lm, 0)),
        "second": Fixed(ranked(language.lm, 1)),
        "least likely": Fixed(ranked(language.lm, -1)),
        "of another model": Fixed(ranked(OTHER, 0)),
        "dead": Fixed(constant(DEAD_TOKEN)),
        "end of sequence": Fixed(constant(0)),
        "nothing": Fixed(constant(-1)),
    }


def drawn(language: Language) -> dict[str, Drafter]:
    """Return drafters of a law."""
    return {
        "same law": Drawn(law_of(language.lm)),
        "masked": Drawn(law_of(language.lm, masked=True)),
        "cold": Drawn(law_of(language.lm, 0.3, masked=True)),
        "another model": Drawn(law_of(OTHER)),
        "always one": Drawn(always(3)),
        "always dead": Drawn(always(DEAD_TOKEN)),
        "always the end": Drawn(always(0)),
    }


def drafter_of(language: Language, name: str) -> Drafter:
    return {**fixed(language), **drawn(language)}[name]
