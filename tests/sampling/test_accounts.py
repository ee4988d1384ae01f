"""The accounts of tokens against enumeration, over the one table of samplers: the sums of a draw made visible. To ask for them
changes no draw and asks the model nothing."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from outlines_phi import (
    AutoPhi,
    Draw,
    Draws,
    ExactPhi,
    FieldsPhi,
    Guarantee,
    LocalPhi,
    LookaheadPhi,
    OneStepPhi,
    TextConstraint,
)
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import (
    AncestralSampler,
    AutoSampler,
    ExactSampler,
    LookaheadSampler,
    Request,
    Sampler,
    TokenAccount,
    TreeStore,
    ahead,
    draw_ahead,
)
from tests.languages import AND_OPEN, LISTED, Ids, ids
from tests.sampling.banning import Banned
from tests.sampling.test_laws import OTHERS, SAMPLERS

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

TOP, N = 4, 12
NEAR = 1e-6

Made = Callable[[], Sampler]
BANNED = Banned((b"ab", b"cc"), budget=5, seed=4)
BLOCKS: dict[str, Made] = {
    "fields": lambda: LookaheadSampler(FieldsPhi()),
    "fields, weighted": lambda: LookaheadSampler(FieldsPhi(weights=True)),
    "fields, picked": lambda: LookaheadSampler(FieldsPhi(attempts=1, tokens=1)),
}
WINDOWS: dict[str, Made] = {
    "look-ahead": lambda: LookaheadSampler(LookaheadPhi()),
    "look-ahead, weighted": lambda: LookaheadSampler(LookaheadPhi(weights=True)),
    "look-ahead, early": lambda: LookaheadSampler(LookaheadPhi(release="early")),
}
ROWS: list[tuple[str, Made, Any]] = [
    *((name, made, language) for name, made in (SAMPLERS | OTHERS).items() for language in (AND_OPEN[0], AND_OPEN[-1])),
    *((name, made, LISTED) for name, made in BLOCKS.items()),
    *((name, made, BANNED) for name, made in WINDOWS.items()),
]
"""Every sampler, by name, with a language of its kind."""

rows = pytest.mark.parametrize(("name", "made", "language"), ROWS, ids=[f"{row[0]}: {row[2]}" for row in ROWS])


AHEAD = [row for row in ROWS if row[0] in ("rejection", "one at a time", "exact, drawn drafts")]
"""Samplers whose nodes may keep tokens drawn ahead in place of their whole distribution."""


@dataclass(frozen=True)
class Enumerated:
    """A request by enumeration: ``log p``, the mask and ``Phi`` after every prefix."""

    request: Request

    @cached_property
    def members(self) -> dict[Ids, float]:
        request = self.request
        found = enumerate_language(
            request.lm, request.table, request.prompts[0], request.settings, request.budgets[0], start=request.starts[0]
        )
        return found.log_p

    def log_p(self, prefix: Ids) -> np.ndarray:
        context = (*self.request.prompts[0], *prefix)
        logits = torch.from_numpy(self.request.lm.logits(context))[None]  # type: ignore[attr-defined]
        return self.request.settings.log_p(logits, self.request.table.vocabulary, [context])[0].numpy()

    def live(self, prefix: Ids) -> np.ndarray:
        state, remaining = self.request.starts[0], self.request.budgets[0]
        for token in prefix:
            state, remaining = self.request.table.advance(state, token, remaining), remaining - 1
        return self.request.table.moves(state, remaining).tokens

    def log_phi(self, prefix: Ids) -> float:
        inside = [log_p for ids, log_p in self.members.items() if ids[: len(prefix)] == prefix]
        return float(logsumexp(inside)) - sum(self.log_p(prefix[:i])[prefix[i]] for i in range(len(prefix)))

    def check(self, draw: Draw) -> None:
        """Compare the account of each token with the model, the mask, Phi and the likeliest tokens at its prefix."""
        assert tuple(account.id for account in draw.tokens) == draw.token_ids
        for i, account in enumerate(draw.tokens):
            prefix = draw.token_ids[:i]
            log_p, live = self.log_p(prefix), self.live(prefix)
            assert account.bytes == self.request.table.vocabulary.tokens[account.id]
            assert account.log_p == pytest.approx(log_p[account.id], abs=NEAR)
            assert account.log_s == pytest.approx(logsumexp(log_p[live]), abs=NEAR)
            assert account.log_phi_lower - NEAR <= self.log_phi(prefix) <= account.log_phi_upper + NEAR
            assert account.log_phi_upper <= account.log_s + NEAR
            order = np.argsort(-log_p)[:TOP].tolist()
            assert account.top is not None
            assert [(each.id, each.allowed) for each in account.top] == [(v, v in live) for v in order]
            assert [each.log_p for each in account.top] == pytest.approx(log_p[order], abs=NEAR)
            assert [each.bytes for each in account.top] == [self.request.table.vocabulary.tokens[v] for v in order]
        assert sum(numbers(draw, "log_p")) == pytest.approx(draw.log_p, abs=NEAR)


def numbers(draw: Draw, name: str) -> list[float]:
    return [getattr(account, name) for account in draw.tokens]


def told(made: Made, request: Request, top: int | None = TOP) -> Draws:
    (draws,) = made().sample(replace(request, top=top))
    assert len(draws)
    return draws


def same(one: Draws, other: Draws) -> bool:
    """Return True if two calls have made the same draws, by the same model calls."""
    return (
        ids(one) == ids(other) and np.array_equal(one.log_w, other.log_w, equal_nan=True) and one.counts == other.counts
    )


@pytest.mark.in_turn
@rows
def test_accounts_are_those_of_the_model_and_change_nothing(name: str, made: Made, language: Any) -> None:
    check(made, language.request(N, seed=5))


@pytest.mark.parametrize(("name", "made", "language"), AHEAD, ids=[f"{row[0]}: {row[2]}" for row in AHEAD])
def test_accounts_of_nodes_that_are_drawn_ahead(
    name: str, made: Made, language: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(ahead, "MANY", 0)
    monkeypatch.setattr(
        ahead, "draw_ahead", lambda scores, uniforms: drawn.append(len(scores)) or draw_ahead(scores, uniforms)
    )
    check(made, language.request(N, seed=5))
    assert drawn


def test_blocks_are_picked_where_their_effort_is_small() -> None:
    assert any(draw.picked for draw in told(BLOCKS["fields, picked"], LISTED.request(N, seed=5)))


@pytest.mark.parametrize("seed", range(3))
def test_fields_after_attempts_know_what_these_have_read(seed: int) -> None:
    """Texts of ``auto``: what walks over the trees of the attempts have read is not read again, and has its alternatives."""
    request = replace(LISTED.request(N, seed=seed), weighted=False)
    assert Guarantee.FIELDWISE in {draw.guarantee for draw in check(lambda: AutoSampler(AutoPhi(share=0.01)), request)}


def check(made: Made, request: Request) -> Draws:
    """Compare the draws with and without accounts, and the accounts with enumeration."""
    plain, draws = told(made, request, None), told(made, request)
    assert same(plain, draws) and same(plain, told(made, request, 0)) and {draw.tokens for draw in plain} == {()}
    enumerated = Enumerated(request)
    for draw in draws:
        enumerated.check(draw)
    for population in draws.populations:
        for draw in population:
            enumerated.check(draw)
    return draws


WEIGHED = [row for row in ROWS if row[0] in SAMPLERS and isinstance(row[1](), AncestralSampler) or "adaptive" in row[0]]
PROPOSED = [*WEIGHED, *(row for row in ROWS if "drafts" in row[0] and not row[0].startswith("exact"))]


@pytest.mark.parametrize(("name", "made", "language"), PROPOSED, ids=[f"{row[0]}: {row[2]}" for row in PROPOSED])
def test_weights_are_sums(name: str, made: Made, language: Any) -> None:
    for draw in told(made, language.request(40, seed=6)):
        assert sum(numbers(draw, "log_p")) - sum(numbers(draw, "log_q")) == pytest.approx(draw.log_w, abs=NEAR)
        assert all(log_q <= NEAR for log_q in numbers(draw, "log_q"))
        if name in ("local", "forced drafts"):
            assert sum(numbers(draw, "log_s")) == pytest.approx(draw.log_w, abs=NEAR)


@pytest.mark.parametrize("phi", [LocalPhi(), OneStepPhi()], ids=lambda phi: phi.name)
def test_proposals_are_those_of_enumeration(phi: Any) -> None:
    language, name = AND_OPEN[0], phi.name
    request = language.request(40, seed=7)
    law = enumerate_language(
        request.lm, request.table, request.prompts[0], request.settings, language.budget, estimators={name: phi}
    ).log_q[name]
    for draw in told(lambda: AncestralSampler(phi), request):
        assert sum(numbers(draw, "log_q")) == pytest.approx(law[draw.token_ids], abs=NEAR)


@pytest.mark.parametrize("name", ["rejection", "certified at 1e-9", *BLOCKS, *WINDOWS])
def test_what_accepts_whole_texts_has_no_proposal_of_a_token(name: str) -> None:
    made, language = next((made, language) for row, made, language in ROWS if row == name)
    assert {log_q for draw in told(made, language.request(N, seed=8)) for log_q in numbers(draw, "log_q")} == {None}


def test_bounds_of_what_is_known_whole_meet() -> None:
    request = AND_OPEN[0].request(N, seed=9)
    enumerated = Enumerated(request)
    for draw in told(SAMPLERS["certified at 1e-9"], request):
        for i, account in enumerate(draw.tokens):
            assert account.log_phi_lower == pytest.approx(account.log_phi_upper, abs=NEAR)
            assert account.log_phi_upper == pytest.approx(enumerated.log_phi(draw.token_ids[:i]), abs=NEAR)


@pytest.mark.parametrize("phi", [LocalPhi(), ExactPhi(), AutoPhi(share=0, candidates=1)], ids=lambda phi: phi.name)
def test_beside_a_constraint_the_mass_is_that_of_the_format(phi: Any) -> None:
    language = AND_OPEN[0]
    constraint = TextConstraint(lambda text: "ba" not in text).over(language.table.vocabulary)
    request = replace(language.request(N, seed=10), constraint=constraint)
    sampler = {"local": AncestralSampler, "exact": ExactSampler, "auto": AutoSampler}[phi.name]
    draws = told(lambda: sampler(phi), request)
    assert same(told(lambda: sampler(phi), request, None), draws)
    enumerated = Enumerated(language.request(N, seed=10))
    for draw in draws:
        assert sum(numbers(draw, "log_p")) == pytest.approx(draw.log_p, abs=NEAR)
        for i, account in enumerate(draw.tokens):
            log_p, live = enumerated.log_p(draw.token_ids[:i]), enumerated.live(draw.token_ids[:i])
            assert account.log_s == pytest.approx(logsumexp(log_p[live]), abs=NEAR)
            assert account.top is not None and all(each.allowed == (each.id in live) for each in account.top)
        if phi.name != "exact":
            assert sum(numbers(draw, "log_p")) - sum(numbers(draw, "log_q")) == pytest.approx(draw.log_w, abs=NEAR)


def test_truncation_leaves_no_alternatives_without_a_probability() -> None:
    request = AND_OPEN[1].request(N, seed=11, top_k=6)
    for made in (lambda: AncestralSampler(LocalPhi()), lambda: ExactSampler(ExactPhi())):
        tops = [account.top for draw in told(made, request, 8) for account in draw.tokens]
        assert {top and len(top) for top in tops} == {6}


def test_what_an_earlier_call_has_read_is_not_read_again() -> None:
    """The trees of calls without a seed are kept: bounds and masses are theirs, and their alternatives are those that were read."""
    store, request = TreeStore(), AND_OPEN[0].request(N, seed=None)
    sampler = ExactSampler(ExactPhi(), store)
    (first,) = sampler.sample(replace(request, top=TOP))
    (asked,) = sampler.sample(replace(request, n=2000))
    assert first.counts.calls and not any(draw.tokens for draw in asked)
    (later,) = sampler.sample(replace(request, top=TOP))
    assert later.counts.calls == 0
    enumerated = Enumerated(request)
    assert all(account.log_s is not None for account in [account for draw in later for account in draw.tokens])
    for draw in later:
        for i, account in enumerate(draw.tokens):
            assert (
                account.log_phi_lower - NEAR <= enumerated.log_phi(draw.token_ids[:i]) <= account.log_phi_upper + NEAR
            )


def test_accounts_survive_what_trees_forget() -> None:
    """Under a bound of memory that holds nearly nothing, what is forgotten is not known: it is never wrong."""
    request = AND_OPEN[1].request(40, seed=12)
    enumerated = Enumerated(request)
    for draw in told(lambda: ExactSampler(ExactPhi(), TreeStore(4000)), request):
        assert sum(numbers(draw, "log_p")) == pytest.approx(draw.log_p, abs=NEAR)
        for i, account in enumerate(draw.tokens):
            prefix = draw.token_ids[:i]
            log_p = enumerated.log_p(prefix)
            known = account.log_s is None or account.log_s == pytest.approx(logsumexp(log_p[enumerated.live(prefix)]))
            assert known and account.log_phi_lower - NEAR <= enumerated.log_phi(prefix) <= account.log_phi_upper + NEAR
            assert account.top is None or [each.id for each in account.top] == np.argsort(-log_p)[:TOP].tolist()


@pytest.mark.parametrize("name", ["local", "forced drafts", "look-ahead", "look-ahead, early", "fields"])
def test_walks_keep_their_accounts_as_they_grow(name: str) -> None:
    made, language = next((made, language) for row, made, language in ROWS if row == name)
    request = replace(language.request(N, seed=13), top=TOP)
    (draws,) = made().sample(request)
    last: dict[int, list[TokenAccount]] = {}
    for grown in made().steps(request):  # type: ignore[attr-defined]
        for walk in grown:
            assert len(walk.accounts) == len(walk.tokens)
            last[walk.number] = walk.accounts
    assert [tuple(last[number]) for number in sorted(last)] == [draw.tokens for draw in draws]
    assert all(draw.token_ids[-1] == 0 or len(draw.token_ids) == language.budget for draw in draws)
