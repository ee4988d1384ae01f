"""Learned values as a proposal: unbiased whatever was learned, better for it, and at home in every road."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch

import outlines_phi
from outlines_phi import AutoPhi, Draws, LearnedPhi, LocalPhi, StateValues
from outlines_phi.phi import Prefixes, learned
from tests.inner import DONE, TreeStore, bundled
from tests.languages import AND_OPEN, LANGUAGES, Language, deviation, errors_of, sample, z
from tests.phi.walks import mean_weight, paths

languages = pytest.mark.parametrize("language", AND_OPEN, ids=str)
WORDS, LOOP, NESTED, LATE = LANGUAGES
PROMPT = "Question: is the bakery open on Sunday? Answer: "
ANSWER, OTHER = Literal["yes", "no", "not now", "nobody"], Literal["yes", "no"]


def taught(language: Language, draws: int = 64, **options: object) -> StateValues:
    """Values of some unseeded draws, as a start that does not move."""
    torch.manual_seed(0)
    values = StateValues()
    sample(LearnedPhi(values), language.request(draws, seed=None, **options))
    return values.copy()


def test_without_a_floor_mass_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: states whose every step led nowhere have V = 0, and Phi is not 0 everywhere in them."""
    lost = []
    for language in (WORDS, LOOP):
        values = taught(language, 8, top_k=5)
        phi = math.exp(language.reference(top_k=5).log_phi)
        with monkeypatch.context() as patch:
            patch.setattr(learned, "math", SimpleNamespace(log=lambda floor: -math.inf, inf=math.inf))
            lost.append(mean_weight(paths(language, LearnedPhi(values), top_k=5)) / phi < 1 - 1e-6)
        assert mean_weight(paths(language, LearnedPhi(values), top_k=5)) == pytest.approx(phi, rel=1e-9)
    assert any(lost)


def test_weights_of_walks_that_learn_are_unbiased() -> None:
    """E[w f] = Phi mu*(f) over calls of 32 walks in 3 rounds, each of which learns from those before it.

    The errors of seven languages are added: a bias of all shows as in 350 calls of one.
    """
    errors = [errors_of(sample(LearnedPhi(), each.request(32, seed=5, rows=50)), each) for each in AND_OPEN]
    assert all(deviation(column) < 3.5 for column in zip(*errors, strict=True))


