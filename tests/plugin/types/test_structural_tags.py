"""Structural tags have the texts that xgrammar reads: members of either, and texts beside them, are accepted by both or by none."""

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import xgrammar
from xgrammar.builtin_structural_tag import _structural_tag_registry, get_model_structural_tag

from outlines_phi import GrammarError, OutlinesPhiError, UnsupportedError, structural_tag
from outlines_phi.automata.byte_machine import ByteMachine
from outlines_phi.plugin.types.structural_tags import KINDS
from tests.guides.walking import machine_of
from tests.refusals import refused

END = 256
"""The end of sequence of a vocabulary of single bytes."""

BYTES = xgrammar.TokenizerInfo(
    [bytes([byte]) for byte in range(256)] + [b"<eos>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END]
)
COMPILER = xgrammar.GrammarCompiler(BYTES)


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def any_text(*excludes: str, **fields: Any) -> dict[str, Any]:
    return {"type": "any_text", "excludes": list(excludes), **fields}


def tag(begin: Any, content: dict[str, Any], end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: dict[str, Any]) -> dict[str, Any]:
    return {"type": "or", "elements": list(elements)}


def triggered(*triggers: str, tags: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": list(triggers), "tags": tags, **fields}


def separated(separator: str, *tags: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"type": "tags_with_separator", "tags": list(tags), "separator": separator, **fields}


def dispatch(rules: dict[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {"type": "dispatch", "rules": [[trigger, content] for trigger, content in rules.items()], **fields}


def schema(document: Any, style: str = "json", **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": document, "style": style, **fields}


def document(form: dict[str, Any]) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


A, B = tag("<fa>", const("x"), "</f>"), tag("<fb>", any_text("ab"), ["</f>", "</g>"])
CALL = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}
ROOT = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "k": {"enum": ["x", "yz"]},
        "i": {"type": ["integer", "null"]},
        "o": {"type": "object", "properties": {"z": {"type": "boolean"}}, "required": ["z"]},
        "l": {"type": "array", "items": {"type": "integer"}},
        "r": {"$ref": "#/$defs/R"},
    },
    "required": ["s", "i"],
    "$defs": {"R": {"type": "string"}},
}
STYLES = (
    "qwen_xml",
    "minimax_xml",
    "minimax_m3_xml",
    "deepseek_xml",
    "deepseek_v4_1_xml",
    "glm_xml",
    "cohere_xml",
    "kimi_k3_xml",
)

FORMATS: dict[str, dict[str, Any]] = {
    "const_string": const('a"\\b\n<é'),
    "any_text": any_text("ab", "<"),
    "any_text of few characters": any_text("ab", max_chars=3),
    "regex": {"type": "regex", "pattern": r"a\d{2,3}(?:b|[^c\w])?.x|"},
    "grammar": {"type": "grammar", "grammar": 'root ::= "(" root ")" | [a-c]{1,2} "\\u00e9"? # c\n'},
    "sequence": sequence(any_text("x"), const("end"), any_text()),
    "or": either(const("ab"), sequence(const("a"), any_text("c")), A),
    "tag": tag("<", any_text("</"), ">"),
    "tag with several ends": tag("<", any_text(), ["</a>", "</b>", ""]),
    "tag in tag": tag("<", sequence(const("a"), tag("[", any_text(), "]"), any_text()), ">"),
    "an excluded string in the end": tag("<", any_text("\n"), "\n>"),
    "tags inside a tag": tag("{", triggered("<f", tags=[A]), "}"),
    "optional": tag("<", {"type": "optional", "content": any_text()}, ">"),
    "optional alone": {"type": "optional", "content": sequence(const("a"), any_text("c"))},
    "plus": {"type": "plus", "content": either(const("ab"), A)},
    "star": {"type": "star", "content": const("ab")},
    "repeat": {"type": "repeat", "min": 1, "max": 3, "content": const("ab")},
    "repeat without end": {"type": "repeat", "min": 2, "max": -1, "content": const("ab")},
    "dispatch": dispatch({"<1": const("x"), "<2": any_text("q")}, excludes=["e<1", "z"]),
    "dispatch once": dispatch({"<1": const("x")}, loop=False),
    "a trigger inside itself": dispatch({"aa": const("x")}),
    "text behind tags": sequence(triggered("<f", tags=[A, B]), const("end")),
    "two triggers": triggered("<fa", "<fb", tags=[A, B], excludes=["zz"]),
    **{
        f"triggered, {least=}, {first=}": triggered("<f", tags=[A, B], at_least_one=least, stop_after_first=first)
        for least in (False, True)
        for first in (False, True)
    },
    **{
        f"separated, {separator=}, {least=}, {first=}": separated(
            separator, A, B, at_least_one=least, stop_after_first=first
        )
        for separator in ("", ", ")
        for least in (False, True)
        for first in (False, True)
    },
    "json_schema": schema(CALL),
    "json_schema with few blanks": schema(CALL, max_whitespace_cnt=1),
    "tags of JSON": triggered("<f=", tags=[tag(f"<f={name}>", schema(CALL), "</f>") for name in ("a", "b")]),
    "qwen_xml_parameter": {"type": "qwen_xml_parameter", "json_schema": ROOT},
    **{style: schema(ROOT, style) for style in STYLES},
    # In the style left out xgrammar lets no blanks stand for no member at all; in all others, and here, they may.
    **{f"{style}, optional": schema({**CALL, "required": []}, style) for style in STYLES if style != "minimax_m3_xml"},
}
"""A format of each kind that xgrammar's ``accept_string`` knows."""


def machine(given: Any) -> ByteMachine[Any]:
    return machine_of(structural_tag(given))


def strings(part: Any) -> Iterator[str]:
    """Yield the strings in a document."""
    match part:
        case str():
            yield part
        case list():
            for one in part:
                yield from strings(one)
        case dict():
            yield from strings(list(part.values()))


class Reference:
    """The texts of xgrammar."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.compiled = COMPILER.compile_structural_tag(json.dumps(given))

    def accepts(self, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(self.compiled)
        return bool(matcher.accept_string(text)) and bool(matcher.accept_token(END))

    def member(self, stream: random.Random, words: list[str], most: int = 150) -> bytes | None:
        """Walk at random, now and then by a whole word of the document; ``None`` where that does not come to an end."""
        matcher, bits, text = xgrammar.GrammarMatcher(self.compiled), xgrammar.allocate_token_bitmask(1, END + 1), b""
        while len(text) < most:
            if stream.random() < 0.3 and matcher.accept_string(word := stream.choice(words)):
                text += word.encode()
            matcher.fill_next_token_bitmask(bits)
            allowed = np.flatnonzero(np.unpackbits(bits.numpy().view(np.uint8), bitorder="little")).tolist()
            likely = [v for v in allowed if v < 128] or [v for v in allowed if v != END] or [END]
            byte = END if END in allowed and stream.random() < 0.2 else stream.choice(likely)
            if byte == END:
                return text
            assert matcher.accept_token(byte)
            text += bytes([byte])
        return None


def member(machine: ByteMachine[Any], stream: random.Random, words: list[str], most: int = 60) -> bytes:
    """Walk at random, now and then by a whole word of the document or some way to the end, and at last all the way."""
    place, text = machine.start, b""
    while len(text) < most and not (machine.ends(place) and stream.random() < 0.2):
        match stream.randrange(3):
            case 0:
                ahead = stream.choice(words).encode()
            case 1:
                ahead = machine.shortest(place)[: stream.randint(1, 30)]
            case _:
                likely = stream.sample(range(128), 128) + stream.sample(range(128, 256), 128)
                after_each = zip(likely, machine.steps(place, likely), strict=True)
                ahead = next((bytes([byte]) for byte, after in after_each if after is not None), b"")
        after = machine.read(ahead, place)
        if after is not None and machine.is_live(after):
            text, place = text + ahead, after
    return text + machine.shortest(place)


def changed(text: str, stream: random.Random) -> str:
    at = stream.randint(0, len(text))
    to = min(len(text), at + stream.randint(1, 6))
    written = stream.choice(["", *' <>"/a1\n}]{,', text[at:to] * 2])
    return text[:at] + written + text[at if stream.random() < 0.3 else to :]


def compare(given: dict[str, Any], *, walks: int, seed: int) -> tuple[int, int]:
    """Compare the two on members of both and on changed ones; return how many were members, and how many not."""
    ours, theirs, stream = machine(given), Reference(given), random.Random(seed)
    words = sorted(set(filter(None, strings(given)))) or ["a"]
    found = [member(ours, stream, words) for _ in range(walks)]
    found += [text for _ in range(walks) if (text := theirs.member(stream, words)) is not None]
    texts = sorted({text.decode() for text in found if is_text(text)})
    assert all(ours.accepts(text.encode()) for text in texts)
    texts += sorted({changed(text, stream) for text in texts for _ in range(3)} - set(texts))
    accepted = {text: ours.accepts(text.encode()) for text in texts}
    assert {text: theirs.accepts(text) for text in texts} == accepted
    return sum(accepted.values()), len(texts) - sum(accepted.values())


def is_text(written: bytes) -> bool:
    """Return False for bytes that are no UTF-8: xgrammar lets a walk by bytes end inside of a character."""
    return written.decode(errors="replace").encode() == written


@pytest.mark.parametrize("name", FORMATS)
def test_the_texts_of_each_kind_are_those_of_xgrammar(name: str) -> None:
    members, others = compare(document(FORMATS[name]), walks=6, seed=1)
    assert members > 2 or name == "const_string"
    assert others > 0 or name in ("a trigger inside itself", "dispatch")


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {**CALL, "required": required}}}
    for name, required in (("get_time", ["q"]), ("go", ["q", "n"]))
]
CHOICES = ("auto", "required", {"type": "function", "function": {"name": "go"}})


@pytest.mark.in_turn
@pytest.mark.parametrize("choice", CHOICES, ids=["auto", "required", "go"])
@pytest.mark.parametrize("family", _structural_tag_registry)
def test_the_texts_of_each_builder_are_those_of_xgrammar(family: str, choice: Any) -> None:
    """Each tag once, whichever choices of reasoning make it."""
    given = [
        get_model_structural_tag(family, TOOLS, choice, mode).model_dump() for mode in ("enabled", "disabled", "auto")
    ]
    assert all(tag in given[:number] or compare(tag, walks=2, seed=1)[0] for number, tag in enumerate(given))


def test_each_kind_is_compared_or_is_one_of_tokens() -> None:
    of_tokens = {"token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"}
    assert {form["type"] for form in FORMATS.values()} | of_tokens == KINDS.keys()


def test_the_text_of_a_tag_ends_with_its_first_end_and_some_kinds_are_read_otherwise() -> None:
    """An end may begin inside of another: there xgrammar lets it be a later one: ``aaa`` is ``a`` and ``aa`` there."""
    given = document(tag("<", any_text("b", "aax"), "aa"))
    assert Reference(given).accepts("<caaa")
    assert {text for text in ("<aa", "<caa", "<caaa", "<baa", "<ca") if machine(given).accepts(text.encode())} == {
        "<aa",
        "<caa",
    }
    # JSON values are those of the standard, and text holds no end of a member's tag, not even in JSON.
    for form, ours, theirs in (
        (schema({"type": "string"}), r'"\ud800"', True),  # a lone surrogate
        (schema({"type": "array", "items": {"type": "null"}, "uniqueItems": True}), "[null, null]", True),
        (
            schema({"type": "object", "properties": {"q": {}}}, "qwen_xml"),
            '<parameter=q>["</parameter>"]</parameter>',
            True,
        ),
        (
            schema({"type": "object", "properties": {"q": {"type": "string", "pattern": "ab"}}}, "qwen_xml"),
            "<parameter=q>cabc</parameter>",
            False,
        ),
        ({"type": "regex", "pattern": r"a\s"}, "a\u2003", False),  # ECMA-262 has more blanks
    ):
        assert Reference(document(form)).accepts(ours) == theirs != machine(document(form)).accepts(ours.encode())


OLDER = {"structures": [{"begin": "<a>", "schema": {"type": "null"}, "end": "</a>"}], "triggers": ["<a"]}


def test_documents_in_each_form_are_read() -> None:
    form = document(triggered("<a", tags=[tag("<a>", schema({"type": "null"}), "</a>")]))
    model = xgrammar.StructuralTag.model_validate(form)
    for given in (form, json.dumps(form), model, model.model_dump_json(), OLDER, {**OLDER, "type": "structural_tag"}):
        assert machine(given).accepts(b"x<a>null</a>") and not machine(given).accepts(b"<a>1</a>")


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("{", GrammarError, "The structural tag is not JSON"),
        ({"type": "tag"}, GrammarError, 'Give {"type": "structural_tag"'),
        (document(const("a")) | {"x": 1}, GrammarError, 'Give {"type": "structural_tag"'),
        ({"structures": [{"begin": "<"}], "triggers": ["<"]}, GrammarError, "#/structures/0"),
        (document({"type": "text"}), GrammarError, "at #/format, of one of the types"),
        (
            document(sequence(const("a"), {"type": "regex"})),
            GrammarError,
            "#/format/elements/1: 'pattern' is a required",
        ),
        (document({**const("a"), "x": 1}), GrammarError, "#/format: Additional properties .*'x'"),
        (document(sequence()), GrammarError, "#/format/elements: \\[\\] should be non-empty"),
        (document(any_text("")), GrammarError, "#/format/excludes/0: '' should be non-empty"),
        (document(any_text(max_tokens=3)), UnsupportedError, "Give max_chars.*#/format/max_tokens"),
        (
            document({"type": "exclude_token", "exclude_tokens": []}),
            UnsupportedError,
            "regular expression.*of #/format",
        ),
        (document({"type": "token", "token": True}), GrammarError, "#/format/token"),
        (document({"type": "repeat", "min": 2, "max": 1, "content": const("a")}), GrammarError, "#/format/max"),
        (document({"type": "regex", "pattern": "(a"}), GrammarError, "Correct what stands at #/format"),
        (document({"type": "grammar", "grammar": "root ::= a"}), GrammarError, "Correct what stands at #/format"),
        (document(schema(CALL, "xml")), GrammarError, "#/format/style"),
        (document(schema(CALL, any_order=True)), UnsupportedError, "#/format/any_order"),
        (document(schema({"type": "string"}, excludes=["a"])), UnsupportedError, "#/format/excludes"),
        (document(schema({"type": "x"})), OutlinesPhiError, "#/format/json_schema"),
        (document(schema({"type": "array"}, "glm_xml")), UnsupportedError, "#/format/json_schema/type"),
        (
            document(schema({"type": "object", "properties": {"a": {"type": 3}}}, "glm_xml")),
            OutlinesPhiError,
            "at #/format/json_schema. .*#/properties/a/type",
        ),
        (
            document(schema({"type": "object", "properties": {"a": {"$ref": "#"}}}, "cohere_xml")),
            UnsupportedError,
            "#/format/json_schema",
        ),
        (document(schema(True, "minimax_m3_xml")), UnsupportedError, "List all properties.*additionalProperties"),
        (
            document(triggered("<b", tags=[A])),
            GrammarError,
            "#/format/tags/0/begin: .* exactly one of the triggers '<b'",
        ),
        (document(triggered("<f", "<g", tags=[A])), GrammarError, "#/format/triggers: each begins a tag"),
        (document(dispatch({"a<b": const("x"), "<": const("y")})), UnsupportedError, "#/format/rules"),
        (document(dispatch({"<1": const("x")}, excludes=["<"])), UnsupportedError, "#/format/rules"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_pointer(given: Any, error: type[Exception], said: str) -> None:
    refused(f"(?s){said}", structural_tag, given, error=error)
