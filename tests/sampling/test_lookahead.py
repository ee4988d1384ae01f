"""Look-ahead draws against their laws by enumeration, beside variants that look right and are not (theory.md, section 6);
one window by itself, and what is kept in memory meanwhile."""

from __future__ import annotations

import gc
import itertools
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from outlines_phi import (
    BannedPhrases,
    BudgetError,
    Draws,
    Effort,
    ExactPhi,
    Guarantee,
    LocalPhi,
    LookaheadPhi,
    SamplingSettings,
    Vocabulary,
)
from outlines_phi.guides import Table
from outlines_phi.lm import LanguageModel, TableModel, TokenTrees
from outlines_phi.lm.sequences import Forest
from tests.inner import (
    WASTE,
    Attempt,
    Attempts,
    BoundsTree,
    Branch,
    Evaluation,
    LookaheadSampler,
    ModelCounts,
    Node,
    NormalizerWalk,
    PhraseGuide,
    PhraseWindows,
    ProductGuide,
    Renewal,
    Request,
    Rows,
    WindowAttempts,
    WindowTree,
    descend,
    frequencies,
    log_sum,
    lost_at,
    noise_floor,
    total_variation,
)
from tests.inner import window_walks as windows
from tests.languages import ALPHA, GRAMMARS, LANGUAGES, LISTED, Language, ids, p_value, sample, streamed, unbiased, z
from tests.refusals import refused
from tests.sampling.banning import NESTED, SHORT, VOCABULARY, WHOLE, Banned, never, normal, renewed, without

CASES = (SHORT, NESTED)
N = 1_300

cases = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def drawn(case: Banned, phi: LookaheadPhi, n: int = N, seed: int = 1) -> Draws:
    """Return draws that several tests look at; a test that changes the sampler asks ``drawn.__wrapped__``."""
    return sample(phi, case.request(n, seed))[0]


@cases
def test_windows_have_the_law_of_the_model_without_phrases(case: Banned) -> None:
    """q(y) = p(y) 1[ok] / prod_j Psi(r_j), by chi-square and by TV beside its noise floor."""
    law = normal(case.windows(WHOLE)[0])
    draws = drawn(case, LookaheadPhi())
    assert p_value(ids(draws), law) > ALPHA
    assert total_variation(frequencies(ids(draws)), law) < 2 * noise_floor(law, N)
    assert draws.guarantee is Guarantee.APPROXIMATE


@pytest.mark.parametrize("length", [1, 2])
@cases
def test_long_windows_end_inside_a_token_and_then_anywhere(case: Banned, length: int) -> None:
    law = normal(case.windows(renewed(length))[0])
    outcomes = ids(drawn(case, LookaheadPhi(window=length)))
    assert p_value(outcomes, law) > ALPHA
    assert length != 1 or p_value(outcomes, case.windows(WHOLE)[0]) < ALPHA


@cases
def test_early_release_draws_each_token_given_that_it_comes_to_be_released(case: Banned) -> None:
    """q(y) = prod_k p(v | y_k, E_{k+1}), whether the queue succeeds or a restart."""
    law = normal(case.early())
    draws = drawn(case, LookaheadPhi(release="early"))
    assert p_value(ids(draws), law) > ALPHA and math.isnan(draws[0].log_w)


@pytest.mark.parametrize("width", [1, 8])
def test_the_law_does_not_depend_on_the_width(width: int) -> None:
    assert p_value(ids(drawn(SHORT, LookaheadPhi(width=width))), SHORT.windows(WHOLE)[0]) > ALPHA


def descend_without_coin(tree: object, attempt: Attempt) -> bool | None:
    if attempt.node.distribution is not None:
        attempt.log_bound = attempt.node.log_upper
    return descend(tree, attempt)  # type: ignore[arg-type]


@cases
def test_without_the_thinning_coin_the_test_fails(case: Banned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "descend", descend_without_coin)
    assert p_value(ids(drawn.__wrapped__(case, LookaheadPhi())), case.windows(WHOLE)[0]) < ALPHA


