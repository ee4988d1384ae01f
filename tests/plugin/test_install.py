"""``phi=`` and the classic API under Outlines' own names, and all of it taken back; the examples of Outlines' own pages."""

import gc
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import weakref
from collections.abc import Callable, Iterator
from datetime import date, datetime
from enum import Enum
from functools import partial
from itertools import product
from types import ModuleType
from typing import Any, List, Literal, Optional, Union  # noqa: UP035 - as the examples have it

import outlines
import pytest
from outlines.models.transformers import Transformers
from outlines.types import email, hex_str, integer, regex
from outlines.types.dsl import Choice, at_least, between, either, exactly, optional
from pydantic import BaseModel

from outlines_phi import ExactPhi, Generator, PhiTransformers, generate, install, samplers, uninstall, wrap
from tests.inner import MaskLogitsProcessor, bundled
from tests.inner import install as install_module
from tests.plugin.instruments import seeded, together
from tests.precision import named
from tests.refusals import refused

PROMPT, WORDS = "Question: is the bakery open on Monday? Answer: ", ["yes", "no", "not now", "nobody"]

STOCK = outlines.generator.Generator
NUMBER = regex("[0-9]{2}")


class Answer(BaseModel):
    open: bool


@pytest.fixture
def installed() -> Iterator[None]:
    install()
    yield
    uninstall()


def names() -> dict[str, dict[str, Any]]:
    """Everything that the modules of Outlines hold, and which modules there are."""
    modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "outlines"}
    return {name: dict(vars(module)) for name, module in modules.items()}


def same(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].keys() == other[name].keys() and all(one[name][key] is other[name][key] for key in one[name])
        for name in one
    )


def repeated(call: Callable[[], None]) -> None:
    for _ in range(50):
        call()


class TestBindings:
    def test_both_are_idempotent_and_uninstall_restores_the_very_same_objects(self) -> None:
        before = names()
        uninstall()
        assert same(before, names())
        install()
        inside = names()
        install()
        assert same(inside, names()) and not same(before, inside)
        for _ in range(2):
            uninstall()
            assert same(before, names())

    def test_only_what_is_named_changes(self) -> None:
        before = names()
        install()
        after = names()
        uninstall()
        changed = {
            f"{module}.{key}"
            for module in after.keys() - {"outlines.generate", "outlines.samplers"}
            for key in after[module].keys() | before.get(module, {}).keys()
            if after[module].get(key) is not before[module].get(key)
        }
        holders = "outlines", "outlines.generator", "outlines.applications"
        assert changed == {"outlines.generate", "outlines.samplers", *(f"{holder}.Generator" for holder in holders)}

    @pytest.mark.usefixtures("installed")
    def test_every_way_to_import_works(self) -> None:
        space: dict[str, Any] = {}
        exec(
            "import outlines.generate\nfrom outlines import generate, samplers\nfrom outlines.generate import json",
            space,
        )
        exec("from outlines.samplers import multinomial, greedy, beam_search\nfrom outlines import Generator", space)
        assert space["generate"] is outlines.generate and space["json"] is outlines.generate.json
        assert space["greedy"] is samplers.greedy
        assert importlib.import_module("outlines.generate") is outlines.generate
        assert importlib.util.find_spec("outlines.generate") is not None
        assert "phi" in inspect.signature(space["Generator"]).parameters
        for name in generate.__all__:
            ours, theirs = getattr(generate, name), getattr(outlines.generate, name)
            assert inspect.signature(ours) == inspect.signature(theirs) and theirs.__doc__ == ours.__doc__

    def test_many_threads(self) -> None:
        before = names()
        assert together(*[partial(repeated, install if i % 2 else uninstall) for i in range(8)]) == [None] * 8
        uninstall()
        assert same(before, names())


