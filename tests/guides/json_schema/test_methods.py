"""Every method over JSON schemas beside enumeration: populations, chains, drafts, bans, predicates, audits, probabilities, modes.

The tokens cross the structure of JSON, and the law is that of a model that mostly writes what the schema allows.
"""

import json
import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import ClassVar

import numpy as np
import pytest

from outlines_phi import (
    SMC,
    AutoPhi,
    BannedPhrases,
    Draws,
    ExactPhi,
    LocalPhi,
    LookaheadPhi,
    TextConstraint,
    Vocabulary,
)
from outlines_phi.drafting import Drafter, ForcedDrafter, ModelDrafter, PromptLookupDrafter, TreeDrafter
from outlines_phi.fidelity.bias import measure
from outlines_phi.fidelity.comparison import frequencies, noise_floor, total_variation
from outlines_phi.fidelity.findings import log_weights
from outlines_phi.fidelity.probabilities import frozen
from outlines_phi.fidelity.traces import tree_bounds
from outlines_phi.guides import JSONGuide, Table
from outlines_phi.guides.guide import DEAD
from outlines_phi.guides.phrases.ban_language import banned
from outlines_phi.lm import TableModel
from outlines_phi.sampling.ancestral import AncestralSampler, Particles, SMCSampler
from outlines_phi.sampling.lookahead import LookaheadSampler
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Prefetch, Request
from outlines_phi_workbench.suite.reference import Reference, enumerate_language
from tests.fidelity.test_audit_report import draw as traced
from tests.fidelity.test_audit_report import true_tv
from tests.fidelity.test_probabilities import found
from tests.languages import ALPHA, PROMPT, Language, deviation, p_value, pooled_p_value
from tests.phi.tree.test_best_first import best, greedy, search
from tests.sampling.drafters import Drawn, Fixed, law_of, ranked
from tests.sampling.test_laws import EXACT, PLANTED, WEIGHTED
from tests.sampling.test_smc import mutant_keeps_weights, z_score

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")

CROSSING = [
    '{"a":', '"x"', '": "', '"},{"', '[{"', '"}]', '":"', 'a":', '"a', "1,", ",1", "12", "[1", "1]", "}}", "x,", "[[",
]  # fmt: skip
TOKENS = Vocabulary.from_tokens(["<eos>", *map(chr, range(0x20, 0x7F)), "\n", *CROSSING], 0)
N = 2_000

Ids = tuple[int, ...]


@dataclass(frozen=True)
class Crossing(Language):
    """A JSON schema, as ``pattern``, under a law that mostly writes what it allows."""

    blanks: ClassVar[str] = ""
    scale: float = 1.0
    boost: float = 4.0

    @cached_property
    def table(self) -> Table:
        return Table(JSONGuide.of(json.loads(self.pattern), TOKENS, blanks=self.blanks))

    @cached_property
    def lm(self) -> TableModel:
        law = TableModel.random(TOKENS, seed=self.seed, scale=self.scale).next_logits
        guide = self.table.guide

        @cache
        def likely(sequence: Ids) -> np.ndarray:
            state = guide.start
            for token in sequence[len(PROMPT) :]:
                state = guide.advance(state, token)
            row = guide.row(state)
            return np.asarray(law(sequence)) + np.where(row.targets[row.partition.class_of] != DEAD, self.boost, 0.0)

        return TableModel(TOKENS, likely)


@dataclass(frozen=True)
class Spaced(Crossing):
    """As :class:`Crossing`, with a blank where JSON lets one stand."""

    blanks: ClassVar[str] = " ?"


