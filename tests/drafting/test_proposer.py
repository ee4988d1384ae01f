"""Proposals of a drafter are checked, and cut where the guide dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from outlines_phi.drafting import AdaptedLength, Draft, Drafter, DraftRun, FirstOf, ModelDrafter, Site
from outlines_phi.errors import DraftError, ModelError
from outlines_phi.lm import TableModel
from tests.drafting.runs import Scripted, propose, run_of, site_of, table_of
from tests.inner import DEAD, DONE, NOTHING, Proposer
from tests.languages import VOCABULARY

EOS, A, B, AB, BA, C, CC, X = range(8)
SIZE = len(VOCABULARY)
TABLE = table_of("(ab|c){1,3}x?")


def uniform(tokens: int, size: int = SIZE) -> torch.Tensor:
    return torch.full((tokens, size), -math.log(size))


def one(answer: Any, *, drawn: bool = False, length: int = 4, budget: int = 20) -> Draft:
    """Return the rest of one proposal at the start of the text."""
    run = run_of(TABLE)
    return propose(Scripted(lambda site, length: answer, drawn), run, [site_of(run, budget=budget)], length)[0]


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ((A, B, C), (A, B, C)),
        ([np.int64(AB), C], (AB, C)),
        ((A, A, B), (A,)),  # dead
        ((X,), ()),
        ((C, EOS, C), (C,)),  # nothing follows the end
        ((A, B, C, C, X), (A, B, C, C)),  # longer than was asked for
        ((), ()),
    ],
)
def test_a_deterministic_draft_ends_before_what_cannot_follow(tokens: Any, kept: tuple[int, ...]) -> None:
    draft = one(Draft(tokens))
    assert draft.tokens == kept and draft.log_r is None


@pytest.mark.parametrize(
    ("tokens", "kept"), [((A, B, C), 3), ((A, A, B), 2), ((X, A), 1), ((C, EOS, C), 2), ((A, B, C, C, X), 4)]
)
def test_a_sampled_draft_ends_with_what_cannot_follow(tokens: tuple[int, ...], kept: int) -> None:
    log_r = torch.log_softmax(torch.arange(len(tokens) * SIZE).reshape(len(tokens), SIZE) / 10.0, -1)
    draft = one(Draft(tokens, log_r), drawn=True)
    assert draft.tokens == tokens[:kept]
    assert draft.log_r is not None and torch.equal(draft.log_r, log_r[:kept])


def test_the_budget_cuts() -> None:
    # "c", then the end: with three tokens left two may be drafted, and the second has to let the text end.
    assert one(Draft((C, C, C)), budget=3).tokens == (C, C)
    assert one(Draft((A, B, C)), budget=3).tokens == (A, B)
    assert one(Draft((C, A, B)), budget=3).tokens == (C,)
    assert one(Draft((C,)), budget=1).tokens == ()


def test_a_finished_text_is_not_asked_about() -> None:
    run = run_of(TABLE)
    sites = [site_of(run, (C, EOS)), site_of(run, (X,)), site_of(run)]
    assert [site.state for site in sites[:2]] == [DONE, DEAD]
    drafter = Scripted(lambda site, length: Draft((C,)))
    assert [draft.tokens for draft in propose(drafter, run, sites)] == [(), (), (C,)]


@pytest.mark.parametrize("token", [-1, SIZE, 1.0, "a", True, None])
def test_tokens_outside_the_vocabulary_are_refused(token: Any) -> None:
    with pytest.raises(DraftError, match=f"'scripted' proposed the token .* 0 to {SIZE - 1}"):
        one(Draft((C, token)))


@pytest.mark.parametrize(
    "log_r",
    [
        uniform(1),
        uniform(3),
        uniform(2, SIZE - 1),
        uniform(2)[0],
        torch.zeros(2, SIZE, dtype=torch.long),
        np.full((2, SIZE), -math.log(SIZE)),
    ],
    ids=["short", "long", "narrow", "flat", "whole numbers", "numpy"],
)
def test_laws_of_another_shape_are_refused(log_r: Any) -> None:
    with pytest.raises(DraftError, match=rf"expected floating point log_r of shape \(2, {SIZE}\)"):
        one(Draft((C, C), log_r), drawn=True)


@pytest.mark.parametrize(
    "log_r",
    [
        uniform(2) + 0.01,
        uniform(2) - 0.01,
        uniform(2).exp(),
        torch.full((2, SIZE), math.nan),
        torch.full((2, SIZE), -math.inf),
        torch.full((2, SIZE), math.inf),
        uniform(2).index_fill(0, torch.tensor([1]), -3.0),
    ],
    ids=["more", "less", "probabilities", "nan", "nothing", "infinite", "second"],
)
def test_laws_that_do_not_sum_to_one_are_refused(log_r: torch.Tensor) -> None:
    with pytest.raises(DraftError, match="expected 1"):
        one(Draft((C, C), log_r), drawn=True)


def test_what_is_cut_off_is_no_law_of_a_draft() -> None:
    log_r = torch.cat([uniform(2), torch.full((1, SIZE), math.nan)])
    assert one(Draft((A, A, A), log_r), drawn=True).tokens == (A, A)
    with pytest.raises(DraftError, match="expected 1"):
        one(Draft((A, B, A), log_r), drawn=True)


def test_a_token_that_its_own_law_excludes_is_refused() -> None:
    log_r = uniform(1).index_fill(1, torch.tensor([C]), -math.inf).log_softmax(-1)
    with pytest.raises(DraftError, match=f"token {C}, which has probability 0"):
        one(Draft((C,), log_r), drawn=True)


def test_a_law_in_half_precision_has_to_be_one_all_the_same() -> None:
    law = torch.full((1, SIZE), -math.inf)
    law[0, C] = 0.0
    draft = one(Draft((C,), law.bfloat16()), drawn=True)
    assert draft.log_r is not None and draft.log_r.dtype == torch.float32
    law[0, [A, C]] = math.log(0.5)
    assert one(Draft((C,), law), drawn=True).tokens == (C,)
    with pytest.raises(DraftError, match="in single precision"):
        one(Draft((C,), law.bfloat16()), drawn=True)


def test_laws_have_to_be_announced() -> None:
    with pytest.raises(DraftError, match="sampled = True"):
        one(Draft((C,), uniform(1)))


@pytest.mark.parametrize("answer", [None, (C,), Draft(torch.tensor([C])), Draft(C)], ids=str)  # type: ignore[arg-type]
def test_what_is_no_draft_is_refused(answer: Any) -> None:
    with pytest.raises(DraftError, match="expected a Draft"):
        one(answer)


@dataclass(frozen=True)
class Broken(Drafter):
    """Begins with what it is told."""

    outcome: Any
    name: ClassVar[str] = "broken"

    def begin(self, run: DraftRun) -> Any:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def test_a_drafter_that_raises_is_named() -> None:
    run = run_of(TABLE)
    with pytest.raises(DraftError, match="'broken' raised ZeroDivisionError in begin: by nothing") as caught:
        Proposer(Broken(ZeroDivisionError("by nothing")), run)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(DraftError, match="'broken' began with int"):
        Proposer(Broken(3), run)
    with pytest.raises(ModelError, match="too long"):  # our own errors say enough
        Proposer(Broken(ModelError("too long")), run)
    with pytest.raises(DraftError, match="'scripted' raised KeyError in propose"):
        propose(Scripted(lambda site, length: {}[length]), run, [site_of(run)])


def test_one_draft_per_site() -> None:
    run = run_of(TABLE)
    proposer = Proposer(Scripted(lambda site, length: NOTHING), run)
    for answer in ([], [NOTHING] * 2, None):
        proposer._drafting.propose = lambda *_, answer=answer: answer  # type: ignore[method-assign]
        with pytest.raises(DraftError, match="for 1 sites; expected a list with one Draft per site"):
            proposer.propose([site_of(run)], [3], [np.random.default_rng(0)])


@pytest.mark.parametrize("drawn", [False, True])
def test_walks_at_one_site_share_a_deterministic_draft_alone(drawn: bool) -> None:
    run = run_of(TABLE, prompts=[(1, 2), (1, 2)])

    def answer(site: Site, length: int) -> Draft:
        return Draft((C,), uniform(1) if drawn else None)

    proposer = Proposer(Scripted(answer, drawn), run)
    sites = [site_of(run), site_of(run), site_of(run, row=1), site_of(run, (C,)), site_of(run)]
    drafts = proposer.propose(sites, [3, 3, 3, 3, 2], [np.random.default_rng(i) for i in range(5)])
    assert [draft.tokens for draft in drafts] == [(C,)] * 5
    asked = [(site.row, site.tokens, length) for site, length in proposer._drafting.asked]  # type: ignore[attr-defined]
    shared = [(0, (), 3), (1, (), 3), (0, (C,), 3), (0, (), 2)]
    assert asked == ([shared[0], *shared] if drawn else shared)


@pytest.mark.parametrize("wrapped", [AdaptedLength, lambda drafter: FirstOf((drafter,))], ids=["adapted", "first of"])
def test_laws_are_checked_once_and_those_of_the_package_never(
    wrapped: Callable[[Drafter], Drafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read them costs as much as verification; what is wrong is found all the same, and by its own name."""
    checked: list[str] = []
    check = Proposer._check_distributions

    def noting(self: Proposer, drafts: Sequence[Draft]) -> None:
        checked.append(self._drafter.name)
        check(self, drafts)

    monkeypatch.setattr(Proposer, "_check_distributions", noting)
    run = run_of(TABLE)
    propose(wrapped(Scripted(lambda site, length: Draft((C,), uniform(1)), True)), run, [site_of(run)], 1)
    assert checked == ["scripted"]
    model = ModelDrafter(TableModel.random(VOCABULARY, seed=77))
    (draft,) = propose(wrapped(model), run, [site_of(run)], 1)
    assert draft.log_r is not None and float(draft.log_r.exp().sum()) == pytest.approx(1.0)
    assert checked == ["scripted"]
    with pytest.raises(DraftError, match="'scripted' gave a distribution whose probabilities sum to"):
        propose(wrapped(Scripted(lambda site, length: Draft((C,), uniform(1) + 0.01), True)), run, [site_of(run)], 1)


def test_laws_without_numbers_are_refused() -> None:
    with pytest.raises(DraftError, match="on the device 'meta'"):
        one(Draft((C,), uniform(1).to("meta")), drawn=True)
