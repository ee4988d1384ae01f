"""The weights of every estimator, by summation; the prefixes that several readers grow; and estimators of one step at a time."""

import ast
import importlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import outlines_phi
from benchmarks.estimators import dp_frozen
from benchmarks.estimators.dp_frozen import FrozenDPPhi
from outlines_phi import BigramDPPhi, LearnedPhi, LocalPhi, OneStepPhi
from outlines_phi.guides import Table
from outlines_phi.guides import table as tables
from outlines_phi.lm import TableModel
from outlines_phi.phi import ProposalPhi, StepPhi, dp_bigram
from outlines_phi.phi.state_values import KeptValues
from tests.inner import Branch, Branches, branches
from tests.languages import LANGUAGES, OF_EVERY_KIND, VOCABULARY, Language, ids, sample
from tests.phi.looking import LookingPhi, forest_of
from tests.phi.walks import mean_weight, no_floor, paths, states_of

languages = pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)


def kept(language: Language, **options: Any) -> LearnedPhi:
    """Return the estimator learned from some unseeded draws, which stands still during a call."""
    values = KeptValues()
    torch.manual_seed(0)
    sample(LearnedPhi(values), language.request(64, seed=None, **options))
    assert len(values.of(language.lm, language.table, language.settings(**options))) > 1
    return LearnedPhi(values)


