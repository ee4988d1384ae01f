"""The kernel of verification: its law by integration over the uniforms, and against draws one at a time; after every round of walks
everything is as if nothing had been drafted (theory.md, section 7.3)."""

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outlines_phi import LocalPhi, OneStepPhi, SamplingSettings
from outlines_phi.drafting import Drafter
from outlines_phi.lm import LanguageModel, TransformersModel
from outlines_phi.phi import Prefixes, ProposalPhi
from tests.drafting.runs import table_of
from tests.inner import (
    BLOCK,
    Chains,
    Distributions,
    Exchange,
    Prefetch,
    Proposals,
    Request,
    Rows,
    Stepper,
    Trajectory,
    WalkStep,
    branches,
    distributions,
    verify,
)
from tests.inner import coupling as kernel
from tests.languages import LANGUAGES, sample
from tests.lm import gardens
from tests.precision import NATS
from tests.sampling.drafters import Drawn, Fixed, drawn, fixed, law_of, ranked
from tests.sampling.test_drafted_stepper import ESTIMATORS, same, walks

GRID = 20_000
"""Quantiles that the uniforms run through: the law of what comes out is known to a few in so many."""

SMALL = 4
"""The size of a block where laws are integrated: few tokens are several blocks then."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributions, "BLOCK", SMALL)


def law(size: int, seed: int, scale: float = 2.0) -> Tensor:
    return (scale * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).log_softmax(
        -1
    )


def halves(size: int, seed: int, *, first: bool) -> Tensor:
    """A law on half of the tokens."""
    return law(size, seed).masked_fill((torch.arange(size) < size // 2) ^ first, -math.inf).log_softmax(-1)


def mixed(size: int, share: float) -> Tensor:
    return torch.logaddexp(law(size, 0) + math.log1p(-share), law(size, 1) + math.log(share))


def point(size: int, token: int) -> Tensor:
    return torch.full((size,), -math.inf, dtype=torch.float64).index_fill(0, torch.tensor([token]), 0.0)


PAIRS: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {
    "equal": lambda size: (law(size, 0), law(size, 0)),
    "near": lambda size: (law(size, 0), mixed(size, 1e-3)),
    "far": lambda size: (law(size, 0, 3.0), law(size, 1, 3.0)),
    "nothing in common": lambda size: (halves(size, 0, first=True), halves(size, 1, first=False)),
    "wide draft": lambda size: (halves(size, 0, first=True), law(size, 1)),
    "narrow draft": lambda size: (law(size, 0), halves(size, 1, first=False)),
    "always one": lambda size: (law(size, 0), point(size, size - 2)),
    "always a dead one": lambda size: (halves(size, 0, first=True), point(size, size - 1)),
    "one possible": lambda size: (point(size, 1), law(size, 1)),
}
pairs = pytest.mark.parametrize("name", PAIRS)
sizes = pytest.mark.parametrize("size", [SMALL - 1, SMALL, SMALL + 1, 3 * SMALL + 2])


def run(q: Tensor, token: int, uniforms: Tensor, log_r: Tensor | None = None, shift: float = 0.0) -> Tensor:
    """The first token of rows that were drafted ``token``, one per uniform; any law follows it."""
    laws = Distributions.of(torch.stack([q + shift, law(len(q), 5).to(q.dtype)]))
    n = len(uniforms)
    chains = Chains(
        torch.tensor([[0, 1]]).repeat(n, 1),
        torch.full((n, 1), token),
        torch.ones(n, dtype=torch.long),
        torch.stack([uniforms, torch.rand(n, dtype=torch.float64)], 1),
    )
    proposals = None
    if log_r is not None:
        proposals = Proposals(torch.arange(n), torch.zeros(n, 1, dtype=torch.long), log_r[None])
    verdict = verify(laws, chains, proposals)
    return torch.where(verdict.accepted > 0, token, verdict.tokens)


def output_law(q: Tensor, r: Tensor) -> Tensor:
    """The law of the first token, drafts having the law ``r``."""
    uniforms = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    found = torch.zeros(len(q), dtype=torch.float64)
    for token in torch.nonzero(r.exp() > 1e-6)[:, 0].tolist():
        first = run(q, token, uniforms, r, shift=3.0)
        found += r[token].double().exp() * torch.bincount(first, minlength=len(q)) / GRID
    return found


@pytest.mark.in_turn
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@sizes
@pairs
def test_a_sampled_draft_leaves_the_law(name: str, size: int, dtype: torch.dtype) -> None:
    q, r = (each.to(dtype) for each in PAIRS[name](size))
    assert (output_law(q, r) - q.double().exp()).abs().sum() / 2 < 2e-4 * math.sqrt(size)


WRONG = {
    "accept always": lambda log_q, log_r: torch.ones_like(log_q),
    "accept by q alone": lambda log_q, log_r: log_q.exp(),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("rule", WRONG)
@pytest.mark.parametrize("name", ["far", "wide draft", "narrow draft"])
def test_ignoring_what_drafts_were_drawn_from_fails_the_same_test(
    rule: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keeps(laws: Distributions, chains: Chains, proposals: Proposals) -> Tensor:
        tokens, rows = chains.tokens[proposals.walks], chains.rows[proposals.walks, :-1]
        return WRONG[rule](laws.log_q(rows, tokens), proposals.log_r[proposals.rows, tokens])

    monkeypatch.setattr(kernel, "_keeps", keeps)
    q, r = PAIRS[name](3 * SMALL + 2)
    assert (output_law(q, r) - q.exp()).abs().sum() / 2 > 0.02


@pytest.mark.usefixtures("small_blocks")
@sizes
@pairs
def test_a_deterministic_draft_changes_no_token(name: str, size: int) -> None:
    """A uniform names the token that it names in the whole law, whatever is drafted."""
    q = PAIRS[name](size)[0]
    uniforms = torch.linspace(0, 1 - 2**-53, 999, dtype=torch.float64)
    cumulative = np.cumsum(q.exp().numpy())
    expected = np.minimum(np.searchsorted(cumulative, uniforms.numpy() * cumulative[-1], side="right"), size - 1)
    for token in {0, 1, size // 2, size - 1, int(q.argmax())}:
        first = run(q, token, uniforms, shift=-700.0).numpy()
        assert (first == expected).mean() > 0.99  # but for the rounding of the first and the last quantile
        assert (q[torch.from_numpy(first)] > -math.inf).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 6), st.sampled_from([6, BLOCK + 9]), st.booleans())
def test_a_batch_is_its_rows_one_at_a_time(seed: int, batch: int, longest: int, size: int, sampled: bool) -> None:
    """Ragged drafts, ends of text, sampled and deterministic rows side by side."""
    rng = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(batch * (longest + 1), size, generator=rng, dtype=torch.float64)
    lengths = torch.randint(longest + 1, (batch,), generator=rng)
    rows = torch.arange(batch * (longest + 1)).view(batch, -1)
    ended = torch.rand(batch, generator=rng) < 0.3
    rows[torch.arange(batch), lengths] = torch.where(ended & (lengths > 0), -1, rows[torch.arange(batch), lengths])
    likely = scores.view(batch, longest + 1, size)[:, :-1].argmax(-1)
    tokens = torch.where(
        torch.rand(batch, longest, generator=rng) < 0.6, likely, torch.randint(size, likely.shape, generator=rng)
    )
    uniforms = torch.rand(batch, longest + 1, generator=rng, dtype=torch.float64)
    log_r = (scores + torch.randn(scores.shape, generator=rng)).log_softmax(-1)
    walks = torch.arange(0, batch, 2)
    proposals = Proposals(walks, (torch.arange(batch * longest).view(batch, -1))[walks], log_r) if sampled else None
    verdict = verify(Distributions.of(scores), Chains(rows, tokens, lengths, uniforms), proposals)
    for i in range(batch):
        length = int(lengths[i])
        own = None
        if proposals is not None and i % 2 == 0:
            own = Proposals(torch.tensor([0]), proposals.rows[[i // 2], :length], log_r)
        if own is not None and length == 0:
            own = None
        alone = verify(
            Distributions.of(scores),
            Chains(rows[[i], : length + 1], tokens[[i], :length], lengths[[i]], uniforms[[i], : length + 1]),
            own,
        )
        assert (int(alone.accepted), int(alone.tokens)) == (int(verdict.accepted[i]), int(verdict.tokens[i]))
        assert 0 <= verdict.accepted[i] <= length
        assert (verdict.tokens[i] == -1) == (rows[i, verdict.accepted[i]] == -1)
        if own is None:  # sample and follow
            drawn = Distributions.of(scores).draw(rows[i].clamp_min(0), uniforms[i]).tolist()
            followed = 0
            while followed < length and drawn[followed] == tokens[i, followed]:
                followed += 1
            assert int(verdict.accepted[i]) == followed
            assert rows[i, followed] == -1 or int(verdict.tokens[i]) == drawn[followed]


class TestNumbers:
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("shift", [0.0, -1e4, 500.0])
    def test_log_s_is_that_of_double_precision(self, dtype: torch.dtype, shift: float) -> None:
        """bfloat16 logits make single-precision laws; their sums are exact to what single precision holds."""
        raw = 4 * torch.randn(3, 5 * BLOCK + 3, generator=torch.Generator().manual_seed(0))
        scores = raw.to(dtype).float() if dtype != torch.float64 else raw.double()
        scores = scores + shift
        expected = scores.double().logsumexp(-1)
        assert (Distributions.of(scores).log_s - expected).abs().max() < (1e-12 if dtype == torch.float64 else 2e-6)

    def test_a_draft_tiny_in_both_laws_or_in_its_own_is_kept_as_the_ratio_says(self) -> None:
        """The acceptance is a ratio of logs: neither law need be representable at the draft, in single precision."""
        q, r = law(8, 0).float(), law(8, 1).float()
        q[3], r[3] = -110.0, -110.0
        q, r = q.log_softmax(-1), (r + math.log(4) * (torch.arange(8) == 3)).log_softmax(-1)
        uniforms = float((q[3] - r[3]).exp()) + torch.tensor([-0.01, 0.01], dtype=torch.float64)
        assert (run(q, 3, uniforms, r) == 3).tolist() == [True, False]
        q, r = law(8, 0), law(8, 1)
        r[3] = -math.inf
        assert (run(q, 3, torch.tensor([0.0, 0.999], dtype=torch.float64), r) == 3).all()
        q, r = law(8, 0), law(8, 1)
        q[3] = r[3] = -math.inf
        assert not (run(q, 3, torch.tensor([0.0, 0.999], dtype=torch.float64), r) == 3).any()

    def test_where_nothing_is_left_the_target_is_drawn_from_or_the_row_says_so(self) -> None:
        """A draft law that is larger everywhere, by rounding, leaves no positive part."""
        q = law(8, 0)
        uniforms = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
        found = kernel._draw_rest(
            Distributions.of(q[None]),
            torch.zeros(GRID, dtype=torch.long),
            q[None] + 1e-6,
            torch.zeros(GRID).long(),
            uniforms,
        )
        assert (torch.bincount(found, minlength=8) / GRID - q.exp()).abs().max() < 1e-3
        laws = Distributions.of(torch.cat([torch.full((1, BLOCK + 1), -math.inf), law(BLOCK + 1, 0)[None].float()]))
        assert laws.log_s[0] == -math.inf and laws.log_s[1] == pytest.approx(0.0, abs=1e-6)
        chains = Chains(
            torch.tensor([[0, 1]]), torch.tensor([[4]]), torch.tensor([1]), torch.zeros(1, 2, dtype=torch.float64)
        )
        for proposals in (None, Proposals(torch.tensor([0]), torch.tensor([[0]]), law(BLOCK + 1, 1)[None].float())):
            assert verify(laws, chains, proposals).accepted.tolist() == [0]

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_extreme_quantiles_lead_to_no_token_without_mass(self, dtype: torch.dtype) -> None:
        scores = law(4 * BLOCK, 0).to(dtype)
        scores[::3] = scores[:BLOCK] = scores[-BLOCK:] = -math.inf
        laws = Distributions.of(scores[None])
        uniforms = torch.cat([torch.zeros(1), 1 - 2.0 ** -torch.arange(20, 54)]).double()
        uniforms = torch.cat([uniforms, laws.masses[0], laws.masses[0].nextafter(torch.tensor(0.0).double())]).clamp(
            max=1 - 2**-53
        )
        assert (scores[laws.draw(torch.zeros(len(uniforms), dtype=torch.long), uniforms)] > -math.inf).all()


def test_nothing_is_read_back_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No synchronisation per token: the kernel never asks a tensor for a number."""
    q, r = law(BLOCK + 1, 0), law(BLOCK + 1, 1)

    def refuse(*_: object) -> None:
        raise AssertionError("a tensor was read")

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "nonzero"):
            patch.setattr(Tensor, name, refuse)
        run(q, 3, torch.rand(6, dtype=torch.float64), r)
        run(q, 3, torch.rand(6, dtype=torch.float64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_an_accelerator_agrees_without_synchronising() -> None:
    q, r = law(3 * BLOCK + 44, 0).float(), law(3 * BLOCK + 44, 1).float()
    uniforms = torch.rand(500, dtype=torch.float64)
    laws = Distributions.of(torch.stack([q, q]))
    n = len(uniforms)
    chains = Chains(
        torch.tensor([[0, 1]]).repeat(n, 1), torch.full((n, 1), 3), torch.ones(n).long(), uniforms[:, None].repeat(1, 2)
    )
    proposals = Proposals(torch.arange(n), torch.zeros(n, 1).long(), r[None])
    expected = verify(laws, chains, proposals)
    there = [each.cuda() for each in (laws.scores, *chains, *proposals)]
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = verify(Distributions.of(there[0]), Chains(*there[1:5]), Proposals(*there[5:]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert ((found.accepted.cpu() == expected.accepted) & (found.tokens.cpu() == expected.tokens)).float().mean() > 0.99


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
        assert walk.finished or (stepper.branches.reach([walk.at]).whole()[0].float() - law.float()).abs().max() <= near


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


@pytest.mark.in_turn
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
