"""The law of a grammar, by an enumeration that shares nothing with the engine; draws are compared with it in ``test_laws.py``."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from outlines_phi import BigramDPPhi, EmptyLanguageError, ExactPhi, LocalPhi
from outlines_phi.drafting import (
    AdaptedLength,
    Drafter,
    EndingDrafter,
    FirstOf,
    ForcedDrafter,
    ModelDrafter,
    PromptLookupDrafter,
    TreeDrafter,
)
from outlines_phi.guides import read_grammar
from outlines_phi.lm import TableModel
from outlines_phi.phi.dp_bigram import StateSpace
from tests.guides.grammar.definition import Definition
from tests.inner import AncestralSampler, ExactSampler, Prefetch, preexpand
from tests.languages import (
    ALPHA,
    DRAWS,
    GRAMMARS,
    PROMPT,
    VOCABULARY,
    GrammarLanguage,
    Language,
    p_value,
    pooled_p_value,
)

grammars = pytest.mark.parametrize("language", GRAMMARS, ids=str)
EOS = VOCABULARY.eos_ids[0]
Ids = tuple[int, ...]


def members(language: Language, budget: int) -> Iterator[Ids]:
    """All token sequences of at most ``budget`` tokens, the end included, whose text is a member by the definition."""
    definition = Definition(read_grammar(language.pattern), "abcx()")
    level: list[Ids] = [()]
    for _ in range(budget):
        for ids in level:
            if definition.is_member(VOCABULARY.decode(ids).decode()):
                yield (*ids, EOS)
        longer = ((*ids, token) for ids in level for token in range(len(VOCABULARY)) if token != EOS)
        level = [ids for ids in longer if definition.is_prefix(VOCABULARY.decode(ids).decode())]


def log_p(language: Language, ids: Ids) -> float:
    """``log p(y)``, a product of conditionals of the table that the model is."""
    total, settings = 0.0, language.settings()
    for end, token in enumerate(ids):
        logits = torch.from_numpy(language.lm.logits((*PROMPT, *ids[:end])))[None]
        total += float(settings.log_p(logits, VOCABULARY, ())[0][token])
    return total


@grammars
def test_the_members_and_their_probabilities_are_those_of_the_definition(language: Language) -> None:
    reference = language.reference()
    expected = set(members(language, language.budget))
    assert len(expected) > 40 and set(reference.log_p) == expected
    for ids in list(expected)[::7]:
        assert reference.log_p[ids] == pytest.approx(log_p(language, ids), abs=1e-5)


def test_near_the_end_of_the_budget_texts_that_only_longer_tokens_fit_in_are_left_out() -> None:
    """Distances are those of tokens that end one lexeme: ``cc`` ends two."""
    language = GrammarLanguage("merged", 'start: "x" "c" "c" "c" "c" | "x" start "a"', 8, seed=2)
    complete = set(members(language, 8))
    assert set(language.reference().log_p) < complete
    shortest = {ids for ids in complete if len(ids) == 4}
    assert shortest and shortest <= set(language.reference().log_p)
    with pytest.raises(EmptyLanguageError, match="needs 6 tokens") as refused:
        language.within(5).request(1, seed=0)
    assert refused.value.least_budget == 6  # though 4 do
    for budget in range(6, 8):
        assert shortest <= set(language.within(budget).reference().log_p) <= complete


def test_the_law_near_the_end_of_the_budget_is_that_of_what_is_left() -> None:
    language = GrammarLanguage("merged", 'start: "x" "c" "c" "c" "c" | "x" start "a"', 8, seed=2)
    draws = ExactSampler(ExactPhi()).sample(language.request(DRAWS // 4, seed=4))[0]
    mu = language.reference().mu
    assert p_value([draw.token_ids for draw in draws], mu) > ALPHA
    everything = {ids: math.exp(log_p(language, ids)) for ids in members(language, 8)}
    assert not set(everything) <= set(mu)


@grammars
def test_what_one_state_never_allows_another_may(language: Language) -> None:
    """States of a lexer have classes of their own; an induction over all of them tells their tokens apart."""
    space = StateSpace(language.table.guide, 50)
    for number, (state, row) in enumerate(space.rows.items()):
        tokens = torch.arange(len(VOCABULARY)).numpy()
        for token, target in enumerate(space.targets(tokens)[number].tolist()):
            assert target == language.table.guide.advance(state, token)
        for g in range(space.partition.size):
            alike = row.targets[row.partition.class_of[space.partition.members(g)]]
            assert len(set(alike.tolist())) <= 1
    draws = AncestralSampler(BigramDPPhi()).sample(language.request(200, seed=1))[0]
    assert not draws.failures


SMALL = TableModel.random(VOCABULARY, seed=77)
DRAFTERS: dict[str, Drafter] = {
    "forced": ForcedDrafter(),
    "ending": EndingDrafter(),
    "prompt_lookup": PromptLookupDrafter(ngram=1),
    "model, greedy": ModelDrafter(SMALL, greedy=True),
    "first_of": FirstOf((ForcedDrafter(), PromptLookupDrafter(ngram=1), ModelDrafter(SMALL, greedy=True))),
    "adapted_length": AdaptedLength(ModelDrafter(SMALL, greedy=True)),
    "model": ModelDrafter(SMALL),
}


@grammars
def test_drafts_that_are_not_drawn_change_no_walk(language: Language) -> None:
    plain = AncestralSampler(LocalPhi()).sample(language.request(200, seed=6))[0]
    drafted = 0
    for name in set(DRAFTERS) - {"model"}:
        sampler = AncestralSampler(LocalPhi(), draft=Prefetch(DRAFTERS[name], 4))
        draws = sampler.sample(language.request(200, seed=6))[0]
        assert [draw.token_ids for draw in draws] == [draw.token_ids for draw in plain], name
        drafted += draws.counts.drafted
    assert drafted


def test_drafts_that_are_drawn_change_no_law() -> None:
    """The statistics of all grammars are added."""
    samples = []
    for language in GRAMMARS:
        sampler, reference = AncestralSampler(LocalPhi(), draft=Prefetch(DRAFTERS["model"], 3)), language.reference()
        draws = sampler.sample(language.request(1500, seed=6))[0]
        drawn = [draw.token_ids for draw in draws]
        assert draws.counts.drafted
        assert p_value(drawn, reference.mu) < ALPHA  # control
        samples.append((drawn, reference.mask))
    assert pooled_p_value(samples) > ALPHA


def test_exact_draws_with_a_draft_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """From trees that start from nothing, a ninth of the draws under each drafter; the statistics of all grammars are added."""
    monkeypatch.setattr(preexpand, "SHORT", 0)
    samples = []
    for language in GRAMMARS:
        drawn: list[Ids] = []
        for seed, drafter in enumerate((*DRAFTERS.values(), TreeDrafter())):
            sampler = ExactSampler(ExactPhi(width=8), draft=Prefetch(drafter, 3))
            results = sampler.sample(language.request(3, seed=seed, rows=18))
            drawn += [draw.token_ids for draws in results for draw in draws]
        samples.append((drawn, language.reference().mu))
    assert pooled_p_value(samples) > ALPHA
