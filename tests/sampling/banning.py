"""The laws of look-aheads by plain Python: slow, small, and independent of the package's own."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from outlines_phi import BannedPhrases, SamplingSettings, Vocabulary
from outlines_phi.guides import Table
from tests.inner import PhraseGuide, Request, TableModel
from tests.languages import Ids

VOCABULARY = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", "ba", "c"], 0)
PROMPT = (1, 5)


def waiting(text: bytes, phrases: tuple[bytes, ...]) -> int:
    """Return the number of bytes at the end of a text that begin a phrase."""
    return max(
        k for k in range(len(text) + 1) if k == 0 or any(p != text[-k:] and p.startswith(text[-k:]) for p in phrases)
    )


def without(*phrases: bytes | str, **options: bool) -> Table:
    """Return the table of free text without some phrases, which begin in the text."""
    return Table(PhraseGuide(VOCABULARY, BannedPhrases(phrases, **{"across_prompt": False, **options})))


Ends = Callable[[tuple[bytes, ...], int, float], bool]
"""The rule for the end of a window: its tokens, the bytes that wait, and the share of walks that come before the last token."""


def renewed(length: int) -> Ends:
    """Windows that end where nothing waits, with the clauses for long ones."""

    def ends(written: tuple[bytes, ...], waits: int, survival: float) -> bool:
        inside = len(written) >= length and waits < len(written[-1])
        return waits == 0 or inside or len(written) >= 4 * length or survival < 1 / 8

    return ends


def never(written: tuple[bytes, ...], waits: int, survival: float) -> bool:
    """One window."""
    return False


def released(written: tuple[bytes, ...], waits: int, survival: float) -> bool:
    """Windows that end where nothing of their first token waits."""
    return waits <= sum(map(len, written[1:]))


@dataclass(frozen=True)
class Banned:
    """Phrases under a random law, and what the samplers' laws are, by enumeration."""

    phrases: tuple[bytes, ...]
    budget: int
    seed: int
    scale: float = 1.5
    prompt: Ids = PROMPT

    def __str__(self) -> str:
        return "+".join(phrase.decode() for phrase in self.phrases)

    @cached_property
    def table(self) -> Table:
        return without(*self.phrases)

    @cached_property
    def lm(self) -> TableModel:
        return TableModel.random(VOCABULARY, seed=self.seed, scale=self.scale)

    def request(self, n: int, seed: int | None, *, rows: int = 1, **options: object) -> Request:
        settings = SamplingSettings(max_new_tokens=self.budget, seed=seed, **options)  # type: ignore[arg-type]
        return Request(lm=self.lm, table=self.table, prompts=[self.prompt] * rows, settings=settings, n=n)

    @cache  # noqa: B019 - a handful of module-level languages
    def p(self, ids: Ids) -> NDArray[np.float64]:
        logits = self.lm.logits((*self.prompt, *ids))
        return np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()

    def text(self, ids: Ids) -> bytes:
        return b"".join(VOCABULARY.tokens[token] for token in ids)

    def over(self, ids: Ids) -> bool:
        return len(ids) == self.budget or (bool(ids) and ids[-1] == 0)

    def bad(self, ids: Ids) -> bool:
        return any(phrase in self.text(ids) for phrase in self.phrases)

    def ended(self, ends: Ends, root: Ids, ids: Ids) -> bool:
        written = tuple(VOCABULARY.tokens[token] for token in ids[len(root) :])
        survival = math.prod(self.live(ids[:i]) for i in range(len(root), len(ids) - 1))
        return len(ids) > len(root) and ends(written, waiting(self.text(ids), self.phrases), survival)

    @cache  # noqa: B019
    def live(self, ids: Ids) -> float:
        """The probability that the next token completes no phrase."""
        return float(sum(p for token, p in enumerate(self.p(ids)) if not self.bad((*ids, token))))

    def reach(self, ends: Ends, root: Ids, ids: Ids) -> float:
        """The probability that the window that began at ``root`` ends without a phrase, from ``ids`` on."""
        if self.bad(ids):
            return 0.0
        if self.over(ids) or self.ended(ends, root, ids):
            return 1.0
        return sum(p * self.reach(ends, root, (*ids, token)) for token, p in enumerate(self.p(ids)))

    @cache  # noqa: B019
    def mu(self) -> dict[Ids, float]:
        """The law of the model given that no phrase occurs."""
        found = self.windows(never)[0]
        return {ids: q / sum(found.values()) for ids, q in found.items()}

    @cache  # noqa: B019
    def phi(self) -> float:
        return self.reach(never, (), ())

    @cache  # noqa: B019
    def windows(self, ends: Ends) -> tuple[dict[Ids, float], dict[Ids, float]]:
        """The law of a look-ahead that commits windows, and each member's weight."""
        law, weight = {}, {}
        stack: list[tuple[Ids, Ids, float, float]] = [((), (), 1.0, self.reach(ends, (), ()))]
        while stack:
            ids, root, p, w = stack.pop()
            if self.over(ids):
                law[ids], weight[ids] = p / w, w
                continue
            for token, share in enumerate(self.p(ids)):
                longer = (*ids, token)
                if self.bad(longer):
                    continue
                if not self.over(longer) and self.ended(ends, root, longer):
                    stack.append((longer, longer, p * share, w * self.reach(ends, longer, longer)))
                else:
                    stack.append((longer, root, p * share, w))
        return law, weight

    @cache  # noqa: B019
    def early(self) -> dict[Ids, float]:
        """The law of a look-ahead that releases every token as soon as nothing of it waits."""
        law = {}
        stack: list[tuple[Ids, float]] = [((), 1.0)]
        while stack:
            ids, q = stack.pop()
            if self.over(ids):
                law[ids] = q
                continue
            total = self.reach(released, ids, ids)
            for token, share in enumerate(self.p(ids)):
                after = self.reach(released, ids, (*ids, token))
                if after > 0:
                    stack.append(((*ids, token), q * share * after / total))
        return law

    def mask(self) -> dict[Ids, float]:
        """The law of masking the last token of every spelling: windows of one token."""
        return self.windows(lambda *_: True)[0]


def normal(law: dict[Ids, float]) -> dict[Ids, float]:
    assert math.isclose(sum(law.values()), 1.0, rel_tol=1e-9), sum(law.values())
    return law


SHORT, NESTED = (Banned((b"abc", b"bb"), 4, seed=9, scale=2.5), Banned((b"aba", b"abbc", b"ca"), 4, seed=20, scale=2.5))
"""Laws that like phrases so much that every variant of a look-ahead is told from the others by a few thousand draws."""

WHOLE = renewed(16)
