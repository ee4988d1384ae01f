"""The laws of every set of token trees, whichever model is behind it; between model calls: the clock, progress, limits."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from outlines.types import Regex

from outlines_phi import (
    AutoPhi,
    ExactPhi,
    Generator,
    LocalPhi,
    Progress,
    Vocabulary,
    from_transformers,
)
from outlines_phi.errors import ModelError
from outlines_phi.lm import CallCost, TableModel, TokenTrees, bundled, model
from outlines_phi.testing import TreeGrowth, check_language_model
from tests.inner import (
    INTERRUPTION,
    Branches,
    Forward,
    Interrupted,
    Interruption,
    ModelCounts,
    PackedTrees,
    RegionTrees,
    RowTrees,
    TreeStore,
    Watch,
    WrappedModel,
    current,
    follow,
    limited,
    turn,
    watch,
    watching,
)
from tests.languages import LANGUAGES, PROMPT, sample
from tests.languages import VOCABULARY as LETTERS
from tests.lm.gardens import SIZE, VOCABULARY, build, evaluate
from tests.precision import NATS
from tests.refusals import refused

PROMPTS = [[5, 6, 7, 8, 9], [10, 11], [5, 6, 7, 8, 9], [12, 13, 14, 15, 16, 17, 18]]
CONTEXT = 40


TABLE = TableModel.random(VOCABULARY, seed=2, max_length=CONTEXT)


class Road(WrappedModel):
    """One implementation of token trees, and the law it must agree with."""

    evaluates_again = False

    def __init__(self, trees: Callable[..., TokenTrees] = TABLE.trees, law: Callable[..., Any] = TABLE.logits) -> None:
        super().__init__(TABLE)
        self._trees, self.law = trees, law

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        return self._trees(prompts)


def hugging_face(name: str, trees: type, **options: Any) -> Road:
    forward = Forward(build(name), SIZE, max_length=CONTEXT, memory=1 << 28)
    road = Road(lambda prompts: trees(forward, prompts, **options), lambda sequence: evaluate(build(name), sequence))
    road.evaluates_again = trees in (RowTrees, RegionTrees)
    return road


ROADS = {
    "table": Road,
    "packed": lambda: hugging_face("qwen3", PackedTrees),
    "packed with windows": lambda: hugging_face("gemma3", PackedTrees),
    "rows": lambda: hugging_face("qwen3", RowTrees),
    "rows of one length": lambda: hugging_face("gpt2", RowTrees, padding=False),
    "packed in divided rows": lambda: hugging_face("gemma3", PackedTrees, room=0),
    "packed with a gap": lambda: hugging_face("mistral", PackedTrees, gap=100),
    "whole sequences": lambda: hugging_face("gpt2", RowTrees, padding=False, cached=False),
    "regions": lambda: hugging_face("longrope", RegionTrees),
    "recurrent rows": lambda: hugging_face("mamba", RowTrees),
}


@pytest.fixture(params=ROADS.values(), ids=ROADS.keys())
def road(request: pytest.FixtureRequest) -> Road:
    return request.param()


@pytest.fixture
def gardener(road: Road) -> TreeGrowth:
    return TreeGrowth(road.trees(PROMPTS), PROMPTS, SIZE, seed=11)


def error(gardener: TreeGrowth, road: Road, shift: int = 0) -> float:
    """Return the largest error beside plain calls about whole sequences, or about others."""
    found = gardener.errors(lambda s: torch.as_tensor(road.law((s[0], *s[: len(s) - shift]) if shift else s)))
    return float(found.abs().max())


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", [1, 2])
def test_every_node_is_evaluated_as_its_own_sequence_and_what_is_wrong_is_refused(road: Road, seed: int) -> None:
    assert check_language_model(road, reference=road.law, tolerance=2 * NATS, seed=seed).nodes > 100


def test_a_law_of_another_sequence_is_told_apart(road: Road, gardener: TreeGrowth) -> None:
    """Control: no answer is near that without the last token."""
    gardener.live()
    assert error(gardener, road) <= NATS and error(gardener, road, shift=1) > 1000 * NATS + 0.1


def test_chains_inside_one_call(road: Road, gardener: TreeGrowth) -> None:
    """Drafts: every node but the first follows a node of the same call, in two prompts at once."""
    gardener.plant()
    first = gardener.trees.next_node
    gardener.follow([1, first, first + 1, 3, first + 3, first + 2])
    gardener.follow([first + 5, first + 4])
    assert error(gardener, road) <= NATS


def test_a_walk_in_step(road: Road, gardener: TreeGrowth) -> None:
    """Ancestral sampling: all prompts advance together, some stop early, one forks; and what is given back grows anew."""
    gardener.plant()
    front = list(range(len(PROMPTS)))
    for _ in range(4):
        front = list(gardener.follow(front))
    front = list(gardener.follow([front[0], front[2], front[3], front[3]]))
    gardener.follow(front[1:])
    assert gardener.trees.counts.prompt_tokens == sum(map(len, PROMPTS)) or road.evaluates_again
    gardener.prune([])
    gardener.prune([])
    gardener.grow(12)
    assert error(gardener, road) <= NATS


@pytest.mark.parametrize("first", [0, 9])
def test_counts(road: Road, gardener: TreeGrowth, first: int) -> None:
    """First nodes share the call of the prompts, and nothing to extend is no call."""
    gardener.plant(first)
    sizes = (5, 1, 8)
    for size in (*sizes, 0):
        gardener.grow(size)
    counts, prompts, tokens = gardener.trees.counts, sum(map(len, PROMPTS)), first + sum(sizes)
    if road.evaluates_again:
        assert counts.calls >= 1 + len(sizes) and counts.prompt_tokens >= prompts and counts.tokens >= tokens
    else:
        assert (counts.calls, counts.prompt_tokens, counts.tokens) == (1 + len(sizes), prompts, tokens)
    assert error(gardener, road) <= NATS


@pytest.mark.parametrize(
    ("parents", "tokens", "words"),
    [
        ([99], [3], "parent 99"),
        ([5, 4], [3, 3], "parent 5"),  # a parent must stand before its child
        ([0], [SIZE], "vocabulary of 64"),
        ([0], [-1], "Token -1"),
        ([0, 1], [3], "2 parents"),
        ([3, *range(4, 37)], [3] * 34, "34 tokens after a prompt of 7 tokens, together 41, .* 40"),
    ],
)
def test_errors_name_what_is_wrong(parents: list[int], tokens: list[int], words: str) -> None:
    trees = TABLE.trees(PROMPTS)
    refused("before roots", trees.extend, [0], [3], error=ModelError)
    trees.roots()
    refused(words, trees.extend, parents, tokens, error=ModelError)
    assert trees.next_node == len(PROMPTS)
    refused("twice", trees.roots, error=ModelError)
    refused("compact", trees.compact, [77], error=ModelError)


@pytest.mark.parametrize(
    ("prompts", "words"),
    [([], "No prompts"), ([[1], []], "Prompt 1 has no tokens"), ([[SIZE]], "prompt 0"), ([[1] * 41], "41")],
)
def test_wrong_prompts_are_refused(prompts, words: str) -> None:
    forward = Forward(build("llama"), SIZE, max_length=CONTEXT, memory=1 << 28)
    for trees in (TABLE.trees, lambda p: PackedTrees(forward, p), lambda p: RowTrees(forward, p)):
        refused(words, trees, prompts, error=ModelError)


ABC = Vocabulary.from_tokens(["a", "b", "c", ""], 3)
PINNED = [1.5331816694893723, 0.28452349307204877, -0.023495157220602202, 0.8533143573868655]


def test_logits_are_the_law_of_the_whole_sequence() -> None:
    seen = []

    def law(sequence):
        seen.append(sequence)
        return [sum(sequence), len(sequence), -math.inf, 0.5]

    trees = TableModel(ABC, law).trees([[0, 1], [2]])
    roots = trees.roots()
    grown = trees.extend([0, 2, 1], [2, 2, 0])
    assert roots.logits.dtype == grown.logits.dtype == torch.float64
    assert seen == [(0, 1), (2,), (0, 1, 2), (0, 1, 2, 2), (2, 0)]
    assert grown.logits.tolist() == [[3, 3, -math.inf, 0.5], [5, 4, -math.inf, 0.5], [2, 2, -math.inf, 0.5]]


def test_random_laws_are_named_by_their_seed() -> None:
    first, again, other = (TableModel.random(ABC, seed=seed).logits([0, 1]) for seed in (4, 4, 5))
    assert (first == again).all() and (first != other).all()
    # Pinned: the same law in every process and on every machine.
    assert first == pytest.approx(PINNED, abs=1e-12)


def test_order_is_how_far_back_the_law_looks_and_scale_that_of_its_logits() -> None:
    long, short, flat = (TableModel.random(ABC, order=order) for order in (None, 1, 0))
    assert (long.logits([0, 1]) != long.logits([2, 1])).all() and (long.logits([0]) != long.logits([0, 0])).all()
    assert (short.logits([0, 1]) == short.logits([2, 2, 1])).all()
    assert (short.logits([1]) != short.logits([2])).all()
    assert (flat.logits([1]) == flat.logits([2, 2])).all()
    model = TableModel.random(ABC, seed=1, scale=3.0)
    draws = np.stack([model.logits(each) for each in itertools.product(range(4), repeat=4)])
    assert draws.mean() == pytest.approx(0, abs=4 * 3 / math.sqrt(draws.size))
    assert draws.std() == pytest.approx(3, rel=4 / math.sqrt(2 * draws.size))
    assert not TableModel.random(ABC, scale=0.0).logits([1]).any()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([0.0, 0.0, 0.0], "shape"),
        ([0.0, math.nan, 0.0, 0.0], "NaN"),
        ([0.0, math.inf, 0.0, 0.0], "inf"),
        ([-math.inf] * 4, "-inf"),
    ],
)
def test_what_is_no_law_is_refused_and_the_trees_survive(answer, words: str) -> None:
    trees = TableModel(ABC, lambda sequence: answer if sequence == (0, 1) else [0.0] * 4).trees([[0]])
    trees.roots()
    refused(words, trees.extend, [0], [1], error=ModelError)
    assert (trees.next_node, trees.extend([0], [2]).nodes) == (1, range(1, 2))


WORDS = LANGUAGES[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still until it is set."""
    time = [100.0]
    monkeypatch.setattr(watch, "now", lambda: time[0])
    return lambda seconds: time.__setitem__(0, 100.0 + seconds)


