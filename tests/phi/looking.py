"""An estimator of an application's own that asks the model about the next tokens, by the run's trees."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from outlines_phi.guides import Table
from outlines_phi.guides.table import Moves
from outlines_phi.phi import Estimate, Prefixes, ProposalPhi, SampledRun
from tests.inner import DONE, Branches, Need


def forest_of(branches: Branches) -> Any:
    """Return the tree of sequences in which the model holds the prefixes of a call."""
    return branches.trees._forest  # type: ignore[attr-defined]


@dataclass(frozen=True)
class LookingPhi(ProposalPhi):
    """``h(yv) = sum_w p(w | yv) 1[w live after yv]`` for the likeliest ``v``, held above ``floor``; ``floor`` for the others."""

    most: int = 2
    floor: float = 0.1
    name: ClassVar[str] = "looking"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits", "model"})

    def begin(self, run: SampledRun) -> Estimate:
        return LookingEstimate(self, run)


def looked_at(table: Table, state: int, remaining: int, law: Tensor, most: int) -> tuple[Moves, list[int]]:
    """The live tokens, and the places among them of those that are looked at."""
    moves = table.moves(state, remaining)
    inner = [i for i, v in enumerate(moves.tokens.tolist()) if moves.targets[i] != DONE and law[v] > -math.inf]
    return moves, sorted(inner, key=lambda i: -float(law[moves.tokens[i]]))[:most]


@dataclass(frozen=True)
class LookingEstimate(Estimate):
    phi: LookingPhi
    run: SampledRun

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        table, found, log_p = self.run.table, [], log_p.clone()
        for law, state, left in zip(log_p, prefixes.states, prefixes.remaining, strict=True):
            found.append(looked_at(table, state, left, law, self.phi.most))
        pairs = [(i, place) for i, (_, places) in enumerate(found) for place in places]
        tokens = [int(found[i][0].tokens[place]) for i, place in pairs]
        log_h = [
            torch.where(torch.from_numpy(moves.targets) == DONE, 0.0, math.log(self.phi.floor)) for moves, _ in found
        ]
        if pairs:
            nodes = [(prefixes.nodes[i], token) for (i, _), token in zip(pairs, tokens, strict=True)]
            for (i, place), token, raw in zip(pairs, tokens, self.run.branches.evaluate(nodes).whole(), strict=True):
                law = self.run.log_p(raw[None], [(prefixes.rows[i], (*prefixes.tokens[i], token))])[0]
                law = law + table.bias(int(found[i][0].targets[place]), prefixes.remaining[i] - 1, law.device)
                log_h[i][place] = max(math.log(self.phi.floor), float(law.logsumexp(-1)))
        for scores, (moves, _), h in zip(log_p, found, log_h, strict=True):
            live = torch.from_numpy(moves.tokens).to(scores.device)
            scores.copy_(torch.full_like(scores, -math.inf).index_copy_(0, live, scores[live] + h.to(scores)))
        return log_p
