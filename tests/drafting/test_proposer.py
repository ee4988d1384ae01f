"""Proposals of a drafter are checked, and cut where the guide dies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from outlines_phi.drafting import AdaptedLength, Draft, Drafter, Drafting, DraftRun, FirstOf, ModelDrafter, Site
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
    ("tokens", "kept", "budget"),
    [
        ((A, B, C), (A, B, C), 20),
        ([np.int64(AB), C], (AB, C), 20),
        ((A, A, B), (A,), 20),  # dead
        ((X,), (), 20),
        ((C, EOS, C), (C,), 20),  # nothing follows the end
        ((A, B, C, C, X), (A, B, C, C), 20),  # longer than was asked for
        ((), (), 20),
        # "c", then the end: with three tokens left two may be drafted, and the second has to let the text end.
        ((C, C, C), (C, C), 3),
        ((A, B, C), (A, B), 3),
        ((C, A, B), (C,), 3),
        ((C,), (), 1),
    ],
)
def test_a_deterministic_draft_ends_before_what_cannot_follow(tokens: Any, kept: tuple[int, ...], budget: int) -> None:
    draft = one(Draft(tokens), budget=budget)
    assert draft.tokens == kept and draft.log_r is None


@pytest.mark.parametrize(
    ("tokens", "kept"), [((A, B, C), 3), ((A, A, B), 2), ((X, A), 1), ((C, EOS, C), 2), ((A, B, C, C, X), 4)]
)
def test_a_sampled_draft_ends_with_what_cannot_follow(tokens: tuple[int, ...], kept: int) -> None:
    log_r = torch.log_softmax(torch.arange(len(tokens) * SIZE).reshape(len(tokens), SIZE) / 10.0, -1)
    draft = one(Draft(tokens, log_r), drawn=True)
    assert draft.tokens == tokens[:kept]
    assert draft.log_r is not None and torch.equal(draft.log_r, log_r[:kept])


def test_a_finished_text_is_not_asked_about() -> None:
    run = run_of(TABLE)
    sites = [site_of(run, (C, EOS)), site_of(run, (X,)), site_of(run)]
    assert [site.state for site in sites[:2]] == [DONE, DEAD]
    drafter = Scripted(lambda site, length: Draft((C,)))
    assert [draft.tokens for draft in propose(drafter, run, sites)] == [(), (), (C,)]


def excluding(token: int) -> torch.Tensor:
    return uniform(1).index_fill(1, torch.tensor([token]), -math.inf).log_softmax(-1)


def on(*tokens: int) -> torch.Tensor:
    """A distribution that is uniform on some tokens."""
    return torch.full((1, SIZE), -math.inf).index_fill(1, torch.tensor(tokens), -math.log(len(tokens)))


REFUSED: dict[str, tuple[Any, bool, str]] = {
    **{
        f"the token {token!r}": (Draft((C, token)), False, "proposed the token")
        for token in (-1, SIZE, 1.0, "a", True, None)
    },
    "short": (Draft((C, C), uniform(1)), True, "shape"),
    "long": (Draft((C, C), uniform(3)), True, "shape"),
    "narrow": (Draft((C, C), uniform(2, SIZE - 1)), True, "shape"),
    "flat": (Draft((C, C), uniform(2)[0]), True, "shape"),
    "whole numbers": (Draft((C, C), torch.zeros(2, SIZE, dtype=torch.long)), True, "floating point"),
    "numpy": (Draft((C, C), uniform(2).numpy()), True, "floating point"),  # type: ignore[arg-type]
    "more": (Draft((C, C), uniform(2) + 0.01), True, "expected 1"),
    "less": (Draft((C, C), uniform(2) - 0.01), True, "expected 1"),
    "probabilities": (Draft((C, C), uniform(2).exp()), True, "expected 1"),
    "nan": (Draft((C, C), torch.full((2, SIZE), math.nan)), True, "expected 1"),
    "nothing": (Draft((C, C), torch.full((2, SIZE), -math.inf)), True, "expected 1"),
    "infinite": (Draft((C, C), torch.full((2, SIZE), math.inf)), True, "expected 1"),
    "the second": (Draft((C, C), uniform(2).index_fill(0, torch.tensor([1]), -3.0)), True, "expected 1"),
    "excluded": (Draft((C,), excluding(C)), True, "probability 0"),
    "half precision": (Draft((C,), on(A, C).bfloat16()), True, "single precision"),
    "on no device": (Draft((C,), uniform(1).to("meta")), True, "device"),
    "not announced": (Draft((C,), uniform(1)), False, "sampled = True"),
    **{
        f"no draft: {answer}": (answer, False, "a Draft") for answer in (None, (C,), Draft(torch.tensor([C])), Draft(C))
    },  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("answer", "drawn", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_draft_of_its_law_is_refused(answer: Any, drawn: bool, words: str) -> None:
    with pytest.raises(DraftError, match=f"'scripted'.*{words}"):
        one(answer, drawn=drawn)


def test_what_is_cut_off_is_no_law_of_a_draft() -> None:
    log_r = torch.cat([uniform(2), torch.full((1, SIZE), math.nan)])
    assert one(Draft((A, A, A), log_r), drawn=True).tokens == (A, A)
    with pytest.raises(DraftError, match="expected 1"):
        one(Draft((A, B, A), log_r), drawn=True)


def test_a_law_in_half_precision_that_is_one_all_the_same_is_taken() -> None:
    draft = one(Draft((C,), on(C).bfloat16()), drawn=True)
    assert draft.log_r is not None and draft.log_r.dtype == torch.float32
    assert one(Draft((C,), on(A, C)), drawn=True).tokens == (C,)


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


class Answering(Drafting):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def propose(self, *asked: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [[], [NOTHING] * 2, None], ids=["none", "two", "nothing"])
def test_one_draft_per_site(answer: Any) -> None:
    run = run_of(TABLE)
    with pytest.raises(DraftError, match="one Draft per site"):
        propose(Broken(Answering(answer)), run, [site_of(run)], 3)


@pytest.mark.parametrize("drawn", [False, True])
def test_walks_at_one_site_share_a_deterministic_draft_alone(drawn: bool) -> None:
    run, asked = run_of(TABLE, prompts=[(1, 2), (1, 2)]), []

    def answer(site: Site, length: int) -> Draft:
        asked.append((site.row, site.tokens, length))
        return Draft((C,), uniform(1) if drawn else None)

    sites = [site_of(run), site_of(run), site_of(run, row=1), site_of(run, (C,)), site_of(run)]
    streams = [np.random.default_rng(i) for i in range(5)]
    drafts = Proposer(Scripted(answer, drawn), run).propose(sites, [3, 3, 3, 3, 2], streams)
    assert [draft.tokens for draft in drafts] == [(C,)] * 5
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
