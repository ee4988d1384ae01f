"""Adaptive rejection from cold trees, by whole distributions and tokens drawn ahead; limits of calls: memory, seconds, Ctrl-C."""

import math
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from outlines_phi import AutoPhi, BudgetError, Effort, ExactPhi, Guarantee, LocalPhi
from outlines_phi.errors import InterruptedDraws, too_small
from tests.inner import (
    Attempts,
    BoundsTree,
    Evaluator,
    ExactSampler,
    Node,
    RejectionAttempts,
    TableModel,
    TreeStore,
    ahead,
    limited,
    rank,
    watch,
)
from tests.languages import (
    ALPHA,
    AND_OPEN,
    GRAMMARS,
    LATE,
    LOOP,
    NESTED,
    OPEN,
    PROMPT,
    VOCABULARY,
    WORDS,
    Ids,
    Language,
    deviation,
    ids,
    joint,
    p_value,
    pairs,
    pooled_p_value,
    sample,
    z,
)
from tests.refusals import refused
from tests.sampling.variants import WRONG, keep_bounds_after_eviction

LENGTHS = Language("lengths", "[abcx]{0,3}", 4, seed=2, scale=0.7)
ROWS = 700

pytestmark = pytest.mark.usefixtures("grown")


def mu_of(language: Language) -> dict[Ids, float]:
    return language.reference().mu


def cold(language: Language, n: int = 1, **options: int) -> list[tuple[Ids, ...]]:
    """Return ``n`` draws of each of many rows that start from nothing, as tuples."""
    return pairs(sample(ExactPhi(width=8), language.request(n, **{"seed": 0, "rows": ROWS, **options})))


def test_cold_draws_have_the_law_and_pairs_are_independent() -> None:
    """Statistics of three languages are added: a bias of all shows as in 2,100 pairs of one."""
    found = [(cold(language, 2), mu_of(language)) for language in (WORDS, LOOP, GRAMMARS[2])]
    assert pooled_p_value(([pair[i] for pair in both], mu) for both, mu in found for i in range(2)) > ALPHA
    assert pooled_p_value((both, joint(mu)) for both, mu in found) > ALPHA  # type: ignore[misc]


