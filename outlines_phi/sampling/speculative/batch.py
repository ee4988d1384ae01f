"""What one round of drafted walks evaluates: where each walk stands, and the chains of drafts below."""

from __future__ import annotations

from typing import NamedTuple, final

from ...drafting.drafter import Site
from ...guides.guide import DEAD, DONE
from ...guides.table import Table
from ...phi.estimator import Prefixes

PROMPT = -1
"""Stands for the token of a prompt, which has none."""


class Chain(NamedTuple):
    """The draft of one walk.

    Attributes
    ----------
    laws
        The law of the walk's next token, and that after each drafted one; -1 after one that ends the text, or cannot be written.
    tokens
        The drafted tokens.
    """

    laws: tuple[int, ...]
    tokens: tuple[int, ...]


@final
class Growth:
    """Distinct prefixes in the order in which their laws are numbered, each one token below an earlier one or a known node.

    Walks that stand on one prefix share its law, and those that were drafted the same share the chain.

    Parameters
    ----------
    table
        What is allowed.

    Attributes
    ----------
    roots
        The nodes of the prompts among the prefixes; these stand before all others.
    parents, tokens
        The other prefixes: a known node, or ``~i`` for the ``i``-th of them, and the token after it.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self.roots: list[int] = []
        self.parents: list[int] = []
        self.tokens: list[int] = []
        self._sites: list[Site] = []
        self._drafted: list[bool] = []
        self._number: dict[tuple[int, int], int] = {}
        self._chains: dict[tuple[int, tuple[int, ...]], Chain] = {}

    def stand(self, node: int, site: Site) -> int:
        """Return the number of the law at ``site``, whose last token was drawn at ``node``."""
        return self._add(node, site.tokens[-1] if site.tokens else PROMPT, site, drafted=False)

    def chain(self, law: int, tokens: tuple[int, ...]) -> Chain:
        """Return the chain of ``tokens`` after the prefix that ``law`` is the number of."""
        key = law, tokens
        if key not in self._chains:
            site, laws = self._sites[law], [law]
            for token in tokens:
                site = site.after(token, self._table)
                if site.state in (DEAD, DONE):
                    laws.append(-1)
                    break
                above = laws[-1] - len(self.roots)
                laws.append(self._add(~above if above >= 0 else self.roots[laws[-1]], token, site, drafted=True))
            self._chains[key] = Chain(tuple(laws), tokens[: len(laws) - 1])
        return self._chains[key]

    def prefixes(self, nodes: list[int]) -> Prefixes:
        """Return all prefixes; ``nodes`` are where those after :attr:`roots` are now."""
        return Prefixes(
            rows=[site.row for site in self._sites],
            nodes=[*self.roots, *nodes],
            states=[site.state for site in self._sites],
            remaining=[site.remaining for site in self._sites],
            tokens=[site.tokens for site in self._sites],
            drafted=self._drafted,
        )

    def _add(self, parent: int, token: int, site: Site, *, drafted: bool) -> int:
        key = parent, token
        if key in self._number:
            return self._number[key]
        if token == PROMPT:
            self.roots.append(parent)
        else:
            self.parents.append(parent)
            self.tokens.append(token)
        self._number[key] = len(self._sites)
        self._sites.append(site)
        self._drafted.append(drafted)
        return self._number[key]
