"""Exact within an effort, weighted beyond it: every stage by its own law, on trees that start from nothing."""

import datetime
import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from outlines.types import regex
from pydantic import BaseModel, Field

from outlines_phi import (
    AutoPhi,
    BudgetError,
    Draws,
    Effort,
    ExactPhi,
    FidelityWarning,
    Generator,
    Guarantee,
    LocalPhi,
    SamplingSettings,
    Vocabulary,
    from_transformers,
)
from outlines_phi.guides import FSMGuide, Table
from outlines_phi.sampling.rejection.adaptive_proposal import STATE, AdaptiveTrajectories, BackedUpValues, last_state
from tests.inner import (
    DONE,
    CallOptions,
    Request,
    TableModel,
    TreeStore,
    TwoStages,
    bundled,
    compile_regex,
    frequencies,
    log_sum,
    noise_floor,
    scaled,
    total_variation,
)
from tests.inner import draw as at_weights
from tests.languages import (
    ALPHA,
    AND_OPEN,
    LANGUAGES,
    LATE,
    LOOP,
    PROMPT,
    VOCABULARY,
    WORDS,
    Language,
    deviation,
    errors_of,
    ids,
    languages,
    p_value,
    pooled_p_value,
    sample,
    tree_of,
    z,
)
from tests.loaded import Person

WEIGHTED = AutoPhi(share=0, candidates=1)
ROWS = 40
"""Prompts of each of seven languages: a bias of all shows as it would in 280 of one, and that of the controls in any of them."""


pytestmark = [
    pytest.mark.usefixtures("grown"),
    pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning"),
]


def test_weights_of_learning_trajectories_are_unbiased() -> None:
    """E[w f] = Phi mu*(f) over runs of 48 trajectories in 3 rounds, each of which learns from those before it."""
    few = {"Dyck": 5 * ROWS}  # of whose trajectories weigh most
    errors = [
        errors_of(sample(WEIGHTED, language.request(48, seed=5, rows=few.get(language.name, ROWS))), language)
        for language in AND_OPEN
    ]
    assert all(deviation(column) < 3.5 for column in zip(*errors, strict=True))