def test_nobody_needs_to_watch() -> None:
    branches = Branches(WORDS.lm, [PROMPT])
    branches.plant()
    assert branches.trees.counts.calls == 1
    follow(lambda: pytest.fail("nobody asked"))  # type: ignore[arg-type, return-value]


def test_progress_is_told_when_the_next_call_begins_and_at_the_end(clock: Callable[[float], None]) -> None:
    told: list[Progress] = []
    tokens = iter(range(3))
    branches = Branches(WORDS.lm, [PROMPT])

    def tell(watched: Watch) -> None:
        assert watched.progress is not None
        told.append(watched.progress())

    with watching(tell):
        follow(
            lambda: Progress.of(
                branches.trees.counts, draws=len(told), wanted=3, log_bounds=[(-math.inf, math.log(0.5))]
            )
        )
        branches.plant()
        assert told == []
        clock(1.5)
        branches.evaluate([(0, next(tokens))])
        assert len(told) == 1
        branches.evaluate([(0, next(tokens))])
    assert [each.calls for each in told] == [1, 2, 3] and [each.tokens for each in told] == [0, 1, 2]
    assert [each.draws for each in told] == [0, 1, 2] and {each.seconds for each in told} == {1.5}
    assert told[0].log_z_bounds == ((-math.inf, math.log(0.5)),)
    assert str(told[-1]) == "2 of 3 draws, 0 attempts, 3 model calls, 2 tokens, 2 s"