@cases
def test_masking_the_last_token_fails_the_test(case: Banned) -> None:
    """The mask of every spelling's last token leaks nothing, and has another law."""
    masked = ids(*sample(LocalPhi(), case.request(N, 1)))
    assert p_value(masked, normal(case.mask())) > ALPHA and p_value(masked, case.windows(WHOLE)[0]) < ALPHA


def keep_the_queue(self: Attempts, attempt: Attempt) -> bool | None:
    """Restart from the kept queue, not from the committed text."""
    first = self.__dict__.setdefault("queue", attempt.node if attempt.node is not self.tree.root else None)
    if first is not None and attempt.node is self.tree.root:
        attempt.node, attempt.log_bound = first, first.log_upper
    return WALK(self, attempt)


WALK = WindowAttempts._walk


@cases
def test_a_kept_queue_fails_the_tests_of_both_laws(case: Banned, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releasing early has a law of its own, and a restart that keeps the queue has neither."""
    assert p_value(ids(drawn(case, LookaheadPhi(release="early"))), case.windows(WHOLE)[0]) < ALPHA
    monkeypatch.setattr(WindowAttempts, "_walk", keep_the_queue)
    kept = ids(drawn.__wrapped__(case, LookaheadPhi(release="early")))
    assert p_value(kept, case.early()) < ALPHA and p_value(kept, case.windows(WHOLE)[0]) < ALPHA


@cases
def test_weights_are_unbiased_and_correct_the_draws(case: Banned) -> None:
    """E[w] = Phi within four standard errors, and the weighted frequencies are mu*."""
    draws = drawn(case, LookaheadPhi(weights=True), 2 * N)
    assert unbiased(draws, case.phi()) and math.exp(draws.log_z) == pytest.approx(np.exp(draws.log_w).mean())
    weighted, plain = (total_variation(frequencies(ids(draws), w), case.mu()) for w in (draws.weights, None))
    assert weighted < 1.5 * noise_floor(case.mu(), int(draws.ess)) and plain > 2 * weighted
    assert draws.guarantee is Guarantee.WEIGHTED


@cases
def test_the_weight_of_a_text_is_the_product_of_its_windows(case: Banned) -> None:
    """The mean estimate of every text that is drawn often is prod_j Psi(r_j)."""
    exact, draws = case.windows(WHOLE)[1], drawn(case, LookaheadPhi(weights=True), 2 * N)
    by_text: dict[tuple[int, ...], list[float]] = {}
    for draw in draws:
        by_text.setdefault(draw.token_ids, []).append(math.exp(draw.log_w))
    often = {text: np.array(w) for text, w in by_text.items() if len(w) > 60}
    assert len(often) > 5
    assert all(abs(w.mean() - exact[text]) < 4.5 * w.std() / math.sqrt(len(w)) + 1e-9 for text, w in often.items())


def test_the_upper_bound_is_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        NormalizerWalk, "log_estimate", property(lambda self: log_sum([self._log_lower, self._log_gap]))
    )
    assert z(np.exp(drawn.__wrapped__(SHORT, LookaheadPhi(weights=True)).log_w), SHORT.phi()) > 4


@cases
def test_exact_draws_of_free_text_without_phrases(case: Banned) -> None:
    """``phi="exact"``: the root never moves, the law is mu*; the window law is told from it."""
    assert p_value(ids(*sample(ExactPhi(), case.request(N, 1))), case.mu()) > ALPHA
    assert p_value(ids(drawn(case, LookaheadPhi())), case.mu()) < ALPHA


def test_a_draw_depends_on_nothing_else_of_the_call() -> None:
    alone, other = (ids(*sample(LookaheadPhi(), NESTED.request(3, seed))) for seed in (2, 3))
    first, second, _ = sample(LookaheadPhi(), NESTED.request(40, 2, rows=3))
    assert ids(first)[:3] == alone != other and ids(first) != ids(second)


@pytest.mark.parametrize("phi", [LookaheadPhi(), LookaheadPhi(release="early")], ids=["window", "early"])
def test_steps_commit_what_sample_returns_and_never_take_it_back(phi: LookaheadPhi) -> None:
    def check(walk: Any) -> None:
        assert not NESTED.bad(tuple(walk.tokens))

    sampler, request = LookaheadSampler(phi), NESTED.request(50, 6)
    assert streamed(sampler, request, check) == ids(*sampler.sample(request))


def test_where_nothing_waits_a_token_costs_a_model_token() -> None:
    """0 extra, like an unconstrained draw: all but the last token are evaluated."""
    far = Banned((b"zz", b"ya"), 12, seed=1)
    for phi in (LookaheadPhi(), LookaheadPhi(weights=True), LookaheadPhi(release="early")):
        for seed in range(5):
            (draws,) = sample(phi, far.request(1, seed))
            assert draws.counts.tokens == len(draws[0].token_ids) - 1
            assert draws.counts.attempts == draws.counts.accepted == len(draws[0].token_ids)
            assert not draws.rejections and draws.counts.calls == len(draws[0].token_ids)


def test_equal_texts_are_evaluated_once() -> None:
    (many,) = sample(LookaheadPhi(), SHORT.request(500, 1))
    assert many.counts.tokens <= len({ids[:i] for ids in SHORT.windows(never)[0] for i in range(1, len(ids))})


def by_last(law: dict[int, list[float]], vocabulary: Vocabulary) -> TableModel:
    """A model of the probabilities after each last token."""

    def log_law(sequence: tuple[int, ...]) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(law[sequence[-1]])

    return TableModel(vocabulary, log_law)


@pytest.mark.parametrize("phi", [LookaheadPhi(), LookaheadPhi(weights=True), LookaheadPhi(release="early")])
def test_a_dead_end_is_a_draw_of_weight_0_that_counts(phi: LookaheadPhi) -> None:
    """Half of the texts begin with "a", after which the model writes nothing but the phrase."""
    lm = by_last({1: [0, 0, 0, 0, 0, 1], 2: [1, 0, 0, 0, 0, 0], 5: [0, 0.5, 0.5, 0, 0, 0]}, VOCABULARY)
    settings = SamplingSettings(max_new_tokens=3, seed=0)
    (draws,) = sample(phi, Request(lm=lm, table=without(b"c"), prompts=[(5,)], settings=settings, n=400))
    assert set(ids(draws)) == {(2, 0)} and len(draws) + draws.failures == 400
    assert abs(draws.failures - 200) < 40 and draws.rejections == {"'c'": draws.failures}
    assert not phi.weights or math.exp(draws.log_z) == pytest.approx(len(draws) / 400)


def test_effort_ends_with_what_was_drawn() -> None:
    phi = LookaheadPhi(effort=Effort(attempts=1))
    caught = refused(r"Prompt 0: the effort ran out .* '(aba|abbc|ca)'", drawn, NESTED, phi, 200, error=BudgetError)
    (draws,) = caught.value.draws
    assert 0 < len(draws) < 200


def test_what_is_not_offered_says_what_to_do() -> None:
    refused("banned_phrases=", sample, LookaheadPhi(), LANGUAGES[0].request(1, 0))
    constrained = replace(SHORT.request(1, 0), constraint=object())  # type: ignore[arg-type]
    refused("phi='exact'", LookaheadSampler(LookaheadPhi()).steps, constrained)


def test_draws_without_weights_are_a_sample_of_their_own_law() -> None:
    draws = drawn(SHORT, LookaheadPhi(), 10)
    assert not draws.weighed and np.isnan(draws.log_w).all() and math.isnan(draws.log_z)
    assert draws.ess == 10 and draws.weights.tolist() == [0.1] * 10
    assert draws.expectation(lambda draw: len(draw.text)) == pytest.approx(np.mean([len(t) for t in draws.texts]))
    assert "10 draws" in repr(draws)
    assert drawn(SHORT, LookaheadPhi(weights=True), 10).weighed


@pytest.mark.parametrize("phi", [LookaheadPhi(), LookaheadPhi(release="early")], ids=["window", "early"])
def test_a_phrase_that_the_prompt_begins_is_looked_ahead_for(phi: LookaheadPhi) -> None:
    """The prompt ends in "ac": "b" completes a phrase, and the first window begins with two bytes that wait."""
    request = replace(SHORT.request(200, 0), table=without("acb", "acc", "aca", across_prompt=True))
    assert set(ids(*sample(phi, request))) == {(0,)}


@pytest.mark.parametrize(
    ("language", "phrases"),
    [(LANGUAGES[0], ["cc", "bba"]), (GRAMMARS[2], ["aa", "(ab)"]), (LISTED, ['a":"x'])],
    ids=str,
)
def test_an_output_type_without_phrases(language: Language, phrases: list[str]) -> None:
    """A product of guides: all that it does not allow is kept out as phrases are, and weights correct for both."""
    vocabulary, p = language.table.vocabulary, {y: math.exp(log_p) for y, log_p in language.reference().log_p.items()}
    kept = {y: p[y] for y in p if not any(each in vocabulary.decode(y).decode() for each in phrases)}
    phi = sum(kept.values())
    assert 0.1 * phi < sum(p.values()) - phi
    guide = ProductGuide(language.table.guide, PhraseGuide(vocabulary, BannedPhrases(phrases, across_prompt=False)))
    (draws,) = sample(LookaheadPhi(weights=True), replace(language.request(N, 1), table=Table(guide)))
    assert unbiased(draws, phi) and set(ids(draws)) <= set(kept)
    mu = {y: share / phi for y, share in kept.items()}
    assert total_variation(frequencies(ids(draws), draws.weights), mu) < 1.5 * noise_floor(mu, int(draws.ess))


class TestRejections:
    """Every attempt that fails in free text is counted for the phrase that it came upon."""

    SPACED = Vocabulary.from_tokens(["<eos>", "a", "b", "ab", " ", "c"], 0)

    def request(
        self, phrases: BannedPhrases, budget: int, n: int, seed: int = 1, lm: TableModel | None = None
    ) -> Request:
        lm = lm or TableModel.random(self.SPACED, seed=seed, scale=1.5)
        settings = SamplingSettings(max_new_tokens=budget, seed=seed)
        return Request(lm=lm, table=Table(PhraseGuide(self.SPACED, phrases)), prompts=[(4,)], settings=settings, n=n)

    @staticmethod
    def failed(draws: Draws) -> int:
        return draws.counts.attempts - draws.counts.accepted

    @pytest.mark.in_turn
    @pytest.mark.parametrize(
        "phi",
        [LookaheadPhi(), LookaheadPhi(weights=True), LookaheadPhi(release="early"), LookaheadPhi(width=1)],
        ids=str,
    )
    @pytest.mark.parametrize(
        ("phrases", "budget"),
        [
            (BannedPhrases(["aba", "abb", "ca"]), 6),
            (BannedPhrases(["a", "ab"], whole_word=True), 4),
            (BannedPhrases(["a", "ab", "b c"], whole_word=True), 1),
            (BannedPhrases(["".join(letters) for letters in itertools.product("ab", repeat=3)]), 8),
        ],
        ids=["nested", "words", "words that the budget ends", "nearly all"],
    )
    def test_all_that_failed_are_counted(self, phi: LookaheadPhi, phrases: BannedPhrases, budget: int) -> None:
        for seed in range(2):
            (draws,) = sample(phi, self.request(phrases, budget, 150, seed))
            assert sum(draws.rejections.values()) == self.failed(draws) > 5
            assert set(draws.rejections) <= set(phrases.names)

    @pytest.mark.parametrize("whole_word", [False, True])
    def test_each_is_counted_for_its_own_phrase(self, whole_word: bool) -> None:
        """Of one token, each attempt is by itself: it comes upon "a" with the probability of the tokens that begin with it."""
        n, request = 2000, self.request(BannedPhrases(["a", "b"], whole_word=whole_word), 1, 2000)
        p = np.exp(request.lm.logits((4,)))  # type: ignore[attr-defined]
        p /= p.sum()
        (draws,) = sample(LookaheadPhi(), request)
        for share, name in ((p[1] + p[3] * (not whole_word), "'a'"), (p[2], "'b'")):
            assert abs(draws.rejections[name] - n * share) < 4 * math.sqrt(n * share * (1 - share))
        assert self.failed(draws) == sum(draws.rejections.values())

    def test_a_word_counts_where_the_end_of_sequence_completes_it(self) -> None:
        """After "a" the model ends, but for one time in ten; nothing else is banned."""
        law = {4: [0.0, 1.0, 0, 0, 0, 0], 1: [0.9, 0, 0, 0, 0, 0.1], 5: [1.0, 0, 0, 0, 0, 0]}
        phrases = BannedPhrases(["zz", "a"], whole_word=True)
        (draws,) = sample(LookaheadPhi(), self.request(phrases, 4, 500, 0, by_last(law, self.SPACED)))
        assert set(draws.texts) == {"ac"} and draws.rejections == {"'a'": self.failed(draws)}
        assert abs(self.failed(draws) - 450) < 40

    def test_an_attempt_fails_for_what_is_lost_below_it(self) -> None:
        """At a prefix, 0.1 is dead; 0.25 of its child of 0.4 has been lost since, and half of another one of 0.2."""
        root, rng, n = Node(None, -1, 2, 5), np.random.default_rng(0), 6000
        root.log_rest = math.log(0.3)
        for token, p, upper in ((1, 0.4, 0.75), (2, 0.2, 0.5)):
            child = root.children[token] = Node(root, token, 2, 4)
            child.log_step, child.log_upper, child.log_rest = math.log(p), math.log(upper), math.log(upper)
        found = Counter(lost_at(root, 0.0, rng).token for _ in range(n))
        assert all(abs(found[token] - n / 3) < 4 * math.sqrt(n * 2 / 9) for token in (-1, 1, 2))
        found = Counter(lost_at(root, math.log(0.9), rng).token for _ in range(n))
        assert found[-1] == 0 and abs(found[1] - n / 2) < 4 * math.sqrt(n / 4), "what is dead here was known before"
        for child in root.children.values():
            child.log_upper = 0.0
        assert {lost_at(root, 0.0, rng).token for _ in range(20)} == {-1}

    def test_exact_draws_count_attempts_alone(self) -> None:
        (draws,) = sample(ExactPhi(), self.request(BannedPhrases(["aba", "ca", "b"]), 40, 20))
        assert not draws.rejections and self.failed(draws) > 0


LONG = 2_000


def run(ground: WindowTree, walks: WindowAttempts | NormalizerWalk, case: Banned) -> None:
    """Take walks to their ends."""
    handle = 1
    while nodes := ground.grow(walks):
        for node in nodes:
            text = ground.text_of(node)
            text.node, text.answer, handle = handle, np.log(case.p(node.tokens())), handle + 1


def ground(table: Table, budget: int, log_p: np.ndarray) -> WindowTree:
    return WindowTree(PhraseWindows(table, Renewal(16)), table.start, budget, Branch(-1, -1, 0, log_p), 0)


@pytest.mark.in_turn
@cases
@pytest.mark.parametrize("coarseness", [0.05, 0.25, 1.0])
def test_the_estimate_of_a_window_is_unbiased(case: Banned, coarseness: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate is that of a walk launched always or by chance, whatever the attempts before it have found."""
    monkeypatch.setattr(windows, "COARSENESS", coarseness)
    psi, estimates = case.reach(WHOLE, (), ()), []
    rng = np.random.default_rng(0)
    for _ in range(2000):
        here = ground(case.table, case.budget, np.log(case.p(())))
        attempts = WindowAttempts(here.tree, rng, width=4, effort=Effort(), diagnostics=rng)
        run(here, attempts, case)
        assert attempts.satisfied
        weighing = NormalizerWalk(here, rng)
        run(here, weighing, case)
        estimates.append(math.exp(weighing.log_estimate))
        gap, lower = math.exp(here.tree.root.log_gap), math.exp(here.tree.root.log_lower)
        assert (1 - max(coarseness, gap)) * lower <= estimates[-1] + 1e-12
    assert abs(z(np.array(estimates), psi)) < 4


def test_a_walk_is_rare_where_little_is_undecided() -> None:
    """The undecided mass over the coarseness is the chance of a walk."""
    case = Banned((b"bc",), 3, seed=1)
    rng, launched = np.random.default_rng(0), []
    log_p = np.log([0.9, 0.0495, 0.001, 0.0005, 0.0, 0.049], where=[True] * 4 + [False, True], out=np.full(6, -np.inf))
    for _ in range(2000):
        here = ground(case.table, 3, log_p)
        here.grow(WindowAttempts(here.tree, rng, width=1, effort=Effort(), diagnostics=rng))
        launched.append(bool(here.grow(NormalizerWalk(here, rng))))
    assert math.exp(here.tree.root.log_gap) == pytest.approx(0.0015)
    assert abs(np.mean(launched) - 0.006) < 4 * math.sqrt(0.006 / 2000)


def test_as_many_attempts_go_at_once_as_have_failed() -> None:
    """All but a millionth of the texts run into one of eight phrases."""
    phrases = tuple(bytes(letters) for letters in itertools.product(b"ab", repeat=3))
    p = np.array([0, 0.25, 0.25, 0.25, 0.25, 1e-6])
    with np.errstate(divide="ignore"):
        here = ground(without(*phrases), 5, np.log(p / p.sum()))
    streams, flight = [np.random.default_rng(i) for i in range(2)], []
    attempts = WindowAttempts(here.tree, streams[0], width=3, effort=Effort(), diagnostics=streams[1])
    while waiting := here.grow(attempts):
        flight.append((len(attempts.failed), len(waiting)))
        for node in waiting:
            here.text_of(node).node, here.text_of(node).answer = 1, here.text.answer
    assert all(count <= max(1, min(3, failed)) for failed, count in flight)
    assert max(count for _, count in flight) == 3


class Gibberish(LanguageModel):
    """A law that reads the last token only, at a cost that does not grow with the text."""

    def __init__(self, logits: np.ndarray) -> None:
        self.vocabulary, self.max_length, self.device = VOCABULARY, None, torch.device("cpu")
        self.logits = torch.from_numpy(logits)

    def trees(self, prompts: object) -> GibberishTrees:
        self.latest = GibberishTrees(self, prompts)
        return self.latest


class GibberishTrees(TokenTrees):
    def __init__(self, model: Gibberish, prompts: object) -> None:
        self.model, self.counts = model, ModelCounts()
        self.forest = Forest(prompts, len(VOCABULARY), None)  # type: ignore[arg-type]

    def roots(self, parents: object = (), tokens: object = ()) -> Evaluation:
        nodes = self.forest.plant()
        return Evaluation(nodes, Rows.all(self.model.logits[[1] * len(nodes)]))

    def extend(self, parents: object, tokens: object) -> Evaluation:
        nodes = self.forest.add(parents, tokens)  # type: ignore[arg-type]
        self.counts.tokens += len(nodes)
        return Evaluation(nodes, Rows.all(self.model.logits[self.forest.token[nodes.start : nodes.stop]]))

    @property
    def next_node(self) -> int:
        return len(self.forest)

    def compact(self, keep: object) -> None:
        self.forest.retain(keep)  # type: ignore[arg-type]


def alive(kind: type) -> int:
    return Counter(map(type, gc.get_objects()))[kind]


@pytest.mark.parametrize("phi", [LookaheadPhi(weights=True), LookaheadPhi(release="early")], ids=["window", "early"])
def test_memory_is_flat_over_a_long_text(phi: LookaheadPhi) -> None:
    """2,000 tokens, a third of them beginning a phrase: what is held is the text and the window under way."""
    logits = np.random.default_rng(3).standard_normal((6, 6))
    logits[:, 0] = -50.0  # never ends
    model = Gibberish(logits)
    table = without(b"abc", b"bb", b"caa")
    request = Request(lm=model, table=table, prompts=[(1,)], settings=SamplingSettings(max_new_tokens=LONG, seed=0))
    gc.collect()
    before = alive(Branch), alive(BoundsTree)
    checked = 0
    for (walk,) in LookaheadSampler(phi).steps(request):
        written = len(walk.tokens)
        if written // 500 > checked:
            checked = written // 500
            assert int(model.latest.forest.alive[: model.latest.next_node].sum()) <= 2 * written + 2 * WASTE
            assert alive(Branch) - before[0] < 40 and alive(BoundsTree) - before[1] < 8
    text = b"".join(VOCABULARY.tokens[token] for token in walk.tokens)
    assert checked == 4 and written == LONG and not any(phrase in text for phrase in (b"abc", b"bb", b"caa"))
    assert model.latest.counts.tokens - written > 100  # evaluated in vain, and given back
