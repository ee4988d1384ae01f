"""The laws of theory.md, section 11, over one table of samplers and one of languages.

A new sampler is a row of ``EXACT`` or ``WEIGHTED``.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi import SMC, AutoPhi, BigramDPPhi, EmptyLanguageError, ExactPhi, LearnedPhi, LocalPhi, OneStepPhi
from outlines_phi.drafting import ForcedDrafter, ModelDrafter
from outlines_phi.guides import read_grammar
from outlines_phi.lm import LanguageModel, SequenceTrees, TokenTrees
from tests.guides.grammar.definition import Definition
from tests.inner import (
    AncestralSampler,
    AutoSampler,
    ExactSampler,
    Prefetch,
    Request,
    Sampler,
    SMCSampler,
    StateSpace,
    WrappedModel,
    ahead,
    frequencies,
    noise_floor,
    preexpand,
    total_variation,
)
from tests.languages import (
    ALPHA,
    AND_OPEN,
    DRAWS,
    GRAMMARS,
    JSON,
    LANGUAGES,
    POOLED,
    PROMPT,
    VOCABULARY,
    GrammarLanguage,
    Ids,
    Language,
    correct,
    deviation,
    ids,
    languages,
    p_value,
    pooled_p_value,
    power,
    sample,
    z,
)
from tests.phi.walks import LookingPhi
from tests.refusals import refused
from tests.sampling.drafters import OTHER

# At the least budgets "auto" may fall back to weights, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

EXACT = {
    "rejection": lambda: ExactSampler(ExactPhi()),
    "one at a time": lambda: ExactSampler(ExactPhi(width=1)),
    "wide": lambda: ExactSampler(ExactPhi(width=400)),
    "auto": lambda: AutoSampler(AutoPhi()),
    "certified at 1e-9": lambda: ExactSampler(ExactPhi(tolerance=1e-9)),
}
WEIGHTED = {
    "local": lambda: AncestralSampler(LocalPhi()),
    "onestep": lambda: AncestralSampler(OneStepPhi()),
    "onestep, high floor": lambda: AncestralSampler(OneStepPhi(floor=0.5)),
    "dp-bigram": lambda: AncestralSampler(BigramDPPhi()),
    "looking": lambda: AncestralSampler(LookingPhi()),
    "learned": lambda: AncestralSampler(LearnedPhi()),
    "adaptive": lambda: AutoSampler(AutoPhi(share=0, candidates=1)),
}

SAMPLERS = EXACT | WEIGHTED
PLANTED = [name for name in SAMPLERS if not isinstance(SAMPLERS[name](), AncestralSampler)]
"""Samplers that draw from trees: walks that follow an estimator have one road."""

OTHERS: dict[str, Callable[[], Sampler]] = {
    "forced drafts": lambda: AncestralSampler(LocalPhi(), draft=Prefetch(ForcedDrafter(), 4)),
    "drawn drafts": lambda: AncestralSampler(OneStepPhi(), draft=Prefetch(ModelDrafter(OTHER), 3)),
    "learned, drawn drafts": lambda: AncestralSampler(LearnedPhi(), draft=Prefetch(ModelDrafter(OTHER), 4)),
    "exact, drawn drafts": lambda: ExactSampler(ExactPhi(), draft=Prefetch(ModelDrafter(OTHER), 3)),
    "particles": lambda: SMCSampler(LocalPhi(), SMC(particles=5)),
    "particles, resampled": lambda: SMCSampler(LocalPhi(), SMC(particles=5, resample="ess", threshold=1.0)),
}
"""Samplers whose distributions have tests of their own; what holds for every sampler holds for them."""


def roads(*names: str) -> pytest.MarkDecorator:
    """Run with small languages expanded whole beforehand, and with trees that only attempts grow."""
    pairs = [(name, "whole") for name in names]
    pairs += [(name, "grown") for name in names if name in PLANTED]
    return pytest.mark.parametrize(("name", "road"), pairs, indirect=["road"])


@pytest.fixture(params=["whole", "grown"])
def road(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "grown":
        monkeypatch.setattr(preexpand, "SHORT", 0)
    return request.param


def test_the_tests_have_power() -> None:
    assert power(DRAWS, 0.02) >= 0.99 and power(DRAWS, 0.02, cells=5) >= 0.99
    one, both, alone = len(AND_OPEN), 2 * len(AND_OPEN), ALPHA / len(EXACT)
    assert power(POOLED, 0.02, samples=len(EXACT) * both) >= 0.99
    assert power(POOLED, 0.02, samples=one) < 0.6 and power(450, 0.04, samples=2 * len(EXACT) * len(JSON)) >= 0.98
    assert power(POOLED, 0.03, samples=both, alpha=alone) >= 0.98  # of a sampler, grown and whole
    assert power(POOLED, 0.04, samples=one, alpha=alone / 2) >= 0.98  # of one of its roads


def exact_draws(
    name: str, n: int, seed: int, languages: Sequence[Language] = AND_OPEN
) -> list[tuple[list[tuple[int, ...]], dict[tuple[int, ...], float]]]:
    """Return ``n`` draws of each language beside its mu*, none of them far off it."""
    samples = []
    for language in languages:
        mu = language.reference().mu
        drawn = ids(*EXACT[name]().sample(language.request(n, seed=seed)))
        assert len(drawn) == n
        assert total_variation(frequencies(drawn), mu) < 3 * noise_floor(mu, n), (name, language)
        samples.append((drawn, mu))
    return samples


@pytest.mark.parametrize(("languages", "n"), [(AND_OPEN, POOLED), (JSON, 450)], ids=["regular, grammars, open", "JSON"])
def test_exact_samplers_draw_the_conditioned_law(
    languages: Sequence[Language], n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tree serves all draws: i.i.d. mu*, by chi-square over all samplers and languages and by TV beside its noise floor.

    The statistics of each road, of each sampler on both, and of all samplers are added.
    """
    everything = []
    for i, name in enumerate(EXACT):
        whole = exact_draws(name, n, 100 + 2 * i, languages)
        with monkeypatch.context() as patch:
            patch.setattr(preexpand, "SHORT", 0)
            grown = exact_draws(name, n, 101 + 2 * i, languages)
        for samples, level in ((whole, ALPHA / 2), (grown, ALPHA / 2), (whole + grown, ALPHA)):
            assert pooled_p_value(samples) > level / len(EXACT), name
        everything += whole + grown
    assert pooled_p_value(everything) > ALPHA


