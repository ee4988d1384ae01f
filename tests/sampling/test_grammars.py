"""The law of a grammar, by an enumeration that shares nothing with the engine; draws are compared with it in ``test_laws.py``."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from outlines_phi.errors import EmptyLanguageError
from outlines_phi.guides.grammar.oracle import GrammarOracle
from outlines_phi.guides.grammar.reader import read_grammar
from outlines_phi.phi.bigram import BigramDPPhi, StateSpace
from outlines_phi.phi.exact import ExactPhi
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.exact import ExactSampler
from tests.languages import ALPHA, DRAWS, GRAMMARS, PROMPT, VOCABULARY, GrammarLanguage, Language, p_value

grammars = pytest.mark.parametrize("language", GRAMMARS, ids=str)
EOS = VOCABULARY.eos_ids[0]
Ids = tuple[int, ...]


def members(language: Language, budget: int) -> Iterator[Ids]:
    """All token sequences of at most ``budget`` tokens, the end included, whose text the oracle says is a member."""
    letters = [text for token, text in enumerate(VOCABULARY.tokens) if token != EOS]
    oracle = GrammarOracle(read_grammar(language.pattern), letters)
    level: list[Ids] = [()]
    for _ in range(budget):
        for ids in level:
            if oracle.is_member(VOCABULARY.decode(ids)):
                yield (*ids, EOS)
        longer = ((*ids, token) for ids in level for token in range(len(VOCABULARY)) if token != EOS)
        level = [ids for ids in longer if oracle.is_prefix(VOCABULARY.decode(ids))]


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
