"""Repeated calls: nothing is compiled twice, grows with what is kept or is left behind, and kept trees do not outlive their law."""

import gc
import sys
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Literal
from unittest.mock import Mock

import outlines
import pytest
import torch
from outlines.types import regex
from outlines.types.dsl import Choice, JsonSchema
from pydantic import BaseModel

from benchmarks.traffic import Traffic
from outlines_phi import Effort, Generator, PhiTransformers, from_transformers, generate
from outlines_phi.guides import Table, fsm
from tests.inner import BoundsTree, Cache, CompiledTypes, Forward, JSONText, Node, Prefix, bundled, streaming
from tests.inner import tables as compiled
from tests.loaded import Character
from tests.plugin.instruments import MONDAY, SUNDAY, Gate, together, trees, workers
from tests.plugin.instruments import compiled as kept
from tests.precision import near

ANSWER = Literal["yes", "no"]
EFFORT = Effort(tokens=20_000)


class Answer(Enum):
    NO = "no"
    YES = "yes"


class Pet(BaseModel):
    name: Literal["Rex", "Tom"]
    tame: bool


class Tame(BaseModel):
    """Of few texts, so that what is counted is compiling and not drawing."""

    tame: bool


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the number of runs of each stage of compilation."""
    count: Counter[str] = Counter()

    def counting(name: str, stage: Callable[..., Any], *arguments: Any) -> Any:
        count[name] += 1
        return stage(*arguments)

    for module, name in ((compiled, "to_language"), (compiled, "compile_in_parts"), (fsm, "lift"), (JSONText, "guide")):
        stage = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, stage=stage: counting(name, stage, *a))
    return count


class TestCompilation:
    @pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
    @pytest.mark.parametrize("output_type", [ANSWER, Tame, bool], ids=["choice", "pydantic", "bool"])
    def test_every_road_shares_one(self, output_type: Any, fresh: PhiTransformers, work: Counter[str]) -> None:
        options = {"max_new_tokens": 30}
        for _ in range(2):
            for phi in ("exact", "local", None):
                fresh(MONDAY, output_type, phi=phi, **options)
            fresh.batch([MONDAY, "no"], output_type, phi="onestep", **options)
            for phi in ("local", None):
                "".join(fresh.stream(MONDAY, output_type, phi=phi, **options))
            generator = Generator(fresh, output_type, phi="exact")
            generator(MONDAY, **options)
            generator.sample_batch([MONDAY, "no"], 3, **options)
            generate.format(fresh, output_type)(MONDAY, max_tokens=30)
        regular, stages = output_type is not Tame, ("compile_in_parts", "lift", "guide")
        assert [work[stage] for stage in stages] == [regular, 1, not regular]  # plain JSON is Outlines'
        for _ in range(2):  # what Outlines has compiled itself is lifted as it is, once for all generators of a type
            stock = outlines.Generator(fresh, output_type)
            stock(MONDAY, phi="exact", **options)
            stock.batch([MONDAY, "no"], phi="local", **options)
            stock(MONDAY, phi=None, **options)
        assert [work[stage] for stage in stages] == [regular, 1 + regular, not regular]
        fresh.clear_cache()
        fresh(MONDAY, output_type, phi="exact", **options)
        assert [work[stage] for stage in stages] == [2 * regular, 1 + 2 * regular, 2 * (not regular)]

    @pytest.mark.parametrize(
        ("written", "other", "stage"),
        [
            (
                [ANSWER, Literal["no", "yes"], Answer, Choice(["yes", "no"]), regex("no|yes"), regex("(yes)|no")],
                Literal["yes", "no", "maybe"],
                "lift",
            ),
            ([JsonSchema(Pet.model_json_schema()), JsonSchema(Pet)], Pet, "guide"),
        ],
        ids=["choices", "schemas"],
    )
    def test_equal_types_written_differently(
        self, written: list[Any], other: Any, stage: str, fresh: PhiTransformers, work: Counter[str]
    ) -> None:
        """A pydantic model is another type than its schema: it writes the keys that it has, and no others."""
        tables = {fresh.table(output_type) for output_type in written}
        assert len(tables) == work[stage] == 1 and fresh.table(other) not in tables

    def test_a_pydantic_model_is_written_as_a_pattern_once_for_all_models(
        self, model: PhiTransformers, fresh: PhiTransformers, work: Counter[str]
    ) -> None:
        model.clear_cache()
        for each in (fresh, model, fresh):
            each(MONDAY, Pet, phi="exact", max_new_tokens=30)
        assert work["to_language"] == 1 and work["guide"] == 2

    def test_a_vocabulary_has_one_table_for_all_models(self, model: PhiTransformers) -> None:
        other = from_transformers(*bundled.load())
        assert other.table(Pet) is model.table(Pet) and other.lm is not model.lm
        texts = [each(MONDAY, Pet, phi="exact", seed=3, max_new_tokens=30) for each in (model, other)]
        assert texts[0] == texts[1]

    def test_and_again_when_it_is_rebuilt(self, fresh: PhiTransformers) -> None:
        class Beast(BaseModel):
            kind: Literal["cat", "dog"]

        before = fresh.table(Beast)
        Beast.model_fields["kind"].annotation = Literal["cat", "dog", "owl"]  # type: ignore[assignment]
        Beast.model_rebuild(force=True)
        assert fresh.table(Beast) is not before
        found = Generator(fresh, Beast).mode(MONDAY, top=1000, max_new_tokens=16, effort=EFFORT)
        assert {text.split('"')[3] for text in found.texts} == {"cat", "dog", "owl"}

    def test_what_is_kept_is_bounded(self, fresh: PhiTransformers) -> None:
        class Base(BaseModel):
            x: Literal[1]

        for i in range(compiled.KEPT + 5):
            fresh.table(Literal["a", f"b{i}"])  # type: ignore[valid-type]
            fresh.table(type(f"Model{i}", (Base,), {}))
        assert kept(fresh) == (compiled.KEPT, compiled.KEPT_BYTES // compiled.LEAST_BYTES)


def test_threads_that_ask_for_the_same_share_one_compilation(
    model: PhiTransformers, work: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_in_parts = compiled.compile_in_parts

    def slow(pattern: str) -> Any:
        time.sleep(0.02)  # every thread is inside by then, where it may be
        return compile_in_parts(pattern)

    monkeypatch.setattr(compiled, "compile_in_parts", slow)
    types = CompiledTypes(model.lm.vocabulary)
    assert (len(set(together(*[lambda: types.of(ANSWER)] * 4))), work["compile_in_parts"], work["lift"]) == (1, 1, 1)


def test_threads_may_evict_what_others_compile(model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KEPT", 1)
    types, of = CompiledTypes(model.lm.vocabulary), Cache.of

    def slow(*arguments: Any) -> Any:
        time.sleep(0.001)  # the others evict what is about to be read, where they may
        return of(*arguments)

    monkeypatch.setattr(Cache, "of", slow)

    def ask(language: Any) -> list[str]:
        return [types.of(language).guide.automaton.shortest() for _ in range(8)]  # type: ignore[attr-defined]

    languages = Literal["a", "b"], Literal["c", "d"], Literal["e", "f"]
    assert together(*(partial(ask, language) for language in languages)) == [
        [first] * 8 for first in (b"a", b"c", b"e")
    ]


class TestOverhead:
    """Of calls that the model has nothing to do in; times are in ``benchmarks/overhead.py``."""

    @pytest.mark.parametrize("phi", ["exact", "auto"])
    def test_a_warm_finite_type_takes_no_model_call(
        self, phi: str, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fresh(MONDAY, ANSWER, phi=phi)
        forward = Mock(side_effect=Forward.__call__)
        monkeypatch.setattr(Forward, "__call__", lambda *arguments, **keywords: forward(*arguments, **keywords))
        for _ in range(3):
            fresh(MONDAY, ANSWER, phi=phi)
        assert forward.call_count == 0
        fresh(MONDAY, ANSWER, phi=phi, seed=1)
        assert forward.call_count == 1
        with Gate(fresh.model) as gate:  # what a hook does may change: the prompt is compared
            for calls in (1, 2):
                fresh(MONDAY, ANSWER, phi=phi)
                assert gate.calls == calls

    def test_a_call_does_not_pay_for_what_is_kept_of_others(self, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, ANSWER, phi="exact")
        call = partial(generator, MONDAY)
        call()
        alone = entered(call, c_calls=True).total()
        generator.sample_batch([f"Question {i}: " for i in range(200)])
        assert len(trees(fresh)) == 201
        assert entered(call, c_calls=True).total() < alone + 100
        assert alone < 4_000  # about a third of it to read what the law of the model depends on


def test_nothing_is_left_of_mixed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 10,000 calls of ``benchmarks/memory.py``, in small: what is kept stays under its bounds, and nothing else is."""
    monkeypatch.setattr(compiled, "KEPT", 8)
    monkeypatch.setattr(compiled, "KEPT_BYTES", 8 * compiled.LEAST_BYTES)
    model = from_transformers(*bundled.load(), max_tree_bytes=2**18)
    model.compiled = CompiledTypes(model.lm.vocabulary)
    traffic = Traffic(model)
    threads = workers()
    counts = []
    for number in range(100):
        traffic.call(number)
        assert model._trees.bytes <= 2**18
        assert workers() == threads
        if number in (49, 99):
            counts.append(_objects())
    assert traffic.cancelled and traffic.refused
    first, last = counts
    for kind, most in ((BoundsTree, 30), (Table, 4), (Node, 600), (Prefix, 60)):
        assert last[kind] <= first[kind] + most, kind
    assert kept(model)[1] <= compiled.KEPT


