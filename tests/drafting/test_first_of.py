"""Several drafters, one after the other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from outlines_phi import UnsupportedError
from outlines_phi.drafting import Draft, FirstOf, ForcedDrafter, PromptLookupDrafter, Site
from outlines_phi.errors import DraftError
from tests.drafting.runs import Scripted, propose, run_of, site_of, table_of
from tests.inner import NOTHING
from tests.languages import VOCABULARY

EOS, A, B, AB, BA, C, CC, X = range(8)
SIZE = len(VOCABULARY)
TABLE = table_of("[abcx]{0,12}")


def after(last: int, then: tuple[int, ...], drawn: bool = False) -> Scripted:
    """Return a drafter that has something to say after one token only."""

    def answer(site: Site, length: int) -> Draft:
        if site.tokens[-1:] != (last,):
            return NOTHING
        tokens = then[:length]
        law = torch.full((len(tokens), SIZE), -math.log(SIZE), dtype=torch.float64)
        return Draft(tokens, law if drawn else None)

    return Scripted(answer, drawn)


def test_the_first_that_has_something_and_on_from_there() -> None:
    drafter = FirstOf((after(A, (B,)), after(B, (C, C)), after(C, (X,)), after(A, (X,))))
    assert not drafter.sampled
    run = run_of(TABLE)
    sites = [site_of(run, tokens) for tokens in ((A,), (B,), (X,), (), (C,))]
    drafts = propose(drafter, run, sites, 5)
    assert [draft.tokens for draft in drafts] == [(B, C, C, X), (C, C, X), (), (), (X,)]


def test_chains_go_round_until_they_are_long_enough() -> None:
    run = run_of(TABLE)
    drafter = FirstOf((after(A, (B,)), after(B, (A,))))
    assert propose(drafter, run, [site_of(run, (A,))], 5)[0].tokens == (B, A, B, A, B)


def test_a_part_is_cut_where_the_guide_dies_and_the_next_one_goes_on() -> None:
    run = run_of(table_of("(ab|c)*x"))
    drafter = FirstOf((after(C, (A, A, A)), after(A, (B, C))))
    assert propose(drafter, run, [site_of(run, (C,))], 4)[0].tokens == (A, B, C, A)


def test_a_part_of_a_drawn_chain_that_cannot_be_followed_ends_it() -> None:
    run = run_of(table_of("(ab|c)*x"))
    drafter = FirstOf((after(C, (A, A, A), drawn=True), after(A, (B, C))))
    (draft,) = propose(drafter, run, [site_of(run, (C,))], 4)
    assert draft.tokens == (A, A) and draft.log_r is not None and draft.log_r.shape == (2, SIZE)


def test_deterministic_parts_of_a_drawn_chain_have_the_law_that_is_one_on_them() -> None:
    run = run_of(TABLE)
    drafter = FirstOf((after(A, (B, C)), after(C, (X,), drawn=True), after(X, (A,))))
    assert drafter.sampled
    whole, plain = propose(drafter, run, [site_of(run, (A,)), site_of(run, (X,))], 4)
    assert whole.tokens == (B, C, X, A)
    assert whole.log_r is not None and whole.log_r.dtype == torch.float64
    laws = whole.log_r.exp().numpy()
    uniform = np.full(SIZE, 1 / SIZE)
    assert np.allclose(laws, [np.eye(SIZE)[B], np.eye(SIZE)[C], uniform, np.eye(SIZE)[A]])
    assert plain.tokens[:3] == (A, B, C)  # and on with what is drawn


def test_forced_text_then_look_up() -> None:
    table = table_of("ab[abc]{2,6}x")
    run = run_of(table, prompts=[(B, C, A, C, X)])
    drafter = FirstOf((ForcedDrafter(), PromptLookupDrafter()))
    assert propose(ForcedDrafter(), run, [site_of(run)], 6)[0].tokens == (AB,)
    assert propose(drafter, run, [site_of(run, (A,))], 6)[0].tokens == (B, C, A, C, X)


def test_errors_name_the_part() -> None:
    run = run_of(TABLE)
    drafter = FirstOf((after(A, (B,)), after(B, (99,))))
    with pytest.raises(DraftError, match="'scripted' proposed the token 99"):
        propose(drafter, run, [site_of(run, (A,))], 4)
    for bad in ((), ForcedDrafter(), (ForcedDrafter(), "tree"), None):
        with pytest.raises(UnsupportedError, match="FirstOf"):
            FirstOf(bad)  # type: ignore[arg-type]
    assert FirstOf([ForcedDrafter()]) == FirstOf((ForcedDrafter(),))  # type: ignore[arg-type]