def test_scoring_all_walks_by_the_last_values_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: weights under the values that a call ends with are biased."""
    kept: list[tuple[learned.LearnedEstimate, object]] = []
    begin = LearnedPhi.begin

    def noting(self: LearnedPhi, run: object) -> learned.LearnedEstimate:
        kept.append((begin(self, run), run))  # type: ignore[arg-type]
        return kept[-1][0]

    monkeypatch.setattr(LearnedPhi, "begin", noting)
    results = sample(LearnedPhi(), LOOP.request(16, seed=5, rows=120))
    ((estimate, run),) = kept
    estimate.learn()
    w = [
        np.mean([math.exp(d.log_p - rescored(estimate, run, row, d.token_ids)) for d in draws])
        for row, draws in enumerate(results)
    ]
    assert abs(z(np.array(w) / math.exp(LOOP.reference().log_phi), 1.0)) > 5


def rescored(estimate: learned.LearnedEstimate, run, row: int, ids: tuple[int, ...]) -> float:  # type: ignore[no-untyped-def]
    """``log q`` of a member under the values as they are now."""
    state, log_q = run.table.start, 0.0
    for i, token in enumerate(ids):
        logits = torch.from_numpy(run.lm.logits((*run.prompts[row], *ids[:i])))[None]
        here = Prefixes([row], [0], [state], [run.budgets[row] - i], [ids[:i]])
        (scores,) = estimate.scores(run.log_p(logits, [(row, ids[:i])]), here)
        log_q += float(scores[token] - torch.logsumexp(scores, -1))
        state = run.table.guide.advance(state, token)
    assert state == DONE
    return log_q


def ess(found) -> float:  # type: ignore[no-untyped-def]
    """``(E w)^2 / E w^2``, by summation."""
    square = math.fsum(math.exp(path.log_q + 2 * path.log_w) for path in found if path.log_q > -math.inf)
    return mean_weight(found) ** 2 / square


@pytest.mark.parametrize("language", [LOOP, NESTED], ids=str)
def test_what_is_learned_helps(language: Language) -> None:
    """The exact effective sample size of a draw, where states say something of what lies ahead."""
    assert ess(paths(language, LearnedPhi(taught(language)))) > 1.8 * ess(paths(language, LocalPhi()))


def test_rounds_double() -> None:
    phi = LearnedPhi()
    assert [phi.rounds(n) for n in (1, 8, 16, 50)] == [[1], [8], [8, 8], [8, 8, 16, 18]]
    assert LocalPhi().rounds(50) == (50,)


class TestKept:
    def draw(self, store: TreeStore, seed: int | None, **options: object) -> Draws:
        return sample(LearnedPhi(), LATE.request(16, seed, **options), store=store)[0]

    def values(self, store: TreeStore, **options: object) -> StateValues:
        return store.values.of(LATE.lm, LATE.table, LATE.settings(**options))

    def test_a_name_keeps_its_values_with_the_model(self) -> None:
        store = TreeStore()
        torch.manual_seed(0)
        self.draw(store, None)
        first = len(self.values(store).known.at)
        self.draw(store, None)
        assert 0 < first < len(self.values(store).known.at)
        assert len(self.values(store, temperature=0.5)) == 0
        store.clear()
        assert len(self.values(store)) == 0

    def test_a_seeded_call_does_not_depend_on_others(self) -> None:
        store = TreeStore()
        torch.manual_seed(0)
        first = self.draw(store, 3)
        self.draw(store, None)
        assert self.draw(store, 3).items == first.items
        assert self.draw(TreeStore(), 3).items == first.items

    def test_a_seeded_call_starts_from_what_was_given(self) -> None:
        values, request = taught(LATE), LATE.request(16, 3)
        torch.manual_seed(0)
        (first,) = sample(LearnedPhi(values), request)
        sample(LearnedPhi(values), LATE.request(64, None))
        assert sample(LearnedPhi(values), request)[0].items == first.items
        assert sample(LearnedPhi(StateValues()), request)[0].items != first.items

    def test_prompts_of_a_batch_do_not_depend_on_one_another(self) -> None:
        both = sample(LearnedPhi(), replace(LATE.request(32, 3, rows=2), prompts=[(1, 2), (4, 3)]))
        assert both[0].items == sample(LearnedPhi(), LATE.request(32, 3))[0].items

    def test_few_distributions_of_an_output_type_are_kept(self) -> None:
        store = TreeStore()
        for i in range(20):
            self.values(store, temperature=0.5 + i / 10).add(learned.Observed(2, np.array([1], np.int32), np.ones(1)))
        kept = [len(self.values(store, temperature=0.5 + i / 10)) for i in range(19, 11, -1)]
        assert kept == [1] * 8 and len(self.values(store, temperature=0.5)) == 0

    def test_a_generator_forgets_them_when_its_model_does(self) -> None:
        """Also one that was made before, and keeps its compiled output type."""
        model = outlines_phi.from_transformers(*bundled.load())
        generator = outlines_phi.Generator(model, ANSWER, phi="learned")

        def draw() -> tuple[float, ...]:
            torch.manual_seed(1)
            return tuple(generator.sample(PROMPT, 8, max_new_tokens=12).log_w)

        first = draw()
        assert draw() != first
        model.clear_cache()
        assert draw() == first


def test_learning_costs_no_model_call() -> None:
    """Walks of one round evaluate what masked ones do: each prefix once."""
    (draws,) = sample(LearnedPhi(), LATE.request(8, seed=1))
    assert draws.counts.tokens == len({draw.token_ids[:i] for draw in draws for i in range(1, len(draw.token_ids))})


@pytest.mark.parametrize("frontier", [LearnedPhi(), outlines_phi.OneStepPhi()], ids=["learned", "onestep"])
def test_trees_of_several_frontiers_are_apart(frontier: LearnedPhi) -> None:
    store = TreeStore()
    for phi in [AutoPhi(share=0), AutoPhi(share=0, frontier=frontier)] * 2:
        sample(phi, LATE.request(4, seed=None), store=store)
    assert len(store) == 2


class TestProcessor:
    def test_a_loop_learns_and_its_weights_are_unbiased(self) -> None:
        model = outlines_phi.from_transformers(*bundled.load())
        values = StateValues()
        processor = outlines_phi.PhiLogitsProcessor(model, ANSWER, phi=LearnedPhi(values), max_new_tokens=12)
        inputs = model.hf_tokenizer([PROMPT] * 400, return_tensors="pt")
        torch.manual_seed(1)
        model.model.generate(**inputs, logits_processor=[processor], **processor.host_options)
        assert len(values) > 3
        exact = outlines_phi.Generator(model, ANSWER).sample(PROMPT, 200, seed=0, phi="exact", max_new_tokens=12)
        w = np.exp(processor.log_w())
        assert abs(w.mean() - math.exp(exact.log_z)) < 4 * w.std() / math.sqrt(len(w)) + 1e-6