LANGUAGES = [
    Crossing("integers", '{"type": "integer", "minimum": -21, "maximum": 212, "not": {"multipleOf": 5}}', 5, seed=9),
    Crossing("keys", '{"properties": {"a": {"enum": ["x", 1, 12]}}, "type": "object", "additionalProperties": false}', 6, seed=12),
    Crossing(
        "objects in a list",
        '{"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "object", "properties": {"a": {"enum": ["x", "a"]}},'
        ' "required": ["a"], "additionalProperties": false}}',
        7,
        seed=4,
    ),
    Spaced("one of", '{"oneOf": [{"enum": [1, 2, 12, {"a": 1}]}, {"type": "integer", "minimum": 2, "maximum": 21}]}', 6, seed=10),
    Crossing(
        "all of",
        '{"type": "array", "allOf": [{"items": {"enum": [1, 12]}}, {"contains": {"const": 12}}], "maxItems": 3}',
        6,
        seed=3,
    ),
    Crossing("tree", '{"type": "array", "items": {"$ref": "#"}, "maxItems": 2}', 8, seed=16),
    Crossing("set", '{"type": "array", "uniqueItems": true, "items": {"enum": [1, 12, "x"]}}', 7, seed=13),
]  # fmt: skip
KEYS, LISTED, ONE_OF = LANGUAGES[1:4]
FLAT = [replace(language, boost=0.0) for language in LANGUAGES if language.name != "tree"]
"""Under laws that know nothing of the schema; of the tree a few draws cannot tell, as proposals hardly write a member of it."""

languages = pytest.mark.parametrize("language", LANGUAGES, ids=str)


def ids(draws: Draws) -> list[Ids]:
    return [draw.token_ids for draw in draws]


def mean_is(log_w: np.ndarray, log_phi: float) -> bool:
    """Return True if the mean of weights is within four standard errors of Phi."""
    w = np.exp(log_w - log_phi)
    return abs(w.mean() - 1) < 4 * w.std() / math.sqrt(len(w)) + 1e-9


def is_weighted_law(draws: Draws, mu: dict[Ids, float]) -> bool:
    weighted = frequencies(ids(draws), draws.weights)
    return total_variation(weighted, mu) < 3 * noise_floor(mu, max(1, int(draws.ess))) + 0.01


@languages
def test_members_are_many_and_masks_are_biased(language: Language) -> None:
    """The control of all that follows: draws of the mask are none of mu*."""
    reference = language.reference()
    assert len(reference.mu) >= 8 and true_tv(reference) > 0.05
    values = {frozen(json.loads(TOKENS.decode(y))) for y in reference.mu}
    assert len(values) < len(reference.mu)  # tokens cross
    (draws,) = AncestralSampler(LocalPhi()).sample(language.request(N, 7))
    assert p_value(ids(draws), reference.mask) > ALPHA > p_value(ids(draws), reference.mu)
    assert not is_weighted_law(replace(draws, items=[replace(draw, log_w=0.0) for draw in draws]), reference.mu)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", EXACT)
@languages
def test_exact_samplers_draw_the_conditioned_law(name: str, language: Language) -> None:
    mu = language.reference().mu
    (draws,) = EXACT[name]().sample(language.request(1_500, seed=3))
    assert p_value(ids(draws), mu) > ALPHA
    assert total_variation(frequencies(ids(draws)), mu) < 3 * noise_floor(mu, len(draws))


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_are_unbiased_and_correct_the_proposal(name: str) -> None:
    """The errors of all languages are added; weights from trees vary less than others."""
    errors = []
    for language in FLAT:
        reference = language.reference()
        (draws,) = WEIGHTED[name]().sample(language.request(500 if name in PLANTED else 1000, seed=3))
        w = np.exp(draws.log_w - reference.log_phi)
        if draws.ess > 30:  # else the mean of so few draws says nothing
            errors.append((w.mean() - 1) / (w.std() / math.sqrt(len(w)) + 2.5e-4))
        assert {draw.token_ids for draw in draws} <= set(reference.mu)
        assert [draw.log_p for draw in draws] == pytest.approx([reference.log_p[y] for y in ids(draws)], abs=1e-6)
        assert is_weighted_law(draws, reference.mu)
    assert deviation(errors) < 4


