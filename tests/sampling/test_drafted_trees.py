"""Samplers that draw from token trees, with what drafters foresee evaluated ahead: the same laws by fewer calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from pydantic import BaseModel, Field
from torch import Tensor

import outlines_phi
from outlines_phi import (
    SMC,
    AutoPhi,
    Effort,
    ExactPhi,
    Guarantee,
    LearnedPhi,
    LocalPhi,
    LookaheadPhi,
    SamplingSettings,
    UnsupportedError,
)
from outlines_phi.drafting import AdaptedLength, Draft, Drafter, ForcedDrafter, Site, TreeDrafter
from outlines_phi.errors import DraftError
from outlines_phi.lm import TableModel
from outlines_phi.phi import Prefixes
from outlines_phi.phi.learned import LearnedEstimate
from outlines_phi.sampling import drafted_stepper
from tests.drafting.runs import Scripted
from tests.drafting.texts import CANONICAL
from tests.inner import (
    AncestralSampler,
    AutoSampler,
    BoundsTree,
    Evaluator,
    ExactSampler,
    Exchange,
    LookaheadSampler,
    Prefetch,
    Request,
    Sampler,
    TreeStore,
    bundled,
    rank,
    sampler_for,
    window_walks,
)
from tests.languages import ALPHA, GRAMMARS, PROMPT, VOCABULARY, Language, deviation, p_value, z
from tests.sampling.banning import NESTED as BANS
from tests.sampling.banning import SHORT, WHOLE, Banned, ids
from tests.sampling.foreseen import LATE, LOOP, WORDS, ahead, forced, names, walked

pytestmark = [
    pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning"),
    pytest.mark.usefixtures("only_walks_grow_trees"),
]


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int
    city: str = Field(max_length=20)


FEW = ("likeliest", "least likely", "drawn")


class TestAuto:
    def test_weights_are_unbiased(self) -> None:
        """E[w f] = Phi mu*(f) over runs of trajectories that learn between rounds; 150 runs of each."""
        columns = zip(*(self.errors(language) for language in (LOOP, GRAMMARS[2])), strict=True)
        assert all(deviation(column) < 3.5 for column in columns)

    def errors(self, language: Language) -> tuple[float, float]:
        reference, w, f = language.reference(), [], []
        phi, top = math.exp(reference.log_phi), max(reference.mu, key=lambda y: reference.mu[y])
        for seed, (frontier, name) in enumerate(product((None, LearnedPhi()), FEW)):
            sampler = AutoSampler(AutoPhi(share=0, candidates=1, frontier=frontier), draft=ahead(language, name))
            for draws in sampler.sample(language.request(40, seed=seed, rows=25)):
                weights = np.exp(draws.log_w)
                w.append(weights.mean() / phi)
                tops = sum(math.exp(draw.log_w) for draw in draws if draw.token_ids == top)
                f.append(tops / len(weights) / phi)
        return z(np.array(w), 1.0), z(np.array(f), reference.mu[top])

    def test_exact_draws_of_a_mixed_set_are_exact(self) -> None:
        first = []
        for seed, name in enumerate(FEW):
            sampler = AutoSampler(AutoPhi(share=0.4, width=8), draft=ahead(WORDS, name))
            results = sampler.sample(WORDS.request(3, seed=seed, rows=100))
            assert len({draw.guarantee for draws in results for draw in draws}) == 2
            first += [draws[0].token_ids for draws in results if draws[0].guarantee == Guarantee.EXACT]
        assert len(first) > 150 and p_value(first, WORDS.reference().mu) > ALPHA

    def test_masking_fails_the_test_of_exact_draws(self) -> None:
        masked = AncestralSampler(LocalPhi()).sample(WORDS.request(1, seed=8, rows=300))
        assert p_value([draws[0].token_ids for draws in masked], WORDS.reference().mu) < ALPHA


class TestLookahead:
    @pytest.mark.in_turn
    @names
    @pytest.mark.parametrize("release", ["window", "early"])
    @pytest.mark.parametrize("case", [SHORT, BANS], ids=str)
    def test_draws_are_those_without_a_draft(self, case: Banned, release: str, name: str) -> None:
        """Token for token: the walks see the same laws in the same order."""
        phi = LookaheadPhi(release=release)  # type: ignore[arg-type]
        plain, drafted = (
            LookaheadSampler(phi, draft).sample(case.request(100, 1))[0] for draft in (None, ahead(case, name))
        )
        assert [(d.token_ids, d.log_p) for d in drafted] == [(d.token_ids, d.log_p) for d in plain]
        assert drafted.rejections == plain.rejections
        assert drafted.counts.calls <= plain.counts.calls
        assert drafted.counts.tokens >= plain.counts.tokens

    @pytest.mark.full  # by the test above, as they have without a draft
    @pytest.mark.parametrize("case", [SHORT, BANS], ids=str)
    def test_windows_have_their_law(self, case: Banned) -> None:
        (draws,) = LookaheadSampler(LookaheadPhi(), ahead(case, "likeliest")).sample(case.request(3000, 1))
        assert p_value(ids(draws), case.windows(WHOLE)[0]) > ALPHA

    def test_weights_are_unbiased(self) -> None:
        """The errors under all drafts are added."""
        errors = []
        for seed, name in enumerate(FEW):
            sampler = LookaheadSampler(LookaheadPhi(weights=True), ahead(SHORT, name))
            (draws,) = sampler.sample(SHORT.request(900, seed))
            errors.append(z(np.exp(draws.log_w), SHORT.phi()))
        assert deviation(errors) < 4

    def test_a_stream_commits_what_a_call_draws(self) -> None:
        sampler = LookaheadSampler(LookaheadPhi(), ahead(BANS, "likeliest"))
        (draws,) = sampler.sample(BANS.request(20, 4))
        ends = {walk.number: walk for step in sampler.steps(BANS.request(20, 4)) for walk in step}
        assert [tuple(ends[i].tokens) for i in sorted(ends)] == ids(draws)

    def test_the_cache_is_tidied_as_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window_walks, "WASTE", 0)
        plain, drafted = (
            LookaheadSampler(LookaheadPhi(), draft).sample(BANS.request(50, 1))[0]
            for draft in (None, ahead(BANS, "least likely"))
        )
        assert ids(drafted) == ids(plain)


class TestCounts:
    @pytest.mark.parametrize("length", [1, 2, 4, 8])
    def test_calls_fall_by_the_draft_length_where_drafts_are_right(self, length: int) -> None:
        """L laws are needed, and each call has K + 1 of them."""
        language = forced(22)
        laws = 24
        draft = Prefetch(walked(language.lm, language.table, lambda logits: int(logits.argmax())), length)
        for sampler in (
            ExactSampler(ExactPhi(width=1), draft=draft),
            ExactSampler(ExactPhi(), draft=draft),
            AutoSampler(AutoPhi(), draft=draft),
        ):
            plain = replace(sampler, draft=None).sample(language.request(1, 1))[0].counts
            counts = sampler.sample(language.request(1, 1))[0].counts
            assert plain.calls == laws and counts.calls == math.ceil(laws / (length + 1))
            assert counts.followed == counts.drafted == laws - counts.calls == counts.tokens - counts.calls + 1
            assert counts.turns == counts.calls and counts.tokens_per_call > 0.85 * (length + 1)
            assert (plain.drafted, plain.turns, plain.tokens) == (0, 0, laws - 1)

    def test_forced_text_of_a_record_of_a_real_model(self) -> None:
        """Every other token of a record is forced, and the bundled model writes it as the tokenizer does."""
        model = outlines_phi.from_transformers(*bundled.load())
        table = model.table(Person, backend="outlines_core")  # blanks of few kinds
        prompts = [tuple(model._prompt_ids(f"Person: {name}. JSON: ")) for name in ("Bob", "Clara", "Greta")]
        settings = SamplingSettings(max_new_tokens=60, seed=1)
        request = Request(lm=model.lm, table=table, prompts=prompts, settings=settings, n=2)
        drafter = ForcedDrafter()
        for phi in (ExactPhi(), AutoPhi()):
            plain, drafted = (
                sampler_for(phi, TreeStore(), None, each, 8, CANONICAL.encode).sample(request)
                for each in (None, drafter)
            )
            assert drafted[0].counts.calls <= 0.6 * plain[0].counts.calls
            for draws in drafted:
                assert draws.counts.tokens_per_call > 1.8 and draws.counts.draft_acceptance > 0.7
                assert all(Person.model_validate_json(draw.text) for draw in draws)

    def test_what_fits_the_memory_is_drafted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(drafted_stepper, "AT_ONCE", 3 * len(VOCABULARY))
        asked: list[int] = []

        def answer(site: Site, length: int) -> Draft:
            asked.append(length)
            return Draft(())

        sampler = ExactSampler(ExactPhi(width=4), draft=Prefetch(Scripted(answer), 4))
        sampler.sample(LOOP.request(20, 1, rows=3))
        assert max(asked) == 3 and min(asked) == 1  # the walks of a prompt share its room, three prompts do not

    def test_the_longest_draft_is_found_by_what_is_accepted(self) -> None:
        language = forced(60)
        lm, table = language.lm, language.table
        right = walked(lm, table, lambda logits: int(logits.argmax()))
        wrong = walked(lm, table, lambda logits: int(logits.argmin()))

        def counts(drafter: Drafter) -> int:
            sampler = sampler_for(ExactPhi(width=1), TreeStore(), None, AdaptedLength(drafter), 8)
            found = sampler.sample(language.request(1, 1))[0].counts
            return found.drafted if drafter is wrong else found.calls

        assert counts(right) <= 10
        assert counts(wrong) < 2.2 * 60  # hardly more than one a call, where a fixed length has eight

    @names
    def test_a_draft_that_is_wrong_costs_tokens_and_no_effort(self, name: str) -> None:
        """The tree has used as many nodes as walks have come to: the rest are drafts that were rejected."""
        for seed in range(20):
            store = TreeStore()
            torch.manual_seed(seed)
            counts = ExactSampler(ExactPhi(), store, ahead(LATE, name)).sample(LATE.request(3, None))[0].counts
            (tree,) = store._trees.values()
            assert 0 <= counts.followed <= counts.drafted
            assert tree.expansions - 1 == counts.tokens - (counts.drafted - counts.followed)

    def test_dead_drafts_and_none_change_nothing_at_all(self) -> None:
        for sampler, request in (
            (ExactSampler(ExactPhi()), LOOP.request(20, 1, rows=3)),
            (ExactSampler(ExactPhi(tolerance=0.3)), LOOP.request(20, 1, rows=3)),
            (AutoSampler(AutoPhi(share=0.1)), LOOP.request(20, 1, rows=3)),
            (LookaheadSampler(LookaheadPhi()), SHORT.request(20, 1, rows=3)),
        ):
            plain = sampler.sample(request)
            for drafter in (Scripted(lambda site, length: Draft((0,))), Scripted(lambda site, length: Draft(()))):
                drafted = replace(sampler, draft=Prefetch(drafter)).sample(request)
                assert [draws.items for draws in drafted] == [draws.items for draws in plain]
                for one, other in zip(drafted, plain, strict=True):
                    assert replace(one.counts, written=0, turns=0) == other.counts

    def test_paths_that_have_lost_their_laws_are_read_again_in_one_call(self) -> None:
        def calls(draft: Prefetch | None) -> int:
            store = TreeStore()
            torch.manual_seed(1)
            ExactSampler(ExactPhi(), store).sample(LATE.request(1000, None))
            (tree,) = store._trees.values()
            bounds = tuple(map(math.exp, tree.log_bounds))
            tree.drop_distributions(0)
            found = ExactSampler(ExactPhi(width=1), store, draft).sample(LATE.request(40, None))[0]
            assert tuple(map(math.exp, tree.log_bounds)) == pytest.approx(bounds)
            assert p_value(ids(found), LATE.reference().mu) > ALPHA
            return found.counts.calls

        assert calls(Prefetch(TreeDrafter())) < calls(None) / 2

    def test_drafts_reach_neither_the_end_of_the_context_nor_that_of_the_budget(self) -> None:
        short = TableModel.random(VOCABULARY, seed=5, scale=1.5, max_length=5)
        request = replace(LOOP.request(30, 1), lm=short)
        assert request.budgets == (4,)
        drafter = walked(short, LOOP.table, lambda logits: int(logits.argmax()))
        (draws,) = ExactSampler(ExactPhi(), draft=Prefetch(drafter, 20)).sample(request)
        assert len(draws) == 30 and draws.counts.drafted


class TestForesight:
    def test_chains_end_where_the_guide_does(self) -> None:
        """Also those of a foresight that knows no guide."""
        tree = BoundsTree(LOOP.table, LOOP.budget)
        evaluator = Evaluator(LOOP.lm, LOOP.settings(), [PROMPT], [tree])
        dead, end = VOCABULARY.tokens.index(b"b"), VOCABULARY.eos_ids[0]
        live = VOCABULARY.tokens.index(b"c")
        evaluator.expand([(tree, tree.root)], lambda waiting: [(dead, live)])
        assert evaluator.drafted(0) == (0, 0) and evaluator.counts.tokens == 0
        node = tree.child(tree.root, live, tree.target(tree.root, live))
        evaluator.expand([(tree, node)], lambda waiting: [(live,) * 10])
        assert evaluator.drafted(0) == (LOOP.budget - 3, 0)  # what is left is x, and the end
        assert evaluator.counts.tokens == LOOP.budget - 2 and tree.expansions == 2
        last = tree.child(tree.root, (x := VOCABULARY.tokens.index(b"x")), tree.target(tree.root, x))
        evaluator.expand([(tree, last)], lambda waiting: [(end,)])
        assert evaluator.drafted(0) == (LOOP.budget - 3, 0)
        tree.visit(node.children[live])
        assert evaluator.drafted(0) == (LOOP.budget - 3, 1) and tree.expansions == 4

    def test_an_estimator_learns_from_where_walks_have_been(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A drafted prefix is none until a walk has come to it."""
        learned = {"drafted": 0, "reached": 0}
        step, reach = LearnedEstimate.step, LearnedEstimate.reached

        def stepping(self: LearnedEstimate, prefixes: Prefixes, exchange: Exchange) -> Callable[[Tensor], Tensor]:
            learned["drafted"] += sum(prefixes.drafted)
            return step(self, prefixes, exchange)

        def reaching(self: LearnedEstimate, places: Sequence[int]) -> None:
            learned["reached"] += len(places)
            reach(self, places)

        monkeypatch.setattr(LearnedEstimate, "step", stepping)
        monkeypatch.setattr(LearnedEstimate, "reached", reaching)
        for name, share in (("likeliest", 0.1), ("always dead", 0.0)):
            learned.update(drafted=0, reached=0)
            phi = AutoPhi(share=0, frontier=LearnedPhi())
            (draws,) = AutoSampler(phi, draft=ahead(LOOP, name)).sample(LOOP.request(8, 2))
            assert learned["drafted"] == draws.counts.drafted
            assert share * draws.counts.drafted <= learned["reached"] <= draws.counts.followed


