"""Nothing banned is drawn where budgets end, from warped laws, in streams, by threads, under random bans; see ``test_no_leak``."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_phi import BannedPhrases, EmptyLanguageError, Vocabulary
from outlines_phi.guides import FSMGuide
from tests.guides.banning import bans, vocabularies
from tests.inner import AncestralSampler, LookaheadSampler, TreeStore, banned, compile_regex, sampler_for
from tests.leaks import leaks
from tests.sampling.hostile import CASES, LEVELS, MERGES, Case, Level, levels, of


def halves(others: Iterable[Any], names: Iterable[str]) -> list[Any]:
    """Return every level beside half of the others, which take turns; `make test-full` has all of them."""
    pairs = product(enumerate(others), enumerate(names))
    return [
        pytest.param(
            other, name, id=f"{getattr(other, 'name', other)}-{name}", marks=[pytest.mark.full] if (i + j) % 2 else []
        )
        for (i, other), (j, name) in pairs
    ]


@pytest.mark.parametrize(("budget", "name"), halves([1, 2, 3], LEVELS))
def test_nothing_banned_stands_where_the_budget_ends(budget: int, name: str) -> None:
    level = LEVELS[name]
    for case in (case for case in CASES if case.pattern is None):
        drawn = level.draw(case.request(level, n=2, budget=budget))
        assert case.check(drawn, budget) == 2 * len(case.prompts)


WARPED = [{"temperature": 0.2}, {"temperature": 3.0}, {"top_k": 3}, {"top_p": 0.7}, {"repetition_penalty": 1.7}]


@pytest.mark.parametrize(("options", "name"), halves(WARPED, LEVELS))
def test_nothing_banned_is_drawn_from_a_warped_law(options: dict[str, float], name: str) -> None:
    level = LEVELS[name]
    for case in (of("nested"), of("words"), of("foldings")):
        try:
            drawn = level.draw(case.request(level, n=3, **options))
        except EmptyLanguageError:
            assert "top_k" in options or "top_p" in options
        else:
            case.check(drawn)


@pytest.mark.parametrize(("case", "name"), halves(CASES, ["mask", "lookahead", "short windows", "early"]))
def test_what_a_stream_has_released_is_clean_and_stays(case: Case, name: str) -> None:
    level = LEVELS[name]
    request = case.request(level, n=2)
    sampler = level.drawing()
    assert isinstance(sampler, AncestralSampler | LookaheadSampler)
    written: dict[tuple[int, int], list[int]] = {}
    for grown in sampler.steps(request):
        for walk in grown:
            before = written.get((walk.row, walk.number), [])
            assert walk.tokens[: len(before)] == before
            written[walk.row, walk.number] = list(walk.tokens)
            text, prompt = case.vocabulary.decode(walk.tokens), case.prompts[walk.row].encode()
            assert not leaks(case.ban, text, prompt, ended=walk.finished)
    drawn = [list(draw.token_ids) for draws in level.draw(request) for draw in draws]
    assert drawn == [written[row, i] for row in range(len(case.prompts)) for i in range(2)]


@levels
def test_a_draw_is_that_of_its_seed_whatever_is_drawn_beside_it(level: Level) -> None:
    def ids(case: Case, seed: int = 3) -> list[list[tuple[int, ...]]]:
        return [[draw.token_ids for draw in draws] for draws in level.draw(case.request(level, n=2, seed=seed))]

    for case in (of("folded words"), of("type")):
        assert ids(case) == ids(case) != ids(case, seed=4)
        assert ids(case)[:1] == ids(replace(case, prompts=case.prompts[:1]))


def test_kept_trees_of_one_ban_are_not_those_of_another() -> None:
    """Exact draws of one model under many bans in turn, from one store."""
    store, level = TreeStore(), LEVELS["exact"]
    lm = of("merges").lm
    some = [case for case in CASES if case.vocabulary is MERGES]
    for seed in range(2):
        for case in some:
            request = replace(case.request(level, n=5, seed=seed), lm=lm)
            case.check(sampler_for(level.phi, store, None).sample(request))


@pytest.mark.parametrize("name", ["words", "folded words", "patterns", "whole foldings"])
def test_threads_share_a_matcher(name: str) -> None:
    """Its states come up while all of them read it."""
    case = replace(of(name), ban=pickle.loads(pickle.dumps(of(name).ban)))
    barrier = Barrier(8)

    def work(seed: int) -> int:
        level = list(LEVELS.values())[seed % 5]
        barrier.wait()
        return case.check(level.draw(case.request(level, n=5, seed=seed)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [5 * len(case.prompts)] * 8


@levels
def test_many_phrases_and_long_ones(level: Level) -> None:
    rng = np.random.default_rng(0)
    many = ["".join(rng.choice(list("linarth "), rng.integers(4, 40))) for _ in range(1000)]
    long = "linarith " * 30
    crowd = Case("crowd", MERGES, BannedPhrases([*many, "lin", long]), (*many[:20], "linarith"), ("a", "li"))
    assert crowd.check(level.draw(crowd.request(level, n=4))) == 8
    patient = Case("patient", MERGES, BannedPhrases([long]), ("linarith ",), ("a", long[:-8]), budget=60)
    assert patient.check(level.draw(patient.request(level, n=2))) == 4


@levels
def test_the_end_of_sequence_is_no_text(level: Level) -> None:
    """A phrase that begins as the name of the end of sequence is kept out of the text, and no text is kept from ending."""
    vocabulary = Vocabulary.from_tokens(["</s>", *"</s>a", "</", "s>", "</s"], 0)
    case = Case("end", vocabulary, BannedPhrases(["</s"]), ("</s>",), ("a", "<"), budget=5)
    results = level.draw(case.request(level, n=40))
    case.check(results)
    assert any(draw.token_ids[-1:] == (0,) for draws in results for draw in draws)


@levels
def test_an_error_and_no_text_where_nothing_is_left(level: Level) -> None:
    vocabulary = Vocabulary.from_tokens(["<eos>", "cat", "s "], 0)
    with pytest.raises(EmptyLanguageError, match="'a', 's'"):
        Case("", vocabulary, BannedPhrases(["a", "s"]), ("cat",), ("s ",)).guide(level.phi)
    with pytest.raises(EmptyLanguageError, match="'cat'"):
        banned(FSMGuide.from_automaton(compile_regex("(s )?cat(s )?"), vocabulary), BannedPhrases(["cat"]))
    # What has to come next completes a phrase that the prompt has begun.
    case = Case("", vocabulary, BannedPhrases(["s cat"]), ("cat",), ("s ",), "cat")
    with pytest.raises(EmptyLanguageError):
        level.draw(case.request(level, n=1))


@given(
    bans(),
    vocabularies(),
    st.sampled_from(list(LEVELS.values())),
    st.integers(1, 8),
    st.sampled_from([0.5, 2.0, 4.0]),
    st.sampled_from([None, None, "[abs _]{1,5}", "(a|ab|s |é|_){2,4}"]),
    st.data(),
)
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_nothing_banned_is_drawn_under_random_bans_over_random_vocabularies(
    ban: BannedPhrases,
    vocabulary: Vocabulary,
    level: Level,
    budget: int,
    strength: float,
    pattern: str | None,
    data: st.DataObject,
) -> None:
    texts = [phrase for phrase in ban.phrases if isinstance(phrase, str)] or ["ab", "ss"]
    wanted = (*texts, *(text.upper() for text in texts if ban.ignore_case))
    tokens = [v for v, token in enumerate(vocabulary.tokens) if token]
    prompts = data.draw(st.lists(st.lists(st.sampled_from(tokens), min_size=1, max_size=4), min_size=1, max_size=2))
    case = Case("random", vocabulary, ban, wanted, (), pattern, budget, strength)
    try:
        request = replace(case.request(level, n=5), prompts=[tuple(ids) for ids in prompts])
        results = level.draw(request)
    except EmptyLanguageError:
        return  # nothing is left, or nothing that is so short
    for ids, draws in zip(prompts, results, strict=True):
        for draw in draws:
            assert not leaks(ban, vocabulary.decode(draw.token_ids), vocabulary.decode(ids))
