"""Draws field by field against their law by enumeration in plain Python, beside samplers of others (theory.md, section 6.5)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from outlines_phi import BudgetError, ExactPhi, FieldsPhi, Guarantee, LocalPhi, TextConstraint, UnsupportedError
from outlines_phi.guides import FSMGuide, Table
from tests.inner import compile_regex
from tests.languages import ALPHA, p_value, z
from tests.sampling.records import TEXTS, VOCABULARY, Record, ids

FREE, BANNED = Record(4), Record(5, phrase=b'x","y')
records = pytest.mark.parametrize("record", [FREE, BANNED], ids=["free", "banned"])
N = 700


@records
@pytest.mark.parametrize("least", [0.0, 0.1, 0.9])
def test_each_block_has_the_distribution_of_the_model(record: Record, least: float) -> None:
    law, blocks = record.law(least)
    draws = record.draw(FieldsPhi(least=least, attempts=10_000), N)
    assert p_value(ids(draws), law) > ALPHA
    assert all(draw.blocks == blocks[draw.token_ids] for draw in draws)
    assert {draw.guarantee for draw in draws} == {Guarantee.FIELDWISE}
    assert all(math.isnan(draw.log_w) and draw.picked == 0 for draw in draws)


@records
def test_masking_and_the_conditioned_distribution_are_others(record: Record) -> None:
    law, _ = record.law(0.1)
    assert p_value(ids(record.draw(LocalPhi(), N)), law) < ALPHA
    assert p_value(ids(record.draw(ExactPhi(), N)), law) < ALPHA


@records
@pytest.mark.parametrize("attempts", [1, 10_000])
def test_weights_have_the_mean_of_future_validity(record: Record, attempts: int) -> None:
    """The mean is right for blocks that are accepted and, after one failed attempt, picked by weight; for a statistic, too."""
    draws = record.draw(FieldsPhi(weights=True, attempts=attempts), N)
    w = np.exp([draw.log_w for draw in draws])
    assert abs(z(np.append(w, np.zeros(N - len(w))), sum(record.members.values()))) < 4
    true = np.array([b"true" in record.text(draw.token_ids) for draw in draws])
    mean = sum(p for y, p in record.members.items() if b"true" in record.text(y))
    assert abs(z(np.append(w * true, np.zeros(N - len(w))), mean)) < 4
    assert {draw.guarantee for draw in draws} == {Guarantee.WEIGHTED}
    assert any(draw.picked for draw in draws) == (attempts == 1)


def test_a_block_that_runs_out_of_attempts_is_picked_and_says_so() -> None:
    draws = FREE.draw(FieldsPhi(attempts=8), 200)
    picked = [draw for draw in draws if draw.picked]
    assert picked
    assert {draw.guarantee for draw in picked} == {Guarantee.APPROXIMATE}
    assert {draw.guarantee for draw in draws if not draw.picked} == {Guarantee.FIELDWISE}
    assert all(record_text in TEXTS for record_text in map(FREE.text, (draw.token_ids[:-1] for draw in draws)))


def test_a_format_without_blocks_is_one_block_and_exact() -> None:
    record = Record(6)
    record.texts = [b"xy", b"true", b"x"]
    record.table = Table(FSMGuide.from_automaton(compile_regex("xy|true|x"), VOCABULARY))
    law, _ = record.law(0.0)
    draws = record.draw(FieldsPhi(attempts=10_000), N, seed=2)
    assert p_value(ids(draws), law) > ALPHA
    assert {(draw.guarantee, draw.blocks) for draw in draws} == {(Guarantee.EXACT, 1)}


def test_a_predicate_on_whole_texts_is_refused() -> None:
    constraint = TextConstraint(complete=lambda text: True).over(VOCABULARY)
    with pytest.raises(UnsupportedError, match="phi='fields', which commits a text before"):
        FREE.draw(FieldsPhi(), 1, constraint=constraint)


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"candidates": 0}, {"least": 1.0}, {"weights": 1}, {"width": 0}])
def test_options_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((UnsupportedError, BudgetError)):
        FieldsPhi(**wrong)  # type: ignore[arg-type]
