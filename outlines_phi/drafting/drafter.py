"""What will probably follow: the interface of every drafter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from torch import Tensor

from ..errors import UnsupportedError
from ..guides.guide import DEAD
from ..guides.table import Table
from ..phi.tree.tree import BoundsTree
from ..settings import SamplingSettings
from ..vocabulary.vocabulary import Vocabulary


@final
@dataclass(frozen=True)
class Site:
    """A text that is to be continued: all that a drafter may know of it.

    Attributes
    ----------
    row
        Its prompt, by its number.
    prompt, tokens
        The token ids of the prompt, and of what has been written.
    state
        The guide state after them.
    remaining
        Tokens that may still be written, the end of sequence included.
    """

    row: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    state: int
    remaining: int

    def after(self, token: int, table: Table) -> Site:
        """Return the site one ``token`` further; its state is :data:`DEAD` where that is not live."""
        state = table.advance(self.state, token, self.remaining)
        if table.guide.min_tokens(state) > self.remaining - 1:
            state = DEAD
        return Site(self.row, self.prompt, (*self.tokens, token), state, self.remaining - 1)


@final
@dataclass(frozen=True, eq=False)
class Draft:
    """A chain of tokens that may follow a site, or several: a tree.

    Attributes
    ----------
    tokens
        The chain; empty for none.
    log_r
        ``[K, V]``: the law that each token was drawn from, in single precision at least; ``None`` where a site always gets the same
        draft.
    others
        Chains that may follow in its place, where there is no law.
    """

    tokens: tuple[int, ...]
    log_r: Tensor | None = None
    others: tuple[tuple[int, ...], ...] = ()

    @property
    def chains(self) -> tuple[tuple[int, ...], ...]:
        """All chains."""
        return self.tokens, *self.others


NOTHING = Draft(())
"""No draft."""


def tree(chains: Iterable[tuple[int, ...]]) -> Draft:
    """Return the draft of these chains, each once, but for those that others begin with."""
    given = dict.fromkeys(chains)
    kept = [chain for chain in given if not any(other[: len(chain)] == chain for other in given if other != chain)]
    return Draft(kept[0], others=tuple(kept[1:])) if kept else NOTHING


@final
@dataclass(frozen=True, eq=False)
class DraftRun:
    """What a call offers to a drafter.

    Attributes
    ----------
    table
        What is allowed.
    settings
        What defines ``p``.
    prompts
        The token ids of each prompt.
    trees
        What is known of each prompt; ``None`` where the sampler keeps no trees of bounds.
    encode
        The token ids of a text as the tokenizer writes them, without anything added; ``None`` where no tokenizer is known.
    """

    table: Table
    settings: SamplingSettings
    prompts: Sequence[tuple[int, ...]]
    trees: Sequence[BoundsTree] | None = None
    encode: Callable[[str], Sequence[int]] | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The exact bytes of every token."""
        return self.table.vocabulary


class Drafting(ABC):
    """A drafter at work in one call."""

    @abstractmethod
    def propose(
        self, sites: Sequence[Site], lengths: Sequence[int], streams: Sequence[np.random.Generator]
    ) -> list[Draft]:
        """Return a draft for every site, of at most ``lengths[i]`` tokens; what is random comes from ``streams[i]`` alone.

        The draft of a site depends on the site, its stream and earlier rounds; each token, and whether there is one, on those
        before it. A draft never needs to be right: a bad one costs time and changes no law.
        """


class LawfulDrafting(Drafting):
    """A drafter of this package at work, whose laws are laws already.

    They come out of a softmax with the token that was drawn from them, or out of another :class:`Proposer`; to read ``K V`` numbers
    a second time would cost as much as verification does. A drafter of one's own is a :class:`Drafting`, whose laws are checked.
    """


class ProposedDrafting(LawfulDrafting):
    """A drafter at work that puts together what :class:`Proposer` has checked and cut already."""


class Drafter(ABC):
    """Proposes what probably follows, so that one model call may write several tokens (theory.md, section 7).

    Of a deterministic draft, a sampler evaluates the nodes ahead: it draws its own token from its own law and goes on while it
    finds that among them, so its law cannot change. A sampled draft comes with the laws that it was drawn from, ``r_i``; its token
    is kept with probability ``min(1, q_i / r_i)``, and replaced by a draw from the positive part of ``q_i - r_i`` (Leviathan et
    al., arXiv 2211.17192). That has the law ``q_i`` because the token has the law ``r_i``.

    A drafter of one's own defines ``name``, :meth:`begin`, and :meth:`Drafting.propose` of what that returns; ``sampled = True``
    if its drafts come with laws; and ``width`` if they are trees. Of a tree, the walk follows the chain that it draws by itself.

    Attributes
    ----------
    name
        What messages call it.
    """

    name: ClassVar[str]

    @property
    def sampled(self) -> bool:
        """Whether drafts are drawn, and come with their laws. A deterministic draft serves all walks that stand at its site."""
        return False

    @property
    def width(self) -> int:
        """How many chains a draft has at most, :attr:`Draft.others` included; what is beyond is left out."""
        return 1

    @abstractmethod
    def begin(self, run: DraftRun) -> Drafting:
        """Return the drafter at work in a call."""


def check_drafters(name: str, given: object) -> tuple[Drafter, ...]:
    """Return what was given to a drafter that is made of others.

    Raises
    ------
    UnsupportedError
        There are none, or something else is among them.
    """
    if not isinstance(given, (tuple, list)) or not given:
        raise UnsupportedError(f"{name}({given!r}) was given; expected a tuple of at least one drafter.")
    for drafter in given:
        if not isinstance(drafter, Drafter):
            raise UnsupportedError(f"{name} was given {drafter!r}; expected drafters, such as ForcedDrafter().")
    return tuple(given)
