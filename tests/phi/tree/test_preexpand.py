"""What is read of a short language before its first walk, and what after."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from outlines_phi.errors import BudgetError
from outlines_phi.fidelity.probabilities import probabilities
from outlines_phi.guides.fsm import FSMGuide
from outlines_phi.guides.table import Table
from outlines_phi.phi.constraint import TextConstraint
from outlines_phi.phi.tree import preexpand as short
from outlines_phi.phi.tree.evaluator import Evaluator
from outlines_phi.phi.tree.preexpand import expand_finite, expand_short, live_prefixes, usual_tokenizations
from outlines_phi.phi.tree.store import TreeStore
from outlines_phi.phi.tree.tree import BoundsTree
from outlines_phi.sampling.phi_options import Effort, ExactPhi
from outlines_phi.sampling.ranking import rank
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from tests.languages import ALPHA, DRAWS, GRAMMARS, LANGUAGES, PROMPT, VOCABULARY, Language, p_value

TEXTS = Language("texts", "abab|abba|baab|aabb|ccab", 7, seed=2)
"""Of 5 texts, 11 prefixes of their usual tokenizations, and 46 live prefixes, under a law to which all tokenizations are alike."""

WHOLE = len(live_prefixes(BoundsTree(TEXTS.table, TEXTS.budget), 512) or ())


@pytest.fixture
def larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the language too large to be known at once."""
    monkeypatch.setattr(short, "CHEAP", 16)


def ready(language: Language = TEXTS, limit: int = 512) -> tuple[BoundsTree, Evaluator]:
    tree = BoundsTree(language.table, language.budget)
    evaluator = Evaluator(language.lm, language.settings(), [PROMPT], [tree])
    expand_short([tree], evaluator, limit)
    return tree, evaluator


def expanded(tree: BoundsTree) -> set[tuple[int, ...]]:
    return {node.tokens() for node in tree.walk() if node.distribution is not None}


def test_few_prefixes_are_read_at_once() -> None:
    tree, evaluator = ready()
    assert len(expanded(tree)) == WHOLE > 16 and evaluator.counts.calls == 1
    assert math.exp(tree.root.log_gap) < 1e-12


def test_usual_tokenizations_come_first_and_the_others_all_at_once(larger: None) -> None:
    tree, evaluator = ready()
    usual = {
        tokens[:end] for tokens in usual_tokenizations(TEXTS.table, TEXTS.table.start) for end in range(len(tokens) + 1)
    }
    assert expanded(tree) == usual and len(usual) < 16 < WHOLE and evaluator.counts.calls == 1
    evaluator.expand([])
    assert evaluator.counts.calls == 1
    unusual = next(
        child
        for token in range(len(VOCABULARY))
        if (target := tree.target(tree.root, token)) > 1
        and (child := tree.child(tree.root, token, target)).distribution is None
    )
    evaluator.expand([(tree, unusual)])
    assert len(expanded(tree)) == WHOLE and evaluator.counts.calls == 2 and math.exp(tree.root.log_gap) < 1e-12


@pytest.mark.parametrize("seed", [1, 2])
def test_draws_have_their_law_in_two_calls(larger: None, seed: int) -> None:
    """Where the model cares nothing for usual tokenizations, most walks leave them."""
    reference = TEXTS.reference()
    draws = ExactSampler(ExactPhi()).sample(TEXTS.request(DRAWS, seed))[0]
    drawn = [draw.token_ids for draw in draws]
    assert p_value(drawn, reference.mu) > ALPHA
    assert p_value(drawn, reference.mask) < ALPHA
    assert draws.counts.calls == 2 and draws.counts.tokens == WHOLE - 1
    for n in range(1, 4):
        assert ExactSampler(ExactPhi()).sample(TEXTS.request(n, seed, rows=2))[0].counts.calls <= 2


def test_a_certificate_enumerates_the_language(larger: None) -> None:
    """Where the model cares nothing for usual tokenizations, no tolerance is met by them."""
    draws = ExactSampler(ExactPhi(tolerance=1e-9)).sample(TEXTS.request(5, 1))[0]
    assert draws.counts.calls == 2 and draws.counts.tokens == WHOLE - 1


def test_an_enumeration_begins_with_usual_tokenizations(larger: None) -> None:
    """They are enough for a coarse tolerance; what is left of a short language is then read whole."""
    usual = {
        tokens[:end]
        for tokens in usual_tokenizations(TEXTS.table, TEXTS.table.start)
        for end in range(1, len(tokens) + 1)
    }
    phi = math.exp(TEXTS.reference().log_phi)
    law = Counter[str]()
    for tokens, p in TEXTS.reference().mu.items():
        law[VOCABULARY.decode(tokens).decode()] += p  # type: ignore[assignment]
    for tolerance, calls, spent in ((1e4, 1, len(usual)), (1e-3, 2, WHOLE - 1), (0.0, 1, WHOLE - 1)):
        tree = BoundsTree(TEXTS.table, TEXTS.budget)
        (found,) = probabilities(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree], tolerance=tolerance, max_tokens=1000)
        assert (found.counts.calls, found.counts.tokens) == (calls, spent)
        lower, upper = tuple(map(math.exp, tree.log_bounds))
        assert lower <= phi * (1 + 1e-12) and phi <= upper * (1 + 1e-12) and upper - lower <= tolerance * lower + 1e-12
        for text, p in law.items():
            assert found[text].lo - 1e-12 <= p <= found[text].hi + 1e-12


