"""Several drafters at once, and what others make of their trees."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from outlines_phi.drafting.combine import HITS, TESTS, AdaptedLength, FirstOf
from outlines_phi.drafting.drafter import NOTHING, Draft, Proposer, Site, tree
from outlines_phi.drafting.forced import ForcedDrafter
from outlines_phi.errors import DraftError, UnsupportedError
from tests.drafting.runs import AllOf, Scripted, propose, run_of, site_of, table_of
from tests.languages import VOCABULARY

EOS, A, B, AB, BA, C, CC, X = range(8)
TABLE = table_of("[abcx]{0,12}")


def always(*tokens: int) -> Scripted:
    return Scripted(lambda site, length: Draft(tokens[:length]))


def after(last: int, *tokens: int) -> Scripted:
    return Scripted(lambda site, length: Draft(tokens[:length]) if site.tokens[-1:] == (last,) else NOTHING)


def test_a_tree_has_each_chain_once() -> None:
    assert tree([(A,), (A, B), (), (C,), (A, B), (A, X)]).chains == ((A, B), (C,), (A, X))
    assert tree([(), ()]).chains == tree([]).chains == NOTHING.chains == ((),)


def test_all_chains_the_first_drafter_leading() -> None:
    run = run_of(TABLE)
    drafter = AllOf((always(A, B), always(A), always(C, C, C), always()))
    assert drafter.width == 4 and not drafter.sampled
    assert propose(drafter, run, [site_of(run)], 2)[0].chains == ((A, B), (C, C))
    assert propose(AllOf((always(), always(B))), run, [site_of(run)], 2)[0].chains == ((B,),)


def test_every_chain_is_cut_where_the_guide_dies() -> None:
    run = run_of(table_of("(ab|c)*x"))
    assert propose(AllOf((always(A, A), always(X, A), always(B))), run, [site_of(run)])[0].chains == ((A,), (X,))


def test_every_chain_goes_on_by_itself() -> None:
    run = run_of(TABLE)
    drafter = FirstOf((AllOf((after(A, B), after(A, C))), after(B, X), after(C, C, X)))
    assert drafter.width == 2
    assert propose(drafter, run, [site_of(run, (A,)), site_of(run, (B,))], 4)[1].chains == ((X,),)
    assert propose(drafter, run, [site_of(run, (A,)), site_of(run, (B,))], 4)[0].chains == ((B, X), (C, C, X))


def test_a_chain_of_trees_has_no_more_chains_than_one_of_them() -> None:
    run = run_of(TABLE)
    drafter = FirstOf((AllOf((always(A), always(B))),))
    assert propose(drafter, run, [site_of(run)], 3)[0].chains == ((A, A, A), (B, A, A))


def test_a_tree_beside_what_is_drawn_is_a_chain() -> None:
    run = run_of(TABLE)
    law = torch.full((1, len(VOCABULARY)), -math.log(len(VOCABULARY)))
    drawn = Scripted(lambda site, length: Draft((X,), law) if site.tokens[-1:] == (A,) else NOTHING, True)
    drafter = FirstOf((drawn, AllOf((always(A), always(B)))))
    (draft,) = propose(drafter, run, [site_of(run)], 2)
    assert drafter.width == 1 and draft.chains == ((A, X),) and draft.log_r is not None


def test_of_a_tree_the_chain_that_went_furthest_counts() -> None:
    run = run_of(TABLE)

    def rate(*chains: tuple[int, ...], written: tuple[int, ...]) -> float:
        drafting = AdaptedLength(AllOf(tuple(always(*chain) for chain in chains))).begin(run)
        site = site_of(run)
        for _ in range(2):
            drafting.propose([site], [4], [np.random.default_rng(0)])
            for token in written:
                site = site.after(token, TABLE)
        return drafting._acceptance[0].rate  # type: ignore[attr-defined,no-any-return]

    accepted = rate((C, C), written=(C, C, X))
    assert rate((A,), (C, C), written=(C, C, X)) == accepted > HITS / TESTS
    assert rate((A,), (C, B), written=(C, C)) == rate((C, B), written=(C, C)) < accepted
    assert rate((A,), (B,), written=(C,)) == rate((A,), written=(C,)) < HITS / TESTS


class TestChecks:
    """Of a drafter of one's own that proposes trees."""

    def one(self, answer: Any, width: int = 3) -> Draft:
        run = run_of(TABLE)
        return propose(Scripted(lambda site, length: answer, chains=width), run, [site_of(run)])[0]

    def test_chains_beyond_the_width_are_left_out(self) -> None:
        draft = Draft((A,), others=((B,), (C,)))
        assert self.one(draft).chains == ((A,), (B,), (C,))
        assert self.one(draft, 2).chains == ((A,), (B,))
        assert propose(Scripted(lambda site, length: draft), run := run_of(TABLE), [site_of(run)])[0].chains == ((A,),)

    @pytest.mark.parametrize("others", [5, ((A, 99),), (A,), ("ab",), None])
    def test_chains_are_tuples_of_tokens(self, others: Any) -> None:
        with pytest.raises(DraftError, match="expected"):
            self.one(Draft((A,), others=others))

    def test_laws_go_with_one_chain(self) -> None:
        law = torch.full((1, len(VOCABULARY)), -math.log(len(VOCABULARY)))
        run = run_of(TABLE)
        with pytest.raises(DraftError, match="gave other chains beside distributions"):
            propose(Scripted(lambda site, length: Draft((A,), law, ((B,),)), True), run, [site_of(run)])


@pytest.mark.parametrize("given", [(), None, (1,), ("forced",), ForcedDrafter()])
def test_bad_drafters(given: Any) -> None:
    with pytest.raises(UnsupportedError, match="FirstOf.*drafter"):
        FirstOf(given)


def test_the_same_site_is_asked_about_once() -> None:
    asked: list[Site] = []
    run = run_of(TABLE)
    drafter = AllOf((Scripted(lambda site, length: (asked.append(site), Draft((A,)))[1]), always(B)))
    proposer, streams = Proposer(drafter, run), [np.random.default_rng(0)] * 3
    drafts = proposer.propose([site_of(run)] * 3, [2] * 3, streams)
    assert len(asked) == 1 and all(draft.chains == ((A,), (B,)) for draft in drafts)
