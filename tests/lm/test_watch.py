"""Between model calls: the same law, a clock that is read at one place, progress when a call is digested; the cost of a call."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from outlines.types import Regex

from outlines_phi import AutoPhi, ExactPhi, Generator, LocalPhi, Progress, UnsupportedError, from_transformers
from outlines_phi.lm import CallCost, TableModel, TokenTrees, bundled, model
from outlines_phi.lm.watch import INTERRUPTION, Interrupted, Interruption, Watch, current, follow, turn, watching
from tests.inner import Branches, ModelCounts, TreeStore, WrappedModel, limited, watch
from tests.languages import LANGUAGES, PROMPT, VOCABULARY, sample
from tests.lm import gardens

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
        self.lm = TableModel(VOCABULARY, self.law)  # type: ignore[arg-type]

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
        super().__init__(TableModel.random(gardens.VOCABULARY, seed=2, max_length=3))
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
    with pytest.raises(UnsupportedError, match="CallCost"):
        CallCost(second=bad)
    with pytest.raises(UnsupportedError, match="CallCost"):
        CallCost(later=bad)