def test_scoring_all_trajectories_by_the_last_proposal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: weights under the proposal of the end, not of the round that a trajectory was drawn in, are biased."""
    advance = AdaptiveTrajectories.advance

    def rescoring(self: AdaptiveTrajectories) -> list:
        waiting = advance(self)
        if not waiting:
            self._values.refresh()
            for trajectory in self.trajectories:
                trajectory.log_q[STATE:] = rescored(self._values, trajectory.node)
        return waiting

    monkeypatch.setattr(AdaptiveTrajectories, "advance", rescoring)
    for language in (WORDS, LOOP):
        error, _ = errors_of(sample(WEIGHTED, language.request(48, seed=5, rows=ROWS)), language)
        assert abs(error) > 5


def rescored(values: BackedUpValues, node) -> list[float]:
    """Return ``log q`` of a member under the usual values of states and those of prefixes, as they are now."""
    log_q = np.zeros(2)
    for below in node.path():
        parent = below.parent
        free, usual, beyond = values.free(parent), values.usual(parent), values.beyond(parent)
        log_totals = [log_sum(free.log_mass + usual), log_sum(free.log_mass + beyond)]
        for child in parent.children.values():
            log_v = np.array([usual[free.states.searchsorted(child.state)], values.of(parent, child)])
            log_totals = np.logaddexp(log_totals, child.log_step + log_v)
        log_v = np.array([usual[free.states.searchsorted(below.state)], values.of(parent, below)])
        log_q += below.log_step + log_v - log_totals
    return log_q.tolist()


def test_a_picked_draw_has_the_mean_weight_of_its_candidates() -> None:
    """E[w f] = Phi mu*(f) for draws that are picked by weight, and alone they are much nearer to mu* than masking."""
    errors, nearer = [], []
    for language in AND_OPEN:
        reference = language.reference()
        results = sample(AutoPhi(share=0), language.request(1, seed=6, rows=2 * ROWS))
        errors.append(errors_of(results, language))
        for (draw,) in results:
            assert draw.candidates == 32 and 1 <= draw.ess <= 32 and draw.guarantee == Guarantee.WEIGHTED
        excess = total_variation(frequencies(ids(*results)), reference.mu) - noise_floor(reference.mu, len(results))
        nearer.append(excess / total_variation(reference.mask, reference.mu))
    assert all(deviation(column) < 3.5 for column in zip(*errors, strict=True))
    assert max(nearer) < 0.5


def test_exact_draws_of_a_mixed_set_are_exact() -> None:
    """An effort that often runs out: the draws that say EXACT have the law mu* at every place, the others are unbiased.

    The statistics of both languages are added: a bias of both shows as in 400 rows of one.
    """
    exact, errors = [], []
    for language, share in ((WORDS, 0.3), (LOOP, 0.6)):
        reference, results = (
            language.reference(),
            sample(AutoPhi(share=share, width=8), language.request(3, 8, rows=200)),
        )
        kinds = [tuple(draw.guarantee for draw in draws) for draws in results]
        assert 20 < sum(Guarantee.WEIGHTED in kind and Guarantee.EXACT in kind for kind in kinds)
        first = [draws[0].token_ids for draws in results if draws[0].guarantee == Guarantee.EXACT]
        assert len(first) > 100
        exact.append((first, reference.mu))
        phi, top = math.exp(reference.log_phi), max(reference.mu, key=lambda y: reference.mu[y])
        last = [draws[-1] for draws in results if draws[-1].guarantee == Guarantee.WEIGHTED]
        w = np.array([math.exp(draw.log_w) for draw in last]) / phi
        errors.append((z(w, 1.0), z(w * [draw.token_ids == top for draw in last], reference.mu[top])))
        assert all(draws.guarantee == min(draw.guarantee for draw in draws) for draws in results)
    assert pooled_p_value(exact) > ALPHA
    assert all(deviation(column) < 3.5 for column in zip(*errors, strict=True))
    masked = ids(*sample(LocalPhi(), WORDS.request(1, seed=8, rows=400)))  # the control
    assert p_value(masked, WORDS.reference().mu) < ALPHA


class TwoLengths(Language):
    """A language of one short text and many long ones, all about as likely as not to be finished."""

    @cached_property
    def lm(self) -> TableModel:
        def law(sequence: tuple[int, ...]) -> np.ndarray:
            match VOCABULARY.decode(sequence[len(PROMPT) :]).decode():
                case "":
                    p = {"a": 0.2, "b": 0.3, "x": 0.5}
                case text if text == "a" or len(text) == 8:
                    p = {"": 0.5, "x": 0.5}
                case _:
                    p = {"a": 0.3, "b": 0.3, "c": 0.3, "x": 0.1}
            with np.errstate(divide="ignore"):
                return np.log([p.get(VOCABULARY.decode([token]).decode(), 0.0) for token in range(len(VOCABULARY))])

        return TableModel(VOCABULARY, law)


TWO_LENGTHS = TwoLengths("two lengths", "a|b[abc]{7}", 9, seed=0)


def of_weighted_draws(results: list[Draws]) -> tuple[np.ndarray, np.ndarray]:
    """Return w and w f, in units of Phi, of the rows whose single draw is weighted; f is being a long text."""
    phi = math.exp(TWO_LENGTHS.reference().log_phi)
    rows = [draws for draws in results if draws.guarantee != Guarantee.EXACT]
    w = np.array([math.exp(draws[0].log_w) if draws.items else 0.0 for draws in rows]) / phi
    return w, w * [bool(draws.items) and len(draws[0].token_ids) > 2 for draws in rows]


class TestCandidatesBesideAttempts:
    """Attempts that candidates have walked beside decide if a draw is weighted, and say nothing of the candidates."""

    phi = AutoPhi(share=0.1, candidates=1, width=2)

    def test_weights_of_weighted_draws_are_unbiased(self) -> None:
        results = sample(self.phi, TWO_LENGTHS.request(1, seed=8, rows=900))
        long = sum(share for tokens, share in TWO_LENGTHS.reference().mu.items() if len(tokens) > 2)
        w, f = of_weighted_draws(results)
        assert 300 < len(w) < 700 and abs(z(w, 1.0)) < 3.5 and abs(z(f, long)) < 3.5
        drawn = [draws[0].token_ids for draws in results if draws.guarantee == Guarantee.EXACT]
        assert p_value([(len(tokens),) for tokens in drawn], {(2,): 1 - long, (9,): long}) > ALPHA

    def test_launching_as_long_as_candidates_walk_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Control: then those of weighted draws are the short ones, because long ones let attempts succeed."""

        def race(self: TwoStages) -> list:
            waiting = self.attempts.advance()
            if self.attempts.satisfied:
                return []
            candidates = self._weighted().advance()
            self.attempts.stopped = not candidates
            return waiting + candidates

        monkeypatch.setattr(TwoStages, "advance", race)
        w, _ = of_weighted_draws(sample(AutoPhi(candidates=1, width=2), TWO_LENGTHS.request(1, seed=8, rows=600)))
        assert abs(z(w, 1.0)) > 5


