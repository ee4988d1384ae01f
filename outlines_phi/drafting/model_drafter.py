"""Speculative decoding with a smaller language model over the same vocabulary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError, UnsupportedError, VocabularyError
from ..guides.guide import DEAD, DONE
from ..lm.model import LanguageModel
from ..numerics.checks import check_kind
from ..numerics.weights import columns_at
from ..phi.branches import Branch, Branches
from ..vocabulary.vocabulary import Vocabulary
from .drafter import Draft, Drafter, Drafting, DraftRun, Site

WASTE = 1024
"""Nodes that the drafter's trees may grow by, beyond the texts themselves, before the others are given back."""

SHOWN = 5
"""The number of tokens that a message names."""


@final
@dataclass(frozen=True)
class ModelDrafter(Drafter):
    """Draws ``d_i ~ r_i``, the distribution of a smaller model: under the settings of the call, masked by the guide.

    ``K`` calls of the small model for ``K`` tokens, for all sites together; its token trees are its own, and go on from what it
    has read before. Where truncation leaves no token that the guide allows, a chain ends.

    Attributes
    ----------
    model
        The smaller model; its tokens are those of the model that is drafted for, up to rows that neither has a token for.
    greedy
        Propose the likeliest tokens of ``r_i`` instead: a deterministic draft, which walks can share.

    Raises
    ------
    UnsupportedError
        ``model`` is not a :class:`~outlines_phi.lm.LanguageModel`, or ``greedy`` is no truth value.
    VocabularyError
        From :meth:`begin`: the two models differ in a token, or the smaller one lacks it; says which.
    ModelError
        From :meth:`begin`: a prompt is longer than the context of the smaller model.
    """

    model: LanguageModel
    greedy: bool = False
    name: ClassVar[str] = "model"

    def __post_init__(self) -> None:
        if not isinstance(self.model, LanguageModel):
            raise UnsupportedError(
                f"ModelDrafter({type(self.model).__name__}) was given; expected a LanguageModel, such as "
                "TransformersModel.with_tokenizer(model, tokenizer)."
            )
        check_kind("ModelDrafter", "greedy", self.greedy, bool, "True or False")

    @property
    def sampled(self) -> bool:
        return not self.greedy

    def begin(self, run: DraftRun) -> ModelDrafting:
        """See :meth:`Drafter.begin`."""
        check_vocabularies(self.model.vocabulary, run.vocabulary)
        context = self.model.max_length
        for row, prompt in enumerate(run.prompts):
            if context is not None and len(prompt) > context:
                raise ModelError(
                    f"Prompt {row} has {len(prompt)} tokens and the context of the model that drafts is {context}; shorten it, or "
                    "draft with a model of a longer context."
                )
        return ModelDrafting(self, run)


@dataclass(eq=False)
class _Chain:
    """A draft in the making: where it has arrived, and its tokens with their distributions."""

    site: Site
    length: int
    rng: np.random.Generator
    way: list[Branch] = field(default_factory=list)  # To where it has arrived, from what was evaluated last
    tokens: list[int] = field(default_factory=list)
    log_r: list[Tensor] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return len(self.tokens) >= self.length or self.site.state in (DEAD, DONE)

    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), torch.stack(self.log_r) if self.log_r else None)


