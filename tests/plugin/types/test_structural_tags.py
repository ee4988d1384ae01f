"""Structural tags have the texts that xgrammar reads: members of either, and texts beside them, are accepted by both or by none."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import xgrammar
from xgrammar.builtin_structural_tag import _structural_tag_registry, get_model_structural_tag

from outlines_phi import structural_tag
from outlines_phi.automata.byte_machine import ByteMachine
from outlines_phi.plugin.types.output_types import JSONText, to_language
from outlines_phi.plugin.types.structural_tags import FIELDS
from outlines_phi.regex.patterns import compile_regex

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
    **{f"{style}, optional": schema({**CALL, "required": []}, style) for style in STYLES},
}
"""A format of each kind that xgrammar's ``accept_string`` knows."""


def machine(given: Any) -> ByteMachine[Any]:
    language = to_language(structural_tag(given))
    if isinstance(language, JSONText):
        return language.machine
    assert isinstance(language, str)
    return compile_regex(language)


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
            allowed = [v for v in range(END + 1) if bits[0, v // 32].item() >> v % 32 & 1]
            if END in allowed and stream.random() < 0.2:
                return text
            byte = stream.choice([v for v in allowed if v < 128] or [v for v in allowed if v != END] or [END])
            if byte == END:
                return text
            assert matcher.accept_token(byte)
            text += bytes([byte])
        return None


def member(machine: ByteMachine[Any], stream: random.Random, words: list[str], most: int = 60) -> bytes:
    """Walk at random, now and then by a whole word of the document, and from some length on the shortest way to the end."""
    place, text = machine.start, b""
    while not machine.ends(place) or stream.random() < 0.8 and len(text) < most:
        word = stream.choice(words).encode()
        if stream.random() < 0.3 and (after := machine.read(word, place)) is not None and machine.is_live(after):
            text, place = text + word, after
            continue
        likely = stream.sample(range(128), 128) + stream.sample(range(128, 256), 128)
        steps = dict(zip(likely, machine.steps(place, likely), strict=True))
        byte = next((byte for byte, after in steps.items() if after is not None and machine.is_live(after)), -1)
        if len(text) >= most or stream.random() < 0.4 or byte < 0:
            if machine.ends(place):
                break
            byte = machine.toward_end(place)
        text, place = text + bytes([byte]), steps[byte]
    return text


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
    members, others = compare(document(FORMATS[name]), walks=30, seed=1)
    assert members > 3 or name == "const_string"
    assert others > 3


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {**CALL, "required": required}}}
    for name, required in (("get_time", ["q"]), ("go", ["q", "n"]))
]
CHOICES = ("auto", "required", {"type": "function", "function": {"name": "go"}})


@pytest.mark.parametrize("family", _structural_tag_registry)
def test_the_texts_of_each_builder_are_those_of_xgrammar(family: str) -> None:
    for choice in CHOICES:
        for reasoning in ("enabled", "disabled", "auto"):
            given = get_model_structural_tag(family, TOOLS, choice, reasoning)
            members, _ = compare(given.model_dump(), walks=4, seed=1)
            assert members > 3


KINDS = {str(form["type"]) for form in FORMATS.values()}


def test_each_kind_is_compared_or_is_one_of_tokens() -> None:
    of_tokens = {"token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"}
    assert KINDS | of_tokens == FIELDS.keys()
