"""A model along a text: the mass that a mask keeps at each step, and bounds on what of it can still succeed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outlines_phi import SamplingSettings
from outlines_phi.errors import ModelError
from outlines_phi.guides import Table
from outlines_phi.lm import LanguageModel
from outlines_phi.numerics.weights import log, ratio
from outlines_phi.phi.tree.best_first import enumerate_together
from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.tree import BoundsTree, Node

from .inspected import Inspected, Refusal, TextPlace

BRANCHES, LOST = 12, 6  # Live and masked tokens of a step that are shown, the likeliest
TOLERANCE = 1e-3  # Bounds on Phi that are so near to each other, relative to the lower one, are near enough
MOST_STEPS = 256  # Tokens of a text that a model is asked about: each step is a prompt of its own


class TokenMass(NamedTuple):
    """A live token: its probability, bounds on ``Phi`` after it, its probability under masking, and bounds on the exact one.

    Masking draws it with ``p(v) / S``, the exact distribution with ``p(v) Phi(yv) / Phi(y)`` (theory.md, section 2).
    """

    token: int
    p: float
    phi: tuple[float, float]
    masked: float
    exact: tuple[float, float]


class StepMasses(NamedTuple):
    """The masses of a step: ``S``, the sum of ``log S`` so far in nats (the log weight of the text), and bounds on ``Phi(y)``.

    ``branches`` are the likeliest live tokens, ``lost`` the likeliest masked ones, each with its probability.
    """

    live: float
    log_live: float
    phi: tuple[float, float]
    branches: tuple[TokenMass, ...]
    lost: tuple[tuple[float, Refusal], ...]


@final
@dataclass(frozen=True, eq=False)
class PromptedModel:
    """A model after a prompt, as a command was asked for it; ``effort`` is the most model tokens for the bounds of one step."""

    lm: LanguageModel
    settings: SamplingSettings
    prompt: tuple[int, ...]
    table: Table
    effort: int

    def masses(self, inspected: Inspected, ids: Sequence[int], places: Sequence[TextPlace]) -> list[StepMasses]:
        """Return the masses at each of ``places``, which the tokens ``ids`` lead through.

        Raises :class:`ModelError` where the text is longer than the model's context, or than :data:`MOST_STEPS`.
        """
        most = min(MOST_STEPS, (self.lm.max_length or math.inf) - len(self.prompt))
        if len(ids) > most:
            raise ModelError(
                f"Give a text of at most {most} tokens, or leave --prompt out. A model is asked about each step, and {len(ids):,} "
                f"tokens were given behind a prompt of {len(self.prompt)}."
            )
        prompts = [(*self.prompt, *ids[:length]) for length in range(len(places))]
        trees = [BoundsTree(self.table, at.remaining, start=at.state) for at in places]
        enumerate_together(trees, Evaluator(self.lm, self.settings, prompts, trees), TOLERANCE, self.effort)
        logits = self.lm.trees([self.prompt]).roots(list(range(len(ids))), list(ids)).logits
        rows = self.settings.log_p(logits, self.lm.vocabulary, prompts).double().exp().cpu().numpy()
        found, log_live = list[StepMasses](), 0.0
        for tree, p, at in zip(trees, rows, places, strict=True):
            mask, _ = inspected.live(at)
            live = float(p[mask].sum())
            log_live += log(live)
            lost = ((float(p[v]), inspected.why_masked(at, v)) for v in _top(np.flatnonzero(~mask & (p > 0)), p, LOST))
            branches = (self._branch(tree.root, v, float(p[v]), live) for v in _top(np.flatnonzero(mask), p, BRANCHES))
            named = tuple((share, why) for share, why in lost if why is not None)
            found.append(StepMasses(live, log_live, _bounds(tree.root), tuple(branches), named))
        return found

    def _branch(self, node: Node, token: int, p: float, live: float) -> TokenMass:
        ends, child = token in self.lm.vocabulary.eos_ids, node.children.get(token)
        lower, upper = (0.0 if ends else -math.inf, 0.0) if child is None else (child.log_lower, child.log_upper)
        least = ratio(log(p) + lower, node.log_upper)
        most = ratio(log(p) + upper, node.log_lower) if node.log_lower > -math.inf else 1.0
        return TokenMass(token, p, (math.exp(lower), math.exp(upper)), p / live if live > 0 else 0.0, (least, most))


def _bounds(node: Node) -> tuple[float, float]:
    return math.exp(node.log_lower), math.exp(node.log_upper)


def _top(tokens: NDArray[np.int64], p: NDArray[np.float64], most: int) -> list[int]:
    """Return the likeliest of ``tokens``."""
    return list(tokens[np.argsort(-p[tokens], kind="stable")[:most]].tolist())
