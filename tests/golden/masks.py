"""Two hundred masks and thirty regular expressions, as digests that depend on the language alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from outlines.types import CFG, JsonSchema, email, regex
from pydantic import BaseModel, Field

from outlines_phi import BannedPhrases, from_transformers
from outlines_phi.guides import read_grammar
from outlines_phi.guides.guide import UNREACHABLE
from outlines_phi.plugin.types.tables import CompiledTypes
from outlines_phi.regex.patterns import compile_regex
from outlines_phi.vocabulary.vocabulary import Vocabulary
from tests.golden.texts import GBNF, GUIDANCE, LARK, Answer, Character, Person, loaded


class Nested(BaseModel):
    tags: list[Literal["a", "b", "ab"]] = Field(min_length=1, max_length=3)
    inner: Person | None
    score: float


gbnf = partial(read_grammar, dialect="gbnf")
HEAD = "%llguidance {}\nstart: "
CALCULATOR = """
start: e
e: e "+" t | t
t: t "*" f | f
f: NAME | "(" e ")" | "-" f
NAME: /[a-z_][a-z_0-9]*/
%ignore /[ \\n]+/
"""
LIST = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#"}}, "required": ["v"]}
NAMES = {
    "type": "object",
    "patternProperties": {"^n": {"type": "integer"}},
    "additionalProperties": {"type": "boolean"},
    "minProperties": 2,
}
FORMATS: dict[str, tuple[Any, Any, str]] = {
    "regex: words": (regex("(ab|ba|c){1,3}x?"), None, "abcbax"),
    "regex: number": (regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"), None, "-102.75e+3"),
    "regex: address": (regex(r"https?://[a-z0-9]+(\.[a-z0-9]+)+(/[^\s]*)?"), None, "http://www.open.com/the"),
    "regex: unicode": (regex(r"\w+( \p{L}+)*[.!?]"), None, "façade 日本 the!"),
    "regex: count": (regex(r"[^\n]{5,40}\n"), None, "it is not é closed\n"),
    "regex: case": (regex("(?i:sunday|straße)+"), None, "SundaySTRAßE"),
    "regex: prefix": (regex("a|ab|abc|no|not|nobody"), None, "nobody"),
    "regex: phase": (regex("(a|b)*a(a|b){3}"), None, "abbabab"),
    "email": (email, None, "it.is@open.com"),
    "answer": (Answer, None, "not now"),
    "integer": (int, None, "-2048"),
    "float": (float, None, "12.50"),
    "date": (date, None, "2024-02-29"),
    "datetime": (datetime, None, "2024-02-29 12:30:00"),
    "pydantic: character": (Character, None, '{"race":"elf","role":"rogue","alive":true}'),
    "pydantic: person": (Person, None, '{"name":"é the \\n","age":42}'),
    "pydantic: nested": (Nested, None, '{"tags":["a","ab"],"inner":{"name":"no","age":7},"score":-0.5}'),
    "list": (list[int], None, "[1, 20, -3]"),
    "json: any": (dict, None, '{"the": [true, {"of": null}], "é": 1.5}'),
    "json: recursive": (LIST | {"additionalProperties": False}, None, '{"v": 1, "next": {"v": -20, "next": {"v": 3}}}'),
    "json: bounds": ({"type": "integer", "minimum": -12, "maximum": 340, "multipleOf": 4}, None, "-8"),
    "json: float": ({"type": "number", "exclusiveMinimum": 0.25, "maximum": 17.5}, None, "16.75"),
    "json: length": ({"type": "string", "minLength": 3, "maxLength": 8}, None, '"it \\u00e9 日本"'),
    "json: pattern": ({"type": "string", "pattern": "^[a-c]{2,4}-[0-9]+$"}, None, '"abc-907"'),
    "json: format": ({"type": "string", "format": "ipv4"}, None, '"192.168.1.20"'),
    "json: enum": ({"enum": ["no", "not", 12, 120, None, {"a": [1]}]}, None, '{"a": [1]}'),
    "json: any of": ({"anyOf": [{"type": "array", "minItems": 2}, {"const": "true"}]}, None, "[true, false]"),
    "json: all of": ({"allOf": [{"type": "string", "minLength": 2}, {"pattern": "o"}, {"not": {"const": "no"}}]}, None, '"of not"'),
    "json: unique": ({"type": "array", "items": {"enum": [1, 2, 12]}, "uniqueItems": True, "minItems": 2}, None, "[12, 1, 2]"),
    "json: names": (NAMES, None, '{"name": 12, "open": true}'),
    "lark: sum": (CFG(LARK), None, "(12+ 7)+((3))"),
    "lark: calculator": (CFG(CALCULATOR), None, "-(open + no_1)*the"),
    "lark: Dyck": (CFG('start: pair+\npair: "(" pair* ")" | "[" pair* "]"'), None, "([()][])[]"),
    "lark: keywords": (CFG('start: ("if" N | N "=" N) ";" start?\nN: /[a-z]+/\n%ignore " "'), None, "if is; iff = no;"),
    "lark: regular": (CFG('start: "yes" | "no" ("," /[a-z]{2,4}/)*'), None, "no,the,of"),
    "gbnf: pairs": (gbnf(GBNF), None, "(the),open,(is)"),
    "gbnf: nested": (gbnf('root ::= "[" (i ("," i)*)? "]"\ni ::= root | [0-9]+ | "\\"" [^"]* "\\""'), None, '[1,["é of",[]],20]'),
    "gbnf: middle": (gbnf('root ::= "a" root "b" | "c" root "c" | "-"'), None, "aca-bcb"),
    "guidance: answer": (CFG(GUIDANCE), None, "yes.!."),
    "guidance: lexemes": (CFG(HEAD + "A{2,3} b\nA: /[a-z]+ /\nb[lazy]: /[0-9]+-/"), None, "the of 12-"),
    "guidance: suffix": (CFG(HEAD + 'x " is " y\nx[suffix=":"]: /[^:\\n]*/\ny: /(no|yes)+/'), None, "open: is noyes"),
    "guidance: nested": (CFG(HEAD + 'e\ne: A | "(" e ")" | "[" e "," e "]"\nA: /[a-z]+/'), None, "([is,(no)])"),
    "guidance: json": (CFG(HEAD + '"v" j "."\nj: %json {"type": "integer", "minimum": 1, "maximum": 20}'), None, "v12."),
    "ban: phrases": (None, ["it is", "no", "日本"], "yes, it was n日"),
    "ban: words": (None, BannedPhrases(["no", "Straße"], ignore_case=True, whole_word=True), "Nobody on STRASS"),
    "ban: regex": (None, [re.compile("[0-9]{2,4}x"), "the the"], "the th 123 the "),
    "ban: answer": (Answer, ["no "], "nobody"),
    "ban: regex beside": (regex("[a-z ]{3,12}"), BannedPhrases(["the", "no"], whole_word=True), "not th"),
    "ban: character": (Character, ["elf", "ue"], '{"race": "human", "role": "r'),
    "ban: Lark": (CFG(LARK), ["12", "(("], "(1+(2"),
}  # fmt: skip
"""By name: an output type, what is banned, and the beginning of a text, from which prefixes are cut."""

WORDS = (
    "the of and to in is it not no yes open closed on Sunday name age city true false null human elf date http www com"
)
MARKS = '": " | ", " | ": | {" | "} | "] | [" | [] | {} | () | (( | )) | \\n | \\u | é | 日本 | 😀'

PATTERNS = (
    "abc", "a|ab|abc", "a(bc)*", "(ab|ba|c){1,3}x?", "(a|b)*a(a|b){5}", "[a-z]{2,5}", "", ".*", r"[\s\S]{0,20}", "[^a]", r"\d+",
    r"\w{1,3}", r"\s+\S", r"\p{Lu}\p{Ll}*", "[é-ü]{2}", "日本?語", r"-?(0|[1-9]\d*)(\.[0-9]+)?", "(?i:straße|kelvin)", "(?i)k",
    "(?s:.){2}", "(?:a{2}){3,}", "(a|b|ab)*?c", "[[:alpha:]]{1,4}", "[a-z&&[^aeiou]]+", r"[\]\-]+", r"\x41\u00e9",
    r"(?P<day>[0-3]\d)/(?P<month>[01]\d)", r"https?://[^\s/]+(/[^\s]*)?", r'"([^"\\]|\\["\\/bfnrt])*"', r"[A-Z][^.\n]{0,30}\.",
)  # fmt: skip


@cache
def types_of(vocabulary: str) -> CompiledTypes:
    """The compiler of output types for a vocabulary with all bytes: alone, beside pieces that overlap, or the bundled model's."""
    if vocabulary == "bundled":
        return CompiledTypes(from_transformers(*loaded()).lm.vocabulary)
    pieces: list[str | bytes] = [
        "日".encode()[:2],
        b"\xa9 ",
        *map(str, range(100, 1000, 7)),
        *(f"{i:02}" for i in range(100)),
    ]
    pieces += [*MARKS.split(" | "), ", ", "\n  "]
    pieces += [
        piece for word in WORDS.split() for piece in (word, f" {word}", f'"{word}', word.upper(), word[:2], f"{word} ")
    ]
    tokens = [bytes([byte]) for byte in range(256)]
    if vocabulary == "pieces":
        tokens += dict.fromkeys(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces)
    return CompiledTypes(Vocabulary.from_tokens([*tokens, "<eos>"], len(tokens)))