PROPOSALS: dict[str, Callable[..., ProposalPhi]] = {
    "looking": lambda *_, **__: LookingPhi(),
    "looking at one": lambda *_, **__: LookingPhi(most=1, floor=1e-3),
    "looking at all": lambda *_, **__: LookingPhi(most=99),
    "bigram": lambda *_, **__: BigramDPPhi(),
    "bigram, cut": lambda *_, **__: BigramDPPhi(tokens=2, states=3, max_bytes=200),
    "bigram of the first state": lambda *_, **__: BigramDPPhi(states=1),
    "frozen": lambda *_, **__: FrozenDPPhi(horizon=2, states=2),
    "learned": kept,
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", PROPOSALS)
@languages
@pytest.mark.parametrize("options", [{}, {"top_k": 5}, {"temperature": 0.5}], ids=str)
def test_the_mean_weight_is_phi(name: str, options: dict[str, Any], language: Language) -> None:
    """``sum_y q(y) w(y) = Phi`` over all paths, and each weight is ``p / q``."""
    found = paths(language, PROPOSALS[name](language, **options), seed=None, **options)
    assert mean_weight(found) == pytest.approx(math.exp(language.reference(**options).log_phi), rel=1e-9)
    assert all(path.log_w == pytest.approx(path.log_p - path.log_q, abs=1e-9) for path in found)


def test_without_a_floor_mass_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power control: with top_k = 5 a surrogate rules out members that the law allows."""
    monkeypatch.setattr(dp_bigram, "floored", no_floor)
    language, options = LANGUAGES[0], {"top_k": 5}
    found = mean_weight(paths(language, BigramDPPhi(), **options))
    assert found < 0.999 * math.exp(language.reference(**options).log_phi)


def test_what_was_looked_at_in_vain_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it changes no draw: the walks stand on what is kept."""
    language, phi, kept = LANGUAGES[0], LookingPhi(), []
    (usual,) = sample(phi, language.request(60, seed=2))
    monkeypatch.setattr(branches, "WASTE", 3)
    compact = Branches.compact

    def counting(self: Branches, nodes: Iterable[int]) -> None:
        compact(self, nodes)
        forest = forest_of(self)
        kept.append(int(forest.alive[: len(forest)].sum()) / len(forest))

    monkeypatch.setattr(Branches, "compact", counting)
    (draws,) = sample(phi, language.request(60, seed=2))
    assert (ids(draws), draws.counts.tokens) == (ids(usual), usual.counts.tokens)
    assert len(kept) > 1 and min(kept) < 0.6


LM = TableModel.random(VOCABULARY, seed=4)
PROMPTS = [(1, 2), (3,)]


def law(*tokens: int, row: int = 0) -> torch.Tensor:
    return torch.from_numpy(LM.logits((*PROMPTS[row], *tokens)))


def test_chains_are_evaluated_with_the_prompts_in_one_call() -> None:
    branches, root = Branches(LM, PROMPTS), Branch(-1, -1, 0)
    chain = [*root.along((5, 6, 7))][1:] + [Branch(-1, -1, 1).child(5)]
    logits = branches.reach(chain)
    assert [prefix.node for prefix in chain] == [2, 3, 4, 5] and branches.trees.counts.calls == 1
    assert torch.equal(logits.whole(), torch.stack([law(5), law(5, 6), law(5, 6, 7), law(5, row=1)]))
    assert torch.equal(branches.plant().whole(), torch.stack([law(), law(row=1)]))
    assert branches.trees.counts.calls == 1


def test_what_was_drafted_is_not_evaluated_again() -> None:
    """By a chain that another walk did not follow."""
    branches, root = Branches(LM, PROMPTS), Branch(-1, -1, 0)
    chain = [*root.along((5, 6, 7))]
    for prefix, answer in zip(chain, branches.reach(chain).each(), strict=True):
        prefix.answer = answer
    assert branches.trees.counts.tokens == 3
    logits = branches.reach(chain[2:])
    assert branches.trees.counts.tokens == 3
    assert torch.equal(logits.whole(), torch.stack([law(5, 6), law(5, 6, 7)]))


def test_nothing_asked_for_costs_the_prompts_alone() -> None:
    branches = Branches(LM, PROMPTS)
    for _ in range(2):
        assert (branches.reach([]).whole().shape, branches.trees.counts.calls) == ((0, len(VOCABULARY)), 1)


def test_what_no_walk_wants_is_forgotten() -> None:
    branches, root = Branches(LM, PROMPTS), Branch(-1, -1, 0)
    chain = [*root.along((5, 6, 7))][1:]
    chain[1].answer = branches.reach(chain).each()[1]
    branches.reach(chain[1:])
    assert branches.trees.counts.tokens == 4  # the second below a chain that was given up


def scores(language: Language, phi: StepPhi) -> torch.Tensor:
    """``log p + log h`` at every state and budget of a language, from a table of its own."""
    table = Table(language.table.guide)
    states = [(state, left) for state in states_of(table.guide, language.budget) for left in range(1, 6)]
    reachable = [(state, left) for state, left in states if table.guide.min_tokens(state) <= left]
    generator = torch.Generator().manual_seed(3)
    log_p = torch.log_softmax(
        torch.randn(len(reachable), len(VOCABULARY), generator=generator, dtype=torch.float64), -1
    )
    return phi.scores(log_p, table, [state for state, _ in reachable], [left for _, left in reachable])


@pytest.mark.parametrize("phi", [LocalPhi, OneStepPhi, LearnedPhi], ids=lambda phi: phi.name)
@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_few_live_tokens_are_picked_and_nothing_changes(
    phi: type[StepPhi], language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FEW", 10**9)
    whole = scores(language, phi())
    monkeypatch.setattr(tables, "FEW", 0)
    picked = scores(language, phi())
    assert len(whole) > 10 and (whole > -torch.inf).any(-1).all() and (whole == -torch.inf).any()
    assert torch.equal(whole == -torch.inf, picked == -torch.inf)
    assert torch.allclose(whole, picked, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("phi", [LocalPhi, OneStepPhi, LearnedPhi], ids=lambda phi: phi.name)
@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_rows_of_one_state_together_are_as_each_alone(phi: type[StepPhi], language: Language) -> None:
    table = Table(language.table.guide)
    log_p = torch.randn(5, len(VOCABULARY), generator=torch.Generator().manual_seed(5)).log_softmax(-1)
    state, left = table.start, language.budget
    other = next(
        found for found in states_of(table.guide, left) if found != state and table.guide.min_tokens(found) < left
    )
    states, remaining = [state, state, state, other, state], [left, left, left, left - 1, left]
    before = log_p.clone()
    together = phi().scores(log_p, table, states, remaining)
    apart = [phi().scores(log_p[[i]], table, [states[i]], [remaining[i]]) for i in range(5)]
    torch.testing.assert_close(together, torch.cat(apart))
    assert torch.equal(log_p, before)


@pytest.mark.parametrize("language", OF_EVERY_KIND, ids=str)
def test_logits_do_as_well_as_log_probabilities(language: Language) -> None:
    phi = OneStepPhi()
    logits = 3 * torch.randn(len(VOCABULARY), generator=torch.Generator().manual_seed(4), dtype=torch.float64) + 50
    table, left = language.table, 6
    of_logits = phi.log_h(logits[None], table, table.start, left)
    assert torch.allclose(
        of_logits, phi.log_h(logits.log_softmax(-1)[None], table, table.start, left), rtol=1e-6, atol=1e-6
    )


def test_it_imports_public_names_alone() -> None:
    source = ast.parse(Path(dp_frozen.__file__).read_text(encoding="utf-8"))
    ours = [
        node for node in ast.walk(source) if isinstance(node, ast.ImportFrom) and "outlines_phi" in str(node.module)
    ]
    assert len(ours) == 2
    for node in ours:
        assert (node.module or "").removeprefix("outlines_phi.") in outlines_phi.__all__
        assert {alias.name for alias in node.names} <= set(importlib.import_module(str(node.module)).__all__)
