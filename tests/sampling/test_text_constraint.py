"""Predicates on texts beside the guide: the laws of draws under both, and the weights of walks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from outlines_phi import (
    SMC,
    AutoPhi,
    BudgetError,
    Effort,
    EmptyLanguageError,
    ExactPhi,
    LocalPhi,
    OneStepPhi,
    TextConstraint,
    UnsupportedError,
)
from outlines_phi.errors import ConstraintError
from outlines_phi.lm import TableModel
from outlines_phi.phi import ProposalPhi
from outlines_phi.phi.tree.tree import NODE_BYTES
from outlines_phi.sampling import stepper
from tests.inner import (
    AllowedDraw,
    AncestralSampler,
    AutoSampler,
    ExactSampler,
    Request,
    Sampler,
    TreeStore,
    frequencies,
    noise_floor,
    preexpand,
    sampler_for,
    total_variation,
)
from tests.languages import ALPHA, GRAMMARS, LANGUAGES, PROMPT, VOCABULARY, Language, p_value
from tests.sampling.test_awrs import outcomes

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.errors.FidelityWarning")
WORDS, LOOP, _, _ = LANGUAGES
DRAWS = 2_500
"""Draws of each test: few enough for its control to fail."""
SHORT = Language("short", "(a|b|ab){1,2}x?", 4, seed=4)


def even(text: str) -> bool:
    return text.count("a") % 2 == 0


def once(text: str) -> bool:
    return text.count("ab") < 2


def late(text: str) -> bool:
    return not text.endswith("x") or text.count("c") != 1


PREDICATES = {
    "even number of a's": TextConstraint(complete=even),
    "no ab twice": TextConstraint(once),
    "refused late": TextConstraint(late),
    "both": TextConstraint(once, complete=even, further=1),
}
predicates = pytest.mark.parametrize("name", PREDICATES)


def constrained(language: Language, n: int, seed: int | None, texts: TextConstraint, **options: object) -> Request:
    return replace(language.request(n, seed, **options), constraint=texts.over(VOCABULARY))


def member(ids: Sequence[int], texts: TextConstraint) -> bool:
    """Return True if predicates allow a member: every prefix of it, and itself. Not by way of the package."""
    spelled = [VOCABULARY.decode(ids[:end]).decode() for end in range(len(ids))]
    return all(map(texts.prefix or bool, filter(None, spelled))) and (not texts.complete or texts.complete(spelled[-1]))


@cache
def reference(language: Language, texts: TextConstraint) -> tuple[float, dict[tuple[int, ...], float]]:
    """Return Phi and mu* of guide and predicates, from the enumeration of the guide alone."""
    p = {y: math.exp(log_p) for y, log_p in language.reference().log_p.items() if member(y, texts)}
    assert 0 < len(p) < len(language.reference().log_p)
    return sum(p.values()), {y: value / sum(p.values()) for y, value in p.items()}


@pytest.mark.in_turn
@pytest.mark.parametrize("prefixes", [preexpand.SHORT, 0], ids=["whole", "grown"])
@pytest.mark.parametrize("sampler", [ExactSampler(ExactPhi()), AutoSampler(AutoPhi())], ids=["exact", "auto"])
@predicates
def test_exact_draws(sampler: Sampler, name: str, prefixes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", prefixes)
    phi, mu = reference(WORDS, PREDICATES[name])
    draws = sampler.sample(constrained(WORDS, DRAWS, 7, PREDICATES[name]))[0]
    assert p_value([draw.token_ids for draw in draws], mu) > ALPHA
    assert draws.log_z_bounds[0] <= math.log(phi) + 1e-9 and math.log(phi) <= draws.log_z_bounds[1] + 1e-9


@pytest.mark.parametrize("sampler", [ExactSampler(ExactPhi()), AutoSampler(AutoPhi())], ids=["exact", "auto"])
@pytest.mark.parametrize("language", GRAMMARS[1:3], ids=str)
def test_exact_draws_of_grammars(language: Language, sampler: Sampler) -> None:
    texts = PREDICATES["even number of a's"]
    mu, request = reference(language, texts)[1], constrained(language, DRAWS, 7, texts)
    assert p_value([draw.token_ids for draw in sampler.sample(request)[0]], mu) > ALPHA
    without = sampler.sample(language.request(DRAWS, 7))[0]
    assert p_value([draw.token_ids for draw in without], mu) < ALPHA
    w = np.exp(AncestralSampler(LocalPhi()).sample(request)[0].log_w)
    assert abs(w.mean() - reference(language, texts)[0]) < 4 * w.std() / math.sqrt(len(w))


@predicates
def test_draws_without_the_predicate_fail_the_same_test(name: str) -> None:
    draws = ExactSampler(ExactPhi()).sample(WORDS.request(DRAWS, 7))[0]
    assert p_value([draw.token_ids for draw in draws], reference(WORDS, PREDICATES[name])[1]) < ALPHA


@pytest.mark.parametrize(
    (
        "language",
        "phi",
    ),  # one step of look-ahead is a poor proposal for the loop: its weights have too long a tail for a test
    [(WORDS, LocalPhi()), (WORDS, OneStepPhi()), (LOOP, LocalPhi())],
    ids=["words local", "words onestep", "loop local"],
)
@predicates
def test_walks_have_unbiased_weights(phi: ProposalPhi, name: str, language: Language) -> None:
    """E[w] = Phi within four standard errors, and the weighted frequencies are mu*; the weights of another law would tell."""
    z, mu = reference(language, PREDICATES[name])
    draws = AncestralSampler(phi).sample(constrained(language, DRAWS, 3, PREDICATES[name]))[0]
    w = np.exp(draws.log_w)
    assert len(w) == DRAWS
    assert abs(w.mean() - z) < 4 * w.std() / math.sqrt(len(w))
    assert {draw.token_ids for draw in draws} <= set(mu)
    weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
    assert total_variation(weighted, mu) < 3 * noise_floor(mu, int(draws.ess)) + 0.01
    for draw in draws[:20]:
        assert draw.log_p == pytest.approx(language.reference().log_p[draw.token_ids], abs=1e-6)


Found = list[tuple[float, AllowedDraw]]


def enumerated(log_q: Tensor, allows: Callable[[int, int], bool], further: int, *, alone: bool = False) -> Found:
    """Return everything that a walk can find at a step, with its probability, from all orders; ``alone``, the control."""
    law = {token: math.exp(x) for token, x in enumerate(log_q[0].tolist()) if x > -math.inf}
    allowed = frozenset(token for token in law if allows(0, token))
    found: Counter[AllowedDraw] = Counter()
    for p, order, outcome in outcomes(law, allowed, further):
        log_s = math.log(law[outcome.token]) if alone and outcome.token >= 0 else outcome.log_s
        found[AllowedDraw(outcome.token, log_s, len(order))] += p
    return [(p, outcome) for outcome, p in found.items()]


def paths(
    phi: ProposalPhi, request: Request, alone: bool, patch: pytest.MonkeyPatch
) -> Iterator[tuple[float, stepper.Trajectory]]:
    """Yield every way that one walk can go, through the stepper itself, with its probability."""
    scripts: list[list[int]] = [[]]
    while scripts:
        script, p, depth = scripts.pop(), 1.0, 0

        def scripted(
            log_q: Tensor, laws: Sequence[int], keys: Sequence[int], allows: Callable[[int, int], bool], further: int
        ) -> list[AllowedDraw]:
            nonlocal p, depth
            found = enumerated(log_q, allows, further, alone=alone)
            if depth == len(script):  # noqa: B023
                scripts.extend([*script, i] for i in range(1, len(found)))  # noqa: B023
                script.append(0)  # noqa: B023
            chance, outcome = found[script[depth]]  # noqa: B023
            p, depth = p * chance, depth + 1
            return [outcome]

        patch.setattr(stepper, "draw_allowed", scripted)
        steps = stepper.Stepper(request, phi)
        (walk,) = steps.launch(1)
        steps.first([walk])
        while not walk.finished:
            steps.advance([walk])
        yield p, walk


@pytest.mark.parametrize("alone", [False, True], ids=["right", "of the draw alone"])
@pytest.mark.parametrize("phi", [LocalPhi(), OneStepPhi()], ids=["local", "onestep"])
@pytest.mark.parametrize("name", ["even number of a's", "both"])
def test_weights_are_exact_by_summation_over_all_paths(
    phi: ProposalPhi, name: str, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sum of probability times weight over every path that ends in y is p(y); an estimate of the drawn token alone fails that."""
    texts = replace_further(PREDICATES[name], 1)
    z, mu = reference(SHORT, texts)
    found: Counter[tuple[int, ...]] = Counter()
    total = 0.0
    for p, walk in paths(phi, constrained(SHORT, 1, 0, texts), alone, monkeypatch):
        total += p
        found[tuple(walk.tokens)] += p * math.exp(walk.log_w)
    assert total == pytest.approx(1, rel=1e-9)
    if alone:
        assert abs(sum(found.values()) / z - 1) > 0.1
        return
    for y, share in mu.items():
        assert found[y] == pytest.approx(share * z, rel=1e-5)  # laws are float32