@pytest.mark.full
@roads(*EXACT)
def test_each_exact_sampler_draws_the_conditioned_law_of_each_language(name: str, road: str) -> None:
    samples = exact_draws(name, DRAWS, seed=11)
    assert all(p_value(drawn, mu) > ALPHA for drawn, mu in samples) and pooled_p_value(samples) > ALPHA


@pytest.mark.parametrize("languages", [AND_OPEN, JSON], ids=["regular, grammars, open", "JSON"])
def test_the_same_test_fails_for_plain_masking(languages: Sequence[Language]) -> None:
    """Power control: masking is told from mu* in each language alone, and in all together where it is one draw in 12."""
    mixed, few = [], POOLED // 12
    for language in languages:
        reference = language.reference()
        drawn = ids(*sample(LocalPhi(), language.request(POOLED, seed=7)))
        assert p_value(drawn, reference.mask) > ALPHA, language
        assert p_value(drawn, reference.mu) < ALPHA, language
        drawn[few:] = ids(*sample(ExactPhi(), language.request(POOLED, seed=7)))[few:]
        mixed.append((drawn, reference.mu))
    assert pooled_p_value(mixed) < ALPHA / 2 / len(EXACT)


@pytest.mark.parametrize(
    ("languages", "n"),
    [(AND_OPEN, None), pytest.param(AND_OPEN, DRAWS, marks=pytest.mark.full), (JSON[:-1], 1_000)],
    ids=["usual", "full", "JSON"],
)
@roads(*WEIGHTED)
def test_weights_are_unbiased_and_correct_the_proposal(
    name: str, languages: Sequence[Language], n: int | None, road: str
) -> None:
    """E[w] = Phi within four standard errors, and the weighted frequencies are mu*.

    The errors of the languages add up: a bias of all that 24,500 draws of one language show is seen with power 0.99 at 3,500 of
    each of seven, and there are nine; with fewer draws the few that weigh most of "arithmetic" make its error no normal one. The
    weights of "adaptive" vary by a fifth of those of masking (0.7 to 4 of their mean), so that 700 show more.
    Those of the last JSON language have too long a tail for this under one step of look-ahead.
    """
    errors, n = [], n or (700 if name in PLANTED else 3_500)
    for language in languages:
        reference = language.reference()
        draws = WEIGHTED[name]().sample(language.request(n, seed=3))[0]
        errors.append(z(np.exp(draws.log_w), math.exp(reference.log_phi)))
        assert correct(draws, reference.mu), language
    assert deviation(errors) < 4


def test_weights_that_are_a_tenth_too_large_fail_the_same_test() -> None:
    """Power control, by the weights of masking, which vary most."""
    draws = {language: sample(LocalPhi(), language.request(3_500, seed=3))[0] for language in AND_OPEN}
    errors = (z(1.1 * np.exp(found.log_w), math.exp(each.reference().log_phi)) for each, found in draws.items())
    assert deviation(errors) > 4