def test_nothing_is_evaluated_twice_and_trees_are_kept() -> None:
    store, request = TreeStore(), LATE.request(4, seed=None)
    (draws,) = sample(AutoPhi(share=0.1), request, store=store)
    assert draws.counts.tokens == tree_of(store, request).expansions - 1  # the prompt's law is no generated token
    assert sample(AutoPhi(share=0.1), request, store=store)[0].counts.tokens < draws.counts.tokens


def test_a_small_memory_changes_no_law() -> None:
    request = LOOP.request(8, seed=9, rows=2 * ROWS)
    errors = [
        errors_of(sample(phi, request, store=TreeStore(6_000 * 2 * ROWS)), LOOP)
        for phi in (WEIGHTED, AutoPhi(share=0.1))
    ]
    assert all(deviation(column) < 3.5 for column in zip(*errors, strict=True))


@languages
def test_values_meet_phi_where_the_tree_is_complete(language: Language) -> None:
    """V is held within the bounds, so it is Phi itself once they meet, and it is positive wherever U is."""
    store, request = TreeStore(), language.request(2000, seed=None)
    sample(AutoPhi(), request, store=store)
    tree = tree_of(store, request)
    values = BackedUpValues(tree)
    values.refresh()
    for node in tree.walk():
        if node.parent is not None and node.parent.distribution is not None and node.state != DONE:
            value = values.of(node.parent, node)
            # The sums of what ends the text and of all that is live may differ in their last digit.
            assert node.log_lower - 1e-12 <= value and (not node.expanded or value <= node.log_upper)
            assert value > -math.inf or node.log_upper == -math.inf


def test_one_warning_for_a_call_of_many_prompts() -> None:
    with pytest.warns(FidelityWarning) as caught:
        results = sample(AutoPhi(share=0.02), LATE.request(3, seed=1, rows=5))
    (warning,) = caught
    weighted = sum(draw.guarantee == Guarantee.WEIGHTED for draws in results for draw in draws)
    assert 0 < weighted and f"{weighted} of 15 draws are not exact" in str(warning.message)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("phi", "kind"), [(AutoPhi(share=0), Guarantee.WEIGHTED), (AutoPhi(), Guarantee.EXACT)])
def test_no_warning_where_weights_were_asked_for_or_all_draws_are_exact(phi: AutoPhi, kind: Guarantee) -> None:
    (draws,) = sample(phi, WORDS.request(50, seed=1))
    assert draws.guarantee == kind and draws.failures == 0


class Stalled(BaseModel):
    name: str = Field(max_length=20)
    age: int
    colour: Literal["red", "green", "blue"]


