"""Walks that follow drafts have the law of walks that do not, whatever is drafted (theory.md, sections 7 and 11)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar, final

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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
    UnsupportedError,
)
from outlines_phi.drafting import (
    AdaptedLength,
    Drafter,
    DraftRun,
    FirstOf,
    ForcedDrafter,
    ModelDrafter,
    PromptLookupDrafter,
    Site,
    TreeDrafter,
)
from outlines_phi.guides import Table
from outlines_phi.lm import TableModel
from outlines_phi.phi import Estimate, Prefixes, ProposalPhi, SampledRun, state_values
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import (
    AncestralSampler,
    Chains,
    Distributions,
    Need,
    PhraseGuide,
    Prefetch,
    Proposals,
    Request,
    branches,
    frequencies,
    noise_floor,
    total_variation,
)
from tests.inner import coupling as kernel
from tests.languages import (
    ALPHA,
    AND_OPEN,
    LANGUAGES,
    PROMPT,
    VOCABULARY,
    Language,
    p_value,
    pooled_p_value,
    power,
)
from tests.phi.looking import LookingPhi
from tests.sampling.drafters import Drawn, Fixed, always, constant, law_of, ranked

ESTIMATORS = {
    "local": LocalPhi,
    "onestep": OneStepPhi,
    "dp-bigram": BigramDPPhi,
    "looking": LookingPhi,
    "learned": LearnedPhi,
}
OTHER = TableModel.random(VOCABULARY, seed=99, scale=1.5)
DEAD_TOKEN, N, EACH = 7, 4_000, 520
"""Draws of a language alone (power 0.99 against a bias of 5 %), and of each of seven under each of seven drafters, whose statistics
are added (0.99 against 4 % of all, 0.95 against 7 % of one drafter)."""

languages = pytest.mark.parametrize("language", AND_OPEN, ids=str)
estimators = pytest.mark.parametrize("phi", ESTIMATORS)


def speculative(phi: ProposalPhi, drafter: Drafter, length: int = 8) -> AncestralSampler:
    return AncestralSampler(phi, draft=Prefetch(drafter, length))


def fixed(language: Language) -> dict[str, Drafter]:
    return {
        "likeliest": Fixed(ranked(language.lm, 0)),
        "second": Fixed(ranked(language.lm, 1)),
        "least likely": Fixed(ranked(language.lm, -1)),
        "of another model": Fixed(ranked(OTHER, 0)),
        "dead": Fixed(constant(DEAD_TOKEN)),
        "end of sequence": Fixed(constant(0)),
        "nothing": Fixed(constant(-1)),
    }


def drawn(language: Language) -> dict[str, Drafter]:
    return {
        "same law": Drawn(law_of(language.lm)),
        "masked": Drawn(law_of(language.lm, masked=True)),
        "cold": Drawn(law_of(language.lm, 0.3, masked=True)),
        "another model": Drawn(law_of(OTHER)),
        "always one": Drawn(always(3)),
        "always dead": Drawn(always(DEAD_TOKEN)),
        "always the end": Drawn(always(0)),
    }


def ids(results: Sequence[Draws]) -> list[tuple[int, ...]]:
    return [draw.token_ids for draws in results for draw in draws]


def same(results: Sequence[Draws], others: Sequence[Draws], tolerance: float = 1e-9) -> None:
    assert ids(results) == ids(others)
    for draws, theirs in zip(results, others, strict=True):
        assert draws.failures == theirs.failures and draws.budget == theirs.budget
        for draw, other in zip(draws, theirs, strict=True):
            assert draw.log_p == pytest.approx(other.log_p, abs=tolerance)
            assert draw.log_w == pytest.approx(other.log_w, abs=tolerance)
            assert draw.guarantee is Guarantee.WEIGHTED


class TestDeterministicDrafts:
    """They change nothing at all: draw for draw, weight for weight."""

    @languages
    @estimators
    def test_draws_are_those_without(self, phi: str, language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            state_values, "STEPS", 10**6
        )  # of each state all steps are kept, so that their order is none
        plain = AncestralSampler(ESTIMATORS[phi]()).sample(language.request(10, 3, rows=2))
        place = list(ESTIMATORS).index(phi) + AND_OPEN.index(language)
        for i, (length, drafter) in enumerate(zip((1, 2, 3, 4, 6, 20, 5), fixed(language).values(), strict=True)):
            if (i + place) % 2:  # every drafter under every estimator, and of every language
                continue
            sampler = speculative(ESTIMATORS[phi](), drafter, length)
            same(sampler.sample(language.request(10, 3, rows=2)), plain)

    @pytest.mark.parametrize("options", [{"top_k": 4}, {"temperature": 0.5}, {"repetition_penalty": 1.7}])
    def test_under_every_setting(self, options: dict[str, float]) -> None:
        """Truncation fails walks in the middle of a draft, too."""
        language = LANGUAGES[0]
        request = language.request(300, 4, **options)
        plain = AncestralSampler(LocalPhi()).sample(request)
        for drafter in fixed(language).values():
            same(speculative(LocalPhi(), drafter, 4).sample(language.request(300, 4, **options)), plain)
        assert "top_k" not in options or plain[0].failures

    def test_free_text_within_its_budget(self) -> None:
        """An open guide ends with its budget, in the middle of a draft."""
        table = Table(PhraseGuide(VOCABULARY, BannedPhrases(["ab"])))
        lm = TableModel.random(VOCABULARY, seed=2)

        def request() -> Request:
            return Request(
                lm=lm,
                table=table,
                prompts=[PROMPT],
                settings=SamplingSettings(max_new_tokens=5, seed=3),
                n=100,
            )

        plain = AncestralSampler(LocalPhi()).sample(request())
        assert any(0 not in draw.token_ids for draw in plain[0]) and any(0 in draw.token_ids for draw in plain[0])
        for length in (1, 3, 9):
            same(speculative(LocalPhi(), Fixed(ranked(lm, 0)), length).sample(request()), plain)

    def test_what_was_drafted_in_vain_teaches_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_values, "STEPS", 10**6)
        language = LANGUAGES[0]
        known = []
        for drafter in (None, *fixed(language).values()):
            values = StateValues()
            phi = LearnedPhi(values)
            sampler = AncestralSampler(phi) if drafter is None else speculative(phi, drafter, 5)
            sampler.sample(language.request(40, 1, rows=2))
            known.append((sorted(values.known.at.tolist()), values.known.log_v))
        for at, log_v in known[1:]:
            assert at == known[0][0]
            assert log_v == pytest.approx(known[0][1], abs=1e-9)

    @given(st.integers(0, 2**20), st.integers(1, 7))
    @settings(max_examples=25, deadline=None)
    def test_random_drafts_of_random_lengths(self, seed: int, length: int) -> None:
        language = LANGUAGES[seed % len(LANGUAGES)]

        def choose(site: Site, run: DraftRun) -> int:
            rng = np.random.default_rng((seed, *site.tokens))
            return -1 if rng.random() < 0.2 else ranked(language.lm, int(rng.integers(2)))(site, run)

        plain = AncestralSampler(OneStepPhi()).sample(language.request(6, seed, rows=2))
        same(speculative(OneStepPhi(), Fixed(choose), length).sample(language.request(6, seed, rows=2)), plain)


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
        assert power(EACH, 0.07, samples=each, alpha=ALPHA / drafters) >= 0.95
        assert power(N, 0.05) >= 0.99

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
                sampler = speculative(LocalPhi(), drawn(language)[name], length)
                found = ids(sampler.sample(language.request(n, 7 + i)))
                distance, floor = total_variation(frequencies(found), law), noise_floor(law, n)
                print(f"{language}, {name}, {length}: TV {distance:.4f}, floor {floor:.4f}")
                assert distance < 3 * floor, language
                samples.append((found, law))
            assert pooled_p_value(samples) > ALPHA / len(names), name
            everything += samples
        assert pooled_p_value(everything) > ALPHA

    def test_any_length(self) -> None:
        language, found = LANGUAGES[1], []
        for length in range(1, 7):
            sampler = speculative(LocalPhi(), drawn(language)["cold"], length)
            found += ids(sampler.sample(language.request(EACH, length)))
        assert p_value(found, language.reference().mask) > ALPHA

    def test_the_projected_law_is_not_the_conditioned_one(self) -> None:
        language = LANGUAGES[0]
        found = ids(speculative(LocalPhi(), drawn(language)["cold"], 4).sample(language.request(N, 7)))
        assert p_value(found, language.reference().mu) < ALPHA

    def test_exact_phi_draws_the_conditioned_law(self) -> None:
        """FVO-Spec: with ``h = Phi`` drafts leave exactly ``mu*``, and every weight is ``Phi`` of the prompt."""
        samples, n = [], 800
        names = ["same law", "cold", "another model", "always dead", "likeliest", "least likely"]
        assert power(n, 0.05, samples=2 * len(names)) >= 0.99
        for i, (name, language) in enumerate(product(names, LANGUAGES[:2])):
            reference = language.reference()
            drafter = {**fixed(language), **drawn(language)}[name]
            (draws,) = speculative(OraclePhi(language), drafter, 4).sample(language.request(n, 7 + i))
            samples.append((ids([draws]), reference.mu))
            assert p_value(ids([draws]), reference.mask) < ALPHA
            assert draws.log_w == pytest.approx([reference.log_phi] * n, abs=1e-9)
            assert draws.counts.drafted or name == "always dead"
        assert pooled_p_value(samples) > ALPHA

    @pytest.mark.parametrize("phi", ["onestep", "dp-bigram", "looking"])
    def test_every_estimator_has_its_own_law(self, phi: str) -> None:
        language = LANGUAGES[0]
        own = ESTIMATORS[phi]()
        settings = language.settings()
        reference = enumerate_language(
            language.lm, language.table, PROMPT, settings, language.budget, estimators={phi: own}
        )
        law = {y: math.exp(log_q) for y, log_q in reference.log_q[phi].items()}
        assert sum(law.values()) == pytest.approx(1.0)
        sampler = speculative(own, drawn(language)["cold"], 4)
        found = ids(sampler.sample(language.request(N // 2, 5)))
        assert p_value(found, law) > ALPHA
        assert p_value(found, reference.mu) < ALPHA

    @estimators
    def test_weights_are_unbiased_and_correct_the_proposal(self, phi: str) -> None:
        """E[w] = Phi within four standard errors: learned values, too, whose law moves from round to round."""
        language = LANGUAGES[0]
        reference, n = language.reference(), 1500
        draws = speculative(ESTIMATORS[phi](), drawn(language)["cold"], 3).sample(language.request(n, 3))[0]
        w = np.exp(draws.log_w)
        assert abs(w.mean() - math.exp(reference.log_phi)) < 4 * w.std() / math.sqrt(n) + 1e-9
        weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
        assert total_variation(weighted, reference.mu) < 3 * noise_floor(reference.mu, int(draws.ess)) + 0.005

    def test_every_draw_knows_the_law_that_it_was_drawn_from(self) -> None:
        language = LANGUAGES[0]
        reference = language.reference()
        for drafter in drawn(language).values():
            for draw in speculative(LocalPhi(), drafter, 4).sample(language.request(100, 3))[0]:
                assert draw.log_p == pytest.approx(reference.log_p[draw.token_ids], abs=1e-9)
                assert draw.log_w == pytest.approx(draw.log_p - reference.log_mask[draw.token_ids], abs=1e-6)

    @pytest.mark.parametrize("shared", [False, True], ids=["a draft each", "a shared draft"])
    def test_walks_are_independent_unless_they_share_a_draft(self, shared: bool) -> None:
        """Two draws of one prompt, many times: each has the law either way; the pair has it only with a draft each."""
        language = LANGUAGES[1]
        mu = language.reference().mask
        drafter = replace(drawn(language)["masked"], shared=shared)
        found: list[tuple[Any, ...]] = []
        for seed in range(6):  # rows are streams of their own; a fault of sharing is one of each
            results = speculative(LocalPhi(), drafter, 4).sample(language.request(2, seed, rows=250))
            found += [tuple(draw.token_ids for draw in draws) for draws in results]
        joint = {(a, b): p * q for a, p in mu.items() for b, q in mu.items()}
        alike = sum(a == b for a, b in found) / len(found)
        chance = sum(p * p for p in mu.values())
        spread = math.sqrt(chance * (1 - chance) / len(found))
        assert (abs(alike - chance) < 4 * spread) == (not shared)
        if not shared:
            assert p_value(found, joint) > ALPHA

    @languages
    def test_a_prompt_alone_draws_the_same(self, language: Language) -> None:
        """Nothing of a draw depends on the rows beside it."""
        place = AND_OPEN.index(language)
        for drafter in (*drawn(language).values(), *fixed(language).values())[place % 2 :: 2]:
            sampler = speculative(OneStepPhi(), drafter, 3)
            alone = sampler.sample(language.request(8, 5))
            together = sampler.sample(language.request(8, 5, rows=4))
            same(alone, together[:1])

    @pytest.mark.parametrize("of_rows", [True, False], ids=["a stream per row", "one stream"])
    def test_rows_that_share_a_stream_fail_the_same_test(self, of_rows: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        stream = Request.stream
        shared: dict[Request, np.random.Generator] = {}
        if not of_rows:
            monkeypatch.setattr(
                Request, "stream", lambda self, row, i: shared.setdefault(self.settings, stream(self, 0, 0))
            )
        language = LANGUAGES[1]
        sampler = speculative(OneStepPhi(), drawn(language)["cold"], 3)
        alone = sampler.sample(language.request(20, 5))
        shared.clear()
        together = sampler.sample(language.request(20, 5, rows=4))
        assert (ids(alone) == ids(together[:1])) == of_rows

    def test_same_seed_same_draws(self) -> None:
        language = LANGUAGES[1]
        sampler = speculative(LearnedPhi(), drawn(language)["cold"], 4)
        first = ids(sampler.sample(language.request(20, 9)))
        assert ids(sampler.sample(language.request(20, 9))) == first != ids(sampler.sample(language.request(20, 10)))


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


def test_what_waits_holds_no_memory_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of logits is a part of the answer about all that was drafted; what is kept of it is a row."""
    language, held = LANGUAGES[0], []
    prune = branches.Branches.prune

    def counting(self: branches.Branches, *arguments: Any) -> None:
        prune(self, *arguments)
        storages = {logits.untyped_storage().data_ptr(): logits.untyped_storage() for _, logits in self._seen.values()}
        rows = sum(logits.nbytes for _, logits in self._seen.values())
        held.append((sum(storage.nbytes() for storage in storages.values()), rows))

    monkeypatch.setattr(branches.Branches, "prune", counting)
    speculative(LocalPhi(), drawn(language)["another model"], 4).sample(language.request(60, seed=2))
    assert max(rows for _, rows in held) > 0
    assert all(storage == rows for storage, rows in held)


