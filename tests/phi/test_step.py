"""Step estimators pick few live tokens of a row, or pass over all of it: the same numbers."""

import pytest
import torch

from outlines_phi import LearnedPhi, LocalPhi, OneStepPhi
from outlines_phi.guides import Table
from outlines_phi.guides import table as tables
from outlines_phi.phi import StepPhi
from tests.languages import OF_EVERY_KIND, VOCABULARY, Language
from tests.phi.walks import states_of


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