MODEL = from_transformers(*bundled.load())
QUESTION, STORY = "Question: is the bakery open on Sunday? Answer: ", "Character: Aria is a brave elf. Story: "


def cost(draws: Draws) -> float:
    """Return the time of the model calls of some draws, in times of a call over one prefix."""
    later = MODEL.lm.cost.later
    return (1 - later) * draws.counts.calls + later * draws.counts.tokens


@pytest.mark.parametrize(
    ("prompt", "output_type", "exact_is_cheaper"),
    [
        (STORY, int, True),
        pytest.param(STORY, float, True, marks=pytest.mark.full),
        (STORY, str, False),
        pytest.param("Date: ", datetime.date, True, marks=pytest.mark.full),
        (STORY, datetime.date, True),
        (QUESTION, Person, True),
        ("Time: ", datetime.time, False),
        ("Brackets: ", regex(r"(\(\)|\[\]){4}x"), False),
        pytest.param("Person: Nora is a teacher. JSON: ", Stalled, False, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_a_cold_single_draw_costs_at_most_two_and_a_half_times_what_is_cheaper(
    prompt: str, output_type: Any, exact_is_cheaper: bool
) -> None:
    """In the median; and it is exact in most cases where exact draws are cheaper than weighted ones."""
    costs: dict[str, list[float]] = {"exact": [], "weighted": [], "auto": []}
    exact, generator = 0, Generator(MODEL, output_type)
    for seed in range(3):
        weighted = generator.sample(prompt, seed=seed, phi=AutoPhi(share=0))
        auto = generator.sample(prompt, seed=seed, phi=AutoPhi())
        exact += auto.guarantee == Guarantee.EXACT
        costs["weighted"].append(cost(weighted))
        costs["auto"].append(cost(auto))
        effort = Effort(tokens=4 * weighted.counts.calls)  # four at once: at least as many calls as the weighted draw
        try:
            costs["exact"].append(cost(generator.sample(prompt, seed=seed, phi=ExactPhi(effort=effort))))
        except BudgetError:
            costs["exact"].append(math.inf)
    median = {name: statistics.median(found) for name, found in costs.items()}
    assert (median["exact"] < median["weighted"]) == exact_is_cheaper
    assert median["auto"] <= 2.5 * min(median["exact"], median["weighted"])
    assert exact >= 2 or not exact_is_cheaper


def test_the_share_of_a_state_that_nobody_visited_is_that_of_an_average_sibling() -> None:
    """The expanded siblings count, too. Without them a spelling that no tokenizer writes was worth 1, and walks went that way."""
    table, seen = MODEL.table(regex(r'"[a-z]{1,20}", "age"')), 0
    with MODEL.asking(["Person: "], table, CallOptions(SamplingSettings())) as request:
        store, request = TreeStore(), replace(request, n=4)
        sample(AutoPhi(share=0, candidates=4), request, store=store)
        tree = tree_of(store, request)
        values = BackedUpValues(tree)
        values.refresh()
        visited = {DONE} | {node.state for node in tree.walk() if node.expanded}
        for node in tree.walk():
            if node.distribution is not None and node.state != DONE:
                free, beyond = values.free(node), values.beyond(node)
                known = np.array([state in visited for state in free.states.tolist()])
                if known.any() and (new := ~known & (free.log_mass > -np.inf)).any():
                    seen += 1
                    assert beyond[new].max() <= beyond[known].max() + 1e-9
    assert seen


def test_walks_of_all_depths_may_wait_where_laws_were_dropped() -> None:
    """A walk at a prefix whose law was dropped, and another at a child of it, ask for both in one call."""
    letters = "abcdefgh"
    pairs, triples = (list(map("".join, product(letters, repeat=length))) for length in (2, 3))
    vocabulary = Vocabulary.from_tokens(["<eos>", *letters, *pairs, *triples, "!", "?", "1"], 0)
    table = Table(FSMGuide.from_automaton(compile_regex(r"[a-h]{4,20}(!|\?)1"), vocabulary))
    lm, memory = TableModel.random(vocabulary, seed=1, scale=3.0), 2 * 8 * len(vocabulary)
    for seed in range(8):
        settings = SamplingSettings(max_new_tokens=12, seed=seed)
        request = Request(lm=lm, table=table, prompts=[(1, 2), (3, 4), (5,), (6, 7)], settings=settings)
        draws = sample(AutoPhi(), request, store=TreeStore(len(request.prompts) * memory))
        assert [len(of_prompt) for of_prompt in draws] == [1] * 4


Pick = Callable[[np.ndarray, np.random.Generator], int]
PICKS = 3_000


def by_weight(log_w: np.ndarray, rng: np.random.Generator) -> int:
    return at_weights(scaled(log_w), rng)


def picked(language: Language, pick: Pick, candidates: int, *, first_of_mu: bool = False) -> list[tuple[int, ...]]:
    """Return the members picked from candidates of plain masking, the first of which may be a draw of mu*."""
    reference, rng = language.reference(), np.random.default_rng(7)
    members = list(reference.mu)
    mu, mask = (np.array([law[ids] for ids in members]) for law in (reference.mu, reference.mask))
    log_w = np.array([reference.log_p[ids] - reference.log_mask[ids] for ids in members])
    places = rng.choice(len(members), size=(PICKS, candidates), p=mask / mask.sum())
    if first_of_mu:
        places[:, 0] = rng.choice(len(members), size=PICKS, p=mu / mu.sum())
    return [members[row[pick(log_w[row], rng)]] for row in places]


def test_a_chain_is_closer_than_a_pick_by_weight() -> None:
    """At 16 and at 64 candidates of masking, on every language and in sum by a twentieth."""

    def distances(pick: Pick) -> np.ndarray:
        found = [(frequencies(picked(each, pick, k)), each.reference().mu) for each in LANGUAGES for k in (16, 64)]
        return np.array([total_variation(*both) for both in found])

    weight, chain = distances(by_weight), distances(last_state)
    assert (chain < weight + 0.01).all() and chain.sum() < 0.95 * weight.sum()


def test_a_chain_leaves_the_conditioned_distribution_unchanged() -> None:
    """From a draw of mu* it ends in a draw of mu*, which one from a masked draw does not."""

    def law(*, first_of_mu: bool) -> float:
        samples = (picked(each, last_state, 3, first_of_mu=first_of_mu) for each in LANGUAGES)
        return pooled_p_value(zip(samples, (each.reference().mu for each in LANGUAGES), strict=True))

    assert law(first_of_mu=True) > ALPHA > law(first_of_mu=False)


def test_a_candidate_without_weight_is_never_picked() -> None:
    rng, log_w = np.random.default_rng(0), np.array([-np.inf, -2.0, -np.inf, -3.0, -np.inf])
    assert {last_state(log_w, rng) for _ in range(100)} == {1, 3}


@pytest.mark.parametrize(("weighted", "kind"), [(True, Guarantee.WEIGHTED), (False, Guarantee.APPROXIMATE)])
def test_texts_are_picked_by_a_chain_and_draws_by_weight(weighted: bool, kind: Guarantee) -> None:
    request = replace(LANGUAGES[3].request(1, seed=4, rows=6), weighted=weighted)
    with pytest.warns(FidelityWarning, match="6 of 6 draws are not exact"):
        results = sample(AutoPhi(share=0.02), request)
    assert all(one.guarantee == kind and one.candidates == 32 and 1 <= one.ess <= 32 for (one,) in results)
    assert all(draws.log_z == pytest.approx(draws[0].log_w) and draws.certificate is None for draws in results)


def test_draws_of_several_rounds_are_picked_by_weight() -> None:
    """Later rounds have other proposals, under which the weights of earlier candidates are not known."""
    request = replace(LANGUAGES[3].request(3, seed=4), weighted=False)
    assert sample(AutoPhi(share=0), request)[0].guarantee == Guarantee.WEIGHTED