@roads("rejection", "certified at 1e-9")
@languages
def test_bounds_hold_and_draws_know_their_probability(name: str, language: Language, road: str) -> None:
    reference = language.reference()
    draws = EXACT[name]().sample(language.request(300, seed=5))[0]
    lower, upper = draws.log_z_bounds
    assert lower <= reference.log_phi + 1e-9 and reference.log_phi <= upper + 1e-9
    assert all(draw.log_p == pytest.approx(reference.log_p[draw.token_ids], abs=1e-9) for draw in draws)


@pytest.mark.in_turn
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)], ids=["one batch", "every batch"])
@roads(*SAMPLERS, *OTHERS)
def test_nothing_outside_the_language_is_returned(name: str, every: bool, road: str) -> None:
    """Any language, any budget, any batch, any seed; a batch is drawn at one budget of each language, which take turns."""
    sampler = (SAMPLERS | OTHERS)[name]()
    for place, language in enumerate(AND_OPEN, [*SAMPLERS, *OTHERS].index(name)):
        least = language.table.guide.min_tokens(language.table.start)
        for seed, rows in ((0, 1), (1, 17)):
            for i, budget in enumerate((least, least + 1, language.budget)):
                if rows > 1 and (i + place) % 3 and not every:
                    continue
                small = language.within(budget)
                members = small.reference().mu
                results = sampler.sample(small.request(3 if rows == 1 else 1, seed, rows=rows))
                assert len(results) == rows
                for draws in results:
                    assert draws.budget == budget
                    for draw in draws:
                        assert draw.token_ids in members, language
                        assert len(draw.token_ids) <= budget


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"temperature": 0.6},
        {"top_k": 6},
        {"top_p": 0.9},
        {"min_p": 0.05, "temperature": 1.5},
    ],
)
def test_settings_define_the_law(options: dict[str, float], road: str) -> None:
    """Temperature and truncation change p, and exact draws follow."""
    language = LANGUAGES[0]
    mu = language.reference(**options).mu
    assert p_value(ids(*sample(ExactPhi(), language.request(DRAWS // 6, seed=2, **options))), mu) > ALPHA
    assert mu != language.reference().mu


def test_truncation_can_fail_a_trajectory_and_the_mean_counts_it() -> None:
    """Failed trajectories have weight 0; leaving them out would bias the mean upwards."""
    language, n = LANGUAGES[0], 6_500
    options = {"top_k": 6}
    phi = math.exp(language.reference(**options).log_phi)
    (draws,) = sample(LocalPhi(), language.request(n, seed=4, **options))
    assert draws.failures > 0 and len(draws) + draws.failures == n
    w = np.exp(draws.log_w)
    error = w.std() / math.sqrt(n)
    assert abs(w.mean() - phi) < 4 * error and w.sum() / len(draws) - phi > 4 * error


@pytest.mark.in_turn
@roads(*SAMPLERS, *OTHERS)
def test_a_draw_is_that_of_its_seed_whatever_is_drawn_beside_it(name: str, road: str) -> None:
    sampler, language = (SAMPLERS | OTHERS)[name](), LANGUAGES[1]
    first = sampler.sample(language.request(20, seed=9))[0]
    sampler.sample(language.request(5, seed=None))
    assert sampler.sample(language.request(20, seed=9))[0].items == first.items
    assert sampler.sample(language.request(20, seed=9, rows=4))[0].items == first.items
    assert ids(*sampler.sample(language.request(20, seed=10))) != ids(first)
    # Draws under a certificate are numbered; those of rejection depend on how many attempts walk at once.
    assert "certified" not in name or ids(*sampler.sample(language.request(40, seed=9)))[:20] == ids(first)


def test_rows_that_share_a_stream_fail_the_same_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: one stream for all prompts and draws of a call."""
    stream = Request.stream
    shared: dict[int, np.random.Generator] = {}
    monkeypatch.setattr(Request, "stream", lambda self, row, i: shared.setdefault(id(self), stream(self, 0, 0)))
    requests = [LANGUAGES[1].request(20, 9, rows=rows) for rows in (1, 4)]
    alone, together = (OTHERS["drawn drafts"]().sample(request)[0] for request in requests)
    assert alone.items != together.items


def test_a_kept_tree_serves_later_calls_with_the_same_law(road: str) -> None:
    """Unseeded calls start from what is known, at fewer model tokens, and still draw mu*."""
    language = LANGUAGES[0]
    sampler = ExactSampler(ExactPhi())
    mu = language.reference().mu
    results = [sampler.sample(language.request(1, seed=None))[0] for _ in range(2500)]
    assert p_value(ids(*results), mu) > ALPHA
    known = results[-100:]
    assert sum(draws.counts.tokens for draws in known) <= 20
    assert sum(draws.counts.calls == 0 for draws in known) >= 90


ACCELERATOR = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
)


@final
class OnDevice(WrappedModel):
    """A model whose logits lie on a device, in single precision."""

    def __init__(self, lm: LanguageModel, device: str) -> None:
        super().__init__(lm)
        self.device = torch.device(device)

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return SequenceTrees(self.logits, prompts, len(self.vocabulary), self.max_length)

    def logits(self, sequences: Sequence[tuple[int, ...]]) -> Tensor:
        rows = self.lm.trees([*sequences]).roots().logits if sequences else torch.empty(0, len(self.vocabulary))
        return rows.float().to(self.device)


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.full), ACCELERATOR])
@pytest.mark.parametrize("name", [*SAMPLERS, "forced drafts"])
def test_a_device_draws_what_a_processor_draws(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """But where rounding decides, which is seldom. Exact draws by tokens drawn ahead, those of ``auto`` by whole rows."""
    monkeypatch.setattr(ahead, "MANY", 0)

    def texts(device: str) -> list[tuple[int, ...]]:
        request = LANGUAGES[1].request(20, 5, rows=3)
        return ids(*(SAMPLERS | OTHERS)[name]().sample(replace(request, lm=OnDevice(request.lm, device))))

    here, there = texts("cpu"), texts(device)
    assert len(here) == len(there) > 0 and sum(a == b for a, b in zip(here, there, strict=True)) >= 0.95 * len(here)


grammars = pytest.mark.parametrize("language", GRAMMARS, ids=str)
EOS = VOCABULARY.eos_ids[0]
MERGED = GrammarLanguage("merged", 'start: "x" "c" "c" "c" "c" | "x" start "a"', 8, seed=2)


def members(language: Language, budget: int) -> Iterator[Ids]:
    """All token sequences of at most ``budget`` tokens, the end included, whose text is a member by the definition."""
    definition = Definition(read_grammar(language.pattern), "abcx()", depth=3)
    level: list[Ids] = [()]
    for _ in range(budget):
        yield from ((*y, EOS) for y in level if definition.is_member(VOCABULARY.decode(y).decode()))
        longer = ((*y, token) for y in level for token in range(len(VOCABULARY)) if token != EOS)
        level = [y for y in longer if definition.is_prefix(VOCABULARY.decode(y).decode())]


def log_p(language: Language, y: Ids) -> float:
    """``log p(y)``, a product of conditionals of the table that the model is."""
    total, settings = 0.0, language.settings()
    for end, token in enumerate(y):
        logits = torch.from_numpy(language.lm.logits((*PROMPT, *y[:end])))[None]
        total += float(settings.log_p(logits, VOCABULARY, ())[0][token])
    return total


@grammars
def test_the_members_and_their_probabilities_are_those_of_the_definition(language: Language) -> None:
    reference = language.reference()
    expected = set(members(language, language.budget))
    assert len(expected) > 40 and set(reference.log_p) == expected
    assert all(reference.log_p[y] == pytest.approx(log_p(language, y), abs=1e-5) for y in list(expected)[::7])


def test_near_the_end_of_the_budget_texts_that_only_longer_tokens_fit_in_are_left_out() -> None:
    """Distances are those of tokens that end one lexeme: ``cc`` ends two."""
    language = MERGED
    complete = set(members(language, 8))
    assert set(language.reference().log_p) < complete
    shortest = {y for y in complete if len(y) == 4}
    assert shortest and shortest <= set(language.reference().log_p)
    caught = refused("needs 6 tokens", language.within(5).request, 1, seed=0, error=EmptyLanguageError)
    assert caught.value.least_budget == 6  # though 4 do
    assert all(shortest <= set(language.within(budget).reference().log_p) <= complete for budget in range(6, 8))


@grammars
def test_what_one_state_never_allows_another_may(language: Language) -> None:
    """States of a lexer have classes of their own; an induction over all of them tells their tokens apart."""
    space = StateSpace(language.table.guide, 50)
    for number, (state, row) in enumerate(space.rows.items()):
        for token, target in enumerate(space.targets(torch.arange(len(VOCABULARY)).numpy())[number].tolist()):
            assert target == language.table.guide.advance(state, token)
        for g in range(space.partition.size):
            assert len(set(row.targets[row.partition.class_of[space.partition.members(g)]].tolist())) <= 1
    assert not sample(BigramDPPhi(), language.request(200, seed=1))[0].failures
