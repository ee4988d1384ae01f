"""Samplers that draw from token trees, with what drafters foresee evaluated ahead: the same laws by fewer calls."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi import AutoPhi, BudgetError, Draws, Effort, ExactPhi, Guarantee, LearnedPhi, LookaheadPhi
from outlines_phi.drafting import Draft, Drafter, FirstOf, ModelDrafter, TreeDrafter
from outlines_phi.errors import DraftError
from outlines_phi.phi import Prefixes
from outlines_phi.phi.learned import LearnedEstimate
from tests.drafting.runs import Scripted
from tests.inner import (
    Attempt,
    Attempts,
    BoundsTree,
    Evaluator,
    Exchange,
    Foresight,
    LookaheadSampler,
    Node,
    Prefetch,
    RejectionAttempts,
    Request,
    TableModel,
    TreeStore,
    window_walks,
)
from tests.inner import sampler as prefetch
from tests.languages import (
    ALPHA,
    GRAMMARS,
    LATE,
    LISTED,
    LOOP,
    PROMPT,
    VOCABULARY,
    WORDS,
    Ids,
    Language,
    deviation,
    errors_of,
    frequencies,
    ids,
    joint,
    noise_floor,
    p_value,
    pairs,
    pooled_p_value,
    sample,
    streamed,
    total_variation,
    tree_of,
    z,
)
from tests.refusals import refused
from tests.sampling.banning import NESTED as BANS
from tests.sampling.banning import SHORT, Banned
from tests.sampling.drafters import Fixed, constant, ranked
from tests.sampling.test_constraint import Merged, constrained
from tests.sampling.test_constraint import reference as constrained_reference
from tests.sampling.test_drafted_stepper import own
from tests.sampling.variants import WALK

pytestmark = [
    pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning"),
    pytest.mark.usefixtures("grown"),
]
ROWS, FRESH = 630, 3000
"""Prompts of a language, shared by its drafters under a seed each; and prompts of the control."""
Texts = list[Ids]


def drafters(language: Language | Banned) -> dict[str, Drafter]:
    """Return drafters that are good, bad, of no use, in the way, and drawn from a law."""
    lm, vocabulary = language.lm, language.table.vocabulary
    return {
        "likeliest": Fixed(ranked(lm, 0)),
        "least likely": Fixed(ranked(lm, -1)),
        "always the same": Fixed(constant(3)),
        "always dead": Fixed(constant(vocabulary.eos_ids[0])),
        "drawn": ModelDrafter(TableModel.random(vocabulary, seed=99)),
        "drawn from the law": ModelDrafter(lm),
    }


NAMES = tuple(drafters(WORDS))
FEW = ("likeliest", "least likely", "drawn")
names = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize(
    ("language", "some"), [(WORDS, NAMES), *((each, ("likeliest", "drawn")) for each in (LOOP, GRAMMARS[2]))], ids=str
)
def test_draws_have_the_law_and_pairs_are_independent(language: Language, some: tuple[str, ...]) -> None:
    """A drafter that changes the law of a seventh of these draws wholly is seen, as is a bias of all under any of them."""
    mu, found, rows = language.reference().mu, [], ROWS // len(some)
    for seed, name in enumerate(some):
        request = language.request(2, seed, rows=rows)
        found += pairs(sample(ExactPhi(width=8), request, drafter=drafters(language)[name]))
    first, second = zip(*found, strict=True)
    assert p_value(list(first), mu) > ALPHA and p_value(list(second), mu) > ALPHA
    assert p_value(found, joint(mu)) > ALPHA  # type: ignore[arg-type]
    assert total_variation(frequencies(first), mu) < 1.5 * noise_floor(mu, len(first))


def in_a_small_memory() -> tuple[Texts, Language]:
    found = [
        sample(ExactPhi(width=4), WORDS.request(800, 1), store=TreeStore(3_000), drafter=drafters(WORDS)[name])
        for name in FEW[:2]
    ]
    return ids(*(draws for results in found for draws in results)), WORDS


def of_a_mixed_set() -> tuple[Texts, Language]:
    """The first exact draw of each prompt, beside weighted ones."""
    first: Texts = []
    for seed, name in enumerate(FEW):
        request = WORDS.request(3, seed=seed, rows=100)
        results = sample(AutoPhi(share=0.4, width=8), request, drafter=drafters(WORDS)[name])
        assert len({draw.guarantee for draws in results for draw in draws}) == 2
        first += [draws[0].token_ids for draws in results if draws[0].guarantee == Guarantee.EXACT]
    assert len(first) > 150
    return first, WORDS


@pytest.mark.parametrize("made", [in_a_small_memory, of_a_mixed_set])
def test_exact_draws_have_the_law(made: Callable[[], tuple[Texts, Language]]) -> None:
    found, language = made()
    assert p_value(found, language.reference().mu) > ALPHA


def test_a_constraint_that_is_found_out_node_by_node() -> None:
    constraint, phi = Merged(even=True), ExactPhi(width=8)
    found = [
        y
        for seed, name in enumerate(FEW)
        for y in ids(*sample(phi, constrained(LOOP, 1, seed, constraint, rows=200), drafter=drafters(LOOP)[name]))
    ]
    assert p_value(found, constrained_reference(LOOP, constraint)[1]) > ALPHA


def test_the_drafters_of_the_package_leave_exact_draws_exact() -> None:
    """From trees that start from nothing, a tenth of the draws under each drafter; the statistics of all languages are added."""
    samples = []
    for language in (*GRAMMARS, LISTED):
        found: Texts = []
        for seed, drafter in enumerate(own(language.table.vocabulary).values()):
            found += ids(*sample(ExactPhi(width=8), language.request(3, seed=seed, rows=18), drafter=drafter))
        samples.append((found, language.reference().mu))
    assert pooled_p_value(samples) > ALPHA


def coin_for_dead_tokens_alone(self: Attempts, attempt: Attempt) -> bool | None:
    """Walk on from a fresh node with the probability of its live tokens, whatever is known of these by now."""
    node = attempt.node
    if node.distribution is not None:
        attempt.log_bound = node.log_upper - node.log_live if node.log_live > -math.inf else attempt.log_bound
    return WALK(self, attempt)


def fresh(drafter: Drafter | None) -> Texts:
    """Return a draw of each of many fresh trees, of those whose first attempt found one."""
    phi = ExactPhi(width=1, effort=Effort(attempts=1))
    caught = refused(None, sample, phi, WORDS.request(1, 7, rows=FRESH), drafter=drafter, error=BudgetError)
    return ids(*caught.value.draws)


def test_a_coin_for_dead_tokens_alone_fails_with_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: one attempt at a time meets no bound that another one refreshed, until a draft refreshes them."""
    mu, likeliest = WORDS.reference().mu, drafters(WORDS)["likeliest"]
    assert p_value(fresh(likeliest), mu) > ALPHA
    monkeypatch.setattr(RejectionAttempts, "_walk", coin_for_dead_tokens_alone)
    assert p_value(fresh(None), mu) > ALPHA > p_value(fresh(likeliest), mu)