@dataclass(frozen=True)
class Mask:
    """The tokens of a vocabulary after which a text of a format can still be completed, behind a prefix."""

    format: str
    vocabulary: str
    prefix: bytes

    @property
    def name(self) -> str:
        return f"{self.format}, {self.vocabulary}, {self.prefix.decode(errors='backslashreplace')}"

    def allowed(self) -> NDArray[np.intp]:
        """Return the ids, in order."""
        output_type, ban, _ = FORMATS[self.format]
        output_type = JsonSchema(output_type) if isinstance(output_type, dict) else output_type
        guide = (
            types_of(self.vocabulary).without(output_type, BannedPhrases(ban) if isinstance(ban, list) else ban).guide
        )
        state = guide.start_after(b"")
        for token in spelled(guide.vocabulary.tokens, self.prefix):
            state = guide.advance(state, token)
        return np.flatnonzero(guide.live_classes(state, UNREACHABLE)[guide.partition_of(state).class_of])


def spelled(tokens: Sequence[bytes], text: bytes) -> list[int]:
    """Return the ids of a text, each the longest that fits."""
    ids: list[int] = []
    while text:
        ids.append(
            max((i for i, token in enumerate(tokens) if token and text.startswith(token)), key=lambda i: len(tokens[i]))
        )
        text = text[len(tokens[ids[-1]]) :]
    return ids