def test_a_call_that_failed_tells_nothing_more() -> None:
    with pytest.raises(ZeroDivisionError), watching(lambda _: pytest.fail("told")):
        follow(lambda: Progress.of(ModelCounts()))
        raise ZeroDivisionError


def test_what_is_told_goes_up_between_two_calls() -> None:
    """An exception of who is told leaves the trees of the model as they were."""
    branches = Branches(WORDS.lm, [PROMPT])

    def fail(_: Watch) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watching(fail):
        follow(lambda: Progress.of(branches.trees.counts))
        branches.plant()
        branches.evaluate([(0, 1)])
    assert (branches.trees.counts.calls, branches.trees.next_node) == (1, 1)
    assert current().progress is None


def test_a_limit_counts_from_the_beginning_of_the_call(clock: Callable[[float], None]) -> None:
    with watching() as call:
        clock(2)
        with limited(3) as joined:
            assert joined is call is current() and not joined.over
            clock(3)
            assert joined.over and joined.end_of("") == "its 3 s were over"
        assert not call.over
        with limited(None):
            assert not call.over and call.end_of("the effort ran out") == "the effort ran out"


def test_a_limit_without_a_call_begins_one(clock: Callable[[float], None]) -> None:
    with limited(1) as call:
        assert current() is call and not call.over
        clock(1)
        assert call.over
    assert not current().over and current() is not call


def test_calls_within_calls_have_clocks_of_their_own(clock: Callable[[float], None]) -> None:
    with watching() as outer, limited(5):
        clock(5)
        with watching() as inner:
            assert current() is inner and inner.seconds == 0 and not inner.over
        assert current() is outer and outer.over