@pytest.mark.parametrize("memory", [2**30, 3_000 * 1000], ids=["roomy", "small"])
def test_normalisers_stay_unbiased(memory: int) -> None:
    """Also where attempts go down through nodes that have lost their laws, which a draft restores and nothing else."""
    drafter = FirstOf((TreeDrafter(), drafters(WORDS)["likeliest"]))
    phi, request = ExactPhi(normalizers=2, width=4), WORDS.request(2, 5, rows=250)
    results = sample(phi, request, store=TreeStore(memory), drafter=drafter, length=4)
    assert abs(z(np.array([np.mean(draws.normalizers) for draws in results]), math.exp(WORDS.reference().log_phi))) <= 4


def test_weights_of_trajectories_that_learn_are_unbiased() -> None:
    """E[w f] = Phi mu*(f) over runs of trajectories that learn between rounds; 150 runs of each of two languages."""
    errors = []
    for language in (LOOP, GRAMMARS[2]):
        results: list[Draws] = []
        for seed, name in enumerate(2 * FEW):
            phi, request = AutoPhi(share=0, candidates=1), language.request(40, seed=seed, rows=25)
            results += sample(phi, request, drafter=drafters(language)[name])
        errors.append(errors_of(results, language))
    assert all(deviation(column) < 3.5 for column in zip(*errors, strict=True))