def replace_further(texts: TextConstraint, further: int) -> TextConstraint:
    return TextConstraint(texts.prefix, complete=texts.complete, further=further)


def no_a(text: str) -> bool:
    return not text.startswith("a")


@pytest.mark.parametrize("phi", [LocalPhi(), OneStepPhi()], ids=["local", "onestep"])
def test_a_predicate_that_kills_almost_all_of_a_step(phi: ProposalPhi) -> None:
    """The allowed mass at the first step is about 1e-12 of the whole, and weights are as good as any."""
    base = TableModel.random(VOCABULARY, seed=2)
    tail = np.where(np.isin(np.arange(12), [1, 3, 8]), 0.0, math.log(1e-13))

    def law(sequence: tuple[int, ...]) -> np.ndarray:
        return base.next_logits(sequence) + (tail if len(sequence) == len(PROMPT) else 0.0)

    class Killed(Language):
        lm = TableModel(VOCABULARY, law)

    language, texts = Killed("killed", "[abc]{2,3}", 5, seed=2), TextConstraint(no_a, further=2)
    z, mu = reference(language, texts)
    assert z < 1e-11
    draws = AncestralSampler(phi).sample(constrained(language, 3000, 3, texts))[0]
    w = np.exp(draws.log_w) / z
    assert draws.failures == 0 and w.min() > 1e-3
    assert abs(w.mean() - 1) < 4 * w.std() / math.sqrt(len(w))
    weighted = frequencies((draw.token_ids for draw in draws), draws.weights)
    assert total_variation(weighted, mu) < 3 * noise_floor(mu, int(draws.ess)) + 0.01