class TestMode:
    @names
    def test_a_tree_that_drafts_have_grown_has_the_mode_it_has(self, name: str) -> None:
        for language in (LOOP, LATE):
            store = TreeStore()
            torch.manual_seed(3)
            ExactSampler(ExactPhi(), store, ahead(language, name)).sample(language.request(2, None))
            request, effort = language.request(1, None), Effort()
            (kept,), (fresh,) = (rank(request, 3, trees, effort=effort) for trees in (store, TreeStore()))
            assert [item.token_ids for item in kept] == [item.token_ids for item in fresh]
            assert [item.log_p for item in kept] == pytest.approx([item.log_p for item in fresh])


class TestDispatch:
    def test_every_estimator_has_its_sampler(self) -> None:
        drafter = TreeDrafter()
        for phi, kind in (
            (ExactPhi(), ExactSampler),
            (AutoPhi(), AutoSampler),
            (LookaheadPhi(), LookaheadSampler),
            (LocalPhi(), AncestralSampler),
        ):
            assert type(sampler_for(phi, TreeStore(), None, drafter, 5)) is kind

    @pytest.mark.parametrize("length", [0, -1, 1.5, True])
    @pytest.mark.parametrize("phi", [ExactPhi(), LookaheadPhi(), LocalPhi()], ids=lambda phi: phi.name)
    def test_a_length_of_nothing_is_refused(self, phi: object, length: object) -> None:
        with pytest.raises(UnsupportedError, match="draft length"):
            sampler_for(phi, TreeStore(), None, TreeDrafter(), length)  # type: ignore[arg-type]

    def test_particles_are_refused(self) -> None:
        with pytest.raises(UnsupportedError, match="A draft was given with sampler=SMC"):
            sampler_for(LocalPhi(), TreeStore(), SMC(particles=4), TreeDrafter())

    @pytest.mark.parametrize("sampler", [ExactSampler(ExactPhi()), AutoSampler(AutoPhi())], ids=["exact", "auto"])
    def test_a_drafter_that_breaks_is_named(self, sampler: Sampler) -> None:
        def broken(site: Site, length: int) -> Draft:
            raise RuntimeError("out of order")

        for answer in (broken, lambda site, length: Draft((len(VOCABULARY),))):
            drafted = replace(sampler, draft=Prefetch(Scripted(answer)))  # type: ignore[type-var]
            with pytest.raises(DraftError, match="'scripted'"):
                drafted.sample(LOOP.request(1, 1))