@pytest.mark.parametrize("name", WRONG)
def test_the_same_test_fails_for_wrong_variants(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    language = WORDS if name == "no thinning coin" else LENGTHS
    assert p_value([first for (first,) in cold(language)], mu_of(language)) > ALPHA
    monkeypatch.setattr(RejectionAttempts, *WRONG[name])
    assert p_value([first for (first,) in cold(language)], mu_of(language)) < ALPHA


@pytest.mark.in_turn
@pytest.mark.parametrize(("max_bytes", "kept"), [(3_000, False), (0, False), (3_000, True), (6_000, False)])
def test_eviction_keeps_the_law(max_bytes: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that forgets all the time gives mu*, at more model tokens; one that forgets subtrees but not their bounds does not."""
    phi, request = ExactPhi(width=4), WORDS.request(2000, seed=1)
    (roomy,) = sample(phi, request)
    if kept:
        keep_bounds_after_eviction(monkeypatch)
    (draws,) = sample(phi, request, store=TreeStore(max_bytes))
    assert (p_value(ids(draws), mu_of(WORDS)) > ALPHA) == (not kept)
    assert kept or draws.counts.tokens > 2 * roomy.counts.tokens


def test_residual_attempts_give_an_unbiased_normaliser() -> None:
    """Cold rows, one draw and one residual attempt each: the mean of Z_hat is Phi, though trees are far from complete.

    The error is that of 4,200 rows, were it the bias of all; of arithmetic one attempt in 15 succeeds.
    """
    errors = []
    for language in AND_OPEN:
        results = sample(ExactPhi(normalizers=1), language.request(1, 6, rows=600))
        estimates = np.array([estimate for draws in results for estimate in draws.normalizers])
        errors.append(z(estimates, math.exp(language.reference().log_phi)))
    assert deviation(errors) < 4


def test_the_accepting_wave_is_no_normaliser() -> None:
    """Control: the success rate up to the accepted attempt, scaled by the bounds at the end, is biased upwards."""
    results = sample(ExactPhi(), WORDS.request(1, 5, rows=2000))
    lower, upper = np.exp([draws.log_z_bounds for draws in results]).T
    rates = np.array([draws.counts.acceptance for draws in results])
    assert abs(z(lower + (upper - lower) * rates, math.exp(WORDS.reference().log_phi))) > 4


def test_bounds_tighten_with_every_draw_and_never_cross_phi() -> None:
    """Reported U never increases nor falls below Phi; reported Lo never decreases nor exceeds it."""
    phi, tree = math.exp(LOOP.reference().log_phi), BoundsTree(LOOP.table, LOOP.budget)
    evaluator, request = Evaluator(LOOP.lm, LOOP.settings(), [PROMPT], [tree]), LOOP.request(40, seed=2)
    attempts = RejectionAttempts(tree, 40, lambda i: request.stream(0, i), width=3, effort=Effort(), max_bytes=2**30)
    history = [np.exp(tree.log_bounds)]
    while waiting := attempts.advance():
        evaluator.expand((tree, node) for node in waiting)
        tree.evict(8_000, pinned=waiting)
        history.append(np.exp(tree.log_bounds))
    lowers, uppers = np.array(history).T
    assert len(history) > 5 and uppers[-1] < 0.9 and (np.diff(lowers) >= 0).all() and (np.diff(uppers) <= 0).all()
    assert lowers[-1] <= phi + 1e-12 and phi <= uppers[-1] + 1e-12


def test_one_model_call_per_step_for_all_rows_and_attempts() -> None:
    """32 cold rows take about the calls of the longest one alone."""
    sampler = ExactSampler(ExactPhi())
    alone = [sampler.sample(WORDS.request(1, seed))[0].counts.calls for seed in range(20)]
    assert sampler.sample(WORDS.request(1, 0, rows=32))[0].counts.calls <= 1.5 * max(alone)


@pytest.mark.parametrize("max_bytes", [2**30, 40_000])
def test_a_certificate_holds_under_any_memory_bound(max_bytes: int) -> None:
    """The nodes that a certificate is about are never forgotten; where they do not fit, there is none."""
    try:
        (draws,) = sample(ExactPhi(tolerance=0.02), LOOP.request(4000, seed=1), store=TreeStore(max_bytes))
    except BudgetError as error:
        assert max_bytes < 2**30 and not error.draws[0].items
        return
    assert draws.guarantee is Guarantee.CERTIFIED
    (lower, upper), drawn, mu = np.exp(draws.log_z_bounds), ids(draws), mu_of(LOOP)
    assert 1 - sum(min(drawn.count(y) / 4000, mu[y]) for y in set(drawn)) <= (upper - lower) / upper + 0.06


def test_an_interrupted_call_leaves_nothing_that_biases_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped between learning a law and updating the bounds above it, at any moment, later draws are still exact."""
    propagate, results = BoundsTree.propagate, []
    for repeat in range(400):
        moments = iter([False] * (repeat % 8) + [True] + [False] * 10_000)

        def interrupted(self: BoundsTree, nodes: object, moments: object = moments) -> None:
            if next(moments):  # type: ignore[call-overload]
                raise KeyboardInterrupt
            propagate(self, nodes)  # type: ignore[arg-type]

        sampler = ExactSampler(ExactPhi())
        with monkeypatch.context() as patch:
            patch.setattr(BoundsTree, "propagate", interrupted)
            try:
                sampler.sample(WORDS.request(5, seed=None))
            except KeyboardInterrupt:
                assert len(sampler.store) == 0
        results += sampler.sample(WORDS.request(3, seed=None))
    assert p_value(ids(*results), mu_of(WORDS)) > ALPHA


def test_estimates_lie_within_the_reported_bounds() -> None:
    for draws in sample(ExactPhi(normalizers=5), LOOP.request(2, seed=3, rows=50)):
        lower, upper = np.exp(draws.log_z_bounds)
        assert all(lower * (1 - 1e-12) <= estimate <= upper * (1 + 1e-12) for estimate in draws.normalizers)


def test_stores_keep_to_their_memory() -> None:
    store = TreeStore(30_000)
    refused(
        "short of",
        sample,
        ExactPhi(tolerance=1e-9, effort=Effort(tokens=100_000)),
        LOOP.request(1, seed=None),
        store=store,
        error=BudgetError,
    )
    assert store.bytes <= 30_000
    store = TreeStore(20_000)
    for number in range(1, 30):
        language = Language(str(number), f"(ab|c){{1,{number % 3 + 1}}}x{{0,{number // 3}}}", 20, seed=number)
        sample(ExactPhi(), language.request(1, seed=None), store=store)
    assert len(store) < 10


class TestAhead:
    """Tokens drawn ahead of walks: the distribution is that of whole distributions, however few were drawn."""

    ROWS = {1: 260, 2: 100, 16: 50}
    """Prompts under each number of tokens that are drawn ahead; a fault is the likelier the fewer they are."""
    WIDE = (LOOP, GRAMMARS[1], *OPEN)

    @pytest.fixture(autouse=True)
    def ahead_of_every_node(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ahead, "MANY", 0)

    def used_up(self, tokens: int) -> list[tuple[list[Ids], dict[Ids, float]]]:
        """Return eight draws of each of many cold prompts of each language: the first of them use up what was drawn ahead."""
        found = ((each, each.request(8, tokens, rows=self.ROWS[tokens])) for each in self.WIDE)
        return [(ids(*sample(ExactPhi(width=16), request)), mu_of(each)) for each, request in found]

    def warm(self, language: Language, seed: int = 3, **options: float) -> tuple[list[Ids], dict[Ids, float]]:
        """Return many draws of one prompt: nodes are used up and evaluated again."""
        return ids(*sample(ExactPhi(width=8), language.request(700, seed, **options))), language.reference(**options).mu

    def test_draws_have_the_conditioned_distribution(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The statistics of all languages and of all numbers of tokens are added, beside those of each number."""
        everything = []
        for tokens in self.ROWS:
            monkeypatch.setattr(ahead, "AHEAD", tokens)
            samples = self.used_up(tokens) + [self.warm(language) for language in (*self.WIDE, LATE)]
            assert pooled_p_value(samples) > ALPHA / len(self.ROWS), tokens
            everything += samples
        assert pooled_p_value(everything) > ALPHA

    def test_an_attempt_that_decides_again_is_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Control: who waits for a free token has decided against the children of then, and may not choose among them."""
        choose = BoundsTree.choose

        def again(tree: BoundsTree, *arguments: Any, since: int = 0) -> Node | None:
            return choose(tree, *arguments)

        monkeypatch.setattr(ahead, "AHEAD", 1)
        monkeypatch.setattr(BoundsTree, "choose", again)
        assert pooled_p_value(self.used_up(1)) < ALPHA / len(self.ROWS)

    def test_tokens_are_drawn_ahead_and_take_little_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A node holds its drawn tokens and a sum; one that is used up is evaluated again, and held whole."""
        monkeypatch.setattr(ahead, "AHEAD", 2)
        store = TreeStore()
        with store.lend(*WORDS.request(1, None).tree_key) as (tree,):
            request = WORDS.request(200, None)
        sample(ExactPhi(width=8), request, store=store)
        nodes = [node for node in tree.walk() if node.children and node is not tree.root]
        assert tree.root.distribution is not None
        assert any(node.drawn is not None for node in nodes) and any(node.distribution is not None for node in nodes)
        assert all(node.drawn is None or node.distribution is None for node in nodes)
        assert tree.distribution_bytes == sum(node.free.nbytes for node in tree.walk() if node.free is not None)
        for node in nodes:
            total = math.exp(node.log_rest) + math.fsum(math.exp(child.log_step) for child in node.children.values())
            assert total <= 1 + 1e-6 and math.exp(node.log_lower) <= math.exp(node.log_upper) + 1e-12

    def test_a_tree_with_tokens_drawn_ahead_serves_every_other_call(self) -> None:
        """Nodes that are searched or enumerated afterwards are evaluated again, and whole."""
        store = TreeStore()
        sample(ExactPhi(width=8), WORDS.request(50, None), store=store)
        (draws,) = sample(ExactPhi(tolerance=0.01), WORDS.request(1500, None), store=store)
        assert p_value(ids(draws), mu_of(WORDS)) > ALPHA
        lower, upper = np.exp(draws.log_z_bounds)
        assert lower <= math.exp(WORDS.reference().log_phi) * (1 + 1e-9) and upper <= lower * 1.02

    @pytest.mark.parametrize(("language", "options"), [(WORDS, {"top_k": 8}), (LOOP, {"top_p": 0.9})], ids=str)
    def test_truncation_and_limits_are_kept(self, language: Language, options: dict[str, float]) -> None:
        assert p_value(*self.warm(language, 1, **options)) > ALPHA


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes on by a second with every model call of a tree."""
    time, expand = [0.0], Evaluator.expand

    def tick(self: Evaluator, wanted: Any, *others: Any) -> None:
        pairs = list(wanted)
        time[0] += bool(pairs)
        expand(self, pairs, *others)

    monkeypatch.setattr(Evaluator, "expand", tick)
    monkeypatch.setattr(watch, "now", lambda: time[0])


def within(seconds: float, **options: Any) -> ExactPhi:
    return ExactPhi(effort=Effort(seconds=seconds), **options)


@pytest.mark.usefixtures("ticking")
class TestSeconds:
    def test_nothing_is_launched_when_they_are_over_and_what_was_is_finished(self) -> None:
        request = WORDS.request(60, seed=1)
        caught = refused(
            r"Prompt 0: its 6 s were over with \d+ of 60 exact draws",
            sample,
            within(6, width=4),
            request,
            error=BudgetError,
        )
        draws = caught.value.draws[0]
        assert 0 < len(draws) < 60 and 6 < draws.counts.calls <= 6 + WORDS.budget
        (whole,) = sample(ExactPhi(width=4), request)
        assert ids(draws) == ids(whole)[: len(draws)] and draws.counts.attempts < whole.counts.attempts

    def test_a_call_that_ends_in_time_is_as_without_a_limit(self) -> None:
        request = WORDS.request(50, seed=2)
        assert sample(within(10_000), request) == sample(ExactPhi(), request)

    def test_draws_that_are_there_have_the_law(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also the first draws of calls that were stopped; if attempts were cut when the time is over, they would be short ones."""

        def first() -> list[tuple[int, ...]]:
            caught = refused(None, sample, within(2, width=2), LENGTHS.request(3, seed=1, rows=1000), error=BudgetError)
            return [draws[0].token_ids for draws in caught.value.draws if len(draws)]

        mu = LENGTHS.reference().mu
        assert p_value(first(), mu) > ALPHA
        advance = Attempts.advance

        def cut(self: Attempts) -> Any:
            if self._watch.over:
                self._waiting = []
            return advance(self)

        monkeypatch.setattr(Attempts, "advance", cut)
        assert p_value(first(), mu) < ALPHA

    def test_a_certificate_and_its_draws_share_them(self) -> None:
        request = LOOP.request(5, seed=1)
        caught = refused(
            "Prompt 0: enumeration left .* its 1 s were over",
            sample,
            within(1, tolerance=1e-9),
            request,
            error=BudgetError,
        )
        assert caught.value.draws[0].certificate.total_variation > 0
        assert len(sample(within(1000, tolerance=1e-9), request)[0]) == 5

    def test_a_search_ends_with_what_it_has(self) -> None:
        request = LOOP.request(1, seed=1)
        caught = refused(
            r"Prompt 0: its 1 s were over when \d of 9 members were found",
            rank,
            request,
            9,
            TreeStore(),
            effort=Effort(seconds=1),
            error=BudgetError,
        )
        (found,) = caught.value.partial
        (whole,) = rank(request, 9, TreeStore(), effort=Effort(seconds=1000))
        assert found.log_p_bound >= whole[0].log_p and not whole.gap

    def test_a_limit_ends_with_its_call(self) -> None:
        with limited(1000) as call:
            refused(None, sample, within(1), LATE.request(200, seed=1), error=BudgetError)
            assert not call.over
            assert len(sample(ExactPhi(), WORDS.request(50, seed=1))[0]) == 50


SAMPLERS = {
    "exact": ExactPhi(width=4),
    "certified": ExactPhi(width=4, tolerance=0.6),
    "auto": AutoPhi(width=4, share=1),
    "weighted": LocalPhi(),
}


def interrupted(
    phi: object, language: Language, n: int, call: int, store: TreeStore | None = None
) -> KeyboardInterrupt | None:
    """Return the interrupt of a call of a sampler whose model is interrupted in the middle of its ``call``-th call."""
    laws = count(1)

    def law(sequence: tuple[int, ...]) -> object:
        if next(laws) == call:
            raise KeyboardInterrupt
        return language.lm.next_logits(sequence)

    try:
        sample(phi, replace(language.request(n, 7), lm=TableModel(VOCABULARY, law)), store=store)  # type: ignore[arg-type]
    except KeyboardInterrupt as interrupt:
        return interrupt
    return None


class TestInterrupts:
    @pytest.mark.parametrize("name", ["exact", "auto"])
    def test_they_hand_over_the_exact_draws_so_far(self, name: str) -> None:
        (whole,), sizes = sample(SAMPLERS[name], WORDS.request(40, 7)), {0}
        for call in range(2, 30, 3):
            store = TreeStore()
            interrupt = interrupted(SAMPLERS[name], WORDS, 40, call, store)
            assert len(store) == 0
            if isinstance(interrupt, InterruptedDraws):
                (draws,) = interrupt.draws
                assert ids(draws) == ids(whole)[: len(draws)] and 0 < len(draws) < 40
                assert draws.guarantee is Guarantee.EXACT and not draws.failures
                low, high = draws.log_z_bounds
                assert low <= WORDS.reference().log_phi <= high
                assert str(interrupt) == f"{len(draws)} of 40 draws were made; .draws of this exception has them."
                sizes.add(len(draws))
        assert len(sizes) > 2

    def test_certified_draws_are_handed_over_and_those_complete_first_are_no_sample(self) -> None:
        found = [interrupted(SAMPLERS["certified"], NESTED, 400, call) for call in range(2, 15)]
        seen = [interrupt.draws[0] for interrupt in found if isinstance(interrupt, InterruptedDraws)]
        assert seen and {draws.guarantee for draws in seen} == {Guarantee.CERTIFIED}
        assert all(draws.certificate.total_variation > 0 for draws in seen)
        # Weighted draws advance together: after some steps the short ones are there, and none is handed over.
        found = [interrupted(SAMPLERS["weighted"], WORDS, 40, call) for call in range(2, 12)]
        assert set(map(type, found)) == {KeyboardInterrupt}

    @pytest.mark.parametrize("name", SAMPLERS)
    def test_the_next_call_is_as_if_nothing_had_been(self, name: str) -> None:
        phi, store, request = SAMPLERS[name], TreeStore(), WORDS.request(40, 7)
        assert interrupted(phi, WORDS, 40, 3, store) is not None
        assert sample(phi, request, store=store) == sample(phi, request)

    def test_normalizers_that_are_missing_do_not_take_the_draws_with_them(self) -> None:
        (whole,) = sample(ExactPhi(width=4), LATE.request(1, 7))
        for call in range(whole.counts.tokens + 2, whole.counts.tokens + 6):
            interrupt = interrupted(ExactPhi(width=4, normalizers=40), LATE, 1, call)
            assert isinstance(interrupt, InterruptedDraws)
            assert interrupt.draws[0].texts == whole.texts and interrupt.draws[0].normalizers == ()


def test_a_budget_is_called_as_it_was_given() -> None:
    error = too_small(2, 5, "max_tokens")
    assert str(error).startswith("Give max_tokens=5 or more: max_tokens=2 is too small") and error.least_budget == 5
