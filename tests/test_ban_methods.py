"""The enumerated distributions of ways to ban phrases, against plain simulations of the same methods."""

import math
import random
from functools import cache
from itertools import accumulate

import numpy as np
import pytest

from benchmarks.bans import methods
from benchmarks.bans.cases import Case, random_case, spelled, tactics
from benchmarks.bans.methods import Distribution
from benchmarks.bans.texts import Ids, Text

from .languages import ALPHA, p_value
from .sampling.banning import VOCABULARY, Banned, renewed

DRAWS = 4000
CASES = ("tactics", "60", "130")
"""The first has several spellings of a phrase; the others are random distributions where rewinding or looking ahead is not good."""


@cache
def case_of(name: str) -> Case:
    return tactics(9.0) if name == "tactics" else random_case(int(name))


@cache
def nodes(name: str) -> dict[Ids, Text]:
    return {text.ids: text for text in case_of(name).texts.walk()}


def draw(texts: list[Text], rng: random.Random) -> int:
    return rng.choices(texts, [text.p for text in texts])[0].ids[-1]


def rewind(name: str, rng: random.Random) -> Ids:
    """One draw: at a phrase, go back to the token in which it begins and ban that one there, while the text before it stands."""
    phrases, tokens = case_of(name).phrases, case_of(name).lm.vocabulary.tokens
    ids: Ids = ()
    bans: dict[int, set[int]] = {}
    while not nodes(name)[ids].over or any(phrase in b"".join(tokens[v] for v in ids) for phrase in phrases):
        begins = [b"".join(tokens[v] for v in ids).find(phrase) for phrase in phrases]
        if max(begins) >= 0:
            byte = min(begin for begin in begins if begin >= 0)
            place = sum(length <= byte for length in accumulate(len(tokens[v]) for v in ids))
            bans = {at: banned for at, banned in bans.items() if at <= place}
            bans.setdefault(place, set()).add(ids[place])
            ids = ids[:place]
        left = [text for text in nodes(name)[ids].longer if text.ids[-1] not in bans.get(len(ids), ())]
        ids = (*ids, draw(left, rng))
    return ids


@pytest.mark.parametrize("name", CASES)
def test_the_law_of_rewinding_is_that_of_a_simulation(name: str) -> None:
    rng = random.Random(1)
    outcomes = [rewind(name, rng) for _ in range(DRAWS)]
    distribution = methods.rewound(case_of(name).texts, case_of(name).phrases)
    assert math.isclose(math.fsum(distribution.values()), 1, abs_tol=1e-9)
    assert p_value(outcomes, distribution) > ALPHA
    assert p_value(outcomes, methods.masked(case_of(name).texts)) < ALPHA, "the test tells methods apart"


SHORTENED = Banned((b"ab", b"ba"), 4, 0, 3.0)
"""Some windows end here because few walks come so far."""


@pytest.mark.parametrize("banned", [Banned((b"abc", b"bb"), 4, 3), SHORTENED], ids=str)
def test_the_laws_of_masks_and_windows_are_those_of_the_tests_of_the_samplers(banned: Banned) -> None:
    spellings = tuple(next(spelled(phrase, VOCABULARY)) for phrase in banned.phrases)
    texts = Case("", banned.lm, banned.request(1, 0).settings, banned.prompt, banned.phrases, spellings).texts

    def same(left: Distribution, right: Distribution) -> bool:
        return left.keys() == right.keys() and all(math.isclose(left[ids], right[ids], rel_tol=1e-9) for ids in left)

    distribution, weight = methods.windows(texts)
    expected = banned.windows(renewed(16))
    assert same(distribution, expected[0]) and same(weight, expected[1])
    assert same(methods.early(texts), banned.early())
    assert same(methods.masked(texts), banned.mask())
    assert same(methods.conditioned(texts), banned.mu())
    assert not same(distribution, banned.mu())
    if banned is SHORTENED:
        assert not same(distribution, banned.windows(lambda written, waits, survival: waits == 0)[0])


@pytest.mark.parametrize("name", CASES)
def test_the_law_of_a_weighted_pick_is_that_of_a_simulation(name: str) -> None:
    distribution, weight = methods.windows(case_of(name).texts)
    ids, few = list(distribution), 3
    q, w = np.array(list(distribution.values())), np.array([weight[one] for one in distribution])
    rng = np.random.default_rng(2)
    candidates = rng.choice(len(q), p=q / q.sum(), size=(20_000, few))
    shares = w[candidates] / w[candidates].sum(axis=1, keepdims=True)
    picked = candidates[np.arange(len(shares)), (shares.cumsum(axis=1) < rng.random((len(shares), 1))).sum(axis=1)]
    outcomes = [ids[i] for i in picked]
    assert p_value(outcomes, methods.resampled(distribution, weight, few)) > ALPHA
    assert p_value(outcomes, distribution) < ALPHA, "weights matter here"


def test_spellings_that_are_not_listed_leak() -> None:
    case = case_of("tactics")
    distribution = methods.bad_words(case.texts, case.spellings, case.prompt, len(case.lm.vocabulary))
    leaks = {ids: p for ids, p in distribution.items() if nodes("tactics")[ids].banned}
    assert sum(leaks.values()) > 0.1
    assert not any(
        spelling == ids[i : i + len(spelling)] for ids in leaks for i in range(8) for spelling in case.spellings
    )
    listed = methods.bad_words(case.texts, case.every_spelling, case.prompt, len(case.lm.vocabulary))
    assert not any(nodes("tactics")[ids].banned for ids in listed)
    assert listed == pytest.approx(methods.masked(case.texts)), "a mask is what listing everything comes to"
