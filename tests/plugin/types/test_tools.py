"""Tools: what chat templates write and xgrammar reads is what a family's format has, and calls are read back as they were."""

import json
import math
import pickle
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import xgrammar
from outlines.types import Regex
from pydantic import BaseModel, Field, field_validator
from xgrammar.builtin_structural_tag import get_model_structural_tag

from benchmarks.peers import tools as peers
from benchmarks.peers.tools import PIECES, PROMPT, piecewise
from outlines_phi import (
    Generator,
    PhiTransformers,
    SamplingSettings,
    SchemaWarning,
    Thinking,
    Tools,
    ValueReadError,
    Vocabulary,
    ban,
    from_language_model,
    from_transformers,
    structural_tag,
)
from outlines_phi.plugin.types.tools import Reply, ToolCall, families, family_of
from outlines_phi_workbench.suite.reference import enumerate_language
from tests.inner import TableModel, bundled, format_of, frequencies, noise_limit, total_variation
from tests.refusals import refused

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "s": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "ff")]
CALLS = [("f", {"x": 1, "s": "hi there"}), ("ff", {"x": -2})]

TEMPLATES = {path.stem: path.read_text("utf-8") for path in (Path(__file__).parent / "tool_templates").iterdir()}
"""Of each family, the part of its chat templates that writes the calls of a message, and the marks beside it."""

BUILDERS = {
    "hermes": "qwen_3",
    "exaone": "exaone",
    "llama3": "llama",
    "qwen3_coder": "qwen_3_coder",
    "glm": "glm_4_7",
    "deepseek_v3": "deepseek_r1",
    "deepseek_v3_1": "deepseek_v3_1",
    "deepseek_v3_2": "deepseek_v3_2",
    "minimax_m2": "minimax",
    "kimi_k2": "kimi",
    "harmony": "harmony",
    "deepseek_v4": "deepseek_v4",
    "cohere": "cohere",
    "kimi_k3": "kimi_k3",
    "minimax_m3": "minimax_m3",
}
"""The families that xgrammar builds structural tags for, and their names there."""

COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo(
        [bytes([byte]) for byte in range(256)], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[0]
    )
)


@cache
def tokenizer() -> Any:
    return bundled.load()[1]


@cache
def rendered(family: str, n: int) -> str:
    """Return a message with ``n`` calls as a chat template writes it."""
    calls = [{"name": name, "arguments": arguments} for name, arguments in CALLS[:n]]
    messages = [{"role": "assistant", "calls": calls}]
    return str(tokenizer().apply_chat_template(messages, chat_template=TEMPLATES[family], tokenize=False))


def written(family: str) -> tuple[str, list[tuple[str, Any]]]:
    n = 1 if family in ("llama3", "harmony") else 2
    return rendered(family, n), CALLS[:n]


def test_there_are_templates_of_all_families() -> None:
    assert TEMPLATES.keys() == families().keys() and len(TEMPLATES) >= 8


@pytest.mark.parametrize("family", TEMPLATES)
def test_what_a_template_writes_is_read_back(family: str) -> None:
    """And the family is known by the template's text."""
    assert family_of(TEMPLATES[family]) == family
    text, calls = written(family)
    for choice in ("auto", "required"):
        tools = Tools(TOOLS, choice, family)
        if choice == "required" and family == "glm":  # of which xgrammar's format has no line break in front
            text = text.removeprefix("\n")
        assert format_of(tools).holds(text), (choice, text)
        assert [(call.name, call.arguments) for call in tools.read(text).calls] == calls
    message = tools.read(text).message
    assert [call["function"] for call in message["tool_calls"]] == [{"name": n, "arguments": a} for n, a in calls]


def texts_near(family: str) -> Iterator[str]:
    """Yield members, and texts that are members under some choices or none."""
    one, (two, _) = rendered(family, 1), written(family)
    yield from ("", "Hello.", one, two, one + one, "Well. " + one, one + " Done.", one[:-1], one[1:])
    yield from (
        one.replace(old, new, 1) for old, new in (("1", '"a"'), ("f", "h"), ("x", "y"), ("hi", "h\ni"), ("hi", "<"))
    )
    yield one.replace("f", "ff", 1)


def accepted(document: Any, text: str) -> bool:
    """Return True if xgrammar accepts a whole text under a structural tag."""
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_structural_tag(document), terminate_without_stop_token=True)
    return bool(matcher.accept_string(text) and matcher.is_completed())


