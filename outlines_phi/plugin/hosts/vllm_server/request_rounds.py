"""The draws of one prompt by a server: how many it is asked for at a time, and what its answers come to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from ....errors import (
    COST,
    BudgetError,
    EmptyLanguageError,
    ModelError,
    OutlinesPhiError,
    UnsupportedError,
    too_small,
)
from ....lm.watch import check_interruption, current, limited
from ....sampling.draw import NO_DISTANCE, Draw, Guarantee
from ....sampling.draws import DrawCounts, Draws, middle
from ....sampling.phi_options import ExactPhi
from ....sampling.rejection.attempts import LEAST_HOPE
from .answer import SHOWN, Answer, read
from .engine_walks import WalkEnd
from .served_call import ARGUMENT, ServedCall

MOST = 128  # Draws in one request, at most

ABSENT = (
    "Start the server by outlines-phi serve MODEL, in an environment with this version of outlines_phi. It was asked for draws "
    "under phi=, and did not answer as its processor does"
)


@final
@dataclass
class RequestRounds:
    """The requests of one prompt. ``send`` makes one of them: ``client.chat.completions.create``, with the prompt."""

    send: Callable[..., Any]
    call: ServedCall
    counts: DrawCounts = field(default_factory=DrawCounts)
    budget: int = 0

    def exact(self, phi: ExactPhi, n: int) -> Draws:
        """Return ``n`` draws by rejection (theory.md, section 5.3).

        What was launched together is finished, and read in launch order. Raises :class:`BudgetError`: the effort ran out.
        """
        accepted: list[Answer] = []
        seen = launched = successes = grown = 0
        low, high, shortest = -math.inf, 0.0, 1
        effort = phi.effort
        with limited(effort.seconds):
            while len(accepted) < n:
                missing, spent = n - len(accepted), self.counts.tokens
                grown += phi.width if 2 * (launched - successes) <= launched else 0
                room = max(phi.width, min(grown, missing))
                hope = max(LEAST_HOPE, successes / max(1, launched), math.exp(low - high))
                left = effort.attempts * n - launched, math.ceil((effort.tokens * n - spent) / shortest)
                # Which attempts share a step is a matter of time. Of a seed that says the texts there is one after the other.
                many = min(1 if self.call.alone else room, math.ceil(missing / hope), MOST, *left)
                if many <= 0 or current().over:
                    self._refuse(self._draws(accepted, seen, low, high), n)
                answers = self._ask(many, launched)
                launched += many
                for answer in answers:
                    low, high = max(low, answer.account.low), min(high, answer.account.high)
                    shortest = max(1, min(shortest, len(answer.tokens)))
                    successes += answer.outcome is WalkEnd.MEMBER
                    if len(accepted) < n:
                        seen += 1
                        accepted += [answer] * (answer.outcome is WalkEnd.MEMBER)
        return self._draws(accepted, seen, low, high)

    def masked(self, n: int) -> Draws:
        """Return ``n`` draws of plain masking, with their weights."""
        answers: list[Answer] = []
        while len(answers) < n:
            answers += self._ask(min(MOST, n - len(answers)), len(answers))
        items = tuple(
            _draw(answer, answer.account.low, Guarantee.WEIGHTED)
            for answer in answers
            if answer.outcome is WalkEnd.MEMBER
        )
        counts = replace(self.counts, attempts=n, accepted=len(items))
        return Draws(items=items, counts=counts, budget=self.budget, failures=n - len(items))

    def probe(self) -> None:
        """Raise :class:`UnsupportedError` where there is no processor behind the server."""
        response = self._response(1, 0, max_tokens=1)
        answer = read(response.choices[0])
        if answer is None or answer.outcome is not WalkEnd.READY:
            raise UnsupportedError(f"{ABSENT}.")

    def _ask(self, many: int, number: int) -> list[Answer]:
        """Return the answers to one request for draws ``number`` and on, in launch order."""
        check_interruption()
        response = self._response(many, number)
        answers = [self._checked(choice) for choice in response.choices]
        tokens = sum(len(answer.tokens) + (answer.outcome is not WalkEnd.MEMBER) for answer in answers)
        self.counts = replace(
            self.counts,
            calls=self.counts.calls + max((len(answer.tokens) for answer in answers), default=0),
            prompt_tokens=self.counts.prompt_tokens + many * response.usage.prompt_tokens,
            tokens=self.counts.tokens + tokens,
        )
        self.budget = answers[0].budget
        return sorted(answers, key=lambda answer: answer.launch)

    def _response(self, many: int, number: int, **limits: Any) -> Any:
        try:
            return self.send(
                n=many,
                seed=number,
                logprobs=True,
                top_logprobs=SHOWN,
                temperature=1.0,
                top_p=1.0,
                presence_penalty=0.0,
                frequency_penalty=0.0,
                extra_body={
                    "top_k": 0,
                    "min_p": 0.0,
                    "repetition_penalty": 1.0,
                    "return_tokens_as_token_ids": True,
                    "vllm_xargs": {ARGUMENT: self.call.text()},
                },
                **limits,
            )
        except Exception as error:
            if getattr(error, "status_code", None) != 400 or isinstance(error, OutlinesPhiError):
                raise
            kind = ModelError if "context length" in str(error) else UnsupportedError
            raise kind(f"The server does not take the request: {_said(error)}") from error

    def _checked(self, choice: Any) -> Answer:
        """Return the answer of a choice, if it is a draw or the failure of one."""
        answer, settings = read(choice), self.call.settings
        if answer is None:
            raise ModelError(
                f"Look into the log of the server. It ended a text by {choice.finish_reason!r} where the processor of outlines_phi "
                "had not: a limit of its own, or another processor."
            )
        match answer.outcome:
            case WalkEnd.EMPTY:
                raise EmptyLanguageError(
                    "Give another output type, or ban less. With the tokens of the server's model no text of it can be written."
                )
            case WalkEnd.TOO_SHORT if settings.max_new_tokens is not None and settings.max_new_tokens < answer.budget:
                raise too_small(settings.max_new_tokens, answer.budget)
            case WalkEnd.TOO_SHORT:
                raise ModelError(
                    "Shorten the prompt, or start the server with a larger --max-model-len: the shortest output needs "
                    f"{answer.budget} tokens, which the context does not leave."
                )
            case WalkEnd.NOWHERE if self.call.road == "exact":
                cut = settings.truncation
                raise EmptyLanguageError(
                    "Loosen the truncation, ban less, or check that the model gives the format any probability at all. No member "
                    f"of the language has any{cut and f' under {cut}'}."
                )
            case WalkEnd.BROKEN | WalkEnd.READY | WalkEnd.ENDED:
                raise ModelError(
                    "Look into the log of the server for the error of this request. Its processor could not go on with it; other "
                    "requests are not concerned."
                )
        if answer.text is None:
            raise UnsupportedError(
                "Start the server without --reasoning-parser and --tool-call-parser. It took the text of the draw out of the "
                "message."
            )
        return answer

    def _draws(self, accepted: Sequence[Answer], seen: int, low: float, high: float) -> Draws:
        log_w = middle((low, high))
        return Draws(
            items=tuple(_draw(answer, log_w, Guarantee.EXACT) for answer in accepted),
            counts=replace(self.counts, attempts=seen, accepted=len(accepted)),
            budget=self.budget,
            log_z_bounds=(low, high),
            certificate=NO_DISTANCE,
        )

    def _refuse(self, made: Draws, n: int) -> None:
        low, high = made.log_z_bounds
        raise BudgetError.of(
            "Draw with weights (phi='local'), give a larger ExactPhi(effort=Effort(...)), or move the prompt closer to the format",
            f"{current().end_of('the effort ran out')} with {len(made)} of {n} exact draws (log Phi between {low:.4g} and "
            f"{high:.4g})",
            f"each of the error's .draws is exact, and {COST}" if made else "",
            draws=[made],
            log_z_bounds=made.log_z_bounds,
        )


def _draw(answer: Answer, log_w: float, guarantee: Guarantee) -> Draw:
    assert answer.text is not None
    return Draw(text=answer.text, token_ids=answer.tokens, log_p=answer.account.log_p, log_w=log_w, guarantee=guarantee)


def _said(error: Exception) -> str:
    """Return what a server says of a request that it refuses."""
    body = getattr(error, "body", None)
    return str(body.get("message") or error) if isinstance(body, dict) else str(error)
