"""The distributions of ways to ban phrases: each distribution summed over every text, nothing sampled.

A distribution may sum to less than 1: what is missing is the probability of coming to a place where every token is ruled out.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from transformers.generation.logits_process import NoBadWordsLogitsProcessor

from outlines_phi.phi.tree.window import LEAST_SURVIVAL

from .texts import Ids, Text

Distribution: TypeAlias = dict[Ids, float]
Ends: TypeAlias = Callable[[Text, Text, float], bool]
"""The rule that ends a window that began at the first text at the second; the number is the product of the probabilities that its
tokens before the last, each at its turn, completed no phrase."""


def unconstrained(root: Text) -> Distribution:
    """Return the distribution of the model itself."""
    return stepwise(root, lambda text: True)


def conditioned(root: Text) -> Distribution:
    """Return ``mu*``: the distribution of the model, given that no phrase occurs."""
    distribution = {text.ids: p for text, p in _ends(root, lambda text: True) if not text.banned}
    phi = math.fsum(distribution.values())
    return {ids: p / phi for ids, p in distribution.items()}


def masked(root: Text) -> Distribution:
    """Return the distribution of masking each token that completes a phrase."""
    return stepwise(root, lambda text: not text.banned)


def bad_words(root: Text, spellings: Sequence[Ids], prompt: Ids, size: int) -> Distribution:
    """Return the distribution under the logits processor of ``bad_words_ids=``, run as it is: ``size`` ids, phrases as
    ``spellings``.
    """
    processor = NoBadWordsLogitsProcessor([list(ids) for ids in spellings])
    allowed: set[Text] = set()
    level = [root]
    while level:
        scores = processor(torch.tensor([[*prompt, *text.ids] for text in level]), torch.zeros(len(level), size))
        for text, row in zip(level, scores.isfinite().tolist(), strict=True):
            allowed.update(longer for longer in text.longer if row[longer.ids[-1]])
        level = [longer for text in level for longer in text.longer if not longer.over]
    return stepwise(root, allowed.__contains__)


def stepwise(root: Text, allowed: Callable[[Text], bool]) -> Distribution:
    """Return the distribution of drawing each token by its probability among those that are allowed."""
    return {text.ids: q for text, q in _ends(root, allowed)}


def renewed(begun: Text, text: Text, survival: float) -> bool:
    """Return True if nothing waits, or few would have come so far; the clauses for windows longer than the texts are left out."""
    return text.waits == 0 or survival < LEAST_SURVIVAL


def released(begun: Text, text: Text, survival: float) -> bool:
    """Return True if nothing of a window's first token waits."""
    return text.waits <= sum(map(len, text.spelled[len(begun.ids) + 1 :]))


def windows(root: Text) -> tuple[Distribution, Distribution]:
    """Return the distribution of the look-ahead that commits windows, and the weight ``prod_j Psi(r_j)`` of each text."""
    distribution, weight = {}, {}
    stack = [(root, root, 1.0, 1.0, reach(renewed, root, root))]
    while stack:
        text, begun, survival, p, w = stack.pop()
        for longer in text.longer:
            if longer.banned:
                continue
            if longer.over:
                distribution[longer.ids], weight[longer.ids] = p * longer.p / w, w
            elif not renewed(begun, longer, survival):
                stack.append((longer, begun, survival * live(text), p * longer.p, w))
            elif (psi := reach(renewed, longer, longer)) > 0:
                stack.append((longer, longer, 1.0, p * longer.p, w * psi))
    return distribution, weight


def early(root: Text) -> Distribution:
    """Return the distribution of the look-ahead that releases each token as soon as nothing of it waits."""
    distribution, stack = {}, [(root, 1.0)]
    while stack:
        text, q = stack.pop()
        ahead = [(longer, longer.p * onward(released, text, longer, 1.0, live(text))) for longer in text.longer]
        total = math.fsum(p for _, p in ahead)
        for longer, p in ahead:
            if longer.over and p > 0:
                distribution[longer.ids] = q * p / total
            elif p > 0:
                stack.append((longer, q * p / total))
    return distribution


def live(text: Text) -> float:
    """Return the probability that the next token completes no phrase."""
    return math.fsum(longer.p for longer in text.longer if not longer.banned)


def reach(ends: Ends, begun: Text, text: Text, survival: float = 1.0) -> float:
    """Return the probability that the window from ``begun`` ends without a phrase, from ``text`` on, at which it does not end."""
    below = survival * live(text)
    return math.fsum(longer.p * onward(ends, begun, longer, survival, below) for longer in text.longer)