class TestRefused:
    @pytest.mark.parametrize("version", ["0.2.3", "1.2.9", "2.0.0", "2.1"])
    def test_a_version_that_is_not_known(self, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
        before = names()
        refused(rf"knows outlines 1\.3 and later, below 2\.0.*outlines {version} is", install)
        assert same(before, names())

    @pytest.mark.parametrize("version", ["1.3.0", "1.10.0rc1", "1.3.3.dev0+local"])
    def test_a_version_that_is_known(self, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
        install()
        uninstall()

    def test_a_generator_of_another_signature(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(install_module, "PARAMETERS", ("model", "output_type"))
        refused("whose Generator takes", install)
        assert outlines.Generator is STOCK

    def test_somebody_else_was_there_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outlines.applications, "Generator", len)
        refused(r"Undo what put outlines\.Generator there", install)
        monkeypatch.undo()
        monkeypatch.setitem(sys.modules, "outlines.generate", ModuleType("outlines.generate"))
        refused(r"Undo what put outlines\.generate there", install)
        assert outlines.Generator is STOCK and not hasattr(outlines, "samplers")

    def test_somebody_else_came_after(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install()
        ours = outlines.Generator
        outlines.generator.Generator = len
        refused("Undo what replaced something of what install", uninstall)
        assert outlines.Generator is ours and outlines.generate
        outlines.generator.Generator = ours
        uninstall()
        assert outlines.generator.Generator is STOCK


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_type": NUMBER, "backend": "regex"}, "backend='regex' was given; expected one of outlines_core"),
    ({"output_type": NUMBER, "phi": "banana"}, "phi='banana' was given"),
    ({}, "output_type=None was given"),
    ({"model": object(), "output_type": NUMBER}, "object was given as model; expected a model made by"),
    *(
        ({"output_type": NUMBER, "phi": None, option: None}, f"{option} cannot be used here.* Give phi='auto' or")
        for option in ("constraint", "sampler", "tokenization", "draft")
    ),
]


@pytest.mark.usefixtures("installed")
class TestGenerator:
    def test_without_phi_it_is_the_stock_one(self, stock: Transformers) -> None:
        generator, reference = (make(stock, NUMBER) for make in (outlines.Generator, STOCK))
        processor = reference.logits_processor
        assert type(generator) is type(reference) and type(generator.logits_processor) is type(processor)
        assert seeded(generator, PROMPT, max_new_tokens=9) == seeded(reference, PROMPT, max_new_tokens=9)
        assert outlines.Generator(stock, processor=processor).logits_processor is processor
        for phi in ({}, {"phi": None}):
            assert type(outlines.Generator(stock, Choice(["a"]), "outlines_core", **phi)) is type(reference)
        refused(
            "At most one of output_type or processor",
            outlines.Generator,
            stock,
            NUMBER,
            processor=processor,
            error=ValueError,
        )
        refused("must be an instance of", outlines.Generator, 3, NUMBER, error=ValueError)

    def test_calls_of_the_stock_model_are_as_ever(self, stock: Transformers) -> None:
        text = seeded(stock, PROMPT, NUMBER, max_new_tokens=9)
        uninstall()
        assert text == seeded(stock, PROMPT, NUMBER, max_new_tokens=9)
        install()
        refused("phi", stock, PROMPT, NUMBER, max_new_tokens=9, phi="exact", error=ValueError)

    def test_wrapped_models(self, model: PhiTransformers) -> None:
        generator = outlines.Generator(model, NUMBER, phi=ExactPhi(tolerance=1e-6))
        assert generator.model is model and generator.phi == ExactPhi(tolerance=1e-6)
        assert isinstance(outlines.Generator(model, NUMBER)(PROMPT, phi="exact"), str)
        always = wrap(model, phi="exact")
        assert outlines.Generator(always, NUMBER, phi=None).phi is None, "an explicit None is not the model's default"
        by_processor = outlines.Generator(model, processor=Generator(model, NUMBER).logits_processor, phi="exact")
        assert isinstance(by_processor.logits_processor, MaskLogitsProcessor)
        assert by_processor.sample(PROMPT, 3, seed=1).values == Generator(model, NUMBER).sample(PROMPT, 3, seed=1).texts

    def test_applications(self, stock: Transformers, model: PhiTransformers) -> None:
        template = outlines.Template.from_string("Question: is the {{ it }} open? Answer: ")
        ask = outlines.Application(template, Choice(WORDS))
        assert ask(model, {"it": "bakery"}, phi="exact", seed=1) in WORDS
        assert ask(stock, {"it": "bakery"}, max_new_tokens=9) in WORDS

    @pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=named)
    def test_refused(self, arguments: dict[str, Any], message: str, stock: Transformers) -> None:
        given = {"model": stock, "phi": "exact", **arguments}
        refused(message, outlines.Generator, given.pop("model"), **given)


@pytest.mark.usefixtures("installed")
class TestClassic:
    def test_stock_models_are_taken(self, stock: Transformers) -> None:
        answer = outlines.generate.json(stock, Answer, phi="exact")(PROMPT, seed=1)
        assert isinstance(answer, Answer) and type(stock) is Transformers
        several = outlines.generate.choice(stock, WORDS, outlines.samplers.multinomial(2), phi=None)
        assert all(text in WORDS for text in several(PROMPT))
        assert isinstance(outlines.generate.text(stock)(PROMPT, max_tokens=3), str)
        assert outlines.generate.cfg(stock, 'start: "a" start "b" |', phi="exact")(PROMPT, max_tokens=3) in ("", "ab")

    def test_a_stock_model_is_wrapped_once_and_forgotten_with_it(self) -> None:
        own = outlines.from_transformers(*bundled.load())
        one, other = (outlines.generate.format(own, t) for t in (int, bool))
        assert one.generator.model is other.generator.model is outlines.Generator(own, Literal["a"], phi="exact").model
        forgotten = weakref.ref(own)
        del own
        gc.collect()
        assert forgotten() is None and one(PROMPT, seed=1) is not None

    def test_a_wrapped_model_is_used_as_it_is(self, model: PhiTransformers, stock: Transformers) -> None:
        assert outlines.generate.format(model, int).generator.model is model
        refused("were the arguments swapped", outlines.generate.json, Answer, stock)


LONG = ["local", "onestep"]


class Role(Enum):
    wizard = "wizard"
    rogue = "rogue"
    healer = "healer"


class Character(BaseModel):
    """A character, as in the examples of 0.x, of the fields that the bundled model knows."""

    race: Literal["human", "elf", "dwarf", "halfling"]
    role: Role
    alive: bool


class ProductCategory(BaseModel):
    main_category: str
    sub_category: str
    attributes: List[str]  # noqa: UP006
    brand_match: Optional[str]  # noqa: UP045


class EventType(str, Enum):
    conference = "conference"
    webinar = "webinar"
    other = "other"


class EventInfo(BaseModel):
    """Structured information about a tech event"""

    name: str
    event_type: EventType
    topics: List[str]  # noqa: UP006
    registration_required: bool


def schedule_meeting(title, date, duration_minutes, attendees, location=None): ...  # type: ignore[no-untyped-def]


schedule_meeting.__annotations__ = {
    "title": str,
    "date": date,
    "duration_minutes": int,
    "attendees": List[str],  # noqa: UP006
    "location": Optional[str],  # noqa: UP045
}


DAYS = either("rest", "work") + between(1, 2, "!") + at_least(1, regex("[0-9]"))
ARIA, UNKNOWN = "New character: Aria. JSON: ", Literal["I don't know"]

Holds = Callable[[str], object]
TYPED: list[tuple[str, Any, Holds]] = [
    (
        "Analyze: 'This product completely changed my life!'",
        Literal["Positive", "Negative"],
        lambda text: text in ("Positive", "Negative"),
    ),
    ("What's the boiling point of water in Celsius? ", int, lambda text: int(text) is not None),
    ("What's the best city? ", outlines.types.Choice(["Paris", "Lima"]), lambda text: text in ("Paris", "Lima")),
    (ARIA, Character, Character.model_validate_json),
    ("Date: ", regex(r"[0-9]{4}-[0-9]{2}"), lambda text: len(text) == 7 and text[4] == "-"),
    ("Date: ", date, lambda text: text[4] == "-"),
    ("Date: ", Optional[date], lambda text: text == "None" or text[4] == "-"),  # noqa: UP045
    (ARIA, Union[Character, UNKNOWN], lambda text: text == "I don't know" or Character.model_validate_json(text)),  # noqa: UP007
]
"""A prompt, a type, and what its texts hold."""

LONG_TYPED: list[tuple[str, Any, Holds]] = [
    ("Date and time: ", datetime, lambda text: text[13] == ":"),
    ("Price: ", "$" + integer + optional("." + exactly(2, regex("[0-9]"))), lambda text: text[0] == "$"),
    ("Today: ", DAYS, lambda text: text[:4] in ("rest", "work")),
    ("Hex: ", hex_str, lambda text: int(text, 16) >= 0),
    ("Categorize this product: a red stand mixer\n", ProductCategory, ProductCategory.model_validate_json),
    (
        "Extract information: DevCon 2023\n",
        Union[EventInfo, UNKNOWN],  # noqa: UP007
        lambda text: text == "I don't know" or EventInfo.model_validate_json(text),
    ),
    ("Schedule a meeting: ", schedule_meeting, lambda text: {"title", "date"} <= json.loads(text).keys()),
    ("Mail: ", email, lambda text: "@" in text),
]


def cases() -> Iterator[Any]:
    """Every example; long ones with one of both step estimators, which take turns, and with both in `make test-full`."""
    for roads, examples in (([None, "exact"], TYPED), (LONG, LONG_TYPED)):
        for (i, example), (j, phi) in product(enumerate(examples), enumerate(roads)):
            marks = [pytest.mark.full] if roads is LONG and (i + j) % 2 else []
            yield pytest.param(*example, phi, id=f"{example[0][:12]}-{i}-{phi or 'plain'}", marks=marks)


def options_of(phi: str | None) -> dict[str, Any]:
    """Room for the whole text: with phi=None Hugging Face's loop cuts at its max_new_tokens, 20 if none is given."""
    return {"phi": phi, "max_new_tokens": 80} | ({"seed": 5} if phi else {"do_sample": False})


@pytest.mark.parametrize(("prompt", "output_type", "holds", "phi"), list(cases()))
def test_types(prompt: str, output_type: Any, holds: Holds, phi: str | None, model: PhiTransformers) -> None:
    options = options_of(phi)
    assert holds(model(prompt, output_type, **options))
    assert holds(wrap(model, phi=options.pop("phi"))(prompt, output_type, **options))
