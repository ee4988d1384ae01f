"""Thoughts, and then answers given them: ``scope="answer"`` of thinking (theory.md, section 6.5)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import takewhile
from typing import final

from ..errors import BudgetError, InterruptedDraws, UnsupportedError
from ..guides.guide import DONE
from ..guides.table import Table
from ..phi.estimator import LocalPhi
from .ancestral import AncestralSampler
from .draws import Draw, DrawCounts, Draws, Guarantee, Thought
from .rejection.auto_sampler import AutoSampler
from .sampler import Prefetch, Request, Sampler, Stream


@final
@dataclass(frozen=True)
class ThinkingSampler(Sampler):
    """Draws a thought ``x`` freely, then its answer ``z`` by the sampler ``answer``, whose prompts end with the thoughts.

    ``q(x, z) = prod_t p(x_t | x_<t) 1[allowed] / S_t * mu*(z | x)`` where the answers are exact. The weight of a thought is the
    product of its ``S_t``: with exact answers ``E[w f] = sum_x p(x) mu*(f | x)`` over the finished thoughts. A weighted answer
    multiplies its own weight, and ``E[w f] = Phi mu*(f)`` of the whole.
    """

    answer: Sampler
    draft: Prefetch | None = None  # The drafts of the thoughts

    def sample(self, request: Request) -> list[Draws]:
        """See :meth:`Sampler.sample`; errors as those of the sampler of the answers, with what was drawn."""
        thinker, alone = self.thoughts(request)
        thoughts = thinker.sample(alone)
        owners = [(row, draw.token_ids) for row, draws in enumerate(thoughts) for draw in draws]
        ended = [self.ends(request, *owner) for owner in owners]
        waiting = [owner for owner, end in zip(owners, ended, strict=True) if not end]
        joined = partial(_joined, request, thoughts, ended)
        if not waiting:
            return joined([])
        try:
            return joined(self.answer.sample(self.answers(request, waiting)))
        except (BudgetError, InterruptedDraws) as error:
            error.draws = joined(error.draws)
            if isinstance(error, BudgetError):
                named = lambda found: f"Prompt {waiting[int(found[1])][0]}"  # noqa: E731
                error.args = tuple(re.sub(r"Prompt (\d+)", named, said) for said in error.args)
            raise

    @staticmethod
    def ends(request: Request, row: int, tokens: Sequence[int]) -> bool:
        """Return True if a thought has come to the end of its answer, by a token that holds a stop string."""
        guide = request.table.guide
        return guide.ends_by_tokens and reduce(guide.advance, tokens, request.starts[row]) == DONE

    def thoughts(self, request: Request) -> tuple[AncestralSampler, Request]:
        """Return the sampler of the thoughts of a request, and its request; :class:`UnsupportedError` for one with a constraint."""
        if request.constraint is not None:
            raise UnsupportedError(
                f"Write the rule into the type of the answer, or give Thinking(..., scope='joint'), whose texts a constraint sees "
                f"whole. {request.constraint} was given beside thoughts that are drawn freely."
            )
        return AncestralSampler(LocalPhi(), draft=self.draft), replace(request, table=request.table.thoughts)

    def answers(self, request: Request, thoughts: Sequence[tuple[int, tuple[int, ...]]]) -> Request:
        """Return the request of an answer to each of the ``thoughts``, each with the number of its prompt."""
        numbers = Counter[int]()
        seeds = []
        for row, _ in thoughts:
            seeds.append(int(request.stream(row, Stream.ANSWER + numbers[row]).integers(2**62)))
            numbers[row] += 1
        return replace(
            request,
            prompts=[(*request.prompts[row], *ids) for row, ids in thoughts],
            written=[ids for _, ids in thoughts],
            settings=replace(request.settings, seed=tuple(seeds)),
            n=1,
            # A pick by weight would have a weight to the whole, and exact answers of the same call one to their thoughts.
            weighted=request.weighted and not isinstance(self.answer, AutoSampler),
        )


def _joined(
    request: Request, thoughts: Sequence[Draws], ended: Sequence[bool], answers: Sequence[Draws]
) -> list[Draws]:
    """Return the draws of every prompt: those of its thoughts that have one of the ``answers``, which come in their order, or have
    ``ended`` with it.
    """
    empty = Draw.of(request.table.guide, (), log_p=0.0, log_w=0.0, guarantee=Guarantee.EXACT)
    known, drawn, results = Draws(items=(empty,), budget=0), iter(answers), []
    waiting = takewhile(lambda one: one is not None, (known if end else next(drawn, None) for end in ended))
    for row, found in enumerate(thoughts):
        own = [(thought, answer) for thought, answer in zip(found, waiting, strict=False) if answer is not None]
        results.append(
            Draws(
                items=tuple(_whole(request.table, thought, one) for thought, answer in own for one in answer),
                counts=_counts(found.counts, [answer.counts for _, answer in own]),
                budget=request.budgets[row],
                failures=found.failures + sum(answer.failures for _, answer in own),
                rejections=dict(sum((Counter(answer.rejections) for _, answer in own), Counter[str]())),
            )
        )
    return results


def _whole(table: Table, thought: Draw, answer: Draw) -> Draw:
    weighted = answer.guarantee is Guarantee.WEIGHTED
    known = {"log_p": thought.log_p, "log_w": thought.log_w, "answer": answer.guarantee}
    return replace(
        Draw.of(table.guide, (*thought.token_ids, *answer.token_ids), log_p=0.0, log_w=0.0, guarantee=answer.guarantee),
        log_p=thought.log_p + answer.log_p,
        log_w=thought.log_w + (answer.log_w if weighted else 0.0),
        guarantee=answer.guarantee if weighted else min(Guarantee.FIELDWISE, answer.guarantee),
        candidates=answer.candidates,
        ess=answer.ess,
        blocks=answer.blocks,
        picked=answer.picked,
        tokens=thought.tokens + answer.tokens,
        thought=Thought.of(table.guide, thought.token_ids, **known),
    )


def _counts(thought: DrawCounts, answers: Sequence[DrawCounts]) -> DrawCounts:
    """Return the counts of the draws of a prompt: the calls and tokens of the batch, twice, and its own attempts and drafts."""
    sums = {}
    for name, own in vars(thought).items():
        counted = [getattr(each, name) for each in answers]
        shared, alone = name in ("calls", "prompt_tokens", "tokens"), name in ("attempts", "accepted")
        sums[name] = (0 if alone else own) + (max(counted, default=0) if shared else sum(counted))
    return DrawCounts(**sums)