@final
class ModelDrafting(Drafting):
    """A smaller model at work in one call.

    ``trees``: Its token trees, and what they have cost.
    """

    checked = True

    def __init__(self, drafter: ModelDrafter, run: DraftRun) -> None:
        self._model, self._greedy, self._run = drafter.model, drafter.greedy, run
        self.trees = drafter.model.trees(run.prompts)
        self._branches = Branches(self.trees)
        self._prompts = [Branch(-1, -1, row) for row in range(len(run.prompts))]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        rooms = [self._room(site, length) for site, length in zip(sites, lengths, strict=True)]
        chains = [_Chain(*asked) for asked in zip(sites, rooms, streams, strict=True)]
        growing, answered = [chain for chain in chains if not chain.finished], list[Branch]()
        for chain in growing:
            chain.way = list(self._prompts[chain.site.row].along(chain.site.tokens))
        self._tidy(growing)
        while growing:
            wanted = [at for chain in growing for at in chain.way if at.node < 0 or at is chain.way[-1]]
            wanted = list(dict.fromkeys(wanted))
            for at, logits in zip(wanted, self._branches.reach(wanted).whole(), strict=True):
                at.answer = logits
            answered += wanted
            growing = self._draw(growing)
            for chain in growing:
                chain.way = [chain.way[-1].foreseen(chain.tokens[-1])]
        for at in answered:
            at.answer = None
        return [chain.draft() for chain in chains]

    def _room(self, site: Site, length: int) -> int:
        """Return the number of tokens that the model's context leaves for a draft: the last of them is drawn, never read."""
        context = self._model.max_length
        return length if context is None else min(length, context - len(site.prompt) - len(site.tokens) + 1)

    def _draw(self, chains: Sequence[_Chain]) -> list[_Chain]:
        """Take every chain one token further; return those that go on."""
        log_r = self._log_r(chains)
        if self._greedy:
            tokens = log_r.argmax(-1)
        else:
            uniforms = [[chain.rng.random()] for chain in chains]
            cumulative = log_r.double().exp().cumsum_(-1)
            tokens = columns_at(cumulative, torch.tensor(uniforms, dtype=torch.float64, device=log_r.device))[:, 0]
        chosen = torch.stack([tokens.double(), log_r.gather(-1, tokens[:, None])[:, 0].double()])
        growing = []
        for chain, row, token, log_r_v in zip(chains, log_r, *chosen.tolist(), strict=True):
            if not log_r_v > -math.inf:  # truncation leaves nothing that the guide allows
                continue
            chain.site = chain.site.after(int(token), self._run.table)
            if self._greedy and chain.site.state in (DEAD, DONE):
                continue
            chain.tokens.append(int(token))
            if not self._greedy:
                chain.log_r.append(row)
            if not chain.finished:
                growing.append(chain)
        return growing

    def _log_r(self, chains: Sequence[_Chain]) -> Tensor:
        """Return ``log r`` after each chain, ``[n, V]``: one row for those at the same node; ``nan`` where there is none."""
        sites: dict[Branch, Site] = {}
        for chain in chains:
            sites.setdefault(chain.way[-1], chain.site)
        place = {at: i for i, at in enumerate(sites)}
        logits = _resized(torch.stack([at.answer for at in sites]), len(self._run.vocabulary))
        contexts = ((*site.prompt, *site.tokens) for site in sites.values())
        log_p = self._run.settings.log_p(logits, self._run.vocabulary, contexts)
        bias = [self._run.table.bias(site.state, site.remaining, log_p.device) for site in sites.values()]
        log_r = torch.log_softmax(log_p + torch.stack(bias), -1)
        return log_r if len(place) == len(chains) else log_r[[place[chain.way[-1]] for chain in chains]]

    def _tidy(self, chains: Sequence[_Chain]) -> None:
        """Give back what is not on the way to a text, where that outweighs the texts."""
        kept = {at for chain in chains for at in chain.way}
        nodes = sorted(at.node for at in kept if at.node >= 0)
        if self._branches.planted and self._branches.tidy(nodes, len(nodes), WASTE):
            for at in [*self._prompts, *kept]:
                at.children = {token: below for token, below in at.children.items() if below in kept}


def check_vocabularies(drafts: Vocabulary, target: Vocabulary) -> None:
    """Raise a :class:`VocabularyError` unless every token of ``target`` is that of the same id in ``drafts``."""
    if drafts.fingerprint == target.fingerprint:
        return
    common = min(len(drafts), len(target))
    missing = [v for v in np.flatnonzero(target.real).tolist() if v >= common or not drafts.real[v]]
    if missing:
        raise rows_missing(missing, target)
    # Ids that only the drafting model has a token for are left out of its distributions.
    pairs = enumerate(zip(drafts.tokens[:common], target.tokens[:common], strict=True))
    different = [v for v, (ours, theirs) in pairs if ours != theirs and target.real[v]]
    if different:
        shown = [f"{v} as {drafts.tokens[v]!r} for {target.tokens[v]!r}" for v in different]
        raise _unlike(f"writes {len(different)} tokens otherwise than", shown)


def rows_missing(missing: Sequence[int], target: Vocabulary) -> VocabularyError:
    """Return the error of a model that has no row for the ids ``missing`` of ``target``."""
    shown = [f"{v} ({target.tokens[v]!r})" for v in missing]
    return _unlike(f"has no row for {len(missing)} tokens of", shown)


def _unlike(found: str, tokens: Sequence[str]) -> VocabularyError:
    rest = f" and {len(tokens) - SHOWN} more" if len(tokens) > SHOWN else ""
    return VocabularyError(
        f"Draft with a model of the same tokenizer. The model that drafts {found} the model that it drafts for: "
        f"{', '.join(tokens[:SHOWN])}{rest}."
    )


def _resized(logits: Tensor, size: int) -> Tensor:
    """Return ``logits`` with ``size`` columns: models of one tokenizer may pad their output differently."""
    logits = logits[:, :size]
    return torch.nn.functional.pad(logits, (0, size - logits.shape[1]), value=-math.inf)
