"""Texts of ``auto`` on formats with blocks: attempts, then fields over what these have evaluated."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from outlines_phi import AutoPhi, FidelityWarning, FieldsPhi, Guarantee
from outlines_phi.errors import InterruptedDraws
from outlines_phi.guides import JSONGuide, Table
from outlines_phi.lm import TableModel
from outlines_phi.sampling import lookahead
from outlines_phi.sampling.rejection import auto_sampler
from tests.inner import AutoSampler, TreeStore, watch, window_walks
from tests.languages import ALPHA, p_value
from tests.sampling.records import VOCABULARY, Record, ids

RECORD = Record(4, fit=5.2)

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few attempts that both kinds of draws come about."""
    monkeypatch.setattr(auto_sampler, "MOST_FAILED", 5)


@pytest.mark.usefixtures("few")
def test_texts_have_the_distribution_that_they_are_labelled_with() -> None:
    """Exact ones mu*, the others that of fields; neither has the other's."""
    drawn = [RECORD.draw(AutoPhi(width=4), 1, seed, rows=40, weighted=False) for seed in range(20)]
    kinds = {
        kind: ids([draw for draws in drawn for draw in draws if draw.guarantee == kind])
        for kind in (Guarantee.EXACT, Guarantee.FIELDWISE)
    }
    assert min(map(len, kinds.values())) > 60, {kind: len(some) for kind, some in kinds.items()}
    total = sum(RECORD.members.values())
    mu, fields = {y: p / total for y, p in RECORD.members.items()}, RECORD.law(FieldsPhi().least)[0]
    assert p_value(kinds[Guarantee.EXACT], mu) > ALPHA > p_value(kinds[Guarantee.EXACT], fields)
    assert p_value(kinds[Guarantee.FIELDWISE], fields) > ALPHA > p_value(kinds[Guarantee.FIELDWISE], mu)


@pytest.mark.usefixtures("few")
def test_more_draws_than_go_at_once_find_what_was_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookahead, "TOGETHER", 5)
    monkeypatch.setattr(window_walks, "WASTE", 20)
    draws = RECORD.draw(AutoPhi(width=2), 3, rows=12, weighted=False)
    assert len(draws) == 36 and {draw.guarantee for draw in draws} == {Guarantee.EXACT, Guarantee.FIELDWISE}


def test_a_text_of_one_block_is_labelled_as_those_of_several() -> None:
    record = Record(3)
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "additionalProperties": False}
    record.table = Table(JSONGuide.of(schema, VOCABULARY, blanks=""))
    record.lm = TableModel(VOCABULARY, lambda ids: np.zeros(len(VOCABULARY)))
    draws = record.draw(FieldsPhi(attempts=100_000, least=0.0), 60)
    assert {draw.guarantee for draw in draws} == {Guarantee.FIELDWISE}
    assert {draw.blocks for draw in draws} == {1, 2}


@pytest.mark.usefixtures("few")
def test_weights_are_drawn_by_candidates_and_a_warning_says_what_texts_are() -> None:
    with pytest.warns(FidelityWarning, match="Each field is drawn from the model's own distribution of that field"):
        RECORD.draw(AutoPhi(width=2), 20, weighted=False)
    assert {draw.guarantee for draw in RECORD.draw(AutoPhi(width=2, share=0.01), 4)} <= {
        Guarantee.WEIGHTED,
        Guarantee.EXACT,
    }


@pytest.mark.usefixtures("few")
def test_what_was_drawn_is_handed_over_where_fields_are_interrupted() -> None:
    def steps(self: object) -> object:
        raise KeyboardInterrupt

    sampler, seen = AutoSampler(AutoPhi(width=4), TreeStore()), []
    with mock.patch.object(lookahead.Lookahead, "steps", steps), pytest.raises(InterruptedDraws) as caught:
        sampler.sample(RECORD.request(1, rows=40, weighted=False))
    made = [draw for draws in caught.value.draws for draw in draws]
    assert 0 < len(made) < 40 and {draw.guarantee for draw in made} == {Guarantee.EXACT}
    with watch.watching(lambda at: seen.append(at.progress())):
        sampler.sample(RECORD.request(1, seed=2, rows=40, weighted=False))
    assert [each.draws for each in seen] == sorted(each.draws for each in seen)
    assert {each.wanted for each in seen} == {40}