@pytest.mark.parametrize("resample", ["never", "ess"])
def test_particles_have_unbiased_evidence(resample: Literal["never", "ess"]) -> None:
    """Populations whose particles step by the same stepper: E[Z_hat] = Phi of guide and predicate."""
    z, mu = reference(WORDS, PREDICATES["both"])
    sampler = sampler_for(LocalPhi(), TreeStore(), SMC(particles=8, resample=resample))
    draws = sampler.sample(constrained(WORDS, 500, 3, PREDICATES["both"]))[0]
    w = np.exp(draws.log_w)
    assert len(w) == 500 and {draw.token_ids for draw in draws} <= set(mu)
    assert abs(w.mean() - z) < 4 * w.std() / math.sqrt(len(w))


def test_kept_trees_count_what_the_predicate_remembers() -> None:
    store = TreeStore()
    ExactSampler(ExactPhi(), store).sample(constrained(WORDS, 5, None, PREDICATES["both"]))
    (tree,) = store._trees.values()
    assert tree.constraint is not None and tree.constraint.bytes > 1000
    assert tree.bytes == tree.nodes * NODE_BYTES + tree.distribution_bytes + tree.constraint.bytes


def test_a_prompts_draws_do_not_depend_on_the_batch() -> None:
    texts = PREDICATES["both"]
    alone = AncestralSampler(LocalPhi()).sample(constrained(WORDS, 40, 5, texts))[0]
    beside = replace(constrained(WORDS, 40, 5, texts), prompts=[PROMPT, (3, 4), (5,)])
    together = AncestralSampler(LocalPhi()).sample(beside)[0]
    assert [draw.token_ids for draw in together] == [draw.token_ids for draw in alone]
    assert together.log_w == pytest.approx(alone.log_w, abs=1e-6)


def test_the_predicate_is_asked_about_few_texts_and_each_once() -> None:
    """A draw is a handful of steps, each of which asks about one token to the draw and one further, or two; not about all."""
    asked: list[str] = []

    def watched(text: str) -> bool:
        asked.append(text)
        return once(text)

    texts = TextConstraint(watched, further=1)
    draws = AncestralSampler(LocalPhi()).sample(constrained(LOOP, 1, 1, texts))[0]
    assert len(asked) == len(set(asked)) <= 2 * len(draws[0].token_ids) + 1
    AncestralSampler(LocalPhi()).sample(constrained(LOOP, 2000, 1, texts))
    assert len(asked) - len(set(asked)) <= len(set(asked))  # two calls, each asks about a text once