def test_the_clock_goes_on() -> None:
    assert watch.now() <= watch.now()


LANGUAGE = LANGUAGES[1]


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    flag = Interruption()
    token = INTERRUPTION.set(flag)
    yield flag
    INTERRUPTION.reset(token)


class AskingAt:
    """A model that is asked to stop during its ``call``-th call."""

    def __init__(self, call: int, interruption: Interruption) -> None:
        self.call, self.interruption, self.calls = call, interruption, 0
        self.lm = TableModel(LETTERS, self.law)  # type: ignore[arg-type]

    def law(self, sequence: tuple[int, ...]) -> object:
        self.calls += 1
        if self.calls == self.call:
            self.interruption.asked = True
        return LANGUAGE.lm.next_logits(sequence)


SAMPLERS = {"exact": ExactPhi(), "certified": ExactPhi(tolerance=1e-9), "auto": AutoPhi(), "weighted": LocalPhi()}


@pytest.mark.usefixtures("grown")  # else one call is all there is
@pytest.mark.parametrize("name", SAMPLERS)
def test_no_call_is_made_after_the_flag(name: str, interruption: Interruption) -> None:
    store, model, calls = TreeStore(), AskingAt(1, interruption), set()
    for seed in (None, 3, None):
        request = replace(LANGUAGE.request(40, seed), lm=model.lm)
        with pytest.raises(Interrupted):
            sample(SAMPLERS[name], request, store=store)
        assert len(store) == 0
        calls.add(model.calls)
    assert len(calls) == 1
    interruption.asked = False
    request = LANGUAGE.request(40, 3)
    assert sample(SAMPLERS[name], replace(request, lm=model.lm), store=store) == sample(SAMPLERS[name], request)


def test_no_handler_of_exceptions_holds_it_up() -> None:
    assert not issubclass(Interrupted, Exception)


def test_waiting_for_a_turn_can_be_given_up(interruption: Interruption) -> None:
    lock, given_up = threading.RLock(), threading.Event()

    def wait() -> None:
        INTERRUPTION.set(interruption)
        with pytest.raises(Interrupted), turn(lock):
            pass
        given_up.set()

    with lock:
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.05)
        assert not given_up.is_set()
        interruption.asked = True
        assert given_up.wait(5)
    waiting.join()
    with turn(lock):
        pass


class Clocked(WrappedModel):
    """A model whose calls take as long as a cost says, by a clock of its own, and sometimes longer."""

    def __init__(self, cost: CallCost) -> None:
        super().__init__(TableModel.random(VOCABULARY, seed=2, max_length=3))
        self.true, self.now, self.calls = cost, 0.0, 0

    def trees(self, prompts: Sequence[Sequence[int]]) -> TokenTrees:
        trees: Any = self.lm.trees(prompts)
        extend = trees.extend

        def slow(parents: Sequence[int], tokens: Sequence[int]) -> Any:
            self.calls, n = self.calls + 1, len(tokens)
            self.now += 0.2 * (1 + self.true.second * (n > 1) + self.true.later * (n - 1)) + (self.calls % 7 == 0)
            return extend(parents, tokens)

        trees.extend = slow
        return trees


@pytest.mark.parametrize("cost", [CallCost(), CallCost(0.0, 0.0), CallCost(0.7, 0.01), CallCost(0.0, 1.0)])
def test_a_cost_is_measured_by_the_clock(monkeypatch: pytest.MonkeyPatch, cost: CallCost) -> None:
    lm = Clocked(cost)
    monkeypatch.setattr(model, "perf_counter", lambda: lm.now)
    found = CallCost.measured(lm)
    assert found.second == pytest.approx(cost.second) and found.later == pytest.approx(cost.later)


def test_a_dear_token_is_not_drafted() -> None:
    """Behind a measurement drafts are as long as pays; what is drawn has the same distribution."""
    wrapped = from_transformers(*bundled.load())
    prompt, drafted = "The cat sat on the mat. The cat sat on the mat. The cat", []
    for cost in (CallCost(0.0, 0.0), CallCost(), CallCost(9.0, 9.0)):
        wrapped.lm.cost = cost
        generator = Generator(wrapped, Regex("[a-zA-Z. ]{40}"), phi="local", draft="prompt_lookup")
        drafted.append(generator.sample(prompt, 4, seed=3).counts.drafted)
    assert drafted[0] > drafted[1] > drafted[2] == 0


@pytest.mark.parametrize("bad", [-1, math.nan, "1", None])
def test_a_cost_is_a_number(bad: Any) -> None:
    refused("CallCost", CallCost, second=bad)
    refused("CallCost", CallCost, later=bad)
