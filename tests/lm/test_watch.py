"""Between model calls: the same law, a clock that is read at one place, and progress that is told when a call is digested."""

import math
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from outlines_phi import AutoPhi, ExactPhi, LocalPhi
from outlines_phi.lm import TableModel, TokenTrees, watch
from outlines_phi.lm.model import ModelCounts
from outlines_phi.lm.watch import (
    INTERRUPTION,
    Interrupted,
    Interruption,
    Progress,
    Watch,
    WatchedTrees,
    current,
    follow,
    limited,
    turn,
    watching,
)
from outlines_phi.phi.tree import preexpand
from outlines_phi.phi.tree.store import TreeStore
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Request, Sampler
from tests.languages import LANGUAGES, PROMPT, VOCABULARY, Language

WORDS = LANGUAGES[0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands still until it is set."""
    time = [100.0]
    monkeypatch.setattr(watch, "now", lambda: time[0])
    return lambda seconds: time.__setitem__(0, 100.0 + seconds)


def test_every_member_of_the_interface_is_handed_on() -> None:
    public = {name for name in vars(TokenTrees) if not name.startswith("_")}
    assert all(getattr(WatchedTrees, name) is not getattr(TokenTrees, name) for name in public)


def test_nobody_needs_to_watch() -> None:
    trees = WatchedTrees(WORDS.lm.trees([PROMPT]))
    trees.roots()
    assert trees.counts.calls == 1
    follow(lambda: pytest.fail("nobody asked"))  # type: ignore[arg-type, return-value]


def test_progress_is_told_when_the_next_call_begins_and_at_the_end(clock: Callable[[float], None]) -> None:
    told: list[Progress] = []
    tokens = iter(range(3))
    trees = WatchedTrees(WORDS.lm.trees([PROMPT]))

    def tell(watched: Watch) -> None:
        assert watched.progress is not None
        told.append(watched.progress())

    with watching(tell):
        follow(lambda: Progress.of(trees.counts, draws=len(told), wanted=3, log_bounds=[(-math.inf, math.log(0.5))]))
        trees.roots()
        assert told == []
        clock(1.5)
        trees.extend([0], [next(tokens)])
        assert len(told) == 1
        trees.extend([0], [next(tokens)])
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
    trees = WatchedTrees(WORDS.lm.trees([PROMPT]))

    def fail(_: Watch) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watching(fail):
        follow(lambda: Progress.of(trees.counts))
        trees.roots()
        trees.extend([0], [1])
    assert (trees.counts.calls, trees.next_node) == (1, 1)
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


def request(language: Language, lm: TableModel, seed: int | None) -> Request:
    return Request(lm=lm, table=language.table, prompts=[PROMPT], settings=language.settings(seed), n=40)


def asking_at(call: int, interruption: Interruption) -> TableModel:
    """A model that is asked to stop during its ``call``-th call."""
    calls: list[tuple[int, ...]] = []

    def law(sequence: tuple[int, ...]) -> object:
        calls.append(sequence)
        if len(calls) == call:
            interruption.ask()
        return LANGUAGE.lm.next_logits(sequence)

    model = TableModel(VOCABULARY, law)  # type: ignore[arg-type]
    model.calls = calls  # type: ignore[attr-defined]
    return model


SAMPLERS: dict[str, Callable[[TreeStore], Sampler]] = {
    "exact": lambda store: ExactSampler(ExactPhi(), store),
    "certified": lambda store: ExactSampler(ExactPhi(tolerance=1e-9), store),
    "auto": lambda store: AutoSampler(AutoPhi(), store),
    "weighted": lambda _: AncestralSampler(LocalPhi()),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_call_is_made_after_the_flag(name: str, interruption: Interruption, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preexpand, "SHORT", 0)  # else one call is all there is
    store = TreeStore()
    sampler = SAMPLERS[name](store)
    model = asking_at(1, interruption)
    for seed in (None, 3):
        with pytest.raises(Interrupted):
            sampler.sample(request(LANGUAGE, model, seed))
        assert len(store) == 0
    first_call = len(model.calls)  # type: ignore[attr-defined]
    with pytest.raises(Interrupted):
        sampler.sample(request(LANGUAGE, model, None))
    assert len(model.calls) == first_call  # type: ignore[attr-defined]
    interruption.asked = False
    expected = SAMPLERS[name](TreeStore()).sample(request(LANGUAGE, LANGUAGE.lm, 3))
    assert sampler.sample(request(LANGUAGE, model, 3)) == expected


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
        interruption.ask()
        assert given_up.wait(5)
    waiting.join()
    with turn(lock):
        pass