def test_nothing_allowed_says_who_refused_and_how_often() -> None:
    texts = TextConstraint(lambda text: False)
    with pytest.raises(
        EmptyLanguageError, match=r"<lambda> allows no output at all: .* first token .*, 6 in all"
    ) as caught:
        AncestralSampler(LocalPhi()).sample(constrained(WORDS, 3, 1, texts))
    assert "Prompt 0" in str(caught.value)
    with pytest.raises(EmptyLanguageError, match=r"<lambda> allows no output at all under top_k=1: .*, 1 in all"):
        AncestralSampler(LocalPhi()).sample(constrained(WORDS, 3, 1, texts, top_k=1))
    for sampler in (ExactSampler(ExactPhi()), AutoSampler(AutoPhi())):
        with pytest.raises(
            EmptyLanguageError, match=r"<lambda> leaves no member .* asked about 6 sequences of tokens.* Phi = 0"
        ):
            sampler.sample(constrained(WORDS, 3, 1, texts))


def test_an_effort_that_runs_out_says_that_a_predicate_may_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)
    sampler = ExactSampler(ExactPhi(effort=Effort(attempts=1)))
    with pytest.raises(BudgetError, match=r"let constraint=late refuse earlier what comes to nothing"):
        sampler.sample(constrained(LOOP, 2, 1, PREDICATES["refused late"]))


def test_dead_ends_are_draws_of_weight_0() -> None:
    texts = TextConstraint(complete=lambda text: False)
    draws = AncestralSampler(LocalPhi()).sample(constrained(WORDS, 50, 1, texts))[0]
    assert len(draws) == 0 and draws.failures == 50 and draws.log_z == -math.inf


@pytest.mark.parametrize("sampler", [ExactSampler(ExactPhi()), AncestralSampler(LocalPhi())], ids=["exact", "local"])
def test_a_predicate_that_raises_or_gives_no_answer(sampler: Sampler) -> None:
    def broken(text: str) -> bool:
        return 1 / (2 - len(text)) < 10

    with pytest.raises(
        ConstraintError, match=r"broken raised ZeroDivisionError for the text '..'.*unfinished texts too"
    ) as caught:
        sampler.sample(constrained(WORDS, 50, 1, TextConstraint(broken)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError) and len(caught.value.text) == 2
    with pytest.raises(ConstraintError, match="returned None for the text"):
        sampler.sample(constrained(WORDS, 50, 1, TextConstraint(lambda text: None)))  # type: ignore[arg-type, return-value]
    # What was learned before the error is no harm to what comes after it.
    after = sampler.sample(constrained(WORDS, 3, None, TextConstraint(once)))[0]
    assert len(after) + after.failures == 3 and all(member(draw.token_ids, TextConstraint(once)) for draw in after)


def test_trees_are_not_shared_between_predicates() -> None:
    """Unseeded calls start from what is known of the same predicate, and of no other."""
    torch.manual_seed(0)
    sampler = ExactSampler(ExactPhi())
    first, other = PREDICATES["both"], TextConstraint(lambda text: "c" in text or len(text) < 6)
    for texts in (first, other, first, None):
        request = WORDS.request(3000, None) if texts is None else constrained(WORDS, 3000, None, texts)
        mu = WORDS.reference().mu if texts is None else reference(WORDS, texts)[1]
        assert p_value([draw.token_ids for draw in sampler.sample(request)[0]], mu) > ALPHA
    assert len(sampler.store) == 3
    same = replace_further(first, first.further)
    cold = ExactSampler(ExactPhi()).sample(constrained(WORDS, 10, 1, same))[0]
    assert sampler.sample(constrained(WORDS, 10, None, same))[0].counts.tokens < 15 < cold.counts.tokens


def test_observers_are_refused() -> None:
    class Nobody:
        def step(self, *_: object) -> None: ...

    with pytest.raises(UnsupportedError, match="An observer was given beside constraint="):
        AncestralSampler(LocalPhi(), Nobody()).sample(constrained(WORDS, 1, 1, PREDICATES["both"]))
