"""The length of drafts follows what became of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import takewhile

import numpy as np
import pytest
import torch

from outlines_phi import UnsupportedError
from outlines_phi.drafting import AdaptedLength, Draft, Drafter, FirstOf, ForcedDrafter, PromptLookupDrafter, Site
from outlines_phi.drafting.drafter import TRIED, Acceptance, best_length, check_length
from outlines_phi.errors import DraftError
from outlines_phi.guides import Table
from outlines_phi.lm import CallCost
from tests.drafting.runs import CheapScripted, Scripted, propose, run_of, site_of, table_of
from tests.inner import NOTHING, Proposer
from tests.languages import VOCABULARY

A, B, C = 1, 2, 5
SIZE = len(VOCABULARY)
TABLE = table_of("[abcx]{400}")


@pytest.mark.parametrize("length", [0, -3, 1.5, True, "4", None])
def test_lengths_that_are_none(length: object) -> None:
    with pytest.raises(UnsupportedError, match="draft length of .* at least 1"):
        check_length(length)
    assert check_length(np.int64(4)) == 4


def per_time(length: int, acceptance: float, cost: float, second: float) -> float:
    """Return the tokens per time of a call, by summing over outcomes."""
    outcomes = [(acceptance**k * (1 - acceptance), k + 1) for k in range(length)]
    outcomes.append((acceptance**length, length + 1))
    return sum(p * tokens for p, tokens in outcomes) / (1 + cost * length + second * (length > 0))


@pytest.mark.parametrize("cost", [0.0, 0.02, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.5, 0.8, 0.95, 1.0])
def test_the_best_length_is_the_best(cost: float, acceptance: float) -> None:
    for walks, second in ((1, 0.3), (2, 0.0)):
        best, times = (
            best_length(acceptance, CallCost(0.3, cost), 12, walks),
            [per_time(k, acceptance, cost, second) for k in range(13)],
        )
        assert 0 <= best <= 12 and times[best] == pytest.approx(max(times))
    assert best_length(acceptance, CallCost(), 0) == 0


def played(
    drafter: Drafter,
    taken: Callable[[tuple[int, ...], int], Sequence[int]],
    rounds: int = 60,
    most: int = 8,
    seed: int = 0,
) -> list[int]:
    """Return the lengths of the drafts of a walk, round by round; ``taken`` says what it writes after a draft in a round."""
    run = run_of(TABLE)
    proposer, site, found = Proposer(drafter, run), site_of(run, budget=401), list[int]()
    while len(found) < rounds and site.remaining > 20:
        (draft,) = proposer.propose([site], [most], [np.random.default_rng(seed)])
        for token in taken(draft.tokens, len(found)):
            site = site.after(token, TABLE)
        found.append(len(draft.tokens))
    return found


def partly(right: float) -> Callable[[tuple[int, ...], int], Sequence[int]]:
    """Write a drafted token, and the one behind them, as drafted with a probability, and another one where it is not."""
    rng = np.random.default_rng(0)

    def taken(draft: tuple[int, ...], turn: int) -> Sequence[int]:
        kept = [*takewhile(lambda _: rng.random() < right, [*draft, C])]
        return [C] * len(kept) + [A] * (len(kept) <= len(draft))

    return taken


def always(site: Site, length: int) -> Draft:
    return Draft((C,) * length)


def drawn(site: Site, length: int) -> Draft:
    return Draft((C,) * length, torch.full((length, SIZE), -math.log(SIZE)))


@pytest.mark.parametrize("inner", [Scripted(always), Scripted(drawn, True)], ids=["deterministic", "drawn"])
def test_lengths_follow_the_acceptance(inner: Scripted) -> None:
    drafter = AdaptedLength(inner)
    assert max(played(drafter, partly(1.0))) == 8
    hopeless = played(drafter, partly(0.0), 120)[40:]
    assert set(hopeless) == {0, 1} and sum(hopeless) == len(hopeless) // TRIED  # one token is tried now and then
    assert 1.5 < np.mean(played(drafter, partly(0.6))[10:]) < 6


@pytest.mark.parametrize(("right", "least", "most"), [(0.0, 0, 0), (0.6, 0.5, 6), (1.0, 7, 8)])
def test_what_costs_nothing_to_propose_is_compared_before_it_is_evaluated(
    right: float, least: float, most: float
) -> None:
    found = played(AdaptedLength(CheapScripted(always)), partly(right), 401)
    assert found[0] == 0 and least <= np.mean(found[10:]) <= most


def test_what_others_draft_behind_a_draft_does_not_accept_it() -> None:
    """``FirstOf`` asks again behind what it has: a text that was guessed says nothing about the guess."""
    wrong = AdaptedLength(Scripted(lambda site, length: Draft((C,) * min(1, length))))
    found = played(FirstOf((wrong,)), lambda draft, turn: [A], 120)
    assert found[0] > 0 and np.mean(np.array(found[40:]) > 0) < 0.2


def test_a_round_does_not_see_its_own_outcome() -> None:
    """The length that a site gets depends on the sites alone: not on streams, nor on what its draft will turn out to be."""
    first, *others = (
        played(AdaptedLength(Scripted(always)), lambda draft, turn: [*draft[: turn % 3], A], 10, 6, seed)
        for seed in range(3)
    )
    assert others == [first, first] and len(set(first)) > 1


def test_prompts_have_rates_of_their_own() -> None:
    run = run_of(TABLE, prompts=[(1, 2), (1, 2)])
    proposer = Proposer(AdaptedLength(Scripted(always)), run)
    sites = [site_of(run, row=row, budget=401) for row in range(2)]
    for _ in range(20):
        good, bad = proposer.propose(sites, [8, 8], [np.random.default_rng(0)] * 2)
        for token in (*good.tokens, B):
            sites[0] = sites[0].after(token, TABLE)
        sites[1] = sites[1].after(A, TABLE)
    assert len(good.tokens) == 8 and len(bad.tokens) <= 1


def test_each_draft_is_tested_once() -> None:
    run = run_of(TABLE)
    drafter = AdaptedLength(Scripted(lambda site, length: Draft((C,) * length if not site.tokens else ())))
    proposer, site = Proposer(drafter, run), site_of(run, budget=401)
    stream = [np.random.default_rng(0)]
    proposer.propose([site], [5], stream)
    site = site_of(run, (C, C, A), budget=401)
    for _ in range(3):
        proposer.propose([site], [5], stream)
    tested = Acceptance()
    tested.observe(2, 1)
    assert proposer._drafting._acceptance[0].rate == tested.rate  # type: ignore[attr-defined]


def test_options_and_names() -> None:
    inner = PromptLookupDrafter()
    assert AdaptedLength(inner) == AdaptedLength(inner) and not AdaptedLength(inner).sampled
    with pytest.raises(UnsupportedError, match="AdaptedLength"):
        AdaptedLength("forced")  # type: ignore[arg-type]


EOS, A, B, AB, BA, C, CC, X = range(8)


TWELVE = table_of("[abcx]{0,12}")


def after(last: int, then: tuple[int, ...], drawn: bool = False) -> Scripted:
    """Return a drafter that has something to say after one token only."""

    def answer(site: Site, length: int) -> Draft:
        if site.tokens[-1:] != (last,):
            return NOTHING
        tokens = then[:length]
        law = torch.full((len(tokens), SIZE), -math.log(SIZE), dtype=torch.float64)
        return Draft(tokens, law if drawn else None)

    return Scripted(answer, drawn)


FOUR = (after(A, (B,)), after(B, (C, C)), after(C, (X,)), after(A, (X,)))
TURNS = (after(A, (B,)), after(B, (A,)))
CUT = (after(C, (A, A, A)), after(A, (B, C)))


@pytest.mark.parametrize(
    ("table", "parts", "written", "length", "tokens"),
    [
        *((TWELVE, FOUR, *row) for row in (((A,), 5, (B, C, C, X)), ((B,), 5, (C, C, X)), ((X,), 5, ()), ((), 5, ()))),
        (TWELVE, FOUR, (C,), 5, (X,)),
        (TWELVE, TURNS, (A,), 5, (B, A, B, A, B)),  # until the chain is long enough
        (table_of("(ab|c)*x"), CUT, (C,), 4, (A, B, C, A)),  # cut where the guide dies, and the next one goes on
    ],
)
def test_the_first_that_has_something_and_on_from_there(
    table: Table, parts: tuple[Scripted, ...], written: tuple[int, ...], length: int, tokens: tuple[int, ...]
) -> None:
    drafter, run = FirstOf(parts), run_of(table)
    assert propose(drafter, run, [site_of(run, written)], length)[0].tokens == tokens and not drafter.sampled


def test_a_part_of_a_drawn_chain_that_cannot_be_followed_ends_it() -> None:
    run = run_of(table_of("(ab|c)*x"))
    (draft,) = propose(FirstOf((after(C, (A, A, A), drawn=True), after(A, (B, C)))), run, [site_of(run, (C,))], 4)
    assert draft.tokens == (A, A) and draft.log_r is not None and draft.log_r.shape == (2, SIZE)


def test_deterministic_parts_of_a_drawn_chain_have_the_law_that_is_one_on_them() -> None:
    run = run_of(TWELVE)
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
    run = run_of(table_of("ab[abc]{2,6}x"), prompts=[(B, C, A, C, X)])
    drafter = FirstOf((ForcedDrafter(), PromptLookupDrafter()))
    assert propose(ForcedDrafter(), run, [site_of(run)], 6)[0].tokens == (AB,)
    assert propose(drafter, run, [site_of(run, (A,))], 6)[0].tokens == (B, C, A, C, X)


def test_errors_name_the_part() -> None:
    run = run_of(TWELVE)
    drafter = FirstOf((after(A, (B,)), after(B, (99,))))
    with pytest.raises(DraftError, match="'scripted' proposed the token 99"):
        propose(drafter, run, [site_of(run, (A,))], 4)
    for bad in ((), ForcedDrafter(), (ForcedDrafter(), "tree"), None):
        with pytest.raises(UnsupportedError, match="FirstOf"):
            FirstOf(bad)  # type: ignore[arg-type]
    assert FirstOf([ForcedDrafter()]) == FirstOf((ForcedDrafter(),))  # type: ignore[arg-type]