@pytest.mark.parametrize("effort", [1, 5, 10, 12, 20, 40])
def test_an_effort_of_few_tokens_reads_no_more(larger: None, effort: int) -> None:
    """What usual tokenizations cost is part of it."""
    tree = BoundsTree(TEXTS.table, TEXTS.budget)
    with pytest.raises(BudgetError):
        probabilities(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree], tolerance=1e-3, max_tokens=effort)
    assert tree.expansions <= effort + 1
    store = TreeStore()
    with store.lend(TEXTS.lm, TEXTS.settings(), TEXTS.table, [PROMPT], [TEXTS.budget]) as (kept,):
        pass
    with pytest.raises(BudgetError):
        rank(TEXTS.request(1, None), 10_000, store, effort=Effort(tokens=effort))
    assert 0 < kept.expansions <= effort + 16, "give or take one call"


def test_a_search_after_walks_knows_the_language(larger: None) -> None:
    """Whatever walks have left open: the bounds of a short language are points."""
    tree, evaluator = ready()
    assert math.exp(tree.root.log_gap) > 0
    expand_finite([tree], evaluator)
    assert math.exp(tree.root.log_gap) == 0 and evaluator.counts.calls == 2
    expand_finite([tree], evaluator)
    assert evaluator.counts.calls == 2 and evaluator.counts.tokens == WHOLE - 1


def test_laws_that_were_dropped(larger: None) -> None:
    """To learn a law again is no reason to learn others, and no child gets a probability that nobody knows."""
    tree, evaluator = ready()
    known = math.exp(tree.root.log_lower), math.exp(tree.root.log_upper)
    tree.drop_distributions(0)
    dropped = [node for node in tree.walk() if node.expanded and node.distribution is None and node.state > 1]
    evaluator.expand([(tree, dropped[0])])
    assert (
        dropped[0].distribution is not None and (math.exp(tree.root.log_lower), math.exp(tree.root.log_upper)) == known
    )
    for search in (evaluator, Evaluator(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree])):
        tree.drop_distributions(0)
        expand_finite([tree], search)
        assert known[0] <= math.exp(tree.root.log_lower) <= math.exp(tree.root.log_upper) <= known[1]


@pytest.mark.parametrize("max_bytes", [0, 300, 1000])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_law_holds_under_any_memory(larger: None, max_bytes: int, seed: int) -> None:
    draws = ExactSampler(ExactPhi(), TreeStore(max_bytes)).sample(TEXTS.request(400, seed))[0]
    assert p_value([draw.token_ids for draw in draws], TEXTS.reference().mu) > ALPHA


def test_a_kept_tree_is_not_read_again(larger: None) -> None:
    sampler = ExactSampler(ExactPhi())
    first, second = (sampler.sample(TEXTS.request(400, None))[0] for _ in range(2))
    assert first.counts.calls == 2 and second.counts.calls == 0


def test_budgets_and_constraints_cut_spellings(larger: None) -> None:
    tree, _ = ready(TEXTS.within(3))
    assert {len(tokens) for tokens in expanded(tree)} == {0, 1, 2}
    ruled_out = TextConstraint(lambda text: not text.startswith("cc")).over(VOCABULARY)
    tree = BoundsTree(TEXTS.table, TEXTS.budget, ruled_out)
    expand_short([tree], Evaluator(TEXTS.lm, TEXTS.settings(), [PROMPT], [tree]))
    written = {VOCABULARY.decode(tokens) for tokens in expanded(tree)}
    assert written and not any(text.startswith(b"cc") for text in written)


def test_nothing_is_known_of(larger: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Infinite and long languages, states within, guides without an automaton, and where nothing is to be read ahead."""
    for language in (LANGUAGES[0], LANGUAGES[1], GRAMMARS[0]):
        assert usual_tokenizations(language.table, language.table.start) == ()
    assert usual_tokenizations(TEXTS.table, TEXTS.table.guide.advance(TEXTS.table.start, 1)) == ()
    tree, evaluator = ready(limit=0)
    assert evaluator.counts.calls == 0 and not tree.root.expanded
    monkeypatch.setattr(short, "FREE", 4)
    monkeypatch.setattr(short, "FINITE_PREFIXES", 20)
    assert (
        usual_tokenizations(Table(FSMGuide.from_automaton(TEXTS.table.guide.automaton, VOCABULARY)), TEXTS.table.start)
        == ()
    )