class TestControls:
    """Rules that look right and are not fail the tests that the right one passes."""

    @pytest.mark.parametrize("rule", ["right", "accept always", "accept by q alone"])
    def test_ignoring_what_drafts_were_drawn_from(self, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def keeps(laws: Distributions, chains: Chains, proposals: Proposals) -> Tensor:
            tokens = chains.tokens[proposals.walks]
            log_q = laws.log_q(chains.rows[proposals.walks, : tokens.shape[1]].clamp_min(0), tokens)
            return (log_q > -math.inf).double() if rule == "accept always" else log_q.exp()

        if rule != "right":
            monkeypatch.setattr(kernel, "_keeps", keeps)
        language = LANGUAGES[0]
        found = ids(speculative(LocalPhi(), Drawn(law_of(OTHER, masked=True)), 3).sample(language.request(N // 2, 7)))
        assert (p_value(found, language.reference().mask) > ALPHA) == (rule == "right")

    @pytest.mark.parametrize("draft", ["likeliest", "masked"])
    def test_an_estimate_refreshed_by_the_drafted_child(self, draft: str) -> None:
        language = LANGUAGES[0]
        drafter = {**fixed(language), **drawn(language)}[draft]
        found = ids(speculative(RefreshedPhi(), drafter, 3).sample(language.request(N // 2, 7)))
        right = ids(speculative(LocalPhi(), drafter, 3).sample(language.request(N // 2, 7)))
        assert p_value(right, language.reference().mask) > ALPHA
        assert p_value(found, language.reference().mask) < ALPHA


OWN = {
    "forced": ForcedDrafter(),
    "prompt_lookup": PromptLookupDrafter(1),
    "tree": TreeDrafter(),
    "greedy model": ModelDrafter(OTHER, greedy=True),
    "forced, then looked up": FirstOf((ForcedDrafter(), PromptLookupDrafter(1))),
    "greedy, adapted": AdaptedLength(ModelDrafter(OTHER, greedy=True)),
    "model": ModelDrafter(OTHER),
    "forced, then model": FirstOf((ForcedDrafter(), ModelDrafter(OTHER))),
    "model, adapted": AdaptedLength(ModelDrafter(OTHER)),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("language", [LANGUAGES[1], LANGUAGES[2]], ids=str)
def test_the_drafters_of_the_package(name: str, language: Language) -> None:
    sampler = speculative(LocalPhi(), OWN[name], 4)
    if not OWN[name].sampled:
        plain = AncestralSampler(LocalPhi()).sample(language.request(100, 3, rows=2))
        same(sampler.sample(language.request(100, 3, rows=2)), plain)
        return
    draws = sampler.sample(language.request(N // 2, 3))[0]
    assert draws.counts.drafted
    assert p_value(ids([draws]), language.reference().mask) > ALPHA


class TestCosts:
    def test_a_perfect_draft_is_written_in_few_calls(self) -> None:
        """A law that is all but certain: K + 1 tokens per call, and one call for all prompts."""
        language = replace(LANGUAGES[1], scale=60.0, budget=24)
        for length in (1, 2, 5):
            drafter = Fixed(ranked(language.lm, 0))
            results = speculative(LocalPhi(), drafter, length).sample(language.request(1, 0, rows=3))
            size = len(results[0][0].token_ids)
            counts = results[0].counts
            assert size >= 4
            assert counts.calls == counts.turns == math.ceil(size / (length + 1))
            assert counts.written == size and counts.drafted == counts.followed
            assert counts.tokens_per_call == size / counts.calls and counts.draft_acceptance == 1.0

    @estimators
    def test_no_draft_costs_what_no_drafter_costs(self, phi: str) -> None:
        language = LANGUAGES[0]
        plain = AncestralSampler(ESTIMATORS[phi]()).sample(language.request(25, 3, rows=2))[0].counts
        sampler = speculative(ESTIMATORS[phi](), Fixed(constant(-1)), 4)
        counts = sampler.sample(language.request(25, 3, rows=2))[0].counts
        assert (counts.calls, counts.prompt_tokens, counts.tokens) == (plain.calls, plain.prompt_tokens, plain.tokens)
        assert counts.drafted == counts.followed == 0 and counts.tokens_per_call == 1.0
        assert counts.turns == counts.written

    @languages
    def test_a_round_is_one_call_and_counts_add_up(self, language: Language) -> None:
        place = AND_OPEN.index(language)
        for drafter in (*fixed(language).values(), *drawn(language).values())[place % 2 :: 2]:
            sampler = speculative(LocalPhi(), drafter, 3)
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

    def test_what_was_rejected_is_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        language = replace(LANGUAGES[1], budget=30, scale=0.5)
        kept: list[int] = []
        monkeypatch.setattr(branches, "WASTE", 0)
        compact = branches.Branches.compact

        def counted(self: branches.Branches, nodes: Any) -> None:
            compact(self, nodes := list(nodes))
            forest = self.trees._forest  # type: ignore[attr-defined]
            kept.append(int(forest.alive[: len(forest)].sum()) - sum(forest.depth[node] for node in nodes))

        monkeypatch.setattr(branches.Branches, "compact", counted)
        sampler = speculative(LocalPhi(), Fixed(ranked(language.lm, -1)), 5)
        plain = AncestralSampler(LocalPhi()).sample(language.request(9, 8))
        kept.clear()
        same(sampler.sample(language.request(9, 8)), plain)
        assert len(kept) > 3 and max(kept) <= 1  # the prompt, and the ways to the walks

    def test_many_drawn_chains_take_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some walks go without a chain where memory has no room for all; the law stays."""
        language = LANGUAGES[0]
        sampler = speculative(LocalPhi(), drawn(language)["cold"], 4)
        (everyone,) = sampler.sample(language.request(N, 7))
        monkeypatch.setattr("outlines_phi.sampling.drafted_stepper.KEPT", len(VOCABULARY) * 5 * 50)
        (some,) = sampler.sample(language.request(N, 7))
        assert p_value(ids([some]), language.reference().mask) > ALPHA
        assert 0 < some.counts.drafted < everyone.counts.drafted / 4
        fewer = speculative(LocalPhi(), Fixed(ranked(language.lm, 0)), 4)
        same(fewer.sample(language.request(50, 7)), AncestralSampler(LocalPhi()).sample(language.request(50, 7)))


class TestStreaming:
    @pytest.mark.parametrize("name", ["likeliest", "masked"])
    def test_texts_only_ever_grow_and_end_as_the_draws(self, name: str) -> None:
        language = LANGUAGES[0]
        drafter = {**fixed(language), **drawn(language)}[name]
        sampler = speculative(LearnedPhi(), drafter, 4)
        texts: dict[tuple[int, int], tuple[int, ...]] = {}
        most = 0
        for walks in sampler.steps(language.request(20, 6, rows=2)):
            for walk in walks:
                before = texts.get((walk.row, walk.number), ())
                assert tuple(walk.tokens[: len(before)]) == before and len(walk.tokens) > len(before)
                most = max(most, len(walk.tokens) - len(before))
                texts[walk.row, walk.number] = tuple(walk.tokens)
        assert most > 1
        results = sampler.sample(language.request(20, 6, rows=2))
        assert [texts[key] for key in sorted(texts)] == ids(results)


class TestBadInput:
    @pytest.mark.parametrize("length", [0, -1, 1.5, True, None])
    def test_lengths(self, length: Any) -> None:
        with pytest.raises(UnsupportedError, match="length"):
            speculative(LocalPhi(), Fixed(constant(0)), length)

    def test_a_constraint(self) -> None:
        class Any_:
            further, bytes = 1, 0

            def allows(self, tokens: Sequence[int], *, finished: bool) -> bool:
                return True

        request = replace(LANGUAGES[0].request(1, 0), constraint=Any_())
        sampler = speculative(LocalPhi(), Fixed(constant(0)), 2)
        for door in (sampler.sample, sampler.steps):
            with pytest.raises(UnsupportedError, match="Leave out one"):
                door(request)

    @languages
    def test_nothing_outside_the_language_is_returned(self, language: Language) -> None:
        """Any budget, whatever is drafted."""
        least = language.table.guide.min_tokens(language.table.start)
        for i, budget in enumerate((least, least + 1, language.budget), AND_OPEN.index(language)):
            small = language.within(budget)
            members = small.reference().mu
            for drafter in (*fixed(small).values(), *drawn(small).values())[i % 2 :: 2]:
                for draws in speculative(OneStepPhi(), drafter, 7).sample(small.request(5, 1, rows=3)):
                    assert len(draws) == 5 and all(draw.token_ids in members for draw in draws)