@pytest.mark.in_turn
@pytest.mark.parametrize("choice", ["auto", "required", "f"])
@pytest.mark.parametrize("family", BUILDERS)
def test_texts_are_those_of_the_structural_tag_that_xgrammar_builds(family: str, choice: str) -> None:
    named = {"type": "function", "function": {"name": choice}}
    for parallel in (True, False):
        tools = Tools(TOOLS, choice, family, parallel)
        builder = get_model_structural_tag(
            BUILDERS[family], TOOLS, named if choice == "f" else choice, "disabled", parallel_tool_calls=parallel
        )
        form, verdicts = format_of(tools), []
        for text in texts_near(family):
            lead = "\n</think>\n\n\n\n" if family == "minimax_m2" else ""  # of thinking, which is no part of tools
            theirs = accepted(builder, lead + text) and not (family == "harmony" and choice != "auto" and not text)
            verdicts.append(theirs)
            assert form.holds(text) == theirs, (text, theirs)
        assert {*verdicts} == {True, False}


ALONE = {
    "harmony": "<|channel|>final<|message|>Hello.<|return|>",
    "kimi_k3": "Hello.<|close|>response<|sep|><|close|>message<|sep|>",
}
"""Text alone, in the families that write something around it."""


@pytest.mark.parametrize("family", TEMPLATES)
def test_text_without_calls_begins_none(family: str) -> None:
    form, (text, _) = format_of(Tools(TOOLS, None, family)), written(family)
    plain = ALONE.get(family, "Hello.")
    assert form.holds(plain) and not form.holds(text) and not form.holds(f"{plain} {text}")
    assert Tools(TOOLS, None, family).read(plain) == Reply(("Hello.",))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (None, "missing"),
        ("{{ messages }}", "like that of no family"),
        (TEMPLATES["functools"] + TEMPLATES["mistral_args"], "functools and"),
    ],
)
def test_a_family_is_asked_for_where_none_is_known(template: str | None, said: str) -> None:
    refused(rf"^Give Tools\(\.\.\., family=\.\.\.\), one of .*hermes.*{said}", family_of, template)


def order(item: Literal["tea", "coffee"], n: int = 1) -> str:
    """Order something."""
    return f"{n} {item}"


class Weather(BaseModel):
    """Look the weather up."""

    city: str = Field(max_length=12)
    days: list[int] = []

    @field_validator("city")
    @classmethod
    def known(cls, city: str) -> str:
        if city == "Atlantis":
            raise ValueError("there is no such city")
        return city


class City(BaseModel):
    name: Literal["Rome", "Oslo"]


def test_calls_are_typed_and_run() -> None:
    tools = Tools([order, Weather, TOOLS[0]], family="hermes")
    text = "Yes. " + "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
        for name, arguments in [("order", {"item": "tea"}), ("Weather", {"city": "Rome", "days": [1]}), ("f", {"x": 3})]
    )
    reply = tools.read(text)
    tea, rome, f = reply.calls
    assert tea.arguments == {"item": "tea"} and tea.run() == "1 tea"
    assert rome.arguments == Weather(city="Rome", days=[1]) and f.arguments == {"x": 3}
    assert reply.text == "Yes. \n\n" and reply.parts[1] == tea and pickle.loads(pickle.dumps(tools)).read(text) == reply
    refused("Give the function to Tools", rome.run)
    assert [tool["function"]["description"] for tool in tools.schemas] == [
        "Order something.",
        "Look the weather up.",
        "",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tools": []}, "Give a list of at least one tool"),
        ({"tools": order}, "Give a list of at least one tool"),
        ({"tools": [3]}, "Give functions, pydantic models"),
        ({"tools": [Regex("a")]}, "Give functions, pydantic models"),
        ({"tools": [{"name": "a b"}]}, "Give the tool a name of 1 to 64"),
        ({"tools": [{"name": "none"}]}, "that is no choice: 'none'"),
        ({"tools": [{"name": "a", "input_schema": SCHEMA}]}, "Give functions, pydantic models"),
        ({"tools": [{"name": "a", "parameters": False}]}, "Give functions, pydantic models"),
        ({"tools": [order], "parallel": "no"}, "parallel='no' was given to Tools"),
        ({"tools": [order, order]}, "Give tools of different names"),
        ({"tools": [order], "choice": "ordre"}, "Give choice='auto', 'required', None or the name of a tool, order"),
        ({"tools": [order], "family": "lama"}, "Give one of the families"),
    ],
)
def test_what_is_no_tool_is_refused(given: dict[str, Any], said: str) -> None:
    refused(said, Tools, **given)


