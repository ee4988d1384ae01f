"""Stock Outlines calls that carry ``phi=``, with nothing of Outlines patched."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any, Literal

import outlines
import pytest
import torch
from outlines.inputs import Chat
from outlines.types import regex
from outlines.types.dsl import CFG
from pydantic import BaseModel

import outlines_phi
from outlines_phi import PhiTransformers
from outlines_phi.lm import bundled
from outlines_phi.plugin.types import tables as compiled
from outlines_phi.sampling.draw import Guarantee
from outlines_phi.sampling.draws import Draws

PROMPT = "A person as JSON: "
NUMBER = regex("[0-9]{2,3}")
COLOUR = Literal["red", "green", "dark green"]


class Character(BaseModel):
    kind: Literal["elf", "dwarf"]
    level: Literal[1, 2, 3]


def is_number(text: str) -> bool:
    return re.fullmatch("[0-9]{2,3}", text) is not None


def is_colour(text: str) -> bool:
    return text in ("red", "green", "dark green")


def is_character(text: str) -> bool:
    return isinstance(Character.model_validate_json(text), Character)


TYPES = [(NUMBER, is_number), (COLOUR, is_colour), (Character, is_character)]

ROADS: dict[str, Callable[..., str]] = {
    "model": lambda model, prompt, output_type, **k: model(prompt, output_type, **k),
    "model.batch": lambda model, prompt, output_type, **k: model.batch([prompt], output_type, **k)[0],
    "Generator": lambda model, prompt, output_type, **k: outlines.Generator(model, output_type)(prompt, **k),
    "Generator.batch": lambda model, prompt, output_type, **k: outlines.Generator(model, output_type).batch(
        [prompt], **k
    )[0],
    "Application": lambda model, prompt, output_type, **k: outlines.Application("{text}".format, output_type)(
        model, {"text": prompt}, **k
    ),
    "Template": lambda model, prompt, output_type, **k: outlines.Application(
        outlines.Template.from_string("{{ text }}"), output_type
    )(model, {"text": prompt}, **k),
    "outlines_phi.Generator": lambda model, prompt, output_type, **k: outlines_phi.Generator(model, output_type)(
        prompt, **k
    ),
}


def chat_model(**options: Any) -> PhiTransformers:
    hf_model, tokenizer = bundled.load()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    return outlines_phi.from_transformers(hf_model, tokenizer, **options)


class TestRoads:
    @pytest.mark.in_turn
    @pytest.mark.parametrize(("output_type", "holds"), TYPES, ids=["regex", "Literal", "pydantic"])
    @pytest.mark.parametrize("road", ROADS.values(), ids=list(ROADS))
    @pytest.mark.parametrize(("phi", "guarantee"), [("exact", Guarantee.EXACT), ("local", Guarantee.WEIGHTED)])
    def test_every_road_draws(
        self,
        road: Callable[..., str],
        output_type: Any,
        holds: Callable[[str], bool],
        phi: str,
        guarantee: Guarantee,
        model: PhiTransformers,
        drawn: list[Draws],
    ) -> None:
        text = road(model, PROMPT, output_type, phi=phi, seed=1)
        assert holds(text)
        (draws,) = drawn
        assert (draws.texts, draws.guarantee, draws.counts.accepted) == ([text], guarantee, 1)

    def test_a_seed_gives_one_result_on_every_road(self, model: PhiTransformers) -> None:
        texts = {name: road(model, PROMPT, NUMBER, phi="local", seed=4) for name, road in ROADS.items()}
        assert len(set(texts.values())) == 1, texts

    @pytest.mark.parametrize("phi", ["exact", "local", "onestep"])
    def test_several_draws_are_a_list(self, phi: str, model: PhiTransformers, drawn: list[Draws]) -> None:
        texts = model(PROMPT, NUMBER, phi=phi, num_return_sequences=5, seed=0)
        assert isinstance(texts, list) and len(texts) == 5 and all(map(is_number, texts))
        assert len(drawn[0]) == 5
        rows = model.batch([PROMPT, "no"], NUMBER, phi=phi, num_return_sequences=3, seed=0)
        assert [len(row) for row in rows] == [3, 3]

    def test_one_draw_is_a_text_as_in_stock_outlines(self, model: PhiTransformers) -> None:
        assert isinstance(model(PROMPT, COLOUR, phi="exact", num_return_sequences=1), str)

    @pytest.mark.parametrize("size", [1, 17])
    def test_batches(self, size: int, model: PhiTransformers) -> None:
        prompts = [f"{i} people: " for i in range(size)]
        texts = model.batch(prompts, COLOUR, phi="exact")
        assert len(texts) == size and all(map(is_colour, texts))

    @pytest.mark.parametrize("phi", ["exact", None])
    def test_an_empty_batch_is_empty(self, phi: str | None, model: PhiTransformers) -> None:
        assert model.batch([], COLOUR, phi=phi) == []
        assert outlines.Generator(model, COLOUR).batch([], phi=phi) == []

    @pytest.mark.parametrize("prompt", ["\x00", "🦊 العربية \u202e", "e\u0301 é", "   ", "\r\n\t"])
    def test_prompts_may_be_odd(self, prompt: str, model: PhiTransformers) -> None:
        assert is_colour(model(prompt, COLOUR, phi="exact"))


class TestPrompts:
    def test_a_chat_goes_through_the_template(self) -> None:
        model, plain = chat_model(), outlines_phi.from_transformers(*bundled.load())
        chat = Chat([{"role": "system", "content": "Be short."}, {"role": "user", "content": PROMPT}])
        expected = plain(f"system: Be short.\nuser: {PROMPT}\nassistant: ", NUMBER, phi="local", seed=3)
        assert model(chat, NUMBER, phi="local", seed=3) == expected
        assert outlines.Generator(model, NUMBER).batch([chat], phi="local", seed=3) == [expected]

    def test_a_text_is_a_user_message_where_there_is_a_template(self) -> None:
        chat = Chat([{"role": "user", "content": PROMPT}])
        assert chat_model()(PROMPT, Character, phi="local", seed=3) == chat_model()(
            chat, Character, phi="local", seed=3
        )


class TestDefault:
    def test_phi_given_at_wrap_is_the_default(self) -> None:
        model = outlines_phi.wrap(outlines.from_transformers(*bundled.load()), phi="exact")
        text = outlines.Generator(model, COLOUR)(PROMPT, seed=2)
        assert text == model(PROMPT, COLOUR, seed=2) == model(PROMPT, COLOUR, phi="exact", seed=2)

    def test_a_call_overrides_it(self, stock: outlines.models.Transformers) -> None:
        model = outlines_phi.from_transformers(*bundled.load(), phi="exact")
        torch.manual_seed(5)
        text = model(PROMPT, NUMBER, phi=None, max_new_tokens=9)
        torch.manual_seed(5)
        assert text == stock(PROMPT, NUMBER, max_new_tokens=9)

    def test_it_leaves_free_text_alone(self, stock: outlines.models.Transformers) -> None:
        model = outlines_phi.from_transformers(*bundled.load(), phi="exact")
        torch.manual_seed(5)
        text = model(PROMPT, max_new_tokens=9)
        torch.manual_seed(5)
        assert text == stock(PROMPT, max_new_tokens=9)

    def test_wrap_leaves_the_original_as_it_is(self) -> None:
        original = outlines.from_transformers(*bundled.load())
        before = dict(vars(original))
        wrapped = outlines_phi.wrap(original)
        assert vars(original) == before
        assert isinstance(wrapped, outlines.models.Transformers)
        assert outlines_phi.wrap(wrapped, phi="exact").model is original.model


class TestSeeds:
    @pytest.mark.parametrize("phi", ["exact", "local"])
    def test_a_seeded_call_does_not_depend_on_what_ran_before(self, phi: str, fresh: PhiTransformers) -> None:
        first = fresh(PROMPT, NUMBER, phi=phi, seed=11, num_return_sequences=4)
        fresh(PROMPT, NUMBER, phi=phi, num_return_sequences=3)
        fresh("something else", COLOUR, phi=phi)
        assert fresh(PROMPT, NUMBER, phi=phi, seed=11, num_return_sequences=4) == first
        fresh.clear_cache()
        assert fresh(PROMPT, NUMBER, phi=phi, seed=11, num_return_sequences=4) == first
        assert fresh(PROMPT, NUMBER, phi=phi, seed=12, num_return_sequences=4) != first

    @pytest.mark.parametrize("phi", ["exact", "local"])
    def test_without_a_seed_torch_decides(self, phi: str) -> None:
        texts = []
        for seed in (0, 0, 1):
            model = outlines_phi.from_transformers(*bundled.load())
            torch.manual_seed(seed)
            texts.append([model(PROMPT, NUMBER, phi=phi) for _ in range(4)])
        assert texts[0] == texts[1] != texts[2]
        assert len(set(texts[0])) > 1

    @pytest.mark.parametrize("phi", ["exact", "local"])
    def test_a_batch_of_one_is_the_single_call(self, phi: str, model: PhiTransformers) -> None:
        for seed in range(5):
            assert model.batch([PROMPT], NUMBER, phi=phi, seed=seed) == [model(PROMPT, NUMBER, phi=phi, seed=seed)]

    def test_equal_rows_of_a_batch_draw_independently(self, model: PhiTransformers) -> None:
        texts = model.batch([PROMPT] * 8, NUMBER, phi="local", seed=0)
        assert all(map(is_number, texts)) and len(set(texts)) > 1


class TestCompiled:
    @pytest.fixture
    def compilations(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The names of what was compiled, lifted or read, in order."""
        record: list[str] = []
        for name in ("compile_in_parts", "from_index"):
            build = getattr(compiled, name)
            monkeypatch.setattr(compiled, name, lambda x, *, n=name, b=build: record.append(n) or b(x))
        lift = compiled.FSMGuide.from_automaton
        monkeypatch.setattr(compiled.FSMGuide, "from_automaton", lambda *a: record.append("lift") or lift(*a))
        return record

    def test_a_type_is_compiled_once(self, fresh: PhiTransformers, compilations: list[str]) -> None:
        for phi in ("exact", None, "local"):
            fresh(PROMPT, NUMBER, phi=phi, max_new_tokens=30)
            fresh.batch([PROMPT], NUMBER, phi=phi, max_new_tokens=30)
        outlines_phi.Generator(fresh, NUMBER)(PROMPT)
        assert compilations == ["compile_in_parts", "lift"]
        fresh.clear_cache()
        fresh(PROMPT, NUMBER, phi="exact")
        assert compilations == ["compile_in_parts", "lift"] * 2

    def test_a_stock_generator_is_lifted_once(self, fresh: PhiTransformers, compilations: list[str]) -> None:
        generator = outlines.Generator(fresh, Character)
        for phi in ("exact", None, "local"):
            generator(PROMPT, phi=phi, max_new_tokens=30)
        assert compilations == ["from_index", "lift"]
        outlines.Generator(fresh, Character)(PROMPT, phi="exact")
        assert compilations == ["from_index", "lift", "from_index"], "an equal index is read, and its lift is shared"

    def test_a_processor_does_not_outlive_its_generator(self, fresh: PhiTransformers) -> None:
        generator = outlines.Generator(fresh, COLOUR)
        generator(PROMPT, phi="exact")
        processor = weakref.ref(generator.logits_processor)
        del generator
        gc.collect()
        assert processor() is None

    def test_what_is_kept_is_bounded(self, fresh: PhiTransformers, compilations: list[str]) -> None:
        for i in range(compiled.KEPT + 1):
            fresh.table(Literal[i, -1])
        fresh.table(Literal[1, -1])
        assert compilations.count("lift") == compiled.KEPT + 1
        fresh.table(Literal[0, -1])
        assert compilations.count("lift") == compiled.KEPT + 2


def test_another_backend_is_left_alone_without_phi(model: PhiTransformers) -> None:
    pytest.importorskip("llguidance")
    assert is_colour(model(PROMPT, COLOUR, backend="llguidance", max_new_tokens=9))
    assert model(PROMPT, CFG('start: "a"'), max_new_tokens=9) == "a"
