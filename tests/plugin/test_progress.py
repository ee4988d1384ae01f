"""``progress=`` at every door, the line of a call that does not end soon, and Ctrl-C with typed values."""

import logging
from collections.abc import Callable
from itertools import count
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex

from outlines_phi import (
    SMC,
    BudgetError,
    Effort,
    ExactPhi,
    Generator,
    PhiTransformers,
    Progress,
    UnsupportedError,
    audit,
    generate,
    samplers,
)
from outlines_phi.errors import InterruptedDraws
from tests.inner import Attempts, watch
from tests.inner import streaming as module
from tests.plugin.instruments import custom as custom_in
from tests.plugin.instruments import pair
from tests.precision import named

pytestmark = pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")

QUESTION = "Question: is the bakery open on Sunday? Answer: "
Answer = Literal["yes", "no", "not now", "nobody"]
WORD = regex("[a-z]{3,6}[.]")
Door = Callable[[PhiTransformers, Any], object]


def custom(model: PhiTransformers, progress: Any) -> object:
    options = {"phi": "exact", "num_return_sequences": 3, "max_new_tokens": 9}
    return custom_in(pair(model), QUESTION, output_type=WORD, progress=progress, **options)


N3 = {"num_return_sequences": 3, "max_new_tokens": 9}
DOORS: dict[str, tuple[Door, int]] = {
    "model": (lambda m, p: m(QUESTION, WORD, phi="exact", progress=p, **N3), 3),
    "model, auto": (lambda m, p: m(QUESTION, WORD, phi="auto", progress=p, **N3), 3),
    "model, local": (lambda m, p: m(QUESTION, WORD, phi="local", progress=p, **N3), 3),
    "model, mode": (lambda m, p: m(QUESTION, Answer, phi="exact", do_sample=False, progress=p, **N3), 3),
    "model, free": (lambda m, p: m(QUESTION, banned_phrases=["yes"], progress=p, **N3), 3),
    "batch": (lambda m, p: m.batch([QUESTION, "Answer: "], WORD, phi="exact", progress=p, **N3), 6),
    "outlines.Generator": (lambda m, p: outlines.Generator(m, WORD)(QUESTION, phi="exact", progress=p, **N3), 3),
    "Generator": (lambda m, p: Generator(m, WORD)(QUESTION, progress=p, **N3), 3),
    "sample": (lambda m, p: Generator(m, WORD, phi="exact").sample(QUESTION, 5, progress=p), 5),
    "sample_batch": (lambda m, p: Generator(m, WORD).sample_batch([QUESTION, "A"], 2, progress=p), 4),
    "drafts": (
        lambda m, p: Generator(m, WORD).sample(QUESTION, 4, phi="local", draft="tree", progress=p),
        4,
    ),
    "particles": (
        lambda m, p: Generator(m, WORD).sample(QUESTION, 2, sampler=SMC(particles=4), progress=p),
        2,
    ),
    "resampled": (
        lambda m, p: Generator(m, WORD).sample(QUESTION, 2, sampler=SMC(particles=4, resample="ess"), progress=p),
        2,
    ),
    "probabilities": (lambda m, p: Generator(m, Answer).probabilities(QUESTION, progress=p), 0),
    "mode": (lambda m, p: Generator(m, Answer).mode(QUESTION, 2, progress=p), 2),
    "audit": (lambda m, p: audit((m, WORD), [QUESTION, "A"], 4, bounds_tokens=50, progress=p), 8),
    "custom_generate": (custom, 3),
    "classic": (lambda m, p: generate.format(m, WORD, samplers.multinomial(3), phi="exact")(QUESTION, progress=p), 3),
}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_tells_how_far_it_has_come(name: str, fresh: PhiTransformers) -> None:
    door, wanted = DOORS[name]
    told: list[Progress] = []
    door(fresh, told.append)
    last = told[-1]
    assert (last.draws, last.wanted) == (wanted, wanted)
    for before, after in zip(told, told[1:], strict=False):
        assert before.draws <= after.draws and before.calls <= after.calls and before.seconds <= after.seconds
    assert last.calls >= len(told) and last.tokens > 0