class Item(BaseModel):
    name: str
    kind: Literal["a", "b"] | None = None
    tags: list[str] = []


class Basket(BaseModel):
    items: list[Item]
    paid: bool = False
    at: float | None = None
    counts: dict[str, int] = {}


BASKET = Basket(items=[Item(name="a, {b}", kind="b", tags=["x", "y"]), Item(name="")], at=1.5)
NESTED = {
    "gemma4": (
        '<|tool_call>call:Basket{at:1.5,items:[{kind:<|"|>b<|"|>,name:<|"|>a, {b}<|"|>,tags:[<|"|>x<|"|>,<|"|>y<|"|>]},'
        '{name:<|"|><|"|>}]}<tool_call|>',
        (",tags", "1.5", ",items", 'name:<|"|><|"|>', '<|"|>x<|"|>'),
    ),
    "cohere": (
        '<cofl:tool_calls><cofl:tool_call id="0" name="Basket"><cofl:value name="items" type="list"><cofl:value type="dict">'
        '<cofl:value name="name" type="raw">a, {b}</cofl:value><cofl:value name="kind" type="raw">b</cofl:value>'
        '<cofl:value name="tags" type="list"><cofl:value type="raw">x</cofl:value><cofl:value type="raw">y</cofl:value>'
        '</cofl:value></cofl:value><cofl:value type="dict"><cofl:value name="name" type="raw"></cofl:value></cofl:value>'
        '</cofl:value><cofl:value name="at" type="json">1.5</cofl:value></cofl:tool_call></cofl:tool_calls>',
        ("dict", "1.5", "list", '<cofl:value name="items"', "raw"),
    ),
    "qwen3_coder": (
        '<tool_call>\n<function=Basket>\n<parameter=items>\n[{"name": "a, {b}", "kind": "b", "tags": ["x", "y"]}, {"name": ""}]\n'
        "</parameter>\n<parameter=at>\n1.5\n</parameter>\n</function>\n</tool_call>",
        ("parameter=at", "1.5", "[", "items"),
    ),
}
"""A call in the styles of families that nest, and what it may not be without."""


@pytest.mark.parametrize("family", NESTED)
def test_arguments_are_nested_and_optional(family: str) -> None:
    written, needed = NESTED[family]
    tools = Tools([Basket], "required", family, parallel=False)
    form = format_of(tools)
    (call,) = tools.read(written).calls
    assert form.holds(written) and call.arguments == BASKET
    assert not any(form.holds(written.replace(part, "", 1)) for part in needed)


def test_other_members_and_values_that_are_strings_too() -> None:
    begin, end = "<tool_call>\n<function=g>\n", "\n</function>\n</tool_call>"
    types = {
        "either": ["string", "integer"],
        "few": {"anyOf": [{"enum": ["7", "x"]}, {"type": "integer", "maximum": 5}]},
    }
    properties = {name: one if isinstance(one, dict) else {"type": one} for name, one in types.items()}
    schema = {"type": "object", "properties": properties, "additionalProperties": {"type": "boolean"}}
    tools = Tools([{"name": "g", "parameters": schema}], "required", "qwen3_coder")
    for given, read in (("5", 5), ("7", "7"), ("x", "x")):
        members = {"either": f"{given}", "few": given, "more": "true"}
        text = "\n".join(f"<parameter={name}>\n{value}\n</parameter>" for name, value in members.items())
        (call,) = tools.read(begin + text + end).calls
        either = int(given) if given.isdigit() else given
        assert call.arguments == {"either": either, "few": read, "more": True}
    with pytest.warns(SchemaWarning, match="Say what the values at #/properties/any are"):
        format_of(Tools([{"name": "g", "parameters": {"properties": {"any": {}}}}], family="gemma4"))


def test_strings_between_quotes_are_those_of_the_schema() -> None:
    form = format_of(Tools([Weather], "required", "functiongemma"))
    begin, end = "<start_function_call>call:Weather{city:<escape>", "<escape>}<end_function_call>"
    assert [form.holds(f"{begin}{'a' * n}{end}") for n in (12, 13)] == [True, False]


