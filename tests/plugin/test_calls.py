"""The cost of repeated calls: nothing is compiled twice, nothing grows with what is kept, nothing is left behind."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Literal

import outlines
import pytest
from outlines.types import regex
from outlines.types.dsl import Choice, JsonSchema
from pydantic import BaseModel

import outlines_phi
from benchmarks.traffic import Traffic
from outlines_phi import PhiTransformers
from outlines_phi.guides import Table, fsm
from outlines_phi.lm import bundled
from outlines_phi.lm.transformers.forward import Forward
from outlines_phi.numerics.cache import Cache
from outlines_phi.phi.tree.tree import BoundsTree, Node
from outlines_phi.plugin.processor import Prefix
from outlines_phi.plugin.types import tables as compiled
from outlines_phi.plugin.types.output_types import JSONText
from outlines_phi.plugin.types.tables import CompiledTypes
from tests.plugin.gate import Gate, workers

PROMPT = "Question: is the bakery open on Monday? Answer: "
ANSWER = Literal["yes", "no"]
EFFORT = outlines_phi.Effort(tokens=20_000)


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

    def counted(module: Any, name: str) -> None:
        stage = getattr(module, name)

        def counting(*arguments: Any) -> Any:
            count[name] += 1
            return stage(*arguments)

        monkeypatch.setattr(module, name, counting)

    for module, name in ((compiled, "to_language"), (compiled, "compile_in_parts"), (fsm, "lift"), (JSONText, "guide")):
        counted(module, name)
    return count


class TestCompilation:
    @pytest.mark.filterwarnings("ignore::outlines_phi.FidelityWarning")
    @pytest.mark.parametrize("output_type", [ANSWER, Tame, bool], ids=["choice", "pydantic", "bool"])
    def test_every_road_shares_one(self, output_type: Any, fresh: PhiTransformers, work: Counter[str]) -> None:
        options = {"max_new_tokens": 30}
        for _ in range(2):
            fresh(PROMPT, output_type, phi="exact", **options)
            fresh(PROMPT, output_type, phi="local", **options)
            fresh(PROMPT, output_type, phi=None, **options)
            fresh.batch([PROMPT, "no"], output_type, phi="onestep", **options)
            "".join(fresh.stream(PROMPT, output_type, phi="local", **options))
            "".join(fresh.stream(PROMPT, output_type, phi=None, **options))
            generator = outlines_phi.Generator(fresh, output_type, phi="exact")
            generator(PROMPT, **options)
            generator.sample_batch([PROMPT, "no"], 3, **options)
            outlines_phi.generate.format(fresh, output_type)(PROMPT, max_tokens=30)
        regular = output_type is not Tame
        assert (work["compile_in_parts"], work["lift"], work["guide"]) == (
            regular,
            1,
            not regular,
        )  # plain JSON is Outlines'
        for _ in range(2):  # what Outlines has compiled itself is lifted as it is, once for all generators of a type
            stock = outlines.Generator(fresh, output_type)
            stock(PROMPT, phi="exact", **options)
            stock.batch([PROMPT, "no"], phi="local", **options)
            stock(PROMPT, phi=None, **options)
        assert (work["compile_in_parts"], work["lift"]) == (regular, 1 + regular)
        fresh.clear_cache()
        fresh(PROMPT, output_type, phi="exact", **options)
        assert (work["compile_in_parts"], work["lift"]) == (2 * regular, 1 + 2 * regular)
        assert work["guide"] == 2 * (not regular)

    def test_equal_types_written_differently(self, fresh: PhiTransformers, work: Counter[str]) -> None:
        written = [ANSWER, Literal["no", "yes"], Answer, Choice(["yes", "no"]), regex("no|yes"), regex("(yes)|no")]
        tables = {fresh.table(output_type) for output_type in written}
        assert len(tables) == work["lift"] == 1
        assert fresh.table(Literal["yes", "no", "maybe"]) not in tables

    def test_equal_schemas_written_differently(self, fresh: PhiTransformers, work: Counter[str]) -> None:
        written = [JsonSchema(Pet.model_json_schema()), JsonSchema(Pet)]
        tables = {fresh.table(output_type) for output_type in written}
        assert len(tables) == work["guide"] == 1
        assert fresh.table(Pet) not in tables, "a model writes the keys that it has, and no others"

    def test_a_pydantic_model_is_written_as_a_pattern_once(self, fresh: PhiTransformers, work: Counter[str]) -> None:
        for _ in range(3):
            fresh(PROMPT, Pet, phi="exact", max_new_tokens=30)
        assert work["to_language"] == 1

    def test_and_again_when_it_is_rebuilt(self, fresh: PhiTransformers) -> None:
        class Beast(BaseModel):
            kind: Literal["cat", "dog"]

        before = fresh.table(Beast)
        Beast.model_fields["kind"].annotation = Literal["cat", "dog", "owl"]  # type: ignore[assignment]
        Beast.model_rebuild(force=True)
        assert fresh.table(Beast) is not before
        found = outlines_phi.Generator(fresh, Beast).mode(PROMPT, top=1000, max_new_tokens=16, effort=EFFORT)
        assert {text.split('"')[3] for text in found.texts} == {"cat", "dog", "owl"}

    def test_what_is_kept_is_bounded(self, fresh: PhiTransformers) -> None:
        class Base(BaseModel):
            x: Literal[1]

        for i in range(compiled.KEPT + 5):
            fresh.table(Literal["a", f"b{i}"])  # type: ignore[valid-type]
            fresh.table(type(f"Model{i}", (Base,), {}))
        assert len(fresh.compiled._languages) == compiled.KEPT
        assert len(fresh.compiled._tables) == compiled.KEPT_BYTES // compiled.LEAST_BYTES


class TestThreads:
    def test_that_ask_for_the_same_share_one_compilation(
        self, model: PhiTransformers, work: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compile_in_parts = compiled.compile_in_parts

        def slow(pattern: str) -> Any:
            time.sleep(0.02)  # every thread is inside by then, where it may be
            return compile_in_parts(pattern)

        monkeypatch.setattr(compiled, "compile_in_parts", slow)
        types = CompiledTypes(model.lm.vocabulary)
        tables = _together([lambda: types.of(ANSWER)] * 4)
        assert len(set(tables)) == 1
        assert (work["compile_in_parts"], work["lift"]) == (1, 1)

    def test_that_evict_one_another(self, model: PhiTransformers, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "KEPT", 1)
        types = CompiledTypes(model.lm.vocabulary)
        of = Cache.of

        def slow(*arguments: Any) -> Any:
            time.sleep(0.001)  # the others evict what is about to be read, where they may
            return of(*arguments)

        monkeypatch.setattr(Cache, "of", slow)
        languages = [Literal["a", "b"], Literal["c", "d"], Literal["e", "f"]]

        def ask(language: Any) -> list[str]:
            return [types.of(language).guide.automaton.shortest() for _ in range(8)]  # type: ignore[attr-defined]

        found = _together([lambda language=language: ask(language) for language in languages])  # type: ignore[misc]
        assert found == [[first] * 8 for first in (b"a", b"c", b"e")]


class TestOverhead:
    """Of calls that the model has nothing to do in; times are in ``benchmarks/overhead.py``."""

    @pytest.mark.parametrize("phi", ["exact", "auto"])
    def test_a_warm_finite_type_takes_no_model_call(
        self, phi: str, fresh: PhiTransformers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fresh(PROMPT, ANSWER, phi=phi)
        calls, forward = Counter[str](), Forward.__call__

        def counting(*arguments: Any, **keywords: Any) -> Any:
            calls["model"] += 1
            return forward(*arguments, **keywords)

        monkeypatch.setattr(Forward, "__call__", counting)
        for _ in range(3):
            fresh(PROMPT, ANSWER, phi=phi)
        assert calls["model"] == 0
        fresh(PROMPT, ANSWER, phi=phi, seed=1)
        assert calls["model"] == 1
        with Gate(fresh.model) as gate:  # what a hook does may change: the prompt is compared
            fresh(PROMPT, ANSWER, phi=phi)
            assert gate.calls == 1
            fresh(PROMPT, ANSWER, phi=phi)
            assert gate.calls == 2

    def test_a_call_does_not_pay_for_what_is_kept_of_others(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, ANSWER, phi="exact")
        call = lambda: generator(PROMPT)  # noqa: E731
        call()
        alone = _steps(call)
        generator.sample_batch([f"Question {i}: " for i in range(200)])
        assert len(fresh._trees) == 201
        assert _steps(call) < alone + 100
        assert alone < 4_000  # about a third of it to read what the law of the model depends on


class TestMemory:
    def test_nothing_is_left_of_mixed_calls(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The 10,000 calls of ``benchmarks/memory.py``, in small: what is kept stays under its bounds, and nothing else is."""
        monkeypatch.setattr(compiled, "KEPT", 8)
        monkeypatch.setattr(compiled, "KEPT_BYTES", 8 * compiled.LEAST_BYTES)
        model = outlines_phi.from_transformers(*bundled.load(), max_tree_bytes=2**18)
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
        assert len(model.compiled._tables) <= compiled.KEPT