class TestLookahead:
    def both(self, phi: LookaheadPhi, request: Request, case: Banned, name: str) -> tuple[Draws, Draws]:
        """Return draws without a draft, and with one."""
        return sample(phi, request)[0], sample(phi, request, drafter=drafters(case)[name])[0]

    @pytest.mark.in_turn
    @names
    @pytest.mark.parametrize("release", ["window", "early"])
    @pytest.mark.parametrize("case", [SHORT, BANS], ids=str)
    def test_draws_are_those_without_a_draft(self, case: Banned, release: str, name: str) -> None:
        """Token for token: the walks see the same laws in the same order."""
        plain, drafted = self.both(LookaheadPhi(release=release), case.request(100, 1), case, name)  # type: ignore[arg-type]
        assert [(d.token_ids, d.log_p) for d in drafted] == [(d.token_ids, d.log_p) for d in plain]
        assert drafted.rejections == plain.rejections
        assert drafted.counts.calls <= plain.counts.calls and drafted.counts.tokens >= plain.counts.tokens

    def test_weights_are_unbiased(self) -> None:
        """The errors under all drafts are added."""
        phi = LookaheadPhi(weights=True)
        draws = [sample(phi, SHORT.request(900, i), drafter=drafters(SHORT)[name])[0] for i, name in enumerate(FEW)]
        assert deviation(z(np.exp(each.log_w), SHORT.phi()) for each in draws) < 4

    def test_a_stream_commits_what_a_call_draws(self) -> None:
        sampler = LookaheadSampler(LookaheadPhi(), Prefetch(drafters(BANS)["likeliest"], 3))
        assert streamed(sampler, BANS.request(20, 4)) == ids(*sampler.sample(BANS.request(20, 4)))

    def test_the_cache_is_tidied_as_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window_walks, "WASTE", 0)
        plain, drafted = self.both(LookaheadPhi(), BANS.request(50, 1), BANS, "least likely")
        assert ids(drafted) == ids(plain)


def forced(length: int) -> Language:
    """Return a language of one text under a law that knows its spelling."""
    written = [VOCABULARY.tokens.index(text) for text in (b"ab", b"x")]

    def logits(sequence: tuple[int, ...]) -> np.ndarray:
        spelled = [*written[:1] * length, written[1], 0]
        return np.where(np.arange(len(VOCABULARY)) == spelled[len(sequence) - len(PROMPT)], 0.0, -30.0)

    language = Language("forced", f"(ab){{{length}}}x", 3 * length, seed=0)
    language.__dict__["lm"] = TableModel(VOCABULARY, logits)
    return language