NAMED = [
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
]
HARMONY = ["<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|start|>", "<|end|>", "<|return|>"]


@pytest.fixture(scope="module")
def model() -> PhiTransformers:
    """Return the bundled model with the special tokens of two families, one of which ends texts by some of them."""
    hf_model, hf_tokenizer = bundled.load()
    hf_tokenizer.add_special_tokens({"additional_special_tokens": [*NAMED, *HARMONY]})
    hf_model.resize_token_embeddings(len(hf_tokenizer), mean_resizing=False)
    ends = hf_tokenizer.convert_tokens_to_ids(["<|return|>", "<|call|>"])
    hf_model.generation_config.eos_token_id = [hf_tokenizer.eos_token_id, *ends]
    with torch.no_grad():  # as likely as the end of sequence
        weights = hf_model.get_output_embeddings().weight
        weights[hf_tokenizer.convert_tokens_to_ids([*NAMED, *HARMONY])] = weights[hf_tokenizer.eos_token_id].clone()
    hf_tokenizer.chat_template = TEMPLATES["deepseek_v3_1"]
    found = from_transformers(hf_model, hf_tokenizer)
    found.type_adapter.has_chat_template = False
    return found


def test_special_tokens_of_a_format_are_those_of_the_tokenizer(model: PhiTransformers) -> None:
    """And the family is that of the model's template."""
    generator = Generator(model, Tools([order, City], "required"))
    ids = dict(zip(NAMED, model.hf_tokenizer.convert_tokens_to_ids(NAMED), strict=True))
    for draw in generator.sample("Order: ", 4, phi="local", seed=1, max_new_tokens=60):
        assert draw.token_ids[:2] == (ids[NAMED[0]], ids[NAMED[1]]) and draw.token_ids[-2] == ids[NAMED[-1]]
        assert draw.token_ids.count(ids[NAMED[2]]) == len(draw.calls) > 0 and "tool" not in draw.text
        assert all(isinstance(call, ToolCall) for call in draw.calls) and draw.value.text == ""
    (member,) = generator.mode("Order: ", max_new_tokens=20)
    assert member.calls[0].name in ("order", "City")


@pytest.mark.parametrize("choice", ["auto", "required", None])
def test_a_token_that_ends_texts_ends_the_format(model: PhiTransformers, choice: str | None) -> None:
    """Nothing follows it: of several messages the last alone ends with it."""
    generator = Generator(model, Tools([order], choice, "harmony"))
    end = model.hf_tokenizer.convert_tokens_to_ids("<|end|>")
    for draw in generator.sample("Order: ", 6, phi="local", seed=1, max_new_tokens=80):
        assert len(draw.calls) == (choice == "required") or choice == "auto"
        assert draw.token_ids.count(end) == 0 or choice != "required"


def test_tools_are_parts_of_other_types(model: PhiTransformers) -> None:
    options = {"phi": "local", "seed": 1, "max_new_tokens": 60}
    assert Generator(model, "So: " + Tools([order], "order"))("Order: ", **options).startswith("So: order{")
    (draw,) = Generator(model, Thinking(Tools([order], "order"), end="So", max_tokens=8)).sample("Order: ", **options)
    assert draw.thought is not None and [call.name for call in draw.calls] == ["order"]


def test_what_a_tool_refuses_is_an_error_with_the_text() -> None:
    with pytest.warns(SchemaWarning, match="what Weather.known checks"):
        generator = Generator(own(piecewise(PIECES, 1e-5)), Tools([Weather], "Weather", "llama3"))
    refused(
        "there is no such city",
        generator.reader,
        '{"name": "Weather", "parameters": {"city": "Atlantis"}}',
        error=ValueReadError,
    )


def test_types_without_tools_have_no_calls(model: PhiTransformers) -> None:
    generator = Generator(model, Regex("a"))
    refused("Give outlines_phi.Tools", lambda: generator.sample("a", 1, phi="local")[0].calls)
    refused("Give outlines_phi.Tools", generator.tool_probabilities, "a")


