"""Look-ahead draws against their laws by enumeration, beside variants that look right and are not (theory.md, section 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest

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
    UnsupportedError,
    Vocabulary,
)
from outlines_phi.guides import Table
from outlines_phi.lm import TableModel
from outlines_phi.sampling.rejection.attempts import descend
from tests.inner import (
    AncestralSampler,
    Attempt,
    Attempts,
    ExactSampler,
    LookaheadSampler,
    NormalizerWalk,
    PhraseGuide,
    ProductGuide,
    Request,
    WindowAttempts,
    frequencies,
    log_sum,
    noise_floor,
    total_variation,
)
from tests.inner import window_walks as windows
from tests.languages import ALPHA, GRAMMARS, LANGUAGES, Language, p_value
from tests.sampling.banning import (
    NESTED,
    PROMPT,
    SHORT,
    VOCABULARY,
    WHOLE,
    Banned,
    SlowGuide,
    ids,
    never,
    normal,
    released,
    renewed,
)

CASES = (SHORT, NESTED)
N = 1_300

cases = pytest.mark.parametrize("case", CASES, ids=str)


@cache
def drawn(case: Banned, phi: LookaheadPhi, n: int = N, seed: int = 1) -> Draws:
    """Return draws that several tests look at; a test that changes the sampler asks ``drawn.__wrapped__``."""
    return LookaheadSampler(phi).sample(case.request(n, seed))[0]


@cases
def test_windows_have_the_law_of_the_model_without_phrases(case: Banned) -> None:
    """q(y) = p(y) 1[ok] / prod_j Psi(r_j), by chi-square and by TV beside its noise floor."""
    law = normal(case.windows(WHOLE)[0])
    draws = drawn(case, LookaheadPhi())
    distance, floor = total_variation(frequencies(ids(draws)), law), noise_floor(law, N)
    print(f"{case}: TV {distance:.4f}, floor {floor:.4f}; to mu* {total_variation(law, case.mu()):.4f}")
    assert p_value(ids(draws), law) > ALPHA
    assert distance < 2 * floor
    assert draws.guarantee is Guarantee.APPROXIMATE


@pytest.mark.parametrize("length", [1, 2])
@cases
def test_long_windows_end_inside_a_token_and_then_anywhere(case: Banned, length: int) -> None:
    law = normal(case.windows(renewed(length))[0])
    outcomes = ids(drawn(case, LookaheadPhi(window=length)))
    assert p_value(outcomes, law) > ALPHA
    if length == 1:
        assert p_value(outcomes, case.windows(WHOLE)[0]) < ALPHA


@cases
def test_early_release_draws_each_token_given_that_it_comes_to_be_released(case: Banned) -> None:
    """q(y) = prod_k p(v | y_k, E_{k+1}), whether the queue succeeds or a restart."""
    law = normal(case.early())
    draws = drawn(case, LookaheadPhi(release="early"))
    assert p_value(ids(draws), law) > ALPHA
    assert math.isnan(draws[0].log_w)


@pytest.mark.parametrize("width", [1, 8])
def test_the_law_does_not_depend_on_the_width(width: int) -> None:
    law = SHORT.windows(WHOLE)[0]
    assert p_value(ids(drawn(SHORT, LookaheadPhi(width=width))), law) > ALPHA


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
    masked = ids(AncestralSampler(LocalPhi()).sample(case.request(N, 1))[0])
    assert p_value(masked, normal(case.mask())) > ALPHA
    assert p_value(masked, case.windows(WHOLE)[0]) < ALPHA


def ban_sequences(case: Banned, sequences: Sequence[tuple[int, ...]], rng: np.random.Generator) -> tuple[int, ...]:
    """Draw as ``bad_words_ids`` does: a token that would complete one of the token sequences is masked."""
    written: tuple[int, ...] = ()
    while not case.over(written):
        p = case.p(written).copy()
        for sequence in sequences:
            if written[len(written) - len(sequence) + 1 :] == sequence[:-1]:
                p[sequence[-1]] = 0.0
        written = (*written, int(rng.choice(len(p), p=p / p.sum())))
    return written


def test_banning_token_sequences_leaks_other_spellings() -> None:
    rng, law = np.random.default_rng(0), SHORT.windows(WHOLE)[0]
    sequences = [(VOCABULARY.tokens.index(b"ab"), VOCABULARY.tokens.index(b"c")), (2, 2)]
    outcomes = [ban_sequences(SHORT, sequences, rng) for _ in range(1000)]
    leaks = sum(SHORT.bad(written) for written in outcomes)
    assert leaks > 30
    assert p_value([written for written in outcomes if not SHORT.bad(written)], law) < ALPHA
    assert not any(SHORT.bad(written) for written in ids(drawn(SHORT, LookaheadPhi(), 1000)))


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
    early = ids(drawn(case, LookaheadPhi(release="early")))
    assert p_value(early, case.windows(WHOLE)[0]) < ALPHA
    monkeypatch.setattr(WindowAttempts, "_walk", keep_the_queue)
    kept = ids(drawn.__wrapped__(case, LookaheadPhi(release="early")))
    assert p_value(kept, case.early()) < ALPHA
    assert p_value(kept, case.windows(WHOLE)[0]) < ALPHA


@cases
def test_weights_are_unbiased_and_correct_the_draws(case: Banned) -> None:
    """E[w] = Phi within four standard errors, and the weighted frequencies are mu*."""
    draws = drawn(case, LookaheadPhi(weights=True), 2 * N)
    w = np.exp(draws.log_w)
    error = w.std() / math.sqrt(len(w))
    assert abs(w.mean() - case.phi()) < 4 * error
    assert math.exp(draws.log_z) == pytest.approx(w.mean())
    mu = case.mu()
    weighted = total_variation(frequencies(ids(draws), draws.weights), mu)
    assert weighted < 1.5 * noise_floor(mu, int(draws.ess))
    assert total_variation(frequencies(ids(draws)), mu) > 2 * weighted
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
    for text, w in often.items():
        assert abs(w.mean() - exact[text]) < 4.5 * w.std() / math.sqrt(len(w)) + 1e-9


def test_the_upper_bound_is_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        NormalizerWalk, "log_estimate", property(lambda self: log_sum([self._log_lower, self._log_gap]))
    )
    w = np.exp(drawn.__wrapped__(SHORT, LookaheadPhi(weights=True)).log_w)
    assert w.mean() - SHORT.phi() > 4 * w.std() / math.sqrt(N)


@cases
def test_window_normalisers_are_no_weight_of_an_early_release(case: Banned) -> None:
    """Exactly: E[prod_k Pr(E_{k+1} | y_k)] is not Phi, though E[p / q] is; for windows both are."""
    law, naive = case.early(), {}
    for text in law:
        prefixes = [text[:i] for i in range(len(text))]
        naive[text] = math.prod(case.reach(released, prefix, prefix) for prefix in prefixes)
    assert abs(sum(q * naive[text] for text, q in law.items()) / case.phi() - 1) > 0.1
    windows_law, weight = case.windows(WHOLE)
    assert sum(q * weight[text] for text, q in windows_law.items()) == pytest.approx(case.phi())


@cases
def test_exact_draws_of_free_text_without_phrases(case: Banned) -> None:
    """``phi="exact"``: the root never moves, the law is mu*; the window law is told from it."""
    exact = ids(ExactSampler(ExactPhi()).sample(case.request(N, 1))[0])
    assert p_value(exact, case.mu()) > ALPHA
    assert p_value(ids(drawn(case, LookaheadPhi())), case.mu()) < ALPHA


def test_a_draw_depends_on_nothing_else_of_the_call() -> None:
    alone = ids(LookaheadSampler(LookaheadPhi()).sample(NESTED.request(3, 2))[0])
    together = LookaheadSampler(LookaheadPhi()).sample(NESTED.request(40, 2, rows=3))
    assert ids(together[0])[:3] == alone
    assert ids(together[0]) != ids(together[1])
    assert alone != ids(LookaheadSampler(LookaheadPhi()).sample(NESTED.request(3, 3))[0])


def test_steps_commit_what_sample_returns_and_never_take_it_back() -> None:
    for phi in (LookaheadPhi(), LookaheadPhi(release="early")):
        sampler, seen = LookaheadSampler(phi), {}
        for grown in sampler.steps(NESTED.request(50, 6)):
            for walk in grown:
                before = seen.get(walk.number, [])
                assert walk.tokens[: len(before)] == before and len(walk.tokens) > len(before)
                assert not NESTED.bad(tuple(walk.tokens))
                seen[walk.number] = list(walk.tokens)
        assert [tuple(seen[i]) for i in range(50)] == ids(sampler.sample(NESTED.request(50, 6))[0])


def test_where_nothing_waits_a_token_costs_a_model_token() -> None:
    """0 extra, like an unconstrained draw: all but the last token are evaluated."""
    far = Banned((b"zz", b"ya"), 12, seed=1)
    for phi in (LookaheadPhi(), LookaheadPhi(weights=True), LookaheadPhi(release="early")):
        for seed in range(5):
            draws = LookaheadSampler(phi).sample(far.request(1, seed))[0]
            assert draws.counts.tokens == len(draws[0].token_ids) - 1
            assert draws.counts.attempts == draws.counts.accepted == len(draws[0].token_ids)
            assert not draws.rejections and draws.counts.calls == len(draws[0].token_ids)


def test_equal_texts_are_evaluated_once() -> None:
    many = LookaheadSampler(LookaheadPhi()).sample(SHORT.request(500, 1))[0]
    texts = {ids[:i] for ids in SHORT.windows(never)[0] for i in range(1, len(ids))}
    assert many.counts.tokens <= len(texts)


def test_rejections_name_the_phrase_that_an_attempt_would_have_completed() -> None:
    case = Banned((b"a", b"c"), 1, seed=2)
    n = 1000
    draws = drawn(case, LookaheadPhi(), n)
    for phrase in (b"a", b"c"):
        p = sum(share for token, share in zip(VOCABULARY.tokens, case.p(()), strict=True) if token[:1] == phrase)
        p += float(case.p(())[VOCABULARY.tokens.index(b"ba")]) if phrase == b"a" else 0.0
        assert abs(draws.rejections[repr(phrase.decode())] - n * p) < 4 * math.sqrt(n * p * (1 - p))
    assert sum(draws.rejections.values()) == draws.counts.attempts - draws.counts.accepted
    assert set(drawn(NESTED, LookaheadPhi(), 1000).rejections) == {"'aba'", "'abbc'", "'ca'"}


def test_a_dead_end_is_a_draw_of_weight_0_that_counts() -> None:
    """Half of the texts begin with "a", after which the model writes nothing but the phrase."""
    law = {1: [0, 0, 0, 0, 0, 1], 2: [1, 0, 0, 0, 0, 0], 5: [0, 0.5, 0.5, 0, 0, 0]}

    def log_law(sequence: tuple[int, ...]) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(law[sequence[-1]])

    lm, table = TableModel(VOCABULARY, log_law), Table(SlowGuide(VOCABULARY, (b"c",)))
    request = Request(lm=lm, table=table, prompts=[(5,)], settings=SamplingSettings(max_new_tokens=3, seed=0), n=400)
    for phi in (LookaheadPhi(), LookaheadPhi(weights=True), LookaheadPhi(release="early")):
        draws = LookaheadSampler(phi).sample(request)[0]
        assert set(ids(draws)) == {(2, 0)} and len(draws) + draws.failures == 400
        assert abs(draws.failures - 200) < 40
        assert draws.rejections == {"'c'": draws.failures}
    weighted = LookaheadSampler(LookaheadPhi(weights=True)).sample(request)[0]
    assert math.exp(weighted.log_z) == pytest.approx(len(weighted) / 400)


def test_effort_ends_with_what_was_drawn() -> None:
    phi = LookaheadPhi(effort=Effort(attempts=1))
    with pytest.raises(BudgetError, match=r"Prompt 0: the effort ran out .* '(aba|abbc|ca)'") as caught:
        drawn(NESTED, phi, 200)
    (draws,) = caught.value.draws
    assert 0 < len(draws) < 200


def test_what_is_not_offered_says_what_to_do() -> None:
    with pytest.raises(UnsupportedError, match="banned_phrases="):
        LookaheadSampler(LookaheadPhi()).sample(LANGUAGES[0].request(1, 0))
    constrained = Request(
        lm=SHORT.lm,
        table=SHORT.table,
        prompts=[PROMPT],
        settings=SamplingSettings(max_new_tokens=4),
        constraint=object(),  # type: ignore[arg-type]
    )
    with pytest.raises(UnsupportedError, match="phi='exact'"):
        LookaheadSampler(LookaheadPhi()).steps(constrained)


def test_draws_without_weights_are_a_sample_of_their_own_law() -> None:
    draws = drawn(SHORT, LookaheadPhi(), 10)
    assert not draws.weighed and np.isnan(draws.log_w).all() and math.isnan(draws.log_z)
    assert draws.ess == 10 and draws.weights.tolist() == [0.1] * 10
    assert draws.expectation(lambda draw: len(draw.text)) == pytest.approx(np.mean([len(t) for t in draws.texts]))
    assert "10 draws" in repr(draws)
    assert drawn(SHORT, LookaheadPhi(weights=True), 10).weighed


def test_spellings_are_banned_by_bytes_alone() -> None:
    """Many draws under adversarial sharing of letters, searched with ``in``."""
    table = Table(SlowGuide(VOCABULARY, (b"cab", b"bacba", b"aa")))
    lm = TableModel.random(VOCABULARY, seed=5, scale=2)
    settings = SamplingSettings(max_new_tokens=30, seed=0)
    request = Request(lm=lm, table=table, prompts=[PROMPT], settings=settings, n=200)
    for phi in (LookaheadPhi(window=1), LookaheadPhi(), LookaheadPhi(release="early")):
        for draw in LookaheadSampler(phi).sample(request)[0]:
            assert not any(phrase in draw.text for phrase in ("cab", "bacba", "aa"))


@cases
@pytest.mark.parametrize(
    "phi",
    [LookaheadPhi(weights=True), LookaheadPhi(window=1), LookaheadPhi(release="early")],
    ids=["whole", "1", "early"],
)
def test_the_guide_of_the_package_gives_the_draws_of_the_slow_one(case: Banned, phi: LookaheadPhi) -> None:
    slow = case.request(300, 1)
    guide = PhraseGuide(VOCABULARY, BannedPhrases(case.phrases, across_prompt=False))
    fast = Request(lm=slow.lm, table=Table(guide), prompts=slow.prompts, settings=slow.settings, n=slow.n)
    (expected,), (found,) = (LookaheadSampler(phi).sample(request) for request in (slow, fast))
    assert [(d.token_ids, d.log_p) for d in found] == [(d.token_ids, d.log_p) for d in expected]
    assert np.array_equal(found.log_w, expected.log_w, equal_nan=True)
    assert found.rejections == expected.rejections and found.counts == expected.counts


def test_a_phrase_that_the_prompt_begins_is_looked_ahead_for() -> None:
    """The prompt ends in "ac": "b" completes a phrase, and the first window begins with two bytes that wait."""
    guide = PhraseGuide(VOCABULARY, BannedPhrases(["acb", "acc", "aca"]))
    request = Request(
        lm=SHORT.lm, table=Table(guide), prompts=[PROMPT], settings=SamplingSettings(max_new_tokens=3, seed=0), n=200
    )
    for phi in (LookaheadPhi(), LookaheadPhi(release="early")):
        assert set(ids(LookaheadSampler(phi).sample(request)[0])) == {(0,)}


@pytest.mark.parametrize(
    ("language", "phrases"), [(LANGUAGES[0], ["cc", "bba"]), (GRAMMARS[2], ["aa", "(ab)"])], ids=str
)
def test_an_output_type_without_phrases(language: Language, phrases: list[str]) -> None:
    """A product of guides: all that it does not allow is kept out as phrases are, and weights correct for both."""
    vocabulary = language.table.vocabulary
    banned = {y for y in language.reference().log_p if any(each in text_of(vocabulary, y) for each in phrases)}
    kept = {y: math.exp(log_p) for y, log_p in language.reference().log_p.items() if y not in banned}
    guide = ProductGuide(language.table.guide, PhraseGuide(vocabulary, BannedPhrases(phrases, across_prompt=False)))
    whole = language.request(N, 1)
    request = Request(lm=whole.lm, table=Table(guide), prompts=whole.prompts, settings=whole.settings, n=whole.n)
    draws = LookaheadSampler(LookaheadPhi(weights=True)).sample(request)[0]
    phi, w = sum(kept.values()), np.exp(draws.log_w)
    assert 0.1 * phi < sum(math.exp(language.reference().log_p[y]) for y in banned)
    assert abs(w.mean() - phi) < 4 * w.std() / math.sqrt(len(w))
    mu = {y: p / phi for y, p in kept.items()}
    assert set(ids(draws)) <= set(mu)
    assert total_variation(frequencies(ids(draws), draws.weights), mu) < 1.5 * noise_floor(mu, int(draws.ess))


def text_of(vocabulary: Vocabulary, ids: tuple[int, ...]) -> str:
    return b"".join(vocabulary.tokens[token] for token in ids).decode()