class TestCounts:
    @pytest.mark.parametrize("length", [1, 2, 4, 8])
    @pytest.mark.parametrize("phi", [ExactPhi(width=1), ExactPhi(), AutoPhi()], ids=["one", "exact", "auto"])
    def test_calls_fall_by_the_draft_length_where_drafts_are_right(self, phi: object, length: int) -> None:
        """L laws are needed, and each call has K + 1 of them."""
        language, laws = forced(22), 24
        plain = sample(phi, language.request(1, 1))[0].counts
        counts = sample(phi, language.request(1, 1), drafter=Fixed(ranked(language.lm, 0)), length=length)[0].counts
        assert plain.calls == laws and counts.calls == math.ceil(laws / (length + 1))
        assert counts.followed == counts.drafted == laws - counts.calls == counts.tokens - counts.calls + 1
        assert counts.turns == counts.calls and counts.tokens_per_call > 0.85 * (length + 1)
        assert (plain.drafted, plain.turns, plain.tokens) == (0, 0, laws - 1)

    def test_what_fits_the_memory_is_drafted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The walks of a prompt share its room, three prompts do not."""
        asked: list[int] = []
        monkeypatch.setattr(prefetch, "AT_ONCE", 3 * len(VOCABULARY))
        drafter = Scripted(lambda site, length: asked.append(length) or Draft(()))  # type: ignore[func-returns-value]
        sample(ExactPhi(width=4), LOOP.request(20, 1, rows=3), drafter=drafter, length=4)
        assert max(asked) == 3 and min(asked) == 1

    @names
    def test_a_draft_that_is_wrong_costs_tokens_and_no_effort(self, name: str) -> None:
        """The tree has used as many nodes as walks have come to: the rest are drafts that were rejected."""
        for seed in range(20):
            store, request = TreeStore(), LATE.request(3, None)
            torch.manual_seed(seed)
            counts = sample(ExactPhi(), request, store=store, drafter=drafters(LATE)[name])[0].counts
            assert 0 <= counts.followed <= counts.drafted
            assert tree_of(store, request).expansions - 1 == counts.tokens - (counts.drafted - counts.followed)

    @pytest.mark.parametrize("drafter", [Fixed(constant(0)), Fixed(constant(-1))], ids=["dead", "none"])
    @pytest.mark.parametrize(
        ("phi", "case"),
        [(ExactPhi(), LOOP), (ExactPhi(tolerance=0.3), LOOP), (AutoPhi(share=0.1), LOOP), (LookaheadPhi(), SHORT)],
    )
    def test_dead_drafts_and_none_change_nothing_at_all(
        self, phi: object, case: Language | Banned, drafter: Drafter
    ) -> None:
        request = case.request(20, 1, rows=3)
        for drafted, plain in zip(sample(phi, request, drafter=drafter), sample(phi, request), strict=True):
            assert (drafted.items, replace(drafted.counts, written=0, turns=0)) == (plain.items, plain.counts)

    def test_paths_that_have_lost_their_laws_are_read_again_in_one_call(self) -> None:
        def calls(drafter: Drafter | None) -> int:
            store, request = TreeStore(), LATE.request(40, None)
            torch.manual_seed(1)
            sample(ExactPhi(), LATE.request(1000, None), store=store)
            tree = tree_of(store, request)
            bounds = tree.log_bounds
            tree.drop_distributions(0)
            (found,) = sample(ExactPhi(width=1), request, store=store, drafter=drafter)
            assert tree.log_bounds == pytest.approx(bounds) and p_value(ids(found), LATE.reference().mu) > ALPHA
            return found.counts.calls

        assert calls(TreeDrafter()) < calls(None) / 2

    def test_drafts_reach_neither_the_end_of_the_context_nor_that_of_the_budget(self) -> None:
        short = TableModel.random(VOCABULARY, seed=5, scale=1.5, max_length=5)
        request = replace(LOOP.request(30, 1), lm=short)
        assert request.budgets == (4,)
        (draws,) = sample(ExactPhi(), request, drafter=Fixed(ranked(short, 0)), length=20)
        assert len(draws) == 30 and draws.counts.drafted


class TestForesight:
    def test_chains_end_where_the_guide_does(self) -> None:
        """Also those of a foresight that knows no guide."""
        tree = BoundsTree(LOOP.table, LOOP.budget)
        evaluator = Evaluator(LOOP.lm, LOOP.settings(), [PROMPT], [tree])
        dead, live, x = map(VOCABULARY.tokens.index, (b"b", b"c", b"x"))

        def foreseen(node: Node, *chain: int) -> Foresight:
            return lambda waiting: [(tree, below) for below in tree.along(node, chain)]

        def unvisited() -> int:
            return sum(not node.visited for node in tree.walk())

        evaluator.expand([(tree, tree.root)], foreseen(tree.root, dead, live))
        assert unvisited() == 0 and evaluator.counts.tokens == 0
        node = tree.child(tree.root, live, tree.target(tree.root, live))
        evaluator.expand([(tree, node)], foreseen(node, *(live,) * 10))
        assert unvisited() == LOOP.budget - 3  # what is left is x, and the end
        assert evaluator.counts.tokens == LOOP.budget - 2 and tree.expansions == 2
        last = tree.child(tree.root, x, tree.target(tree.root, x))
        evaluator.expand([(tree, last)], foreseen(last, VOCABULARY.eos_ids[0]))
        assert unvisited() == LOOP.budget - 3
        tree.visit(node.children[live])
        assert unvisited() == LOOP.budget - 4 and tree.expansions == 4

    @pytest.mark.parametrize(("name", "share"), [("likeliest", 0.1), ("least likely", 0.0)])
    def test_an_estimator_learns_from_where_walks_have_been(
        self, name: str, share: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A drafted prefix is none until a walk has come to it."""
        learned = Counter[str]()
        step, reach = LearnedEstimate.step, LearnedEstimate.reached

        def stepping(self: LearnedEstimate, prefixes: Prefixes, exchange: Exchange) -> Callable[[Tensor], Tensor]:
            learned["drafted"] += sum(prefixes.drafted)
            return step(self, prefixes, exchange)

        def reaching(self: LearnedEstimate, places: Sequence[int]) -> None:
            learned["reached"] += len(places)
            reach(self, places)

        monkeypatch.setattr(LearnedEstimate, "step", stepping)
        monkeypatch.setattr(LearnedEstimate, "reached", reaching)
        (draws,) = sample(LearnedPhi(), LOOP.request(8, 2), drafter=drafters(LOOP)[name])
        assert 0 < learned["drafted"] <= draws.counts.drafted  # walks share prefixes
        assert share * learned["drafted"] <= learned["reached"] <= min(learned["drafted"], draws.counts.followed)


def broken(*_: object) -> Draft:
    raise RuntimeError("out of order")


@pytest.mark.parametrize("phi", [ExactPhi(), AutoPhi()], ids=["exact", "auto"])
@pytest.mark.parametrize("answer", [broken, lambda *_: Draft((len(VOCABULARY),))], ids=["raises", "no token"])
def test_a_drafter_that_breaks_is_named(phi: object, answer: Callable[..., Draft]) -> None:
    refused("'scripted'", sample, phi, LOOP.request(1, 1), drafter=Scripted(answer), error=DraftError)