def test_tools_are_called_as_the_conditioned_distribution_calls_them() -> None:
    """Masks, xgrammar's too, choose the tool before they know that large tea cannot be had; weights make up for it."""
    lm, n = piecewise(PIECES, 1e-5), 2000
    members = peers.reference(lm, "required")
    mu, mask = peers.by_tool(lm, members.mu), peers.by_tool(lm, members.mask)
    assert mu["tea"] == pytest.approx(0.6 * 0.05 / (0.6 * 0.05 + 0.4), rel=1e-3) and mask["tea"] == pytest.approx(
        0.6, rel=1e-3
    )
    limit = noise_limit(mu, n, share=0.99)
    texts = {method: peers.drawn(lm, "required", method, n) for method in ("ours, exact", "ours, mask", "xgrammar")}
    tv = {method: total_variation(mu, frequencies(list(map(peers.chosen, found)))) for method, found in texts.items()}
    assert tv["ours, exact"] < limit < 0.1 < min(tv["ours, mask"], tv["xgrammar"]), (tv, limit)
    weighted = peers.generator(lm, "required").sample("", n, phi="local", seed=1, max_new_tokens=peers.BUDGET)
    assert weighted.expectation(lambda draw: draw.calls[0].name == "tea") == pytest.approx(mu["tea"], abs=0.03)


TYPES = {"tools": peers.tools("required"), "a structural tag": structural_tag(peers.tools("required").document)}
CALLS_OF = {"drafted": {"draft": "forced"}, "banned": {}, "banned and drafted": {"draft": "prompt_lookup"}}


@pytest.mark.parametrize("output_type", TYPES)
@pytest.mark.parametrize("call", CALLS_OF)
def test_bans_and_drafts_leave_the_conditioned_distribution(output_type: str, call: str) -> None:
    lm, n = piecewise(PIECES, 0.0), 1500
    generator = Generator(own(lm), TYPES[output_type])
    law = by_text(lm, generator, "Bob" if call.startswith("banned") else "\0")
    asked = ban(generator, ["Bob"]) if call.startswith("banned") else generator
    settings = {"max_new_tokens": peers.BUDGET, "seed": 1, **CALLS_OF[call]}
    limit = noise_limit(law, n, share=0.99)
    exact, mask = (asked.sample("", n, phi=phi, **settings).texts for phi in ("exact", "local"))
    assert total_variation(law, frequencies(exact)) < limit < total_variation(law, frequencies(mask))


@pytest.mark.parametrize("output_type", TYPES)
def test_probabilities_of_answers_are_those_of_the_conditioned_distribution(output_type: str) -> None:
    lm = piecewise(PIECES, 0.0)
    generator = Generator(own(lm), TYPES[output_type])
    entries = generator.probabilities("", max_new_tokens=peers.BUDGET).entries  # other blanks have none of the mass
    found = {entry.texts[0]: entry for entry in entries if entry.hi > 0}
    law = by_text(lm, generator)
    assert found.keys() == law.keys() and len(law) == 3
    assert all(found[text].lo - 1e-9 <= p <= found[text].hi + 1e-9 for text, p in law.items())
    assert all(entry.hi - entry.lo <= 1e-3 for entry in found.values())


def by_text(lm: TableModel, generator: Any, banned: str = "\0") -> dict[str, float]:
    """Return the distribution of texts that do not hold ``banned``, by enumeration."""
    mu = enumerate_language(lm, generator.table, PROMPT, SamplingSettings(max_new_tokens=peers.BUDGET), peers.BUDGET).mu
    texts = {lm.vocabulary.decode(ids).decode(): p for ids, p in mu.items()}
    kept = {text: p for text, p in texts.items() if banned not in text}
    return {text: p / sum(kept.values()) for text, p in kept.items()}


def own(lm: TableModel) -> Any:
    return from_language_model(lm, lambda _: PROMPT)