def onward(ends: Ends, begun: Text, text: Text, survival: float, below: float) -> float:
    """Return the probability of :func:`reach` from ``text`` on, whether or not the window ends there.

    ``survival`` is that of ``text``, ``below`` that of what is longer.
    """
    if text.banned:
        return 0.0
    return 1.0 if text.over or ends(begun, text, survival) else reach(ends, begun, text, below)


def resampled(
    distribution: Distribution, weight: Distribution, draws: int, *, repeats: int = 4_000, seed: int = 0
) -> Distribution:
    """Return the distribution of one of ``draws`` weighted draws, picked by the weights: what self-normalised means are means of.

    That is ``draws * q(y) w(y) E[1 / (w(y) + W)]`` with ``W`` the sum of the other weights, of which ``repeats`` are drawn.
    """
    q, w = np.array(list(distribution.values())), np.array([weight[ids] for ids in distribution])
    levels, place = np.unique(w, return_inverse=True)
    shares = np.bincount(place, q)
    others = np.random.default_rng(seed).multinomial(draws - 1, shares / shares.sum(), size=repeats) @ levels
    inverse = np.array([np.mean(1 / (level + others)) for level in levels])
    picked = q * w * inverse[place]
    return dict(zip(distribution, (picked / picked.sum()).tolist(), strict=True))


def rewound(root: Text, phrases: Collection[bytes]) -> Distribution:
    """Return the distribution of rewinding: go back to the token in which a phrase begins, ban it there and go on.

    A ban holds as long as the text before it stands. With ``a(v)`` the expected number of times that ``v`` is drawn at a place
    while it stands, the distribution of what follows is ``sum_v a(v) distribution_v``, and ``distribution_v`` also says how
    often ``v`` comes to be banned.
    """
    ends, _ = _rewound(root, phrases)
    return ends


def _rewound(text: Text, phrases: Collection[bytes]) -> tuple[Distribution, dict[int, float]]:
    """Return the probabilities of the texts that come out from ``text`` on, and of going back to each place before it."""
    if text.over:
        return {text.ids: 1.0}, {}
    place, below = len(text.ids), {}
    for longer in text.longer:
        below[longer] = ({}, {_beginning(longer, phrases): 1.0}) if longer.banned else _rewound(longer, phrases)
    again = {longer: back.get(place, 0.0) for longer, (_, back) in below.items()}
    ends: Distribution = {}
    backs: dict[int, float] = {}
    for longer, visits in _visits(text.longer, again).items():
        for ids, q in below[longer][0].items():
            ends[ids] = ends.get(ids, 0.0) + visits * q
        for earlier, q in below[longer][1].items():
            if earlier < place:
                backs[earlier] = backs.get(earlier, 0.0) + visits * q
    return ends, backs


def _visits(children: Sequence[Text], again: dict[Text, float]) -> dict[Text, float]:
    """Return the mean number of draws of each child, where it is drawn and banned again with the probability ``again``."""
    visits = dict.fromkeys(children, 0.0)
    level = {frozenset[Text](): 1.0}
    while level:
        more: dict[frozenset[Text], float] = {}
        for banned, reached in level.items():
            left = [child for child in children if child not in banned]
            total = math.fsum(child.p for child in left)
            for child in left:
                drawn = reached * child.p / total
                visits[child] += drawn
                if again[child] > 0:
                    more[banned | {child}] = more.get(banned | {child}, 0.0) + drawn * again[child]
        level = more
    return visits


def _beginning(text: Text, phrases: Collection[bytes]) -> int:
    """Return the place of the token in which the first phrase of a text begins."""
    written = b"".join(text.spelled)
    byte = min(written.index(phrase) for phrase in phrases if phrase in written)
    return int(np.searchsorted(np.cumsum([len(token) for token in text.spelled]), byte, side="right"))


def _ends(root: Text, allowed: Callable[[Text], bool]) -> Iterator[tuple[Text, float]]:
    """Yield each text that comes out where tokens are drawn among those that are allowed, and how probable that is."""
    stack = [(root, 1.0)]
    while stack:
        text, q = stack.pop()
        if text.over:
            yield text, q
            continue
        left = list(filter(allowed, text.longer))
        total = math.fsum(longer.p for longer in left)
        stack += [(longer, q * longer.p / total) for longer in left]