def _objects() -> Counter[type]:
    gc.collect()
    return Counter(map(type, gc.get_objects()))


def entered(call: Callable[[], object], *, c_calls: bool = False) -> Counter[tuple[str, str]]:
    """Count the entries of a call into each function, by file and name: those of the package, or all with those written in C."""
    count: Counter[tuple[str, str]] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and (c_calls or "outlines_phi" in code.co_filename) or (c_calls and event == "c_call"):
            count[code.co_filename, code.co_name] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


COLOURS = "red green blue yellow orange purple black white brown pink grey cyan gold silver navy teal".split()


class TestFunctions:
    """Functions that a call goes through: each bound is the measured number, and a little."""

    def test_of_an_exact_call(
        self, model: PhiTransformers, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(streaming, "SLOW", 1e9)  # a busy machine says that the call is slow
        other = from_transformers(*bundled.load())
        *_, call = calls = [
            partial(m, "New character: Aria. JSON: ", Character, phi="exact") for m in (model, other, fresh)
        ]
        counts = []
        for each in calls:
            torch.manual_seed(3)  # the same draws meet the same states
            counts.append(len(entered(each)))
        _, known, cold = counts  # the first makes what is kept for all models of a kind
        # Of another model with the vocabulary, and of one whose languages are compiled anew.
        assert known <= 410 and cold <= 725
        call(num_return_sequences=1000)
        warm = min((entered(call) for _ in range(5)), key=len)
        assert len(warm) <= 150 and sum("outlines_phi/plugin" in file for file, _ in warm) <= 42

    def test_of_the_probabilities_of_a_choice(self, fresh: PhiTransformers) -> None:
        generator = Generator(fresh, Literal[tuple(COLOURS)])  # type: ignore[valid-type]
        count = entered(partial(generator.probabilities, "Favourite colour: "))
        assert count.total() <= 12_000
        rows = sum(times for (file, name), times in count.items() if "table.py" in file and name == "moves")
        assert rows < 300, "members are listed by their bytes, not by the rows of all tokenizations"


SOON = Literal["yes", "no", "not now"]


def hooked(model: PhiTransformers) -> Callable[[], None]:
    """Scale the last hidden state by a factor, which the returned function changes."""
    factor = [1.0]

    def scale(module: Any, arguments: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state * factor[0]
        return output

    model.model.get_decoder().register_forward_hook(scale)
    return partial(factor.__setitem__, 0, 0.25)


DOORS: dict[str, Callable[[Any], Any]] = {
    "exact draws": lambda generator: generator.sample(SUNDAY, n=200, phi="exact"),
    "automatic draws": lambda generator: generator.sample(SUNDAY, n=200, phi="auto"),
    "probabilities": lambda generator: generator.probabilities(SUNDAY),
    "mode": lambda generator: generator.mode(SUNDAY),
}


def share(generator: Any) -> float:
    return generator.probabilities(SUNDAY)["yes"].p


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
def test_what_a_hook_does_may_change(fresh: PhiTransformers, door: Callable[[Any], Any]) -> None:
    change, generator = hooked(fresh), Generator(fresh, SOON)
    before, version = share(generator), fresh.lm.version()
    change()
    assert fresh.lm.version() == version
    door(generator)
    after = share(generator)
    fresh.clear_cache()
    assert after == near(share(generator)) and abs(after - before) > 0.02


def test_draws_after_a_change_have_the_new_law(fresh: PhiTransformers) -> None:
    change, generator = hooked(fresh), Generator(fresh, SOON)
    before = share(generator)
    generator.sample(SUNDAY, n=50, phi="exact")
    change()
    found, after = generator.sample(SUNDAY, n=2000, phi="exact").texts.count("yes") / 2000, share(generator)
    assert abs(found - after) < 5 * (after * (1 - after) / 2000) ** 0.5 < abs(before - after)


def test_without_the_comparison_the_old_law_is_served(fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the tests above tell the laws apart."""
    change, generator = hooked(fresh), Generator(fresh, SOON)
    before = share(generator)
    monkeypatch.setattr(BoundsTree, "drift", lambda *_: 0.0)
    change()
    assert share(generator) == before


def test_a_write_that_no_version_tells(fresh: PhiTransformers) -> None:
    """Rows written through ``.data``, none of whose numbers are read: seen where the model is asked at all."""
    generator = Generator(fresh, regex("yes|[a-z]{4,9}"), phi="exact")
    version = fresh.lm.version()
    generator.sample(SUNDAY, n=1, max_new_tokens=12)
    (tree,) = trees(fresh)
    fresh.model.get_output_embeddings().weight.data[600:630].mul_(0.25)
    assert fresh.lm.version() == version
    assert generator.sample(SUNDAY, n=100, temperature=1.0, max_new_tokens=12).counts.calls > 0
    assert tree not in trees(fresh)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_change(dtype: torch.dtype) -> None:
    """A tree that was grown in other company is kept."""
    model = from_transformers(*bundled.load(dtype))
    hooked(model)
    generator = Generator(model, SOON, phi="exact")
    generator.sample_batch(["Question: ", SUNDAY, "New character: Aria. JSON: " * 9], n=3)
    known = trees(model)
    assert generator.sample(SUNDAY, n=50).counts.calls > 0
    assert trees(model) == [known[0], known[2], known[1]]
