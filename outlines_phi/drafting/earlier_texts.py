"""Drafts of what followed before: in the trees of a prompt, in the texts after it, or in prompt and text themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, takewhile
from threading import Lock
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from ..guides.guide import DEAD, DONE
from ..numerics.cache import Cache
from ..numerics.checks import Checked, Count
from ..phi.tree.tree import BoundsTree, Node
from ..vocabulary.vocabulary import EOS
from .drafter import NOTHING, Draft, Drafter, Drafting, DraftRun, Site, SiteDrafting

PLACES = 2**11
"""Places that are kept of a prompt; where they are full, nothing new is taken note of."""

PROMPTS = 16
"""Prompts that are kept of a table, those of the latest calls."""

BYTES_KEPT = 400 * PLACES * PROMPTS
"""The memory that these take at most, about."""


@final
@dataclass(frozen=True)
class TreeDrafter(Drafter):
    """Proposes the likeliest path through the token trees of earlier calls, and of this one's earlier rounds.

    At every node the token of the highest ``p(v | y) U(yv)``, whether it has a node of its own or not. Samplers without trees of
    bounds follow the texts that have been written so far, the way that was taken most often. Where nothing is known it proposes
    nothing.
    """

    name: ClassVar[str] = "tree"
    cheap: ClassVar[bool] = True

    def begin(self, run: DraftRun) -> Drafting:
        trees = run.trees
        if trees is None:
            return _FollowedPaths(run)
        return SiteDrafting(lambda site, length: Draft(_path(trees[site.row], site.tokens, length)))


@final
@dataclass(eq=False, slots=True)
class Visited:
    """A prefix, and how often each way on was taken."""

    visits: int = 0  # The number of texts to continue that had come this way
    below: dict[int, Visited] = field(default_factory=dict)  # The texts that are one token longer


@final
class History:
    """The texts that were written after one prompt."""

    def __init__(self) -> None:
        self._start = Visited()
        self._places = 0

    def take_note(self, tokens: Sequence[int]) -> None:
        """Take note of a text that is to be continued."""
        place = self._start
        for token in tokens:
            if token not in place.below:
                if self._places >= PLACES:
                    return
                place.below[token] = Visited()
                self._places += 1
            place = place.below[token]
            place.visits += 1

    def after(self, tokens: Sequence[int], length: int) -> tuple[int, ...]:
        """Return the way on that was taken most often, of at most ``length`` tokens."""
        place: Visited | None = self._start
        for token in tokens:
            place = None if place is None else place.below.get(token)
        path: list[int] = []
        while place is not None and place.below and len(path) < length:
            # A copy, because a call in another thread may take note meanwhile.
            token, place = max(list(place.below.items()), key=lambda item: item[1].visits)
            path.append(token)
        return tuple(path)


def histories() -> tuple[Cache[tuple[int, ...], History], Lock]:
    """Return the histories of the prompts of the latest calls, none so far."""
    return Cache(PROMPTS), Lock()


@final
class _FollowedPaths(Drafting):
    """Proposes the texts that followed the same text before: in this call, and in earlier ones of a table.

    A call with a seed knows nothing of others: what it returns does not depend on them, where drafts beside these are drawn.
    """

    def __init__(self, run: DraftRun) -> None:
        if run.settings.seed is not None:
            self._written = [History() for _ in run.prompts]
            return
        kept, lock = run.table.keep("written", run.table.start, histories, lambda _: BYTES_KEPT)
        with lock:  # a stream of the host's loop runs in a thread of its own, beside other calls
            self._written = [kept.of(prompt, History) for prompt in run.prompts]

    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        for site in sites:
            self._written[site.row].take_note(site.tokens)
        return [
            Draft(self._written[site.row].after(site.tokens, length))
            for site, length in zip(sites, lengths, strict=True)
        ]


def _path(tree: BoundsTree, tokens: Sequence[int], length: int) -> tuple[int, ...]:
    """Return the likeliest path below the node of ``tokens``."""
    node: Node | None = tree.root
    for token in tokens:
        node = None if node is None else node.children.get(token)
    path: list[int] = []
    while node is not None and node.state not in (DEAD, DONE) and len(path) < length:
        likeliest = _likeliest(node)
        if likeliest is None:
            break
        path.append(likeliest)
        node = node.children.get(likeliest)
    return tuple(path)


def _likeliest(node: Node) -> int | None:
    """Return the likeliest token after an expanded node, ``None`` after others.

    Where the distribution was evicted, the children alone are left.
    """
    children = (
        {child.token: child.log_step + child.log_upper for child in node.children.values()} if node.expanded else {}
    )
    token = max(children, key=children.__getitem__, default=None)
    log_share = -math.inf if token is None else children[token]
    free = None if node.distribution is None else node.distribution.likeliest()
    if free is not None and free[1] > log_share:
        return free[0]
    return token if log_share > -math.inf else None


WORD = re.compile(rb"\s*[\w\x80-\xff]+")
"""A token of letters and digits, those beyond ASCII included, after blanks or none."""

ENOUGH = 2
"""The least weight of an agreement: a word counts as much, a digit by itself half of it."""


@final
@dataclass(frozen=True)
class PromptLookupDrafter(Checked, Drafter):
    """A drafter of the tokens that followed the last ones where they stood before (Saxena, "Prompt Lookup Decoding", 2023).

    Of the places in prompt and text where the last ``ngram`` tokens stood before, the latest after which the guide allows the
    token that followed there; if there is none, the same for ever fewer tokens, down to one. An output that takes values out of
    its prompt is written so, several tokens in a call. What agrees has to have a word in it, or two digits: anything may follow
    a ``": "``, or the first digit of a number. Blanks that tokens begin with do not count: a word has one within a sentence,
    and none where it begins a value, after a quotation mark. Of a phrase that is found so only words are proposed.

    Attributes
    ----------
    ngram
        The most tokens that have to agree; with 1, numbers of one-digit tokens are not looked up.

    Raises
    ------
    UnsupportedError
        ``ngram`` is not a positive whole number.
    """

    ngram: Count = 3
    name: ClassVar[str] = "prompt_lookup"
    cheap: ClassVar[bool] = True

    def begin(self, run: DraftRun) -> Drafting:
        return SiteDrafting(_PromptLookup(run, self.ngram).draft)


@final
class _PromptLookup:
    def __init__(self, run: DraftRun, ngram: int) -> None:
        self._table, self._ngram, self._tokens = run.table, ngram, run.vocabulary.tokens
        self._numbers: dict[bytes | int, int] = {}  # of the words
        self._number_of: dict[int, int] = {}  # of the words of tokens
        self._counts = lru_cache(maxsize=None)(self._count)
        self._prompts = [np.array(self._words_of(prompt)) for prompt in run.prompts]
        self._in_prompt = [set(words.tolist()) for words in self._prompts]

    def draft(self, site: Site, length: int) -> Draft:
        end = (site.prompt[-self._ngram :] + site.tokens[-self._ngram :])[-self._ngram :]
        counted = accumulate(map(self._counts, reversed(end)))
        least = next((n for n, so_far in enumerate(counted, 1) if so_far >= ENOUGH), 0)
        if not least:
            return NOTHING
        written = self._words_of(site.tokens)
        if written and written[-1] not in self._in_prompt[site.row] and written[-1] not in written[:-1]:
            return NOTHING  # most places, at little cost
        words = np.concatenate([self._prompts[site.row], np.array(written, dtype=np.int64)])
        places = 1 + np.flatnonzero(words[:-1] == words[-1])
        for n in range(1, least):
            places = _longer(words, places, n)
        if not len(places):
            return NOTHING
        text = np.array(site.prompt + site.tokens, dtype=np.int64)
        places = places[self._may_follow(site, text[places])]
        if not len(places):
            return NOTHING
        n = least
        while n < self._ngram and len(longer := _longer(words, places, n)):
            places, n = longer, n + 1
        place = int(places[-1])
        tokens = tuple(text[place : place + length].tolist())
        if (text[place - n : place] == text[len(text) - n :]).all():
            return Draft(tokens)
        # A phrase that is taken out of its sentence: what stands around it there does not come with it.
        return Draft(tuple(takewhile(self._counts, tokens)))

    def _count(self, token: int) -> int:
        """Return the weight of an agreement on ``token``: a word :data:`ENOUGH`, a single digit half of it, all else nothing."""
        if token >= len(self._tokens) or WORD.fullmatch(self._tokens[token]) is None:
            return 0
        word = self._tokens[token].lstrip()
        return ENOUGH // 2 if len(word) == 1 and word.isdigit() else ENOUGH

    def _words_of(self, tokens: Sequence[int]) -> list[int]:
        """Return a number per token: one for all that write the same but for blanks before it."""
        for token in set(tokens) - self._number_of.keys():
            word = self._tokens[token].lstrip() if token < len(self._tokens) else b""
            self._number_of[token] = self._numbers.setdefault(word or token, len(self._numbers))
        return [self._number_of[token] for token in tokens]

    def _may_follow(self, site: Site, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the mask of tokens that may follow the site and do not end it. A prompt may hold ids that cannot be written."""
        live = self._table.live_classes(site.state, site.remaining)
        live[EOS] = False
        class_of = self._table.partition(site.state).class_of
        known = tokens < len(class_of)
        return known & live[class_of[np.where(known, tokens, 0)]]


def _longer(words: NDArray[np.int64], places: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Return those of the places after the last ``n`` words that have the word before these too."""
    places = places[places > n]
    return places[words[places - n - 1] == words[-n - 1]]
