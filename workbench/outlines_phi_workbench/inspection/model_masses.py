"""A model along a text: the mass that a mask keeps at each step, and bounds on what of it can still succeed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from outlines_phi.errors import ModelError
from outlines_phi.guides.guide import DONE
from outlines_phi.guides.table import Moves, Table
from outlines_phi.lm.model import LanguageModel
from outlines_phi.numerics.weights import log, ratio
from outlines_phi.phi.tree.best_first import enumerate_together
from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.tree import BoundsTree, Node
from outlines_phi.settings import SamplingSettings

from .inspected import SAMPLE, Inspected, Refusal, TextPlace

BRANCHES = 12  # Tokens of a step that are shown, the likeliest live ones
LOST = 6  # Masked tokens that are shown, the likeliest
TOLERANCE = 1e-3  # Bounds on Phi that are so near to each other, relative to the lower one, are near enough
MOST_STEPS = 256  # Tokens of a text that a model is asked about: each step is a prompt of its own


@final
@dataclass(frozen=True)
class TokenMass:
    """A live token: its probability, bounds on ``Phi`` after it, its probability under masking, and bounds on the exact one.

    Masking draws it with ``p(v) / S``, the exact distribution with ``p(v) Phi(yv) / Phi(y)`` (theory.md, section 2).
    """

    token: int
    text: str
    p: float
    phi: tuple[float, float]
    masked: float
    exact: tuple[float, float]


@final
@dataclass(frozen=True)
class TargetMass:
    """Live tokens that lead to one state: their mass, some of the likeliest, and bounds on what it adds to ``Phi(y)``.

    ``Phi(y)`` is the sum over all states of ``sum of p(v) Phi(yv)`` over the tokens ``v`` that lead there, which ``adds`` bounds.
    """

    label: str
    sample: tuple[str, ...]
    mass: float
    adds: tuple[float, float]


@final
@dataclass(frozen=True)
class LostToken:
    """A masked token with its probability, and why it is masked."""

    text: str
    p: float
    refusal: Refusal


@final
@dataclass(frozen=True)
class StepMasses:
    """What a model says at a step.

    Attributes
    ----------
    live
        ``S = sum of p(v | y)`` over the live tokens; masking renormalises by it, so the step's log weight is ``log S``.
    log_live
        The sum of ``log S`` so far, in nats: the log weight of the text up to here.
    phi
        ``lower <= Phi(y) <= upper``, from a tree of bounds that is grown from ``y`` (theory.md, section 5.1).
    targets
        The states that most of the live mass leads to.
    branches, lost
        The likeliest live and masked tokens.
    """

    live: float
    log_live: float
    phi: tuple[float, float]
    targets: tuple[TargetMass, ...]
    branches: tuple[TokenMass, ...]
    lost: tuple[LostToken, ...]


@final
@dataclass(frozen=True, eq=False)
class PromptedModel:
    """A model after a prompt, as a command was asked for it.

    ``effort`` is the most model tokens that are spent on the bounds of one step.
    """

    lm: LanguageModel
    settings: SamplingSettings
    prompt: tuple[int, ...]
    table: Table
    budget: int
    start: int
    effort: int

    def masses(self, inspected: Inspected, ids: Sequence[int], places: Sequence[TextPlace]) -> tuple[StepMasses, ...]:
        """Return the masses at each of ``places``, which the tokens ``ids`` lead through.

        Raises :class:`ModelError` where the text is longer than the model's context, or than :data:`MOST_STEPS`.
        """
        if len(ids) > MOST_STEPS:
            raise ModelError(
                f"Give a text of at most {MOST_STEPS} tokens, or leave --prompt out. A model is asked about each step, and "
                f"{len(ids):,} tokens were given."
            )
        nodes = self._bounds(ids, places)
        rows = self._log_p(ids)
        found, log_live = list[StepMasses](), 0.0
        for node, log_p, at in zip(nodes, rows, places, strict=True):
            mask, moves = inspected.live(at)
            p = np.exp(log_p)
            live = float(p[mask].sum())
            log_live += math.log(live) if live > 0 else -math.inf
            lost = np.flatnonzero(~mask & (p > 0))
            likeliest = np.flatnonzero(mask)
            branches = [self._branch(inspected, node, v, p, live) for v in _top(likeliest, p, BRANCHES)]
            masked = [(v, inspected.why_masked(at, v)) for v in _top(lost, p, LOST)]
            found.append(
                StepMasses(
                    live,
                    log_live,
                    (math.exp(node.log_lower), math.exp(node.log_upper)),
                    self._targets(inspected, node, moves, log_p),
                    tuple(branches),
                    tuple(LostToken(why.text, float(p[v]), why) for v, why in masked if why is not None),
                )
            )
        return tuple(found)

    def _bounds(self, ids: Sequence[int], places: Sequence[TextPlace]) -> list[Node]:
        """Return the roots of trees, one for each of ``places``: what is likeliest from there on is expanded."""
        trees = [BoundsTree(self.table, at.remaining, start=at.state) for at in places]
        prompts = [(*self.prompt, *ids[:length]) for length in range(len(places))]
        evaluator = Evaluator(self.lm, self.settings, prompts, trees)
        enumerate_together(trees, evaluator, TOLERANCE, self.effort)
        return [tree.root for tree in trees]

    def _log_p(self, ids: Sequence[int]) -> NDArray[np.float64]:
        """Return ``log p``, ``[n + 1, V]``, after the prompt and each beginning of ``ids``."""
        most = self.lm.max_length
        if most is not None and len(self.prompt) + len(ids) > most:
            raise ModelError(
                f"Give a shorter text or prompt. Together they have {len(self.prompt) + len(ids)} tokens, and the model's context "
                f"has {most}."
            )
        parents = list(range(len(ids)))
        evaluation = self.lm.trees([self.prompt]).roots(parents, list(ids))
        contexts = [(*self.prompt, *ids[:length]) for length in range(len(ids) + 1)]
        log_p = self.settings.log_p(evaluation.logits, self.lm.vocabulary, contexts)
        return np.asarray(log_p.double().cpu().numpy())

    def _targets(
        self, inspected: Inspected, node: Node, moves: Moves, log_p: NDArray[np.float64]
    ) -> tuple[TargetMass, ...]:
        """Return the masses of the states that live tokens lead to, the largest first."""
        p, masses = np.exp(log_p), np.exp(moves.log_masses(log_p[moves.tokens]))
        lower, upper = p[moves.tokens].copy(), p[moves.tokens].copy()
        lower[moves.targets != DONE] = 0.0
        for child in node.children.values():
            place = int(moves.tokens.searchsorted(child.token))
            lower[place], upper[place] = p[child.token] * np.exp([child.log_lower, child.log_upper])
        found = []
        for number in np.argsort(-masses, kind="stable")[:BRANCHES].tolist():
            members = moves.leading_to(number)
            tokens = _top(moves.tokens[members], p, SAMPLE)
            found.append(
                TargetMass(
                    f"state {int(moves.targets[members][0])}",
                    tuple(inspected.name_of(token) for token in tokens),
                    float(masses[number]),
                    (float(lower[members].sum()), float(upper[members].sum())),
                )
            )
        return tuple(found)

    def _branch(self, inspected: Inspected, node: Node, token: int, p: NDArray[np.float64], live: float) -> TokenMass:
        child = node.children.get(token)
        lower, upper = (-math.inf, 0.0) if child is None else (child.log_lower, child.log_upper)
        if token == inspected.vocabulary.eos_ids[0]:
            lower, upper = 0.0, 0.0
        share, text = float(p[token]), inspected.name_of(token)
        least = ratio(log(share) + lower, node.log_upper)
        most = ratio(log(share) + upper, node.log_lower) if node.log_lower > -math.inf else 1.0
        bounds, masked = (math.exp(lower), math.exp(upper)), share / live if live > 0 else 0.0
        return TokenMass(token, text, share, bounds, masked, (least, most))


def _top(tokens: NDArray[np.int64], p: NDArray[np.float64], most: int) -> list[int]:
    """Return the likeliest of ``tokens``."""
    order = np.argsort(-p[tokens], kind="stable")[:most]
    return list(tokens[order].tolist())
