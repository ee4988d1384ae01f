"""Speculative decoding with a smaller language model over the same vocabulary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from ..errors import ModelError, UnsupportedError, VocabularyError
from ..guides.guide import DEAD, DONE
from ..lm.model import LanguageModel
from ..numerics.checks import Checked
from ..numerics.weights import columns_at
from ..phi.branches import Branch, Branches
from ..vocabulary.vocabulary import Vocabulary
from .drafter import Chain, Draft, Drafter, Drafting, DraftRun, Site

WASTE = 1024
"""Nodes that the drafter's trees may grow by, beyond the texts themselves, before the others are given back."""

SHOWN = 5
"""The number of tokens that a message names."""


@final
@dataclass(frozen=True)
class ModelDrafter(Checked, Drafter):
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
        super().__post_init__()

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


@final
class ModelDrafting(Drafting):
    """A smaller model at work in one call.

    ``branches``: Its prefixes, whose ``trees`` tell what they have cost.
    """

    checked = True

    def __init__(self, drafter: ModelDrafter, run: DraftRun) -> None:
        self._model, self._greedy, self._run = drafter.model, drafter.greedy, run
        self.branches = Branches(drafter.model, run.prompts)
        self._prompts = [Branch(-1, -1, root) for root in self.branches.roots]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        rooms = [self._room(site, length) for site, length in zip(sites, lengths, strict=True)]
        chains = [Chain(*asked) for asked in zip(sites, rooms, streams, strict=True)]
        # To where each has arrived, from what was evaluated last
        ways = {c: list(self._prompts[c.site.row].along(c.site.tokens)) for c in chains if not c.finished}
        answered = list[Branch]()
        self._tidy(ways.values())
        while ways:
            wanted = [at for way in ways.values() for at in way if at.node < 0 or at is way[-1]]
            wanted = list(dict.fromkeys(wanted))
            for at, logits in zip(wanted, self.branches.reach(wanted).whole(), strict=True):
                at.answer = logits
            answered += wanted
            self._draw({chain: way[-1] for chain, way in ways.items()})
            ways = {c: [way[-1].foreseen(c.site.tokens[-1])] for c, way in ways.items() if not c.finished}
        for at in answered:
            at.answer = None
        return [chain.draft() for chain in chains]

    def _room(self, site: Site, length: int) -> int:
        """Return the number of tokens that the model's context leaves for a draft: the last of them is drawn, never read."""
        context = self._model.max_length
        return length if context is None else min(length, context - len(site.prompt) - len(site.tokens) + 1)

    def _draw(self, chains: Mapping[Chain, Branch]) -> None:
        """Take every chain one token further from where it stands, or finish it."""
        log_r = self._log_r(chains)
        if self._greedy:
            tokens = log_r.argmax(-1)
        else:
            uniforms = [[chain.rng.random()] for chain in chains]
            cumulative = log_r.double().exp().cumsum_(-1)
            tokens = columns_at(cumulative, torch.tensor(uniforms, dtype=torch.float64, device=log_r.device))[:, 0]
        chosen = torch.stack([tokens.double(), log_r.gather(-1, tokens[:, None])[:, 0].double()])
        for chain, row, token, log_r_v in zip(chains, log_r, *chosen.tolist(), strict=True):
            part = Draft((int(token),), None if self._greedy else row[None])
            ended = self._greedy and chain.site.after(int(token), self._run.table).state in (DEAD, DONE)
            if ended or not log_r_v > -math.inf:  # truncation leaves nothing that the guide allows
                chain.room = 0
            else:
                chain.extend(part, self._run.table)

    def _log_r(self, chains: Mapping[Chain, Branch]) -> Tensor:
        """Return ``log r`` after each chain, ``[n, V]``: one row for those at the same node; ``nan`` where there is none."""
        sites: dict[Branch, Site] = {}
        for chain, at in chains.items():
            sites.setdefault(at, chain.site)
        place = {at: i for i, at in enumerate(sites)}
        # Models of one tokenizer may pad their output differently.
        logits = torch.stack([at.answer for at in sites])[:, : len(self._run.vocabulary)]
        logits = torch.nn.functional.pad(logits, (0, len(self._run.vocabulary) - logits.shape[1]), value=-math.inf)
        contexts = ((*site.prompt, *site.tokens) for site in sites.values())
        log_p = self._run.settings.log_p(logits, self._run.vocabulary, contexts)
        bias = [self._run.table.bias(site.state, site.remaining, log_p.device) for site in sites.values()]
        log_r = torch.log_softmax(log_p + torch.stack(bias), -1)
        return log_r if len(place) == len(chains) else log_r[[place[at] for at in chains.values()]]

    def _tidy(self, ways: Iterable[Sequence[Branch]]) -> None:
        """Give back what is not on the way to a text, where that outweighs the texts."""
        kept = {at for way in ways for at in way}
        nodes = sorted(at.node for at in kept if at.node >= 0)
        if self.branches.planted and self.branches.tidy(nodes, len(nodes), WASTE):
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