def test_weights_of_cold_trees_are_unbiased() -> None:
    """One trajectory of each of many prompts of all languages, whose errors are added."""
    errors = []
    for language in FLAT:
        results = AutoSampler(AutoPhi(share=0, candidates=1)).sample(language.request(1, seed=2, rows=100))
        w = np.array([np.exp(draws[0].log_w) for draws in results]) / math.exp(language.reference().log_phi)
        errors.append((w.mean() - 1) / (w.std() / math.sqrt(len(w)) + 1e-9))
    assert deviation(errors) < 4


POPULATIONS = {
    "never": SMC(particles=5),
    "ess": SMC(particles=5, resample="ess"),
    "every step": SMC(particles=5, resample="ess", threshold=1.0),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", POPULATIONS)
@languages
def test_populations_estimate_phi_without_bias(name: str, language: Language) -> None:
    reference = language.reference()
    (draws,) = SMCSampler(LocalPhi(), POPULATIONS[name]).sample(language.request(200, 11))
    assert mean_is(draws.log_w, reference.log_phi)
    assert is_weighted_law(draws, reference.mu)


def test_wrong_evidence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: weights that a resampling does not reset."""
    monkeypatch.setattr(Particles, "_resample", mutant_keeps_weights)
    (draws,) = SMCSampler(LocalPhi(), POPULATIONS["every step"]).sample(LISTED.request(400, 11))
    assert z_score(draws, math.exp(LISTED.reference().log_phi)) > 6


def drafters(language: Language) -> dict[str, Drafter]:
    other = TableModel.random(TOKENS, seed=99)
    return {
        "forced": ForcedDrafter(),
        "tree": TreeDrafter(),
        "prompt": PromptLookupDrafter(),
        "likeliest": Fixed(ranked(language.lm, 0)),
        "least likely": Fixed(ranked(language.lm, -1)),
        "greedy model": ModelDrafter(other, greedy=True),
        "model": ModelDrafter(other),
        "the same model": ModelDrafter(language.lm),
        "masked": Drawn(law_of(language.lm, masked=True)),
    }


SAMPLED = ("model", "the same model", "masked")


@pytest.mark.parametrize("name", drafters(KEYS))
def test_drafts_leave_every_law_as_it_is(name: str) -> None:
    """Walks, draw for draw where the draft is not drawn; and draws from trees, whose statistics are added."""
    n, exact = 400 if name in SAMPLED else 120, []
    for language in LANGUAGES:
        reference = language.reference()
        drafter = drafters(language)[name]
        (drafted,) = AncestralSampler(LocalPhi(), draft=Prefetch(drafter, 3)).sample(language.request(n, 3))
        if name in SAMPLED:
            assert mean_is(drafted.log_w, reference.log_phi) and is_weighted_law(drafted, reference.mu)
        else:
            (plain,) = AncestralSampler(LocalPhi()).sample(language.request(n, 3))
            assert ids(drafted) == ids(plain) and drafted.log_w == pytest.approx(plain.log_w, abs=1e-9)
        if not isinstance(drafter, Fixed | Drawn):
            (draws,) = ExactSampler(ExactPhi(width=8), draft=Prefetch(drafter, 3)).sample(language.request(300, 5))
            exact.append((ids(draws), reference.mu))
    assert not exact or pooled_p_value(exact) > ALPHA


@cache
def without(language: Language, phrases: tuple[str, ...]) -> tuple[Request, Reference]:
    """Return a request for texts without some phrases, and the law of these by enumeration."""
    guide = banned(language.table.guide, BannedPhrases(phrases, across_prompt=False))
    request = replace(language.request(N, 3), table=Table(guide))
    reference = enumerate_language(language.lm, request.table, PROMPT, request.settings, language.budget)
    whole = {
        y: p for y, p in language.reference().log_p.items() if not any(x in TOKENS.decode(y).decode() for x in phrases)
    }
    assert reference.log_p == pytest.approx(whole) and len(whole) < len(language.reference().log_p)
    return request, reference


BANS = [(LANGUAGES[0], ("12", "-1")), (KEYS, ('"x"',)), (LISTED, ('a":"x',)), (LANGUAGES[6], ("1,", '[["'))]


@pytest.mark.parametrize(("language", "phrases"), BANS, ids=str)
def test_banned_phrases_beside_every_sampler(language: Language, phrases: tuple[str, ...]) -> None:
    request, reference = without(language, phrases)
    for exact in (ExactSampler(ExactPhi()), AutoSampler(AutoPhi())):
        assert p_value(ids(exact.sample(request)[0]), reference.mu) > ALPHA
    for weighted, n in (
        (AncestralSampler(LocalPhi()), 400),
        (LookaheadSampler(LookaheadPhi(weights=True)), 250),
        (SMCSampler(LocalPhi(), POPULATIONS["ess"]), 60),
    ):
        (draws,) = weighted.sample(replace(request, n=n))
        assert mean_is(draws.log_w, reference.log_phi) and is_weighted_law(draws, reference.mu)
    assert p_value(ids(ExactSampler(ExactPhi()).sample(language.request(N, 3))[0]), reference.mu) < ALPHA  # the control


def odd(text: str) -> bool:
    return sum(map(text.count, "[1x")) % 2 == 1


@languages
def test_predicates_beside_every_sampler(language: Language) -> None:
    kept = {y: math.exp(p) for y, p in language.reference().log_p.items() if odd(TOKENS.decode(y).decode())}
    phi = sum(kept.values())
    mu = {y: p / phi for y, p in kept.items()}
    request = replace(language.request(600, 2), constraint=TextConstraint(complete=odd).over(TOKENS))
    assert 0 < len(mu) < len(language.reference().mu)
    (exact,) = ExactSampler(ExactPhi()).sample(request)
    assert p_value(ids(exact), mu) > ALPHA
    (draws,) = AncestralSampler(LocalPhi()).sample(request)
    assert mean_is(draws.log_w, math.log(phi)) and is_weighted_law(draws, mu)


@languages
def test_probabilities_are_those_of_decoded_values(language: Language) -> None:
    """Summed over tokenizations, blanks and escapes."""
    law: dict[Hashable, float] = defaultdict(float)
    for y, p in language.reference().mu.items():
        law[frozen(json.loads(TOKENS.decode(y)))] += p
    result = found(language, reader=json.loads)
    entries = zip(result, result.entries, strict=True)
    assert {frozen(value): entry.p for value, entry in entries} == pytest.approx(law, abs=1e-12)
    assert result.complete and sum(entry.spellings for entry in result.entries) == len(language.reference().mu)
    early = found(language, reader=json.loads, tokens=12)
    for value, entry in zip(early, early.entries, strict=True):
        assert entry.lo - 1e-12 <= law[frozen(value)] <= entry.hi + 1e-12


@languages
def test_modes_are_those_of_enumeration(language: Language) -> None:
    result, _ = search(language, 5)
    assert [(node.tokens(), pytest.approx(node.log_p)) for node in result.members] == best(language, 5)


def test_the_step_by_step_argmax_is_another_member() -> None:
    assert sum(greedy(language) != best(language, 1)[0][0] for language in LANGUAGES) >= 2


@languages
def test_audits_cover_what_enumeration_says(language: Language) -> None:
    """Intervals at 99 %; and the control, weights that forget the last step, which are covered by fewer."""
    reference = language.reference()
    phi, tv = math.exp(reference.log_phi), true_tv(reference)
    (traces,), _ = traced(language.request(1_000, 21))
    low, high = tree_bounds(traces)
    assert low <= phi * (1 + 1e-9) and phi <= high * (1 + 1e-9)
    for bounds in ((0.0, 1.0), (low, high)):
        report = measure([log_weights(traces)], [bounds], 0.01)
        assert report.phi.interval.low - 1e-9 <= phi <= report.phi.interval.high + 1e-9
        assert report.tv.interval.low - 1e-9 <= tv <= report.tv.interval.high + 1e-9
    forgetful = np.array([math.fsum(trace.log_legal[:-1]) for trace in traces])
    wrong = measure([forgetful], [(0.0, 1.0)], 0.01).phi.interval
    assert not wrong.low <= phi <= wrong.high