def _together(works: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of ``works``, each done in a thread of its own and all begun at once."""
    results: list[Any] = [None] * len(works)
    start = threading.Barrier(len(works))

    def work(index: int) -> None:
        start.wait()
        try:
            results[index] = works[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def _steps(call: Callable[[], object]) -> int:
    """Return the number of functions that ``call`` calls, those written in C included."""
    count = 0

    def step(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(step)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def _objects() -> Counter[type]:
    gc.collect()
    return Counter(map(type, gc.get_objects()))


def _functions(call: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Return the number of entries of each function of the package in a call, by file and name."""
    entered: Counter[tuple[str, str]] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "outlines_phi" in frame.f_code.co_filename:
            entered[frame.f_code.co_filename, frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


class Character(BaseModel):
    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Literal["wizard", "rogue", "healer", "ranger captain"]
    level: Literal[1, 2, 3, 4, 5, 6, 7, 8, 9]
    alive: bool


COLOURS = "red green blue yellow orange purple black white brown pink grey cyan gold silver navy teal".split()


class TestFunctions:
    """Functions that a call goes through: each bound is the measured number, and a little."""

    def test_of_an_exact_call(self, model: PhiTransformers, fresh: PhiTransformers) -> None:
        call = partial(fresh, "New character: Aria. JSON: ", Character, phi="exact")
        model("New character: Aria. JSON: ", Character, phi="exact")  # what is kept for all models of a kind
        assert len(_functions(call)) <= 805, "cold"
        call(num_return_sequences=1000)
        warm = min((_functions(call) for _ in range(5)), key=len)
        assert len(warm) <= 190
        assert sum("outlines_phi/plugin" in file for file, _ in warm) <= 47

    def test_of_the_probabilities_of_a_choice(self, fresh: PhiTransformers) -> None:
        generator = outlines_phi.Generator(fresh, Literal[tuple(COLOURS)])  # type: ignore[valid-type]
        entered = _functions(partial(generator.probabilities, "Favourite colour: "))
        assert entered.total() <= 12_000
        rows = sum(times for (file, name), times in entered.items() if "table.py" in file and name == "moves")
        assert rows < 300, "members are listed by their bytes, not by the rows of all tokenizations"