def test_draws_are_the_same(model: PhiTransformers) -> None:
    generator = Generator(model, WORD)
    for phi in ("exact", "auto", "local"):
        told: list[Progress] = []
        draws = generator.sample(QUESTION, 6, phi=phi, seed=3, progress=told.append)
        assert draws == generator.sample(QUESTION, 6, phi=phi, seed=3)
        assert (told[-1].calls, told[-1].tokens) == (draws.counts.calls, draws.counts.tokens)
        if phi == "exact":
            assert told[-1].attempts == draws.counts.attempts and told[-1].log_z_bounds == (draws.log_z_bounds,)


def test_what_is_told_may_raise_and_the_next_call_works(fresh: PhiTransformers) -> None:
    generator = Generator(fresh, WORD, phi="exact")

    def stop(progress: Progress) -> None:
        if progress.calls > 2:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generator.sample(QUESTION, 40, progress=stop)
    assert generator.sample(QUESTION, 8, seed=2) == generator.sample(QUESTION, 8, seed=2, progress=False)
    assert len(generator.sample(QUESTION, 8)) == 8


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *(
            (
                lambda m, given=given: m(QUESTION, Answer, phi="exact", progress=given),
                "progress=.*; expected True for a bar",
            )
            for given in (1, "bar", list, [])
        ),
        (lambda m: m(QUESTION, Answer, progress=True, max_new_tokens=9), "progress= was given without phi="),
        (lambda m: m.stream(QUESTION, Answer, phi="exact", progress=print), "Leave progress out of a stream"),
    ],
)
def test_only_what_can_be_told_is_taken(call: Callable[..., Any], words: str, model: PhiTransformers) -> None:
    """And no loop of the host and no stream tells anything."""
    with pytest.raises(UnsupportedError, match=words):
        call(model)
    assert model(QUESTION, Answer, progress=None, max_new_tokens=9)


def test_bars(model: PhiTransformers, capsys: pytest.CaptureFixture[str]) -> None:
    """Of draws, of calls where nothing is drawn; closed where the call fails."""
    generator, answers = Generator(model, WORD, phi="exact"), Generator(model, Answer)
    generator.sample(QUESTION, 7, seed=1, progress=True)
    shown = capsys.readouterr()
    assert "7/7" in shown.err and "attempts" in shown.err and "log Phi in [" in shown.err and not shown.out
    found = answers.probabilities(QUESTION, seed=1, progress=True)
    assert f"{found.counts.calls} calls" in capsys.readouterr().err
    hasty = ExactPhi(effort=Effort(attempts=1, tokens=1), width=1)
    with pytest.raises(BudgetError):
        generator.sample(QUESTION, 50, phi=hasty, seed=1, progress=True)
    assert capsys.readouterr().err.endswith("\n")


QUIET: list[dict[str, Any]] = [
    {"phi": "auto"},
    {"phi": "local"},
    {"phi": "exact", "progress": False},
    {"phi": "exact", "progress": lambda progress: None},
    {"phi": ExactPhi(effort=Effort(seconds=10_000))},
    {"phi": "exact", "slow": 1e9},
]


@pytest.mark.parametrize("options", [{"phi": "exact"}, *QUIET], ids=named)
def test_exact_draws_that_do_not_end_soon_say_so_once(
    options: dict[str, Any], model: PhiTransformers, logged: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock takes a tenth of a second. Others say nothing, and a call that has ended."""
    time, given = count(step=0.1), {name: value for name, value in options.items() if name != "slow"}
    monkeypatch.setattr(watch, "now", lambda: next(time))
    monkeypatch.setattr(module, "SLOW", options.get("slow", 0.3))
    Generator(model, WORD).sample_batch([QUESTION, "A"], 30, seed=1, **given)
    said = [record.getMessage() for record in logged]
    assert len(said) == (options not in QUIET)
    for line in said:
        assert line.startswith(
            "Give phi='auto' for weighted draws where exact ones are dear, ExactPhi(effort=Effort(seconds="
        )
        assert "of 60 draws, by" in line and "log Phi of prompt 0 is between -" in line and "\n" not in line


def test_ctrl_c_hands_over_typed_values(fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(fresh, Literal[1, 22, 333], phi="exact")
    read = Attempts._read_in_order

    def interrupted(self: Attempts) -> None:
        read(self)
        if len(self.accepted) > 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Attempts, "_read_in_order", interrupted)
    with pytest.raises(InterruptedDraws) as caught:
        generator.sample("One, two, ", 500, seed=1)
    (draws,) = caught.value.draws
    assert len(draws) > 3 and set(draws.values) <= {1, 22, 333}
    assert str(caught.value).startswith(f"{len(draws)} of 500 draws were made")
