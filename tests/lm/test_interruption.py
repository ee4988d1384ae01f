"""Work that is asked to stop: a check before every model call, and nothing where nobody can ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from outlines_phi.lm.interruption import (
    INTERRUPTION,
    Interrupted,
    InterruptibleModel,
    InterruptibleTrees,
    Interruption,
    interruptible,
    turn,
)
from outlines_phi.lm.model import TokenTrees
from outlines_phi.lm.table_model import TableModel
from outlines_phi.phi.auto import AutoPhi
from outlines_phi.phi.exact import ExactPhi
from outlines_phi.phi.local import LocalPhi
from outlines_phi.phi.store import TreeStore
from outlines_phi.sampling import exact
from outlines_phi.sampling.ancestral import AncestralSampler
from outlines_phi.sampling.auto import AutoSampler
from outlines_phi.sampling.exact import ExactSampler
from outlines_phi.sampling.sampler import Request, Sampler
from tests.languages import LANGUAGES, PROMPT, VOCABULARY, Language

LANGUAGE = LANGUAGES[1]


@pytest.fixture
def interruption() -> Interruption:
    return Interruption()


def request(language: Language, lm: TableModel | InterruptibleModel, seed: int | None) -> Request:
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


def test_every_member_of_the_interface_is_handed_on() -> None:
    for interface, copy in ((TokenTrees, InterruptibleTrees), (type(LANGUAGE.lm).__mro__[1], InterruptibleModel)):
        public = {name for name in vars(interface) if not name.startswith("_")}
        assert public <= set(vars(copy))


def test_without_a_flag_nothing_is_wrapped() -> None:
    assert interruptible(LANGUAGE.lm) is LANGUAGE.lm


def test_the_flag_of_the_context_is_used(interruption: Interruption) -> None:
    token = INTERRUPTION.set(interruption)
    try:
        wrapped = interruptible(LANGUAGE.lm)
    finally:
        INTERRUPTION.reset(token)
    assert isinstance(wrapped, InterruptibleModel) and wrapped.interruption is interruption


def test_it_is_the_same_law(interruption: Interruption) -> None:
    wrapped = InterruptibleModel(LANGUAGE.lm, interruption)
    assert {LANGUAGE.lm: 1}[wrapped] == {wrapped: 1}[LANGUAGE.lm] == 1
    assert wrapped == InterruptibleModel(LANGUAGE.lm, Interruption())
    assert wrapped != InterruptibleModel(LANGUAGES[0].lm, interruption)
    assert wrapped.version() == LANGUAGE.lm.version()


SAMPLERS: dict[str, Callable[[TreeStore], Sampler]] = {
    "exact": lambda store: ExactSampler(ExactPhi(), store),
    "certified": lambda store: ExactSampler(ExactPhi(tolerance=1e-9), store),
    "auto": lambda store: AutoSampler(AutoPhi(), store),
    "weighted": lambda _: AncestralSampler(LocalPhi()),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_and_counts_are_those_of_the_model(name: str, interruption: Interruption) -> None:
    plain, wrapped = (
        SAMPLERS[name](TreeStore()).sample(request(LANGUAGE, lm, 3))[0]
        for lm in (LANGUAGE.lm, InterruptibleModel(LANGUAGE.lm, interruption))
    )
    assert plain == wrapped and plain.counts.calls > 0


@pytest.mark.parametrize("name", SAMPLERS)
def test_no_call_is_made_after_the_flag(name: str, interruption: Interruption, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FINITE_PREFIXES", 0)  # else one call is all there is
    store = TreeStore()
    sampler = SAMPLERS[name](store)
    model = asking_at(1, interruption)
    for seed in (None, 3):
        with pytest.raises(Interrupted):
            sampler.sample(request(LANGUAGE, InterruptibleModel(model, interruption), seed))
        assert len(store) == 0
    first_call = len(model.calls)  # type: ignore[attr-defined]
    with pytest.raises(Interrupted):
        sampler.sample(request(LANGUAGE, InterruptibleModel(model, interruption), None))
    assert len(model.calls) == first_call  # type: ignore[attr-defined]
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
