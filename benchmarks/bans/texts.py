"""Every text that a model may write within a budget, one by one: what the distributions of banning methods are summed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch

from outlines_phi.lm.model import LanguageModel
from outlines_phi.settings import SamplingSettings

Ids: TypeAlias = tuple[int, ...]

ROWS = 512
"""Prefixes that are evaluated at a time."""


@dataclass(eq=False)
class Text:
    """A text, or the beginning of one.

    Attributes
    ----------
    ids, spelled
        The tokens written, and the bytes of each of them.
    p
        The probability of the last token after the ones before.
    banned
        True if a phrase occurs.
    waits
        The number of bytes at the end that may begin one.
    over
        True if the text has ended, by itself or with the budget.
    longer
        The texts one token longer that have any probability.
    """

    ids: Ids
    spelled: tuple[bytes, ...]
    p: float
    banned: bool
    waits: int
    over: bool
    longer: list[Text] = field(default_factory=list, repr=False)

    def walk(self) -> Iterator[Text]:
        """Yield this text and all longer ones."""
        stack = [self]
        while stack:
            text = stack.pop()
            yield text
            stack.extend(text.longer)


def occurs(phrases: Iterable[bytes], text: bytes) -> bool:
    """Return True if one of ``phrases`` occurs in ``text``."""
    return any(phrase in text for phrase in phrases)


def waiting(phrases: Iterable[bytes], text: bytes) -> int:
    """Return the number of bytes at the end of ``text`` that are the prefix of one of ``phrases``, and not all of it."""
    return max((k for phrase in phrases for k in range(1, len(phrase)) if text.endswith(phrase[:k])), default=0)


def every_text(
    lm: LanguageModel, settings: SamplingSettings, prompt: Sequence[int], budget: int, phrases: Sequence[bytes]
) -> Text:
    """Return the empty text, and with it all that the model may write after ``prompt`` in ``budget`` tokens, banned or not.

    Free text: it may end anywhere, and the end of the budget is an end.
    """
    trees = lm.trees([prompt])
    root = Text((), (), 1.0, False, 0, over=False)
    level, nodes, logits = [root], [0], trees.roots().logits
    while level:
        log_p = settings.log_p(logits, lm.vocabulary, ([*prompt, *text.ids] for text in level)).double().cpu().numpy()
        for text, distribution in zip(level, log_p, strict=True):
            _grow(text, distribution, lm, budget, phrases)
        wanted = [
            (node, longer) for node, text in zip(nodes, level, strict=True) for longer in text.longer if not longer.over
        ]
        level, nodes, found = [text for _, text in wanted], [], []
        for first in range(0, len(wanted), ROWS):
            part = wanted[first : first + ROWS]
            evaluation = trees.extend([node for node, _ in part], [text.ids[-1] for _, text in part])
            nodes += evaluation.nodes
            found.append(evaluation.logits)
        logits = torch.cat(found) if found else logits
    return root


def _grow(text: Text, log_p: np.ndarray, lm: LanguageModel, budget: int, phrases: Sequence[bytes]) -> None:
    p = np.exp(log_p)
    p /= p.sum()
    for token in np.flatnonzero(p).tolist():
        ids, spelled = (*text.ids, token), (*text.spelled, lm.vocabulary.tokens[token])
        written = b"".join(spelled)
        banned, waits = occurs(phrases, written), waiting(phrases, written)
        over = token in lm.vocabulary.eos_ids or len(ids) == budget
        text.longer.append(Text(ids, spelled, float(p[token]), banned, waits, over))
