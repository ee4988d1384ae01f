"""Attempts at exact draws, then the candidates of weighted ones, on one tree (theory.md, section 5.10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from ...numerics.streams import Stream
from ...phi.estimators.auto import AutoPhi
from ...phi.tree.tree import Node
from .adaptive_proposal import AdaptiveTrajectories, Candidate, doubling
from .attempts import Attempts

TRIAL = 8
"""Trial walks of the proposal: they show how long candidates walk, and the tree how texts end."""


@final
class TwoStages:
    """The walks of one prompt: attempts for as many model calls as weighted draws would take, then candidates for what is missing.

    Until an attempt has succeeded, that is as many as a single weighted draw would take: where none does, many draws wait no longer
    than one. Weighted draws alone would come in rounds, each as many calls long as its longest walk has tokens. What that is, is
    learned from the walks so far: attempts, and, from half of it on, some trial walks of the candidates' proposal, which are used
    for nothing else. It is looked at before every launch. Where it is used up the second stage begins for good, in the same calls
    as the attempts that are still under way. If these draw what was missing, the candidates are dropped, all of them.

    Candidates and attempts may walk side by side because neither can tell the other apart. By the coin, an attempt succeeds with
    the probability that it had when the candidates began, whatever these expand; and the candidates keep the values of their
    round, whatever it expands. So that a draw is weighted says nothing of its candidates. It would if attempts were still
    launched: the longer the candidates walk, the more attempts there would be, and those of the weighted draws would be the short
    ones.

    Parameters
    ----------
    attempts
        Those of the first stage; nothing else may have launched any.
    wanted
        Draws to make.
    phi
        The options.
    stream
        The random stream of each candidate, by its number.
    max_bytes
        Memory that the tree may take, give or take one round.
    """

    def __init__(
        self,
        attempts: Attempts,
        wanted: int,
        phi: AutoPhi,
        stream: Callable[[int], np.random.Generator],
        *,
        max_bytes: int,
    ) -> None:
        self.tree, self.attempts = attempts.tree, attempts
        self._wanted, self._phi, self._stream, self._max_bytes = wanted, phi, stream, max_bytes
        self._calls = 0
        self._longest = 1  # the end of sequence; open formats ask for no token at all
        self._trial: AdaptiveTrajectories | None = None
        self._candidates: AdaptiveTrajectories | None = None

    @property
    def finished(self) -> tuple[int, int]:
        """How many draws there are, with those whose candidates have ended, and how many attempts and candidates have ended."""
        accepted, read = len(self.attempts.accepted), self.attempts.read
        if self._candidates is None:
            return accepted, read
        ended, total = self._candidates.finished, self._candidates.total
        return accepted + (self._wanted - accepted) * ended // total, read + ended

    @property
    def trajectories(self) -> Sequence[Candidate]:
        """The candidates of the missing draws, all finished; none where nothing is missing."""
        return () if self.attempts.satisfied or self._candidates is None else self._candidates.trajectories

    def advance(self) -> list[Node]:
        """Take every walk as far as it goes without the model and return the nodes they wait for, none at the end."""
        if self._candidates is None:
            worth = self._worth()
            if self._calls >= worth:
                self.attempts.stop()
            elif self._trial is None and self._calls >= worth / 2:
                trial = self._trial = self._walks([TRIAL], lambda number: self._stream(Stream.TRIAL + number))
                self.attempts.others = lambda: trial.waiting
        waiting = self.attempts.advance()
        if self.attempts.satisfied or (self._candidates is None and self.attempts.impossible):
            return []
        if self.attempts.stopped or not waiting:
            waiting += self._weighted().advance()
        elif self._trial is not None:
            waiting += self._trial.advance()
            self._longest = max([self._longest, *map(self.tree.fewest_tokens, self._trial.waiting)])
        self._calls += 1
        return waiting

    def _worth(self) -> float:
        """Return the calls that exact draws may take: those of one weighted draw until one is accepted, then those of all.

        A call with more than ``2 width`` walks counts as several, as attempts have ``width``; candidates share about half of
        their prefixes.
        """
        rounds = doubling(self._count(self._wanted if self.attempts.accepted else 1))
        calls = sum(max(1.0, size / (2 * self._phi.width)) for size in rounds)
        return self._phi.share * calls * max(self._longest, self.attempts.longest)

    def _weighted(self) -> AdaptiveTrajectories:
        if self._candidates is None:
            self.attempts.stop()
            missing = self._wanted - len(self.attempts.accepted)
            total = self._count(missing)
            # One draw is soonest made in one round; that is what the first stage has explored the tree for.
            rounds = [total] if missing == 1 and self._phi.share > 0 else doubling(total)
            self._candidates = self._walks(rounds, self._stream)
        return self._candidates

    def _walks(self, rounds: Sequence[int], stream: Callable[[int], np.random.Generator]) -> AdaptiveTrajectories:
        return AdaptiveTrajectories(
            self.tree, rounds, stream, max_bytes=self._max_bytes, others=lambda: self.attempts.waiting
        )

    def _count(self, missing: int) -> int:
        """Return how many candidates that many missing draws have together."""
        return missing * self._phi.candidates * (2 if missing == 1 else 1)
