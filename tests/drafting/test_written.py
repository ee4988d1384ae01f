"""Paths that were written before, for samplers that keep no bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import LocalPhi, SamplingSettings
from outlines_phi.drafting import DraftRun, PromptLookupDrafter, TreeDrafter, earlier_texts
from tests.drafting.runs import run_of, site_of, table_of
from tests.inner import Proposer, TreeStore, sampler_for
from tests.languages import LANGUAGES

EOS, A, B, AB, BA, C, CC, X = range(8)
TEXTS = st.lists(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=5).map(tuple), max_size=8)


def drafts(
    run: DraftRun, *rounds: Sequence[tuple[int, ...]], length: int = 4, row: int = 0
) -> list[list[tuple[int, ...]]]:
    """Return the proposals in each round of a call, for texts of one prompt."""
    proposer = Proposer(TreeDrafter(), run)
    streams = [np.random.default_rng(0)] * 9
    found = []
    for texts in rounds:
        sites = [site_of(run, tokens, row=row) for tokens in texts]
        found.append([d.tokens for d in proposer.propose(sites, [length] * len(sites), streams[: len(sites)])])
    return found


def run(seed: int | None = 0, **options: object) -> DraftRun:
    return run_of(table_of("[abcx]{0,12}"), settings=SamplingSettings(seed=seed), **options)


def test_who_lags_behind_follows_who_is_ahead() -> None:
    assert drafts(run(), [(), (A, B, C)]) == [[(A, B, C), ()]]
    assert drafts(run(), [(A, B), (A, C), (A, C)], [(A,), (C,), (A, C, C)]) == [[(), (), ()], [(C, C), (), ()]]


@given(TEXTS, st.lists(st.sampled_from([A, B, C]), max_size=4), st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_the_way_that_was_taken_most_often(texts: list[tuple[int, ...]], start: list[int], length: int) -> None:
    """Against counting, for texts that are all different: a site that several walks share is asked about once."""
    known = earlier_texts.History()
    for text in texts:
        known.take_note(text)
    found = known.after(start, length)
    here = tuple(start)
    for token in found:
        below = Counter(text[len(here)] for text in texts if text[: len(here)] == here and len(text) > len(here))
        assert below[token] == max(below.values())
        here += (token,)
    assert len(found) == length or not any(text[: len(here)] == here and len(text) > len(here) for text in texts)


def test_a_prompt_knows_of_its_own_texts_alone() -> None:
    both = run(prompts=[(1, 2), (1, 2)])
    proposer = Proposer(TreeDrafter(), both)
    sites = [site_of(both, (A, B), row=0), site_of(both, row=1)]
    assert [draft.tokens for draft in proposer.propose(sites, [4, 4], [np.random.default_rng(0)] * 2)] == [(), ()]


def test_later_calls_without_a_seed_know_what_was_written() -> None:
    table = table_of("[abcx]{0,12}")

    def asked(seed: int | None, prompt: tuple[int, ...], *texts: tuple[int, ...]) -> list[tuple[int, ...]]:
        (found,) = drafts(run_of(table, settings=SamplingSettings(seed=seed), prompts=[prompt]), texts)
        return found

    assert asked(None, (1, 2), (), (A, B)) == [(A, B), ()]
    assert asked(None, (1, 2), ()) == [(A, B)]
    assert asked(0, (1, 2), ()) == asked(None, (2, 1), ()) == [()]
    asked(0, (3,), (C,))
    assert asked(None, (3,), ()) == [()]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_texts, "PLACES", 3)
    monkeypatch.setattr(earlier_texts, "PROMPTS", 2)
    kept, _ = earlier_texts.histories()
    first = kept.of((1,), earlier_texts.History)
    first.take_note((A, B))
    first.take_note((C, A, B))
    assert first.after((), 9) in {(A, B), (C,)} and first.after((C,), 9) == ()
    kept.of((2,), earlier_texts.History)
    assert kept.of((1,), earlier_texts.History) is first
    kept.of((3,), earlier_texts.History)
    assert (1,) in kept and len(kept) == 2


def test_walks_take_fewer_turns_and_write_the_same() -> None:
    """A call that is made again: all but the last round of its text is known."""
    language = replace(LANGUAGES[1])
    turns: dict[str, list[int]] = {}
    for name, drafter in {"tree": TreeDrafter(), "prompt_lookup": PromptLookupDrafter()}.items():
        sampler, texts = sampler_for(LocalPhi(), TreeStore(), drafter=drafter, length=4), []
        for _ in range(3):
            torch.manual_seed(3)
            (draws,) = sampler.sample(language.request(1, None))
            texts.append(draws[0].token_ids)
            turns.setdefault(name, []).append(draws.counts.turns)
        assert texts[0] == texts[1] == texts[2] and len(texts[0]) > 4
    assert turns["tree"][0] == len(texts[0]) > turns["tree"][1] >= turns["tree"][2]
    assert len(set(turns["prompt_lookup"])) == 1  # control: what remembers nothing gains nothing
