"""A smaller model: drafts have the law that comes with them, whatever the rounds before."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_phi import SamplingSettings, UnsupportedError, Vocabulary
from outlines_phi.drafting import Draft, DraftRun, ModelDrafter, Site
from outlines_phi.drafting import model_drafter as drafting_model
from outlines_phi.errors import ModelError, VocabularyError
from outlines_phi.lm import TableModel
from tests.drafting.runs import propose, run_of, site_of, table_of
from tests.inner import DEAD, DONE, Proposer
from tests.languages import ALPHA, GRAMMARS, LANGUAGES, PROMPT, VOCABULARY, Language, p_value

SMALL = TableModel.random(VOCABULARY, seed=77, scale=1.0)
SIZE = len(VOCABULARY)
DRAFTS = 6_000


def oracle(run: DraftRun, site: Site, temperature: float = 1.0, masked: bool = True) -> np.ndarray:
    """Return ``r`` after a site, token by token: the tempered law of the small model, where the guide can go on."""
    p = np.exp(SMALL.logits((*site.prompt, *site.tokens)) / temperature)
    live = [not masked or site.after(v, run.table).state != DEAD for v in range(SIZE)]
    return p * live / (p * live).sum()


def chains(run: DraftRun, site: Site, length: int, **options: Any) -> dict[tuple[int, ...], float]:
    """Return the law of a draft of ``length`` tokens, by enumeration."""
    law = {(): 1.0}
    for _ in range(length):
        longer: dict[tuple[int, ...], float] = {}
        for chain, p in law.items():
            here = site
            for token in chain:
                here = here.after(token, run.table)
            if here.state == DONE or here.remaining <= 1:
                longer[chain] = p
                continue
            for token, r in enumerate(oracle(run, here, **options)):
                if r > 0 and (here.state != DEAD or not options.get("masked", True)):
                    longer[(*chain, token)] = p * r
        law = longer
    return law


@pytest.mark.parametrize("language", [*LANGUAGES[:3], *GRAMMARS[1:3]], ids=str)
def test_drafts_have_the_law_that_comes_with_them(language: Language) -> None:
    run = run_of(language.table, settings=SamplingSettings(temperature=0.7))
    site = site_of(run, budget=language.budget)
    drafts = propose(ModelDrafter(SMALL), run, [site] * DRAFTS, 3, seed=5)
    law = chains(run, site, 3, temperature=0.7)
    drawn = [draft.tokens for draft in drafts]
    assert p_value(drawn, law) > ALPHA
    assert p_value(drawn, chains(run, site, 3, temperature=1.0)) < ALPHA  # control
    for draft in drafts[:50]:
        here = site
        assert draft.log_r is not None and draft.log_r.shape == (len(draft.tokens), SIZE)
        for token, log_r in zip(draft.tokens, draft.log_r, strict=True):
            assert np.allclose(log_r.exp(), oracle(run, here, 0.7), atol=1e-6)
            here = here.after(token, run.table)


def test_drafts_of_two_walks_are_independent() -> None:
    language = LANGUAGES[1]
    run = run_of(language.table)
    site = site_of(run, budget=language.budget)
    drafts = propose(ModelDrafter(SMALL), run, [site] * DRAFTS, 2, seed=6)
    pairs = [(*a.tokens, -1, *b.tokens) for a, b in zip(drafts[::2], drafts[1::2], strict=True)]
    law = chains(run, site, 2)
    joint = {(*a, -1, *b): p * q for (a, p), (b, q) in itertools.product(law.items(), repeat=2)}
    assert p_value(pairs, joint) > ALPHA
    shared = [(*a.tokens, -1, *a.tokens) for a in drafts[::2]]
    assert p_value(shared, joint) < ALPHA  # control: one draft for both


def test_greedy_drafts_are_the_step_by_step_mode() -> None:
    language = LANGUAGES[1]
    run = run_of(language.table)
    drafter = ModelDrafter(SMALL, greedy=True)
    assert not drafter.sampled and ModelDrafter(SMALL).sampled
    site = site_of(run, budget=language.budget)
    (draft, *others) = propose(drafter, run, [site] * 5, 4)
    assert draft.log_r is None and all(other is draft for other in others)
    here = site
    for token in draft.tokens:
        assert token == int(oracle(run, here).argmax())
        here = here.after(token, run.table)
    assert len(draft.tokens) == 4 or int(oracle(run, here).argmax()) == 0


def test_as_many_calls_as_tokens_for_all_sites_together() -> None:
    run = run_of(table_of("[abcx]{30}"), prompts=[(1, 2), (3,), (5,)])
    proposer = Proposer(ModelDrafter(SMALL), run)
    trees = proposer._drafting.branches.trees  # type: ignore[attr-defined]
    streams = [np.random.default_rng(i) for i in range(6)]
    sites = [site_of(run, row=row % 3, budget=31) for row in range(6)]
    drafts = proposer.propose(sites, [4] * 6, streams)
    assert trees.counts.calls == 4
    before = trees.counts.tokens
    # Three tokens of every draft have been read; of walks that take two and one of their own, the own one alone is new.
    own = [next(v for v in (1, 2, 5, 7) if v != draft.tokens[2]) for draft in drafts]
    sites = [
        site_of(run, (*draft.tokens[:2], token), row=row % 3, budget=31)
        for row, (draft, token) in enumerate(zip(drafts, own, strict=True))
    ]
    proposer.propose(sites, [1] * 6, streams)
    assert trees.counts.calls == 5
    assert trees.counts.tokens - before == len({(site.row, site.tokens) for site in sites})


@given(st.integers(0, 10**6), st.booleans())
@settings(max_examples=30, deadline=None)
def test_what_was_proposed_before_changes_nothing(seed: int, tidy: bool) -> None:
    """After any rounds, drafts and laws are those of a fresh run; what is given back is read again."""
    rng = np.random.default_rng(seed)
    run = run_of(table_of("[abcx]{12}(ab|c)*"), prompts=[(1, 2), (3,)])
    waste, drafting_model.WASTE = drafting_model.WASTE, 3 if tidy else 1000
    try:
        proposer = Proposer(ModelDrafter(SMALL), run)
        sites = [site_of(run, row=row % 2, budget=24) for row in range(4)]
        for turn in range(6):
            keys = [(seed, turn, i) for i in range(4)]
            lengths = rng.integers(0, 4, size=4).tolist()
            drafts = proposer.propose(sites, lengths, [np.random.default_rng(key) for key in keys])
            for site, length, key, draft in zip(sites, lengths, keys, drafts, strict=True):
                (fresh,) = Proposer(ModelDrafter(SMALL), run).propose([site], [length], [np.random.default_rng(key)])
                assert fresh.tokens == draft.tokens
                assert draft.log_r is None or torch.allclose(draft.log_r, fresh.log_r)  # type: ignore[arg-type]
            sites = [moved(run, site, draft, rng) for site, draft in zip(sites, drafts, strict=True)]
    finally:
        drafting_model.WASTE = waste


def moved(run: DraftRun, site: Site, draft: Draft, rng: np.random.Generator) -> Site:
    """Return the site that a walk goes on to: some of its draft, then a token of its own; now and then it stays where it is."""
    if rng.random() < 0.1:
        return site
    for token in draft.tokens[: rng.integers(0, len(draft.tokens) + 1)]:
        site = site.after(token, run.table)
    live = run.table.moves(site.state, site.remaining).tokens if site.state not in (DEAD, DONE) else []
    return site.after(int(rng.choice(live)), run.table) if len(live) else site


def test_truncation_that_leaves_nothing_ends_a_chain() -> None:
    def law(sequence: tuple[int, ...]) -> np.ndarray:
        logits = np.zeros(SIZE)
        logits[5 if len(sequence) < 4 else 9] = 10.0  # "c" twice, then "("
        return logits

    run = run_of(table_of("c{3}x"), settings=SamplingSettings(top_k=1))
    for greedy in (False, True):
        (draft,) = propose(ModelDrafter(TableModel(VOCABULARY, law), greedy=greedy), run, [site_of(run)], 4)
        assert draft.tokens == (5, 5)


def test_a_short_context_ends_drafts() -> None:
    small = TableModel.random(VOCABULARY, seed=1, max_length=6)
    run = run_of(table_of("[abcx]{30}"), prompts=[PROMPT])
    lengths = {
        written: len(propose(ModelDrafter(small), run, [site_of(run, (1,) * written, budget=40)], 9)[0].tokens)
        for written in (0, 3, 4, 5, 9)
    }
    assert lengths == {0: 5, 3: 2, 4: 1, 5: 0, 9: 0}  # the last token is drawn, never read
    with pytest.raises(ModelError, match="Prompt 1 has 7 tokens and the context of the model that drafts is 6"):
        ModelDrafter(small).begin(run_of(table_of("a"), prompts=[PROMPT, (1,) * 7]))


def renamed(**changes: str) -> Vocabulary:
    tokens = [token.decode() for token in VOCABULARY.tokens]
    for at, text in changes.items():
        tokens[int(at[1:])] = text
    return Vocabulary.from_tokens(tokens, 0)


def test_other_vocabularies_are_refused_by_name() -> None:
    run = run_of(table_of("[ab]*"))
    with pytest.raises(VocabularyError, match="writes 2 tokens otherwise .* 3 as b'q' for b'ab', 5 as b'r' for b'c'"):
        ModelDrafter(TableModel.random(renamed(_3="q", _5="r"))).begin(run)
    shorter = Vocabulary.from_tokens([token.decode() for token in VOCABULARY.tokens[:5]], 0)
    with pytest.raises(VocabularyError, match=r"no row for 7 tokens .* 5 \(b'c'\).* and 2 more"):
        ModelDrafter(TableModel.random(shorter)).begin(run)
    missing = Vocabulary(VOCABULARY.tokens, (0,), np.arange(SIZE) != 4)
    with pytest.raises(VocabularyError, match=r"no row for 1 tokens .* 4 \(b'ba'\)"):
        ModelDrafter(TableModel.random(missing)).begin(run)
    for bad in ("gpt2", None, 3):
        with pytest.raises(UnsupportedError, match="expected a LanguageModel"):
            ModelDrafter(bad)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match="expected True or False"):
        ModelDrafter(SMALL, greedy=1)  # type: ignore[arg-type]


def padded(rows: int) -> Vocabulary:
    tokens = (*VOCABULARY.tokens, *[b""] * rows)
    return Vocabulary(tokens, (0,), np.arange(len(tokens)) < SIZE)


@pytest.mark.parametrize(("ours", "theirs"), [(0, 3), (3, 0), (2, 5)])
def test_rows_without_a_token_do_not_matter(ours: int, theirs: int) -> None:
    """Checkpoints of one tokenizer are padded to different sizes."""
    small = TableModel(padded(ours), lambda text: np.concatenate([SMALL.logits(text), np.full(ours, 3.0)]))
    plain = run_of(table_of("[abcx]{6}"))
    run = run_of(table_of("[abcx]{6}", padded(theirs)))
    (draft,) = propose(ModelDrafter(small), run, [site_of(run)], 4)
    (expected,) = propose(ModelDrafter(SMALL), plain, [site_of(plain)], 4)
    assert draft.tokens == expected.tokens
    assert draft.log_r is not None and expected.log_r is not None
    assert torch.equal(draft.log_r[:, :SIZE], expected.log_r)
    assert (draft.log_r[:, SIZE:] == -math.inf).all()


def test_a_law_of_nothing_but_nan_is_a_model_error() -> None:
    run = run_of(table_of("[ab]*"))
    broken = TableModel(VOCABULARY, lambda text: np.full(SIZE, math.nan))
    with pytest.raises(ModelError, match="NaN"):
        propose(ModelDrafter(broken), run, [site_of(run)])