def begun(lm: TableModel, text: bytes) -> float:
    """Return the probability that what a model writes begins with a text, in any tokens."""
    total, open_prefixes = 0.0, [(PROMPT, text, 1.0)]
    while open_prefixes:
        context, rest, p = open_prefixes.pop()
        for v, log_p in enumerate(lm.next_logits(context)):
            token, share = lm.vocabulary.tokens[v], p * math.exp(log_p)
            if token and share and token.startswith(rest):
                total += share
            elif token and share and rest.startswith(token):
                open_prefixes.append(((*context, v), rest[len(token) :], share))
    return total


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_probabilities_of_tools_are_those_of_the_first_decision(choice: str) -> None:
    lm = piecewise(PIECES, 1e-3)
    found = peers.generator(lm, choice).tool_probabilities("")
    masses = {name: begun(lm, f'{{"name": "{name}"'.encode()) for name in ("tea", "mail")}
    whole = sum(masses.values()) if choice == "required" else 1.0
    truth = {name: mass / whole for name, mass in masses.items()} | (
        {None: 1 - sum(masses.values())} if choice == "auto" else {}
    )
    assert found.keys() == truth.keys() and sum(entry.p for entry in found.entries) == pytest.approx(1)
    for name, p in truth.items():
        assert found[name].lo <= p <= found[name].hi <= found[name].lo + 1e-3 and found[name].p == pytest.approx(
            p, abs=1e-3
        )


@pytest.mark.parametrize(
    ("family", "begin", "first"),
    [
        ("glm", "<tool_call>", "<\n"),
        ("gemma4", "<|tool_call>call:", "{"),
        ("functiongemma", "<start_function_call>call:", "{"),
        ("mistral_args", "[TOOL_CALLS]", "["),
    ],
)
def test_a_call_has_begun_with_what_may_stand_behind_its_name(family: str, begin: str, first: str) -> None:
    begins = format_of(Tools(TOOLS, "required", family).beginnings).holds
    assert first == "".join(one for one in "<\n{[!f\u00e9" if begins(f"{begin}f{one}"))


def test_a_special_token_may_stand_behind_the_name_of_a_tool() -> None:
    shares = {(): {1: 1}, (1,): {b"a": 0.3, b"b": 0.6}, (1, b"a"): {2: 0.5, b"!": 0.4}, (1, b"b"): {2: 0.9}}
    tokens = [b"", b"", b"", *(bytes([byte]) for byte in range(256))]

    def next_logits(context: tuple[int, ...]) -> np.ndarray[Any, Any]:
        here = shares.get(tuple(tokens[v] or v for v in context[len(PROMPT) :]), {})
        return np.log([here.get(token or v, 1e-9) for v, token in enumerate(tokens)])

    lm = TableModel(Vocabulary.from_tokens(tokens, 0, special={"[TOOL_CALLS]": 1, "[ARGS]": 2}), next_logits)
    tools = Tools([{"name": name, "parameters": SCHEMA} for name in "ab"], "required", "mistral_args")
    found = Generator(own(lm), tools).tool_probabilities("")
    assert found["a"].p == pytest.approx(0.3 * 0.5 / 0.9 / (0.3 * 0.5 / 0.9 + 0.6), abs=1e-3)


def test_twenty_tools_take_two_model_calls_at_most() -> None:
    """Of a model that writes a call in its usual tokens but once in ten thousand."""
    names = [
        f"{verb}_{what}" for verb in ("get", "set", "send", "find") for what in ("time", "mail", "song", "taxi", "room")
    ]
    shares = np.random.default_rng(0).dirichlet(np.full(20, 0.7))
    vocabulary = Vocabulary.from_tokenizer(tokenizer())
    written = {
        tuple(tokenizer().encode(f'<tool_call>\n{{"name": "{name}", "arguments": {{"x": 1}}}}')): 0.97 * share
        for name, share in zip(names, shares, strict=True)
    }
    written[tuple(tokenizer().encode("Well."))] = 0.03

    def next_logits(context: tuple[int, ...]) -> np.ndarray[Any, Any]:
        ids, p = context[len(PROMPT) :], np.full(len(vocabulary), 1e-5 / len(vocabulary))
        p[vocabulary.eos_ids[0]] += 1e-5
        for tokens, share in written.items():
            if tokens[: len(ids)] == ids and len(ids) < len(tokens):
                p[tokens[len(ids)]] += share
        return np.log(p / p.sum())

    for choice in ("auto", "required"):
        tools = Tools([{"name": name, "parameters": SCHEMA} for name in names], choice, "hermes")
        found = Generator(own(TableModel(vocabulary, next_logits)), tools).tool_probabilities("")
        assert found.counts.calls <= 2 and len(found) == 20 + (choice == "auto")
        assert all(entry.hi - entry.lo <= 1e-3 for entry in found.entries)
        for name, share in zip(names, shares, strict=True):
            assert found[name].p == pytest.approx(share * (1.0 if choice == "required" else 0.97), abs=1e-3)
