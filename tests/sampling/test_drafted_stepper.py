"""Walks that follow drafts have the law of walks that do not, whatever is drafted (theory.md, sections 7 and 11)."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi import (
    BannedPhrases,
    BigramDPPhi,
    Draws,
    Guarantee,
    LearnedPhi,
    LocalPhi,
    OneStepPhi,
    SamplingSettings,
    StateValues,
    TextConstraint,
    Vocabulary,
)
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
from outlines_phi.guides import Table
from outlines_phi.phi import Estimate, Prefixes, ProposalPhi, SampledRun, state_values
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import (
    AncestralSampler,
    Need,
    PhraseGuide,
    Prefetch,
    Request,
    Stepper,
    TableModel,
    Trajectory,
    branches,
    frequencies,
    noise_floor,
    total_variation,
)
from tests.languages import (
    ALPHA,
    AND_OPEN,
    GRAMMARS,
    KEYS,
    LANGUAGES,
    LISTED,
    PROMPT,
    VOCABULARY,
    Language,
    correct,
    ids,
    joint,
    languages,
    p_value,
    pairs,
    pooled_p_value,
    power,
    sample,
    unbiased,
)
from tests.phi.walks import LookingPhi, forest_of
from tests.refusals import refused
from tests.sampling.drafters import Fixed, constant, drafter_of, drawn, fixed, ranked

ESTIMATORS = {
    "local": LocalPhi,
    "onestep": OneStepPhi,
    "dp-bigram": BigramDPPhi,
    "looking": LookingPhi,
    "learned": LearnedPhi,
}
N, EACH = 4_000, 450
"""Draws of a language alone (power 0.99 against a bias of 5 %), and of each of nine under each of seven drafters, whose statistics
are added (0.99 against 4 % of all, 0.95 against 7 % of one drafter)."""

estimators = pytest.mark.parametrize("phi", ESTIMATORS)


def walks(phi: object, drafter: Drafter, request: Request, length: int = 3) -> list[Draws]:
    return sample(phi, request, drafter=drafter, length=length)


def same(results: Sequence[Draws], others: Sequence[Draws], tolerance: float = 1e-9) -> None:
    assert ids(*results) == ids(*others)
    for draws, theirs in zip(results, others, strict=True):
        assert draws.failures == theirs.failures and draws.budget == theirs.budget
        for draw, other in zip(draws, theirs, strict=True):
            assert draw.log_p == pytest.approx(other.log_p, abs=tolerance)
            assert draw.log_w == pytest.approx(other.log_w, abs=tolerance) and draw.guarantee is Guarantee.WEIGHTED


class TestDeterministicDrafts:
    """They change nothing at all: draw for draw, weight for weight."""

    @languages
    @estimators
    def test_draws_are_those_without(self, phi: str, language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            state_values, "STEPS", 10**6
        )  # of each state all steps are kept, so that their order is none
        request = language.request(10, 3, rows=2)
        plain = sample(ESTIMATORS[phi](), request)
        place = list(ESTIMATORS).index(phi) + AND_OPEN.index(language)
        for i, (length, drafter) in enumerate(zip((1, 2, 3, 4, 6, 20, 5), fixed(language).values(), strict=True)):
            if (i + place) % 2:  # every drafter under every estimator, and of every language
                continue
            same(walks(ESTIMATORS[phi](), drafter, request, length), plain)

    @pytest.mark.parametrize("options", [{"top_k": 4}, {"temperature": 0.5}, {"repetition_penalty": 1.7}])
    def test_under_every_setting(self, options: dict[str, float]) -> None:
        """Truncation fails walks in the middle of a draft, too."""
        request = LANGUAGES[0].request(300, 4, **options)
        plain = sample(LocalPhi(), request)
        for drafter in fixed(LANGUAGES[0]).values():
            same(walks(LocalPhi(), drafter, request, 4), plain)
        assert "top_k" not in options or plain[0].failures

    def test_free_text_within_its_budget(self) -> None:
        """An open guide ends with its budget, in the middle of a draft."""
        lm, table = TableModel.random(VOCABULARY, seed=2), Table(PhraseGuide(VOCABULARY, BannedPhrases(["ab"])))
        settings = SamplingSettings(max_new_tokens=5, seed=3)
        request = Request(lm=lm, table=table, prompts=[PROMPT], settings=settings, n=100)
        plain = sample(LocalPhi(), request)
        assert {0 in draw.token_ids for draw in plain[0]} == {True, False}
        for length in (1, 3, 9):
            same(walks(LocalPhi(), Fixed(ranked(lm, 0)), request, length), plain)

    def test_what_was_drafted_in_vain_teaches_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_values, "STEPS", 10**6)
        language = LANGUAGES[0]
        known = []
        for drafter in (None, *fixed(language).values()):
            values = StateValues()
            sample(LearnedPhi(values), language.request(40, 1, rows=2), drafter=drafter, length=5)
            known.append((sorted(values.known.at.tolist()), values.known.log_v))
        assert all(at == known[0][0] and log_v == pytest.approx(known[0][1], abs=1e-9) for at, log_v in known[1:])


@final
@dataclass(frozen=True)
class OraclePhi(ProposalPhi):
    """``h = Phi``, by enumeration."""

    language: Language
    name: ClassVar[str] = "oracle"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits"})

    def begin(self, run: SampledRun) -> Estimate:
        mass: dict[tuple[int, ...], float] = defaultdict(float)
        for member, p in self.language.reference().mu.items():
            for length in range(len(member) + 1):
                mass[member[:length]] += p
        return _Oracle(mass)


@final
@dataclass(frozen=True)
class _Oracle(Estimate):
    mass: dict[tuple[int, ...], float]

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        joint = [[self.mass.get((*tokens, v), 0.0) for v in range(log_p.shape[1])] for tokens in prefixes.tokens]
        return torch.tensor(joint, dtype=log_p.dtype).log()


class TestDrawnDrafts:
    """The law is that without a draft."""

    def test_the_test_has_power(self) -> None:
        drafters, each = len(drawn(LANGUAGES[0])), len(AND_OPEN)
        assert power(EACH, 0.04, samples=drafters * each) >= 0.99
        assert power(EACH, 0.07, samples=each, alpha=ALPHA / drafters) >= 0.95 and power(N, 0.05) >= 0.99

    @pytest.mark.parametrize("n", [EACH, pytest.param(N, marks=pytest.mark.full)])
    def test_masking_with_rejection_draws_the_projected_law(self, n: int) -> None:
        """The seed's theorem: local masks, Leviathan's rejection and sound rollback draw mu_proj.

        The statistics of each drafter, and of all of them, are added.
        """
        everything = []
        for i, name in enumerate(names := drawn(LANGUAGES[0])):
            samples = []
            for language in AND_OPEN:
                law = language.reference().mask
                length = 1 + (len(name) + len(language.name)) % 6
                found = ids(*walks(LocalPhi(), drawn(language)[name], language.request(n, 7 + i), length))
                assert total_variation(frequencies(found), law) < 3 * noise_floor(law, n), language
                samples.append((found, law))
            assert pooled_p_value(samples) > ALPHA / len(names), name
            everything += samples
        assert pooled_p_value(everything) > ALPHA

    def test_exact_phi_draws_the_conditioned_law(self) -> None:
        """FVO-Spec: with ``h = Phi`` drafts leave exactly ``mu*``, and every weight is ``Phi`` of the prompt."""
        samples, n = [], 800
        names = ["same law", "cold", "another model", "always dead", "likeliest", "least likely"]
        assert power(n, 0.05, samples=2 * len(names)) >= 0.99
        for i, (name, language) in enumerate(product(names, LANGUAGES[:2])):
            reference = language.reference()
            (draws,) = walks(OraclePhi(language), drafter_of(language, name), language.request(n, 7 + i), 4)
            samples.append((ids(draws), reference.mu))
            assert p_value(ids(draws), reference.mask) < ALPHA
            assert draws.log_w == pytest.approx([reference.log_phi] * n, abs=1e-9)
            assert draws.counts.drafted or name == "always dead"
        assert pooled_p_value(samples) > ALPHA

    @pytest.mark.parametrize("phi", ["onestep", "dp-bigram", "looking"])
    def test_every_estimator_has_its_own_law(self, phi: str) -> None:
        language, own = LANGUAGES[0], {phi: ESTIMATORS[phi]()}
        law = language.lm, language.table, PROMPT, language.settings(), language.budget
        reference = enumerate_language(*law, estimators=own)
        found = ids(*walks(own[phi], drawn(language)["cold"], language.request(N // 2, 5), 4))
        assert p_value(found, reference.distribution(phi)) > ALPHA > p_value(found, reference.mu)

    @estimators
    def test_weights_are_unbiased_and_correct_the_proposal(self, phi: str) -> None:
        """E[w] = Phi within four standard errors: learned values, too, whose law moves from round to round."""
        language, reference = LANGUAGES[0], LANGUAGES[0].reference()
        (draws,) = walks(ESTIMATORS[phi](), drawn(language)["cold"], language.request(1500, 3))
        assert unbiased(draws, math.exp(reference.log_phi)) and correct(draws, reference.mu)

    def test_every_draw_knows_the_law_that_it_was_drawn_from(self) -> None:
        language, reference = LANGUAGES[0], LANGUAGES[0].reference()
        for drafter in drawn(language).values():
            for draw in walks(LocalPhi(), drafter, language.request(100, 3), 4)[0]:
                assert draw.log_p == pytest.approx(reference.log_p[draw.token_ids], abs=1e-9)
                assert draw.log_w == pytest.approx(draw.log_p - reference.log_mask[draw.token_ids], abs=1e-6)

    @pytest.mark.parametrize("shared", [False, True], ids=["a draft each", "a shared draft"])
    def test_walks_are_independent_unless_they_share_a_draft(self, shared: bool) -> None:
        """Two draws of one prompt, many times: each has the law either way; the pair has it only with a draft each."""
        language = LANGUAGES[1]
        mu, drafter = language.reference().mask, replace(drawn(language)["masked"], shared=shared)
        found = [
            pair
            for seed in range(6)  # rows are streams of their own; a fault of sharing is one of each
            for pair in pairs(walks(LocalPhi(), drafter, language.request(2, seed, rows=250), 4))
        ]
        alike, chance = np.mean([a == b for a, b in found]), sum(p * p for p in mu.values())
        assert (abs(alike - chance) < 4 * math.sqrt(chance * (1 - chance) / len(found))) == (not shared)
        assert shared or p_value(found, joint(mu)) > ALPHA  # type: ignore[arg-type]


@final
@dataclass(frozen=True)
class RefreshedPhi(ProposalPhi):
    """Masking, but for the drafted child of a prefix, whose true next law has been seen: against theory.md, section 7.2."""

    name: ClassVar[str] = "refreshed"
    needs: ClassVar[frozenset[Need]] = frozenset({"guide", "logits"})

    def begin(self, run: SampledRun) -> Estimate:
        return _Refreshed(LocalPhi().begin(run), run)


@final
@dataclass(frozen=True)
class _Refreshed(Estimate):
    local: Estimate
    run: SampledRun

    def scores(self, log_p: Tensor, prefixes: Prefixes) -> Tensor:
        place = {
            (row, tuple(tokens)): i for i, (row, tokens) in enumerate(zip(prefixes.rows, prefixes.tokens, strict=True))
        }
        scores = self.local.scores(log_p, prefixes)
        mass = scores.logsumexp(-1)
        for (row, tokens), i in place.items():
            if prefixes.drafted[i] and (above := place.get((row, tokens[:-1]))) is not None:
                scores[above, tokens[-1]] += mass[i]
        return scores


class TestControls:
    """Rules that look right and are not fail the tests that the right one passes."""

    @pytest.mark.parametrize("draft", ["likeliest", "masked"])
    def test_an_estimate_refreshed_by_the_drafted_child(self, draft: str) -> None:
        language, request = LANGUAGES[0], LANGUAGES[0].request(N // 2, 7)
        wrong, right = (walks(phi, drafter_of(language, draft), request) for phi in (RefreshedPhi(), LocalPhi()))
        law = language.reference().mask
        assert p_value(ids(*right), law) > ALPHA > p_value(ids(*wrong), law)


def own(vocabulary: Vocabulary = VOCABULARY) -> dict[str, Drafter]:
    """Return the drafters of the package; the models among them are small and know nothing of the language."""
    other = TableModel.random(vocabulary, seed=99, scale=1.5)
    return {
        "forced": ForcedDrafter(),
        "ending": EndingDrafter(),
        "prompt_lookup": PromptLookupDrafter(1),
        "tree": TreeDrafter(),
        "greedy model": ModelDrafter(other, greedy=True),
        "forced, then looked up": FirstOf((ForcedDrafter(), PromptLookupDrafter(1))),
        "greedy, adapted": AdaptedLength(ModelDrafter(other, greedy=True)),
        "model": ModelDrafter(other),
        "forced, then model": FirstOf((ForcedDrafter(), ModelDrafter(other))),
        "model, adapted": AdaptedLength(ModelDrafter(other)),
    }


@pytest.mark.in_turn
@pytest.mark.parametrize("name", own())
@pytest.mark.parametrize("language", [LANGUAGES[1], LANGUAGES[2], *GRAMMARS, KEYS, LISTED], ids=str)
def test_the_drafters_of_the_package(name: str, language: Language) -> None:
    drafter = own(language.table.vocabulary)[name]
    if not drafter.sampled:
        request = language.request(100, 3, rows=2)
        same(walks(LocalPhi(), drafter, request, 4), sample(LocalPhi(), request))
        return
    (draws,) = walks(LocalPhi(), drafter, language.request(N // 2, 3), 4)
    assert draws.counts.drafted and p_value(ids(draws), language.reference().mask) > ALPHA


class TestCosts:
    def test_a_perfect_draft_is_written_in_few_calls(self) -> None:
        """A law that is all but certain: K + 1 tokens per call, and one call for all prompts."""
        language = replace(LANGUAGES[1], scale=60.0, budget=24)
        for length in (1, 2, 5):
            results = walks(LocalPhi(), Fixed(ranked(language.lm, 0)), language.request(1, 0, rows=3), length)
            size = len(results[0][0].token_ids)
            counts = results[0].counts
            assert size >= 4 and counts.calls == counts.turns == math.ceil(size / (length + 1))
            assert counts.written == size and counts.drafted == counts.followed
            assert counts.tokens_per_call == size / counts.calls and counts.draft_acceptance == 1.0

    @estimators
    def test_no_draft_costs_what_no_drafter_costs(self, phi: str) -> None:
        request = LANGUAGES[0].request(25, 3, rows=2)
        plain = sample(ESTIMATORS[phi](), request)[0].counts
        counts = walks(ESTIMATORS[phi](), Fixed(constant(-1)), request, 4)[0].counts
        assert (counts.calls, counts.prompt_tokens, counts.tokens) == (plain.calls, plain.prompt_tokens, plain.tokens)
        assert counts.drafted == counts.followed == 0 and counts.tokens_per_call == 1.0
        assert counts.turns == counts.written

    @languages
    def test_a_round_is_one_call_and_counts_add_up(self, language: Language) -> None:
        place = AND_OPEN.index(language)
        for drafter in (*fixed(language).values(), *drawn(language).values())[place % 2 :: 2]:
            sampler = AncestralSampler(LocalPhi(), draft=Prefetch(drafter, 3))
            rounds = len(list(sampler.steps(language.request(8, 1, rows=2))))
            results = sampler.sample(language.request(8, 1, rows=2))
            (calls,) = {draws.counts.calls for draws in results}
            # None at all where every walk goes on from what was drafted for another.
            assert calls == rounds or drafter.sampled and calls < rounds
            for draws in results:
                counts = draws.counts
                assert counts.written == sum(len(draw.token_ids) for draw in draws)
                assert 0 <= counts.followed <= counts.drafted <= 3 * counts.turns
                assert counts.written - counts.turns <= counts.followed <= counts.written
                assert counts.attempts == counts.accepted == 8

    def test_what_was_rejected_is_given_back_and_what_waits_holds_no_memory_but_its_own(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A row of logits is a part of the answer about all that was drafted; what is kept of it is a row."""
        language = replace(LANGUAGES[1], budget=30, scale=0.5)
        kept, held = list[int](), list[tuple[int, int]]()
        monkeypatch.setattr(branches, "WASTE", 0)
        compact, advance = branches.Branches.compact, Stepper.advance

        def counted(self: branches.Branches, nodes: Any) -> None:
            compact(self, nodes := list(nodes))
            forest = forest_of(self)
            kept.append(int(forest.alive[: len(forest)].sum()) - sum(forest.depth[node] for node in nodes))

        def weighed(self: Stepper, walks: Sequence[Trajectory]) -> None:
            advance(self, walks)
            rows = {walk.at: walk.at.answer for walk in walks if walk.at.answer is not None}.values()
            storages = {logits.untyped_storage().data_ptr(): logits.untyped_storage().nbytes() for logits in rows}
            held.append((sum(storages.values()), sum(logits.nbytes for logits in rows)))

        plain = sample(LocalPhi(), language.request(9, 8))
        monkeypatch.setattr(branches.Branches, "compact", counted)
        monkeypatch.setattr(Stepper, "advance", weighed)
        same(walks(LocalPhi(), Fixed(ranked(language.lm, -1)), language.request(9, 8), 5), plain)
        assert len(kept) > 3 and max(kept) <= 1  # the prompt, and the ways to the walks
        walks(LocalPhi(), drawn(LANGUAGES[0])["another model"], LANGUAGES[0].request(60, seed=2), 4)
        assert max(rows for _, rows in held) > 0 and all(storage == rows for storage, rows in held)

    def test_many_drawn_chains_take_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some walks go without a chain where memory has no room for all; the law stays."""
        language, drafter = LANGUAGES[0], drawn(LANGUAGES[0])["cold"]
        (everyone,) = walks(LocalPhi(), drafter, language.request(N, 7), 4)
        monkeypatch.setattr("outlines_phi.sampling.stepper.KEPT", len(VOCABULARY) * 5 * 50)
        (some,) = walks(LocalPhi(), drafter, language.request(N, 7), 4)
        assert p_value(ids(some), language.reference().mask) > ALPHA
        assert 0 < some.counts.drafted < everyone.counts.drafted / 4
        request = language.request(50, 7)
        same(walks(LocalPhi(), Fixed(ranked(language.lm, 0)), request, 4), sample(LocalPhi(), request))


@pytest.mark.parametrize("door", ["sample", "steps"])
def test_a_constraint_is_refused(door: str) -> None:
    constraint = TextConstraint(str.isalpha).over(VOCABULARY)
    sampler = AncestralSampler(LocalPhi(), draft=Prefetch(Fixed(constant(0)), 2))
    refused("Leave out one", getattr(sampler, door), replace(LANGUAGES[0].request(1, 0), constraint=constraint))
