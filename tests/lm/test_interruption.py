"""Work that is asked to stop: a check before every model call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from outlines_phi.lm.interruption import INTERRUPTION, Interrupted, Interruption, turn
from outlines_phi.lm.table_model import TableModel
from outlines_phi.lm.watch import WatchedModel
from outlines_phi.phi.estimators.auto import AutoPhi
from outlines_phi.phi.estimators.exact import ExactPhi
from outlines_phi.phi.estimators.local import LocalPhi
from outlines_phi.phi.tree.store import TreeStore
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.rejection import tree_call as exact
from outlines_phi.sampling.rejection.auto_sampler import AutoSampler
from outlines_phi.sampling.rejection.exact_sampler import ExactSampler
from outlines_phi.sampling.sampler import Request, Sampler
from tests.languages import LANGUAGES, PROMPT, VOCABULARY, Language

LANGUAGE = LANGUAGES[1]


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    flag = Interruption()
    token = INTERRUPTION.set(flag)
    yield flag
    INTERRUPTION.reset(token)


def request(language: Language, lm: TableModel | WatchedModel, seed: int | None) -> Request:
    return Request(lm=lm, table=language.table, prompts=[PROMPT], settings=language.settings(seed), n=40)


def asking_at(call: int, interruption: Interruption) -> TableModel:
    """A model that is asked to stop during its ``call``-th call."""
    calls: list[tuple[int, ...]] = []

    def law(sequence: tuple[int, ...]) -> object:
        calls.append(sequence)
        if len(calls) == call:
            interruption.ask()
        return LANGUAGE.lm.law(sequence)

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
    monkeypatch.setattr(exact, "FINITE_PREFIXES", 0)  # else one call is all there is
    store = TreeStore()
    sampler = SAMPLERS[name](store)
    model = asking_at(1, interruption)
    for seed in (None, 3):
        with pytest.raises(Interrupted):
            sampler.sample(request(LANGUAGE, WatchedModel(model), seed))
        assert len(store) == 0
    first_call = len(model.calls)  # type: ignore[attr-defined]
    with pytest.raises(Interrupted):
        sampler.sample(request(LANGUAGE, WatchedModel(model), None))
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
