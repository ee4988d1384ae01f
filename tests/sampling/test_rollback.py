"""After every round of drafted walks, everything is as if nothing had been drafted (theory.md, section 7.3)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outlines_phi import LocalPhi, OneStepPhi, SamplingSettings
from outlines_phi.drafting import Drafter
from outlines_phi.lm import LanguageModel, TransformersModel
from outlines_phi.phi import Prefixes, ProposalPhi
from outlines_phi.sampling.stepper import Stepper, Trajectory, WalkStep
from tests.drafting.runs import table_of
from tests.inner import Exchange, Prefetch, Request, Rows, branches
from tests.languages import LANGUAGES, sample
from tests.lm import gardens
from tests.precision import NATS
from tests.sampling.drafters import Drawn, Fixed, drawn, fixed, law_of, ranked
from tests.sampling.test_drafted_stepper import ESTIMATORS, same, walks


def replayed(request: Request, phi: ProposalPhi, walk: Trajectory) -> tuple[Trajectory, Tensor]:
    """Write the tokens of a walk one at a time, in a run of its own; return its account, and the logits where it stands."""
    run = Stepper(request, phi)
    fresh = run.launch(1)[walk.row]
    law = run.branches.plant().take([walk.row])
    for i, token in enumerate(walk.tokens):
        here = Prefixes([walk.row], [fresh.at.node], [fresh.state], [fresh.remaining], [list(fresh.tokens)])
        log_p, scores = run.distributions(here, Exchange(Rows.all(law)))(law)
        gain = scores[0].double().logsumexp(-1) - scores[0, token].double() + log_p[0, token].double()
        run.take(fresh, token, float(log_p[0, token]), float(gain))
        if i + 1 < len(walk.tokens) or not fresh.finished:
            law = run.branches.reach([fresh.at]).whole()
    return fresh, law[0]


def check_rollback(request: Request, phi: ProposalPhi, drafter: Drafter, length: int, rounds: int, near: float) -> None:
    """After any round state, account, text and next law are those of a fresh run over the accepted tokens."""
    stepper = Stepper(request, phi, draft=Prefetch(drafter, length))
    walks = stepper.launch(request.n)
    stepper.advance(walks)
    for _ in range(rounds):
        going = [walk for walk in walks if not walk.finished]
        if not going:
            break
        stepper.advance(going)
        going = [walk for walk in walks if not walk.finished]
        stepper.branches.tidy([walk.at.held for walk in going], sum(len(walk.tokens) for walk in going))
    for walk in walks:
        fresh, law = replayed(request, phi, walk)
        assert (fresh.state, fresh.remaining, fresh.tokens) == (walk.state, walk.remaining, walk.tokens)
        assert walk.log_p == pytest.approx(fresh.log_p, abs=near)
        assert walk.log_w == pytest.approx(fresh.log_w, abs=near)
        if not walk.finished:
            found = stepper.branches.reach([walk.at]).whole()[0]
            assert (found.float() - law.float()).abs().max() <= near


class TestRollback:
    @given(
        seed=st.integers(0, 2**20),
        length=st.integers(1, 6),
        rounds=st.integers(0, 5),
        phi=st.sampled_from(["local", "onestep", "looking"]),
        sampled=st.booleans(),
    )
    @settings(max_examples=40, deadline=None)
    def test_rounds_leave_what_a_fresh_run_has(
        self, seed: int, length: int, rounds: int, phi: str, sampled: bool
    ) -> None:
        language = LANGUAGES[seed % len(LANGUAGES)]
        drafters = list((drawn if sampled else fixed)(language).values())
        drafter = drafters[seed % len(drafters)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(branches, "WASTE", seed % 3)
            check_rollback(language.request(3, seed, rows=2), ESTIMATORS[phi](), drafter, length, rounds, 1e-9)

    @pytest.mark.parametrize("sound", [True, False], ids=["sound", "on the rejected draft"])
    def test_a_walk_that_stays_on_its_rejected_draft_fails(self, sound: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        write = Stepper._write

        def stays(self: Stepper, step: WalkStep, accounts: Iterator[Any]) -> int:
            *_, last = step.walks[0].at.along(step.draft.tokens)
            kept = write(self, step, accounts)
            for walk in step.walks:
                walk.at = last.child(walk.tokens[-1])
            return kept

        if not sound:
            monkeypatch.setattr(Stepper, "_write", stays)
        request = LANGUAGES[0].request(9, 1, rows=2)
        with nullcontext() if sound else pytest.raises(AssertionError):
            check_rollback(request, LocalPhi(), Fixed(ranked(LANGUAGES[0].lm, -1)), 4, 0, 1e-9)


@final
@dataclass(frozen=True)
class Read:
    """The logits of a model, one text at a time, for drafters."""

    lm: LanguageModel
    known: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)

    def logits(self, sequence: tuple[int, ...]) -> np.ndarray:
        if sequence not in self.known:
            self.known[sequence] = self.lm.trees([sequence]).roots().logits[0].float().numpy()
        return self.known[sequence]


@pytest.mark.parametrize("name", ["qwen3", "mistral", "gemma3"])
@given(seed=st.integers(0, 2**10), length=st.integers(1, 5), rounds=st.integers(0, 5), sampled=st.booleans())
@settings(max_examples=6, deadline=None)
def test_packed_trees_and_layers_that_see_a_window_alone(
    name: str, seed: int, length: int, rounds: int, sampled: bool
) -> None:
    """Prompt and text are longer than the window; what was rejected is not in it. Drafts of a rule leave every draw as it is."""
    lm = TransformersModel(gardens.build(name), gardens.VOCABULARY)
    assert lm.road == "packed"
    request = Request(
        lm=lm,
        table=table_of("[0-9]{2,12}(:[0-9]{1,4})?", gardens.VOCABULARY),
        prompts=[(5, 9, 20, 33, 7, 11, 40, 8), (12, 50, 3)],
        settings=SamplingSettings(max_new_tokens=18, seed=seed),
        n=2,
    )
    read = Read(lm, {})
    drafter = Drawn(law_of(read, 1.5, masked=True)) if sampled else Fixed(ranked(read, seed % 3 - 1))  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches, "WASTE", seed % 4)
        check_rollback(request, LocalPhi(), drafter, length, rounds, NATS)
        if not sampled:
            same(walks(OneStepPhi(), drafter, request, length), sample(OneStepPhi(), request), NATS)