def least_automaton(pattern: str) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the targets of the least automaton over bytes, dead state included, and which states accept.

    States are numbered in the order in which they are met, byte by byte from the start: one numbering for each language.
    """
    automaton = compile_regex(pattern)
    targets, kind = automaton.targets[:, automaton.byte_class], automaton.accepting.astype(np.intp)
    while True:  # Moore's refinement
        finer = np.unique(np.column_stack([kind, kind[targets]]), axis=0, return_inverse=True)[1].reshape(-1)
        if finer.max() == kind.max():
            break
        kind = finer
    first = np.unique(kind, return_index=True)[1]
    rows, order = kind[targets[first]], [int(kind[automaton.start])]
    for state in order:
        order += [after for after in dict.fromkeys(rows[state].tolist()) if after not in order]
    number = np.full(len(first), -1)
    number[order] = np.arange(len(order))
    return number[rows[order]], automaton.accepting[first[order]]


def digest(*arrays: NDArray[Any]) -> str:
    return hashlib.blake2b(b"".join(array.astype("<i4").tobytes() for array in arrays), digest_size=8).hexdigest()


VOCABULARIES, CUTS = ("bundled", "pieces", "bytes"), 4
MASKS = [
    Mask(name, VOCABULARIES[(place + cut) % 3], text.encode()[: len(text.encode()) * cut // (CUTS - 1)])
    for place, (name, (_, _, text)) in enumerate(FORMATS.items())
    for cut in range(CUTS)
]
